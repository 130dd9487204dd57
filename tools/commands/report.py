"""Write a report on PATH: one self-contained HTML page with tables and charts.

The report shows ledgers by size and age, a map of the acknowledgments of each subscription, delayed messages and their
buckets, how much of the data fits in caches, and the damage that verify finds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bookstand.errors import StoreDamagedError
from bookstand.tools.cli import output
from bookstand.tools.cli.damage_report import damage_facts, summary
from bookstand.tools.cli.exit_codes import DAMAGE
from bookstand.tools.cli.options import Json, Metadata, MoreDisks, Now, Password, Place, looking_at
from bookstand.tools.cli.output import Fact, iso
from bookstand.tools.cli.time_arguments import millis_of
from bookstand.tools.report import metrics_scrape
from bookstand.tools.report.collect import collect, of_unreadable
from bookstand.tools.report.model import Delayed, Report, Subscription
from bookstand.tools.report.output import check, default_name, write
from bookstand.tools.report.page import page
from bookstand.tools.view.targets import classify

EXAMPLES = (
    "bookstand report my-store",
    "bookstand report my-store --output today.html --at 2027-01-15T08:10:00Z",
    "bookstand report bookie --metadata metadata.jsonl.gz --no-verify --json",
)

_FACTS = (
    Fact("ledgers", "ledgers"),
    Fact("entries", "entries"),
    Fact("bytes", "size", output.size_and_bytes),
    Fact("topics", "topics"),
    Fact("subscriptions", "subscriptions"),
    Fact("backlog", "backlog"),
    Fact("holes", "holes"),
    Fact("delayed", "delayed"),
    Fact("nodes", "nodes"),
    Fact("output", "report"),
    Fact("output_bytes", "its size", output.size),
)


def run(
    path: Place,
    to: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="File for the page; NAME-report.html by default. An existing report is replaced; any other file is "
            "refused.",
            show_default=False,
        ),
    ] = None,
    verify: Annotated[bool, typer.Option(help="Read all data, to find all damage.")] = True,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Saved metrics page of a process that has the store open; adds its cache statistics.",
            show_default=False,
        ),
    ] = None,
    at: Now = None,
    disk: MoreDisks = None,
    metadata: Metadata = None,
    password: Password = None,
    json: Json = False,
) -> None:
    target, now = classify(path), millis_of(at)
    to = to or default_name(target.path)
    check(to)
    caches = None if metrics is None else metrics_scrape.read(metrics)
    try:
        with looking_at(path, disk, metadata, password, json) as view:
            _write(collect(view, now, verify, caches), to, json)
    except StoreDamagedError as error:
        report = of_unreadable(target.path, error, now)
        if not json:
            output.paragraph(report.title)
        _write(report, to, json)
        output.note(summary(report.damage))
        raise typer.Exit(DAMAGE) from error


def _write(report: Report, to: Path, json: bool) -> None:
    size = write(to, page(report))
    sums = {
        "ledgers": len(report.ledgers),
        "entries": report.ledgers.entries,
        "bytes": report.ledgers.bytes,
        "topics": len(report.topics),
        "subscriptions": len(report.subscriptions),
        "backlog": report.backlog,
        "holes": report.holes,
        "delayed": report.waiting,
        "nodes": report.node_count,
    }
    written = {"output": str(to), "output_bytes": size}
    if not json:
        output.facts(_FACTS, {**sums, **written})
        return
    output.document(
        {
            "kind": report.kind,
            "path": report.path,
            "at": iso(report.at),
            **written,
            "verified": report.verified,
            "total": sums,
            "subscriptions": [_subscription(one) for one in report.subscriptions],
            "delayed": [_delayed(one) for one in report.delayed],
            "leftover_snapshots": report.leftover,
            "damage": [damage_facts(one) for one in report.damage],
            "notes": report.notes,
        }
    )


def _subscription(one: Subscription) -> dict[str, Any]:
    asked = one.asked
    return {
        "topic": one.topic,
        "subscription": one.name,
        "mark_delete": one.mark_delete,
        "backlog": one.backlog,
        "holes": one.holes,
        "acked": one.acked,
        "batches": one.batches,
        "source": one.source,
        "pages": one.pages.number,
        "pages_bytes": one.pages.bytes,
        "pages_that_fit": one.pages.fit,
        "cache_hits": None if asked is None else asked.hits,
        "cache_misses": None if asked is None else asked.misses,
        "cache_hit_ratio": None if asked is None else asked.ratio,
    }


def _delayed(one: Delayed) -> dict[str, Any]:
    waiting, times = one.waiting, one.times
    return {
        "topic": waiting.topic,
        "subscription": waiting.subscription,
        "messages": waiting.messages,
        "in_buckets": waiting.in_buckets,
        "buckets": len(waiting.buckets),
        "next_due": iso(waiting.next_due),
        "last_due": iso(waiting.last_due),
        "first_bin": None if times is None else iso(times.first),
        "bin_ms": None if times is None else times.step,
        "bins": [] if times is None else times.counts.tolist(),
    }
