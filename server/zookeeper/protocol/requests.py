"""Decoding of requests, and responses to requests that need no commit."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from bookstand.errors import BookstandError
from bookstand.server.zookeeper import metrics
from bookstand.server.zookeeper.batch import CloseSession, Request, Write, code_of
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.acls import digest_identity
from bookstand.server.zookeeper.protocol.jute import JuteError
from bookstand.server.zookeeper.protocol.protocol import Code, Op, ZooKeeperError
from bookstand.server.zookeeper.read_operations import ANSWER_BYTES, READS, TooLargeError
from bookstand.server.zookeeper.watches import TooManyWatchesError
from bookstand.server.zookeeper.write_operations import WRITES, ClientIdentity
from bookstand.storage.logger import logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.server.zookeeper.connection import ZooKeeperConnection
    from bookstand.server.zookeeper.state import State

# A check is valid only as part of a multi.
WRITING = frozenset({*WRITES, Op.MULTI, Op.CLOSE_SESSION}) - {Op.CHECK}
_READING = frozenset({*READS, Op.PING, Op.AUTH})
_SETTING_WATCHES = frozenset({Op.SET_WATCHES, Op.SET_WATCHES2})
MOST_IDENTITIES = 100
MOST_IDENTITY_BYTES = 16 << 10
_MULTIS = {Op.MULTI: records.IN_MULTI, Op.MULTI_READ: records.IN_MULTI_READ}


class TooManyIdentitiesError(ZooKeeperError):
    """A connection has authenticated more identities than allowed."""


def op_of(number: int) -> Op | None:
    """Operation of a request type; None if clients may not request it."""
    try:
        op = Op(number)
    except ValueError:
        return None
    return op if op in WRITING or op in _READING else None


def body_of(op: Op, frame: bytes) -> Any:
    if op in _MULTIS:
        return records.read_multi(frame, records.HEADER_BYTES, _MULTIS[op])
    codec = records.REQUESTS.get(op)
    return None if codec is None else codec.decode(frame, records.HEADER_BYTES)


def write_of(connection: ZooKeeperConnection, op: Op, frame: bytes) -> Write:
    if op is Op.CLOSE_SESSION:
        return CloseSession(connection.session_id)
    return Request(op, body_of(op, frame), ClientIdentity(connection.session_id, tuple(connection.identities)))


def answer_read(state: State, connection: ZooKeeperConnection, op: Op, xid: int, frame: bytes) -> None:
    """Answer a request that changes at most watches and the connection's identities."""
    begun = perf_counter()
    result: Any = None
    try:
        if op is Op.AUTH:
            _prove(connection, frame)
        elif op is not Op.PING:
            result = READS[op](state.tree, connection, body_of(op, frame))
    except JuteError:
        refuse(state, connection, op, xid, Code.MARSHALLING_ERROR, begun)
    except ZooKeeperError as error:
        _count_limit(state, error)
        refuse(state, connection, op, xid, error.code, begun)
        if op is Op.AUTH or (op in _SETTING_WATCHES and isinstance(error, TooManyWatchesError)):
            # Clients ignore the response to setWatches, so an error must close the connection.
            connection.end()
    except BookstandError as error:
        state.storage.check_usable()
        logger().error("a read through ZooKeeper's protocol failed: %s", error)
        refuse(state, connection, op, xid, code_of(error), begun)
    else:
        answer = records.reply(xid, state.tree.zxid, op, result)
        if len(answer) > ANSWER_BYTES:
            too_large = TooLargeError(len(answer))
            _count_limit(state, too_large)
            refuse(state, connection, op, xid, too_large.code, begun)
            return
        connection.answer(answer)
        state.metrics.answered(op, Code.OK, perf_counter() - begun)


def _count_limit(state: State, error: ZooKeeperError) -> None:
    if isinstance(error, TooLargeError):
        state.metrics.limits[metrics.ANSWER] += 1
    elif isinstance(error, TooManyIdentitiesError):
        state.metrics.limits[metrics.IDENTITIES] += 1


def refuse(state: State, connection: ZooKeeperConnection, op: Op, xid: int, code: Code, begun: float) -> None:
    connection.answer(records.refusal(xid, state.tree.zxid, code))
    state.metrics.answered(op, code, perf_counter() - begun)


def _prove(connection: ZooKeeperConnection, frame: bytes) -> None:
    request = body_of(Op.AUTH, frame)
    if request.scheme != "digest":
        raise ZooKeeperError(Code.AUTH_FAILED, f"authentication scheme must be digest, not {request.scheme!r}")
    identity = digest_identity(request.auth or b"")
    if identity not in connection.identities:
        size = sum(len(name) for _, name in (*connection.identities, identity))
        if len(connection.identities) >= MOST_IDENTITIES or size > MOST_IDENTITY_BYTES:
            raise TooManyIdentitiesError(
                Code.AUTH_FAILED,
                f"a connection has at most {MOST_IDENTITIES} identities of {MOST_IDENTITY_BYTES} characters in all",
            )
        connection.identities.append(identity)
