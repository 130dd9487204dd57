"""What a shell completes that no command of typer's tells it: the jobs behind ``bookstand spark``.

Words for which nothing is said here or by the commands are paths, which the shells complete by themselves.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer


def _jobs(incomplete: str) -> list[tuple[str, str]]:
    from bookstand.pipeline.execution.cli import JOBS

    return [(name, job[0]) for name, job in JOBS.items() if name.startswith(incomplete)]


def spark_command(name: str) -> Any:
    """It stands for that command while a line is completed, and never runs."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command(name, help="Run a job over many stores, on Spark or without.")
    def spark(job: Annotated[str, typer.Argument(autocompletion=_jobs)]) -> None:
        pass

    made = typer.main.get_command(app)
    made.name = name
    return made
