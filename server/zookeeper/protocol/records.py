"""Layouts of requests, responses and events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bookstand.server.zookeeper.protocol.jute import (
    BOOL,
    BUFFER,
    INT,
    LONG,
    STRING,
    Codec,
    JuteError,
    packed_record,
    record,
    vector,
)
from bookstand.server.zookeeper.protocol.protocol import XID_EVENT, Code, Op


class ConnectRequest(NamedTuple):
    """First frame of a connection. An optional boolean may follow: the client accepts a read-only server."""

    protocol: int
    last_zxid_seen: int
    timeout: int
    session_id: int
    password: bytes | None


class ConnectResponse(NamedTuple):
    """Response to a ConnectRequest; a timeout of 0 means that the session has expired."""

    protocol: int
    timeout: int
    session_id: int
    password: bytes | None
    read_only: bool


class RequestHeader(NamedTuple):
    xid: int
    type: int


class ReplyHeader(NamedTuple):
    xid: int
    zxid: int
    error: int


class Acl(NamedTuple):
    permissions: int
    scheme: str | None
    id: str | None


class Create(NamedTuple):
    path: str | None
    data: bytes | None
    acl: Sequence[Acl] | None
    mode: int


class CreateTtl(NamedTuple):
    path: str | None
    data: bytes | None
    acl: Sequence[Acl] | None
    mode: int
    ttl: int


class Delete(NamedTuple):
    path: str | None
    version: int


class SetData(NamedTuple):
    path: str | None
    data: bytes | None
    version: int


class SetAcl(NamedTuple):
    path: str | None
    acl: Sequence[Acl] | None
    version: int


class Check(NamedTuple):
    path: str | None
    version: int


class PathAndWatch(NamedTuple):
    path: str | None
    watch: bool


class SetWatches(NamedTuple):
    """Watches that a reconnecting client restores, and the last zxid that it has seen."""

    relative_zxid: int
    data: Sequence[str | None] | None
    exist: Sequence[str | None] | None
    children: Sequence[str | None] | None


class SetWatches2(NamedTuple):
    """SetWatches with persistent and recursive watches."""

    relative_zxid: int
    data: Sequence[str | None] | None
    exist: Sequence[str | None] | None
    children: Sequence[str | None] | None
    persistent: Sequence[str | None] | None
    recursive: Sequence[str | None] | None


class PathAndNumber(NamedTuple):
    """A path with a watch mode or watcher type."""

    path: str | None
    number: int


class Auth(NamedTuple):
    type: int
    scheme: str | None
    auth: bytes | None


class Stat(NamedTuple):
    """Metadata of a znode."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    children: int
    pzxid: int


class Event(NamedTuple):
    type: int
    state: int
    path: str | None


class MultiHeader(NamedTuple):
    """Header of each operation and each result of a multi. The last one has ``done`` set and no body."""

    type: int
    done: bool
    error: int


CONNECT_REQUEST = record(ConnectRequest, INT, LONG, INT, LONG, BUFFER)
CONNECT_RESPONSE = record(ConnectResponse, INT, INT, LONG, BUFFER, BOOL)
REQUEST_HEADER = packed_record(RequestHeader, ">ii")
HEADER_BYTES = 8
REPLY_HEADER = packed_record(ReplyHeader, ">iqi")
MULTI_HEADER = packed_record(MultiHeader, ">i?i")
ACLS = vector(record(Acl, INT, STRING, STRING))
STRINGS = vector(STRING)
STAT = packed_record(Stat, ">qqqqiiiqiiq")
EVENT = record(Event, INT, INT, STRING)

_CREATE = record(Create, STRING, BUFFER, ACLS, INT)
_PATH_AND_WATCH = record(PathAndWatch, STRING, BOOL)
_PATH_AND_NUMBER = record(PathAndNumber, STRING, INT)

