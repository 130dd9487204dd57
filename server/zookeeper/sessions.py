"""Client sessions and their expiration.

Session time is the server's clock; for the system clock it is the monotonic clock. A session never expires early: its
timeout counts from the last message of the client, and restarts when the server restarts.
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

# ZooKeeper's bounds of a session's timeout, in ticks.
TICKS_AT_LEAST = 2
TICKS_AT_MOST = 20


class Session:
    """A live session. ``connection``: None while disconnected; ``closing``: True while its end is being committed."""

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
    """All live sessions."""

    def __init__(self, clock: Clock, tick: int) -> None:
        self._clock = clock
        self._by_id: dict[int, Session] = {}
        self.limits = tick * TICKS_AT_LEAST, tick * TICKS_AT_MOST
        self._monotonic = isinstance(clock, SystemClock)

    def now(self) -> int:
        """Current session time in milliseconds."""
        return monotonic_ns() // 1_000_000 if self._monotonic else self._clock.now()

    def new(self, asked_timeout: int) -> persistent_records.Session:
        """Create the record of a new session, with its timeout within the bounds."""
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
        """Return the session if it is live and the password matches."""
        session = self._by_id.get(session_id)
        if session is None or session.closing or not secrets.compare_digest(session.password, password or b""):
            return None
        session.heard(self.now())
        return session

    def due(self) -> Iterator[Session]:
        """Expired sessions."""
        now = self.now()
        for session in self._by_id.values():
            if session.deadline <= now and not session.closing:
                yield session

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(self._by_id.values())
