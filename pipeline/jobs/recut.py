"""``recut``: recut existing buckets with other segment or bucket sizes, or with coarser delivery times. No row is lost.

With ``least``, adjacent buckets are merged and cut again at this number of messages. Without it, each bucket keeps its
ledgers, and only its segments are cut again. A topic is one unit and one transaction. Cursors whose buckets would be
identical, byte for byte, are not changed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bookstand.delivery.tracker.bucket.key import BucketKey
from bookstand.delivery.tracker.bucket.snapshot.codec import SnapshotDamagedError
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes, concatenate
from bookstand.disk.topics.cursors import cursor as cursor_of
from bookstand.disk.topics.delayed import DelayedIndex, DiskBucket
from bookstand.disk.topics.topics import DiskTopic
from bookstand.errors import StoreDamagedError, StoreInUseError
from bookstand.managed_ledger.topic_name import cursor_node_of
from bookstand.pipeline.execution import store_commit
from bookstand.pipeline.execution.unit import JobPlan, Result, Unit
from bookstand.pipeline.jobs.bucket_cutting import Bucket, CutSettings, check_bucket, cut
from bookstand.pipeline.jobs.bucket_staging import ENTRY_LIMIT, change_of, cursor_fingerprint, cursor_names, stage
from bookstand.pipeline.jobs.busy_cursors import check_not_held, skip_reason
from bookstand.pipeline.jobs.single_topic import opened_topic
from bookstand.pipeline.jobs.topics import each_topic, missing
from bookstand.pipeline.tables.delayed_rows import in_order
from bookstand.proto.expansion import DEFAULT, ExpansionLimits

if TYPE_CHECKING:
    from bookstand.disk.store_source import StoreSource


@dataclass(frozen=True)
class Recut:
    """Job that recuts buckets of delayed messages. No row is lost."""

    stores: tuple[str, ...]
    cut: CutSettings = field(default_factory=CutSettings)
    resize: bool = False
    """True to merge and cut buckets to ``cut.least`` messages; otherwise buckets keep their ledgers."""
    topics: tuple[str, ...] = ()
    cursors: tuple[str, ...] = ()
    workplace: str | None = None
    take_over: bool = False
    """True to recut also cursors that other processes may have open."""
    looking: bool = False
    """True in a dry run."""
    limits: ExpansionLimits = DEFAULT
    """Bounds on the expansion of entries and records."""

    name = "recut"

    def __post_init__(self) -> None:
        self.cut.check()

    def work(self) -> Path | None:
        return None if self.looking else store_commit.work(self.workplace)

    def plan(self) -> JobPlan:
        units: list[Unit] = []
        problems: list[str] = []
        found: set[str] = set()
        for store, topic in each_topic(self.stores, self.topics, problems, self.limits):
            found.add(topic.name)
            cursors = [cursor_of(topic, name) for name in cursor_names(topic, self.cursors)]
            some = {one.name: cursor_fingerprint(one) for one in cursors if DelayedIndex(one, 0).buckets}
            if some:
                of = {"store": store, "topic": topic.name, "cursors": some, "settings": [*self.cut, self.resize]}
                units.append(Unit(f"{store} {topic.name}", of))
        problems += missing(self.topics, found)
        return JobPlan(units, problems=tuple(problems))

    def done(self, units: Sequence[Unit]) -> Mapping[str, Result]:
        return store_commit.done(self.name, units, self.limits)

    def preview(self) -> Recut:
        return replace(self, looking=True)

    def do(self, unit: Unit, folder: Path) -> Result:
        versions: dict[str, int] = {}
        cursors: dict[str, dict[str, int]] = {}
        left: dict[str, dict[str, Any]] = {}
        with opened_topic(unit.of["store"], unit.of["topic"], self.limits) as (topic, dump):
            storage = cast("StoreSource", topic.disks).storage
            for name in unit.of["cursors"]:
                try:
                    if not self.take_over:
                        check_not_held(storage, topic.name, name, self.limits)
                except StoreInUseError as error:
                    left[name] = skip_reason(error)
                    continue
                first = sum(facts["buckets"] for facts in cursors.values())
                cursors[name] = self._recut(topic, name, folder, first)
                if cursors[name]["changed"]:
                    versions[name] = dump.nodes[cursor_node_of(topic.name, name)].version
            if topic.disks.damage:
                raise StoreDamagedError(f"what cannot be read cannot be cut anew: {topic.disks.damage[0].what}")
        counts = Counter[str]()
        for facts in cursors.values():
            counts.update(facts)
        problems = tuple(f"cursor {name!r}: {one['why']}" for name, one in left.items())
        return Result(unit.name, dict(counts), problems, facts={"versions": versions, "cursors": cursors, "left": left})

    def _recut(self, topic: DiskTopic, cursor: str, folder: Path, first: int) -> dict[str, int]:
        """Stage the new buckets of a cursor, numbered from ``first``, and return statistics before and after."""
        index = DelayedIndex(cursor_of(topic, cursor), 0)
        _check_apart(index.buckets)
        before = _Sum()
        for bucket in index.buckets:
            before.add(bucket.key, _segments(bucket), _payloads(bucket))
        after = _Sum()
        rows = 0
        for new in self._cut(index.buckets):
            check_bucket(new)
            snapshot = self.cut.seal(new.indexes, ENTRY_LIMIT)
            if not self.looking:
                stage(folder, cursor, first + after.buckets, new.key, snapshot)
            after.add(new.key, snapshot.segment_count, snapshot.entries)
            rows += new.indexes.size
        return {
            "changed": int(after.digest != before.digest),
            "messages": rows,
            "buckets_before": before.buckets,
            "buckets": after.buckets,
            "segments_before": before.segments,
            "segments": after.segments,
            "bytes_before": before.bytes,
            "bytes": after.bytes,
        }

    def _cut(self, buckets: Sequence[DiskBucket]) -> Iterator[Bucket]:
        parts = ((bucket, _rows(bucket)) for bucket in buckets)
        if self.resize:
            yield from cut((in_order(rows) for _, rows in parts), self.cut.least)
        else:
            yield from (Bucket(bucket.key, rows, True) for bucket, rows in parts if rows.size)

    def commit(self, done: Sequence[tuple[Unit, Result]]) -> list[Result]:
        same = [result for _, result in done if not result.facts["versions"]]
        others = [(unit, result) for unit, result in done if result.facts["versions"]]
        return [*same, *store_commit.commit(self.name, others, change_of, self.limits)]


class _Sum:
    """Totals of buckets, with a digest of their keys and entries."""

    def __init__(self) -> None:
        self.buckets = self.segments = self.bytes = 0
        self._digest = hashlib.sha256()

    @property
    def digest(self) -> bytes:
        return self._digest.digest()

    def add(self, key: BucketKey, segments: int, entries: Iterable[bytes]) -> None:
        self.buckets += 1
        self.segments += segments
        self._digest.update(f"\0{key}\0".encode())
        for entry in entries:
            self.bytes += len(entry)
            self._digest.update(b"%d " % len(entry))
            self._digest.update(entry)


def _segments(bucket: DiskBucket) -> int:
    try:
        return len(bucket.metadata().metadata_list)
    except SnapshotDamagedError:
        # The damage is reported when the segments are read.
        return 0


def _payloads(bucket: DiskBucket) -> Iterator[bytes]:
    ledger = bucket.topic.ledger(bucket.ledger_id)
    return iter(()) if ledger is None else (entry.payload for entry in ledger.entries())


def _rows(bucket: DiskBucket) -> Indexes:
    parts: list[Any] = [segment.indexes for segment in bucket.segments()]
    return concatenate(parts) if parts else Indexes.of([], [], [])


def _check_apart(buckets: Sequence[DiskBucket]) -> None:
    for one, other in pairwise(buckets):
        if other.key.first_ledger <= one.key.last_ledger:
            raise StoreDamagedError(f"buckets {one.key} and {other.key} are about the same ledgers: rebuild them")
