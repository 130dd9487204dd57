"""Columns of runs: key, ledger, first entry, and number of consecutive entries.

The tiers of a time index exchange messages in this form. An ordered batch of ten thousand messages is a few rows;
unordered messages take one row each. All columns are int64 of equal length, and every count is at overlap 1.

Columns of millions of rows are processed in pieces (:func:`pieces_of`) whose intermediate results fit the CPU cache;
allocating large arrays would cost more than the computation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]
Run = tuple[int, int, int, int]
"""One row: key, ledger, first entry, count."""

_PIECE = 1 << 13
# Mean run length from which entries are written run by run, rather than all runs in one operation.
_LONG_RUN = 256


class Rows(NamedTuple):
    keys: Column
    ledgers: Column
    firsts: Column
    counts: Column

    @property
    def single(self) -> bool:
        """True if every row is known to be one entry: see :func:`singles`."""
        return self.counts.strides == (0,)

    @property
    def total(self) -> int:
        return len(self.counts) if self.single else int(self.counts.sum())

    @property
    def lasts(self) -> Column:
        return self.firsts if self.single else self.firsts + (self.counts - 1)

    def pick(self, which: NDArray[np.bool_] | NDArray[np.intp] | slice) -> Rows:
        keys, ledgers, firsts = self.keys[which], self.ledgers[which], self.firsts[which]
        return singles(keys, ledgers, firsts) if self.single else Rows(keys, ledgers, firsts, self.counts[which])

    def tuples(self) -> list[Run]:
        return list(zip(*(column.tolist() for column in self), strict=True))

    def limit(self, limit: int) -> Rows:
        if self.single:
            return self if len(self.keys) <= limit else self.pick(slice(0, limit))
        ends = np.cumsum(self.counts)
        if not len(ends) or ends[-1] <= limit:
            return self
        rows = self.pick(slice(0, int(ends.searchsorted(limit)) + 1))
        counts = rows.counts.copy()
        counts[-1] -= ends[len(counts) - 1] - limit
        return rows._replace(counts=counts)

    def count_to(self, key: int, ledger: int, entry: int) -> int:
        """Number of entries up to this one; the rows must be sorted."""
        at = int(self.keys.searchsorted(key))
        stop = int(self.keys.searchsorted(key, side="right"))
        at, stop = _between(self.ledgers, at, stop, ledger)
        stop = at + int(self.firsts[at:stop].searchsorted(entry, side="right"))
        total = int(self.counts[:stop].sum())
        if stop == at:
            return total
        return total - max(0, int(self.firsts[stop - 1]) + int(self.counts[stop - 1]) - 1 - entry)

    def pieces(self, size: int) -> Iterator[Rows]:
        """Split the rows into pieces of about ``size`` entries, or of one row."""
        ends = np.cumsum(self.counts)
        start = 0
        while start < len(ends):
            before = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(ends.searchsorted(before + size, side="right")))
            yield self.pick(slice(start, stop))
            start = stop

    def entries(self) -> Column:
        if self.single:
            return self.firsts
        counts = self.counts
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        if total < len(counts) * _LONG_RUN:
            ids: Column = np.repeat(self.firsts - (ends - counts), counts)
            ids += np.arange(total, dtype=np.int64)
            return ids
        ids = np.empty(total, dtype=np.int64)
        ramp = np.arange(min(int(counts.max()), _PIECE), dtype=np.int64)
        at = 0
        for first, count in zip(self.firsts.tolist(), counts.tolist(), strict=True):
            for offset in range(0, count, len(ramp)):
                part = min(len(ramp), count - offset)
                np.add(ramp[:part], first + offset, out=ids[at : at + part])
                at += part
        return ids

    def columns(self) -> tuple[Column, Column, Column]:
        """Return key, ledger and entry of every entry."""
        if self.single:
            return self.keys, self.ledgers, self.firsts
        return np.repeat(self.keys, self.counts), np.repeat(self.ledgers, self.counts), self.entries()


def _between(column: Column, start: int, stop: int, value: int) -> tuple[int, int]:
    part = column[start:stop]
    return start + int(part.searchsorted(value)), start + int(part.searchsorted(value, side="right"))


def singles(keys: Column, ledgers: Column, entries: Column) -> Rows:
    """Rows of one entry each. The counts are a broadcast 1 with stride 0."""
    return Rows(keys, ledgers, entries, np.ndarray(len(keys), np.int64, _ONE, 0, (0,)))


_ONE = np.int64(1).tobytes()
_NONE = np.empty(0, dtype=np.int64)
EMPTY = singles(_NONE, _NONE, _NONE)


def pieces_of(length: int, overlap: int = 0) -> Iterator[slice]:
    """Slices that cover a column of this length; each extends ``overlap`` rows to the left."""
    for start in range(overlap, length, _PIECE):
        yield slice(start - overlap, min(start + _PIECE, length))


def without_repetitions(column: Column) -> Column:
    """Distinct values of a sorted column."""
    first = np.empty(len(column), dtype=np.bool_)
    first[:1] = True
    np.not_equal(column[1:], column[:-1], out=first[1:])
    return column if first.all() else column[first]


def starts_of_runs(keys: Column, ledgers: Column, entries: Column) -> NDArray[np.intp]:
    """Indexes of the rows that do not continue the row before."""
    breaks = np.empty(len(keys), dtype=np.bool_)
    breaks[0] = True
    rest = breaks[1:]
    np.not_equal(entries[1:] - entries[:-1], 1, out=rest)
    rest |= ledgers[1:] != ledgers[:-1]
    rest |= keys[1:] != keys[:-1]
    return np.flatnonzero(breaks)


def from_tuples(rows: Sequence[Run]) -> Rows:
    if not rows:
        return EMPTY
    columns = np.array(rows, dtype=np.int64).T
    return Rows(columns[0], columns[1], columns[2], columns[3])


def concatenate(parts: Iterable[Rows]) -> Rows:
    nonempty = [part for part in parts if len(part.keys)]
    if len(nonempty) == 1:
        return nonempty[0]
    if not nonempty:
        return EMPTY
    keys, ledgers, firsts = (np.concatenate([part[column] for part in nonempty]) for column in range(3))
    if all(part.single for part in nonempty):
        return singles(keys, ledgers, firsts)
    return Rows(keys, ledgers, firsts, np.concatenate([part.counts for part in nonempty]))
