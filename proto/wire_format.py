"""Codec of protobuf's binary format, without the protobuf runtime.

Importing the runtime takes 35 ms, longer than opening a store. The core's protobuf messages are few and stable, so
tags, varints and length-delimited fields suffice.
"""

from __future__ import annotations

from functools import cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5

_MASK64 = (1 << 64) - 1
_LARGEST_FIELD = (1 << 29) - 1


class WireError(ValueError):
    """The bytes are not a protobuf message, or are truncated."""


def tag(field: int, kind: int) -> int:
    """Return a field's tag: its number and wire type."""
    return field << 3 | kind


@cache
def tag_bytes(field: int, kind: int) -> bytes:
    """Return a field's encoded tag."""
    out = bytearray()
    write_varint(out, tag(field, kind))
    return bytes(out)


def int32(number: int) -> int:
    """Interpret the low 32 bits of a varint as a signed integer."""
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number


def int64(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Decode the unsigned varint at offset ``at``, and return it with its end offset."""
    start = at
    result = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result & _MASK64, at
        shift += 7
        if shift == 70:
            raise WireError(f"the varint at byte {start} is longer than ten bytes")
    raise WireError(f"the message ends inside the varint at byte {start}")


def fields(data: bytes, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int, bytes]]:
    """Iterate over a message's fields as (tag, number, chunk).

    ``number`` is the unsigned value of varint and fixed-width fields, ``chunk`` the bytes of length-delimited ones.
    Callers compare whole tags, so that a known field with another wire type is treated as unknown, as in protobuf.
    """
    at = start
    end = len(data) if end is None else end
    while at < end:
        begin = at
        key, at = read_varint(data, at, end)
        kind = key & 7
        if not 0 < key >> 3 <= _LARGEST_FIELD:
            raise WireError(f"the field number {key >> 3} at byte {begin} is out of range")
        if kind == VARINT:
            number, at = read_varint(data, at, end)
            yield key, number, b""
            continue
        if kind == BYTES:
            size, at = read_varint(data, at, end)
        elif kind == FIXED64:
            size = 8
        elif kind == FIXED32:
            size = 4
        else:
            raise WireError(f"the tag at byte {begin} has the unknown type {kind}")
        if size > end - at:
            raise WireError(f"the field at byte {begin} has {size} bytes, but only {end - at} remain")
        chunk = data[at : at + size]
        at += size
        if kind == BYTES:
            yield key, 0, chunk
        else:
            yield key, int.from_bytes(chunk, "little"), b""


def write_varint(out: bytearray, number: int) -> None:
    """Append a number as a varint. A negative number takes ten bytes, as in every protobuf int field."""
    if 0 <= number <= 0x7F:
        out.append(number)
        return
    number &= _MASK64
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def write_varint_field(out: bytearray, field: int, number: int) -> None:
    out += tag_bytes(field, VARINT)
    write_varint(out, number)


def write_bytes_field(out: bytearray, field: int, chunk: bytes | bytearray) -> None:
    out += tag_bytes(field, BYTES)
    write_varint(out, len(chunk))
    out += chunk
