"""First frame of a connection, which opens or resumes a session."""

from __future__ import annotations

from bookstand.server.zookeeper import persistent_records
from bookstand.server.zookeeper.batch import OpenSession
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.jute import BOOL, JuteError
from bookstand.server.zookeeper.protocol.protocol import Op
from bookstand.server.zookeeper.write_round import Pending, WriteRound
from bookstand.storage.logger import logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.server.zookeeper.connection import ZooKeeperConnection
    from bookstand.server.zookeeper.sessions import Session
    from bookstand.server.zookeeper.state import State

_REFUSED = records.ConnectResponse(0, 0, 0, bytes(persistent_records.PASSWORD_BYTES), False)


def greet(state: State, connection: ZooKeeperConnection, frame: bytes, batch: WriteRound, begun: float) -> bool:
    """Process the first frame of a connection. Return False for a later frame, which must wait for the session."""
    if connection.greeted:
        return False
    try:
        request, end = records.CONNECT_REQUEST.read(frame, 0)
        if end < len(frame):
            BOOL.read(frame, end)
    except JuteError:
        connection.abort()
        return True
    if request.last_zxid_seen > state.tree.zxid:
        # The client has seen a later state: that of another store, or of this one before it was restored.
        logger().warning("a client has seen zxid %#x, this store %#x", request.last_zxid_seen, state.tree.zxid)
        connection.abort()
        return True
    connection.greeted = True
    if not request.session_id:
        session = state.sessions.new(request.timeout)
        batch.add(Pending(OpenSession(session), Op.CREATE_SESSION, connection, 0, begun))
        return True
    resumed = state.sessions.resume(request.session_id, request.password)
    if resumed is None:
        connection.answer(records.CONNECT_RESPONSE.encode(_REFUSED))
        connection.end()
    else:
        attach(state, connection, resumed)
    return True


def attach(state: State, connection: ZooKeeperConnection, session: Session) -> None:
    """Bind a session to a connection, and close the connection that it was bound to before."""
    if session.connection is not None:
        session.connection.abort()
    session.connection = connection
    connection.session = session
    session.heard(state.sessions.now())
    answer = records.ConnectResponse(0, session.timeout, session.id, session.password, False)
    connection.answer(records.CONNECT_RESPONSE.encode(answer))
