"""One number for (key, ledger, entry), whose order is theirs.

Four digits of mixed radix: the rank of the key, of the ledger, of the entry's page of ``2**PAGE_BITS`` ids, and the
entry within the page. Ranks are counted along a line or looked up in a table, see :class:`_Axis`. The last digit's
radix leaves one value free, so that no two codes of different keys, ledgers or pages follow one another.

Codes are below 2^63. What does not fit is told by ``None``, and will fit in parts: a single row always does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bookstand.delivery.time_index.rows import Column, Rows, pieces_of, without_repetitions

PAGE_BITS = 20
_PAGE = 1 << PAGE_BITS
_LIMIT = 1 << 63
# A line may have this many ranks for each value that there is: a column is not searched for what a shift can do.
_SPARSE = 2
# The values of a column that changes in fewer than one row of so many are easily found.
_STEADY = 16
_AT_ONCE = 1 << 15


class _Axis:
    """Ranks of a column's values: ``(value − base) >> shift`` on a line, else the place in a sorted table."""

    __slots__ = ("base", "shift", "size", "table")

    def __init__(self, base: int, shift: int, size: int, table: Column | None = None) -> None:
        self.base = base
        self.shift = shift
        self.size = size
        self.table = table

    @property
    def nbytes(self) -> int:
        return 0 if self.table is None else self.table.nbytes

    def values(self, ranks: Column) -> Column:
        if self.table is not None:
            return self.table[ranks]
        if self.shift:
            ranks = ranks << self.shift
        return ranks + self.base if self.base else ranks

    def known_ranks(self, values: Column) -> Column:
        """The ranks of values that all have one, in an array of their own."""
        if self.table is not None:
            return self.table.searchsorted(values)
        ranks = values - np.int64(self.base)
        if self.shift:
            unsigned = ranks.view(np.uint64)
            unsigned >>= np.uint64(self.shift)
        return ranks

    def ranks(self, values: Column) -> tuple[Column, NDArray[np.bool_]]:
        """The ranks, and of which values there are any."""
        if self.table is not None:
            ranks = np.minimum(self.table.searchsorted(values), self.size - 1)
            return ranks, self.table[ranks] == values
        offsets = _offsets(values, self.base)
        ranks = offsets >> np.uint64(self.shift)
        there = (ranks < self.size) & (ranks << np.uint64(self.shift) == offsets) & (values >= self.base)
        return np.where(there, ranks, 0).astype(np.int64), there

    def floor(self, value: int) -> tuple[int, bool]:
        """How many ranks are before the value, and whether the next one is the value's."""
        if self.table is not None:
            rank = int(self.table.searchsorted(value))
            return rank, rank < self.size and int(self.table[rank]) == value
        offset = value - self.base
        rank = min(max(0, -(-offset >> self.shift)), self.size)
        return rank, rank < self.size and rank << self.shift == offset


def _offsets(values: Column, base: int) -> NDArray[np.uint64]:
    """Distances from the least value; those of signed numbers need an unsigned one."""
    return (values - np.int64(base)).view(np.uint64) if base else values.view(np.uint64)


def _axis(columns: Sequence[Column], tables: bool) -> _Axis:
    """An axis for all the columns; a table where that is cheap, or asked for, and better than a line."""
    base, last = min(int(column.min()) for column in columns), max(int(column.max()) for column in columns)
    if base == last:
        return _Axis(base, 0, 1)
    used = 0
    for column in columns:
        for piece in pieces_of(len(column)):
            used |= int(np.bitwise_or.reduce(_offsets(column[piece], base)))
    shift = (used & -used).bit_length() - 1
    size = ((last - base) >> shift) + 1
    if size > _SPARSE:
        table = _distinct(columns, tables)
        if table is not None and size > _SPARSE * len(table):
            return _Axis(0, 0, len(table), table)
    return _Axis(base, shift, size)


def _distinct(columns: Sequence[Column], always: bool) -> Column | None:
    """The values that there are, in order; None if it would take much to find them out."""
    found = []
    for column in columns:
        found.append(column[:1])
        for piece in pieces_of(len(column), 1):
            part = column[piece]
            changed = part[1:][part[1:] != part[:-1]]
            if len(changed) * _STEADY > len(part) and not always:
                return None
            found.append(changed)
    values = np.concatenate(found)
    values.sort()
    return without_repetitions(values)


