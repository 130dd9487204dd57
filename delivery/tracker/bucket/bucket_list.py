"""The sealed buckets of a tracker, in the order of the ledgers that they are about. No I/O."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import count

import numpy as np
from numpy.typing import NDArray

from bookstand.delivery.tracker.bucket.key import BucketKey

Column = NDArray[np.int64]


_MOST_IN_TABLE = 1 << 16
# So many that left are counted together.
_COUNTED_TOGETHER = 1 << 14


class Bucket:
    """A snapshot, how far it has been loaded, and how many of its messages wait still.

    Segments are counted from 1, as their entries are. ``waiting`` also counts messages of the bucket's ledgers that
    came after it was sealed. ``generation`` is how often those of its messages were merged that were merged most, since
    this process began. ``own``: this process has sealed it, so that it has what the tracker says and nothing else.
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
        """When the next segment begins that is not loaded; None if all are."""
        return self.first_times[self.loaded] if self.loaded < len(self.first_times) else None

    @property
    def name(self) -> str:
        return str(self.key)

    def __repr__(self) -> str:
        first, last = self.key
        loaded = f"{self.loaded} of {self.segments} segments loaded"
        return f"<Bucket [{first}-{last}] in ledger {self.bucket_id}: {self.waiting} wait, {loaded}>"


