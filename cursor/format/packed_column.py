"""A column: as many numbers as its reader expects, each in as few bytes as the largest difference needs.

Numbers of one width are coded and decoded by one call for all, where varints would take a step of the interpreter
each, and one of them can be had without the others.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

from bookstand.proto import wire_format
from bookstand.proto.struct_layout import Layout

# There are no machine numbers of three bytes; they travel as four, of which the highest is left out.
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
    """The bytes are not a column of that many numbers."""


def write_column(out: bytearray, numbers: Sequence[int], least_width: int = 0) -> None:
    """Append ``numbers``: at least one, each from 0 to 2^64 − 1."""
    base = min(numbers)
    span = max(numbers) - base
    if not span and not least_width:
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
    """The ``count`` numbers of the column at ``at``, and where it ends."""
    width, base, at = _head(data, at)
    if not width:
        return [base] * count, at
    end = at + width * count
    if end > len(data):
        raise ColumnError(f"a column wants {width * count} bytes where {len(data) - at} are left")
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
    """The number in ``row`` of the column at ``at``, and where the column ends."""
    width, base, at = _head(data, at)
    start = at + width * row
    number = base + int.from_bytes(data[start : start + width], "little")
    _check(number)
    return number, at + width * count


def _check(number: int) -> None:
    if number > _LARGEST:
        raise ColumnError(f"{number} takes more than 64 bits")


def _head(data: bytes, at: int) -> tuple[int, int, int]:
    if at >= len(data):
        raise ColumnError("a column is missing")
    width = data[at]
    if width and width not in _CODES:
        raise ColumnError(f"there are no columns of width {width}")
    base, at = wire_format.read_varint(data, at + 1, len(data))
    return width, base, at
