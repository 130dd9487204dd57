"""Convert the cursors of a store to another form: to pages and markers, or to snapshots, which every reader of Pulsar's
supports. Acknowledgments do not change, including those of parts of batches.

Each cursor is converted atomically; to resume an interrupted command, run it again. A dry run prints the same numbers
as a run. A cursor is skipped if another process may have it open, if its newest state is damaged, or if its snapshot
does not fit in one entry; the exit code reports it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from bookstand.cursor.store.migration import PAGES
from bookstand.pipeline.jobs.migrate_cursors import MigrateCursors
from bookstand.tools.cli import output
from bookstand.tools.cli.options import DryRun, Json, StorePlace, Topics, store_at
from bookstand.tools.cli.output import Column, Row
from bookstand.tools.migration import Cursors, TakeOver, became, run_job, show
from bookstand.tools.view.targets import LIMITS

EXAMPLES = (
    "bookstand migrate cursors my-store --to snapshot --dry-run",
    "bookstand migrate cursors my-store --to snapshot --topic orders --cursor 'a*'",
    "bookstand migrate cursors my-store --json",
)

_COLUMNS = (
    Column("topic", "TOPIC", show=output.topic, least=16),
    Column("cursor", "CURSOR", least=12),
    Column("form", "FORM"),
    Column("ranges", "RANGES", right=True, rank=1),
    Column("batches", "BATCHES", right=True, rank=2),
    Column("size", "SIZE", right=True),
    Column("pages", "PAGES", right=True, rank=3),
    Column("bytes", "WRITTEN", right=True, show=output.size, rank=4),
)


def run(
    store: StorePlace,
    to: Annotated[
        str, typer.Option(metavar="FORM", help="pages, or snapshot, which every reader of Pulsar's supports.")
    ] = PAGES,
    topic: Topics = None,
    cursor: Cursors = None,
    take_over: TakeOver = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    topics, cursors = tuple(topic or ()), tuple(cursor or ())
    path = store_at(store)
    job = MigrateCursors((path,), to, topics, cursors, take_over, LIMITS.get())
    found = run_job(path, job, topics, cursors, dry_run)
    show("migrate cursors", path, found, dry_run, json, _COLUMNS, _row, to=to)


def _row(facts: Row) -> Row:
    return {
        **facts,
        "form": became(facts["before"], facts["after"]),
        "size": became(output.size(facts["size_before"]), output.size(facts["size_after"])),
    }
