"""List of the sealed buckets of a tracker, sorted by ledger. No I/O."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

from bookstand.delivery.tracker.bucket.key import BucketKey

Column = NDArray[np.int64]


_MAX_TABLE = 1 << 16
# Removed messages are counted in batches of this size.
_COUNT_BATCH = 1 << 14


class Bucket:
    """A snapshot, how far it is loaded, and how many of its messages are still tracked.

    Segments are numbered from 1, like their entries. ``waiting`` includes messages of the bucket's ledgers that were
    added after the seal. ``generation`` is the number of merges of its most merged messages since the process started.
    ``own`` is set if this process sealed the snapshot, so that it contains each tracked message once.
    """

    __slots__ = ("bucket_id", "first_times", "generation", "key", "last_times", "length", "loaded", "own", "waiting")

    def __init__(
        self,
        key: BucketKey,
        bucket_id: int,
        first_times: list[int],
        last_times: list[int],
        length: int,
        *,
        loaded: int = 0,
        waiting: int = 0,
        generation: int = 0,
    ) -> None:
        self.key = key
        self.bucket_id = bucket_id
        self.first_times = first_times
        self.last_times = last_times
        self.length = length
        self.loaded = loaded
        self.waiting = waiting
        self.generation = generation
        self.own = False

    @property
    def segments(self) -> int:
        return len(self.first_times)

    @property
    def next_time(self) -> int | None:
        """Start of the next segment to load; None if all are loaded."""
        return self.first_times[self.loaded] if self.loaded < len(self.first_times) else None

    @property
    def name(self) -> str:
        return str(self.key)

    def __repr__(self) -> str:
        first, last = self.key
        loaded = f"{self.loaded} of {self.segments} segments loaded"
        return f"<Bucket [{first}-{last}] in ledger {self.bucket_id}: {self.waiting} delayed, {loaded}>"


class Buckets:
    """Sealed buckets with disjoint ledger ranges."""

    def __init__(self) -> None:
        self._buckets: list[Bucket] = []
        self._empty: set[Bucket] = set()
        # Columns for queries; None until they are computed.
        self._firsts: Column | None = None
        self._lasts: Column | None = None
        # Index of the bucket of each ledger, counted from the first ledger, plus one element for ledgers in no bucket.
        # Empty if it would be too large.
        self._table: Column | None = None
        # Heap of (next time, first ledger, number of loaded segments, sequence number, bucket). Stale elements are
        # dropped when they reach the top.
        self._upcoming: list[tuple[int, int, int, int, Bucket]] = []
        self._sequence = count()
        self._members: set[Bucket] = set()
        # Ledgers of removed messages that ``waiting`` still includes: first raw, then counted by bucket; their total;
        # and the number of removals before any bucket can be empty.
        self._removed: list[Column] = []
        self._removed_count = 0
        self._removed_by_place: Column | None = None
        self._removed_total = 0
        self._removals_to_empty = 0

    def __len__(self) -> int:
        return len(self._buckets)

    def __iter__(self) -> Iterator[Bucket]:
        self._apply_removed()
        return iter(self._buckets)

    def __getitem__(self, place: int) -> Bucket:
        self._apply_removed()
        return self._buckets[place]

    def add(self, bucket: Bucket) -> None:
        self._apply_removed()
        self._removals_to_empty = min(self._removals_to_empty, bucket.waiting) if self._buckets else bucket.waiting
        insort(self._buckets, bucket, key=_first_ledger)
        self._members.add(bucket)
        self._push_upcoming(bucket)
        self._invalidate()

    def remove(self, bucket: Bucket) -> None:
        self._apply_removed()
        self._buckets.remove(bucket)
        self._members.discard(bucket)
        self._empty.discard(bucket)
        self._invalidate()

    def clear(self) -> None:
        self._buckets.clear()
        self._members.clear()
        self._upcoming.clear()
        self._empty.clear()
        self._removed_total = 0
        self._removed, self._removed_count = [], 0
        self._invalidate()

    def _invalidate(self) -> None:
        self._firsts = self._lasts = self._table = self._removed_by_place = None

    def loaded(self, bucket: Bucket) -> None:
        bucket.loaded += 1
        self._push_upcoming(bucket)

    def _push_upcoming(self, bucket: Bucket) -> None:
        if bucket.next_time is not None:
            key = bucket.next_time, bucket.key.first_ledger, bucket.loaded, next(self._sequence)
            heapq.heappush(self._upcoming, (*key, bucket))

    @property
    def next_to_load(self) -> Bucket | None:
        """The bucket with the earliest segment to load; None if all are loaded."""
        upcoming = self._upcoming
        while upcoming:
            _, _, loaded, _, bucket = upcoming[0]
            if bucket.loaded == loaded and bucket in self._members:
                return bucket
            heapq.heappop(upcoming)
        return None

    def covering(self, ledger_id: int) -> Bucket | None:
        """The bucket that covers a ledger, or None."""
        self._apply_removed()
        place = bisect_right(self._buckets, ledger_id, key=_first_ledger) - 1
        if place >= 0 and ledger_id <= self._buckets[place].key.last_ledger:
            return self._buckets[place]
        return None

    def places(self, ledger_ids: Column) -> Column:
        """Index of the bucket that covers each ledger, or -1."""
        if not self._buckets:
            return np.full(len(ledger_ids), -1, dtype=np.int64)
        firsts, lasts = self._columns()
        if self._table is None:
            self._table = self._as_table(firsts, lasts)
        if len(self._table):
            # Ledgers before the first wrap around to large unsigned offsets.
            offsets = np.minimum((ledger_ids - firsts[0]).view(np.uint64), np.uint64(len(self._table) - 1))
            places: Column = self._table[offsets.view(np.int64)]
            return places
        found = np.searchsorted(firsts, ledger_ids, side="right") - 1
        return np.where((found >= 0) & (ledger_ids <= lasts[found]), found, -1)

    @staticmethod
    def _as_table(firsts: Column, lasts: Column) -> Column:
        span = int(lasts[-1]) - int(firsts[0]) + 1
        if span > _MAX_TABLE:
            return np.empty(0, dtype=np.int64)
        table = np.full(span + 1, -1, dtype=np.int64)
        for place, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
            table[first - int(firsts[0]) : last - int(firsts[0]) + 1] = place
        return table

    def _columns(self) -> tuple[Column, Column]:
        if self._firsts is None or self._lasts is None:
            self._firsts = np.array([bucket.key.first_ledger for bucket in self._buckets], dtype=np.int64)
            self._lasts = np.array([bucket.key.last_ledger for bucket in self._buckets], dtype=np.int64)
        return self._firsts, self._lasts

    @property
    def last_ledger(self) -> int:
        """The last covered ledger, or -1."""
        return self._buckets[-1].key.last_ledger if self._buckets else -1

    def has_bucket_between(self, ledger_id: int, later: int) -> bool:
        """Return True if a bucket begins after one ledger and before or at another."""
        first, end = (bisect_right(self._buckets, one, key=_first_ledger) for one in (ledger_id, later))
        return first < end

    def have_bucket_between(self, ledger_ids: Column, later: Column) -> NDArray[np.bool_]:
        """Return the mask for pairs of ledgers, like :meth:`has_bucket_between`."""
        firsts = self._columns()[0]
        return np.asarray(
            np.searchsorted(firsts, ledger_ids, side="right") < np.searchsorted(firsts, later, side="right")
        )

    def add_messages(self, ledger_ids: Column) -> None:
        """Count added messages of these ledgers."""
        for bucket, added in self._counts(ledger_ids):
            bucket.waiting += added

    def remove_messages(self, ledger_ids: Column) -> None:
        """Count removed messages of these ledgers, lazily."""
        if not self._buckets:
            return
        self._removed.append(ledger_ids)
        self._removed_count += len(ledger_ids)
        self._removed_total += len(ledger_ids)
        if self._removed_total >= self._removals_to_empty:
            self._apply_removed()
        elif self._removed_count >= _COUNT_BATCH:
            self._count_removed()

    def _count_removed(self) -> Column:
        ledger_ids = np.concatenate(self._removed) if self._removed else np.empty(0, dtype=np.int64)
        self._removed, self._removed_count = [], 0
        # Ledgers in no bucket are counted in element 0.
        removed: Column = np.bincount(self.places(ledger_ids) + 1, minlength=len(self._buckets) + 1)[1:]
        self._removed_by_place = removed if self._removed_by_place is None else self._removed_by_place + removed
        return self._removed_by_place

    def _apply_removed(self) -> None:
        """Subtract the removed messages. Deferred until a bucket may be empty: a removal affects hundreds of them."""
        if not self._removed_total:
            return
        removed = self._count_removed()
        self._removed_by_place, self._removed_total = None, 0
        for place in np.flatnonzero(removed).tolist():
            self.record_removed(self._buckets[place], int(removed[place]))
        self._removals_to_empty = min(bucket.waiting for bucket in self._buckets)

    def record_removed(self, bucket: Bucket, count: int) -> None:
        bucket.waiting -= count
        self._removals_to_empty -= count
        if bucket.waiting <= 0:
            self._empty.add(bucket)

    def maybe_empty(self) -> list[Bucket]:
        """Buckets that had no tracked messages at some time."""
        return sorted(self._empty, key=_first_ledger)

    def _counts(self, ledger_ids: Column) -> Iterator[tuple[Bucket, int]]:
        places = self.places(ledger_ids)
        places, counts = np.unique(places[places >= 0], return_counts=True)
        for place, number in zip(places.tolist(), counts.tolist(), strict=True):
            yield self[place], number

    def below(self, ledger_id: int) -> list[Bucket]:
        """Buckets whose ledgers are all below ``ledger_id``."""
        self._apply_removed()
        return self._buckets[: bisect_left(self._buckets, ledger_id, key=_last_ledger)]


def _first_ledger(bucket: Bucket) -> int:
    return bucket.key.first_ledger


def _last_ledger(bucket: Bucket) -> int:
    return bucket.key.last_ledger
