"""Vectorized encoding of rows of bytes that have the same fields with different lengths.

A field is one or more columns of bytes, and a column may be absent from some rows. All columns are filled for all rows,
and absent bytes are dropped when the rows are joined. That is far cheaper than computing the offset of every field.
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
    """Builder of ``count`` rows of up to 255 bytes; fields are appended."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._columns: list[tuple[Octets | int, Mask | None]] = []

    def constant(self, octets: bytes | bytearray) -> Rows:
        """Append the same bytes to every row."""
        self._columns += [(octet, None) for octet in octets]
        return self

    def fixed(self, numbers: Numbers, width: int) -> Rows:
        """Append little-endian numbers of ``width`` bytes."""
        self._columns += [((numbers >> 8 * place).astype(np.uint8), None) for place in range(width)]
        return self

    def varint(self, numbers: Numbers) -> Rows:
        """Append protobuf varints; a negative number takes ten bytes."""
        if not self._count:
            return self
        unsigned = numbers.view(np.uint64)
        low, high = int(unsigned.min()), int(unsigned.max())
        present: Mask | None = None
        shift = 0
        # The high bits that all numbers share are encoded once.
        while present is not None or low >> shift != high >> shift:
            octet = (unsigned >> np.uint64(shift)).astype(np.uint8)
            shift += 7
            if not high >> shift:
                self._columns.append((octet, present))
                return self
            octet |= np.uint8(0x80)
            more: Mask | None = None
            if not low >> shift:
                more = unsigned >= np.uint64(1 << shift)
                octet &= np.uint8(0x7F) | more.view(np.uint8) << np.uint8(7)
            self._columns.append((octet, present))
            present = more
        end = bytearray()
        write_varint(end, high >> shift)
        return self.constant(end)

    def prepend(self, head: Rows) -> Rows:
        """Return the rows with those of ``head`` prepended."""
        both = Rows(self._count)
        both._columns = head._columns + self._columns
        return both

    @property
    def lengths(self) -> Numbers:
        masks = [present for _, present in self._columns if present is not None]
        lengths = np.full(self._count, len(self._columns) - len(masks), dtype=np.uint8)
        for present in masks:
            lengths += present.view(np.uint8)
        return lengths.astype(np.int64)

    def join(self) -> bytes:
        row = bytes(0 if isinstance(octets, np.ndarray) else octets for octets, _ in self._columns)
        table = np.frombuffer(bytearray(row) * self._count, dtype=np.uint8).reshape(self._count, len(row))
        for number, (octets, _) in enumerate(self._columns):
            if isinstance(octets, np.ndarray):
                table[:, number] = octets
        if all(present is None for _, present in self._columns):
            return table.tobytes()
        kept = np.ones(table.shape, dtype=np.bool_)
        for number, (_, present) in enumerate(self._columns):
            if present is not None:
                kept[:, number] = present
        return table[kept].tobytes()

    def split(self) -> list[bytes]:
        data = self.join()
        return [data[start:end] for start, end in pairwise([0, *np.cumsum(self.lengths).tolist()])]


def sorted_rows(*columns: Numbers) -> tuple[Numbers, ...]:
    """Sort rows by the first column, then the second, and so on."""
    if not len(columns[0]):
        return columns
    lows = [int(column.min()) for column in columns]
    widths = [(int(column.max()) - low).bit_length() for column, low in zip(columns, lows, strict=True)]
    if sum(widths) >= 64:
        order = np.lexsort(columns[::-1])
        return tuple(column[order] for column in columns)
    # Pack each row into one number and sort without an index, which is several times as fast. Few narrow arrays are
    # used, because mapping new pages would cost more than the sort.
    kind: type[np.unsignedinteger[Any]] = np.uint32 if sum(widths) <= 32 else np.uint64
    packed, part = np.empty(len(columns[0]), dtype=kind), np.empty(len(columns[0]), dtype=kind)
    for number, (column, low, width) in enumerate(zip(columns, lows, widths, strict=True)):
        target = part if number else packed
        np.subtract(column.view(np.uint64), np.uint64(low % (1 << 64)), out=target, casting="unsafe")
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
