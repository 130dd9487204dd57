"""Encoding of (key, ledger, entry) as one number with the same order.

A code has four mixed-radix digits: the rank of the key, the rank of the ledger, the rank of the entry's page of
``2**PAGE_BITS`` ids, and the entry within its page. Ranks are computed linearly or looked up in a table, see
:class:`_Dimension`. The radix of the last digit leaves one value unused, so codes of different keys, ledgers or pages
are never consecutive.

Codes are below 2^63. :func:`encoding_for` returns None for rows that do not fit; splitting them always succeeds,
because a single row fits.
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
# A linear dimension may have this many ranks per value, because a shift is cheaper than a table search.
_MAX_RANKS_PER_VALUE = 2
# Distinct values are collected only if fewer than one row in this many differs from the row before.
_MIN_ROWS_PER_CHANGE = 16
_DECODE_CHUNK = 1 << 15


class _Dimension:
    """Ranks of a column's values: ``(value − base) >> shift`` if linear, else the index in a sorted table."""

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

    def ranks_of_known(self, values: Column) -> Column:
        """Ranks of values that all have one, in a new array."""
        if self.table is not None:
            return self.table.searchsorted(values)
        ranks = values - np.int64(self.base)
        if self.shift:
            unsigned = ranks.view(np.uint64)
            unsigned >>= np.uint64(self.shift)
        return ranks

    def ranks(self, values: Column) -> tuple[Column, NDArray[np.bool_]]:
        """Ranks of the values, and the mask of values that have a rank."""
        if self.table is not None:
            ranks = np.minimum(self.table.searchsorted(values), self.size - 1)
            return ranks, self.table[ranks] == values
        offsets = _offsets(values, self.base)
        ranks = offsets >> np.uint64(self.shift)
        found = (ranks < self.size) & (ranks << np.uint64(self.shift) == offsets) & (values >= self.base)
        return np.where(found, ranks, 0).astype(np.int64), found

    def floor(self, value: int) -> tuple[int, bool]:
        """Number of ranks below the value, and True if the value has a rank."""
        if self.table is not None:
            rank = int(self.table.searchsorted(value))
            return rank, rank < self.size and int(self.table[rank]) == value
        offset = value - self.base
        rank = min(max(0, -(-offset >> self.shift)), self.size)
        return rank, rank < self.size and rank << self.shift == offset


def _offsets(values: Column, base: int) -> NDArray[np.uint64]:
    """Distances from the smallest value, unsigned because they may not fit int64."""
    return (values - np.int64(base)).view(np.uint64) if base else values.view(np.uint64)


def _dimension(columns: Sequence[Column], tables: bool) -> _Dimension:
    """Dimension for all columns: a table if that is smaller than a linear one, and cheap or forced by ``tables``."""
    base, last = min(int(column.min()) for column in columns), max(int(column.max()) for column in columns)
    if base == last:
        return _Dimension(base, 0, 1)
    used = 0
    for column in columns:
        for piece in pieces_of(len(column)):
            used |= int(np.bitwise_or.reduce(_offsets(column[piece], base)))
    shift = (used & -used).bit_length() - 1
    size = ((last - base) >> shift) + 1
    if size > _MAX_RANKS_PER_VALUE:
        table = _distinct(columns, tables)
        if table is not None and size > _MAX_RANKS_PER_VALUE * len(table):
            return _Dimension(0, 0, len(table), table)
    return _Dimension(base, shift, size)


def _distinct(columns: Sequence[Column], force: bool) -> Column | None:
    """Distinct values, sorted; None if they would be expensive to collect."""
    found = []
    for column in columns:
        found.append(column[:1])
        for piece in pieces_of(len(column), 1):
            part = column[piece]
            changed = part[1:][part[1:] != part[:-1]]
            if len(changed) * _MIN_ROWS_PER_CHANGE > len(part) and not force:
                return None
            found.append(changed)
    values = np.concatenate(found)
    values.sort()
    return without_repetitions(values)


