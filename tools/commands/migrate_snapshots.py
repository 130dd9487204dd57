"""Rewrite the buckets of delayed messages of a store, with other segment sizes, coarser times, or merged with adjacent
buckets. No message is lost or added.

Each topic is changed in one commit. To resume an interrupted command, run it again; buckets that would not change are
kept. A dry run prints the same numbers as a run. A subscription is skipped if another process may have it open, and a
topic if one of its buckets cannot be read; the exit code reports it.
"""

from __future__ import annotations

from typing import Annotated

import typer

from bookstand.pipeline.jobs.bucket_cutting import CutSettings, step_millis
from bookstand.pipeline.jobs.recut import Recut
from bookstand.tools.cli import output
from bookstand.tools.cli.options import DryRun, Json, StorePlace, Topics, store_at
from bookstand.tools.cli.output import Column, Row
from bookstand.tools.migration import Cursors, TakeOver, became, run_job, show
from bookstand.tools.view.targets import LIMITS

EXAMPLES = (
    "bookstand migrate snapshots my-store --least 1000 --dry-run",
    "bookstand migrate snapshots my-store --least 1000 --topic orders",
    "bookstand migrate snapshots my-store --precision-bits 10 --json",
)

_COLUMNS = (
    Column("topic", "TOPIC", show=output.topic, least=16),
    Column("cursor", "CURSOR", least=12),
    Column("messages", "MESSAGES", right=True),
    Column("buckets", "BUCKETS", right=True),
    Column("segments", "SEGMENTS", right=True, rank=1),
    Column("size", "SIZE", right=True, rank=2),
)
_USUAL = CutSettings()


def run(
    store: StorePlace,
    least: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Merge and split buckets so that each has at least N messages. By default each keeps its range of "
            "ledgers.",
            show_default=False,
        ),
    ] = None,
    step_seconds: Annotated[
        float, typer.Option(min=0.001, metavar="S", help="Maximum time span of a segment, in seconds.")
    ] = _USUAL.step_millis / 1000,
    most_in_segment: Annotated[
        int, typer.Option(min=-1, metavar="N", help="Maximum number of messages in a segment; -1 means unlimited.")
    ] = _USUAL.most_in_segment,
    precision_bits: Annotated[
        int, typer.Option(min=0, max=62, metavar="N", help="Round times up to multiples of 2^N milliseconds.")
    ] = _USUAL.precision_bits,
    topic: Topics = None,
    cursor: Cursors = None,
    take_over: TakeOver = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    topics, cursors = tuple(topic or ()), tuple(cursor or ())
    cut = CutSettings(
        _USUAL.least if least is None else least, step_millis(step_seconds), most_in_segment, precision_bits
    )
    path = store_at(store)
    job = Recut((path,), cut, least is not None, topics, cursors, take_over=take_over, limits=LIMITS.get())
    found = run_job(path, job, topics, cursors, dry_run)
    show("migrate snapshots", path, found, dry_run, json, _COLUMNS, _row)


def _row(facts: Row) -> Row:
    return {
        **facts,
        "buckets": became(facts["buckets_before"], facts["buckets"]),
        "segments": became(facts["segments_before"], facts["segments"]),
        "size": became(output.size(facts["bytes_before"]), output.size(facts["bytes"])),
    }
