"""Set of positions as 32-bit Roaring bitmaps that are shared by all ledgers.

Entry ids of a ledger are dense or nearly so. Roaring takes 0.02 to 2 bytes for each of them; a Python set takes 60 or
more.

A position has 126 bits. Therefore each *page*, 65536 consecutive entry ids of one ledger, gets the next free number
when its first position is added. A position is stored as its page number and the low 16 bits of its entry id, so that
each page is one Roaring container. An operation on many positions is then one operation on two bitmaps, for any number
of ledgers. Further bitmaps follow after each 65536 pages.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap, BitMap64

from bookstand.delivery.time_index.sealed_part import bitmap_bytes

Column = NDArray[np.int64]
Mask = NDArray[np.bool_]

_PAGE_BITS = 16
_PAGE = 1 << _PAGE_BITS
_LOW = _PAGE - 1
_BITMAP_BITS = 32
_IN_BITMAP = (1 << _BITMAP_BITS) - 1
# A page key is the ledger id followed by this many high bits of the entry id.
_HIGH_BITS = 63 - _PAGE_BITS
# Page keys of :class:`_Table` are narrower, so that they fit an int64.
_NARROW_LIMIT = 1 << 63
# A direct table has at most this many slots per page, unless it is smaller than the second limit.
_SPARSE, _SMALL_TABLE = 8, 1 << 12
# Size of the header in front of a serialized bitmap's first 32-bit half.
_BITMAP64_HEADER_BYTES = 12
# Below this number of positions, single lookups are faster than a bitmap operation.
_SCALAR_LIMIT = 16
# Empty pages are released only above this number of pages.
_MIN_PRUNE_PAGES = 256
# Number of deferred removals that are applied together.
_DEFERRED_LIMIT = 1 << 15


class PositionSet:
    """Not thread-safe. Ids are non-negative and below 2^63."""

    __slots__ = ("_bitmaps", "_count", "_deferred", "_deferred_count", "_free", "_numbers", "_prune_at", "_table")

    def __init__(self) -> None:
        self._bitmaps: list[BitMap] = []
        self._count = 0
        # Number of each page, and numbers of released pages.
        self._numbers: dict[int, int] = {}
        self._free: list[int] = []
        self._prune_at = _MIN_PRUNE_PAGES
        # Vectorized lookup of page numbers; None if it is outdated.
        self._table: _Table | None = None
        # Removed positions whose bits are still set. :meth:`_apply_deferred` clears them before any bits are read.
        self._deferred: list[tuple[Column, Column]] = []
        self._deferred_count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, ledger_id: int, entry_id: int) -> bool:
        """Add a position; return False if it is in the set already."""
        if self._deferred:
            self._apply_deferred()
        code = self._number_of(ledger_id << _HIGH_BITS | entry_id >> _PAGE_BITS) << _PAGE_BITS | entry_id & _LOW
        bitmap = self._bitmaps[code >> _BITMAP_BITS]
        low = code & _IN_BITMAP
        if low in bitmap:
            return False
        bitmap.add(low)
        self._count += 1
        return True

    def discard(self, ledger_id: int, entry_id: int) -> bool:
        """Remove a position; return False if it is not in the set."""
        if not self.contains(ledger_id, entry_id):
            return False
        code = self._numbers[ledger_id << _HIGH_BITS | entry_id >> _PAGE_BITS] << _PAGE_BITS | entry_id & _LOW
        self._bitmaps[code >> _BITMAP_BITS].discard(code & _IN_BITMAP)
        self._on_removed(1)
        return True

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        if self._deferred:
            self._apply_deferred()
        number = self._numbers.get(ledger_id << _HIGH_BITS | entry_id >> _PAGE_BITS)
        if number is None:
            return False
        code = number << _PAGE_BITS | entry_id & _LOW
        return (code & _IN_BITMAP) in self._bitmaps[code >> _BITMAP_BITS]

    def add_many(self, ledger_ids: Column, entry_ids: Column) -> None:
        for at, some in _by_bitmap(self._new_codes(ledger_ids, entry_ids)):
            bitmap, added = self._bitmaps[at], _bitmap_of(some)
            self._count += len(added) - bitmap.intersection_cardinality(added)
            bitmap |= added

    def add_new(self, ledger_ids: Column, entry_ids: Column) -> bool:
        """Add distinct positions and return True, unless any of them is in the set already."""
        codes = self._new_codes(ledger_ids, entry_ids)
        parts = [(self._bitmaps[at], _bitmap_of(some)) for at, some in _by_bitmap(codes)]
        if not all(bitmap.isdisjoint(added) for bitmap, added in parts):
            return False
        for bitmap, added in parts:
            bitmap |= added
        self._count += len(codes)
        return True

    def discard_many(self, ledger_ids: Column, entry_ids: Column) -> None:
        self._apply_deferred()
        codes = self._codes(ledger_ids, entry_ids)
        self._discard(codes[codes >= 0])

    def _discard(self, codes: Column) -> None:
        removed = 0
        for at, some in _by_bitmap(codes):
            bitmap, removed_bits = self._bitmaps[at], _bitmap_of(some)
            removed += bitmap.intersection_cardinality(removed_bits)
            bitmap -= removed_bits
        self._on_removed(removed)

    def take_many(self, ledger_ids: Column, entry_ids: Column) -> Mask | None:
        """Remove positions and return a mask of the ones that were in the set, without repetitions. None means all."""
        self._apply_deferred()
        codes = self._codes(ledger_ids, entry_ids)
        if len(codes) and int(codes.min()) >= 0 and int(codes.max()) >> _BITMAP_BITS == 0:
            # The usual case: one bitmap, and all positions are in it.
            bitmap, taken = self._bitmaps[0], _bitmap_of(codes)
            if bitmap.intersection_cardinality(taken) == len(codes):
                bitmap -= taken
                self._on_removed(len(codes))
                return None
        present = self._contains_codes(codes)
        first = np.zeros(len(codes), dtype=np.bool_)
        first[np.unique(codes, return_index=True)[1]] = True
        present &= first
        self._discard(codes[present])
        return None if present.all() else present

    def take_known(self, ledger_ids: Column, entry_ids: Column) -> None:
        """Remove distinct positions that are all in the set. Their bits are cleared later, many at a time, which is
        cheaper. The caller must not change the columns."""
        self._deferred.append((ledger_ids, entry_ids))
        self._deferred_count += len(ledger_ids)
        self._on_removed(len(ledger_ids))
        if self._deferred_count >= _DEFERRED_LIMIT:
            self._apply_deferred()

    def _apply_deferred(self) -> None:
        """Clear the bits of removed positions. Required before bits are read."""
        if self._deferred:
            parts, self._deferred, self._deferred_count = self._deferred, [], 0
            for at, some in _by_bitmap(self._codes(*map(np.concatenate, zip(*parts, strict=True)))):
                self._bitmaps[at] -= _bitmap_of(some)

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        self._apply_deferred()
        return self._contains_codes(self._codes(ledger_ids, entry_ids))

    def _contains_codes(self, codes: Column) -> Mask:
        """Mask of the codes that are in the set; negative codes are not."""
        if len(codes) < _SCALAR_LIMIT:
            bitmaps = self._bitmaps
            return np.array(
                [code >= 0 and (code & _IN_BITMAP) in bitmaps[code >> _BITMAP_BITS] for code in codes.tolist()],
                dtype=np.bool_,
            )
        found = np.zeros(len(codes), dtype=np.bool_)
        known = codes[codes >= 0]
        for at, some in _by_bitmap(known):
            asked = _bitmap_of(some)
            both = self._bitmaps[at] & asked
            if len(both) == len(asked):
                found |= codes >> _BITMAP_BITS == at
            elif both:
                held = np.frombuffer(both.to_array(), dtype=np.uint32).astype(np.int64)
                held += at << _BITMAP_BITS
                places = np.minimum(held.searchsorted(codes), len(held) - 1)
                found |= held[places] == codes
        return found

    def add_bitmap(self, ledger_id: int, entry_ids: BitMap64) -> None:
        """Add entries of one ledger."""
        self._apply_deferred()
        if not entry_ids:
            return
        if int(entry_ids.max()) >> _PAGE_BITS == 0:
            # Ids of a single page can be shifted to their place in one operation.
            code = self._number_of(ledger_id << _HIGH_BITS) << _PAGE_BITS
            added = BitMap.deserialize(entry_ids.serialize()[_BITMAP64_HEADER_BYTES:]).shift(code & _IN_BITMAP)
            bitmap = self._bitmaps[code >> _BITMAP_BITS]
            self._count += len(added) - bitmap.intersection_cardinality(added)
            bitmap |= added
            return
        ids = np.frombuffer(entry_ids.to_array(), dtype=np.int64)
        self.add_many(np.full(len(ids), ledger_id, dtype=np.int64), ids)

    def within(self, ledger_id: int, first: int, last: int) -> list[int]:
        """Entry ids of a ledger from ``first`` to ``last``, ascending."""
        self._apply_deferred()
        found: list[int] = []
        for high in range(first >> _PAGE_BITS, (last >> _PAGE_BITS) + 1):
            number = self._numbers.get(ledger_id << _HIGH_BITS | high)
            if number is None:
                continue
            page = high << _PAGE_BITS
            start = number << _PAGE_BITS & _IN_BITMAP
            stop = start + min(last - page, _LOW)
            for one in self._bitmaps[number >> _BITMAP_BITS - _PAGE_BITS].iter_equal_or_larger(
                start + max(first - page, 0)
            ):
                if one > stop:
                    break
                found.append(one - start + page)
        return found

    def optimize(self) -> None:
        """Store runs as such where that takes less memory."""
        for bitmap in self._bitmaps:
            bitmap.run_optimize()

    def columns(self) -> tuple[Column, Column]:
        """Ledger ids and entry ids of all positions, unordered."""
        if self._deferred:
            self._apply_deferred()
        size = max(self._numbers.values(), default=-1) + 1
        ledgers, highs = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=np.int64)
        for page, number in self._numbers.items():
            ledgers[number], highs[number] = page >> _HIGH_BITS, page & ((1 << _HIGH_BITS) - 1)
        codes = np.concatenate(
            [np.empty(0, dtype=np.int64)]
            + [
                np.array(bitmap.to_array(), dtype=np.int64) + (at << _BITMAP_BITS)
                for at, bitmap in enumerate(self._bitmaps)
            ]
        )
        numbers = codes >> _PAGE_BITS
        return ledgers[numbers], highs[numbers] << _PAGE_BITS | codes & _LOW

    def count_ledgers(self, first: int, last: int) -> int:
        """Number of positions in the ledgers from ``first`` to ``last``."""
        self._apply_deferred()
        return sum(self._cardinality(self._numbers[page]) for page in self._pages(first, last))

    def discard_ledgers(self, first: int, last: int) -> None:
        """Remove all positions of the ledgers from ``first`` to ``last``."""
        self._apply_deferred()
        removed = 0
        for page in self._pages(first, last):
            removed += self._cardinality(self._numbers[page])
            self._release_page(page)
        self._on_removed(removed)

    def _pages(self, first: int, last: int) -> list[int]:
        return [page for page in self._numbers if first <= page >> _HIGH_BITS <= last]

    def _cardinality(self, number: int) -> int:
        start = number << _PAGE_BITS
        bitmap, low = self._bitmaps[start >> _BITMAP_BITS], start & _IN_BITMAP
        return int(bitmap.range_cardinality(low, low + _PAGE))

    def _codes(self, ledger_ids: Column, entry_ids: Column) -> Column:
        """Codes of positions; negative if the page has no number."""
        if not len(ledger_ids):
            return np.empty(0, dtype=np.int64)
        highs = entry_ids >> _PAGE_BITS
        ledger_id, high = int(ledger_ids[0]), int(highs[0])
        numbers: Column
        if (ledger_ids == ledger_id).all() and (highs == high).all():
            number = self._numbers.get(ledger_id << _HIGH_BITS | high, -1)
            if number < 0:
                return np.full(len(ledger_ids), -1, dtype=np.int64)
            codes = entry_ids & _LOW
            codes |= number << _PAGE_BITS
            return codes
        if self._table is None:
            self._table = _Table(self._numbers)
        if self._table.covers(ledger_ids, highs):
            numbers = self._table.numbers(ledger_ids, highs)
        else:
            wide = zip(ledger_ids.tolist(), highs.tolist(), strict=True)
            numbers = np.array([self._numbers.get(one << _HIGH_BITS | other, -1) for one, other in wide])
        numbers <<= _PAGE_BITS
        numbers |= entry_ids & _LOW
        return numbers

    def _new_codes(self, ledger_ids: Column, entry_ids: Column) -> Column:
        """Codes of positions, with new numbers for pages that have none."""
        self._apply_deferred()
        self._release_empty_pages()
        codes = self._codes(ledger_ids, entry_ids)
        missing = np.flatnonzero(codes < 0)
        if not len(missing):
            return codes
        ledgers, highs = ledger_ids[missing], entry_ids[missing] >> _PAGE_BITS
        # Consecutive positions usually have the same page.
        others = np.ones(len(missing), dtype=np.bool_)
        others[1:] = (ledgers[1:] != ledgers[:-1]) | (highs[1:] != highs[:-1])
        pages = zip(ledgers[others].tolist(), highs[others].tolist(), strict=True)
        for page in dict.fromkeys(one << _HIGH_BITS | other for one, other in pages):
            self._assign_number(page)
        return self._codes(ledger_ids, entry_ids)

    def _number_of(self, page: int) -> int:
        """Return the number of a page, and assign one if it has none."""
        number = self._numbers.get(page)
        if number is None:
            self._release_empty_pages()
            return self._assign_number(page)
        return number

    def _release_empty_pages(self) -> None:
        """Release empty pages. Call it only before additions, as a new page is empty until then."""
        if len(self._numbers) >= self._prune_at:
            for page in [page for page, number in self._numbers.items() if not self._cardinality(number)]:
                self._release_page(page)
            self._prune_at = max(_MIN_PRUNE_PAGES, 2 * len(self._numbers))

    def _assign_number(self, page: int) -> int:
        number = self._free.pop() if self._free else len(self._numbers)
        self._numbers[page] = number
        if number << _PAGE_BITS >> _BITMAP_BITS == len(self._bitmaps):
            self._bitmaps.append(BitMap())
        self._table = None
        return number

    def _release_page(self, page: int) -> None:
        number = self._numbers.pop(page)
        start = number << _PAGE_BITS
        self._bitmaps[start >> _BITMAP_BITS].remove_range(start & _IN_BITMAP, (start & _IN_BITMAP) + _PAGE)
        self._free.append(number)
        self._table = None

    def _on_removed(self, count: int) -> None:
        self._count -= count
        if not self._count:
            self.clear()

    def clear(self) -> None:
        self._bitmaps.clear()
        self._numbers.clear()
        self._free.clear()
        self._prune_at = _MIN_PRUNE_PAGES
        self._table = None
        self._deferred.clear()
        self._deferred_count = 0
        self._count = 0

    @property
    def memory_bytes(self) -> int:
        self._apply_deferred()
        numbers = self._numbers
        table = 0 if self._table is None else self._table.nbytes
        pages = sys.getsizeof(numbers) + sum(map(sys.getsizeof, numbers)) + sum(map(sys.getsizeof, numbers.values()))
        return sum(map(bitmap_bytes, self._bitmaps)) + pages + table + sys.getsizeof(self._free)


class _Table:
    """Vectorized lookup of page numbers, for page keys that fit an int64.

    If the ledger ids are dense, keys index a table directly; otherwise they are searched in a sorted column.
    """

    def __init__(self, numbers: Mapping[int, int]) -> None:
        highs = (1 << _HIGH_BITS) - 1
        self._bits = max(((page & highs).bit_length() for page in numbers), default=0)
        self._limit = _NARROW_LIMIT >> self._bits
        found = sorted(
            ((page >> _HIGH_BITS) << self._bits | page & highs, number)
            for page, number in numbers.items()
            if page >> _HIGH_BITS < self._limit
        )
        pages, known = np.array(found, dtype=np.int64).reshape(-1, 2).T
        self._base = found[0][0] if found else 0
        span = found[-1][0] - self._base + 1 if found else 0
        self._pages: Column | None = None
        if span <= max(_SMALL_TABLE, _SPARSE * len(found)):
            # The last slot is for keys without a number.
            self._page_numbers = np.full(span + 1, -1, dtype=np.int64)
            self._page_numbers[pages - self._base] = known
        else:
            self._pages, self._page_numbers = pages.copy(), known.copy()

    @property
    def nbytes(self) -> int:
        return self._page_numbers.nbytes + (0 if self._pages is None else self._pages.nbytes)

    def covers(self, ledger_ids: Column, highs: Column) -> bool:
        return int(ledger_ids.max()) < self._limit and int(highs.max()) >> self._bits == 0

    def numbers(self, ledger_ids: Column, highs: Column) -> Column:
        """Page numbers, or -1 for none."""
        pages = ledger_ids << self._bits
        if self._bits:
            pages |= highs
        if self._pages is None:
            pages -= self._base
            # As unsigned numbers, keys below the first are beyond the last as well.
            places = np.minimum(pages.view(np.uint64), np.uint64(len(self._page_numbers) - 1))
            return self._page_numbers[places.view(np.int64)]
        places = np.minimum(self._pages.searchsorted(pages), len(self._pages) - 1)
        return np.where(self._pages[places] == pages, self._page_numbers[places], -1)


def _by_bitmap(codes: Column) -> Iterator[tuple[int, Column]]:
    """Group codes by bitmap: its index, and the codes within it."""
    if not len(codes):
        return
    last = int(codes.max()) >> _BITMAP_BITS
    if not last:
        yield 0, codes
        return
    at = codes >> _BITMAP_BITS
    for one in range(last + 1):
        some = codes[at == one]
        if len(some):
            yield one, some & _IN_BITMAP


def _bitmap_of(codes: Column) -> BitMap:
    first, count = int(codes[0]), len(codes)
    if int(codes[-1]) - first == count - 1 and (codes[1:] - codes[:-1] == 1).all():
        return BitMap(range(first, first + count))
    # Roaring is several times faster for sorted values, and for arrays than for numpy arrays.
    low = codes.astype(np.uint32)
    low.sort()
    return BitMap(array("I", low.tobytes()))
