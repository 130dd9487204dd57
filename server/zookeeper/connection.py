"""One connection: bytes into requests, answers into bytes, and never more of either in memory than fits.

A client that sends faster than it is answered is not read from, one that does not read its answers is not answered, and
one that lets too many events pile up is dropped, as is one whose frames cannot be.
"""

from __future__ import annotations

import asyncio
from collections import deque

from bookstand.server.zookeeper import records
from bookstand.server.zookeeper.protocol import MAX_FRAME, SYNC_CONNECTED, EventType
from bookstand.server.zookeeper.words import WORD_BYTES, WORDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.server.zookeeper.acls import Identity
    from bookstand.server.zookeeper.server import ZooKeeperServer
    from bookstand.server.zookeeper.sessions import Session

_LENGTH_BYTES = 4
# What is held for a connection: frames that wait for their turn, answers that wait for the client.
HELD_FRAMES = 1_000
HELD_BYTES = 4 << 20
UNREAD_BYTES = 32 << 20


class Connection(asyncio.Protocol):
    """``frames`` wait for their turn; the first of a connection asks for its session."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answers: list[bytes] = []
        self._reading = True
        self._ending = False
        self.frames: deque[bytes] = deque()
        self.held = 0
        self.congested = False
        self.session: Session | None = None
        # Its first frame was taken: a session is being opened for it, or is its own.
        self.greeted = False
        self.proved: list[Identity] = []
        self.peer = ""
        self.opened_at = server.sessions.now()
        self.last_xid = 0
        self.received_count = self.sent_count = 0

    # -- what asyncio calls ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        if isinstance(peer, tuple):
            self.proved.append(("ip", peer[0]))
        self._server.connected(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._ending = True
        self.frames.clear()
        self._received.clear()
        self._answers.clear()
        self._server.disconnected(self)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        self._server.ready(self)

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        received = self._received
        received += data
        if not self.greeted and not self.frames and bytes(received[:WORD_BYTES]) in WORDS:
            self._answer_word(bytes(received[:WORD_BYTES]))
            return
        start = 0
        while len(received) - start >= _LENGTH_BYTES:
            size = int.from_bytes(received[start : start + _LENGTH_BYTES], "big", signed=True)
            if not 0 <= size <= MAX_FRAME:
                self.drop()
                return
            end = start + _LENGTH_BYTES + size
            if end > len(received):
                break
            self.frames.append(bytes(received[start + _LENGTH_BYTES : end]))
            self.held += size
            self.received_count += 1
            start = end
        del received[:start]
        if self.session is not None:
            self.session.heard(self._server.sessions.now())
        if self.frames:
            self._server.ready(self)
        if self._reading and (len(self.frames) > HELD_FRAMES or self.held > HELD_BYTES):
            self._reading = False
            assert self._transport is not None
            self._transport.pause_reading()

    # -- what the server calls ---------------------------------------------------------------------------------------

    def took(self, frame: bytes) -> None:
        """A frame is on its way to its answer."""
        self.held -= len(frame)
        if not self._reading and len(self.frames) <= HELD_FRAMES // 2 and self.held <= HELD_BYTES // 2:
            self._reading = True
            if self._transport is not None:
                self._transport.resume_reading()

    def send(self, body: bytes) -> None:
        """Queue a frame; :meth:`flush` sends what is queued."""
        if not self._ending:
            self._answers += (len(body).to_bytes(_LENGTH_BYTES, "big"), body)
            self.sent_count += 1
            self._server.unflushed(self)

    def tell(self, zxid: int, kind: EventType, path: str) -> None:
        self.send(records.event(zxid, kind, SYNC_CONNECTED, path))

    def flush(self) -> None:
        transport = self._transport
        if transport is None or not self._answers:
            return
        transport.write(b"".join(self._answers))
        self._answers.clear()
        if transport.get_write_buffer_size() > UNREAD_BYTES:
            self.drop()

    def end(self) -> None:
        """Send what is queued, then close."""
        self.flush()
        self._ending = True
        self.frames.clear()
        if self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """Close now."""
        self._ending = True
        self.frames.clear()
        if self._transport is not None:
            self._transport.abort()

    @property
    def ending(self) -> bool:
        return self._ending

    @property
    def session_id(self) -> int:
        return 0 if self.session is None else self.session.id

    @property
    def identities(self) -> list[Identity]:
        return self.proved

    def _answer_word(self, word: bytes) -> None:
        assert self._transport is not None
        self._transport.write(WORDS[word](self._server).encode())
        self.end()
