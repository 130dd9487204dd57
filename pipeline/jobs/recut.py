"""``recut``: the buckets that subscriptions have, cut anew: other segments, sizes or coarser times. Every row stays.

``least``: buckets of adjacent ledgers are merged until they have so many messages, and cut where they have; without it
buckets stay as they are, and only what is in them is cut anew. A topic is one unit, and one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from bookstand.delivery.indexes import Indexes, together
from bookstand.disk.cursors import cursor as cursor_of
from bookstand.disk.delayed import DelayedIndex, DiskBucket
from bookstand.errors import StoreDamagedError
from bookstand.ledger.topic_name import cursor_node_of
from bookstand.pipeline import store_changes
from bookstand.pipeline.bucket_changes import ENTRY_LIMIT, change_of, cursor_names, stage, standing
from bookstand.pipeline.bucket_cutting import Bucket, Cut, check_bucket, cut
from bookstand.pipeline.delayed_rows import in_order
from bookstand.pipeline.one_topic import opened_topic
from bookstand.pipeline.store_topics import each_topic
from bookstand.pipeline.unit import Plan, Result, Unit


@dataclass(frozen=True)
class Recut:
    """Cuts the buckets of delayed messages anew; every row stays."""

    stores: tuple[str, ...]
    cut: Cut = field(default_factory=Cut)
    resize: bool = False
    """Whether buckets become of ``cut.least`` messages each; else they keep their ledgers."""
    topics: tuple[str, ...] = ()
    cursors: tuple[str, ...] = ()
    workplace: str | None = None
    looking: bool = False
    """Whether nothing is to be left."""

    name = "recut"

    def work(self) -> Path | None:
        return None if self.looking else store_changes.work(self.workplace)

    def plan(self) -> Plan:
        units: list[Unit] = []
        problems: list[str] = []
        for store, topic in each_topic(self.stores, self.topics, problems):
            cursors = [cursor_of(topic, name) for name in cursor_names(topic, self.cursors)]
            some = {one.name: standing(one) for one in cursors if DelayedIndex(one, 0).buckets}
            if some:
                of = {"store": store, "topic": topic.name, "cursors": some, "settings": [*self.cut, self.resize]}
                units.append(Unit(f"{store} {topic.name}", of))
        return Plan(units, problems=tuple(problems))

    def done(self, units: Sequence[Unit]) -> Mapping[str, Result]:
        return store_changes.done(self.name, units)

    def preview(self) -> Recut:
        return replace(self, looking=True)

    def do(self, unit: Unit, folder: Path) -> Result:
        with opened_topic(unit.of["store"], unit.of["topic"]) as (topic, dump):
            versions = {name: dump.nodes[cursor_node_of(topic.name, name)].version for name in unit.of["cursors"]}
            before = after = rows = 0
            for name in unit.of["cursors"]:
                index = DelayedIndex(cursor_of(topic, name), 0)
                _check_apart(index.buckets)
                before += len(index.buckets)
                for bucket in self._cut(index.buckets):
                    check_bucket(bucket)
                    snapshot = self.cut.seal(bucket.indexes, ENTRY_LIMIT)
                    if not self.looking:
                        stage(folder, name, after, bucket.key, snapshot)
                    after += 1
                    rows += bucket.indexes.size
            if topic.disks.damage:
                raise StoreDamagedError(f"what cannot be read cannot be cut anew: {topic.disks.damage[0].what}")
        counts = {"buckets_before": before, "buckets": after, "messages": rows}
        return Result(unit.name, counts, facts={"versions": versions})

    def _cut(self, buckets: Sequence[DiskBucket]) -> Iterator[Bucket]:
        parts = ((bucket, _rows(bucket)) for bucket in buckets)
        if self.resize:
            yield from cut((in_order(rows) for _, rows in parts), self.cut.least)
        else:
            yield from (Bucket(bucket.key, rows, True) for bucket, rows in parts if rows.size)

    def commit(self, done: Sequence[tuple[Unit, Result]]) -> list[Result]:
        return store_changes.commit(self.name, done, change_of)


def _rows(bucket: DiskBucket) -> Indexes:
    parts: list[Any] = [segment.indexes for segment in bucket.segments()]
    return together(parts) if parts else Indexes.of([], [], [])


def _check_apart(buckets: Sequence[DiskBucket]) -> None:
    for one, other in pairwise(buckets):
        if other.key.first_ledger <= one.key.last_ledger:
            raise StoreDamagedError(f"buckets {one.key} and {other.key} are about the same ledgers: rebuild them")
