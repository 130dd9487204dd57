"""Acknowledged entries of a topic as a set of ranges: a view over one bitmap for each ledger.

Ranges are open at the lower and closed at the upper end, as Pulsar writes them: entry 0 is in (-1, ...]. No range spans
ledgers. A range that is added across ledgers fills its lower ledger only up to the last entry that is already in the
set, because the length of that ledger is unknown here, and no ledger in between.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from pyroaring import BitMap64

from bookstand.cursor.state.bitmap_runs import before_run, end_of_run, runs
from bookstand.storage.format.position import Position


class AckRange(NamedTuple):
    """Entries after ``lower`` up to and including ``upper``, in one ledger."""

    lower: Position
    upper: Position

    def __str__(self) -> str:
        return f"({self.lower}..{self.upper}]"


class RangeSet:
    """Set of ranges over the caller's bitmaps, which are changed in place. Empty bitmaps are removed."""

    def __init__(self, bitmaps: Mapping[int, BitMap64] | None = None) -> None:
        self.bitmaps: dict[int, BitMap64] = {}
        self._ledgers: list[int] = []
        for ledger, bitmap in sorted((bitmaps or {}).items()):
            if bitmap:
                self.bitmaps[ledger] = bitmap
                self._ledgers.append(ledger)

    # -- changes -----------------------------------------------------------------------------------------------------

    def add_open_closed(self, lower: Position, upper: Position) -> None:
        if lower.ledger_id == upper.ledger_id:
            self._add(upper.ledger_id, lower.entry_id + 1, upper.entry_id)
            return
        bitmap = self.bitmaps.get(lower.ledger_id)
        if bitmap is not None:
            self._add(lower.ledger_id, lower.entry_id + 1, bitmap.max())
        self._add(upper.ledger_id, 0, upper.entry_id)

    def _add(self, ledger: int, first: int, last: int) -> None:
        first = max(first, 0)
        if first > last:
            return
        bitmap = self.bitmaps.get(ledger)
        if bitmap is None:
            bitmap = self.bitmaps[ledger] = BitMap64()
            insort(self._ledgers, ledger)
        bitmap.add_range(first, last + 1)

    def remove_at_most(self, position: Position) -> None:
        """Remove all entries up to and including ``position``."""
        while self._ledgers and self._ledgers[0] < position.ledger_id:
            del self.bitmaps[self._ledgers.pop(0)]
        bitmap = self.bitmaps.get(position.ledger_id)
        if bitmap is not None and position.entry_id >= 0:
            bitmap.remove_range(0, position.entry_id + 1)
            if not bitmap:
                del self.bitmaps[position.ledger_id]
                self._ledgers.remove(position.ledger_id)

    def remove_closed(self, lower: Position, upper: Position) -> None:
        """Remove all entries from ``lower`` to ``upper``, both included."""
        for ledger in [one for one in self._ledgers if lower.ledger_id <= one <= upper.ledger_id]:
            bitmap = self.bitmaps[ledger]
            first = lower.entry_id if ledger == lower.ledger_id else 0
            last = upper.entry_id if ledger == upper.ledger_id else bitmap.max()
            if first <= last:
                bitmap.remove_range(max(first, 0), last + 1)
            if not bitmap:
                del self.bitmaps[ledger]
                self._ledgers.remove(ledger)

    # -- queries -----------------------------------------------------------------------------------------------------

    def contains(self, position: Position) -> bool:
        bitmap = self.bitmaps.get(position.ledger_id)
        return bitmap is not None and position.entry_id >= 0 and position.entry_id in bitmap

    def range_containing(self, position: Position) -> AckRange | None:
        if not self.contains(position):
            return None
        ledger, entry = position
        bitmap = self.bitmaps[ledger]
        return AckRange(Position(ledger, before_run(bitmap, entry)), Position(ledger, end_of_run(bitmap, entry)))

    def cardinality(self, first: Position, last: Position) -> int:
        """Return the number of entries from ``first`` to ``last``, both included."""
        total = 0
        for ledger in self._ledgers:
            if first.ledger_id <= ledger <= last.ledger_id:
                bitmap = self.bitmaps[ledger]
                start = max(first.entry_id, 0) if ledger == first.ledger_id else 0
                stop = last.entry_id if ledger == last.ledger_id else bitmap.max()
                if start <= stop:
                    total += bitmap.range_cardinality(start, stop + 1)
        return total

    def to_ranges(self, limit: int | None = None) -> list[AckRange]:
        return list(islice(self, limit))

    def __iter__(self) -> Iterator[AckRange]:
        for ledger in self._ledgers:
            firsts, lasts = runs(self.bitmaps[ledger])
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
                yield AckRange(Position(ledger, first - 1), Position(ledger, last))

    def __len__(self) -> int:
        return sum(len(runs(bitmap)[0]) for bitmap in self.bitmaps.values())

    @property
    def first(self) -> AckRange | None:
        if not self._ledgers:
            return None
        ledger = self._ledgers[0]
        return self.range_containing(Position(ledger, self.bitmaps[ledger].min()))

    @property
    def last(self) -> AckRange | None:
        if not self._ledgers:
            return None
        ledger = self._ledgers[-1]
        return self.range_containing(Position(ledger, self.bitmaps[ledger].max()))

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self))}]"
