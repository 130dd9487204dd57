"""The original's sealed buckets, and how it goes through them, which is seen where calls fail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from bookstand.delivery.tracker.bucket.key import BucketKey
from bookstand.storage.format.position import Position
from tests.model.delayed import LAST
from tests.replay.delayed_original_storage import DONE, Index

MASK = 0xFFFFFFFF


class Place(NamedTuple):
    """A range of ledgers, each doubled: what ends short of a ledger ends between two of them."""

    first: int
    last: int

    def covers(self, ledger: int) -> bool:
        return self.first <= 2 * ledger <= self.last

    def touches(self, other: Place) -> bool:
        return self.first <= other.last and other.first <= self.last

    def holds(self, other: Place) -> bool:
        return self.first <= other.first and other.last <= self.last

    def within(self, other: Place) -> Place:
        return Place(max(self.first, other.first), min(self.last, other.last))


class OriginalBucket:
    """``bits`` is what was sealed; in 4.2.4, what waits of that. ``count`` is what it takes that to be."""

    def __init__(self, first: int, last: int, segments: Sequence[Sequence[Index]], current: int) -> None:
        self.first = first
        self.last = last
        self.place = Place(2 * first, 2 * last)
        self.key = str(BucketKey(first, last))
        self.bits = {Position(*one[1:]) for segment in segments for one in segment}
        self.count = sum(map(len, segments))
        self.starts = [segment[0][0] for segment in segments]
        self.current = current
        # The segment that was loaded last would not be, if that was not to be before it is due.
        self.loaded_early = False
        self.bucket_id: int | None = None
        self.creation = DONE
        self.merging = False

    @property
    def segments(self) -> int:
        return len(self.starts)

    @property
    def has_more(self) -> bool:
        """As it would be here."""
        return self.current - self.loaded_early < self.segments


class Pieces:
    """Which bucket is about which ledgers. Of one that another lies across, what is left may be several pieces."""

    def __init__(self) -> None:
        self._pieces: dict[Place, OriginalBucket] = {}

    def __len__(self) -> int:
        return len(self._pieces)

    def __iter__(self) -> Iterator[tuple[Place, OriginalBucket]]:
        return iter(sorted(self._pieces.items()))

    def __contains__(self, bucket: OriginalBucket) -> bool:
        return bucket in self._pieces.values()

    @property
    def buckets(self) -> list[OriginalBucket]:
        return [bucket for _, bucket in self]

    def covering(self, ledger: int) -> OriginalBucket | None:
        return next((bucket for place, bucket in self._pieces.items() if place.covers(ledger)), None)

    def put(self, bucket: OriginalBucket) -> None:
        """What lies across the new one is cut."""
        new = bucket.place
        for place, other in [piece for piece in self if piece[0].touches(new)]:
            del self._pieces[place]
            if place.first < new.first:
                self._pieces[Place(place.first, new.first - 1)] = other
            if new.last < place.last:
                self._pieces[Place(new.last + 1, place.last)] = other
        self._pieces[new] = bucket

    def remove(self, place: Place) -> None:
        self._pieces.pop(place, None)

    def clear(self) -> None:
        self._pieces.clear()


def as_hashed(pieces: Iterable[tuple[Place, OriginalBucket]]) -> list[tuple[Place, OriginalBucket]]:
    """In the order of Java's HashMap: by bin, in a table with room for a third more than there are."""
    ordered = sorted(pieces)
    size = 1
    while 3 * size < 4 * len(ordered) + 3:
        size *= 2

    def bin_of(piece: tuple[Place, OriginalBucket]) -> int:
        lower, upper = (_hashed(bound // 2) for bound in piece[0])
        both = (31 * lower + ~upper) & MASK
        return (both ^ both >> 16) & (size - 1)

    return sorted(ordered, key=bin_of)


def _hashed(ledger: int) -> int:
    return (ledger ^ ledger >> 32) & MASK


def cut(indexes: Sequence[Index], step: int, most: int) -> list[list[Index]]:
    """Where the time of a first index and the step are more than 63 bits, the sum is negative."""
    segments: list[list[Index]] = []
    upper = 0
    for one in indexes:
        if not segments or one[0] > upper or (most != -1 and len(segments[-1]) >= most):
            upper = one[0] + step - 1
            upper -= (upper > LAST) << 64
            segments.append([])
        segments[-1].append(one)
    return segments


def choose(buckets: Sequence[OriginalBucket], width: int, ahead: int) -> list[OriginalBucket]:
    """Adjacent ones to be merged: of those that have no more than any before them, the first to be due. ``ahead``: by
    the time of which segment, behind the one that is loaded; IndexError where there is none."""
    windows = [list(buckets[at : at + width]) for at in range(len(buckets) - width + 1)]
    able = [window for window in windows if all(one.current < one.segments and not one.merging for one in window)]
    counts = [sum(one.count for one in window) for window in able]
    least = accumulate(counts, min)
    times = [
        (min(one.starts[one.current + ahead - 1] for one in window), place)
        for place, (window, count, lowest) in enumerate(zip(able, counts, least, strict=True))
        if count == lowest
    ]
    time, place = min(times, default=(LAST, 0))
    return able[place] if time < LAST else []
