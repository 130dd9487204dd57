"""Frame of the records of a cursor ledger: PositionInfo messages that contain their own identity.

The contents are defined in ack_page.py and checkpoint.py, the fields in proto/cursor_record.proto. The fields of a
record are in ascending order of their numbers.

From the cursor's name on, the reader can predict all bytes of the expected record except its checksum. Therefore one
comparison and one checksum verify a record, regardless of its size and without parsing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import google_crc32c

from bookstand.proto import wire_format
from bookstand.proto.struct_layout import Layout
from bookstand.storage.format.position import Position

PAGE = 1
NODES = 2
MARKER = 3
_KINDS = {PAGE: "page", NODES: "record of index nodes", MARKER: "marker"}

# PIP-81 distinguishes pages and markers by these properties. `kind` is more precise, but these show a tool that knows
# only PositionInfo that the record is not a complete state.
ENTRY_NAME = "lru-entry"
MARKER_NAME = "lru-marker"
RESERVED_NAMES = frozenset((ENTRY_NAME, MARKER_NAME))

FIRST_OWN_FIELD = 1000
_LEDGER_ID, _ENTRY_ID, _PROPERTY = (
    wire_format.tag(1, wire_format.VARINT),
    wire_format.tag(2, wire_format.VARINT),
    wire_format.tag(4, wire_format.BYTES),
)
_PROPERTIES = 4
_NAME, _VALUE = wire_format.tag(1, wire_format.BYTES), wire_format.tag(2, wire_format.VARINT)
_CURSOR = 1020


_KIND_TAG, _GENERATION_TAG, _USER_LEDGER_TAG, _PART_TAG, _PARTS_TAG, _CRC_TAG = (
    wire_format.tag_bytes(field, wire_format.FIXED64 if field in (1022, 1023) else wire_format.FIXED32)
    for field in range(1021, 1027)
)
END = Layout(
    "the end of a cursor's record, without the checksum",
    ("tag", "2s", "of field 1021"),
    ("kind", "I", ", ".join(f"{kind}: {name}" for kind, name in _KINDS.items())),
    ("tag", "2s", "of field 1022"),
    ("generation", "Q", "the number of the flush"),
    ("tag", "2s", "of field 1023"),
    ("user ledger", "Q", "of a page, otherwise 0"),
    ("tag", "2s", "of field 1024"),
    ("part", "I", "counted from 0"),
    ("tag", "2s", "of field 1025"),
    ("parts", "I", ""),
    ("tag", "2s", "of field 1026, which is the checksum"),
    order="<",
)
CHECKSUM = Layout("the checksum of a cursor's record", ("CRC32C", "I", "of all preceding bytes"), order="<")
_END = END.struct
_CRC = CHECKSUM.struct
CRC_BYTES = _CRC.size


class RecordError(ValueError):
    """The bytes are not the expected record. The message contains the reason, but not the record, which the caller
    knows."""


class Identity(NamedTuple):
    """Identity that a record stores."""

    cursor: str
    kind: int
    generation: int
    user_ledger: int
    part: int
    parts: int

    def __str__(self) -> str:
        ledger = f" of ledger {self.user_ledger}" if self.kind == PAGE else ""
        kind = _KINDS.get(self.kind, f"record of the unknown kind {self.kind}")
        part = f"part {self.part} of {self.parts}, " if self.parts != 1 else ""
        return f"{kind}{ledger}, {part}generation {self.generation}, cursor {self.cursor!r}"


def encode_properties(properties: dict[str, int]) -> bytes:
    if not properties:
        return b""
    out = bytearray()
    for name, value in properties.items():
        one = bytearray()
        wire_format.write_bytes_field(one, 1, name.encode())
        wire_format.write_varint_field(one, 2, value)
        wire_format.write_bytes_field(out, _PROPERTIES, one)
    return bytes(out)


_KIND_PROPERTY = {
    PAGE: encode_properties({ENTRY_NAME: 1}),
    NODES: encode_properties({ENTRY_NAME: 1}),
    MARKER: encode_properties({MARKER_NAME: 1}),
}


def begin(mark_delete: Position, kind: int) -> bytearray:
    """Begin a record with the mark-delete position and the property for its kind."""
    out = bytearray()
    wire_format.write_varint_field(out, 1, mark_delete.ledger_id)
    wire_format.write_varint_field(out, 2, mark_delete.entry_id)
    out += _KIND_PROPERTY[kind]
    return out


def tail(identity: Identity) -> bytes:
    """Encode the part of a record after its contents, without the checksum."""
    return _name_field(identity.cursor) + _END.pack(
        _KIND_TAG,
        identity.kind,
        _GENERATION_TAG,
        identity.generation,
        _USER_LEDGER_TAG,
        identity.user_ledger,
        _PART_TAG,
        identity.part,
        _PARTS_TAG,
        identity.parts,
        _CRC_TAG,
    )


# Cached because opening a cursor needs it for every page.
@lru_cache(maxsize=16)
def _name_field(cursor: str) -> bytes:
    out = bytearray()
    wire_format.write_bytes_field(out, _CURSOR, cursor.encode())
    return bytes(out)


def seal(out: bytearray, end: bytes) -> bytes:
    """Complete a record, which :func:`begin` began, with its :func:`tail` and the checksum."""
    out += end
    body = bytes(out)
    return body + _CRC.pack(google_crc32c.value(body))


def verify(stored: bytes, end: bytes) -> None:
    """Verify that the record is intact and has the tail ``end``. Raises :class:`RecordError` otherwise."""
    _verify_checksum(stored)
    if not stored.endswith(end, 0, -CRC_BYTES):
        raise RecordError(f"it is the {identify(stored)}")


def identify(stored: bytes) -> Identity:
    """Return the identity of an intact record. Raises :class:`RecordError` for other bytes."""
    _verify_checksum(stored)
    at = len(stored) - CRC_BYTES - _END.size
    if at < 0:
        raise RecordError("it is too short for a cursor's record")
    values = _END.unpack_from(stored, at)
    if values[::2] != (_KIND_TAG, _GENERATION_TAG, _USER_LEDGER_TAG, _PART_TAG, _PARTS_TAG, _CRC_TAG):
        raise RecordError("it does not have the tail of a cursor's record")
    try:
        *_, (tag, _, name) = wire_format.fields(stored, 0, at)
        if tag != wire_format.tag(_CURSOR, wire_format.BYTES):
            raise RecordError("it names no cursor")
        return Identity(name.decode(), *values[1::2])
    except ValueError as error:
        raise RecordError(str(error)) from error


def _verify_checksum(stored: bytes) -> None:
    if google_crc32c.value(stored[:-CRC_BYTES]) != int.from_bytes(stored[-CRC_BYTES:], "little"):
        raise RecordError("its checksum does not match")
    if len(stored) <= CRC_BYTES:
        raise RecordError("it is too short for a cursor's record")


def contents(stored: bytes, end: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Iterate over the fields before the tail ``end`` of a verified record."""
    return wire_format.fields(stored, 0, len(stored) - len(end) - CRC_BYTES)


