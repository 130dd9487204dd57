"""Version 2 of the bookie protocol: fixed layouts; requests other than BATCH_READ carry no id.

::

    0         1        2       4
    +---------+--------+-------+------------------------------------------------------------------
    | version | opcode | flags |
    +---------+--------+-------+------------------------------------------------------------------
      ADD          master key 20 | the stored entry, which begins with ledger id and entry id
      READ         ledger id | entry id | master key 20, for fencing
      BATCH_READ   ledger id | entry id | request id | int32 maximum entries | int64 maximum bytes | as READ
      AUTH         AuthMessage
    responses
      ADD, READ    int32 code | ledger id | entry id | for READ, the entry
      BATCH_READ   as READ, then request id | (int32 size, entry)*
      AUTH         AuthMessage

Flags are 1: fence, 2: recovery add, 4: high priority. The version of a request is echoed.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from bookstand.errors import MalformedError
from bookstand.storage.format.digest import MASTER_KEY_BYTES

OLDEST, NEWEST = 1, 2
ADD, READ, AUTH, BATCH_READ = 1, 2, 3, 7
FENCE, RECOVERY = 1, 2

HEADER = Struct(">BBH")
_IDS = Struct(">qq")
_BATCH = Struct(">qqqiq")
_ANSWER = Struct(">IBBHiqq")
_FRAME = Struct(">I")
_SIZE = Struct(">i")
ANSWER_BYTES = _ANSWER.size
KEY_START = HEADER.size
ENTRY_START = KEY_START + MASTER_KEY_BYTES
LEAST_ADD = ENTRY_START + _IDS.size
# Overhead of a batch (code, ids, request id) and of each entry (its size), as BookKeeper counts them.
BATCH_BYTES = 36
BATCH_ENTRY_BYTES = _SIZE.size


class MalformedRequestError(MalformedError):
    """A malformed request, after which the connection is closed, as by BookKeeper."""


class Request(NamedTuple):
    """A request other than ADD and AUTH. ``most_entries`` and ``most_bytes`` apply to BATCH_READ."""

    version: int
    opcode: int
    ledger_id: int
    entry_id: int
    fence: bool = False
    master_key: bytes = b""
    request_id: int = 0
    most_entries: int = 0
    most_bytes: int = 0


def read_header(frame: bytes) -> tuple[int, int, int]:
    """Return (version, opcode, flags)."""
    if len(frame) < HEADER.size:
        raise MalformedRequestError(f"{len(frame)} bytes are too few for a request")
    version, opcode, flags = HEADER.unpack_from(frame)
    return version, opcode, flags


def read_request(frame: bytes) -> Request:
    version, opcode, flags = read_header(frame)
    if opcode == READ:
        fixed = _IDS
    elif opcode == BATCH_READ:
        fixed = _BATCH
    else:
        raise MalformedRequestError(f"there is no operation {opcode}")
    end = HEADER.size + fixed.size
    fence = bool(flags & FENCE) and version >= NEWEST
    if len(frame) < end + (MASTER_KEY_BYTES if fence else 0):
        raise MalformedRequestError(f"{len(frame)} bytes are too few for operation {opcode}")
    ledger_id, entry_id, *batch = fixed.unpack_from(frame, HEADER.size)
    master_key = frame[end : end + MASTER_KEY_BYTES] if fence else b""
    return Request(version, opcode, ledger_id, entry_id, fence, master_key, *batch)


def ids_of(frame: bytes) -> tuple[int, int]:
    """Ledger id and entry id of an ADD."""
    if len(frame) < LEAST_ADD:
        raise MalformedRequestError(f"an add of {len(frame)} bytes is too short for its ids")
    ledger_id, entry_id = _IDS.unpack_from(frame, ENTRY_START)
    return ledger_id, entry_id


def read_long_add(head: bytes) -> tuple[int, int, int] | None:
    """Version, ledger id and entry id of an ADD that begins with ``head``; None if more bytes are needed."""
    if len(head) >= HEADER.size:
        version, opcode, _ = HEADER.unpack_from(head)
        if not OLDEST <= version <= NEWEST or opcode != ADD:
            raise MalformedRequestError(f"operation {opcode} of version {version} has no frames of that size")
    if len(head) < LEAST_ADD:
        return None
    return version, *ids_of(head)


def answer(version: int, opcode: int, code: int, ledger_id: int, entry_id: int, body: bytes = b"") -> bytes:
    size = ANSWER_BYTES - _FRAME.size + len(body)
    return _ANSWER.pack(size, version, opcode, 0, code, ledger_id, entry_id) + body


def answer_batch(request: Request, code: int, entries: list[bytes]) -> bytes:
    body = request.request_id.to_bytes(8, "big", signed=True)
    body += b"".join([_SIZE.pack(len(entry)) + entry for entry in entries])
    return answer(request.version, request.opcode, code, request.ledger_id, request.entry_id, body)


def answer_auth(message: bytes) -> bytes:
    return _FRAME.pack(HEADER.size + len(message)) + HEADER.pack(NEWEST, AUTH, 0) + message
