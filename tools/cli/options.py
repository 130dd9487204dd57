"""Arguments that several commands have."""

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
        help="A store; a bookie's folder, or one that several are in; an entry log or a journal.",
        show_default=False,
    ),
]
StorePlace = Annotated[str, typer.Argument(metavar="STORE", help="A store: its folder.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, and say what would be done.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, with exact numbers, and nothing else.")]
MoreDisks = Annotated[
    list[str] | None,
    typer.Option(
        "--disk",
        metavar="PATH",
        help="Another disk, or bookie, of the same cluster. May be repeated.",
        show_default=False,
    ),
]
Metadata = Annotated[
    str | None,
    typer.Option(
        metavar="DUMP",
        help="For bookies: the dump of their cluster's metadata, a line of JSON for each node.",
        show_default=False,
    ),
]
Password = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT",
        help="A password of ledgers that is not in the metadata. May be repeated.",
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
        help="Only these topics: a full name, the end of one, or a pattern in which * stands for anything. May be "
        "repeated.",
        show_default=False,
    ),
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

# Seconds between two looks at work that tells nothing.
_LOOK_EVERY = 0.1

# Of many ledgers so many are named.
_NAMED = 8


@contextmanager
def looking_at(
    path: str, disks: list[str] | None, metadata: str | None, passwords: list[str] | None, json: bool
) -> Iterator[View]:
    """What lies at a path. Unless JSON is wanted, it is said first; if damage is met, it is said at the end, and is the
    exit code. What is not found where there is damage may be what the damage hides."""
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
            raise DamageError(f"{error}; what is damaged may hide it: {summary(view.damage)}") from error
        for note in view.notes:
            output.note(note)
        if view.damage:
            output.note(summary(view.damage))
        elif view.suspects:
            output.note(f"damage was found in {some_ledgers(view.suspects)}: bookstand verify tells more")
        if view.damage or view.suspects:
            raise typer.Exit(DAMAGE)


def document(view: View, facts: Mapping[str, Any]) -> None:
    """All that ``--json`` prints: what was asked for, and what one has to know of it."""
    damage, notes = [damage_facts(one) for one in view.damage], list(view.notes)
    output.document({"kind": view.kind, "path": str(view.path), **facts, "damage": damage, "notes": notes})


def damage_lines(view: View) -> None:
    """Where ``--json`` prints lines, the last of them."""
    for one in view.damage:
        output.json_line({"damage": damage_facts(one)})


def some_ledgers(ids: Iterable[int]) -> str:
    """By their ids; of many the first."""
    found = sorted(ids)
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"ledger{'s' if len(found) > 1 else ''} {', '.join(map(str, found[:_NAMED]))}{more}"


def store_at(path: str) -> str:
    """The folder of the store there; whatever else is there is refused."""
    from bookstand.tools.view.targets import STORE, classify

    found = classify(path)
    if found.kind != STORE:
        raise NotAStoreError(f"{path} is a {found.kind}, and no store")
    return os.fspath(found.path)


@contextmanager
def watched(written: Callable[[], int], total: int, what: str) -> Iterator[None]:
    """A bar for work that is one long call: ``written`` tells how many bytes of ``total`` are done."""
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
    """Told how many bytes of how many are done, or, if it ``counts``, how many things; gives None where nobody would
    see it. The bar comes with the first news, and goes without a trace."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = MofNCompleteColumn() if counts else DownloadColumn(True)
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    # What goes to stdout meanwhile goes there, and not where the bar is.
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
