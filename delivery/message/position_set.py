"""Which positions are there: a bit for each, in one Roaring bitmap for all ledgers.

Why this: what is asked for is one bit per position, entry ids of a ledger are dense or nearly so, and Roaring takes
0.02 to 2 bytes for one of those, where a Python set takes 60 and more.

Roaring's fast bitmap has 32 bits, and a position 126. So each *page*, 65536 entry ids of one ledger, has the next free
number when something of it comes, and a position is that number and the low 16 bits of its entry id: what Roaring
keeps in one container. What is asked for at a time is then one operation of two bitmaps, however many ledgers it is
about. Beyond 65536 pages there are further bitmaps.
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
# A page as one number: the ledger id, and the high bits of the entry id, of which there are so many.
_HIGH_BITS = 63 - _PAGE_BITS
# The same as numpy has it, where it has room for both.
_NARROW = 1 << 63
# A table may have so many places for each page that there is, and so many in any case.
_SPARSE, _SMALL_TABLE = 8, 1 << 12
# In what a bitmap of 64 bits is stored as.
_BEFORE_LOW_HALF = 12
# Below this many ids asking one by one is faster than through a bitmap of them.
_FEW = 16
# So many pages are not worth looking for those of which nothing is left.
_FEW_PAGES = 256
# So many ids that are known to be there are discarded together.
_PUT_OFF = 1 << 15


class PositionSet:
    """Not safe between threads: its owner has a lock. Ids are from 0 up, below 2^63."""

    __slots__ = ("_bitmaps", "_count", "_free", "_look_at", "_numbers", "_put_off", "_put_off_count", "_table")

    def __init__(self) -> None:
        self._bitmaps: list[BitMap] = []
        self._count = 0
        # The number of each page, and numbers of pages that are gone.
        self._numbers: dict[int, int] = {}
        self._free: list[int] = []
        self._look_at = _FEW_PAGES
        # The numbers of narrow pages; None: to be worked out.
        self._table: _Table | None = None
        # What is there no more, and has its bits still; :meth:`_settle` is before whatever looks at these.
        self._put_off: list[tuple[Column, Column]] = []
        self._put_off_count = 0

    def __len__(self) -> int:
        return self._count

    # -- one -----------------------------------------------------------------------------------------------------------

    def add(self, ledger_id: int, entry_id: int) -> bool:
        """False if it is there already."""
        if self._put_off:
            self._settle()
        code = self._number(ledger_id << _HIGH_BITS | entry_id >> _PAGE_BITS) << _PAGE_BITS | entry_id & _LOW
        bitmap = self._bitmaps[code >> _BITMAP_BITS]
        low = code & _IN_BITMAP
        if low in bitmap:
            return False
        bitmap.add(low)
        self._count += 1
        return True

    def discard(self, ledger_id: int, entry_id: int) -> bool:
        """Whether it was there."""
        if not self.contains(ledger_id, entry_id):
            return False
        code = self._numbers[ledger_id << _HIGH_BITS | entry_id >> _PAGE_BITS] << _PAGE_BITS | entry_id & _LOW
        self._bitmaps[code >> _BITMAP_BITS].discard(code & _IN_BITMAP)
        self._left(1)
        return True

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        if self._put_off:
            self._settle()
        number = self._numbers.get(ledger_id << _HIGH_BITS | entry_id >> _PAGE_BITS)
        if number is None:
            return False
        code = number << _PAGE_BITS | entry_id & _LOW
        return (code & _IN_BITMAP) in self._bitmaps[code >> _BITMAP_BITS]

    # -- many ----------------------------------------------------------------------------------------------------------

    def add_many(self, ledger_ids: Column, entry_ids: Column) -> None:
        for at, some in _parts(self._new_codes(ledger_ids, entry_ids)):
            bitmap, added = self._bitmaps[at], _bitmap_of(some)
            self._count += len(added) - bitmap.intersection_cardinality(added)
            bitmap |= added

    def add_new(self, ledger_ids: Column, entry_ids: Column) -> bool:
        """Add many, each of which is there once, if none of them is there already; else none, and False."""
        codes = self._new_codes(ledger_ids, entry_ids)
        parts = [(self._bitmaps[at], _bitmap_of(some)) for at, some in _parts(codes)]
        if not all(bitmap.isdisjoint(added) for bitmap, added in parts):
            return False
        for bitmap, added in parts:
            bitmap |= added
        self._count += len(codes)
        return True

    def discard_many(self, ledger_ids: Column, entry_ids: Column) -> None:
        self._settle()
        codes = self._codes(ledger_ids, entry_ids)
        self._discard(codes[codes >= 0])

    def _discard(self, codes: Column) -> None:
        left = 0
        for at, some in _parts(codes):
            bitmap, gone = self._bitmaps[at], _bitmap_of(some)
            left += bitmap.intersection_cardinality(gone)
            bitmap -= gone
        self._left(left)

    def take_many(self, ledger_ids: Column, entry_ids: Column) -> Mask | None:
        """Discard many, and tell which of them were there, the first of several rows of one; None: all of them."""
        self._settle()
        codes = self._codes(ledger_ids, entry_ids)
        if len(codes) and int(codes.min()) >= 0 and int(codes.max()) >> _BITMAP_BITS == 0:
            # As it nearly always is.
            bitmap, taken = self._bitmaps[0], _bitmap_of(codes)
            if bitmap.intersection_cardinality(taken) == len(codes):
                bitmap -= taken
                self._left(len(codes))
                return None
        there = self._holds(codes)
        first = np.zeros(len(codes), dtype=np.bool_)
        first[np.unique(codes, return_index=True)[1]] = True
        there &= first
        self._discard(codes[there])
        return None if there.all() else there

    def take_known(self, ledger_ids: Column, entry_ids: Column) -> None:
        """Discard many of which the caller knows that each is there, and is told once. Their bits go when somebody asks
        for bits: the more at a time, the cheaper. The columns do not change any more."""
        self._put_off.append((ledger_ids, entry_ids))
        self._put_off_count += len(ledger_ids)
        self._left(len(ledger_ids))
        if self._put_off_count >= _PUT_OFF:
            self._settle()

    def _settle(self) -> None:
        """Before bits are looked at: those go that were put off."""
        if self._put_off:
            parts, self._put_off, self._put_off_count = self._put_off, [], 0
            for at, some in _parts(self._codes(*map(np.concatenate, zip(*parts, strict=True)))):
                self._bitmaps[at] -= _bitmap_of(some)

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        self._settle()
        return self._holds(self._codes(ledger_ids, entry_ids))

    def _holds(self, codes: Column) -> Mask:
        """Which of the codes are there; negative ones are not."""
        if len(codes) < _FEW:
            bitmaps = self._bitmaps
            return np.array(
                [code >= 0 and (code & _IN_BITMAP) in bitmaps[code >> _BITMAP_BITS] for code in codes.tolist()],
                dtype=np.bool_,
            )
        found = np.zeros(len(codes), dtype=np.bool_)
        known = codes[codes >= 0]
        for at, some in _parts(known):
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
        """Many of one ledger."""
        self._settle()
        if not entry_ids:
            return
        if int(entry_ids.max()) >> _PAGE_BITS == 0:
            # Moved to their page as they are: behind their number and the high half of their ids.
            code = self._number(ledger_id << _HIGH_BITS) << _PAGE_BITS
            added = BitMap.deserialize(entry_ids.serialize()[_BEFORE_LOW_HALF:]).shift(code & _IN_BITMAP)
            bitmap = self._bitmaps[code >> _BITMAP_BITS]
            self._count += len(added) - bitmap.intersection_cardinality(added)
            bitmap |= added
            return
        ids = np.frombuffer(entry_ids.to_array(), dtype=np.int64)
        self.add_many(np.full(len(ids), ledger_id, dtype=np.int64), ids)

    def within(self, ledger_id: int, first: int, last: int) -> list[int]:
        """Ids of one ledger from the first to the last, ascending."""
        self._settle()
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
        """Store runs of ids as runs where that is smaller."""
        for bitmap in self._bitmaps:
            bitmap.run_optimize()

    # -- ledgers -------------------------------------------------------------------------------------------------------

    def columns(self) -> tuple[Column, Column]:
        """Ledger ids and entry ids of all positions, in no particular order."""
        if self._put_off:
            self._settle()
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
        """How many there are of the ledgers from one to another, the last one included."""
        self._settle()
        return sum(self._cardinality(self._numbers[page]) for page in self._pages(first, last))

    def discard_ledgers(self, first: int, last: int) -> None:
        """All of the ledgers from one to another, the last one included."""
        self._settle()
        left = 0
        for page in self._pages(first, last):
            left += self._cardinality(self._numbers[page])
            self._forget_page(page)
        self._left(left)

    def _pages(self, first: int, last: int) -> list[int]:
        return [page for page in self._numbers if first <= page >> _HIGH_BITS <= last]

    def _cardinality(self, number: int) -> int:
        start = number << _PAGE_BITS
        bitmap, low = self._bitmaps[start >> _BITMAP_BITS], start & _IN_BITMAP
        return int(bitmap.range_cardinality(low, low + _PAGE))

    # -- pages ---------------------------------------------------------------------------------------------------------

    def _codes(self, ledger_ids: Column, entry_ids: Column) -> Column:
        """The numbers of positions; negative where the page has none."""
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
        if self._table.knows(ledger_ids, highs):
            numbers = self._table.numbers(ledger_ids, highs)
        else:
            wide = zip(ledger_ids.tolist(), highs.tolist(), strict=True)
            numbers = np.array([self._numbers.get(one << _HIGH_BITS | other, -1) for one, other in wide])
        numbers <<= _PAGE_BITS
        numbers |= entry_ids & _LOW
        return numbers

    def _new_codes(self, ledger_ids: Column, entry_ids: Column) -> Column:
        """The same, with a number for every page."""
        self._settle()
        self._forget_empty_pages()
        codes = self._codes(ledger_ids, entry_ids)
        missing = np.flatnonzero(codes < 0)
        if not len(missing):
            return codes
        ledgers, highs = ledger_ids[missing], entry_ids[missing] >> _PAGE_BITS
        # Neighbours mostly share theirs.
        others = np.ones(len(missing), dtype=np.bool_)
        others[1:] = (ledgers[1:] != ledgers[:-1]) | (highs[1:] != highs[:-1])
        pages = zip(ledgers[others].tolist(), highs[others].tolist(), strict=True)
        for page in dict.fromkeys(one << _HIGH_BITS | other for one, other in pages):
            self._give_number(page)
        return self._codes(ledger_ids, entry_ids)

    def _number(self, page: int) -> int:
        """The number of a page, which it has from now on."""
        number = self._numbers.get(page)
        if number is None:
            self._forget_empty_pages()
            return self._give_number(page)
        return number

    def _forget_empty_pages(self) -> None:
        """Before anything is added: a page that has just got its number is empty as well."""
        if len(self._numbers) >= self._look_at:
            for page in [page for page, number in self._numbers.items() if not self._cardinality(number)]:
                self._forget_page(page)
            self._look_at = max(_FEW_PAGES, 2 * len(self._numbers))

    def _give_number(self, page: int) -> int:
        number = self._free.pop() if self._free else len(self._numbers)
        self._numbers[page] = number
        if number << _PAGE_BITS >> _BITMAP_BITS == len(self._bitmaps):
            self._bitmaps.append(BitMap())
        self._table = None
        return number

    def _forget_page(self, page: int) -> None:
        number = self._numbers.pop(page)
        start = number << _PAGE_BITS
        self._bitmaps[start >> _BITMAP_BITS].remove_range(start & _IN_BITMAP, (start & _IN_BITMAP) + _PAGE)
        self._free.append(number)
        self._table = None

    def _left(self, count: int) -> None:
        self._count -= count
        if not self._count:
            self.clear()

    def clear(self) -> None:
        self._bitmaps.clear()
        self._numbers.clear()
        self._free.clear()
        self._look_at = _FEW_PAGES
        self._table = None
        self._put_off.clear()
        self._put_off_count = 0
        self._count = 0

    @property
    def memory_bytes(self) -> int:
        self._settle()
        numbers = self._numbers
        table = 0 if self._table is None else self._table.nbytes
        pages = sys.getsizeof(numbers) + sum(map(sys.getsizeof, numbers)) + sum(map(sys.getsizeof, numbers.values()))
        return sum(map(bitmap_bytes, self._bitmaps)) + pages + table + sys.getsizeof(self._free)


class _Table:
    """The number of each page, for many at a time; it knows only pages that are narrow together.

    Ledgers that follow one another, as they do, are looked up by place, others in a sorted column.
    """

    def __init__(self, numbers: Mapping[int, int]) -> None:
        highs = (1 << _HIGH_BITS) - 1
        self._bits = max(((page & highs).bit_length() for page in numbers), default=0)
        self._limit = _NARROW >> self._bits
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
            # One place more for whatever has none.
            self._known = np.full(span + 1, -1, dtype=np.int64)
            self._known[pages - self._base] = known
        else:
            self._pages, self._known = pages.copy(), known.copy()

    @property
    def nbytes(self) -> int:
        return self._known.nbytes + (0 if self._pages is None else self._pages.nbytes)

    def knows(self, ledger_ids: Column, highs: Column) -> bool:
        return int(ledger_ids.max()) < self._limit and int(highs.max()) >> self._bits == 0

    def numbers(self, ledger_ids: Column, highs: Column) -> Column:
        """-1 for what has none."""
        pages = ledger_ids << self._bits
        if self._bits:
            pages |= highs
        if self._pages is None:
            pages -= self._base
            # What is before the first is beyond the last as well.
            places = np.minimum(pages.view(np.uint64), np.uint64(len(self._known) - 1))
            return self._known[places.view(np.int64)]
        places = np.minimum(self._pages.searchsorted(pages), len(self._pages) - 1)
        return np.where(self._pages[places] == pages, self._known[places], -1)


def _parts(codes: Column) -> Iterator[tuple[int, Column]]:
    """The codes by the bitmap that they are in: which one, and they in it."""
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
    # In order it is made several times faster; and from an array in C, where a numpy array would be iterated over.
    low = codes.astype(np.uint32)
    low.sort()
    return BitMap(array("I", low.tobytes()))
