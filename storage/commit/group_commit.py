"""Group commit: the first thread that waits commits for all.

Requests join the open :class:`Batch`. The first thread that waits for one of them becomes the leader. It seals the
batch and commits it in one transaction, in its own thread, so a single durable append needs no thread switch. Threads
that arrive during the commit are the followers: they wait at the gates of their batch. The leader opens the gates of
the batch that it has committed, and each released thread opens its gate for the next one. The last of them opens the
gates of the next batch, whose first thread leads it. By then most released threads have submitted again, so one commit
serves them all. The next batch waits up to ``FOLLOWER_GRACE`` seconds for them, and not at all if the last commit was
shorter than ``FOLLOWER_GRACE_MIN_COMMIT``. One waiting thread polls every ``LOST_WAKEUP_POLL`` seconds in case its
wake-up was lost: the threads before it may be blocked in a signal handler, or may have been interrupted.

An exception may interrupt the leader between any two steps. The leader then ends its lead and repeats the steps after
the commit (completing the requests, waking threads, running callbacks), all of which can be repeated. An interrupted
commit has an unknown outcome.

A background thread commits requests that no thread waits for. It starts with the first such request, and gives the
submitter ``LINGER`` seconds to wait after all, because one thread is cheaper than two.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from threading import Lock, RLock, Thread, get_ident
from time import monotonic

from bookstand.errors import BookstandError, IllegalOperationError, OutcomeUnknownError
from bookstand.storage.commit.futures import Completion, open_gate, shut_gate
from bookstand.storage.hooks import SimulatedCrash
from bookstand.storage.logger import logger
from bookstand.storage.process.fork_guard import ProcessBound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, TypeVar

    from bookstand.storage.commit.operations import Operation

    Outcome = tuple[Any, BaseException | None]
    T = TypeVar("T")

LINGER = 0.03
FOLLOWER_GRACE = 0.005
FOLLOWER_GRACE_MIN_COMMIT = 0.000_05
LOST_WAKEUP_POLL = 0.05

# Attempts to finish what follows an interrupted commit if further exceptions interrupt it.
_ATTEMPTS = 100

# Up to this number of threads wait at a single gate: waking them one by one is fast enough.
_SINGLE_GATE_WAITERS = 8


class CommitRequest(Completion):
    """Operations submitted for commit, and the completion of their outcome."""

    __slots__ = ("batch", "operations")

    def __init__(self, committer: GroupCommitter | None, operations: Sequence[Operation]) -> None:
        super().__init__(committer)
        self.operations = operations
        self.batch: Batch | None = None

    def on_sealed(self) -> None:
        """Called under the lock when a leader seals the batch: no operations may be added afterwards."""

    def on_committed(self, value: Any, error: BaseException | None, later: list[Callable[[], None]]) -> None:
        """Record the outcome. Runs in the leader; actions visible to callers are deferred through ``later``."""
        later += self.settle(value, error)


class Batch:
    """Requests that one commit will cover. Its gates are open while there is something for a waiting thread to do.

    Many threads wait at two gates, so that the next one wakes up while one runs. For few threads one gate is faster,
    and a third gate does not help even for many.
    """

    __slots__ = ("committed", "gates", "outcomes", "requests", "waiting")

    def __init__(self) -> None:
        self.requests: list[CommitRequest] = []
        # One per request, from the end of the commit until all requests are completed.
        self.outcomes: list[Outcome] | None = None
        self.committed = False
        self.gates = shut_gate(), shut_gate()
        self.waiting: set[int] = set()

    def next_gate(self) -> Lock:
        waiting = len(self.waiting)
        return self.gates[waiting % 2 if waiting > _SINGLE_GATE_WAITERS else 0]

    def wake(self) -> None:
        """Let one waiting thread through each gate."""
        for gate in self.gates:
            open_gate(gate)


class GroupCommitter(ProcessBound):
    """Owner of the open batch. ``lock`` guards it, and everything that writers keep consistent with their requests."""

    def __init__(self, commit: Callable[[list[CommitRequest]], list[Outcome]]) -> None:
        self.lock = Lock()
        self._commit = commit
        self._open: Batch | None = None
        # Held by the leader. Reentrant, to detect a hook that waits for the commit that it runs in.
        self._leading = RLock()
        # The batch committed last, and the end of the grace period for the threads that waited for it.
        self._last_batch = Batch()
        self._grace_ends = 0.0
        self._background: Thread | None = None
        # Gates of the background thread. Unlike an Event, an interrupted thread leaves no lock held.
        self._work_queued = shut_gate()
        self._expedited = shut_gate()
        self._stopped = False
        self._is_shut_down = False

    @property
    def idle(self) -> bool:
        """True if nothing is queued, even while a commit is in progress."""
        return self._open is None

    def submit(self, request: CommitRequest, awaited: bool = True) -> None:
        """Queue a request. The background thread commits it if ``awaited`` is False."""
        with self.lock:
            self.enqueue(request)
        if not awaited:
            self.schedule_background()

    def enqueue(self, request: CommitRequest) -> None:
        """Add a request to the open batch. The caller holds ``lock``."""
        batch = self._open
        if batch is None:
            batch = self._open = Batch()
        request.batch = batch
        batch.requests.append(request)

    def run_exclusive(self, action: Callable[..., T], *arguments: Any) -> T | None:
        """Call the action while leading without a batch; return None if a thread leads or a request is queued."""
        if self._open is not None or not self._may_lead():
            return None
        leading = self._leading
        result = None
        try:
            if not leading.acquire(False):
                return None
            if self._open is None and not self._stopped:
                result = action(*arguments)
        except BaseException:
            if leading._is_owned():  # type: ignore[attr-defined]
                leading.release()
            self._wake_open_batch()
            raise
        leading.release()
        if self._open is not None:
            self._wake_open_batch()
        return result

    def _is_in_grace(self) -> bool:
        """Return True during the grace period for the threads that the last commit released."""
        return monotonic() < self._grace_ends and not self._stopped

    def _may_lead(self) -> bool:
        """Return False while released threads have their grace period, and in a thread that leads already."""
        if self._last_batch.waiting and self._is_in_grace():
            return False
        return not self._leading._is_owned()  # type: ignore[attr-defined]

    def drive(self, completion: Completion, deadline: float | None = None) -> None:
        """Wait until the completion's batch is committed, by this thread or another, or until the deadline."""
        assert isinstance(completion, CommitRequest)
        batch = completion.batch
        if batch is None:
            return
        thread, waiting = get_ident(), batch.waiting
        gate, polls = None, False
        try:
            while not batch.committed:
                waiting.discard(thread)
                if self._lead():
                    continue
                if deadline is None and self._leading._is_owned():  # type: ignore[attr-defined]
                    raise IllegalOperationError("a hook cannot wait for the commit that called it")
                if gate is None:
                    # One waiter must time out on its own: the thread that should wake it may have died.
                    gate, polls = batch.next_gate(), not waiting
                waiting.add(thread)
                if deadline is None and not polls:
                    gate.acquire()
                else:
                    longest = FOLLOWER_GRACE if self._last_batch.waiting and self._is_in_grace() else LOST_WAKEUP_POLL
                    timeout = longest if deadline is None else max(0.0, min(deadline - monotonic(), longest))
                    if not gate.acquire(True, timeout) and deadline is not None and monotonic() >= deadline:
                        # No other thread may be left to lead the batch.
                        self.schedule_background()
                        return
                # A spuriously woken thread polls from now on: the polling thread may have woken it when it left.
                polls = True
        finally:
            # First, even if the wait was interrupted: wake the next thread.
            if gate is not None and batch.committed:
                open_gate(gate)
            else:
                batch.wake()
            waiting.discard(thread)
            if not waiting:
                self._wake_open_batch()

    def flush(self) -> None:
        """Commit everything submitted before the call."""
        with self.lock:
            batch = self._open
        if batch is not None:
            probe = CommitRequest(self, ())
            probe.batch = batch
            self.drive(probe)
        with self.paused():
            # A commit that was in progress at the call has ended when its leader releases the lock.
            pass

    def paused(self) -> RLock:
        """Return a context manager that blocks commits inside the block; requests submitted meanwhile wait.

        It is the leader's lock, which an interruption at either end of the block leaves free."""
        if self._leading._is_owned():  # type: ignore[attr-defined]
            raise IllegalOperationError("a hook cannot pause the commit that called it")
        return self._leading

    @contextmanager
    def shut_down(self) -> Iterator[None]:
        """Stop for good. No commit runs in another thread inside the block, and all requests are completed after it.

        Unlike :meth:`paused`, it may be called inside a commit. The store must already refuse every request.
        """
        self._is_shut_down = self._stopped = True
        with self._leading:
            yield
        self._wake_open_batch()
        if self._background is not None:
            self.hurry()

    def schedule_background(self) -> None:
        """Have the background thread commit queued requests that no thread waits for."""
        if self._background is None:
            with self.lock:
                if self._background is None and not self._stopped:
                    background = Thread(target=self._run_background, name="bookstand-commit", daemon=True)
                    background.start()
                    # After an interruption here the next call starts a second thread, which does no harm.
                    self._background = background
        if self._work_queued.locked():
            open_gate(self._work_queued)

    def hurry(self) -> None:
        """Have the background thread commit without delay."""
        open_gate(self._expedited)
        self.schedule_background()

    def stop(self) -> None:
        """Commit queued requests and end the background thread."""
        self.flush()
        self._stopped = True
        background = self._background
        if background is not None:
            self.hurry()
            from threading import current_thread

            if background is not current_thread():
                background.join()

    def _lead(self) -> bool:
        """Commit the open batch unless another thread leads. Return True if this thread led."""
        if not self._may_lead():
            return False
        batch: Batch | None = None
        later: list[Callable[[], None]] = []
        try:
            if not self._leading.acquire(False):
                return False
            with self.lock:
                batch, self._open = self._open, None
            if batch is not None:
                self._commit_batch(batch, later)
            self._end_lead(batch, later)
        except BaseException as interruption:
            for left in reversed(range(_ATTEMPTS)):
                try:
                    self._give_up_lead(batch, later, interruption)
                    break
                except BaseException:
                    # A second exception, for example for lack of memory. Other threads wait for the rest.
                    if not left:
                        raise
            raise
        return True

    def _give_up_lead(self, batch: Batch | None, later: list[Callable[[], None]], interruption: BaseException) -> None:
        if batch is not None and batch.requests:
            if batch.outcomes is None:
                batch.outcomes = [(None, _outcome_after(interruption))] * len(batch.requests)
            _complete_all(batch, later)
        self._end_lead(batch, later)

    def _commit_batch(self, batch: Batch, later: list[Callable[[], None]]) -> None:
        began = monotonic()
        with self.lock:
            for request in batch.requests:
                request.on_sealed()
        batch.outcomes = self._commit(batch.requests)
        ended = monotonic()
        self._grace_ends = ended + FOLLOWER_GRACE if ended - began > FOLLOWER_GRACE_MIN_COMMIT else ended
        crash = _complete_all(batch, later)
        if crash is not None:
            raise crash

    def _end_lead(self, batch: Batch | None, later: list[Callable[[], None]]) -> None:
        """Release the lead, wake threads and run callbacks. Can be repeated after an interruption."""
        if batch is not None:
            self._last_batch = batch
            batch.committed = True
        if self._leading._is_owned():  # type: ignore[attr-defined]
            self._leading.release()
        if batch is not None:
            batch.wake()
        if batch is None or not (batch.waiting and self._is_in_grace()):
            self._wake_open_batch()
        call_all(later)

    def _lead_suppressing(self) -> None:
        """Lead, and suppress errors: the submitters have them already, and the background thread must continue."""
        try:
            self._lead()
        except SimulatedCrash:
            # The store is closed already, and every user gets the crash as an error.
            pass
        except Exception:
            logger().exception("a commit was interrupted")

    def _wake_open_batch(self) -> None:
        open_batch = self._open
        if open_batch is not None:
            open_batch.wake()
            if self._is_shut_down:
                # No other thread may be left to fail these requests.
                self._lead()

    def _run_background(self) -> None:
        while not self._stopped:
            self._work_queued.acquire()
            batch = self._open
            while batch is not None:
                self._expedited.acquire(True, LINGER)
                if batch is self._open:
                    self._lead_suppressing()
                # Another thread leads, or more requests have arrived: continue until nothing is queued.
                batch = self._open
        # Pass the signal on to a second background thread, if an interruption caused two to start.
        open_gate(self._work_queued)