class Buckets:
    """Their ranges of ledgers do not overlap."""

    def __init__(self) -> None:
        self._buckets: list[Bucket] = []
        self._emptied: set[Bucket] = set()
        # Whatever is asked for often, worked out once; None: to be worked out.
        self._firsts: Column | None = None
        self._lasts: Column | None = None
        # By ledger from the first one on, the place of its bucket, and one more for what is in none; where that is too
        # much it is empty.
        self._table: Column | None = None
        # Of each bucket that has more to load: when, which, and how much it had loaded then. What is not so any more is
        # dropped when it comes to the top.
        self._upcoming: list[tuple[int, int, int, int, Bucket]] = []
        self._numbers = count()
        self._known: set[Bucket] = set()
        # The ledgers of those that left and ``waiting`` has still, first as they came, then counted by place; how many
        # these are together; and so many left before any bucket can have been emptied.
        self._leaving: list[Column] = []
        self._leaving_count = 0
        self._gone: Column | None = None
        self._gone_in_all = 0
        self._least = 0

    def __len__(self) -> int:
        return len(self._buckets)

    def __iter__(self) -> Iterator[Bucket]:
        self._settle()
        return iter(self._buckets)

    def __getitem__(self, place: int) -> Bucket:
        self._settle()
        return self._buckets[place]

    def add(self, bucket: Bucket) -> None:
        self._settle()
        self._least = min(self._least, bucket.waiting) if self._buckets else bucket.waiting
        insort(self._buckets, bucket, key=_first_ledger)
        self._known.add(bucket)
        self._has_upcoming(bucket)
        self._changed()

    def remove(self, bucket: Bucket) -> None:
        self._settle()
        self._buckets.remove(bucket)
        self._known.discard(bucket)
        self._emptied.discard(bucket)
        self._changed()

    def clear(self) -> None:
        self._buckets.clear()
        self._known.clear()
        self._upcoming.clear()
        self._emptied.clear()
        self._gone_in_all = 0
        self._leaving, self._leaving_count = [], 0
        self._changed()

    def _changed(self) -> None:
        self._firsts = self._lasts = self._table = self._gone = None

    def loaded(self, bucket: Bucket) -> None:
        """One more segment of it was."""
        bucket.loaded += 1
        self._has_upcoming(bucket)

    def _has_upcoming(self, bucket: Bucket) -> None:
        if bucket.next_time is not None:
            key = bucket.next_time, bucket.key.first_ledger, bucket.loaded, next(self._numbers)
            heapq.heappush(self._upcoming, (*key, bucket))

    @property
    def next_to_load(self) -> Bucket | None:
        """The one with the earliest segment that is not loaded; None if all are."""
        upcoming = self._upcoming
        while upcoming:
            _, _, loaded, _, bucket = upcoming[0]
            if bucket.loaded == loaded and bucket in self._known:
                return bucket
            heapq.heappop(upcoming)
        return None

    def covering(self, ledger_id: int) -> Bucket | None:
        """The bucket that the ledger is in."""
        self._settle()
        place = bisect_right(self._buckets, ledger_id, key=_first_ledger) - 1
        if place >= 0 and ledger_id <= self._buckets[place].key.last_ledger:
            return self._buckets[place]
        return None

    def places(self, ledger_ids: Column) -> Column:
        """For each ledger the place of its bucket among all, or -1."""
        if not self._buckets:
            return np.full(len(ledger_ids), -1, dtype=np.int64)
        firsts, lasts = self._columns()
        if self._table is None:
            self._table = self._as_table(firsts, lasts)
        if len(self._table):
            # What is before the first is beyond the last as well.
            offsets = np.minimum((ledger_ids - firsts[0]).view(np.uint64), np.uint64(len(self._table) - 1))
            places: Column = self._table[offsets.view(np.int64)]
            return places
        found = np.searchsorted(firsts, ledger_ids, side="right") - 1
        return np.where((found >= 0) & (ledger_ids <= lasts[found]), found, -1)

    @staticmethod
    def _as_table(firsts: Column, lasts: Column) -> Column:
        span = int(lasts[-1]) - int(firsts[0]) + 1
        if span > _MOST_IN_TABLE:
            return np.empty(0, dtype=np.int64)
        table = np.full(span + 1, -1, dtype=np.int64)
        for place, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
            table[first - int(firsts[0]) : last - int(firsts[0]) + 1] = place
        return table

    def _columns(self) -> tuple[Column, Column]:
        """The first ledgers of all, and the last ones."""
        if self._firsts is None or self._lasts is None:
            self._firsts = np.array([bucket.key.first_ledger for bucket in self._buckets], dtype=np.int64)
            self._lasts = np.array([bucket.key.last_ledger for bucket in self._buckets], dtype=np.int64)
        return self._firsts, self._lasts

    @property
    def last_ledger(self) -> int:
        """The last one that is in a bucket; -1 if there is none."""
        return self._buckets[-1].key.last_ledger if self._buckets else -1

    def lies_between(self, ledger_id: int, later: int) -> bool:
        """Whether a bucket begins behind one ledger, and before another."""
        first, end = (bisect_right(self._buckets, one, key=_first_ledger) for one in (ledger_id, later))
        return first < end

    def lie_between(self, ledger_ids: Column, later: Column) -> NDArray[np.bool_]:
        """The same for each two of many."""
        firsts = self._columns()[0]
        return np.asarray(
            np.searchsorted(firsts, ledger_ids, side="right") < np.searchsorted(firsts, later, side="right")
        )

    def join(self, ledger_ids: Column) -> None:
        """Messages of these ledgers wait from now on."""
        for bucket, joined in self._counts(ledger_ids):
            bucket.waiting += joined

    def leave(self, ledger_ids: Column) -> None:
        """Messages of these ledgers wait no more."""
        if not self._buckets:
            return
        self._leaving.append(ledger_ids)
        self._leaving_count += len(ledger_ids)
        self._gone_in_all += len(ledger_ids)
        if self._gone_in_all >= self._least:
            self._settle()
        elif self._leaving_count >= _COUNTED_TOGETHER:
            self._count_leaving()

    def _count_leaving(self) -> Column:
        ledger_ids = np.concatenate(self._leaving) if self._leaving else np.empty(0, dtype=np.int64)
        self._leaving, self._leaving_count = [], 0
        # Those that are in none are counted in front.
        gone: Column = np.bincount(self.places(ledger_ids) + 1, minlength=len(self._buckets) + 1)[1:]
        self._gone = gone if self._gone is None else self._gone + gone
        return self._gone

    def _settle(self) -> None:
        """Take those that left off what waits. As long as no bucket can have been emptied by it, nobody has to: a few
        of each of hundreds of buckets leave at a time."""
        if not self._gone_in_all:
            return
        gone = self._count_leaving()
        self._gone, self._gone_in_all = None, 0
        for place in np.flatnonzero(gone).tolist():
            self.left(self._buckets[place], int(gone[place]))
        self._least = min(bucket.waiting for bucket in self._buckets)

    def left(self, bucket: Bucket, many: int) -> None:
        """So many messages of a bucket wait no more."""
        bucket.waiting -= many
        self._least -= many
        if bucket.waiting <= 0:
            self._emptied.add(bucket)

    def maybe_emptied(self) -> list[Bucket]:
        """Those in which nothing waited at some time."""
        return sorted(self._emptied, key=_first_ledger)

    def _counts(self, ledger_ids: Column) -> Iterator[tuple[Bucket, int]]:
        places = self.places(ledger_ids)
        places, counts = np.unique(places[places >= 0], return_counts=True)
        for place, many in zip(places.tolist(), counts.tolist(), strict=True):
            yield self[place], many

    def below(self, ledger_id: int) -> list[Bucket]:
        """Those of which every ledger is below."""
        self._settle()
        return self._buckets[: bisect_left(self._buckets, ledger_id, key=_last_ledger)]


def _first_ledger(bucket: Bucket) -> int:
    return bucket.key.first_ledger


def _last_ledger(bucket: Bucket) -> int:
    return bucket.key.last_ledger
