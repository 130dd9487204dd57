"""Sealed parts of a time index: immutable, compressed sorted runs.

The codes of the rows are sorted, consecutive codes are joined into runs, and the runs are encoded in blocks. Entries
are removed from the front in order, by advancing ``_start``, or one by one, by recording their codes in ``_removed``.

Invariants:

* a code is in the part if it is in a block, at or above ``_start``, and not in ``_removed``;
* ``count`` is the number of such codes;
* codes in ``_removed`` are in a block and at or above ``_start``;
* every entry of the part is within its ``bounds``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap, BitMap64

from bookstand.delivery.time_index import block_codec
from bookstand.delivery.time_index.composite_key import PAGE_BITS, KeyEncoding, encoding_for, sort, within_pages
from bookstand.delivery.time_index.rows import Column, Rows, concatenate, pieces_of, singles, without_repetitions

_BLOCK = 8192
"""Runs in a block: enough to amortize the calls that decode it, few enough to decode it for a few entries."""

_MIN_ADJACENT = 4
"""Codes are joined into runs only if at least one in this many continues the code before it."""


class KeyBounds:
    """Ranges of keys and of (ledger, entry) that contain some rows. Rows with disjoint bounds are disjoint."""

    __slots__ = ("first_id", "first_key", "last_id", "last_key")

    def __init__(self, parts: Sequence[Rows]) -> None:
        self.first_key = min(int(rows.keys.min()) for rows in parts)
        self.last_key = max(int(rows.keys.max()) for rows in parts)
        self.first_id = min(map(_first_id, parts))
        self.last_id = max(map(_last_id, parts))

    def is_disjoint(self, other: KeyBounds) -> bool:
        return (
            self.last_id < other.first_id
            or other.last_id < self.first_id
            or self.last_key < other.first_key
            or other.last_key < self.first_key
        )

    def may_contain(self, rows: Rows) -> NDArray[np.bool_]:
        """Mask of the rows that intersect the bounds."""
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
    """One sealed part. Sealed parts of an index have no entry in common."""

    __slots__ = (
        "_data",
        "_decoded",
        "_encoding",
        "_firsts",
        "_next_key",
        "_removed",
        "_start",
        "_stop",
        "bounds",
        "count",
        "is_complete",
        "run_count",
    )

    def __init__(self, bounds: KeyBounds, codes: KeyEncoding, starts: Column, ends: Column | None) -> None:
        """Encode distinct sorted runs. Without ``ends`` every run is one code, and runs may be adjacent."""
        self.bounds = bounds
        self.count = len(starts) if ends is None else int((ends - starts).sum())
        # False for a part of rows that did not fit one encoding.
        self.is_complete = True
        # The cost of sealing the part again.
        self.run_count = len(starts)
        self._encoding = codes
        self._firsts = starts[::_BLOCK].tolist()
        self._data: list[bytes] = [
            block_codec.encode(starts[at : at + _BLOCK], None if ends is None else ends[at : at + _BLOCK])
            for at in range(0, len(starts), _BLOCK)
        ]
        self._start = int(starts[0])
        self._stop = int(starts[-1]) + 1 if ends is None else int(ends[-1])
        self._removed: BitMap64 | None = None
        # The bounds may include rows that were not sealed, so compute the key from the codes.
        self._next_key: int | None = codes.key_of(int(starts[0]))
        # The block decoded last: its number, starts and ends.
        self._decoded: tuple[int, Column, Column] | None = None

    @property
    def nbytes(self) -> int:
        total = 512 + self._encoding.nbytes + sum(map(len, self._data)) + (8 + 32 + 8 + 33) * len(self._data)
        if self._decoded is not None:
            total += self._decoded[1].nbytes + self._decoded[2].nbytes
        if self._removed is not None:
            total += bitmap_bytes(self._removed)
        return total

    @property
    def next_key(self) -> int:
        """The smallest key in the part, which must not be empty."""
        if self._next_key is None:
            self._next_key = self._encoding.key_of(int(next(self._runs(self._start, self._stop))[0][0]))
        return self._next_key

    def peek(self, first: int | None, last: int | None, limit: int | None) -> list[Rows]:
        """Sorted rows with keys from ``first`` to ``last``; at most ``limit`` entries unless it is None."""
        start, stop = self._start, self._stop
        if first is not None and first > self.bounds.first_key:
            start = max(start, self._encoding.key_bound(first))
        if last is not None and last < self.bounds.last_key:
            stop = min(stop, self._encoding.key_bound(last + 1))
        return list(self._rows(start, stop, limit))

    def all_rows(self) -> list[Rows]:
        return self.peek(None, None, None)

    def _rows(self, start: int, stop: int, limit: int | None) -> Iterator[Rows]:
        if limit == 0:
            return
        for starts, ends in self._runs(start, stop):
            columns = self._encoding.columns(starts)
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
        """Nonempty starts and ends between two codes, block by block."""
        at = max(0, bisect_right(self._firsts, start) - 1)
        while at < len(self._data) and self._firsts[at] < stop:
            starts, ends = _cut(*self._decode(at), start, stop)
            at += 1
            if self._removed:
                starts, ends = _without(starts, ends, self._removed)
            if len(starts):
                yield starts, ends

    def drop_to(self, key: int, ledger: int, entry: int, count: int) -> None:
        """Drop every entry up to this one, in row order; ``count`` is the number of entries dropped."""
        if not count:
            return
        stop = self._encoding.bound(key, ledger, entry + 1)
        self.count -= count
        self._next_key = None
        self._start = max(self._start, stop)
        if self._removed is not None:
            self._removed.remove_range(0, self._start)
        for at in range(bisect_right(self._firsts, stop) - 2, -1, -1):
            if not self._data[at]:
                break
            self._data[at] = b""

    def contains(self, keys: Column, ledgers: Column, entries: Column) -> NDArray[np.bool_]:
        """Mask of the entries that the part contains."""
        codes = self._encoding.find(keys, ledgers, entries)
        order = np.argsort(codes)
        codes = codes[order]
        found = np.zeros(len(codes), dtype=np.bool_)
        at = int(codes.searchsorted(self._start))
        while at < len(codes):
            block = max(0, bisect_right(self._firsts, int(codes[at])) - 1)
            stop = len(codes)
            if block + 1 < len(self._firsts):
                stop = int(codes.searchsorted(self._firsts[block + 1]))
            starts, ends = self._decode(block)
            queried = codes[at:stop]
            runs = starts.searchsorted(queried, side="right") - 1
            found[at:stop] = (runs >= 0) & (queried < ends[runs])
            at = stop
        if self._removed is not None:
            for row in np.flatnonzero(found).tolist():
                found[row] = int(codes[row]) not in self._removed
        in_order = np.empty_like(found)
        in_order[order] = found
        return in_order

    def discard(self, key: int, ledger: int, entry: int) -> bool:
        triple = [np.array([number], dtype=np.int64) for number in (key, ledger, entry)]
        if not self.contains(*triple)[0]:
            return False
        if self._removed is None:
            self._removed = BitMap64()
        self._removed.add(int(self._encoding.find(*triple)[0]))
        self._next_key = None
        self.count -= 1
        return True

    @property
    def needs_rewrite(self) -> bool:
        """True if the part has more removed codes than live ones."""
        return self._removed is not None and len(self._removed) > self.count

    def _decode(self, at: int) -> tuple[Column, Column]:
        if self._decoded is None or self._decoded[0] != at:
            starts, ends = block_codec.decode(self._data[at])
            starts += self._firsts[at]
            ends += self._firsts[at]
            self._decoded = at, starts, ends
        return self._decoded[1], self._decoded[2]


def seal(parts: Sequence[Rows], bounds: KeyBounds | None = None) -> list[SealedPart]:
    """Seal the rows, each entry once, in one part, or in several if their codes would not fit 63 bits."""
    parts = [within_pages(rows) for rows in parts]
    codes = encoding_for(parts)
    if codes is None:
        rows = concatenate(parts)
        lower = _lower_half(rows)
        halves = [*seal([rows.pick(lower)]), *seal([rows.pick(~lower)])]
        for half in halves:
            half.is_complete = False
        return halves
    single = all(rows.single for rows in parts)
    starts = codes.encode(parts)
    runs = (
        _runs_of_codes(starts, codes.limit)
        if single
        else _runs_of(starts, np.concatenate([rows.counts for rows in parts]))
    )
    return [SealedPart(KeyBounds(parts) if bounds is None else bounds, codes, *runs)]


def _lower_half(rows: Rows) -> NDArray[np.bool_]:
    """Mask of the lower half of the column with the most values; rows with an entry in common stay together."""
    columns = (rows.keys, rows.ledgers, rows.firsts >> PAGE_BITS)
    column, values = max(
        ((column, without_repetitions(np.sort(column))) for column in columns), key=lambda pair: len(pair[1])
    )
    lower: NDArray[np.bool_] = column < values[len(values) // 2]
    return lower


def _runs_of_codes(codes: Column, limit: int) -> tuple[Column, Column | None]:
    """Distinct sorted codes if few are consecutive; otherwise their runs, with ends."""
    codes = sort(codes, limit)
    adjacent = 0
    for piece in pieces_of(len(codes), 1):
        part = codes[piece]
        adjacent += int(np.count_nonzero(part[1:] - part[:-1] <= 1))
    if adjacent:
        codes = without_repetitions(codes)
    return (codes, None) if adjacent * _MIN_ADJACENT <= len(codes) else _join(codes, codes + 1)


def _runs_of(starts: Column, counts: Column) -> tuple[Column, Column]:
    """Union of the runs, sorted: starts and ends."""
    order = np.argsort(starts)
    starts = starts[order]
    return _join(starts, np.maximum.accumulate(starts + counts[order]))


def _join(starts: Column, ends: Column) -> tuple[Column, Column]:
    is_disjoint = np.flatnonzero(starts[1:] > ends[:-1])
    return starts[np.concatenate(([0], is_disjoint + 1))], ends[np.concatenate((is_disjoint, [len(ends) - 1]))]


def _cut(starts: Column, ends: Column, start: int, stop: int) -> tuple[Column, Column]:
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


def _without(starts: Column, ends: Column, removed: BitMap64) -> tuple[Column, Column]:
    """The runs without some codes: each removed code ends one run and starts another."""
    if not len(starts):
        return starts, ends
    first, stop = int(starts[0]), int(ends[-1])
    if not removed.range_cardinality(first, stop):
        return starts, ends
    every = np.frombuffer(removed.to_array(), dtype=np.uint64).view(np.int64)
    holes = every[every.searchsorted(first) : every.searchsorted(stop)]
    starts = np.sort(np.concatenate((starts, holes + 1)))
    ends = np.sort(np.concatenate((ends, holes)))
    nonempty = starts < ends
    return starts[nonempty], ends[nonempty]


def bitmap_bytes(bitmap: BitMap | BitMap64) -> int:
    """Approximate memory of a bitmap: its containers, and the objects that wrap them."""
    sizes = bitmap.get_statistics()
    return (
        100
        + 64 * int(sizes["n_containers"])
        + int(sizes["n_bytes_array_containers"])
        + int(sizes["n_bytes_run_containers"])
        + int(sizes["n_bytes_bitset_containers"])
    )
