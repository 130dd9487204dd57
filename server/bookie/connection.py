"""One connection to a bookie: requests in, answers out, in whatever order they are ready."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bookstand.errors import OutcomeUnknownError, StoreCrashedError
from bookstand.server.bookie import adds, codes, requests_v2, v2
from bookstand.server.bookie.desk import Desk
from bookstand.server.bookie.hooked import HookedAdd
from bookstand.server.bookie.versions import FIRST_OCTET_OF_V3
from bookstand.server.framing import FramedConnection, Run
from bookstand.storage.copy_reading import CopyReads
from bookstand.storage.copying import FenceCopy
from bookstand.storage.hooks import SimulatedCrash
from bookstand.storage.log import logger

if TYPE_CHECKING:
    from bookstand.storage.changes import Operation

SMALLEST_RUN = 8
"""Of frames: where looking at them by the column pays."""

# Runs in which ledgers take turns are looked at frame by frame, so many at a time.
_ONE_BY_ONE = 64

Look = Callable[[CopyReads], tuple[int, bytes]]
"""Reads, and gives the code and the answer."""
Refusal = Callable[[int], bytes]
"""The answer that says why not."""


@cache
def _requests_v3() -> ModuleType:
    """Loaded with the first request of that version: protobuf takes longer than all else that a bookie is made of."""
    from bookstand.server.bookie import requests_v3

    return requests_v3


class BookieConnection(FramedConnection):
    def __init__(self, desk: Desk) -> None:
        super().__init__(desk.scratch, desk.limits.frame_bytes)
        self.desk = desk
        self._gathering = adds.Gathering()
        self._adds_in_progress = 0
        self._held_bytes = 0
        self._held = False
        self._long_polls: set[Callable[[], None]] = set()
        self._view: CopyReads | None = None
        self._arrived = 0.0

    # -- its life ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.desk.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        for stop in list(self._long_polls):
            stop()
        self._long_polls.clear()
        self.desk.closed(self)

    def hold(self) -> None:
        """Take no more requests; what was taken is answered."""
        self._held = True
        self.proceed()

    @property
    def has_answered(self) -> bool:
        """Whether nothing that was taken is still to be answered, reads that wait for something to come aside."""
        unsent = self._answer_bytes or self.transport.get_write_buffer_size()
        return self.closed or not (self._adds_in_progress or unsent)

    def has_room(self) -> bool:
        return not self._held and self._writable and self._adds_in_progress < self.desk.limits.connection_bytes

    def buffer_updated(self, nbytes: int) -> None:
        self.desk.figures.received += nbytes
        super().buffer_updated(nbytes)

    def weigh(self) -> None:
        """Frames that are not whole and answers that are not taken are held for clients; not for too many of them."""
        before, self._held_bytes = self._held_bytes, self.held_bytes
        load = self.desk.load
        load.bytes += self._held_bytes - before
        if self._held_bytes > before and load.bytes > self.desk.limits.server_bytes:
            self.desk.figures.refused += 1
            self.abort()

    def proceed(self) -> None:
        self._arrived = monotonic()
        try:
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

    def take(self, run: Run) -> int:
        if run.frames >= SMALLEST_RUN and not self.desk.hooked:
            # For those who send many at once: it takes as long to load as half of the server.
            from bookstand.server.bookie.runs import adds_of

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
                # As in the original, what is no request of version 3 may be one of version 2.
                pass
        requests_v2.take(self, frame)

    # -- what requests come to -----------------------------------------------------------------------------------------

    def answer(self, operation: str, code: int, answer: bytes, count: int = 1) -> None:
        self.desk.figures.answered(operation, code, monotonic() - self._arrived, count)
        self.send(answer)

    def gather(
        self, ledger_id: int, master_key: bytes, recovery: bool, entry_id: int, stored: bytes, answer: adds.Answer
    ) -> None:
        """An add, which goes off with the others of its ledger."""
        self._gathering.add(ledger_id, master_key, recovery, entry_id, stored, answer)
        if self.desk.hooked:
            (alone,) = self._gathering.take()
            self._count(alone.size)
            hooks = self.desk.bookie.entry_hooks
            HookedAdd(self, alone, hooks, partial(self._added, alone, self._arrived)).begin()

    def look(self, operation: str, look: Look, refusal: Refusal) -> None:
        """A read. Those of one turn share a view of the store."""
        if self.desk.hooked:
            arrived = self._arrived
            self.desk.aside(lambda: self._looked(operation, look, refusal, arrived))
            return
        try:
            code, answer = look(self.view())
        except Exception as error:
            self.fail(operation, error, refusal)
            return
        self.answer(operation, code, answer)

    def _looked(self, operation: str, look: Look, refusal: Refusal, arrived: float) -> Callable[[], None]:
        """The same in a thread of its own."""
        try:
            with self.desk.bookie.view() as view:
                code, answer = look(view)
        except (Exception, SimulatedCrash) as error:
            return partial(self._settle, arrived, partial(self.fail, operation, error, refusal))
        return partial(self._settle, arrived, partial(self.answer, operation, code, answer))

    def change(
        self,
        operation: str,
        changes: tuple[Operation, ...],
        then: Callable[[], None],
        refusal: Refusal,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """Something to be made durable; ``then`` answers. ``before`` and ``after`` are what hooks are told of it."""
        arrived = self._arrived

        def told(error: BaseException | None) -> None:
            step = then if error is None else partial(self.fail, operation, error, refusal)
            self._settle(arrived, step)

        if not self.desk.hooked:
            # Behind the adds that came before it.
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
            (FenceCopy(bookie.number, ledger_id, master_key),),
            then,
            refusal,
            before=None if hooks is None else partial(hooks.on_fence, ledger_id),
            after=partial(bookie.point, "recovery.fenced", ledger_id),
        )

    def wait_for_lac(self, ledger_id: int, previous_lac: int, seconds: float, ready: Callable[[bool], None]) -> bool:
        """``ready`` is called once the ledger's LAC is higher, or the time over; False: too many wait already."""
        if len(self._long_polls) >= self.desk.limits.long_polls:
            return False
        arrived = self._arrived

        def end(come: bool) -> None:
            self._long_polls.discard(stop)
            self._settle(arrived, lambda: ready(come))

        stop = self.desk.long_polls.wait(ledger_id, previous_lac, seconds, end)
        self._long_polls.add(stop)
        return True

    def _settle(self, arrived: float, step: Callable[[], None]) -> None:
        """A step that comes in a later turn than its request."""
        if self.closed:
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
            # A dead process answers nobody.
            self.abort()
        elif not isinstance(error, OutcomeUnknownError):
            # Of what has an unknown outcome the client hears nothing, and has to find out itself.
            code = codes.code_of(error)
            if code == codes.IO_ERROR:
                logger().error("bookie %d: %s failed: %r", self.desk.bookie.number, operation, error)
            self.answer(operation, code, refusal(code))

    def view(self) -> CopyReads:
        """What the bookie has, as all reads of this turn see it."""
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

    def _add(self, together: adds.Adds) -> None:
        load, count = self.desk.load, len(together.entry_ids)
        if load.bytes + together.size > self.desk.limits.server_bytes:
            self.answer("add", codes.TOO_MANY_REQUESTS, together.answer(codes.TOO_MANY_REQUESTS), count)
            return
        self._count(together.size)
        self.desk.office.post((together.of(self.desk.bookie.number),), partial(self._added, together, self._arrived))

    def _added(self, together: adds.Adds, arrived: float, error: BaseException | None) -> None:
        self._count(-together.size)
        if error is None:
            # Who waits for it hears of it first, as from the original.
            self.desk.long_polls.confirmed(together.ledger_id, together.lac)
        if self.closed:
            return
        self._arrived = arrived
        if error is not None:
            self.fail("add", error, together.answer)
        else:
            self.answer("add", codes.OK, together.answer(codes.OK), len(together.entry_ids))
        self.desk.office.send_later(self)

    def _count(self, size: int) -> None:
        self._adds_in_progress += size
        self.desk.load.bytes += size
        self.desk.figures.adds_in_progress += size