def _outcome_after(interruption: BaseException) -> BookstandError:
    if isinstance(interruption, SimulatedCrash):
        return interruption.reason
    return OutcomeUnknownError(f"the commit was interrupted by {interruption!r}")


def _complete_all(batch: Batch, later: list[Callable[[], None]]) -> SimulatedCrash | None:
    """Complete each request with its outcome, independently of the others. Return a crash simulated by one of their
    hooks. Can be repeated after an interruption: the first outcome of a request counts."""
    assert batch.outcomes is not None
    crash: SimulatedCrash | None = None
    interruption: Exception | None = None
    for request, (value, error) in zip(batch.requests, batch.outcomes, strict=True):
        try:
            if crash is None:
                request.on_committed(value, error, later)
            else:
                request.on_committed(None, crash.reason, later)
        except SimulatedCrash as caught:
            crash = caught
            request.on_committed(None, crash.reason, later)
        except Exception as failure:
            # After an interruption, try again. A hook's error belongs to its own request.
            try:
                request.on_committed(value, error, later)
                interruption = failure
            except Exception:
                logger().exception("a commit request could not be completed")
                later += request.settle(error=failure)
    # A request refers to its batch: break the cycle, which would keep both until the next garbage collection.
    batch.requests, batch.outcomes = [], None
    if interruption is not None and crash is None:
        raise interruption
    return crash


def call_all(callbacks: list[Callable[[], None]]) -> None:
    """Call and remove each callback. All are called even if some raise; the first exception is raised at the end. An
    interrupted callback is called again, so callbacks must be idempotent."""
    first: BaseException | None = None
    while callbacks:
        try:
            callbacks[0]()
        except BaseException as failure:
            first = first or failure
            if not isinstance(failure, BookstandError | SimulatedCrash):
                with suppress(Exception):
                    callbacks[0]()
        del callbacks[0]
    if first is not None:
        raise first
