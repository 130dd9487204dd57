"""Jute, ZooKeeper's encoding of records: primitive values, and records as sequences of values.

Numbers are signed and big-endian. A buffer or string is preceded by its int32 length, a vector by its number of
elements; -1 means null. A boolean is one byte. There is no padding, and no type tag.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R", bound=tuple[Any, ...])


class JuteError(ValueError):
    """The bytes do not decode as the expected record."""


class Codec(NamedTuple, Generic[T]):
    """``read(data, offset)`` returns a value and its end; ``write(out, value)`` appends a value."""

    read: Callable[[bytes, int], tuple[T, int]]
    write: Callable[[bytearray, T], None]

    def decode(self, data: bytes, offset: int = 0) -> T:
        """Decode the value at ``offset``. Bytes after it are ignored, as by ZooKeeper."""
        return self.read(data, offset)[0]

    def encode(self, value: T) -> bytes:
        out = bytearray()
        self.write(out, value)
        return bytes(out)


def _packed(layout: str) -> Codec[Any]:
    shape = struct.Struct(layout)

    def read(data: bytes, offset: int) -> tuple[Any, int]:
        try:
            return shape.unpack_from(data, offset)[0], offset + shape.size
        except struct.error as error:
            raise JuteError(f"the record ends at {len(data)}, in the middle of a value at {offset}") from error

    def write(out: bytearray, value: Any) -> None:
        out += shape.pack(value)

    return Codec(read, write)


INT: Codec[int] = _packed(">i")
LONG: Codec[int] = _packed(">q")
BOOL: Codec[bool] = _packed(">?")
_NULL = b"\xff\xff\xff\xff"


def _read_buffer(data: bytes, offset: int) -> tuple[bytes | None, int]:
    size, offset = INT.read(data, offset)
    if size == -1:
        return None, offset
    end = offset + size
    if not offset <= end <= len(data):
        raise JuteError(f"a value of {size} bytes at {offset} does not fit in the record's {len(data)}")
    return data[offset:end], end


def _write_buffer(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out += _NULL
    else:
        INT.write(out, len(value))
        out += value


def _read_string(data: bytes, offset: int) -> tuple[str | None, int]:
    found, end = _read_buffer(data, offset)
    try:
        return None if found is None else found.decode(), end
    except UnicodeDecodeError as error:
        raise JuteError(f"the string at {offset} is no UTF-8: {error}") from error


def _write_string(out: bytearray, value: str | None) -> None:
    _write_buffer(out, None if value is None else value.encode())


BUFFER: Codec[bytes | None] = Codec(_read_buffer, _write_buffer)
STRING: Codec[str | None] = Codec(_read_string, _write_string)


def vector(of: Codec[T]) -> Codec[Sequence[T] | None]:
    def read(data: bytes, offset: int) -> tuple[list[T] | None, int]:
        count, offset = INT.read(data, offset)
        if count == -1:
            return None, offset
        if not 0 <= count <= len(data) - offset:
            raise JuteError(f"{count} elements at {offset} do not fit in the record's {len(data)} bytes")
        found = []
        for _ in range(count):
            value, offset = of.read(data, offset)
            found.append(value)
        return found, offset

    def write(out: bytearray, value: Sequence[T] | None) -> None:
        if value is None:
            out += _NULL
            return
        INT.write(out, len(value))
        for element in value:
            of.write(out, element)

    return Codec(read, write)


def record(kind: Callable[..., R], *fields: Codec[Any]) -> Codec[R]:
    """Codec of a record with these fields; ``kind`` constructs it from their values."""

    def read(data: bytes, offset: int) -> tuple[R, int]:
        values = []
        for field in fields:
            value, offset = field.read(data, offset)
            values.append(value)
        return kind(*values), offset

    def write(out: bytearray, value: R) -> None:
        for field, part in zip(fields, value, strict=True):
            field.write(out, part)

    return Codec(read, write)


def packed_record(kind: Callable[..., R], layout: str) -> Codec[R]:
    """Codec of a record with numeric fields only."""
    shape = struct.Struct(layout)

    def read(data: bytes, offset: int) -> tuple[R, int]:
        try:
            return kind(*shape.unpack_from(data, offset)), offset + shape.size
        except struct.error as error:
            raise JuteError(f"the record ends at {len(data)}, in the middle of one at {offset}") from error

    def write(out: bytearray, value: R) -> None:
        out += shape.pack(*value)

    return Codec(read, write)
