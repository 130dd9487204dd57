"""Version 3 of the bookie protocol: protobuf messages, ``proto/bookie_protocol.proto``.

Adds and reads dominate the traffic. Their canonical form (the fields in the order in which BookKeeper's client writes
them, and no others) is parsed and answered without the protobuf runtime. Any other form is parsed by protobuf, with the
same result (``tests/server/bookie/test_v3.py`` compares both).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from bookstand.proto import bookie_protocol_pb2 as messages
from bookstand.proto.wire_format import int64, write_varint
from bookstand.server.bookie.protocol.codes import OK, STATUS
from bookstand.server.bookie.protocol.v2 import MalformedRequestError
from bookstand.server.bookie.protocol.versions import FIRST_OCTET_OF_V3
from bookstand.server.framing import joined

# Only the shortest encoding of a varint: the parsed bytes are echoed in the response.
_NUMBER = rb"([\x80-\xff]{0,8}[\x01-\x7f]|[\x80-\xff]{9}\x01|\x00)"
_HEADER = rb"\x0a(.)\x08\x03\x10%b\x18" + _NUMBER
_ADD = re.compile(
    _HEADER % b"\x02"
    + rb"\xaa\x06"
    + _NUMBER
    + rb"\x08"
    + _NUMBER
    + rb"\x10"
    + _NUMBER
    + rb"\x1a\x14(.{20})\x22"
    + _NUMBER,
    re.DOTALL,
)
_READ = re.compile(_HEADER % b"\x01" + rb"\xa2\x06(.)\x08" + _NUMBER + rb"\x10" + _NUMBER, re.DOTALL)
_IDS_BYTES = 16

Request = messages.Request
Response = messages.Response


class Add(NamedTuple):
    """Slices of an add in canonical form: header, transaction id, ledger id, entry id, master key and entry."""

    ledger_id: int
    entry_id: int
    header: slice
    txn: slice
    ledger: slice
    entry: slice
    key: slice
    body: slice


class Read(NamedTuple):
    """A read in canonical form, which neither fences nor waits. The response begins with the same ``header``."""

    header: bytes
    ledger_id: int
    entry_id: int


def match_add(frame: bytes) -> Add | None:
    """Parse an add in canonical form whose entry contains the same ids. Return None if protobuf must parse it."""
    found = _ADD.match(frame)
    if found is None:
        return None
    end = len(frame)
    body = found.end()
    if (
        frame[1] != found.end(2) - 2
        or _number(found[3]) != end - found.end(3)
        or _number(found[7]) != end - body
        or end - body < _IDS_BYTES
    ):
        return None
    ledger_id, entry_id = _number(found[4]), _number(found[5])
    ids = ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big")
    if frame[body : body + _IDS_BYTES] != ids:
        return None
    return Add(
        int64(ledger_id),
        int64(entry_id),
        slice(0, found.end(2)),
        slice(*found.span(2)),
        slice(*found.span(4)),
        slice(*found.span(5)),
        slice(*found.span(6)),
        slice(body, end),
    )


def match_read(frame: bytes) -> Read | None:
    found = _READ.fullmatch(frame)
    if found is None or frame[1] != found.end(2) - 2 or found[3][0] != len(frame) - found.end(3):
        return None
    return Read(frame[: found.end(2)], int64(_number(found[4])), int64(_number(found[5])))


def read_request(frame: bytes) -> Request:
    """Parse any request with protobuf."""
    try:
        request: Request = Request.FromString(frame)
    except DecodeError as error:
        raise MalformedRequestError(f"this is no request: {error}") from None
    if not request.IsInitialized():
        # An operation that the schema does not define parses as an unknown field.
        raise MalformedRequestError("required fields of the request are missing")
    return request


def read_long_request(head: bytes) -> Request | None:
    """Parse the header of a request that begins with ``head``. Return None if more bytes are needed."""
    if len(head) < 2 or len(head) < (end := 2 + head[1]):
        return None
    request = read_request(head[:end])
    if request.header.version != messages.VERSION_THREE:
        raise MalformedRequestError(f"there is no version {request.header.version}")
    return request


def answer_add(header: bytes, code: int, ledger: bytes, entry: bytes) -> bytes:
    """Build the response to an add from the request's header and the varints of its ids."""
    status = _STATUS[code]
    told = b"".join((b"\x08", status, b"\x10", ledger, b"\x18", entry))
    return joined((header, b"\x10", status, b"\xaa\x06", varint(len(told)), told))


def answer_read(
    header: bytes,
    code: int,
    ledger_id: int,
    entry_id: int,
    body: bytes | None = None,
    lac: int | None = None,
    lac_time: int | None = None,
) -> bytes:
    status = _STATUS[code]
    told = [b"\x08", status, b"\x10", varint(ledger_id), b"\x18", varint(entry_id)]
    if body is not None:
        told += (b"\x22", varint(len(body)), body)
    if lac is not None:
        told += (b"\x28", varint(lac))
    if lac_time is not None:
        told += (b"\x30", varint(lac_time))
    size = sum(map(len, told))
    return joined((header, b"\x10", status, b"\xa2\x06", varint(size), *told))


def header_of(request: Request) -> bytes:
    """Header of the response to a request; the priority is not echoed."""
    header: Any = request.header
    told = b"".join((b"\x08\x03\x10", varint(header.operation), b"\x18", varint(header.txnId)))
    return FIRST_OCTET_OF_V3 + varint(len(told)) + told


def answer(request: Request, code: int, field: str = "", **values: object) -> bytes:
    """Build the response to any request with protobuf: its status, and the message ``field`` with ``values``."""
    response = Response(status=STATUS[code])  # type: ignore[arg-type]
    response.header.version = messages.VERSION_THREE
    response.header.operation = request.header.operation
    response.header.txnId = request.header.txnId
    if field:
        told = getattr(response, field)
        told.SetInParent()
        for name, value in values.items():
            if value is not None:
                setattr(told, name, value)
    return joined((response.SerializeToString(),))


def varint(number: int) -> bytes:
    if 0 <= number < 0x80:
        return _SHORT[number]
    out = bytearray()
    write_varint(out, number)
    return bytes(out)


def _number(octets: Sequence[int]) -> int:
    """Decode an unsigned varint."""
    number = octets[0] & 0x7F
    shift = 7
    for octet in octets[1:]:
        number |= (octet & 0x7F) << shift
        shift += 7
    return number


_SHORT = [bytes([number]) for number in range(0x80)]
_STATUS = {code: varint(status) for code, status in STATUS.items()}
assert _STATUS[OK] == b"\0"