REQUESTS: dict[int, Codec[Any]] = {
    Op.CREATE: _CREATE,
    Op.CREATE2: _CREATE,
    Op.CREATE_CONTAINER: _CREATE,
    Op.CREATE_TTL: record(CreateTtl, STRING, BUFFER, ACLS, INT, LONG),
    Op.DELETE: record(Delete, STRING, INT),
    Op.EXISTS: _PATH_AND_WATCH,
    Op.GET_DATA: _PATH_AND_WATCH,
    Op.SET_DATA: record(SetData, STRING, BUFFER, INT),
    Op.GET_ACL: STRING,
    Op.SET_ACL: record(SetAcl, STRING, ACLS, INT),
    Op.GET_CHILDREN: _PATH_AND_WATCH,
    Op.SYNC: STRING,
    Op.GET_CHILDREN2: _PATH_AND_WATCH,
    Op.CHECK: record(Check, STRING, INT),
    Op.CHECK_WATCHES: _PATH_AND_NUMBER,
    Op.REMOVE_WATCHES: _PATH_AND_NUMBER,
    Op.AUTH: record(Auth, INT, STRING, BUFFER),
    Op.SET_WATCHES: record(SetWatches, LONG, STRINGS, STRINGS, STRINGS),
    Op.GET_EPHEMERALS: STRING,
    Op.GET_ALL_CHILDREN_NUMBER: STRING,
    Op.SET_WATCHES2: record(SetWatches2, LONG, STRINGS, STRINGS, STRINGS, STRINGS, STRINGS),
    Op.ADD_WATCH: _PATH_AND_NUMBER,
}
"""Bodies of requests. A multi is a sequence of operations, see :func:`read_multi`."""

IN_MULTI = frozenset({Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER, Op.CREATE_TTL, Op.DELETE, Op.SET_DATA, Op.CHECK})
IN_MULTI_READ = frozenset({Op.GET_DATA, Op.GET_CHILDREN})


RESULTS: dict[int, Codec[Any]] = {
    Op.CREATE: STRING,
    Op.CREATE2: record(lambda *parts: parts, STRING, STAT),
    Op.EXISTS: STAT,
    Op.GET_DATA: record(lambda *parts: parts, BUFFER, STAT),
    Op.SET_DATA: STAT,
    Op.GET_ACL: record(lambda *parts: parts, ACLS, STAT),
    Op.SET_ACL: STAT,
    Op.GET_CHILDREN: STRINGS,
    Op.SYNC: STRING,
    Op.GET_CHILDREN2: record(lambda *parts: parts, STRINGS, STAT),
    Op.GET_EPHEMERALS: STRINGS,
    Op.GET_ALL_CHILDREN_NUMBER: INT,
    Op.ADD_WATCH: INT,
    Op.WHO_AM_I: vector(record(lambda *parts: parts, STRING, STRING)),
}
"""Bodies of responses, by operation."""

WITH_STAT = {Op.CREATE_CONTAINER: Op.CREATE2, Op.CREATE_TTL: Op.CREATE2}
"""Operations that share the response layout of another one."""


class Failed(NamedTuple):
    """Result of a failed operation of a multi."""

    code: int


_LAST = MultiHeader(-1, True, -1)


def read_multi(data: bytes, offset: int, allowed: frozenset[Op]) -> list[tuple[Op, Any]]:
    """Decode the operations of a multi or multiRead whose body begins at ``offset``."""
    operations: list[tuple[Op, Any]] = []
    while True:
        header, offset = MULTI_HEADER.read(data, offset)
        if header.done:
            return operations
        if header.type not in allowed:
            raise JuteError(f"operation {header.type} cannot be part of a multi")
        request, offset = REQUESTS[header.type].read(data, offset)
        operations.append((Op(header.type), request))


def write_multi(results: Sequence[tuple[Op, Any]]) -> bytes:
    """Encode the response to a multi or multiRead; the result of a failed operation is a :class:`Failed`."""
    out = bytearray()
    for op, result in results:
        if isinstance(result, Failed):
            MULTI_HEADER.write(out, MultiHeader(Op.ERROR, False, result.code))
            INT.write(out, result.code)
            continue
        kind = WITH_STAT.get(op, op)
        MULTI_HEADER.write(out, MultiHeader(kind, False, Code.OK))
        if kind in RESULTS:
            RESULTS[kind].write(out, result)
    MULTI_HEADER.write(out, _LAST)
    return bytes(out)


def reply(xid: int, zxid: int, op: Op, result: Any) -> bytes:
    """Body of the frame for a successful response."""
    out = bytearray(REPLY_HEADER.encode(ReplyHeader(xid, zxid, Code.OK)))
    if op in (Op.MULTI, Op.MULTI_READ):
        out += write_multi(result)
    else:
        codec = RESULTS.get(WITH_STAT.get(op, op))
        if codec is not None:
            codec.write(out, result)
    return bytes(out)


def refusal(xid: int, zxid: int, code: int) -> bytes:
    """Body of the frame for an error response."""
    return REPLY_HEADER.encode(ReplyHeader(xid, zxid, code))


def event(zxid: int, kind: int, state: int, path: str) -> bytes:
    """Body of the frame for a watch event."""
    return REPLY_HEADER.encode(ReplyHeader(XID_EVENT, zxid, Code.OK)) + EVENT.encode(Event(kind, state, path))
