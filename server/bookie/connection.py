"""One client connection to a bookie. Responses are sent in the order of completion, not of the requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import cache, partial
from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bookstand.errors import OutcomeUnknownError, StoreCrashedError
from bookstand.server.bookie import add_batches, metrics
from bookstand.server.bookie.fault_path import InterceptedAdd
from bookstand.server.bookie.protocol import codes, requests_v2, v2
from bookstand.server.bookie.protocol.versions import FIRST_OCTET_OF_V3
from bookstand.server.bookie.shared_state import BookieContext
from bookstand.server.framing import LENGTH_BYTES, Buffers, FramedConnection, FrameRun
from bookstand.storage.hooks import SimulatedCrash
from bookstand.storage.logger import logger
from bookstand.storage.served.replica_operations import FenceReplica
from bookstand.storage.served.replica_reader import ReplicaReader

if TYPE_CHECKING:
    from bookstand.storage.commit.operations import Operation

SMALLEST_RUN = 8
"""Number of frames in a run at which columnar processing is faster."""

# Memory of a request in progress other than an add, besides its body.
_CHANGE_BYTES = 1 << 10
# Number of frames processed one by one before a columnar batch is tried again.
_ONE_BY_ONE = 64

Look = Callable[[ReplicaReader], tuple[int, bytes]]
"""Performs a read; returns the code and the response."""
Refusal = Callable[[int], bytes]
"""Builds the error response for a code."""


@cache
def _requests_v3() -> ModuleType:
    """Import the module with the first request of version 3: protobuf takes longer to load than the rest of a
    bookie."""
    from bookstand.server.bookie.protocol import requests_v3

    return requests_v3


class BookieConnection(FramedConnection):
    def __init__(self, desk: BookieContext) -> None:
        super().__init__(desk.scratch, desk.limits.frame_bytes - LENGTH_BYTES)
        self.desk = desk
        self._gathering = add_batches.AddCollector()
        self._held = False
        # Completed steps whose responses wait until the client reads again.
        self._deferred: deque[tuple[float, Callable[[], None]]] = deque()
        self._long_polls: set[Callable[[], object]] = set()
        self._polling = 0
        self._view: ReplicaReader | None = None
        self._arrived = 0.0

    # -- lifecycle -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.desk.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        for stop in self._long_polls:
            stop()
        self._long_polls.clear()
        self._count_polls(-self._polling)
        self._deferred.clear()
        self.desk.closed(self)

    def take_no_more(self) -> None:
        """Accept no more requests; requests in progress are still answered."""
        self._held = True
        self.proceed()

    @property
    def has_answered(self) -> bool:
        """True when all requests have been answered, except for waiting long polls."""
        unsent = self._answer_bytes or self.transport.get_write_buffer_size()
        return self.closed or not (self._request_bytes or self._deferred or unsent)

    def has_room(self) -> bool:
        return not self._held and self._writable and self._request_bytes < self.desk.limits.connection_bytes

    def _hold_or_go_on(self) -> None:
        was_reading = self._reading
        super()._hold_or_go_on()
        if was_reading and not self._reading and self._request_bytes >= self.desk.limits.connection_bytes:
            self.desk.figures.limits[metrics.REQUESTS_OF_ONE] += 1

    def buffer_updated(self, nbytes: int) -> None:
        self.desk.figures.received += nbytes
        super().buffer_updated(nbytes)

    def hold(self, before: Buffers, now: Buffers) -> None:
        """Close a connection whose partial frames or unread responses exceed the limit of the server."""
        within = self.desk.hold(before, now)
        if not within and sum(now) > sum(before) and not self.closed:
            self.desk.figures.refused += 1
            self.desk.figures.limits[metrics.ALL] += 1
            self.abort()

    def reject(self, head: bytes) -> bool | None:
        """Answer an add over the limit as a bad request. Close the connection for any other frame of that size."""
        answer: bytes | None = None
        try:
            if head[:1] == FIRST_OCTET_OF_V3:
                answer = _requests_v3().reject(head)
            elif (request := v2.read_long_add(head)) is not None:
                version, ledger_id, entry_id = request
                answer = v2.answer(version, v2.ADD, codes.BAD_REQUEST, ledger_id, entry_id)
        except v2.MalformedRequestError:
            return False
        if answer is None:
            return None
        self.desk.figures.limits[metrics.FRAME] += 1
        self._arrived = monotonic()
        self.answer("add", codes.BAD_REQUEST, answer)
        return True

    def proceed(self) -> None:
        self._arrived = monotonic()
        try:
            while self._deferred and self._writable and not self.closed:
                self._arrived, step = self._deferred.popleft()
                step()
            self._arrived = monotonic()
            super().proceed()
        finally:
            self._end_view()

    def worked(self) -> None:
        self._add_gathered()
        self._end_view()
        self.desk.office.send_off()

    def flush(self) -> None:
        if not self.closed:
            self.desk.figures.sent += self._answer_bytes
        super().flush()

    def refuse(self) -> None:
        self.desk.figures.refused += 1
        self.flush()
        super().refuse()

    # -- requests ------------------------------------------------------------------------------------------------------

    def take(self, run: FrameRun) -> int:
        if run.frames >= SMALLEST_RUN and not self.desk.hooked:
            # Imported on demand: numpy takes as long to load as half of the server.
            from bookstand.server.bookie.add_runs import adds_of

            together = adds_of(run)
            if together is not None and len(together.entry_ids) >= SMALLEST_RUN:
                self._add(together)
                return len(together.entry_ids)
        count = min(run.frames, _ONE_BY_ONE)
        for index in range(count):
            if index and not self.has_room():
                return index
            try:
                self._take_frame(run.frame(index))
            except v2.MalformedRequestError:
                self.refuse()
            if self.closed:
                break
        return count

    def _take_frame(self, frame: bytes) -> None:
        if frame[:1] == FIRST_OCTET_OF_V3:
            try:
                _requests_v3().take(self, frame)
                return
            except v2.MalformedRequestError:
                # As in BookKeeper, a malformed request of version 3 may be a valid one of version 2.
                pass
        requests_v2.take(self, frame)

    # -- operations ----------------------------------------------------------------------------------------------------

    def answer(self, operation: str, code: int, answer: bytes, count: int = 1) -> None:
        self.desk.figures.answered(operation, code, monotonic() - self._arrived, count)
        self.send(answer)

    def gather(
        self,
        ledger_id: int,
        master_key: bytes,
        recovery: bool,
        entry_id: int,
        stored: bytes,
        answer: add_batches.Answer,
    ) -> None:
        """Queue an add, to be submitted together with other adds of its ledger."""
        self._gathering.add(ledger_id, master_key, recovery, entry_id, stored, answer)
        if self.desk.hooked:
            (alone,) = self._gathering.take()
            self._count_adds(alone.held_bytes)
            hooks = self.desk.bookie.entry_hooks
            InterceptedAdd(self, alone, hooks, partial(self._added, alone, self._arrived)).begin()

    def look(self, operation: str, look: Look, refusal: Refusal) -> None:
        """Perform a read. All reads of one turn of the loop share a snapshot of the store."""
        if self.desk.hooked:
            if self._is_too_much(_CHANGE_BYTES):
                self.answer(operation, codes.TOO_MANY_REQUESTS, refusal(codes.TOO_MANY_REQUESTS))
                return
            self._count(_CHANGE_BYTES)
            finish = partial(self._finish, _CHANGE_BYTES, self._arrived)
            self.desk.aside(lambda: partial(finish, self._looked(operation, look, refusal)))
            return
        try:
            code, answer = look(self.view())
        except Exception as error:
            self.fail(operation, error, refusal)
            return
        self.answer(operation, code, answer)

    def _looked(self, operation: str, look: Look, refusal: Refusal) -> Callable[[], None]:
        """Perform a read in a background thread, where hooks may block it, and return the call that answers it."""
        try:
            with self.desk.bookie.view() as view:
                code, answer = look(view)
        except (Exception, SimulatedCrash) as error:
            return partial(self.fail, operation, error, refusal)
        return partial(self.answer, operation, code, answer)

    def _finish(self, size: int, arrived: float, step: Callable[[], None]) -> None:
        """Take the last step of a request in progress, which counted so many bytes."""
        self._count(-size)
        self._settle(arrived, step)
        if not self.closed:
            # The connection may have waited for this request.
            self.desk.office.send_later(self)

    def change(
        self,
        operation: str,
        changes: tuple[Operation, ...],
        then: Callable[[], None],
        refusal: Refusal,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
        size: int = 0,
    ) -> None:
        """Commit a change; ``then`` answers the request. Hooks call ``before`` and ``after``. ``size``: bytes of the
        request's body."""
        arrived, size = self._arrived, size + _CHANGE_BYTES
        if self._is_too_much(size):
            self.answer(operation, codes.TOO_MANY_REQUESTS, refusal(codes.TOO_MANY_REQUESTS))
            return
        self._count(size)

        def told(error: BaseException | None) -> None:
            self._finish(size, arrived, then if error is None else partial(self.fail, operation, error, refusal))

        if not self.desk.hooked:
            # Preserve the order of requests: adds that arrived earlier are submitted first.
            self._add_gathered()
            self.desk.office.post(changes, told)
            return

        def work() -> Callable[[], None]:
            error: BaseException | None = None
            try:
                if before is not None:
                    before()
                self.desk.office.apply(changes)
                if after is not None:
                    after()
            except (Exception, SimulatedCrash) as caught:
                error = caught
            return partial(told, error)

        self.desk.aside(work)

    def fence(self, ledger_id: int, master_key: bytes, then: Callable[[], None], refusal: Refusal) -> None:
        bookie = self.desk.bookie
        hooks = bookie.hooks
        self.change(
            "fence",
            (FenceReplica(bookie.number, ledger_id, master_key),),
            then,
            refusal,
            before=None if hooks is None else partial(hooks.on_fence, ledger_id),
            after=partial(bookie.point, "recovery.fenced", ledger_id),
        )

    def wait_for_lac(self, ledger_id: int, previous_lac: int, seconds: float, ready: Callable[[bool], None]) -> bool:
        """Call ``ready`` when the LAC exceeds ``previous_lac`` or time is up. Return False if too many wait."""
        desk = self.desk
        for limit, waiting, most in (
            (metrics.POLLS_OF_ONE, self._polling, desk.limits.long_polls),
            (metrics.ALL_POLLS, desk.load.long_polls, desk.limits.server_long_polls),
        ):
            if waiting >= most:
                desk.figures.limits[limit] += 1
                return False
        arrived = self._arrived

        def end(come: bool) -> None:
            self._long_polls.discard(stop)
            self._settle(arrived, partial(answer, come))

        def answer(come: bool) -> None:
            # Counted until here, because the response may have been deferred.
            self._count_polls(-1)
            ready(come)

        stop = desk.long_polls.wait(ledger_id, previous_lac, seconds, end)
        self._long_polls.add(stop)
        self._count_polls(1)
        return True

    def _count_polls(self, count: int) -> None:
        self._polling += count
        self.desk.load.long_polls += count
        self.desk.figures.long_polls += count

    def _settle(self, arrived: float, step: Callable[[], None]) -> None:
        """Run a later step of a request. Defer it while the client is not reading: its response may be large."""
        if self.closed:
            return
        if not self._writable:
            self._deferred.append((arrived, step))
            return
        self._arrived = arrived
        try:
            step()
        finally:
            self._end_view()
        self.desk.office.send_off()
        self.flush()

    def fail(self, operation: str, error: BaseException, refusal: Refusal) -> None:
        if isinstance(error, StoreCrashedError | SimulatedCrash):
            # A crashed process sends no responses.
            self.abort()
        elif not isinstance(error, OutcomeUnknownError):
            # A request with an unknown outcome gets no response; the client times out.
            code = codes.code_of(error)
            if code == codes.IO_ERROR:
                logger().error("bookie %d: %s failed: %r", self.desk.bookie.number, operation, error)
            self.answer(operation, code, refusal(code))

    def view(self) -> ReplicaReader:
        """Snapshot that all reads of this turn share."""
        if self._view is None:
            self._view = self.desk.bookie.view().__enter__()
        return self._view

    def _end_view(self) -> None:
        if self._view is not None:
            view, self._view = self._view, None
            view.__exit__()

    # -- adds ----------------------------------------------------------------------------------------------------------

    def _add_gathered(self) -> None:
        for gathered in self._gathering.take():
            self._add(gathered)

    def _add(self, together: add_batches.Adds) -> None:
        count = len(together.entry_ids)
        if self._is_too_much(together.held_bytes):
            self.answer("add", codes.TOO_MANY_REQUESTS, together.answer(codes.TOO_MANY_REQUESTS), count)
            return
        self._count_adds(together.held_bytes)
        self.desk.office.post((together.of(self.desk.bookie.number),), partial(self._added, together, self._arrived))

    def _added(self, together: add_batches.Adds, arrived: float, error: BaseException | None) -> None:
        self._count_adds(-together.held_bytes)
        if error is None:
            # Long polls are answered before the add, as by BookKeeper.
            self.desk.long_polls.confirmed(together.ledger_id, together.lac)
        if self.closed:
            return
        self._arrived = arrived
        if error is not None:
            self.fail("add", error, together.answer)
        else:
            self.answer("add", codes.OK, together.answer(codes.OK), len(together.entry_ids))
        self.desk.office.send_later(self)

    def _is_too_much(self, size: int) -> bool:
        """True if a request would exceed the limit of the server; counts it."""
        if self.desk.load.bytes + size <= self.desk.limits.server_bytes:
            return False
        self.desk.figures.limits[metrics.ALL] += 1
        return True

    def _count_adds(self, size: int) -> None:
        self.desk.figures.adds_in_progress += size
        self._count(size)

    def _count(self, size: int) -> None:
        self._request_bytes += size
        self.weigh()
