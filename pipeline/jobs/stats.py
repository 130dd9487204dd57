"""``stats``: additive statistics of stores and disks.

For each place: ledgers, entries and bytes by kind of ledger, topics, backlogs and acknowledgment holes of cursors, and
delayed messages by the hour in which they are due. The summary has the sum over all places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from pyroaring import BitMap64

from bookstand.cursor.state.bitmap_runs import runs
from bookstand.disk.topics.cursors import DiskCursor, cursors
from bookstand.disk.topics.delayed import BROKERS_OWN, DelayedIndex, add, positions_of
from bookstand.disk.topics.ledger_kind import content_of
from bookstand.disk.topics.topics import topics
from bookstand.pipeline.execution.unit import Result
from bookstand.pipeline.jobs.read_only import ReadOnlyJob
from bookstand.pipeline.tables.sources import DataSource, open_source

if TYPE_CHECKING:
    from bookstand.disk.disks import Disks

HOUR = 3_600_000
# Number of cursors that are listed by name, those with the largest values.
_NAMED = 10
_LARGEST = {"backlogs", "holes"}


@dataclass(frozen=True)
class Stats(ReadOnlyJob):
    """Job that collects statistics. ``buckets_only`` counts only delayed messages in buckets, and reads no messages."""

    buckets_only: bool = False

    name = "stats"

    def look(self, name: str, place: DataSource) -> Result:
        with open_source(place) as disks:
            facts = {**_ledgers(disks), **self._topics(name, disks)}
            problems = tuple(dict.fromkeys(one.what for one in disks.damage))
        counts = {
            "ledgers": sum(facts["ledgers"].values()),
            "entries": sum(facts["entries"].values()),
            "bytes": sum(facts["bytes"].values()),
            "topics": facts["topics"],
            "cursors": facts["cursors"],
            "delayed": sum(facts["due"].values()),
        }
        return Result(name, counts, problems, facts=facts)

    def _topics(self, place: str, disks: Disks) -> dict[str, Any]:
        due: Counter[str] = Counter()
        kept: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        backlogs: Counter[str] = Counter()
        holes: Counter[str] = Counter()
        known = topics(disks)
        count = 0
        for topic in known:
            for cursor in cursors(topic):
                count += 1
                name = f"{place} {topic.name} {cursor.name}"
                if not cursor.name.startswith(BROKERS_OWN):
                    backlogs[name] = cursor.backlog
                holes[name] = _holes(cursor)
                self._delayed(cursor, due, kept, sizes)
        return {
            "topics": len(known),
            "cursors": count,
            "due": dict(due),
            "kept": dict(kept),
            "bucket_sizes": dict(sizes),
            "backlog": sum(backlogs.values()),
            "backlogs": dict(backlogs.most_common(_NAMED)),
            "hole_sizes": _sizes(holes.values()),
            "holes": dict(holes.most_common(_NAMED)),
        }

    def _delayed(self, cursor: DiskCursor, due: Counter[str], kept: Counter[str], sizes: Counter[str]) -> None:
        index = DelayedIndex(cursor, 0)
        held: dict[int, BitMap64] = {}
        for bucket in index.buckets:
            rows = 0
            for segment in bucket.segments():
                rows += segment.indexes.size
                delayed = segment.indexes
                if not self.buckets_only:
                    add(held, positions_of(segment.indexes))
                    delayed = index.delayed_of(segment.indexes)
                due.update(_hours(delayed.timestamps))
                kept["in buckets"] += delayed.size
            sizes[str(1 << max(rows, 1).bit_length() - 1)] += 1
        if self.buckets_only:
            return
        for some in chain([index.rescheduled()], index.rows_of_topic(held)):
            due.update(_hours(some.timestamps))
            kept["in the topic alone"] += some.size


def _ledgers(disks: Disks) -> dict[str, Any]:
    known = set(disks.ledger_ids)
    count, entries, size = Counter[str](), Counter[str](), Counter[str]()
    for ledger_id in disks.ledger_ids:
        ledger = disks.ledger(ledger_id)
        kind = content_of(ledger, known.__contains__).kind
        count[kind] += 1
        entries[kind] += ledger.extent.last_entry + 1
        size[kind] += ledger.extent.length
    return {"ledgers": dict(count), "entries": dict(entries), "bytes": dict(size)}


def _hours(times: Any) -> dict[str, int]:
    """Histogram of times (ms) by hour since 1970."""
    hours, counts = np.unique(times // HOUR, return_counts=True)
    return dict(zip(map(str, hours.tolist()), counts.tolist(), strict=True))


def _holes(cursor: DiskCursor) -> int:
    """Number of runs of acknowledged entries after the mark-delete position."""
    return sum(len(runs(acked)[0]) for acked in cursor.state.acked.values())


def _sizes(numbers: Iterable[int]) -> dict[str, int]:
    """Histogram of numbers, by the largest power of two that is not greater. 0 has a separate key."""
    return dict(Counter(str(1 << number.bit_length() - 1 if number else 0) for number in numbers))


def added_up(results: Iterable[Result]) -> dict[str, Any]:
    """Sum of the facts of all places. Lists of the largest values are cut to the largest of all places."""
    total: dict[str, Any] = {}
    for result in results:
        for name, value in result.facts.items():
            if isinstance(value, dict):
                total[name] = total.get(name, Counter()) + Counter(value)
            else:
                total[name] = total.get(name, 0) + value
    return {
        name: value if isinstance(value, int) else dict(value.most_common(_NAMED if name in _LARGEST else None))
        for name, value in total.items()
    }
