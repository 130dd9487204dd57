"""Protobuf codec driven by schema tables of field numbers, names and types.

Intended for messages with many mostly absent fields. Absent fields are omitted from the result. Unknown fields are
preserved, including known field numbers with another wire type, as in protobuf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from bookstand.proto.expansion import RECORD_BYTES, Expansion
from bookstand.proto.wire_format import (
    BYTES,
    FIXED64,
    VARINT,
    WireError,
    fields,
    int32,
    int64,
    read_varint,
    tag,
    write_bytes_field,
    write_varint,
)

UNKNOWN = "unknown"
_UNBOUNDED = 1 << 62


class FieldType(NamedTuple):
    """Encoding of a value: ``decode`` takes a varint or a chunk, and ``encode`` returns one. ``decode_within`` is
    ``decode`` for values with elements, which it charges to an expansion."""

    wire: int
    decode: Callable[[Any], Any]
    encode: Callable[[Any], Any]
    decode_within: Callable[[bytes, Expansion], Any] | None = None


class Field(NamedTuple):
    name: str
    kind: FieldType
    many: bool = False
    required: bool = False


class MessageSchema:
    """Fields of a message by number. It must have at least two."""

    def __init__(self, by_number: Mapping[int, Field]) -> None:
        self.by_number = dict(sorted(by_number.items()))
        self.required = tuple(field.name for field in self.by_number.values() if field.required)
        self._many = tuple(field.name for field in self.by_number.values() if field.many)
        self._by_tag = {tag(number, field.kind.wire): field for number, field in self.by_number.items()}
        # Parsers must accept repeated numbers both packed and unpacked, independently of the schema.
        self._packed = {
            tag(number, BYTES): field
            for number, field in self.by_number.items()
            if field.many and field.kind.wire == VARINT
        }

        self._get = attrgetter(*(field.name for field in self.by_number.values()))
        self._writers = [
            (_tag_bytes(number, field.kind.wire), field.kind.wire == BYTES, field.kind.encode, field.many)
            for number, field in self.by_number.items()
        ]

    def read(
        self, data: bytes, start: int = 0, end: int | None = None, expansion: Expansion | None = None
    ) -> dict[str, Any]:
        """Decode a message to values by name, with tuples for repeated fields. The key :data:`UNKNOWN` has the bytes of
        unknown fields. Elements of repeated fields, also of nested messages, are charged to ``expansion``."""
        limit = _UNBOUNDED if expansion is None else expansion.room(RECORD_BYTES)
        count = 0
        values: dict[str, Any] = {name: [] for name in self._many}
        unknown = bytearray()
        for key, number, chunk in fields(data, start, end):
            field = self._by_tag.get(key)
            if field is not None:
                if field.many:
                    count += 1
                    if count > limit:
                        # Count the remaining elements for the error message.
                        continue
                if expansion is not None and field.kind.decode_within is not None:
                    value = field.kind.decode_within(chunk, expansion)
                else:
                    value = field.kind.decode(chunk if field.kind.wire == BYTES else number)
                if field.many:
                    values[field.name].append(value)
                else:
                    values[field.name] = value
            elif key in self._packed:
                field = self._packed[key]
                values[field.name].extend(map(field.kind.decode, varints(chunk)))
            else:
                _copy(unknown, key, number, chunk)
        if expansion is not None and count:
            expansion.take(count * RECORD_BYTES, f"a record of {count} elements")
        for name in self.required:
            if name not in values:
                raise WireError(f"the required field {name} is missing")
        for name in self._many:
            values[name] = tuple(values[name])
        values[UNKNOWN] = bytes(unknown)
        return values

    def write(self, values: Any) -> bytes:
        """Encode an object's attributes. None means absent; unknown fields are written last."""
        out = bytearray()
        for (start, packs, encode, many), value in zip(self._writers, self._get(values), strict=True):
            if value is None:
                continue
            for one in value if many else (value,):
                out += start
                encoded = encode(one)
                if packs:
                    write_varint(out, len(encoded))
                    out += encoded
                else:
                    write_varint(out, encoded)
        return bytes(out + getattr(values, UNKNOWN, b""))


def _tag_bytes(number: int, wire: int) -> bytes:
    out = bytearray()
    write_varint(out, tag(number, wire))
    return bytes(out)


def varints(chunk: bytes) -> Iterable[int]:
    at = 0
    while at < len(chunk):
        number, at = read_varint(chunk, at, len(chunk))
        yield number


def _copy(out: bytearray, key: int, number: int, chunk: bytes) -> None:
    kind = key & 7
    if kind == BYTES:
        write_bytes_field(out, key >> 3, chunk)
        return
    write_varint(out, key)
    if kind == VARINT:
        write_varint(out, number)
    else:
        out += number.to_bytes(8 if kind == FIXED64 else 4, "little")


def _identity(value: Any) -> Any:
    return value


def _text(chunk: bytes) -> str:
    return chunk.decode("utf-8", "replace")


def _strict_text(chunk: bytes) -> str:
    try:
        return chunk.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"a name or value is not UTF-8: {error}") from None


INT64 = FieldType(VARINT, int64, _identity)
UINT64 = FieldType(VARINT, _identity, _identity)
INT32 = FieldType(VARINT, int32, _identity)
UINT32 = FieldType(VARINT, lambda number: number & 0xFFFFFFFF, _identity)
BOOL = FieldType(VARINT, bool, int)
BYTES_FIELD = FieldType(BYTES, _identity, _identity)
TEXT = FieldType(BYTES, _text, str.encode)
"""Text for display: invalid UTF-8 is decoded as U+FFFD, as in Java."""
STRICT_TEXT = FieldType(BYTES, _strict_text, str.encode)
"""Text that is written back unchanged, so invalid UTF-8 is rejected."""


def nested(table: MessageSchema, build: Callable[..., Any]) -> FieldType:
    """Return the type of an embedded message, decoded to ``build(**values)``."""
    return FieldType(
        BYTES,
        lambda chunk: build(**table.read(chunk)),
        table.write,
        lambda chunk, expansion: build(**table.read(chunk, expansion=expansion)),
    )


class _Pair(NamedTuple):
    key: Any
    value: Any


def pair(key: FieldType, value: FieldType) -> FieldType:
    """Return the type of an embedded message with two required fields, decoded to a tuple."""
    table = MessageSchema({1: Field("key", key, required=True), 2: Field("value", value, required=True)})

    def decode(chunk: bytes) -> tuple[Any, Any]:
        values = table.read(chunk)
        return values["key"], values["value"]

    return FieldType(BYTES, decode, lambda both: table.write(_Pair(*both)))
