"""Shell completion of the jobs of ``bookstand spark``, which typer does not know.

Words without a completion function here or in a command are paths, which the shells complete on their own.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer


def _jobs(incomplete: str) -> list[tuple[str, str]]:
    from bookstand.pipeline.execution.cli import JOBS

    return [(name, job[0]) for name, job in JOBS.items() if name.startswith(incomplete)]


def spark_command(name: str) -> Any:
    """Return a stand-in for ``bookstand spark`` that only completes command lines and never runs."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command(name, help="Run a job over many stores, with or without Spark.")
    def spark(job: Annotated[str, typer.Argument(autocompletion=_jobs)]) -> None:
        pass

    made = typer.main.get_command(app)
    made.name = name
    return made
