"""A server: connections, and rounds in which their requests are read, committed and answered.

In a round every connection that has something to say is served in the order of its requests. What reads is answered at
once; what writes joins the round's batch, which is one commit of the store. While that is under way nothing else is
served: so no client sees what was written before it is told of it, and what arrives meanwhile makes the next batch. An
answer to a write is sent when it is on the disk, after the events that it caused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

from bookstand.errors import (
    BookstandError,
    ClientClosedError,
    DiskFullError,
    ForkedStoreError,
    OutcomeUnknownError,
    StoreCrashedError,
)
from bookstand.server.zookeeper import kept, records
from bookstand.server.zookeeper.acls import digest_identity
from bookstand.server.zookeeper.batch import (
    Adopt,
    Batch,
    Begin,
    CloseSession,
    Done,
    OpenSession,
    Outcome,
    RemoveUnused,
    Request,
    Write,
    code_of,
)
from bookstand.server.zookeeper.connection import Connection
from bookstand.server.zookeeper.jute import BOOL, JuteError
from bookstand.server.zookeeper.metrics import Metrics
from bookstand.server.zookeeper.protocol import Code, EventType, Op, ZooKeeperError
from bookstand.server.zookeeper.reading import READS, StrangeError, Tree
from bookstand.server.zookeeper.records import Failed
from bookstand.server.zookeeper.sessions import Session, Sessions
from bookstand.server.zookeeper.survey import Survey, survey
from bookstand.server.zookeeper.watches import Watches
from bookstand.server.zookeeper.writes import WRITES, Writer, is_unused
from bookstand.storage import keys
from bookstand.storage.changes import Change
from bookstand.storage.log import logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.storage.clock import Clock
    from bookstand.storage.metrics import Sample
    from bookstand.storage.storage import Storage

DEFAULT_PORT = 2181
TICK = 2_000
# How often the clock is looked at, and what others may have written.
LOOK_INTERVAL = 0.1
# Looking at everything that others may have written takes no more than this part of the time, where it takes long.
LOOK_SHARE = 0.1
LONG_LOOK = 0.05
# How often containers without children, and znodes whose time is over, are removed.
SWEEP_INTERVAL = 60_000
# A connection that has not asked for a session after so many ms is closed.
GREETING_TIME = 10_000
# What one commit takes at the most.
BATCH_WRITES = 1_000
BATCH_BYTES = 16 << 20

# The store is not there any more: nobody can be answered.
_GONE = (StoreCrashedError, ClientClosedError, ForkedStoreError)


class Pending(NamedTuple):
    """A write on its way, and whom to answer."""

    write: Write
    op: Op
    connection: Connection | None
    xid: int
    begun: float


class Gathering:
    """The writes of a round."""

    def __init__(self, own: Sequence[Write]) -> None:
        begun = perf_counter()
        self.writes = [Pending(write, Op.ERROR, None, 0, begun) for write in own]
        self._bytes = 0

    def add(self, pending: Pending, size: int = 0) -> None:
        self.writes.append(pending)
        self._bytes += size

    @property
    def full(self) -> bool:
        return len(self.writes) >= BATCH_WRITES or self._bytes >= BATCH_BYTES


class ZooKeeperServer:
    """Serves the nodes and ledgers of a storage. All methods are for the thread of the event loop it was started in."""

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
        self.storage = storage
        self.host = host
        self.port = port
        self.tick = tick
        self.metrics = Metrics()
        self.sessions = Sessions(clock, tick)
        self.connections: dict[Connection, None] = {}
        self.znodes = 0
        self.tree = Tree(storage, Watches[Connection](), {})
        self._clock = clock
        self._sweep_interval = sweep_interval
        self._mortal: set[str] = set()
        self._own_writes: list[Write] = []
        self._ready: dict[Connection, None] = {}
        self._unflushed: dict[Connection, None] = {}
        # Writes that are committed one by one, for together they were refused.
        self._alone: deque[Pending] = deque()
        self._sums: list[int] = []
        self._scheduled = False
        # A commit, or a look at everything, is under way.
        self._busy = False
        self._stopped = False
        self._next_look = 0.0
        self._next_sweep = 0
        self._listener: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take over what the last server left, then listen. ``port`` is then the one listened at."""
        self._loop = asyncio.get_running_loop()
        record = await asyncio.to_thread(self._begin)
        self.tree.zxid = record.zxid
        found = await asyncio.to_thread(survey, self.storage)
        self.tree.ephemerals.update(found.ephemerals)
        self._mortal, self.znodes = found.mortal, found.znodes
        await asyncio.to_thread(self._restore_sessions)
        # Of sessions that are not there any more, should there be such.
        self._own_writes += [CloseSession(owner) for owner in found.ephemerals if self.sessions.get(owner) is None]
        self._looked(found, 0.0)
        self._next_sweep = self.sessions.now() + self._sweep_interval
        self._listener = await self._loop.create_server(lambda: Connection(self), self.host, self.port)
        self.port = self._listener.sockets[0].getsockname()[1]
        self._look_at_clock()

    def _begin(self) -> kept.Server:
        # As ZooKeeper makes them: the time, with the server's number on top, and then one after the other.
        first_session = (self._clock.now() << 24 & (1 << 64) - 1) >> 8 | 1 << 56
        (record,) = self.storage.apply(Change(Begin(first_session)))
        return record  # type: ignore[no-any-return]

    def _restore_sessions(self) -> None:
        for key in self.storage.meta_keys(keys.META_SESSION):
            body = self.storage.meta(key)
            if body is not None:
                self.sessions.add(kept.session_of(key), kept.parse_session(key, body))

    async def stop(self) -> None:
        """Answer what is under way, then close all connections. Sessions go on when a server is started again."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.close()
        while self._busy:
            self._idle.clear()
            await self._idle.wait()
        for connection in list(self.connections):
            connection.end()
        if self._listener is not None:
            await self._listener.wait_closed()

    def _fail(self, error: BaseException) -> None:
        """The store is gone: nobody can be answered any more."""
        logger().error("the ZooKeeper server at port %s stops: %s", self.port, error)
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self.connections):
            connection.drop()

    # -- what connections call ---------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        self.connections[connection] = None
        if self._stopped:
            connection.drop()

    def disconnected(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self._ready.pop(connection, None)
        self.tree.watches.forget(connection)
        session = connection.session
        if session is not None and session.connection is connection:
            session.connection = None
        connection.session = None

    def ready(self, connection: Connection) -> None:
        """It has requests."""
        self._ready[connection] = None
        self._schedule()

    def unflushed(self, connection: Connection) -> None:
        self._unflushed[connection] = None

    @property
    def outstanding(self) -> int:
        return sum(len(connection.frames) for connection in self.connections)

    # -- rounds ------------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled and not self._busy and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._round)

    def _round(self) -> None:
        self._scheduled = False
        if self._busy or self._stopped:
            return
        try:
            if self._others_wrote():
                self._look()
                return
        except BookstandError as error:
            self._fail(error)
            return
        own, self._own_writes = self._own_writes, []
        batch = Gathering(own)
        ready, self._ready = self._ready, {}
        for connection in ready:
            self._serve(connection, batch)
        self._flush()
        if batch.writes:
            self._commit(batch.writes)
        elif self._ready:
            self._schedule()

    def _serve(self, connection: Connection, batch: Gathering) -> None:
        """Take its requests up to the first that must wait for the batch."""
        before = len(batch.writes)
        while connection.frames and not connection.congested:
            frame = connection.frames[0]
            try:
                done = not batch.full and self._take(connection, frame, batch, wait=len(batch.writes) > before)
            except StrangeError as strange:
                batch.add(Pending(Adopt([strange.path]), Op.ERROR, None, 0, perf_counter()))
                done = False
            if not done:
                self._ready[connection] = None
                return
            if connection.frames and connection.frames[0] is frame:
                connection.frames.popleft()
            connection.took(frame)

    def _take(self, connection: Connection, frame: bytes, batch: Gathering, wait: bool) -> bool:
        """Serve one frame; False: it cannot be before what was taken already is committed (``wait``)."""
        begun = perf_counter()
        if connection.session is None:
            return self._greet(connection, frame, batch, begun)
        try:
            header = records.REQUEST_HEADER.decode(frame)
        except JuteError:
            connection.drop()
            return True
        op = _op_of(header.type)
        if op is None:
            if not wait:
                connection.send(records.refusal(header.xid, self.tree.zxid, Code.UNIMPLEMENTED))
                connection.end()
            return not wait
        connection.last_xid = header.xid
        if op in _WRITING:
            try:
                write = self._write(connection, op, frame)
                batch.add(Pending(write, op, connection, header.xid, begun), len(frame))
                return True
            except JuteError:
                if not wait:
                    self._refuse(connection, op, header.xid, Code.MARSHALLING_ERROR, begun)
                return not wait
        if wait:
            return False
        if op is Op.SYNC and self.storage.recorded_sums() != self._sums:
            # Who syncs is to see what was written before, by whomever.
            self._next_look = 0.0
            return False
        self._read(connection, op, header.xid, frame, begun)
        return True

    def _read(self, connection: Connection, op: Op, xid: int, frame: bytes, begun: float) -> None:
        result: Any = None
        try:
            if op is Op.AUTH:
                self._prove(connection, frame)
            elif op is not Op.PING:
                result = READS[op](self.tree, connection, _body(op, frame))
        except JuteError:
            self._refuse(connection, op, xid, Code.MARSHALLING_ERROR, begun)
        except ZooKeeperError as error:
            self._refuse(connection, op, xid, error.code, begun)
            if op is Op.AUTH:
                connection.end()
        except _GONE as error:
            self._fail(error)
        except BookstandError as error:
            logger().error("a read through ZooKeeper's protocol failed: %s", error)
            self._refuse(connection, op, xid, code_of(error), begun)
        else:
            connection.send(records.reply(xid, self.tree.zxid, op, result))
            self.metrics.answered(op, Code.OK, perf_counter() - begun)

    def _refuse(self, connection: Connection, op: Op, xid: int, code: Code, begun: float) -> None:
        connection.send(records.refusal(xid, self.tree.zxid, code))
        self.metrics.answered(op, code, perf_counter() - begun)

    def _write(self, connection: Connection, op: Op, frame: bytes) -> Write:
        if op is Op.CLOSE_SESSION:
            return CloseSession(connection.session_id)
        return Request(op, _body(op, frame), Writer(connection.session_id, tuple(connection.identities)))

    def _prove(self, connection: Connection, frame: bytes) -> None:
        request = _body(Op.AUTH, frame)
        if request.scheme != "digest":
            raise ZooKeeperError(Code.AUTH_FAILED, f"nobody can be proved to be {request.scheme!r}")
        identity = digest_identity(request.auth or b"")
        if identity not in connection.proved:
            connection.proved.append(identity)

    # -- sessions ----------------------------------------------------------------------------------------------------

    def _greet(self, connection: Connection, frame: bytes, batch: Gathering, begun: float) -> bool:
        """Serve a connection's first frame. What follows it waits until it has a session."""
        if connection.greeted:
            return False
        try:
            request, end = records.CONNECT_REQUEST.read(frame, 0)
            if end < len(frame):
                BOOL.read(frame, end)
        except JuteError:
            connection.drop()
            return True
        if request.last_zxid_seen > self.tree.zxid:
            # It has seen what this store has not: it is another store's, or this one was put back to an older state.
            logger().warning("a client has seen zxid %#x, this store %#x", request.last_zxid_seen, self.tree.zxid)
            connection.drop()
            return True
        connection.greeted = True
        if not request.session_id:
            session = self.sessions.new(request.timeout)
            batch.add(Pending(OpenSession(session), Op.CREATE_SESSION, connection, 0, begun))
            return True
        resumed = self.sessions.resume(request.session_id, request.password)
        if resumed is None:
            connection.send(records.CONNECT_RESPONSE.encode(records.ConnectResponse(0, 0, 0, _NO_PASSWORD, False)))
            connection.end()
        else:
            self._attach(connection, resumed)
        return True

    def _attach(self, connection: Connection, session: Session) -> None:
        if session.connection is not None:
            session.connection.drop()
        session.connection = connection
        connection.session = session
        session.heard(self.sessions.now())
        answer = records.ConnectResponse(0, session.timeout, session.id, session.password, False)
        connection.send(records.CONNECT_RESPONSE.encode(answer))

    def _expire(self) -> None:
        for session in self.sessions.due():
            session.closing = True
            self.metrics.expired += 1
            self._own_writes.append(CloseSession(session.id))

    # -- commits -----------------------------------------------------------------------------------------------------

    def _commit(self, batch: list[Pending]) -> None:
        self._busy = True
        operation = Batch([pending.write for pending in batch], self._clock.now(), self.tree.ephemerals)

        def done(error: BaseException | None, result: Done | None) -> None:
            self._loop.call_soon_threadsafe(self._committed, batch, error, result)

        try:
            pending = self.storage.submit(Change(operation))
        except BookstandError as error:
            done(error, None)
            return
        pending.add_done_callback(lambda found: done(found.exception(), _result(found)))

    def _committed(self, batch: list[Pending], error: BaseException | None, result: Done | None) -> None:
        self._busy = False
        self._idle.set()
        if result is None:
            assert error is not None
            self._not_committed(batch, error)
        else:
            self._sums = [before ^ change for before, change in zip(self._sums, result.sums, strict=True)]
            for pending, outcome in zip(batch, result.outcomes, strict=True):
                self._finish(pending, outcome)
            self._flush()
        if self._alone and not self._stopped:
            self._commit([self._alone.popleft()])
        elif self._ready or self._own_writes:
            self._schedule()

    def _not_committed(self, batch: list[Pending], error: BaseException) -> None:
        """Nothing of the batch has happened, or nobody knows whether it has."""
        if isinstance(error, DiskFullError) and len(batch) > 1:
            # Some of it may be what makes room.
            self._alone.extend(batch)
            return
        logger().error("a commit through ZooKeeper's protocol failed: %s", error)
        if not isinstance(error, BookstandError) or isinstance(error, _GONE):
            self._fail(error)
            return
        for pending in batch:
            connection = pending.connection
            if isinstance(pending.write, CloseSession):
                session = self.sessions.get(pending.write.session_id)
                if session is not None:
                    session.closing = False
            if connection is None:
                continue
            if isinstance(error, OutcomeUnknownError) or pending.op is Op.CREATE_SESSION:
                # As for every client whose connection breaks in the middle.
                connection.drop()
            else:
                self._refuse(connection, pending.op, pending.xid, code_of(error), pending.begun)
        self._flush()

    def _finish(self, pending: Pending, outcome: Outcome) -> None:
        """Tell watchers, then whoever asked."""
        self.tree.zxid = outcome.zxid
        for change in outcome.changes:
            for watcher, kind, path in self.tree.watches.fire(change):
                watcher.tell(outcome.zxid, kind, path)
                self.metrics.events += 1
        for owner, path, there in outcome.ephemerals:
            owned = self.tree.ephemerals.setdefault(owner, set())
            (owned.add if there else owned.discard)(path)
            if not owned:
                del self.tree.ephemerals[owner]
        self._mortal.update(outcome.mortal)
        self.znodes += sum(_DIFFERENCE.get(change.type, 0) for change in outcome.changes)
        failed = isinstance(outcome.result, Failed)
        if isinstance(pending.write, OpenSession) and not failed:
            self._opened(pending, *outcome.result)
        elif isinstance(pending.write, CloseSession) and not failed:
            self._closed(pending, outcome)
        elif pending.connection is not None:
            self._answer(pending, outcome)

    def _answer(self, pending: Pending, outcome: Outcome) -> None:
        assert pending.connection is not None
        result = outcome.result
        if isinstance(result, Failed):
            body = records.refusal(pending.xid, outcome.zxid, result.code)
        else:
            body = records.reply(pending.xid, outcome.zxid, pending.op, result)
        pending.connection.send(body)
        code = result.code if isinstance(result, Failed) else Code.OK
        self.metrics.answered(pending.op, code, perf_counter() - pending.begun)

    def _opened(self, pending: Pending, session_id: int, session: kept.Session) -> None:
        live = self.sessions.add(session_id, session)
        connection = pending.connection
        if connection is not None and not connection.ending:
            self._attach(connection, live)
            self.metrics.answered(Op.CREATE_SESSION, Code.OK, perf_counter() - pending.begun)

    def _closed(self, pending: Pending, outcome: Outcome) -> None:
        session = self.sessions.remove(outcome.result)
        if pending.connection is not None:
            self._answer(pending._replace(op=Op.CLOSE_SESSION), outcome._replace(result=None))
        if session is not None and session.connection is not None:
            session.connection.end()

    def _flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, {}
        for connection in unflushed:
            connection.flush()

    # -- what others write -------------------------------------------------------------------------------------------

    def _others_wrote(self) -> bool:
        """Whether somebody has, and it is time to look what."""
        return self._loop.time() >= self._next_look and self.storage.recorded_sums() != self._sums

    def _look(self) -> None:
        """Compare everything, without keeping the loop from other things."""
        self._busy = True
        begun = perf_counter()

        def looked(task: asyncio.Future[Survey]) -> None:
            self._busy = False
            self._idle.set()
            error = task.exception()
            if error is not None:
                self._fail(error)
                return
            self._looked(task.result(), perf_counter() - begun)

        self._loop.run_in_executor(None, survey, self.storage).add_done_callback(looked)

    def _looked(self, found: Survey, seconds: float) -> None:
        self._next_look = self._loop.time() + (seconds / LOOK_SHARE if seconds > LONG_LOOK else 0.0)
        self._sums = found.sums
        if found.strange:
            self._own_writes += [Adopt([path]) for path in found.strange]
        if self._own_writes or self._ready:
            self._schedule()

    # -- time --------------------------------------------------------------------------------------------------------

    def _look_at_clock(self) -> None:
        self._timer = self._loop.call_later(LOOK_INTERVAL, self._look_at_clock)
        if self._busy:
            return
        self._expire()
        now = self.sessions.now()
        for connection in list(self.connections):
            if connection.session is None and now - connection.opened_at > GREETING_TIME:
                connection.drop()
        if now >= self._next_sweep:
            self._next_sweep = now + self._sweep_interval
            self.sweep()
        self._schedule()

    def sweep(self) -> None:
        """Remove containers that had children and have none, and znodes whose time is over."""
        now = self._clock.now()
        for path in sorted(self._mortal):
            try:
                found = self.tree.find(path)
            except StrangeError:
                continue
            except BookstandError as error:
                logger().error("a znode that may have to go cannot be read: %s", error)
                continue
            if found is None or not found.znode.is_mortal:
                self._mortal.discard(path)
            elif is_unused(found.znode, now):
                self._own_writes.append(RemoveUnused(path))
        self._schedule()

    def samples(self) -> Sequence[Sample]:
        return list(self.metrics.samples(self))


_NO_PASSWORD = bytes(kept.PASSWORD_BYTES)
_WRITING = frozenset({*WRITES, Op.MULTI, Op.CLOSE_SESSION}) - {Op.CHECK}
_READING = frozenset({*READS, Op.PING, Op.AUTH})
_DIFFERENCE = {EventType.CREATED: 1, EventType.DELETED: -1}


def _op_of(number: int) -> Op | None:
    """What a request asks for, if it is something that clients may ask for."""
    try:
        op = Op(number)
    except ValueError:
        return None
    return op if op in _WRITING or op in _READING else None


def _body(op: Op, frame: bytes) -> Any:
    if op is Op.MULTI:
        return records.read_multi(frame, records.HEADER_BYTES, records.IN_MULTI)
    if op is Op.MULTI_READ:
        return records.read_multi(frame, records.HEADER_BYTES, records.IN_MULTI_READ)
    codec = records.REQUESTS.get(op)
    return None if codec is None else codec.decode(frame, records.HEADER_BYTES)


def _result(pending: Any) -> Done | None:
    if pending.exception() is not None:
        return None
    (done,) = pending.result()
    return done  # type: ignore[no-any-return]
