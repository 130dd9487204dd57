"""Publish and deliver messages, a quarter of them delayed, across a simulated power cut, and check that none is lost,
delivered early or redelivered unexpectedly.

A process publishes and consumes, and is killed with SIGKILL; another one continues with the store. A third process
records every message, and the records are compared at the end. The store is temporary. Exit code 0 means that no
message was lost; 4 that some were, or that the demo failed, for example because the disk was full.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bookstand.demo import workload
from bookstand.demo.main import MIN_MESSAGES, run_in_temporary_folder
from bookstand.errors import BookstandError
from bookstand.tools.cli import output
from bookstand.tools.cli.exit_codes import FAILED
from bookstand.tools.cli.options import Json
from bookstand.tools.report import output as report_file
from bookstand.tools.report.collect import collect
from bookstand.tools.report.page import page
from bookstand.tools.view.targets import open_view

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = (
    "bookstand demo --messages 5000",
    "bookstand demo --messages 5000 --json",
    "bookstand demo --messages 5000 --report demo.html",
)


def run(
    messages: Annotated[
        int, typer.Option(metavar="COUNT", min=MIN_MESSAGES, help="Number of messages.")
    ] = workload.MESSAGES,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="FILE", help="Write a report on the store as it is right after the power cut."
        ),
    ] = None,
    json: Json = False,
) -> None:
    if report is not None:
        report_file.check(report)
    try:
        outcome = run_in_temporary_folder(
            messages, _beside() if json else None, None if report is None else partial(_report_on, file=report)
        )
    except SystemExit as end:
        raise BookstandError(str(end)) from end
    if json:
        rows = [{"what": row.name.strip(), **dict(zip(_CELLS, row.cells, strict=True))} for row in outcome.rows]
        output.document(
            {
                "kind": "demo",
                "messages": messages,
                "ok": not outcome.wrong,
                "rows": rows,
                "wrong": outcome.wrong,
                "report": None if report is None else str(report),
            }
        )
    elif report is not None:
        output.line()
        output.whole_line(f"Report on the store right after the power cut, as HTML: {report}")
    if outcome.wrong:
        raise typer.Exit(FAILED)


def _report_on(path: str, file: Path) -> None:
    """Write the report right after the cut, while there are acknowledgment holes, delayed messages and buckets."""
    with open_view(path) as view:
        report_file.write(file, page(collect(view)))


def _beside() -> Console:
    """Return a console on stderr for progress, so that it does not mix with JSON; it is silent without a terminal."""
    from rich.console import Console

    return Console(stderr=True, quiet=not sys.stderr.isatty(), highlight=False, soft_wrap=True)


_CELLS = ("before_the_cut", "after_it", "in_all")
