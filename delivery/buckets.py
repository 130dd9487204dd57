"""The sealed buckets of a tracker, in the order of the ledgers that they are about. No I/O."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bookstand.delivery.bucket_key import BucketKey

Column = NDArray[np.int64]


class Bucket:
    """A snapshot, how far it has been loaded, and how many of its messages wait still.

    Segments are counted from 1, as their entries are. ``waiting`` also counts messages of the bucket's ledgers that
    came after it was sealed. ``generation`` is how often those of its messages were merged that were merged most, since
    this process began.
    """

    __slots__ = ("bucket_id", "first_times", "generation", "key", "last_times", "length", "loaded", "waiting")

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
        self._next: Bucket | None = None
        self._next_is_known = False

    def __len__(self) -> int:
        return len(self._buckets)

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self._buckets)

    def __getitem__(self, place: int) -> Bucket:
        return self._buckets[place]

    def add(self, bucket: Bucket) -> None:
        insort(self._buckets, bucket, key=_first_ledger)
        self._changed()

    def remove(self, bucket: Bucket) -> None:
        self._buckets.remove(bucket)
        self._emptied.discard(bucket)
        self._changed()

    def clear(self) -> None:
        self._buckets.clear()
        self._emptied.clear()
        self._changed()

    def _changed(self) -> None:
        self._firsts = self._lasts = None
        self._next_is_known = False

    def loaded(self, bucket: Bucket) -> None:
        """One more segment of it was."""
        bucket.loaded += 1
        self._next_is_known = False

    @property
    def next_to_load(self) -> Bucket | None:
        """The one with the earliest segment that is not loaded; None if all are."""
        if not self._next_is_known:
            with_more = [bucket for bucket in self._buckets if bucket.next_time is not None]
            self._next = min(with_more, key=lambda bucket: bucket.next_time or 0, default=None)
            self._next_is_known = True
        return self._next

    def covering(self, ledger_id: int) -> Bucket | None:
        """The bucket that the ledger is in."""
        place = bisect_right(self._buckets, ledger_id, key=_first_ledger) - 1
        if place >= 0 and ledger_id <= self._buckets[place].key.last_ledger:
            return self._buckets[place]
        return None

    def places(self, ledger_ids: Column) -> Column:
        """For each ledger the place of its bucket among all, or -1."""
        firsts, lasts = self._columns()
        if not len(self._buckets):
            return np.full(len(ledger_ids), -1, dtype=np.int64)
        places = np.searchsorted(firsts, ledger_ids, side="right") - 1
        return np.where((places >= 0) & (ledger_ids <= lasts[places]), places, -1)

    def _columns(self) -> tuple[Column, Column]:
        """The first ledgers of all, and the last ones."""
        if self._firsts is None or self._lasts is None:
            self._firsts = np.array([bucket.key.first_ledger for bucket in self._buckets], dtype=np.int64)
            self._lasts = np.array([bucket.key.last_ledger for bucket in self._buckets], dtype=np.int64)
        return self._firsts, self._lasts

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
        for bucket, count in self._counts(ledger_ids):
            bucket.waiting += count

    def leave(self, ledger_ids: Column) -> None:
        """Messages of these ledgers wait no more."""
        for bucket, count in self._counts(ledger_ids):
            self.left(bucket, count)

    def left(self, bucket: Bucket, count: int) -> None:
        """So many messages of a bucket wait no more."""
        bucket.waiting -= count
        if bucket.waiting <= 0:
            self._emptied.add(bucket)

    def maybe_emptied(self) -> list[Bucket]:
        """Those in which nothing waited at some time."""
        return sorted(self._emptied, key=_first_ledger)

    def _counts(self, ledger_ids: Column) -> Iterator[tuple[Bucket, int]]:
        places = self.places(ledger_ids)
        places, counts = np.unique(places[places >= 0], return_counts=True)
        for place, count in zip(places.tolist(), counts.tolist(), strict=True):
            yield self._buckets[place], count

    def below(self, ledger_id: int) -> list[Bucket]:
        """Those of which every ledger is below."""
        return self._buckets[: bisect_left(self._buckets, ledger_id, key=_last_ledger)]


def _first_ledger(bucket: Bucket) -> int:
    return bucket.key.first_ledger


def _last_ledger(bucket: Bucket) -> int:
    return bucket.key.last_ledger
