"""Sealed parts of a time index: many rows in few bytes, to which nothing is added any more.

The rows' codes are sorted, joined where they follow one another, and encoded in blocks. Entries leave a sealed part
in order from the front, by moving ``_start``, or one by one, by noting their codes in ``_gone``.

Invariants:

* a code is in the part if it is in a block, not below ``_start``, and not in ``_gone``;
* ``count`` is the number of such codes;
* codes in ``_gone`` are in a block and not below ``_start``;
* nothing in the part is outside its ``extent``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap, BitMap64

from bookstand.delivery.time_index import block_codec
from bookstand.delivery.time_index.composite_key import PAGE_BITS, KeyEncoding, codes_for, sort, within_pages
from bookstand.delivery.time_index.rows import Column, Rows, concatenate, pieces_of, singles, without_repetitions

_BLOCK = 8192
"""Runs in a block: many enough for the calls that decode it, few enough to open one for a few entries."""

_LONELY = 4
"""If fewer than one code of so many follow the one before, they are not joined to runs."""


class KeyBounds:
    """Between which keys, and between which (ledger, entry), rows are: two extents apart have no row in common."""

    __slots__ = ("first_id", "first_key", "last_id", "last_key")

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.first_key = min(int(rows.keys.min()) for rows in parts)
        self.last_key = max(int(rows.keys.max()) for rows in parts)
        self.first_id = min(map(_first_id, parts))
        self.last_id = max(map(_last_id, parts))

    def apart(self, other: KeyBounds) -> bool:
        return (
            self.last_id < other.first_id
            or other.last_id < self.first_id
            or self.last_key < other.first_key
            or other.last_key < self.first_key
        )

    def may_hold(self, rows: Rows) -> NDArray[np.bool_]:
        """Which of the rows reach into the extent."""
        (ledger, entry), (last_ledger, last_entry) = self.first_id, self.last_id
        found: NDArray[np.bool_] = (rows.keys >= self.first_key) & (rows.keys <= self.last_key)
        found &= (rows.ledgers > ledger) | ((rows.ledgers == ledger) & (rows.lasts >= entry))
        found &= (rows.ledgers < last_ledger) | ((rows.ledgers == last_ledger) & (rows.firsts <= last_entry))
        return found


def _first_id(rows: Rows) -> tuple[int, int]:
    ledger = int(rows.ledgers.min())
    return ledger, int(rows.firsts[rows.ledgers == ledger].min())


def _last_id(rows: Rows) -> tuple[int, int]:
    ledger = int(rows.ledgers.max())
    return ledger, int(rows.lasts[rows.ledgers == ledger].max())


class SealedPart:
    """One sealed part; of several, no two hold the same entry of the same key."""

    __slots__ = (
        "_codes",
        "_data",
        "_firsts",
        "_gone",
        "_next_key",
        "_opened",
        "_start",
        "_stop",
        "count",
        "extent",
        "weight",
        "whole",
    )

    def __init__(self, extent: KeyBounds, codes: KeyEncoding, starts: Column, ends: Column | None) -> None:
        """Distinct runs in order; without ends, every run is one code, and they may touch."""
        self.extent = extent
        self.count = len(starts) if ends is None else int((ends - starts).sum())
        # Not if it is but a part of what could not be sealed together.
        self.whole = True
        # How many runs: what it costs to seal them again.
        self.weight = len(starts)
        self._codes = codes
        self._firsts = starts[::_BLOCK].tolist()
        self._data: list[bytes] = [
            block_codec.encode(starts[at : at + _BLOCK], None if ends is None else ends[at : at + _BLOCK])
            for at in range(0, len(starts), _BLOCK)
        ]
        self._start = int(starts[0])
        self._stop = int(starts[-1]) + 1 if ends is None else int(ends[-1])
        self._gone: BitMap64 | None = None
        # Not the extent's: that may be of more rows than were left to be sealed.
        self._next_key: int | None = codes.key_of(int(starts[0]))
        # The block that was decoded last: its number, starts and ends.
        self._opened: tuple[int, Column, Column] | None = None

    @property
    def nbytes(self) -> int:
        total = 512 + self._codes.nbytes + sum(map(len, self._data)) + (8 + 32 + 8 + 33) * len(self._data)
        if self._opened is not None:
            total += self._opened[1].nbytes + self._opened[2].nbytes
        if self._gone is not None:
            total += bitmap_bytes(self._gone)
        return total

    @property
    def next_key(self) -> int:
        """The least key that is left; there is one."""
        if self._next_key is None:
            self._next_key = self._codes.key_of(int(next(self._runs(self._start, self._stop))[0][0]))
        return self._next_key

    def offer(self, first: int | None, last: int | None, limit: int | None) -> list[Rows]:
        """What has keys from the first to the last, in order; at most ``limit`` entries, unless it is None."""
        start, stop = self._start, self._stop
        if first is not None and first > self.extent.first_key:
            start = max(start, self._codes.key_bound(first))
        if last is not None and last < self.extent.last_key:
            stop = min(stop, self._codes.key_bound(last + 1))
        return list(self._rows(start, stop, limit))

    def everything(self) -> list[Rows]:
        return self.offer(None, None, None)

    def _rows(self, start: int, stop: int, limit: int | None) -> Iterator[Rows]:
        if limit == 0:
            return
        for starts, ends in self._runs(start, stop):
            columns = self._codes.columns(starts)
            counts = ends - starts
            rows = Rows(*columns, counts) if (counts > 1).any() else singles(*columns)
            if limit is None:
                yield rows
                continue
            rows = rows.limit(limit)
            limit -= rows.total
            yield rows
            if not limit:
                return

    def _runs(self, start: int, stop: int) -> Iterator[tuple[Column, Column]]:
        """Starts and ends between two codes, block by block; none is empty."""
        at = max(0, bisect_right(self._firsts, start) - 1)
        while at < len(self._data) and self._firsts[at] < stop:
            starts, ends = _cut(*self._open(at), start, stop)
            at += 1
            if self._gone:
                starts, ends = _without(starts, ends, self._gone)
            if len(starts):
                yield starts, ends

    def drop_to(self, key: int, ledger: int, entry: int, count: int) -> None:
        """Drop everything up to this entry, in the order of the rows, which is ``count`` entries."""
        if not count:
            return
        stop = self._codes.bound(key, ledger, entry + 1)
        self.count -= count
        self._next_key = None
        self._start = max(self._start, stop)
        if self._gone is not None:
            self._gone.remove_range(0, self._start)
        for at in range(bisect_right(self._firsts, stop) - 2, -1, -1):
            if not self._data[at]:
                break
            self._data[at] = b""

    def holds(self, keys: Column, ledgers: Column, entries: Column) -> NDArray[np.bool_]:
        """Which of the entries are here."""
        codes = self._codes.find(keys, ledgers, entries)
        order = np.argsort(codes)
        codes = codes[order]
        found = np.zeros(len(codes), dtype=np.bool_)
        at = int(codes.searchsorted(self._start))
        while at < len(codes):
            block = max(0, bisect_right(self._firsts, int(codes[at])) - 1)
            stop = len(codes)
            if block + 1 < len(self._firsts):
                stop = int(codes.searchsorted(self._firsts[block + 1]))
            starts, ends = self._open(block)
            asked = codes[at:stop]
            runs = starts.searchsorted(asked, side="right") - 1
            found[at:stop] = (runs >= 0) & (asked < ends[runs])
            at = stop
        if self._gone is not None:
            for row in np.flatnonzero(found).tolist():
                found[row] = int(codes[row]) not in self._gone
        answer = np.empty_like(found)
        answer[order] = found
        return answer

    def discard(self, key: int, ledger: int, entry: int) -> bool:
        triple = [np.array([number], dtype=np.int64) for number in (key, ledger, entry)]
        if not self.holds(*triple)[0]:
            return False
        if self._gone is None:
            self._gone = BitMap64()
        self._gone.add(int(self._codes.find(*triple)[0]))
        self._next_key = None
        self.count -= 1
        return True

    @property
    def worn(self) -> bool:
        """More is noted as gone than is left: time to seal what is left anew."""
        return self._gone is not None and len(self._gone) > self.count

    def _open(self, at: int) -> tuple[Column, Column]:
        if self._opened is None or self._opened[0] != at:
            starts, ends = block_codec.decode(self._data[at])
            starts += self._firsts[at]
            ends += self._firsts[at]
            self._opened = at, starts, ends
        return self._opened[1], self._opened[2]


def seal(parts: Sequence[Rows], extent: KeyBounds | None = None) -> list[SealedPart]:
    """Sealed parts that hold every entry of the rows once; more than one only where their codes would be too large."""
    parts = [within_pages(rows) for rows in parts]
    codes = codes_for(parts)
    if codes is None:
        rows = concatenate(parts)
        lower = _lower_half(rows)
        halves = [*seal([rows.pick(lower)]), *seal([rows.pick(~lower)])]
        for half in halves:
            half.whole = False
        return halves
    single = all(rows.single for rows in parts)
    starts = codes.of(parts)
    runs = (
        _runs_of_codes(starts, codes.limit)
        if single
        else _runs_of(starts, np.concatenate([rows.counts for rows in parts]))
    )
    return [SealedPart(KeyBounds(parts) if extent is None else extent, codes, *runs)]


def _lower_half(rows: Rows) -> NDArray[np.bool_]:
    """Half of the values of the column that has most; rows with an entry in common stay together."""
    columns = (rows.keys, rows.ledgers, rows.firsts >> PAGE_BITS)
    column, values = max(
        ((column, without_repetitions(np.sort(column))) for column in columns), key=lambda pair: len(pair[1])
    )
    lower: NDArray[np.bool_] = column < values[len(values) // 2]
    return lower


def _runs_of_codes(codes: Column, limit: int) -> tuple[Column, Column | None]:
    """Distinct codes in order if few follow one another; otherwise the runs that they make up, with their ends."""
    codes = sort(codes, limit)
    close = 0
    for piece in pieces_of(len(codes), 1):
        part = codes[piece]
        close += int(np.count_nonzero(part[1:] - part[:-1] <= 1))
    if close:
        codes = without_repetitions(codes)
    return (codes, None) if close * _LONELY <= len(codes) else _join(codes, codes + 1)


def _runs_of(starts: Column, counts: Column) -> tuple[Column, Column]:
    """The runs that these together are, in order: starts and ends."""
    order = np.argsort(starts)
    starts = starts[order]
    return _join(starts, np.maximum.accumulate(starts + counts[order]))


def _join(starts: Column, ends: Column) -> tuple[Column, Column]:
    """Runs of which none touches the next one."""
    apart = np.flatnonzero(starts[1:] > ends[:-1])
    return starts[np.concatenate(([0], apart + 1))], ends[np.concatenate((apart, [len(ends) - 1]))]


def _cut(starts: Column, ends: Column, start: int, stop: int) -> tuple[Column, Column]:
    """The runs between two codes."""
    first = int(ends.searchsorted(start, side="right"))
    last = int(starts.searchsorted(stop))
    starts, ends = starts[first:last], ends[first:last]
    if len(starts) and starts[0] < start:
        starts = starts.copy()
        starts[0] = start
    if len(ends) and ends[-1] > stop:
        ends = ends.copy()
        ends[-1] = stop
    return starts, ends


def _without(starts: Column, ends: Column, gone: BitMap64) -> tuple[Column, Column]:
    """The runs without some of their codes: every hole is the end of a run and the start of another one."""
    if not len(starts):
        return starts, ends
    first, stop = int(starts[0]), int(ends[-1])
    if not gone.range_cardinality(first, stop):
        return starts, ends
    every = np.frombuffer(gone.to_array(), dtype=np.uint64).view(np.int64)
    holes = every[every.searchsorted(first) : every.searchsorted(stop)]
    starts = np.sort(np.concatenate((starts, holes + 1)))
    ends = np.sort(np.concatenate((ends, holes)))
    left = starts < ends
    return starts[left], ends[left]


def bitmap_bytes(bitmap: BitMap | BitMap64) -> int:
    """What a bitmap takes: its containers, and the objects around them."""
    sizes = bitmap.get_statistics()
    return (
        100
        + 64 * int(sizes["n_containers"])
        + int(sizes["n_bytes_array_containers"])
        + int(sizes["n_bytes_run_containers"])
        + int(sizes["n_bytes_bitset_containers"])
    )