class KeyEncoding(NamedTuple):
    """The code of everything that some rows have in common."""

    keys: _Axis
    ledgers: _Axis
    pages: _Axis
    radix: int

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.ledgers.nbytes + self.pages.nbytes

    @property
    def key_step(self) -> int:
        """How many codes there are for a key."""
        return self.ledgers.size * self.pages.size * self.radix

    @property
    def limit(self) -> int:
        """Every code is below it."""
        return self.keys.size * self.key_step

    def of(self, parts: Sequence[Rows]) -> Column:
        """Codes of the first entries of rows, all of which have one."""
        codes = np.empty(sum(len(rows.keys) for rows in parts), dtype=np.int64)
        at = 0
        for rows in parts:
            for piece in pieces_of(len(rows.keys)):
                some = self._of(rows.keys[piece], rows.ledgers[piece], rows.firsts[piece])
                codes[at : at + len(some)] = some
                at += len(some)
        return codes

    def _of(self, keys: Column, ledgers: Column, entries: Column) -> Column:
        codes = self.keys.known_ranks(keys)
        if self.ledgers.size > 1:
            codes *= self.ledgers.size
            codes += self.ledgers.known_ranks(ledgers)
        if self.pages.size > 1:
            codes *= self.pages.size
            codes += self.pages.known_ranks(entries >> PAGE_BITS)
        codes *= self.radix
        codes += entries & (_PAGE - 1)
        return codes

    def columns(self, codes: Column) -> tuple[Column, Column, Column]:
        """Keys, ledgers and entries of the codes."""
        if len(codes) <= _AT_ONCE:
            return self._columns(codes)
        columns = np.empty((3, len(codes)), dtype=np.int64)
        for piece in pieces_of(len(codes)):
            columns[:, piece] = self._columns(codes[piece])
        return columns[0], columns[1], columns[2]

    def _columns(self, codes: Column) -> tuple[Column, Column, Column]:
        rest, entries = _divide(codes, self.radix)
        if self.pages.size > 1:
            rest, pages = _divide(rest, self.pages.size)
            entries += self.pages.values(pages) << PAGE_BITS
        elif self.pages.base:
            entries += self.pages.base << PAGE_BITS
        if self.ledgers.size == 1:
            return self.keys.values(rest), np.full(len(codes), self.ledgers.base, dtype=np.int64), entries
        keys, ledgers = _divide(rest, self.ledgers.size)
        return self.keys.values(keys), self.ledgers.values(ledgers), entries

    def key_of(self, code: int) -> int:
        rank = code // self.key_step
        return self.keys.base + (rank << self.keys.shift) if self.keys.table is None else int(self.keys.table[rank])

    def find(self, keys: Column, ledgers: Column, entries: Column) -> Column:
        """Codes, or −1 for what has none."""
        codes, there = self.keys.ranks(keys)
        low = entries & (_PAGE - 1)
        for axis, values in ((self.ledgers, ledgers), (self.pages, entries >> PAGE_BITS)):
            ranks, known = axis.ranks(values)
            codes = codes * axis.size + ranks
            there &= known
        there &= low < self.radix
        return np.where(there, codes * self.radix + low, -1)

    def key_bound(self, key: int) -> int:
        """The least code that is not before the key's place."""
        return self.keys.floor(key)[0] * self.key_step

    def bound(self, key: int, ledger: int, entry: int) -> int:
        """The least code that is not before the triple's place."""
        low = _Axis(0, 0, self.radix)
        digits = (
            (self.keys, key),
            (self.ledgers, ledger),
            (self.pages, entry >> PAGE_BITS),
            (low, entry & (_PAGE - 1)),
        )
        code = 0
        exact = True
        for axis, value in digits:
            code *= axis.size
            if exact:
                rank, exact = axis.floor(value)
                code += rank
        return code


def _divide(numbers: Column, by: int) -> tuple[Column, Column]:
    quotients = numbers // by
    return quotients, numbers - quotients * by


def codes_for(parts: Sequence[Rows]) -> KeyEncoding | None:
    """Codes for all of the rows, which end within their pages, see :func:`within_pages`."""
    first = min(int(rows.firsts.min()) for rows in parts)
    last = max(int(rows.lasts.max()) for rows in parts)
    if first >> PAGE_BITS == last >> PAGE_BITS:
        pages = _Axis(first >> PAGE_BITS, 0, 1)
        radix = (last & (_PAGE - 1)) + 2
    else:
        pages = _axis([rows.firsts >> PAGE_BITS for rows in parts], True)
        radix = _PAGE + 1
    for tables in (False, True):
        keys = _axis([rows.keys for rows in parts], tables)
        made = KeyEncoding(keys, _axis([rows.ledgers for rows in parts], tables), pages, radix)
        if made.limit < _LIMIT:
            return made
    return None


def sort(codes: Column, limit: int) -> Column:
    """The codes in order, in an array of their own; shorter numbers, if they do, are sorted in less time."""
    if limit > 1 << 32:
        codes = codes.copy()
        codes.sort()
        return codes
    short = codes.astype(np.uint32)
    short.sort()
    return short.astype(np.int64)


def within_pages(rows: Rows) -> Rows:
    """The same, with rows that go beyond their page cut at its end."""
    if rows.single:
        return rows
    pages = (rows.lasts >> PAGE_BITS) - (rows.firsts >> PAGE_BITS) + 1
    if not (pages > 1).any():
        return rows
    ends = np.cumsum(pages)
    page = np.arange(int(ends[-1])) - np.repeat(ends - pages, pages)
    keys, ledgers, firsts, lasts = (
        np.repeat(column, pages) for column in (rows.keys, rows.ledgers, rows.firsts, rows.lasts)
    )
    begins = ((firsts >> PAGE_BITS) + page) << PAGE_BITS
    firsts = np.maximum(firsts, begins)
    # The end of the last page of all is no number any more, its last entry is one.
    return Rows(keys, ledgers, firsts, np.minimum(lasts, begins + (_PAGE - 1)) - firsts + 1)
