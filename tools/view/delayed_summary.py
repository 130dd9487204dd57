"""Summary of a subscription's delayed messages: in buckets, and only in the topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pyroaring import BitMap64

from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes, Numbers
from bookstand.disk.topics.delayed import DelayedIndex, add, positions_of

if TYPE_CHECKING:
    from bookstand.disk.topics.delayed import DiskBucket
    from bookstand.tools.view.base import View


class Segment(NamedTuple):
    """Segment whose ``messages`` are due from the first through the last time, in ms."""

    first_due: int
    last_due: int
    messages: int


class Bucket(NamedTuple):
    """Bucket snapshot. ``problems`` describe its unreadable parts."""

    first_ledger: int
    last_ledger: int
    snapshot: int
    segments: list[Segment]
    due: int
    problems: list[str]

    @property
    def messages(self) -> int:
        return sum(segment.messages for segment in self.segments)

    @property
    def first_due(self) -> int | None:
        return min((segment.first_due for segment in self.segments), default=None)

    @property
    def last_due(self) -> int | None:
        return max((segment.last_due for segment in self.segments), default=None)


class DelayedSummary(NamedTuple):
    """Delayed messages of a subscription. ``next_due`` and ``last_due`` are None if there are none."""

    topic: str
    subscription: str
    messages: int
    in_buckets: int
    buckets: list[Bucket]
    next_due: int | None
    last_due: int | None

    @property
    def in_topic(self) -> int:
        return self.messages - self.in_buckets


def waiting(view: View, index: DelayedIndex, see: Callable[[Numbers], None] | None = None) -> DelayedSummary:
    """Summarize an index. ``see`` is called with arrays of due times, in which each delayed message occurs once."""
    held: dict[int, BitMap64] = {}
    buckets = [_read(view, index, bucket, held) for bucket in index.buckets]
    found: dict[int, BitMap64] = {}
    times: list[int] = []
    for rows in index.rows():
        positions = positions_of(rows)
        if see is not None:
            see(_new(rows, positions, found))
        add(found, positions)
        if rows.size:
            times += [int(rows.timestamps.min()), int(rows.timestamps.max())]
    return DelayedSummary(
        index.topic.name,
        index.cursor.name,
        _count(found),
        _count(held),
        buckets,
        min(times, default=None),
        max(times, default=None),
    )


def _read(view: View, index: DelayedIndex, bucket: DiskBucket, held: dict[int, BitMap64]) -> Bucket:
    """Describe a bucket, and add its delayed messages to ``held``."""
    known = len(view.source.damage)
    segments = []
    due = 0
    for segment in bucket.segments():
        positions = positions_of(segment.indexes)
        segments.append(Segment(segment.min_time, segment.max_time, _count(positions)))
        due += int((segment.indexes.timestamps <= index.now).sum())
        add(held, positions_of(index.delayed_of(segment.indexes)))
    problems = [one.what for one in view.source.damage[known:]]
    return Bucket(bucket.key.first_ledger, bucket.key.last_ledger, bucket.ledger_id, segments, due, problems)


def _new(rows: Indexes, positions: dict[int, BitMap64], found: dict[int, BitMap64]) -> Numbers:
    """Return the times of rows whose positions are neither in ``found`` nor in an earlier row."""
    known = {ledger_id: found[ledger_id] for ledger_id in positions if ledger_id in found}
    if _count(positions) == rows.size and all(known[one].isdisjoint(positions[one]) for one in known):
        return rows.timestamps
    seen: set[tuple[int, int]] = set()
    new = np.zeros(rows.size, np.bool_)
    for number, position in enumerate(zip(rows.ledger_ids.tolist(), rows.entry_ids.tolist(), strict=True)):
        ledger_id, entry_id = position
        new[number] = position not in seen and entry_id not in known.get(ledger_id, ())
        seen.add(position)
    return rows.timestamps[new]


def _count(positions: dict[int, BitMap64]) -> int:
    return sum(map(len, positions.values()))
