"""Rounds, in which requests are read, committed and answered.

A round serves every connection with requests, each in the order of its requests. Reads are answered immediately; writes
join the round's batch, which is one commit. No request is served during the commit, so no client can read a write
before it receives the event of it; requests that arrive meanwhile form the next batch. The response to a write is sent
when the write is durable, after the events that it caused.

The server's own writes, mainly adoptions of foreign writes, have priority; but waiting clients are served before the
next batch of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import TypeVar

from bookstand.errors import BookstandError, DiskFullError, OutcomeUnknownError
from bookstand.server.zookeeper.batch import (
    AdoptForeignZnodes,
    Outcome,
    batch_of,
)
from bookstand.server.zookeeper.fault_path import Committed, InterceptedWrite
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.jute import JuteError
from bookstand.server.zookeeper.protocol.protocol import Code, Op
from bookstand.server.zookeeper.protocol.requests import WRITING, answer_read, op_of, refuse, write_of
from bookstand.server.zookeeper.protocol.session_handshake import greet
from bookstand.server.zookeeper.read_operations import ForeignZnodeError
from bookstand.server.zookeeper.results import Outcomes
from bookstand.server.zookeeper.tree_scan import TreeScan, survey
from bookstand.server.zookeeper.write_round import BATCH_WRITES, Pending, WriteRound
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.logger import logger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from bookstand.server.zookeeper.connection import ZooKeeperConnection
    from bookstand.server.zookeeper.state import RecoveredState, State

# Pause (s) after a foreign write could not be adopted.
PAUSE = 0.1
# Full scans that take longer than LONG_LOOK (s) use at most this share of the time.
LOOK_SHARE = 0.1
LONG_LOOK = 0.05

T = TypeVar("T")


class RoundScheduler:
    """``failed`` is called when the store has become unusable."""

    def __init__(self, state: State, loop: asyncio.AbstractEventLoop, failed: Callable[[BaseException], None]) -> None:
        self._state = state
        self._loop = loop
        self._failed = failed
        self._ready: dict[ZooKeeperConnection, None] = {}
        self._outcomes = Outcomes(state, self._more)
        # Writes to commit one by one, because a batch of them was refused or hooks are installed.
        self._alone: deque[Pending] = deque()
        self._scheduled = False
        # True during a commit or a full scan.
        self.busy = False
        self.stopped = False
        self.when_idle: Callable[[], None] | None = None
        """Called once when the commit or scan in progress ends."""
        self._idle = asyncio.Event()
        self._next_look = 0.0
        self._paused_until = 0.0
        self._clients_turn = False
        # True after a commit with an unknown outcome.
        self._outcome_unknown = False

    # -- lifecycle ---------------------------------------------------------------------------------------------------

    def ready(self, connection: ZooKeeperConnection) -> None:
        """Schedule a round for a connection with requests."""
        self._ready[connection] = None
        self.schedule()

    def _more(self, connection: ZooKeeperConnection) -> None:
        """Add a connection during a round, which schedules the next one itself."""
        self._ready[connection] = None

    def gone(self, connection: ZooKeeperConnection) -> None:
        self._ready.pop(connection, None)

    def schedule(self) -> None:
        if not self._scheduled and not self.busy and not self.stopped:
            self._scheduled = True
            if self._loop.time() < self._paused_until:
                self._loop.call_at(self._paused_until, self._round)
            else:
                self._loop.call_soon(self._round)

    def look_soon(self) -> None:
        """Check for foreign writes in the next round, regardless of the duration of the last scan."""
        self._next_look = 0.0
        self.schedule()

    async def stop(self) -> None:
        """Stop after the commit in progress has been answered. Requests that are still waiting are dropped."""
        self.stopped = True
        while self.busy:
            self._idle.clear()
            await self._idle.wait()

    # -- a round -----------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        self._scheduled = False
        if self.busy or self.stopped:
            return
        state = self._state
        try:
            if self._outcome_unknown:
                self._work(state.restored, self._restored)
                return
            if not self._clients_turn and self._own_turn():
                return
            self._clients_turn = False
            batch = WriteRound()
            ready, self._ready = iter(self._ready), {}
            for connection in ready:
                self._serve(connection, batch)
                if batch.full:
                    # The others are first in the next round.
                    self._ready = dict.fromkeys(ready) | self._ready
                    break
            state.flush()
        except BookstandError as error:
            self._failed(error)
            return
        if batch.writes:
            self._commit(batch.writes)
        elif self._ready:
            self.schedule()

    def _own_turn(self) -> bool:
        """Start pending work of the server itself: a full scan or its own writes. Return False if there was no work."""
        state = self._state
        if self._loop.time() >= self._next_look and state.others.have_written() and not state.hear_others():
            begun = perf_counter()
            self._work(partial(survey, state.storage), lambda found: self._looked(found, perf_counter() - begun))
            return True
        if not state.own_writes:
            return False
        own, state.own_writes = state.own_writes[:BATCH_WRITES], state.own_writes[BATCH_WRITES:]
        self._clients_turn = bool(self._ready)
        self._commit([Pending.own(write) for write in own])
        return True

    def _serve(self, connection: ZooKeeperConnection, batch: WriteRound) -> None:
        """Process a connection's requests up to the first one that must wait for the batch."""
        before = len(batch.writes)
        while connection.may_be_served:
            frame = connection.frames[0]
            try:
                done = not batch.full and self._take(connection, frame, batch, wait=len(batch.writes) > before)
            except ForeignZnodeError as strange:
                done = self._adopt(connection, frame, batch, strange.path)
            if not done:
                self._ready[connection] = None
                break
            connection.served(frame)
        connection.weigh()

    def _take(self, connection: ZooKeeperConnection, frame: bytes, batch: WriteRound, wait: bool) -> bool:
        """Process one frame. Return False if a later round must serve it. ``wait``: the batch has writes of this
        connection."""
        state = self._state
        begun = perf_counter()
        if connection.session is None:
            return greet(state, connection, frame, batch, begun)
        try:
            header = records.REQUEST_HEADER.decode(frame)
        except JuteError:
            connection.abort()
            return True
        op = op_of(header.type)
        if op in WRITING and op is not None:
            try:
                write = write_of(connection, op, frame)
            except JuteError:
                if not wait:
                    refuse(state, connection, op, header.xid, Code.MARSHALLING_ERROR, begun)
                return not wait
            batch.add(Pending(write, op, connection, header.xid, begun), len(frame))
            return True
        if wait:
            return False
        if op is None:
            connection.answer(records.refusal(header.xid, state.tree.zxid, Code.UNIMPLEMENTED))
            connection.end()
        elif op is Op.SYNC and self._is_behind(connection):
            return False
        else:
            answer_read(state, connection, op, header.xid, frame)
        return True

    def _adopt(self, connection: ZooKeeperConnection, frame: bytes, batch: WriteRound, path: str) -> bool:
        """Adopt a znode before serving a request that reads it. Return True if the adoption has failed before: the
        request is then refused."""
        unadopted, connection.unadopted = connection.unadopted, None
        begun = perf_counter()
        if unadopted is None or unadopted[0] != path:
            batch.add(Pending(AdoptForeignZnodes([path]), Op.ERROR, connection, 0, begun))
            return False
        header = records.REQUEST_HEADER.decode(frame)
        refuse(self._state, connection, Op(header.type), header.xid, unadopted[1], begun)
        return True

    def _is_behind(self, connection: ZooKeeperConnection) -> bool:
        """True until all foreign writes from before the sync request are adopted."""
        others = self._state.others
        if connection.syncing is None:
            connection.syncing = others.total
        if others.heard < connection.syncing:
            self._next_look = 0.0
        if others.adopted < connection.syncing:
            return True
        connection.syncing = None
        return False

    # -- commits -----------------------------------------------------------------------------------------------------

    def _commit(self, batch: list[Pending]) -> None:
        self.busy = True
        storage = self._state.storage
        if storage.hooks is None:
            self._submit(batch, self._committed)
        else:
            first, *rest = batch
            self._alone.extend(rest)
            InterceptedWrite(storage, self._loop, first, self._submit, self._committed).begin()

    def _submit(self, batch: list[Pending], then: Committed) -> None:
        """Submit a commit; ``then`` is called in the loop."""
        state = self._state
        writes = [pending.write for pending in batch]
        operation = batch_of(writes, state.clock.now(), state.tree.ephemerals)

        def done(error: BaseException | None, results: list[Any] | None) -> None:
            self._loop.call_soon_threadsafe(then, batch, error, None if results is None else results[0])

        try:
            submitted = state.storage.submit(WriteBatch(operation))
        except BookstandError as error:
            done(error, None)
            return
        submitted.add_done_callback(
            lambda found: done(found.exception(), None if found.exception() is not None else found.result())
        )

    def _committed(self, batch: list[Pending], error: BaseException | None, outcomes: Sequence[Outcome] | None) -> None:
        self.busy = False
        self._idle.set()
        if outcomes is None:
            assert error is not None
            self._not_committed(batch, error)
        else:
            for pending, outcome in zip(batch, outcomes, strict=True):
                self._outcomes.finish(pending, outcome)
            if not self._alone:
                self._state.committed()
        self._state.flush()
        if not self._alone:
            self._is_idle()
        if self._alone and not self.stopped:
            self._commit([self._alone.popleft()])
        elif self._ready or self._state.own_writes:
            self.schedule()

    def _not_committed(self, batch: Sequence[Pending], error: BaseException) -> None:
        """Handle a failed commit, or one with an unknown outcome."""
        if isinstance(error.__cause__, DiskFullError) and len(batch) > 1:
            # The store is full, but some of the writes may free space.
            self._alone.extend(batch)
            return
        logger().error("a commit through ZooKeeper's protocol failed: %s", error)
        if not isinstance(error, BookstandError) or not self._state.is_usable:
            self._failed(error)
            return
        if isinstance(error, OutcomeUnknownError):
            # The state in memory may differ from the store's. Clients reconnect, and setWatches sends the events that
            # they missed.
            self._outcome_unknown = True
            for connection in list(self._state.connections):
                connection.abort()
            self.schedule()
            return
        if any(isinstance(pending.write, AdoptForeignZnodes) for pending in batch):
            self._state.others.forget()
            self._paused_until = self._loop.time() + PAUSE
        for pending in batch:
            self._outcomes.finish(pending, Outcome(self._state.tree.zxid, error))

    def _is_idle(self) -> None:
        call, self.when_idle = self.when_idle, None
        if call is not None and not self.stopped:
            call()

    # -- full scans --------------------------------------------------------------------------------------------------

    def _work(self, look: Callable[[], T], then: Callable[[T], None]) -> None:
        """Run ``look`` in a background thread, then ``then`` in the loop."""
        self.busy = True

        def done(task: asyncio.Future[T]) -> None:
            self.busy = False
            self._idle.set()
            error = task.exception()
            if error is not None:
                self._failed(error)
                return
            then(task.result())
            self._is_idle()
            self.schedule()

        self._loop.run_in_executor(None, look).add_done_callback(done)

    def _looked(self, found: TreeScan, seconds: float) -> None:
        self._next_look = self._loop.time() + (seconds / LOOK_SHARE if seconds > LONG_LOOK else 0.0)
        self._state.surveyed(found)

    def _restored(self, left: RecoveredState) -> None:
        self._outcome_unknown = False
        self._state.restore(left)
