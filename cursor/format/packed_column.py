"""Columns: integers of equal width, encoded as differences from the smallest one (frame of reference). The count is not
stored.

Unlike varints, all numbers are encoded and decoded by one call, and each one is addressable without the others.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from bookstand.proto import wire_format
from bookstand.proto.struct_layout import Layout

# The array module has no three-byte integers; they are converted from four bytes by dropping the highest one.
_CODES = {1: "B", 2: "H", 3: "I", 4: "I", 8: "Q"}
_LARGEST = (1 << 64) - 1

COLUMN = Layout(
    "a column of numbers",
    ("width", "B", f"0: all numbers equal the base; otherwise {', '.join(map(str, _CODES))} bytes"),
    ("base", "varint", "the smallest number"),
    ("numbers", "width bytes for each", "number − base, unsigned, little-endian; none if the width is 0"),
)
_SWAP = sys.byteorder == "big"


class ColumnError(ValueError):
    """The bytes are not a column of the expected length."""


def write_column(out: bytearray, numbers: Sequence[int], min_width: int = 0) -> None:
    """Append ``numbers``: at least one, each from 0 to 2^64 − 1."""
    base = min(numbers)
    span = max(numbers) - base
    if not span and not min_width:
        out.append(0)
        wire_format.write_varint(out, base)
        return
    width = 1 if span < 1 << 8 else 2 if span < 1 << 16 else 3 if span < 1 << 24 else 4 if span < 1 << 32 else 8
    out.append(width)
    wire_format.write_varint(out, base)
    column = array(_CODES[width], [number - base for number in numbers] if base else numbers)
    if _SWAP:
        column.byteswap()
    packed: bytes | bytearray = column.tobytes()
    if width == 3:
        packed = bytearray(packed)
        del packed[3::4]
    out += packed


def read_column(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Return the ``count`` numbers of the column at ``at``, and the offset of its end."""
    width, base, at = _head(data, at)
    if not width:
        return [base] * count, at
    end = at + width * count
    if end > len(data):
        raise ColumnError(f"a column needs {width * count} bytes, but {len(data) - at} remain")
    packed: bytes | bytearray = data[at:end]
    if width == 3:
        packed = bytearray(4 * count)
        for octet in range(3):
            packed[octet::4] = data[at + octet : end : 3]
    column = array(_CODES[width], bytes(packed))
    if _SWAP:
        column.byteswap()
    if not base:
        return column.tolist(), end
    _check(base + max(column, default=0))
    return [base + number for number in column], end


def pick(data: bytes, at: int, count: int, row: int) -> tuple[int, int]:
    """Return the number in ``row`` of the column at ``at``, and the offset of the column's end."""
    width, base, at = _head(data, at)
    start = at + width * row
    number = base + int.from_bytes(data[start : start + width], "little")
    _check(number)
    return number, at + width * count


def _check(number: int) -> None:
    if number > _LARGEST:
        raise ColumnError(f"{number} does not fit into 64 bits")


def _head(data: bytes, at: int) -> tuple[int, int, int]:
    if at >= len(data):
        raise ColumnError("a column is missing")
    width = data[at]
    if width and width not in _CODES:
        raise ColumnError(f"{width} is not a column width")
    base, at = wire_format.read_varint(data, at + 1, len(data))
    return width, base, at
