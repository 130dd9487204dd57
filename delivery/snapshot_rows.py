"""Rows of bytes by the hundred thousand, through numpy, where they have the same fields and different lengths.

A field is one or more columns of bytes, and a column may be absent from some rows. All columns are filled for all rows,
and what is absent is left out when the rows are joined: that is far cheaper than finding the place of every field.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Octets = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]


class Rows:
    """``count`` rows, which fields are appended to; each of less than 256 bytes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._columns: list[tuple[Octets | int, Mask | None]] = []

    def constant(self, octets: bytes) -> Rows:
        """The same bytes in every row."""
        self._columns += [(octet, None) for octet in octets]
        return self

    def fixed(self, numbers: Numbers, width: int) -> Rows:
        """Numbers of ``width`` bytes, little-endian."""
        self._columns += [((numbers >> 8 * place).astype(np.uint8), None) for place in range(width)]
        return self

    def varint(self, numbers: Numbers) -> Rows:
        """Protobuf's numbers of different lengths; a negative one takes ten bytes."""
        if not self._count:
            return self
        unsigned = numbers.view(np.uint64)
        low, high = int(unsigned.min()), int(unsigned.max())
        there: Mask | None = None
        shift = 0
        while True:
            octet = (unsigned >> np.uint64(shift)).astype(np.uint8)
            shift += 7
            if not high >> shift:
                self._columns.append((octet, there))
                return self
            octet |= np.uint8(0x80)
            more: Mask | None = None
            if not low >> shift:
                more = unsigned >= np.uint64(1 << shift)
                octet &= np.uint8(0x7F) | more.view(np.uint8) << np.uint8(7)
            self._columns.append((octet, there))
            there = more

    def behind(self, head: Rows) -> Rows:
        """The same rows, with those of ``head`` in front."""
        both = Rows(self._count)
        both._columns = head._columns + self._columns
        return both

    @property
    def lengths(self) -> Numbers:
        """How many bytes each row has."""
        masks = [there for _, there in self._columns if there is not None]
        lengths = np.full(self._count, len(self._columns) - len(masks), dtype=np.uint8)
        for there in masks:
            lengths += there.view(np.uint8)
        return lengths.astype(np.int64)

    def joined(self) -> bytes:
        """All rows, one behind the other."""
        table = np.empty((self._count, len(self._columns)), dtype=np.uint8)
        for number, (octets, _) in enumerate(self._columns):
            table[:, number] = octets
        if all(there is None for _, there in self._columns):
            return table.tobytes()
        kept = np.ones(table.shape, dtype=np.bool_)
        for number, (_, there) in enumerate(self._columns):
            if there is not None:
                kept[:, number] = there
        return table[kept].tobytes()

    def split(self) -> list[bytes]:
        """Each row by itself."""
        data = self.joined()
        return [data[start:end] for start, end in pairwise([0, *np.cumsum(self.lengths).tolist()])]


def sorted_rows(*columns: Numbers) -> tuple[Numbers, ...]:
    """The columns with their rows in ascending order, by the first column, then the second, and so on."""
    if not len(columns[0]):
        return columns
    lows = [int(column.min()) for column in columns]
    widths = [(int(column.max()) - low).bit_length() for column, low in zip(columns, lows, strict=True)]
    if sum(widths) >= 64:
        order = np.lexsort(columns[::-1])
        return tuple(column[order] for column in columns)
    # As one number each, rows are sorted without an index, which is several times cheaper, and taken apart again. All
    # of it happens in the arrays that are returned: pages that the system has to give first cost more than the work.
    found = [np.empty(len(columns[0]), dtype=np.int64) for _ in columns]
    packed, one = found[0].view(np.uint64), found[-1].view(np.uint64)
    for number, (column, low, width) in enumerate(zip(columns, lows, widths, strict=True)):
        place = one if number else packed
        np.subtract(column.view(np.uint64), np.uint64(low % (1 << 64)), out=place)
        if number and width:
            packed <<= np.uint64(width)
            packed |= one
    packed.sort()
    for rows, low, width in zip(found[:0:-1], lows[:0:-1], widths[:0:-1], strict=True):
        part = rows.view(np.uint64)
        np.bitwise_and(packed, np.uint64((1 << width) - 1), out=part)
        part += np.uint64(low % (1 << 64))
        packed >>= np.uint64(width)
    packed += np.uint64(lows[0] % (1 << 64))
    return tuple(found)
