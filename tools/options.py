"""Arguments that several commands have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from bookstand.tools import output
from bookstand.tools.exit_codes import DAMAGE
from bookstand.tools.target import open_view
from bookstand.tools.view import View

Place = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A store, a bookie's folder, the parent of several bookies' folders, an entry log or a journal.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, with exact numbers, and nothing else.")]
Metadata = Annotated[
    str | None,
    typer.Option(metavar="DUMP", help="For bookies: the dump of their cluster's metadata.", show_default=False),
]
Password = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="A password of ledgers that is not in the metadata. May be repeated.", show_default=False
    ),
]
Topic = Annotated[
    str | None,
    typer.Argument(metavar="[TOPIC]", help="One topic: its full name, or the end of it.", show_default=False),
]
Now = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="What is due is told for this time, as 2026-01-31T12:00:00Z or in ms since 1970; by default for now, of a "
        "bookie's disk for when its metadata last changed.",
        show_default=False,
    ),
]


@contextmanager
def looking_at(path: str, metadata: str | None, passwords: list[str] | None, json: bool) -> Iterator[View]:
    """What lies at a path. Unless JSON is wanted, it is said first; if damage is met, it is said at the end, and is the
    exit code."""
    with progress_bar("reading the disks") as progress, open_view(path, metadata, passwords or (), progress) as view:
        if not json:
            output.line(view.title)
        hint = getattr(view, "hint", None)
        if hint is not None:
            output.note(hint)
        yield view
        found = len(view.damage)
        if found:
            told = f"damage was found in {found} places: bookstand verify lists them"
            output.note(told if found > 1 else f"damage was found: {view.damage[0].what}")
            raise typer.Exit(DAMAGE)


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """Told how many bytes of how many are done; gives None where nobody would see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
