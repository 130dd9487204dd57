"""ZooKeeper server over a store: listening socket and periodic tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from bookstand.errors import BookstandError
from bookstand.ledger.client import COLLECTION_GRACE_MILLIS, MAX_COLLECTED_LEDGERS
from bookstand.server.framing import SCRATCH_BYTES
from bookstand.server.zookeeper.batch import CloseSession, InitializeTree, RemoveExpired
from bookstand.server.zookeeper.connection import ZooKeeperConnection
from bookstand.server.zookeeper.read_operations import ForeignZnodeError
from bookstand.server.zookeeper.request_rounds import RoundScheduler
from bookstand.server.zookeeper.state import RecoveredState, State
from bookstand.server.zookeeper.write_operations import is_unused
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.logger import logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.storage.clock import Clock
    from bookstand.storage.metrics import Sample
    from bookstand.storage.process.process_markers import ExclusiveRole
    from bookstand.storage.storage import Storage

DEFAULT_PORT = 2181
TICK = 2_000
# Interval (s) of checks for expired sessions and foreign writes.
LOOK_INTERVAL = 0.1
# Interval (ms) of sweep().
SWEEP_INTERVAL = 60_000
# Number of those znodes that are checked in one turn of the loop.
SWEPT_AT_ONCE = 500
# Time (ms) after which a connection that has not requested a session is closed.
GREETING_TIME = 10_000
# Polling interval (s) of notified().
NOTIFIED_INTERVAL = 0.002
_BACKLOG = 1024
LAST_ANSWERS_SECONDS = 1.0
"""Time that clients have to read the last responses when a server is stopped."""


class ZooKeeperServer:
    """Server of one store; only one at a time can serve it. :meth:`stop` leaves the store open. Sessions survive a
    restart of the server: a client that reconnects in time resumes its session with its ephemerals.

    Port 0 selects any free port, see :attr:`address`. ``tick`` (ms): unit of the bounds of session timeouts. All
    methods must be called in the thread of the event loop.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        tick: int = TICK,
        sweep_interval: int = SWEEP_INTERVAL,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._host = host
        self._port = port
        self._sweep_interval = sweep_interval
        self._state = State(storage, clock, tick)
        self._rounds: RoundScheduler | None = None
        self._role: ExclusiveRole | None = None
        self._listener: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next_sweep = 0
        # Paths that are still to be looked at in this sweep.
        self._unswept: list[str] = []
        self._collecting: asyncio.Future[None] | None = None
        self._stopping = False
        self.failure: BaseException | None = None
        """The error that ended the server."""

    @property
    def address(self) -> tuple[str, int]:
        return self._host, self._state.port

    # -- lifecycle ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._stopping = False
        self._role = await asyncio.to_thread(self._storage.acquire_role, "ZooKeeper")
        try:
            self._state.restore(await asyncio.to_thread(self._begin))
            await self._listen(loop)
        except BaseException:
            await asyncio.to_thread(self._storage.release_role, self._role)
            raise

    async def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        rounds = self._rounds = RoundScheduler(self._state, loop, self._fail)
        scratch = memoryview(bytearray(SCRATCH_BYTES))
        connect = partial(ZooKeeperConnection, self._state, rounds, scratch)
        self._listener = await loop.create_server(connect, self._host, self._port, backlog=_BACKLOG)
        self._state.port = self._listener.sockets[0].getsockname()[1]
        self._storage.clients.add(self)
        self._next_sweep = self._state.sessions.now() + self._sweep_interval
        self._pass_time(rounds)

    def _begin(self) -> RecoveredState:
        # Session ids as in ZooKeeper: the server's number in the top byte, then the start time, then a counter.
        first_session = (self._clock.now() << 24 & (1 << 64) - 1) >> 8 | 1 << 56
        self._storage.apply(WriteBatch(InitializeTree(first_session)))
        return self._state.restored()

    async def stop(self) -> None:
        """Answer the requests in progress, then close all connections."""
        self._storage.clients.discard(self)
        self._stopping = True
        self._stop_listening()
        if self._collecting is not None:
            await asyncio.wait([self._collecting])
        if self._rounds is not None:
            await self._rounds.stop()
        for connection in list(self._state.connections):
            connection.end()
        if self._listener is not None:
            await self._listener.wait_closed()
        loop = asyncio.get_running_loop()
        until = loop.time() + LAST_ANSWERS_SECONDS
        while self._state.connections:
            # asyncio reports lost connections in later turns of the loop.
            await asyncio.sleep(0.001)
            if loop.time() > until:
                for connection in list(self._state.connections):
                    connection.abort()
        await asyncio.to_thread(self._storage.release_role, self._role)

    def _stop_listening(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.close()

    def _fail(self, error: BaseException) -> None:
        """Stop the server, because the store has become unusable."""
        logger().error("the ZooKeeper server at port %d stops: %s", self._state.port, error)
        self.failure = error
        self._stop_listening()
        if self._rounds is not None:
            self._rounds.stopped = True
        for connection in list(self._state.connections):
            connection.abort()

    def storage_crashed(self, reason: BookstandError) -> None:
        """Stop the server of a crashed store, for tests. Thread-safe."""
        self._loop.call_soon_threadsafe(self._fail, reason)

    async def notified(self) -> None:
        """Wait until watchers have been notified of all earlier writes to the store. Raise the error that ended the
        server, if any."""
        rounds, others = self._rounds, self._state.others
        if rounds is None:
            return
        total = others.total
        while others.adopted < total and not self._stopping and self.failure is None:
            rounds.look_soon()
            await asyncio.sleep(NOTIFIED_INTERVAL)
        if self.failure is not None:
            raise self.failure

    # -- periodic tasks ----------------------------------------------------------------------------------------------

    def _pass_time(self, rounds: RoundScheduler) -> None:
        self._timer = self._loop.call_later(LOOK_INTERVAL, self._pass_time, rounds)
        if rounds.busy:
            # An unprocessed message may extend a session. Commits may follow each other without a pause.
            rounds.when_idle = partial(self._time_has_passed, rounds)
        else:
            self._time_has_passed(rounds)

    def _time_has_passed(self, rounds: RoundScheduler) -> None:
        """Expire sessions, between two commits."""
        state = self._state
        for session in state.sessions.due():
            state.metrics.expired += 1
            self._close(session.id)
        now = state.sessions.now()
        for connection in list(state.connections):
            if not connection.greeted and now - connection.opened_at > GREETING_TIME:
                connection.abort()
        if now >= self._next_sweep:
            self._next_sweep = now + self._sweep_interval
            self.sweep()
            if self._collecting is None:
                self._collecting = self._loop.run_in_executor(None, self._collect)
                self._collecting.add_done_callback(self._collected)
        rounds.schedule()

    def sweep(self) -> None:
        """Remove containers that have lost all their children, and expired znodes. One turn of the loop handles
        ``SWEPT_AT_ONCE`` of them, so that clients are served in between."""
        if not self._unswept:
            self._unswept = list(self._state.mortal)
            self._sweep_some()

    def _sweep_some(self) -> None:
        if self._stopping or self.failure is not None:
            self._unswept.clear()
            return
        some = sorted(self._unswept[-SWEPT_AT_ONCE:])
        del self._unswept[-SWEPT_AT_ONCE:]
        if self._unswept:
            self._loop.call_soon(self._sweep_some)
        state = self._state
        for path in some:
            try:
                found = state.tree.find(path)
            except ForeignZnodeError:
                continue
            except BookstandError as error:
                logger().error("whether a znode has to go cannot be seen: %s", error)
                continue
            if found is None or not found.znode.is_mortal:
                state.mortal.discard(path)
            elif is_unused(found.znode, self._clock.now()):
                state.own_writes.append(RemoveExpired(path))
        if self._rounds is not None:
            self._rounds.schedule()

    def _collect(self) -> None:
        """Remove the entries of deleted ledgers after the grace period, as bookies do, in steps of limited size."""
        try:
            while not self._stopping:
                before = self._clock.now() - COLLECTION_GRACE_MILLIS
                if self._storage.collect_deleted(before, MAX_COLLECTED_LEDGERS) < MAX_COLLECTED_LEDGERS:
                    break
        except BookstandError as error:
            logger().warning("store %s: deleted ledgers could not be collected: %s", self._storage.path, error)

    def _collected(self, done: asyncio.Future[None]) -> None:
        self._collecting = None
        if not done.cancelled() and done.exception() is not None:
            logger().error("store %s: collecting deleted ledgers failed: %r", self._storage.path, done.exception())

    # -- for tests of clients ----------------------------------------------------------------------------------------

    def sessions(self) -> list[int]:
        """Ids of the live sessions."""
        return [session.id for session in self._state.sessions]

    def expire(self, session_id: int) -> bool:
        """Expire a session as if its client had timed out. Return False if it does not exist."""
        if self._state.sessions.get(session_id) is None:
            return False
        self._close(session_id)
        if self._rounds is not None:
            self._rounds.schedule()
        return True

    def disconnect(self, session_id: int) -> bool:
        """Cut the connection of a session. Return False if it has no connection."""
        session = self._state.sessions.get(session_id)
        if session is None or session.connection is None:
            return False
        session.connection.abort()
        return True

    def _close(self, session_id: int) -> None:
        session = self._state.sessions.get(session_id)
        if session is not None and not session.closing:
            session.closing = True
            self._state.own_writes.append(CloseSession(session_id))

    # -- metrics -----------------------------------------------------------------------------------------------------

    def samples(self) -> Iterator[Sample]:
        """Metric samples; a source for ``store.metrics()``."""
        return self._state.metrics.samples(self._state)
