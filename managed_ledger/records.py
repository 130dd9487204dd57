"""The records that a topic has in the metadata store: its ledgers, and where each of its cursors stands.

They are Pulsar's, which ``proto/ml_data_formats.proto`` says in protobuf's words. A record is stored plain, or
compressed:

    4778, size of the header (4, big-endian), header, packed record

Field 8 of a plain record cannot begin with 47, so that the two are told apart by their first bytes. What is not known
here is kept and written back: unknown fields, and all of what offloading notes.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from bookstand.errors import IncorrectParameterError, MalformedError, MalformedRecordError
from bookstand.managed_ledger.message.compression import NAMES, NUMBERS, pack, unpack
from bookstand.proto.ack_messages import (
    LONG_PROPERTY,
    STRING_PROPERTY,
    Range,
    read_batch,
    read_position,
    read_range,
    write_batch,
    write_position,
    write_range,
)
from bookstand.proto.expansion import DEFAULT, Expansion, ExpansionLimits
from bookstand.proto.schema_codec import BYTES_FIELD, INT32, INT64, STRICT_TEXT, Field, FieldType, MessageSchema, pair
from bookstand.proto.struct_layout import Layout
from bookstand.proto.wire_format import BYTES, WireError
from bookstand.storage.format.position import Position

Pairs = tuple[tuple[str, str], ...]
Batch = tuple[int, int, int]

_HEADER_MAGIC = b"\x47\x78"
_U32 = struct.Struct(">I")
COMPRESSED = Layout(
    "a record that is compressed",
    ("magic", "2s", f"`{_HEADER_MAGIC.hex()}`"),
    ("size", "I", "of the header"),
    ("header", "size bytes", "protobuf: 1, the codec; 2, the size when it is unpacked"),
    ("record", "the rest", "packed by that codec"),
)

THRESHOLD = 16 << 10
"""Smaller records than Pulsar's default for this are not worth compressing."""


# -- what the records say --------------------------------------------------------------------------------------------


class LedgerInfo(NamedTuple):
    """One ledger of a topic. The counts of the last one are 0 until it is closed."""

    ledger_id: int
    entries: int = 0
    size: int = 0
    timestamp: int = 0  # ms; when it was closed
    offload: bytes | None = None  # OffloadContext, as it came
    properties: Pairs = ()
    unknown: bytes = b""


class _ManagedLedgerInfo(NamedTuple):
    ledgers: list[LedgerInfo]
    terminated: Position | None
    properties: Pairs
    unknown: bytes


class ManagedLedgerInfo(_ManagedLedgerInfo):
    """A topic: its ledgers in their order, and the last position if it takes no more entries."""

    __slots__ = ()

    def __new__(
        cls,
        ledgers: list[LedgerInfo] | None = None,
        terminated: Position | None = None,
        properties: Pairs = (),
        unknown: bytes = b"",
    ) -> ManagedLedgerInfo:
        return super().__new__(cls, [] if ledgers is None else ledgers, terminated, properties, unknown)


class CursorInfo(NamedTuple):
    """A cursor. With a cursor ledger (not −1) the state is there, and this is an older one, without what follows the
    mark-delete position; else this is the state.

    Ranges are (ledger, entry, ledger, entry), the lower end exclusive; batches (ledger, entry, bits of the messages
    that are NOT acknowledged).
    """

    cursor_ledger_id: int
    mark_delete: Position | None = None
    ranges: tuple[Range, ...] = ()
    properties: tuple[tuple[str, int], ...] = ()
    last_active: int | None = None
    batches: tuple[Batch, ...] = ()
    cursor_properties: Pairs = ()
    unknown: bytes = b""


# -- how they say it -------------------------------------------------------------------------------------------------


def _position(chunk: bytes) -> Position:
    return Position(*read_position(chunk))


_PROPERTY = pair(STRICT_TEXT, STRICT_TEXT)
_POSITION = FieldType(BYTES, _position, lambda position: write_position(*position))

_LEDGER_INFO = MessageSchema(
    {
        1: Field("ledger_id", INT64, required=True),
        2: Field("entries", INT64),
        3: Field("size", INT64),
        4: Field("timestamp", INT64),
        5: Field("offload", BYTES_FIELD),
        6: Field("properties", _PROPERTY, many=True),
    }
)


def _write_ledger_info(info: LedgerInfo) -> bytes:
    # As Pulsar: a ledger that is being written has a time and no counts.
    given = info if info.entries or info.size else info._replace(entries=None, size=None)  # type: ignore[arg-type]
    return _LEDGER_INFO.write(given)


