"""Mutable tier of a time index: one bitmap of entries per key and ledger.

Small additions are cheap in this tier, and ordered ones take little space. The time index seals the rows
(sealed_part.py) when they have too many bitmaps.

Invariants: no bitmap and no bucket is empty; ``count`` is the number of entries and ``bitmaps`` the number of bitmaps.
The heap contains every key of ``_buckets``; stale keys are dropped when they reach the top.
"""

from __future__ import annotations

import heapq

import numpy as np
from pyroaring import BitMap64

from bookstand.delivery.time_index.rows import Column, Rows, Run, concatenate, from_tuples
from bookstand.delivery.time_index.sealed_part import bitmap_bytes

# Number of stale keys that the heap may have beyond the number of buckets.
_STALE_KEYS = 64


class BitmapRows:
    def __init__(self) -> None:
        self._buckets: dict[int, dict[int, BitMap64]] = {}
        self._heap: list[int] = []
        self.count = 0
        self.bitmaps = 0

    @property
    def nbytes(self) -> int:
        # Per key: the integer, its slots in the heap and the dictionary, and a dictionary for one ledger.
        per_key = 32 + 8 + 8 + 184
        entries = sum(bitmap_bytes(bitmap) for ledgers in self._buckets.values() for bitmap in ledgers.values())
        return entries + per_key * len(self._heap) + 48 * self.bitmaps

    @property
    def next_key(self) -> int | None:
        while self._heap and self._heap[0] not in self._buckets:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def add(self, key: int, ledger: int, first: int, count: int) -> None:
        bitmap = self._bitmap(key, ledger)
        if count == 1:
            before = len(bitmap)
            bitmap.add(first)
            self.count += len(bitmap) - before
        else:
            stop = first + count
            self.count += count - int(bitmap.range_cardinality(first, stop))
            bitmap.add_range(first, stop)

    def _bitmap(self, key: int, ledger: int) -> BitMap64:
        ledgers = self._buckets.get(key)
        if ledgers is None:
            ledgers = self._buckets[key] = {}
            heapq.heappush(self._heap, key)
            if len(self._heap) > 2 * len(self._buckets) + _STALE_KEYS:
                self._heap = sorted(self._buckets)
        bitmap = ledgers.get(ledger)
        if bitmap is None:
            bitmap = ledgers[ledger] = BitMap64()
            self.bitmaps += 1
        return bitmap

    def contains(self, key: int, ledger: int, entry: int) -> bool:
        return entry in self._buckets.get(key, {}).get(ledger, ())

    def discard(self, key: int, ledger: int, entry: int) -> bool:
        if not self.contains(key, ledger, entry):
            return False
        bitmap = self._buckets[key][ledger]
        bitmap.discard(entry)
        self.count -= 1
        if not bitmap:
            self._drop(key, ledger)
        return True

    def rows(self, first: int | None = None, last: int | None = None, limit: int | None = None) -> Rows:
        """Sorted rows with keys from ``first`` to ``last``; at most ``limit`` entries unless it is None."""
        found: list[Rows] = []
        runs: list[Run] = []
        for key in self._keys(first, last):
            for ledger, bitmap in sorted(self._buckets[key].items()):
                if limit == 0:
                    break
                count = len(bitmap)
                start = bitmap.min()
                if bitmap.max() - start + 1 == count:
                    if limit is not None:
                        count = min(count, limit)
                    runs.append((key, ledger, start, count))
                else:
                    rows = _rows(key, ledger, bitmap)
                    if limit is not None:
                        rows = rows.limit(limit)
                        count = rows.total
                    found += (from_tuples(runs), rows)
                    runs = []
                if limit is not None:
                    limit -= count
        return concatenate((*found, from_tuples(runs)))

    def _keys(self, first: int | None, last: int | None) -> list[int]:
        if last is None:
            found = set(self._buckets)
        else:
            # Search only subtrees of the heap whose root is not above ``last``.
            found = set()
            places = [0]
            while places:
                place = places.pop()
                if place < len(self._heap) and self._heap[place] <= last:
                    found.add(self._heap[place])
                    places += (2 * place + 1, 2 * place + 2)
            found &= self._buckets.keys()
        return sorted(found if first is None else (key for key in found if key >= first))

    def drop_to(self, key: int, ledger: int, entry: int, count: int) -> None:
        """Drop every entry up to this one, in row order; ``count`` is the number of entries dropped."""
        if not count:
            return
        while (due := self.next_key) is not None and due < key:
            for other in list(self._buckets[due]):
                self._drop(due, other)
        for other in sorted(self._buckets.get(key, ())):
            if other < ledger:
                self._drop(key, other)
            elif other == ledger:
                bitmap = self._buckets[key][other]
                before = len(bitmap)
                bitmap.remove_range(0, entry + 1)
                self.count -= before - len(bitmap)
                if not bitmap:
                    self._drop(key, other)

    def _drop(self, key: int, ledger: int) -> None:
        ledgers = self._buckets[key]
        self.count -= len(ledgers.pop(ledger))
        self.bitmaps -= 1
        if not ledgers:
            del self._buckets[key]


def _rows(key: int, ledger: int, bitmap: BitMap64) -> Rows:
    ids: Column = np.frombuffer(bitmap.to_array(), dtype=np.uint64).view(np.int64)
    starts = np.concatenate(([0], np.flatnonzero(ids[1:] - ids[:-1] != 1) + 1))
    return Rows(
        np.full(len(starts), key, dtype=np.int64),
        np.full(len(starts), ledger, dtype=np.int64),
        ids[starts],
        np.diff(starts, append=len(ids)),
    )
