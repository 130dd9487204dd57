"""Show the delayed messages of each subscription: how many there are, how many are in buckets and how many only in the
topic, and when the next and the last one are due.

For a single topic, its buckets are also listed: the range of ledgers that each covers, its snapshot, its segments and
messages. Snapshots that no subscription references were merged into others, or are orphaned.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bookstand.errors import NoSuchNodeError
from bookstand.tools.cli import output
from bookstand.tools.cli.options import Json, Metadata, MoreDisks, Now, Password, Place, Topic, document, looking_at
from bookstand.tools.cli.output import Column, counted, iso
from bookstand.tools.cli.time_arguments import millis_of
from bookstand.tools.view.delayed_summary import DelayedSummary, waiting

EXAMPLES = (
    "bookstand delayed my-store",
    "bookstand delayed my-store orders --at 2027-01-15T08:10:00Z",
    "bookstand delayed bookie --metadata metadata.jsonl.gz --json",
)

_SUBSCRIPTIONS = (
    Column("topic", "TOPIC", show=output.topic, least=16),
    Column("subscription", "SUBSCRIPTION", least=12),
    Column("messages", "WAITING", right=True),
    Column("in_buckets", "IN BUCKETS", right=True),
    Column("in_topic", "IN TOPIC", right=True, rank=3),
    Column("buckets", "BUCKETS", right=True, rank=2),
    Column("next_due", "NEXT", show=output.time),
    Column("last_due", "LAST", show=output.time, rank=1),
)
_BUCKETS = (
    Column("subscription", "SUBSCRIPTION", least=12),
    Column("ledgers", "LEDGERS"),
    Column("snapshot", "SNAPSHOT", right=True),
    Column("segments", "SEGMENTS", right=True),
    Column("messages", "MESSAGES", right=True),
    Column("due", "DUE", right=True, rank=2),
    Column("first_due", "FIRST", show=output.time),
    Column("last_due", "LAST", show=output.time, rank=1),
    Column("problem", "PROBLEM", least=12),
)


def run(
    path: Place,
    topic: Topic = None,
    subscription: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the subscription with this name.", show_default=False)
    ] = None,
    at: Now = None,
    disk: MoreDisks = None,
    metadata: Metadata = None,
    password: Password = None,
    json: Json = False,
) -> None:
    asked = millis_of(at)
    with looking_at(path, disk, metadata, password, json) as view:
        now = view.default_now if asked is None else asked
        names = view.topics() if topic is None else [view.find_topic(topic)]
        found = [
            _facts(waiting(view, index))
            for name in names
            for index in view.delayed(name, now)
            if subscription in (None, index.cursor.name)
        ]
        if subscription is not None and not found:
            raise NoSuchNodeError(f"there is no subscription {subscription!r}")
        rows = [row for row, _ in found]
        buckets = [bucket for _, some in found for bucket in some]
        leftover = view.leftover_buckets() if topic is None else []
        if json:
            subscriptions = [{**row, "buckets": some} for row, some in found]
            document(view, {"at": iso(now), "subscriptions": subscriptions, "leftover_snapshots": leftover})
            return
        output.line(f"at {output.time(iso(now))}")
        some = [row for row in rows if row["messages"] or row["buckets"]]
        if some:
            output.table(_SUBSCRIPTIONS, some)
        quiet = len(rows) - len(some)
        if quiet:
            output.line(f"{counted(quiet, 'other subscription' if some else 'subscription')} without delayed messages")
        if not rows:
            output.line("no subscriptions")
        if topic is not None and buckets:
            output.heading("buckets")
            output.table(_BUCKETS, buckets)
        if leftover:
            output.line(f"unreferenced snapshots: {len(leftover)}")


def _facts(found: DelayedSummary) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the row of a subscription and the rows of its buckets."""
    buckets = [
        {
            "subscription": found.subscription,
            "ledgers": f"{bucket.first_ledger}-{bucket.last_ledger}",
            "snapshot": bucket.snapshot,
            "segments": len(bucket.segments),
            "messages": bucket.messages,
            "due": bucket.due,
            "first_due": iso(bucket.first_due),
            "last_due": iso(bucket.last_due),
            "problem": "; ".join(bucket.problems) or None,
        }
        for bucket in found.buckets
    ]
    return {
        "topic": found.topic,
        "subscription": found.subscription,
        "messages": found.messages,
        "in_buckets": found.in_buckets,
        "in_topic": found.in_topic,
        "buckets": len(buckets),
        "next_due": iso(found.next_due),
        "last_due": iso(found.last_due),
    }, buckets
