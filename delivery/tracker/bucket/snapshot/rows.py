"""Rows of bytes by the hundred thousand, through numpy, where they have the same fields and different lengths.

A field is one or more columns of bytes, and a column may be absent from some rows. All columns are filled for all rows,
and what is absent is left out when the rows are joined: that is far cheaper than finding the place of every field.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bookstand.proto.wire_format import write_varint

Octets = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]


class Rows:
    """``count`` rows, which fields are appended to; each of less than 256 bytes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._columns: list[tuple[Octets | int, Mask | None]] = []

    def constant(self, octets: bytes | bytearray) -> Rows:
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
        # What all numbers have in common at their upper end is worked out once.
        while there is not None or low >> shift != high >> shift:
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
        end = bytearray()
        write_varint(end, high >> shift)
        return self.constant(end)

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
        row = bytes(0 if isinstance(octets, np.ndarray) else octets for octets, _ in self._columns)
        table = np.frombuffer(bytearray(row) * self._count, dtype=np.uint8).reshape(self._count, len(row))
        for number, (octets, _) in enumerate(self._columns):
            if isinstance(octets, np.ndarray):
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
    # As one number each, rows are sorted without an index, which is several times cheaper, and taken apart again. That
    # is done in few arrays, and in narrow ones: pages that the system has to give first cost more than the work.
    kind: type[np.unsignedinteger[Any]] = np.uint32 if sum(widths) <= 32 else np.uint64
    packed, part = np.empty(len(columns[0]), dtype=kind), np.empty(len(columns[0]), dtype=kind)
    for number, (column, low, width) in enumerate(zip(columns, lows, widths, strict=True)):
        place = part if number else packed
        np.subtract(column.view(np.uint64), np.uint64(low % (1 << 64)), out=place, casting="unsafe")
        if number and width:
            packed <<= kind(width)
            packed |= part
    packed.sort()
    found: list[Numbers] = []
    for low, width in zip(lows[::-1], widths[::-1], strict=True):
        rows = np.empty(len(packed), dtype=np.int64)
        np.bitwise_and(packed, kind((1 << width) - 1), out=rows.view(np.uint64))
        if low:
            rows += low
        found.append(rows)
        if len(found) < len(columns):
            packed >>= kind(width)
    return tuple(found[::-1])
