"""One client connection: splits bytes into requests that wait for a round, and frames the responses.

Backpressure: a client that sends faster than it is answered is not read from, and requests of a client that does not
read its responses are not served. A connection is closed if too many events are unread, or if a frame is invalid.
"""

from __future__ import annotations

import asyncio
from collections import deque

from bookstand.server.framing import LENGTH_BYTES, Buffers, FramedConnection, FrameRun, joined
from bookstand.server.zookeeper import metrics
from bookstand.server.zookeeper.four_letter_words import WORDS
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.protocol import MAX_FRAME, SYNC_CONNECTED, Code, EventType
from bookstand.storage.logger import logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.server.zookeeper.protocol.acls import Identity
    from bookstand.server.zookeeper.request_rounds import RoundScheduler
    from bookstand.server.zookeeper.sessions import Session
    from bookstand.server.zookeeper.state import State

# Limits of one connection: waiting requests, their bytes, unread responses.
HELD_FRAMES = 1_000
HELD_BYTES = 4 << 20
UNREAD_BYTES = 32 << 20
# Limit of the buffers of all connections: partial frames, waiting requests, unread responses.
HELD_IN_ALL_BYTES = 256 << 20


class ZooKeeperConnection(FramedConnection):
    """``greeted``: the first frame was processed, so the connection has a session or is about to get one."""

    def __init__(self, state: State, rounds: RoundScheduler, scratch: memoryview) -> None:
        super().__init__(scratch, MAX_FRAME)
        self._state = state
        self._rounds = rounds
        self._silent = True
        self.frames: deque[bytes] = deque()
        self.session: Session | None = None
        self.greeted = False
        # Total of the change feed that a waiting sync request must see adopted.
        self.syncing: int | None = None
        # The znode that its next request needs and that cannot become part of the tree, with the reason.
        self.unadopted: tuple[str, Code] | None = None
        self.identities: list[Identity] = []
        self.peer = ""
        self.opened_at = state.sessions.now()
        self.requests = self.answers = 0

    @property
    def session_id(self) -> int:
        return 0 if self.session is None else self.session.id

    # -- receiving ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.peer = f"{peer[0]}:{peer[1]}"
            self.identities.append(("ip", peer[0]))
        self._state.connections[self] = None
        if self._rounds.stopped:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._state.connections.pop(self, None)
        self._state.watches.forget(self)
        self._rounds.gone(self)
        session, self.session = self.session, None
        if session is not None and session.connection is self:
            session.connection = None

    def buffer_updated(self, nbytes: int) -> None:
        if self._silent:
            begin = (self._partial + self._scratch[: min(nbytes, LENGTH_BYTES)])[:LENGTH_BYTES]
            self._silent = len(begin) < LENGTH_BYTES
            if (word := WORDS.get(bytes(begin))) is not None:
                self.send(word(self._state).encode())
                self.end()
                return
        if self.session is not None:
            self.session.heard(self._state.sessions.now())
        super().buffer_updated(nbytes)

    def take(self, run: FrameRun) -> int:
        for taken in range(run.frames):
            if not self.has_room():
                return taken
            self.frames.append(run.frame(taken))
            self._request_bytes += run.size
            self.requests += 1
        return run.frames

    def has_room(self) -> bool:
        return len(self.frames) < HELD_FRAMES and self._request_bytes < HELD_BYTES

    def worked(self) -> None:
        if self.frames:
            self._rounds.ready(self)

    # -- serving -----------------------------------------------------------------------------------------------------

    @property
    def may_be_served(self) -> bool:
        """True if the client has sent a request and reads its responses."""
        return bool(self.frames) and self._writable and not self.closed

    def served(self, frame: bytes) -> None:
        """Remove the first frame, which a round has accepted."""
        if self.frames:
            self.frames.popleft()
            self._request_bytes -= len(frame)
        if not self.frames and not self._reading:
            self.proceed()

    def answer(self, body: bytes) -> None:
        self.answers += 1
        self.send(joined([body]))
        self._state.unflushed[self] = None

    def tell(self, zxid: int, kind: EventType, path: str) -> None:
        """Send an event to a watcher."""
        if not self.closed:
            self.answer(records.event(zxid, kind, SYNC_CONNECTED, path))

    def flush(self) -> None:
        super().flush()
        if not self.closed and self.transport.get_write_buffer_size() > UNREAD_BYTES:
            self._state.metrics.limits[metrics.UNREAD] += 1
            self.abort()

    def end(self) -> None:
        """Close the connection after sending the buffered responses."""
        self.flush()
        self.refuse()

    def _drop(self) -> None:
        self.frames.clear()
        self._request_bytes = 0
        super()._drop()

    def reject(self, head: bytes) -> bool | None:
        """Close the connection on a frame over the limit, as ZooKeeper does."""
        self._state.metrics.limits[metrics.FRAME] += 1
        logger().warning("a frame of client %s is longer than %d bytes: it is disconnected", self.peer, MAX_FRAME)
        return False

    def hold(self, before: Buffers, now: Buffers) -> None:
        """Close a connection whose buffers grow while the server is over its limit."""
        state = self._state
        state.held.change(before, now)
        if sum(now) > sum(before) and state.held.total > HELD_IN_ALL_BYTES and not self.closed:
            state.metrics.limits[metrics.ALL] += 1
            self.abort()

    def _hold_or_go_on(self) -> None:
        was_reading = self._reading
        super()._hold_or_go_on()
        if was_reading and not self._reading and not self.has_room():
            self._state.metrics.limits[metrics.REQUESTS_OF_ONE] += 1
