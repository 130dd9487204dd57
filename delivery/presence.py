"""Which positions are there: one Roaring bitmap per ledger.

Why this: what is asked for is one bit per position, entry ids of a ledger are dense or nearly so, and Roaring takes
0.02 to 2 bytes for one of those, where a Python set takes 60 and more. Ids have 64 bits, Roaring's fast bitmap 32: a
ledger has one bitmap for each 2^32 of its ids that is in use, which in practice is one, so that the wider and slower
kind, whose bulk operations go through Python objects, is not needed for ids that nobody has.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap, BitMap64

from bookstand.delivery.sealed import bitmap_bytes

Column = NDArray[np.int64]
Mask = NDArray[np.bool_]

_LOW = (1 << 32) - 1
# Below this many ids asking one by one is faster than through a bitmap of them.
_FEW = 32


class Presence:
    """Not safe between threads: its owner has a lock. Ids are from 0 up, below 2^63."""

    __slots__ = ("_bitmaps", "_count")

    def __init__(self) -> None:
        self._bitmaps: dict[int, BitMap] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, ledger_id: int, entry_id: int) -> bool:
        """False if it is there already."""
        key = ledger_id << 31 | entry_id >> 32
        low = entry_id & _LOW
        bitmap = self._bitmaps.get(key)
        if bitmap is None:
            bitmap = self._bitmaps[key] = BitMap()
        elif low in bitmap:
            return False
        bitmap.add(low)
        self._count += 1
        return True

    def discard(self, ledger_id: int, entry_id: int) -> bool:
        """Whether it was there."""
        key = ledger_id << 31 | entry_id >> 32
        low = entry_id & _LOW
        bitmap = self._bitmaps.get(key)
        if bitmap is None or low not in bitmap:
            return False
        bitmap.discard(low)
        self._count -= 1
        if not bitmap:
            del self._bitmaps[key]
        return True

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        bitmap = self._bitmaps.get(ledger_id << 31 | entry_id >> 32)
        return bitmap is not None and (entry_id & _LOW) in bitmap

    def add_many(self, ledger_ids: Column, entry_ids: Column) -> None:
        for key, _, low in _groups(ledger_ids, entry_ids):
            bitmap = self._bitmaps.get(key)
            if bitmap is None:
                bitmap = self._bitmaps[key] = BitMap()
            before = len(bitmap)
            bitmap |= _bitmap_of(low)
            self._bitmaps[key] = bitmap
            self._count += len(bitmap) - before

    def discard_many(self, ledger_ids: Column, entry_ids: Column) -> None:
        for key, _, low in _groups(ledger_ids, entry_ids):
            bitmap = self._bitmaps.get(key)
            if bitmap is None:
                continue
            before = len(bitmap)
            bitmap -= _bitmap_of(low)
            self._count -= before - len(bitmap)
            if bitmap:
                self._bitmaps[key] = bitmap
            else:
                del self._bitmaps[key]

    def add_bitmap(self, ledger_id: int, entry_ids: BitMap64) -> None:
        """Many of one ledger."""
        for high, low in _by_high_half(entry_ids):
            key = ledger_id << 31 | high
            bitmap = self._bitmaps.get(key)
            before = 0 if bitmap is None else len(bitmap)
            bitmap = low if bitmap is None else bitmap | low
            self._bitmaps[key] = bitmap
            self._count += len(bitmap) - before

    def count_ledgers(self, first: int, last: int) -> int:
        """How many there are of the ledgers from one to another, the last one included."""
        return sum(len(bitmap) for key, bitmap in self._bitmaps.items() if first <= key >> 31 <= last)

    def discard_ledgers(self, first: int, last: int) -> None:
        """All of the ledgers from one to another, the last one included."""
        for key in [key for key in self._bitmaps if first <= key >> 31 <= last]:
            self._count -= len(self._bitmaps.pop(key))

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        found = np.zeros(len(ledger_ids), dtype=np.bool_)
        for key, rows, low in _groups(ledger_ids, entry_ids):
            bitmap = self._bitmaps.get(key)
            if bitmap is None:
                continue
            if len(low) < _FEW:
                found[rows] = [one in bitmap for one in low.tolist()]
            else:
                both = bitmap & _bitmap_of(low)
                found[rows] = np.isin(low, np.frombuffer(both.to_array(), dtype=np.uint32)) if both else False
        return found

    def clear(self) -> None:
        self._bitmaps.clear()
        self._count = 0

    @property
    def memory_bytes(self) -> int:
        bitmaps = self._bitmaps
        return sys.getsizeof(bitmaps) + sum(map(bitmap_bytes, bitmaps.values())) + sum(map(sys.getsizeof, bitmaps))


def _by_high_half(entry_ids: BitMap64) -> Iterator[tuple[int, BitMap]]:
    """A bitmap of 64 bits as bitmaps of 32."""
    stored = entry_ids.serialize()
    parts = int.from_bytes(stored[:8], "little")
    if parts == 1:
        # The number of bitmaps, the high half, and that bitmap.
        yield int.from_bytes(stored[8:12], "little"), BitMap.deserialize(stored[12:])
    elif parts:
        ids = np.frombuffer(entry_ids.to_array(), dtype=np.uint64)
        for high in np.unique(ids >> np.uint64(32)).tolist():
            yield int(high), _bitmap_of(ids[ids >> np.uint64(32) == high].astype(np.uint32))


def _bitmap_of(low: NDArray[np.uint32]) -> BitMap:
    # From an array it is made in C; a numpy array would be iterated over.
    return BitMap(array("I", low.tobytes()))


def _groups(ledger_ids: Column, entry_ids: Column) -> Iterator[tuple[int, slice | Column, NDArray[np.uint32]]]:
    """Rows that share a bitmap: its key, which rows, and the low halves of their entry ids."""
    if not len(ledger_ids):
        return
    highs = entry_ids >> 32
    lows = (entry_ids & _LOW).astype(np.uint32)
    ledger_id, high = int(ledger_ids[0]), int(highs[0])
    if (ledger_ids == ledger_id).all() and (highs == high).all():
        yield ledger_id << 31 | high, slice(None), lows
        return
    order = np.lexsort((highs, ledger_ids))
    sorted_ledgers, sorted_highs = ledger_ids[order], highs[order]
    starts = np.flatnonzero((np.diff(sorted_ledgers) != 0) | (np.diff(sorted_highs) != 0)) + 1
    for rows in np.split(order, starts):
        first = rows[0]
        yield int(ledger_ids[first]) << 31 | int(highs[first]), rows, lows[rows]