class KeyEncoding(NamedTuple):
    """Encoding for a set of rows."""

    keys: _Dimension
    ledgers: _Dimension
    pages: _Dimension
    radix: int

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.ledgers.nbytes + self.pages.nbytes

    @property
    def key_step(self) -> int:
        return self.ledgers.size * self.pages.size * self.radix

    @property
    def limit(self) -> int:
        """Exclusive upper bound of the codes."""
        return self.keys.size * self.key_step

    def encode(self, parts: Sequence[Rows]) -> Column:
        """Codes of the first entries of rows, all of which have one."""
        codes = np.empty(sum(len(rows.keys) for rows in parts), dtype=np.int64)
        at = 0
        for rows in parts:
            for piece in pieces_of(len(rows.keys)):
                chunk = self._of(rows.keys[piece], rows.ledgers[piece], rows.firsts[piece])
                codes[at : at + len(chunk)] = chunk
                at += len(chunk)
        return codes

    def _of(self, keys: Column, ledgers: Column, entries: Column) -> Column:
        codes = self.keys.ranks_of_known(keys)
        if self.ledgers.size > 1:
            codes *= self.ledgers.size
            codes += self.ledgers.ranks_of_known(ledgers)
        if self.pages.size > 1:
            codes *= self.pages.size
            codes += self.pages.ranks_of_known(entries >> PAGE_BITS)
        codes *= self.radix
        codes += entries & (_PAGE - 1)
        return codes

    def columns(self, codes: Column) -> tuple[Column, Column, Column]:
        """Decode codes to keys, ledgers and entries."""
        if len(codes) <= _DECODE_CHUNK:
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
        """Codes, or −1 for triples that have none."""
        codes, found = self.keys.ranks(keys)
        low = entries & (_PAGE - 1)
        for dimension, values in ((self.ledgers, ledgers), (self.pages, entries >> PAGE_BITS)):
            ranks, known = dimension.ranks(values)
            codes = codes * dimension.size + ranks
            found &= known
        found &= low < self.radix
        return np.where(found, codes * self.radix + low, -1)

    def key_bound(self, key: int) -> int:
        """Smallest code whose key is not below ``key``."""
        return self.keys.floor(key)[0] * self.key_step

    def bound(self, key: int, ledger: int, entry: int) -> int:
        """Smallest code whose triple is not below this one."""
        low = _Dimension(0, 0, self.radix)
        digits = (
            (self.keys, key),
            (self.ledgers, ledger),
            (self.pages, entry >> PAGE_BITS),
            (low, entry & (_PAGE - 1)),
        )
        code = 0
        exact = True
        for dimension, value in digits:
            code *= dimension.size
            if exact:
                rank, exact = dimension.floor(value)
                code += rank
        return code


def _divide(numbers: Column, by: int) -> tuple[Column, Column]:
    quotients = numbers // by
    return quotients, numbers - quotients * by


def encoding_for(parts: Sequence[Rows]) -> KeyEncoding | None:
    """Encoding for all rows, which must not cross pages (:func:`within_pages`); None if they do not fit."""
    first = min(int(rows.firsts.min()) for rows in parts)
    last = max(int(rows.lasts.max()) for rows in parts)
    if first >> PAGE_BITS == last >> PAGE_BITS:
        pages = _Dimension(first >> PAGE_BITS, 0, 1)
        radix = (last & (_PAGE - 1)) + 2
    else:
        pages = _dimension([rows.firsts >> PAGE_BITS for rows in parts], True)
        radix = _PAGE + 1
    for tables in (False, True):
        keys = _dimension([rows.keys for rows in parts], tables)
        encoding = KeyEncoding(keys, _dimension([rows.ledgers for rows in parts], tables), pages, radix)
        if encoding.limit < _LIMIT:
            return encoding
    return None


def sort(codes: Column, limit: int) -> Column:
    """Sort codes into a new array, as 32-bit numbers if they fit, which is faster."""
    if limit > 1 << 32:
        codes = codes.copy()
        codes.sort()
        return codes
    short = codes.astype(np.uint32)
    short.sort()
    return short.astype(np.int64)


def within_pages(rows: Rows) -> Rows:
    """Split rows that cross the end of a page."""
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
    # The end of the last page does not fit int64, but its last entry does.
    return Rows(keys, ledgers, firsts, np.minimum(lasts, begins + (_PAGE - 1)) - firsts + 1)
