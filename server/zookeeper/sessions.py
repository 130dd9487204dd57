"""Sessions: what is left of a client while its connection is gone, for as long as it said.

Time is the server's clock; where that is the machine's, it is the one that nobody sets. Nothing is ever expired early:
a session lives for its time-out from when it was last heard of, and after a restart of the server from then on.
"""

from __future__ import annotations

import secrets
from time import monotonic_ns

from bookstand.server.zookeeper import persistent_records
from bookstand.storage.clock import SystemClock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from bookstand.server.zookeeper.connection import ZooKeeperConnection
    from bookstand.storage.clock import Clock

# ZooKeeper gives a client no less than two ticks and no more than twenty.
TICKS_AT_LEAST = 2
TICKS_AT_MOST = 20


class Session:
    """One that lives. ``connection`` is None while its client is away; ``closing`` once its end is being written."""

    __slots__ = ("closing", "connection", "deadline", "id", "password", "timeout")

    def __init__(self, session_id: int, kept_session: persistent_records.Session, now: int) -> None:
        self.id = session_id
        self.timeout = kept_session.timeout
        self.password = kept_session.password
        self.connection: ZooKeeperConnection | None = None
        self.closing = False
        self.heard(now)

    def heard(self, now: int) -> None:
        self.deadline = now + self.timeout


class Sessions:
    """All that live."""

    def __init__(self, clock: Clock, tick: int) -> None:
        self._clock = clock
        self._by_id: dict[int, Session] = {}
        self.limits = tick * TICKS_AT_LEAST, tick * TICKS_AT_MOST
        self._monotonic = isinstance(clock, SystemClock)

    def now(self) -> int:
        """Milliseconds of the time by which sessions end."""
        return monotonic_ns() // 1_000_000 if self._monotonic else self._clock.now()

    def new(self, asked_timeout: int) -> persistent_records.Session:
        """What a client gets that asks for a session."""
        least, most = self.limits
        timeout = min(max(asked_timeout, least), most)
        return persistent_records.Session(timeout, secrets.token_bytes(persistent_records.PASSWORD_BYTES))

    def add(self, session_id: int, session: persistent_records.Session) -> Session:
        live = self._by_id[session_id] = Session(session_id, session, self.now())
        return live

    def remove(self, session_id: int) -> Session | None:
        return self._by_id.pop(session_id, None)

    def get(self, session_id: int) -> Session | None:
        return self._by_id.get(session_id)

    def resume(self, session_id: int, password: bytes | None) -> Session | None:
        """The session, if it lives and the password is its own."""
        session = self._by_id.get(session_id)
        if session is None or session.closing or not secrets.compare_digest(session.password, password or b""):
            return None
        session.heard(self.now())
        return session

    def due(self) -> Iterator[Session]:
        """Those whose time is over."""
        now = self.now()
        for session in self._by_id.values():
            if session.deadline <= now and not session.closing:
                yield session

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())
