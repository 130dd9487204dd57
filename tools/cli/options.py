"""Arguments that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bookstand.errors import NoSuchEntryError, NoSuchLedgerError, NoSuchNodeError, NotAStoreError
from bookstand.tools.cli import output
from bookstand.tools.cli.damage_report import DamageError, damage_facts, summary
from bookstand.tools.cli.exit_codes import DAMAGE

if TYPE_CHECKING:
    from bookstand.tools.view.base import View

Place = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A store; the folder of a bookie, or of several bookies; an entry log or a journal.",
        show_default=False,
    ),
]
StorePlace = Annotated[str, typer.Argument(metavar="STORE", help="Folder of a store.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; report what would be done.")]
Json = Annotated[bool, typer.Option("--json", help="Print only JSON, with exact numbers.")]
MoreDisks = Annotated[
    list[str] | None,
    typer.Option(
        "--disk",
        metavar="PATH",
        help="Another disk or bookie of the same cluster. May be repeated.",
        show_default=False,
    ),
]
Metadata = Annotated[
    str | None,
    typer.Option(
        metavar="DUMP",
        help="For bookies: metadata dump of their cluster, one line of JSON per node.",
        show_default=False,
    ),
]
Password = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="A ledger password that is not in the metadata. May be repeated.",
        show_default=False,
    ),
]
Topic = Annotated[
    str | None,
    typer.Argument(metavar="[TOPIC]", help="One topic: its full name, or the end of it.", show_default=False),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="PATTERN",
        help="Only these topics: a full name, the end of one, or a pattern in which * matches any characters. May be "
        "repeated.",
        show_default=False,
    ),
]
Now = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Time for which due messages are determined: 2026-01-31T12:00:00Z or ms since 1970. Default: now; for a "
        "bookie's disk, the last change of its metadata.",
        show_default=False,
    ),
]

# Seconds between two polls of the progress of a blocking call.
_LOOK_EVERY = 0.1

# Maximum number of ledgers listed by id.
_NAMED = 8


@contextmanager
def looking_at(
    path: str, disks: list[str] | None, metadata: str | None, passwords: list[str] | None, json: bool
) -> Iterator[View]:
    """Open the view of a path; unless ``json``, print its title. Damage is summarized at the end and sets the exit
    code. If there is damage, a missing object is reported as damaged, because the damage may hide it."""
    from bookstand.tools.view.targets import open_view

    with progress_bar("reading the disks") as progress:
        view = open_view(path, disks or (), metadata, passwords or (), progress)
    with view:
        if not json:
            output.paragraph(view.title)
        if view.hint is not None:
            output.note(view.hint)
        try:
            yield view
        except (NoSuchLedgerError, NoSuchEntryError, NoSuchNodeError) as error:
            if not view.damage:
                raise
            raise DamageError(f"{error}; damage may hide it: {summary(view.damage)}") from error
        for note in view.notes:
            output.note(note)
        if view.damage:
            output.note(summary(view.damage))
        elif view.suspects:
            output.note(f"damage was found in {some_ledgers(view.suspects)}: see bookstand verify")
        if view.damage or view.suspects:
            raise typer.Exit(DAMAGE)


def document(view: View, facts: Mapping[str, Any]) -> None:
    """Print the JSON document of a command: its facts, damage and notes."""
    damage, notes = [damage_facts(one) for one in view.damage], list(view.notes)
    output.document({"kind": view.kind, "path": str(view.path), **facts, "damage": damage, "notes": notes})


def damage_lines(view: View) -> None:
    """Print the damage as the last lines of JSON Lines output."""
    for one in view.damage:
        output.json_line({"damage": damage_facts(one)})


def some_ledgers(ids: Iterable[int]) -> str:
    """Format ledger ids, at most :data:`_NAMED` of them."""
    found = sorted(ids)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"ledger{'s' if len(found) > 1 else ''} {', '.join(map(str, found[:_NAMED]))}{more}"


def store_at(path: str) -> str:
    """Return the directory of the store at ``path``; raise if there is something else."""
    from bookstand.tools.view.targets import STORE, classify

    found = classify(path)
    if found.kind != STORE:
        raise NotAStoreError(f"{path} is a {found.kind}, not a store")
    return os.fspath(found.path)


@contextmanager
def watched(written: Callable[[], int], total: int, what: str) -> Iterator[None]:
    """Show a progress bar during one blocking call; ``written`` returns how many of the ``total`` bytes are done."""
    with progress_bar(what) as progress:
        if progress is None:
            yield
            return
        over = Event()

        def look() -> None:
            while not over.wait(_LOOK_EVERY):
                progress(min(written(), total), total)

        watcher = Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


@contextmanager
def progress_bar(what: str, counts: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that updates a progress bar, in bytes or in items (``counts``); None without a terminal. The bar
    appears with the first update and is erased at the end."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = MofNCompleteColumn() if counts else DownloadColumn(True)
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    # Output to stdout must not be redirected to stderr with the bar.
    bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False)
    task = bar.add_task(what, total=None)

    def progress(done: int, total: int) -> None:
        bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield progress
    finally:
        if bar.live.is_started:
            bar.stop()
