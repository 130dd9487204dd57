"""A topic's records in the metadata store: ManagedLedgerInfo and ManagedCursorInfo.

``proto/ml_data_formats.proto`` is their schema. A record is stored uncompressed, or compressed as:

    4778, size of the header (4, big-endian), header, packed record

An uncompressed record never starts with these magic bytes. Unknown fields and the offload context are preserved when a
record is written back.
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
_WORD_BYTES = 8
COMPRESSED = Layout(
    "a compressed record",
    ("magic", "2s", f"`{_HEADER_MAGIC.hex()}`"),
    ("size", "I", "of the header"),
    ("header", "size bytes", "protobuf: 1, the codec; 2, the uncompressed size"),
    ("record", "the rest", "compressed with that codec"),
)

THRESHOLD = 16 << 10
"""Pulsar's default for the minimum size of records to compress."""


# -- records ---------------------------------------------------------------------------------------------------------


class LedgerInfo(NamedTuple):
    """One ledger of a topic. The counts of the last one are 0 until it is closed."""

    ledger_id: int
    entries: int = 0
    size: int = 0
    timestamp: int = 0  # time of the close in ms
    offload: bytes | None = None  # OffloadContext, not decoded
    properties: Pairs = ()
    unknown: bytes = b""


class _ManagedLedgerInfo(NamedTuple):
    ledgers: list[LedgerInfo]
    terminated: Position | None
    properties: Pairs
    unknown: bytes


class ManagedLedgerInfo(_ManagedLedgerInfo):
    """A topic: its ledgers in order, and the last position if the topic is terminated."""

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
    """A cursor. Unless ``cursor_ledger_id`` is -1, the current state is in the cursor ledger, and this record has only
    an older mark-delete position.

    Ranges are (ledger, entry, ledger, entry) with an exclusive lower end. Batches are (ledger, entry, bitmap of
    unacknowledged messages).
    """

    cursor_ledger_id: int
    mark_delete: Position | None = None
    ranges: tuple[Range, ...] = ()
    properties: tuple[tuple[str, int], ...] = ()
    last_active: int | None = None
    batches: tuple[Batch, ...] = ()
    cursor_properties: Pairs = ()
    unknown: bytes = b""


# -- schemas ---------------------------------------------------------------------------------------------------------


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


def _read_ledger_info(chunk: bytes, expansion: Expansion | None = None) -> LedgerInfo:
    return LedgerInfo(**_LEDGER_INFO.read(chunk, expansion=expansion))


def _write_ledger_info(info: LedgerInfo) -> bytes:
    # Like Pulsar, write a time but no counts for the ledger that is being written.
    stored = info if info.entries or info.size else info._replace(entries=None, size=None)  # type: ignore[arg-type]
    return _LEDGER_INFO.write(stored)


_MANAGED_LEDGER_INFO = MessageSchema(
    {
        1: Field("ledgers", FieldType(BYTES, _read_ledger_info, _write_ledger_info, _read_ledger_info), many=True),
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


def _read_batch(chunk: bytes, expansion: Expansion) -> Batch:
    # A word of eight bytes takes a byte and more.
    expansion.take(_WORD_BYTES * len(chunk), "a record with partially acknowledged batches")
    return read_batch(chunk)


_CURSOR_INFO = MessageSchema(
    {
        1: Field("cursor_ledger_id", INT64, required=True),
        2: Field("mark_delete_ledger", INT64),
        3: Field("mark_delete_entry", INT64),
        4: Field("ranges", FieldType(BYTES, read_range, write_range), many=True),
        5: Field("properties", LONG_PROPERTY, many=True),
        6: Field("last_active", INT64),
        7: Field("batches", FieldType(BYTES, read_batch, lambda batch: write_batch(*batch), _read_batch), many=True),
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
    """Decode a ManagedLedgerInfo. ``what`` names the record in error messages."""
    values = _read(_MANAGED_LEDGER_INFO, data, what, limits)
    return ManagedLedgerInfo(**{**values, "ledgers": list(values["ledgers"])})


def encode_ledger_info(info: ManagedLedgerInfo, codec: str | None = None, threshold: int = THRESHOLD) -> bytes:
    """Encode a ManagedLedgerInfo, compressed if ``codec`` is set and the record exceeds ``threshold`` bytes."""
    return _compress(_MANAGED_LEDGER_INFO.write(info), codec, threshold)


def decode_cursor_info(data: bytes, what: str = "the cursor's record", limits: ExpansionLimits = DEFAULT) -> CursorInfo:
    values = _read(_CURSOR_INFO, data, what, limits)
    ledger = values.pop("mark_delete_ledger", None)
    entry = values.pop("mark_delete_entry", None)
    if ledger is None and entry is None:
        return CursorInfo(**values)
    # If only one of the two fields is present, the other reads as 0, as in Pulsar.
    return CursorInfo(mark_delete=Position(ledger or 0, entry or 0), **values)


def encode_cursor_info(info: CursorInfo, codec: str | None = None, threshold: int = THRESHOLD) -> bytes:
    ledger, entry = (None, None) if info.mark_delete is None else info.mark_delete
    rest = {name: getattr(info, name) for name in CursorInfo._fields if name != "mark_delete"}
    fields = _CursorFields(mark_delete_ledger=ledger, mark_delete_entry=entry, **rest)
    return _compress(_CURSOR_INFO.write(fields), codec, threshold)


def _read(table: MessageSchema, data: bytes, what: str, limits: ExpansionLimits) -> dict[str, Any]:
    expansion = limits.of(len(data))
    try:
        return table.read(_decompress(data, expansion), expansion=expansion)
    except (WireError, MalformedError) as error:
        raise MalformedRecordError(f"{what} cannot be read: {error}") from None


def _decompress(data: bytes, expansion: Expansion) -> bytes:
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
        raise MalformedError(f"it is compressed with the unknown codec {header['codec']}")
    return unpack(codec, data[start + size :], header["size"], expansion)


def _compress(data: bytes, codec: str | None, threshold: int) -> bytes:
    if codec is not None and codec not in NUMBERS:
        raise IncorrectParameterError(f"codec must be one of {', '.join(NUMBERS)}, not {codec!r}")
    if codec is None or codec == "NONE" or len(data) <= threshold:
        return data
    header = _HEADER.write(_Header(NUMBERS[codec], len(data)))
    return _HEADER_MAGIC + _U32.pack(len(header)) + header + pack(codec, data)
