"""One connection: frames into requests that wait for their turn, answers into frames.

A client that sends faster than it is answered is not read from, one that does not read its answers is not answered, and
one that lets too many events pile up is dropped, as is one whose frames cannot be.
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

# What waits for its turn, and what waits for the client to read it.
HELD_FRAMES = 1_000
HELD_BYTES = 4 << 20
UNREAD_BYTES = 32 << 20
# The buffers of all connections: partial frames, waiting requests, unread answers.
HELD_IN_ALL_BYTES = 256 << 20


class ZooKeeperConnection(FramedConnection):
    """``greeted``: its first frame was taken, so that a session is being opened for it, or is its own."""

    def __init__(self, state: State, rounds: RoundScheduler, scratch: memoryview) -> None:
        super().__init__(scratch, MAX_FRAME)
        self._state = state
        self._rounds = rounds
        self._silent = True
        self.frames: deque[bytes] = deque()
        self.session: Session | None = None
        self.greeted = False
        # Up to where a sync that waits for it wants to see what others have written.
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

    # -- what arrives ------------------------------------------------------------------------------------------------

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

    # -- what a round does -------------------------------------------------------------------------------------------

    @property
    def may_be_served(self) -> bool:
        """It has a request, and reads its answers."""
        return bool(self.frames) and self._writable and not self.closed

    def served(self, frame: bytes) -> None:
        """Its first frame is on its way to its answer."""
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
        """An event, to a watcher."""
        if not self.closed:
            self.answer(records.event(zxid, kind, SYNC_CONNECTED, path))

    def flush(self) -> None:
        super().flush()
        if not self.closed and self.transport.get_write_buffer_size() > UNREAD_BYTES:
            self._state.metrics.limits[metrics.UNREAD] += 1
            self.abort()

    def end(self) -> None:
        """Close it, once what was answered is sent."""
        self.flush()
        self.refuse()

    def _drop(self) -> None:
        self.frames.clear()
        self._request_bytes = 0
        super()._drop()

    def reject(self, head: bytes) -> bool | None:
        """ZooKeeper has no answer to a frame over the limit: it closes the connection."""
        self._state.metrics.limits[metrics.FRAME] += 1
        logger().warning("a frame of client %s is longer than %d bytes: it is disconnected", self.peer, MAX_FRAME)
        return False

    def hold(self, before: Buffers, now: Buffers) -> None:
        """Close a connection that adds to buffers over the limit of the server."""
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