def read_position(stored: bytes) -> tuple[Position, dict[str, int]]:
    """Return the mark-delete position and the properties without reserved ones, like any reader of a PositionInfo."""
    ledger_id = entry_id = None
    properties = {}
    for tag, number, chunk in wire_format.fields(stored):
        if tag == _LEDGER_ID:
            ledger_id = wire_format.int64(number)
        elif tag == _ENTRY_ID:
            entry_id = wire_format.int64(number)
        elif tag == _PROPERTY:
            name, value = _read_property(chunk)
            properties[name] = value
    if ledger_id is None or entry_id is None:
        raise RecordError("it has no mark-delete position")
    for reserved in RESERVED_NAMES:
        properties.pop(reserved, None)
    return Position(ledger_id, entry_id), properties


def _read_property(chunk: bytes) -> tuple[str, int]:
    name = value = None
    for tag, number, text in wire_format.fields(chunk):
        if tag == _NAME:
            name = text.decode()
        elif tag == _VALUE:
            value = wire_format.int64(number)
    if name is None or value is None:
        raise RecordError("a property lacks its name or its value")
    return name, value


def is_ours(stored: bytes) -> bool:
    """Return True if the bytes are a record of this format, possibly damaged, rather than a state in Pulsar's format.

    One indication is sufficient, so that a damaged record is not read as a state without individual acknowledgments.
    """
    try:
        for tag, _, chunk in wire_format.fields(stored):
            if tag >> 3 >= FIRST_OWN_FIELD or (tag == _PROPERTY and _is_reserved(chunk)):
                return True
    except wire_format.WireError:
        pass
    return False


def _is_reserved(chunk: bytes) -> bool:
    try:
        return _read_property(chunk)[0] in RESERVED_NAMES
    except ValueError:
        return False