_MANAGED_LEDGER_INFO = MessageSchema(
    {
        1: Field(
            "ledgers",
            FieldType(BYTES, lambda chunk: LedgerInfo(**_LEDGER_INFO.read(chunk)), _write_ledger_info),
            many=True,
        ),
        2: Field("terminated", _POSITION),
        3: Field("properties", _PROPERTY, many=True),
    }
)


class _CursorFields(NamedTuple):
    cursor_ledger_id: int
    mark_delete_ledger: int | None = None
    mark_delete_entry: int | None = None
    ranges: tuple[Range, ...] = ()
    properties: tuple[tuple[str, int], ...] = ()
    last_active: int | None = None
    batches: tuple[Batch, ...] = ()
    cursor_properties: Pairs = ()
    unknown: bytes = b""


_CURSOR_INFO = MessageSchema(
    {
        1: Field("cursor_ledger_id", INT64, required=True),
        2: Field("mark_delete_ledger", INT64),
        3: Field("mark_delete_entry", INT64),
        4: Field("ranges", FieldType(BYTES, read_range, write_range), many=True),
        5: Field("properties", LONG_PROPERTY, many=True),
        6: Field("last_active", INT64),
        7: Field("batches", FieldType(BYTES, read_batch, lambda batch: write_batch(*batch)), many=True),
        8: Field("cursor_properties", STRING_PROPERTY, many=True),
    }
)
_HEADER = MessageSchema({1: Field("codec", INT32, required=True), 2: Field("size", INT32, required=True)})


class _Header(NamedTuple):
    codec: int
    size: int


# -- reading and writing ---------------------------------------------------------------------------------------------


def decode_ledger_info(
    data: bytes, what: str = "the topic's record", limits: ExpansionLimits = DEFAULT
) -> ManagedLedgerInfo:
    """``what`` names the record in an error."""
    values = _read(_MANAGED_LEDGER_INFO, data, what, limits)
    return ManagedLedgerInfo(**{**values, "ledgers": list(values["ledgers"])})


def encode_ledger_info(info: ManagedLedgerInfo, codec: str | None = None, threshold: int = THRESHOLD) -> bytes:
    """The record, compressed if there is a codec and it is larger than ``threshold``."""
    return _compressed(_MANAGED_LEDGER_INFO.write(info), codec, threshold)


def decode_cursor_info(data: bytes, what: str = "the cursor's record", limits: ExpansionLimits = DEFAULT) -> CursorInfo:
    values = _read(_CURSOR_INFO, data, what, limits)
    ledger = values.pop("mark_delete_ledger", None)
    entry = values.pop("mark_delete_entry", None)
    if ledger is None and entry is None:
        return CursorInfo(**values)
    # A field that is absent reads as 0 where the other one is there, as it does for Pulsar.
    return CursorInfo(mark_delete=Position(ledger or 0, entry or 0), **values)


def encode_cursor_info(info: CursorInfo, codec: str | None = None, threshold: int = THRESHOLD) -> bytes:
    ledger, entry = (None, None) if info.mark_delete is None else info.mark_delete
    rest = {name: getattr(info, name) for name in CursorInfo._fields if name != "mark_delete"}
    given = _CursorFields(mark_delete_ledger=ledger, mark_delete_entry=entry, **rest)
    return _compressed(_CURSOR_INFO.write(given), codec, threshold)


def _read(table: MessageSchema, data: bytes, what: str, limits: ExpansionLimits) -> dict[str, Any]:
    expansion = limits.of(len(data))
    try:
        return table.read(_plain(data, expansion), expansion=expansion)
    except (WireError, MalformedError) as error:
        raise MalformedRecordError(f"{what} cannot be read: {error}") from None


def _plain(data: bytes, expansion: Expansion) -> bytes:
    if not data.startswith(_HEADER_MAGIC):
        return data
    start = len(_HEADER_MAGIC) + _U32.size
    if len(data) < start:
        raise MalformedError("it ends within the header of a compressed record")
    (size,) = _U32.unpack_from(data, len(_HEADER_MAGIC))
    if size > len(data) - start:
        raise MalformedError(f"its header should have {size} bytes, there are {len(data) - start}")
    header = _HEADER.read(data, start, start + size)
    codec = NAMES.get(header["codec"])
    if codec is None:
        raise MalformedError(f"it is compressed with codec {header['codec']}, which nobody knows")
    return unpack(codec, data[start + size :], header["size"], expansion)


def _compressed(data: bytes, codec: str | None, threshold: int) -> bytes:
    if codec is not None and codec not in NUMBERS:
        raise IncorrectParameterError(f"there is no codec {codec!r}, but {', '.join(NUMBERS)}")
    if codec is None or codec == "NONE" or len(data) <= threshold:
        return data
    header = _HEADER.write(_Header(NUMBERS[codec], len(data)))
    return _HEADER_MAGIC + _U32.pack(len(header)) + header + pack(codec, data)
