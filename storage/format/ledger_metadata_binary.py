"""Message of metadata formats 2 and 3 (``proto/ledger_metadata.proto``), and its binary encoding."""

from __future__ import annotations

from bookstand.proto.wire_format import (
    BYTES,
    VARINT,
    WireError,
    fields,
    int32,
    int64,
    read_varint,
    tag,
    write_bytes_field,
    write_varint,
    write_varint_field,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from bookstand.storage.format.ledger_metadata import LedgerMetadata

_STATE_NUMBERS = {"OPEN": 1, "IN_RECOVERY": 2, "CLOSED": 3}
_STATES_BY_NUMBER = {number: state for state, number in _STATE_NUMBERS.items()}
_DIGEST_NUMBERS = {"crc32": 1, "hmac": 2, "crc32c": 3, "dummy": 4}
_DIGESTS_BY_NUMBER = {number: name for name, number in _DIGEST_NUMBERS.items()}

_WRITE_QUORUM = 1
_ENSEMBLE_SIZE = 2
_LENGTH = 3
_LAST_ENTRY = 4
_STATE = 5
_SEGMENT = 6
_SEGMENT_MEMBER = 1
_SEGMENT_FIRST_ENTRY = 2
_DIGEST_TYPE = 7
_PASSWORD = 8
_ACK_QUORUM = 9
_CTIME = 10
_CUSTOM = 11
_CUSTOM_KEY = 1
_CUSTOM_VALUE = 2
_CTOKEN = 12

_NUMBER_FIELDS = {
    tag(_WRITE_QUORUM, VARINT): ("quorumSize", int32),
    tag(_ENSEMBLE_SIZE, VARINT): ("ensembleSize", int32),
    tag(_LENGTH, VARINT): ("length", int64),
    tag(_LAST_ENTRY, VARINT): ("lastEntryId", int64),
    tag(_ACK_QUORUM, VARINT): ("ackQuorumSize", int32),
    tag(_CTIME, VARINT): ("ctime", int64),
    tag(_CTOKEN, VARINT): ("cToken", int64),
}
_STATE_TAG = tag(_STATE, VARINT)
_SEGMENT_TAG = tag(_SEGMENT, BYTES)
_SEGMENT_MEMBER_TAG = tag(_SEGMENT_MEMBER, BYTES)
_SEGMENT_FIRST_ENTRY_TAG = tag(_SEGMENT_FIRST_ENTRY, VARINT)
_DIGEST_TYPE_TAG = tag(_DIGEST_TYPE, VARINT)
_PASSWORD_TAG = tag(_PASSWORD, BYTES)
_CUSTOM_TAG = tag(_CUSTOM, BYTES)
_CUSTOM_KEY_TAG = tag(_CUSTOM_KEY, BYTES)
_CUSTOM_VALUE_TAG = tag(_CUSTOM_VALUE, BYTES)


class RawMetadata:
    """LedgerMetadataFormat message as read from either encoding, before validation."""

    __slots__ = ("custom", "digest_type", "numbers", "password", "segments", "state")

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.state: str | None = None
        self.digest_type: str | None = None
        self.password: bytes | None = None
        self.segments: list[tuple[int | None, list[bytes]]] = []
        self.custom: dict[str, bytes] = {}

    def required(self, name: str) -> int:
        if name not in self.numbers:
            raise WireError(f"the required field {name} is missing")
        return self.numbers[name]


def read_delimited(data: bytes, start: int) -> RawMetadata:
    size, start = read_varint(data, start, min(len(data), start + 5))
    if size > len(data) - start:
        raise WireError(f"the message should have {size} bytes, there are {len(data) - start}")
    message = RawMetadata()
    for key, number, chunk in fields(data, start, start + size):
        if key in _NUMBER_FIELDS:
            name, signed = _NUMBER_FIELDS[key]
            message.numbers[name] = signed(number)
        elif key == _STATE_TAG:
            message.state = _STATES_BY_NUMBER.get(int32(number), message.state)
        elif key == _SEGMENT_TAG:
            message.segments.append(_read_segment(chunk))
        elif key == _DIGEST_TYPE_TAG:
            message.digest_type = _DIGESTS_BY_NUMBER.get(int32(number), message.digest_type)
        elif key == _PASSWORD_TAG:
            message.password = chunk
        elif key == _CUSTOM_TAG:
            name_chunk = value = b""
            for inner, _, inner_chunk in fields(chunk):
                if inner == _CUSTOM_KEY_TAG:
                    name_chunk = inner_chunk
                elif inner == _CUSTOM_VALUE_TAG:
                    value = inner_chunk
            message.custom[name_chunk.decode()] = value
    message.required("length")
    return message


def _read_segment(data: bytes) -> tuple[int | None, list[bytes]]:
    first_entry: int | None = None
    members = []
    for key, number, chunk in fields(data):
        if key == _SEGMENT_MEMBER_TAG:
            members.append(chunk)
        elif key == _SEGMENT_FIRST_ENTRY_TAG:
            first_entry = int64(number)
    return first_entry, members


def arguments_of(message: RawMetadata, store_ctime: int | None) -> dict[str, Any]:
    """Convert a message to arguments of :class:`LedgerMetadata`."""
    write_quorum = message.required("quorumSize")
    numbers = message.numbers
    if message.state is None:
        raise WireError("the required field state is missing")
    ensembles = []
    for first_entry, members in message.segments:
        if first_entry is None:
            raise WireError("the required field firstEntryId is missing")
        ensembles.append((first_entry, [member.decode() for member in members]))
    arguments: dict[str, Any] = {
        "ensemble_size": message.required("ensembleSize"),
        "write_quorum_size": write_quorum,
        "ack_quorum_size": numbers.get("ackQuorumSize", write_quorum),
        "state": message.state,
        "ensembles": ensembles,
        "custom_metadata": message.custom,
        "ctoken": numbers.get("cToken", 0),
        "stores_ctime": "ctime" in numbers,
        "ctime": numbers.get("ctime", -1 if store_ctime is None else store_ctime),
    }
    if message.state == "CLOSED":
        # Without the field the ledger closes at entry 0, not -1: the default in BookKeeper's schema.
        arguments["last_entry_id"] = numbers.get("lastEntryId", 0)
        arguments["length"] = message.required("length")
    if message.password is not None:
        if message.digest_type is None:
            raise WireError("the message has a password without a digest type")
        arguments["password"] = message.password
        arguments["digest_type"] = message.digest_type
    return arguments


def delimited(metadata: LedgerMetadata) -> bytes:
    """Encode the message with a length prefix."""
    message = _message(metadata)
    out = bytearray()
    write_varint(out, len(message))
    return bytes(out + message)


def _message(metadata: LedgerMetadata) -> bytearray:
    out = bytearray()
    write_varint_field(out, _WRITE_QUORUM, metadata.write_quorum_size)
    write_varint_field(out, _ENSEMBLE_SIZE, metadata.ensemble_size)
    write_varint_field(out, _LENGTH, metadata.length)
    write_varint_field(out, _LAST_ENTRY, metadata.last_entry_id)
    write_varint_field(out, _STATE, _STATE_NUMBERS[metadata.state])
    for first_entry, bookies in metadata.ensembles:
        segment = bytearray()
        for bookie in bookies:
            write_bytes_field(segment, _SEGMENT_MEMBER, bookie.encode())
        write_varint_field(segment, _SEGMENT_FIRST_ENTRY, first_entry)
        write_bytes_field(out, _SEGMENT, segment)
    if metadata.digest_type is not None:
        write_varint_field(out, _DIGEST_TYPE, _DIGEST_NUMBERS[metadata.digest_type])
    write_bytes_field(out, _PASSWORD, metadata.password)
    write_varint_field(out, _ACK_QUORUM, metadata.ack_quorum_size)
    if metadata.stores_ctime:
        write_varint_field(out, _CTIME, metadata.ctime)
    for key, value in metadata.custom_metadata.items():
        entry = bytearray()
        write_bytes_field(entry, _CUSTOM_KEY, key.encode())
        write_bytes_field(entry, _CUSTOM_VALUE, value)
        write_bytes_field(out, _CUSTOM, entry)
    write_varint_field(out, _CTOKEN, metadata.ctoken)
    return out
