"""Delivery of write outcomes: events to watchers, responses to clients."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from bookstand.errors import BookstandError, OutcomeUnknownError
from bookstand.server.zookeeper import persistent_records
from bookstand.server.zookeeper.batch import AdoptForeignZnodes, CloseSession, OpenSession, Outcome, code_of
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.protocol import Code, Op
from bookstand.server.zookeeper.protocol.records import Failed
from bookstand.server.zookeeper.protocol.session_handshake import attach
from bookstand.server.zookeeper.write_round import Pending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.server.zookeeper.connection import ZooKeeperConnection
    from bookstand.server.zookeeper.state import State


class Outcomes:
    """``more`` is called with a connection that now has a session and has waiting requests."""

    def __init__(self, state: State, more: Callable[[ZooKeeperConnection], None]) -> None:
        self._state = state
        self._more = more

    def finish(self, pending: Pending, outcome: Outcome) -> None:
        """Notify the watchers, then answer the client."""
        self._state.settle(outcome)
        connection = pending.connection
        failed = isinstance(outcome.result, Failed | BookstandError)
        if failed and isinstance(pending.write, CloseSession):
            session = self._state.sessions.get(pending.write.session_id)
            if session is not None:
                session.closing = False
        if isinstance(pending.write, AdoptForeignZnodes):
            if connection is not None and isinstance(outcome.result, Failed):
                (path,) = pending.write.paths
                connection.unadopted = path, Code(outcome.result.code)
        elif isinstance(outcome.result, OutcomeUnknownError) or (failed and pending.op is Op.CREATE_SESSION):
            # No response expresses an unknown outcome or a failed session; the client must reconnect.
            if connection is not None:
                connection.abort()
        elif not failed and isinstance(pending.write, OpenSession):
            self._opened(pending, *outcome.result)
        elif not failed and isinstance(pending.write, CloseSession):
            self._closed(pending, outcome)
        elif connection is not None:
            self._answer(connection, pending, outcome)

    def _answer(self, connection: ZooKeeperConnection, pending: Pending, outcome: Outcome) -> None:
        result, code = outcome.result, Code.OK
        if isinstance(result, BookstandError):
            code = code_of(result)
        elif isinstance(result, Failed):
            code = Code(result.code)
        if code is Code.OK:
            connection.answer(records.reply(pending.xid, outcome.zxid, pending.op, result))
        else:
            connection.answer(records.refusal(pending.xid, outcome.zxid, code))
        self._state.metrics.answered(pending.op, code, perf_counter() - pending.begun)

    def _opened(self, pending: Pending, session_id: int, session: persistent_records.Session) -> None:
        live = self._state.sessions.add(session_id, session)
        connection = pending.connection
        if connection is not None and not connection.closed:
            attach(self._state, connection, live)
            if connection.frames:
                self._more(connection)
            self._state.metrics.answered(Op.CREATE_SESSION, Code.OK, perf_counter() - pending.begun)

    def _closed(self, pending: Pending, outcome: Outcome) -> None:
        session = self._state.sessions.remove(outcome.result)
        if pending.connection is not None:
            self._answer(pending.connection, pending, outcome._replace(result=None))
        if session is not None and session.connection is not None:
            session.connection.end()
