"""Group commit: whoever waits commits for all.

Submissions gather in the open :class:`Batch`. The first thread that waits for one of them becomes the leader: it takes
the whole batch and commits it in one transaction, in its own thread, so that a lone durable append pays for no
hand-over. Threads that come meanwhile wait at their batch's gates. A finished leader opens those of the batch it
committed, and each woken thread passes its gate on to the next. The last of them opens the gates of the batch that
gathered meanwhile, and the first one there leads it: until then those who were answered have mostly come again, so that
one commit does for all. They are waited for no longer than ``FOLLOWER_GRACE`` seconds, and not at all where a commit
takes less time than that would. One waiting thread polls every ``LOST_WAKEUP_POLL`` seconds in case its wake-up was
lost: the threads before it may be held up by a signal's handler that waits, or may have been interrupted.

An exception may interrupt the leader between any two steps. The leader then gives up the lead, and repeats what follows
the commit (telling every submission its outcome, waking threads, calling callbacks): each of these steps can be
repeated. A commit that was interrupted has an unknown outcome.

A background thread commits what nobody waits for. It starts with the first such submission, and gives the submitter
``LINGER`` seconds to come and wait itself, because one thread is cheaper than two.
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

# So often what follows an interrupted commit is repeated if it is interrupted as well.
_ATTEMPTS = 100

# So many threads are woken one after the other in no time.
_FEW = 8


class CommitRequest(Completion):
    """Operations on their way to the store, and whoever waits for them."""

    __slots__ = ("batch", "operations")

    def __init__(self, committer: GroupCommitter | None, operations: Sequence[Operation]) -> None:
        super().__init__(committer)
        self.operations = operations
        self.batch: Batch | None = None

    def taken(self) -> None:
        """A leader has taken the batch: nothing may be added to the operations any more. Called under the lock."""

    def finished(self, value: Any, error: BaseException | None, later: list[Callable[[], None]]) -> None:
        """The commit has come to its end. Runs in the leader; what users may see happens through ``later``."""
        later += self.settle(value, error)


class Batch:
    """What one commit will cover. Its gates are open while there is something that a waiting thread should look at.

    Many wait at two of them, so that the next thread wakes up while one runs. For few that takes longer, and so would
    a third gate for many.
    """

    __slots__ = ("committed", "gates", "outcomes", "submissions", "waiting")

    def __init__(self) -> None:
        self.submissions: list[CommitRequest] = []
        # Of each submission, from the end of the commit until all have been told.
        self.outcomes: list[Outcome] | None = None
        self.committed = False
        self.gates = shut_gate(), shut_gate()
        # The threads that wait for it.
        self.waiting: set[int] = set()

    def gate_for_one_more(self) -> Lock:
        waiting = len(self.waiting)
        return self.gates[waiting % 2 if waiting > _FEW else 0]

    def wake(self) -> None:
        """Let a waiting thread through at each gate."""
        for gate in self.gates:
            open_gate(gate)


class GroupCommitter(ProcessBound):
    """Owns the open batch. ``lock`` guards it, and all that writers must keep consistent with what they submit."""

    def __init__(self, commit: Callable[[list[CommitRequest]], list[Outcome]]) -> None:
        self.lock = Lock()
        self._commit = commit
        self._open: Batch | None = None
        # Held by the thread that commits. Its owner must not wait for a commit: a hook may call the store from one.
        self._leading = RLock()
        # The batch that was committed last, and until when those who waited for it are waited for.
        self._answered = Batch()
        self._rally_ends = 0.0
        self._background: Thread | None = None
        # Gates of the background thread, which shuts them as it passes. Unlike an Event, an interrupted thread leaves
        # no lock behind.
        self._nudged = shut_gate()
        self._hurried = shut_gate()
        self._stopped = False
        self._halted = False

    @property
    def idle(self) -> bool:
        """Nothing is queued. Says nothing of a commit under way."""
        return self._open is None

    def submit(self, submission: CommitRequest, awaited: bool = True) -> None:
        """Queue it. What nobody is going to wait for, the background commits."""
        with self.lock:
            self.enqueue(submission)
        if not awaited:
            self.nudge()

    def enqueue(self, submission: CommitRequest) -> None:
        """Put it into the open batch; the caller holds ``lock``."""
        batch = self._open
        if batch is None:
            batch = self._open = Batch()
        submission.batch = batch
        batch.submissions.append(submission)

    def alone(self, action: Callable[..., T], *arguments: Any) -> T | None:
        """Call the action while this thread leads without a batch, and return its result. Return None without calling
        it if anything is queued, or a thread leads."""
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

    def _is_rallying(self) -> bool:
        """Whether those who were answered last are waited for, as long as there are any."""
        return monotonic() < self._rally_ends and not self._stopped

    def _may_lead(self) -> bool:
        """Return False while the threads answered last are waited for, and in a thread that leads already."""
        if self._answered.waiting and self._is_rallying():
            return False
        return not self._leading._is_owned()  # type: ignore[attr-defined]

    def drive(self, completion: Completion, deadline: float | None = None) -> None:
        """Return when the completion's batch has been committed, by this thread or another, or at the deadline."""
        assert isinstance(completion, CommitRequest)
        batch = completion.batch
        if batch is None:
            return
        thread, waiting = get_ident(), batch.waiting
        gate, looks_out = None, False
        try:
            while not batch.committed:
                waiting.discard(thread)
                if self._lead():
                    continue
                if deadline is None and self._leading._is_owned():  # type: ignore[attr-defined]
                    raise IllegalOperationError("a hook cannot wait for the commit that it is called from")
                if gate is None:
                    # Somebody must wake up by himself: who is to wake him may be gone.
                    gate, looks_out = batch.gate_for_one_more(), not waiting
                waiting.add(thread)
                if deadline is None and not looks_out:
                    gate.acquire()
                else:
                    longest = FOLLOWER_GRACE if self._answered.waiting and self._is_rallying() else LOST_WAKEUP_POLL
                    patience = longest if deadline is None else max(0.0, min(deadline - monotonic(), longest))
                    if not gate.acquire(True, patience) and deadline is not None and monotonic() >= deadline:
                        # Who has no time to wait may have been the one who would have led.
                        self.nudge()
                        return
                # Whoever was woken for nothing, perhaps by the one who looked out, does it from now on.
                looks_out = True
        finally:
            # First of all, and also where an interruption ends the waiting: the next one is to look.
            if gate is not None and batch.committed:
                open_gate(gate)
            else:
                batch.wake()
            waiting.discard(thread)
            if not waiting:
                self._wake_open_batch()

    def flush(self) -> None:
        """Commit whatever has been submitted before the call."""
        with self.lock:
            batch = self._open
        if batch is not None:
            probe = CommitRequest(self, ())
            probe.batch = batch
            self.drive(probe)
        with self.paused():
            # A commit that was under way when we came is over once its leader lets go.
            pass

    def paused(self) -> RLock:
        """Return a context manager: nothing is committed inside the block; what is submitted meanwhile waits.

        It is a lock: an interruption at either end of the block leaves it free."""
        if self._leading._is_owned():  # type: ignore[attr-defined]
            raise IllegalOperationError("a hook cannot stop the commit that it is called from")
        return self._leading

    @contextmanager
    def halted(self) -> Iterator[None]:
        """For good: no commit is under way in another thread inside the block, and whoever waits is answered after it.

        Unlike :meth:`paused` it may be called from inside a commit. What is submitted must be refused by now.
        """
        self._halted = self._stopped = True
        with self._leading:
            yield
        self._wake_open_batch()
        if self._background is not None:
            self.hurry()

    def nudge(self) -> None:
        """Something was submitted that its submitter does not wait for."""
        if self._background is None:
            with self.lock:
                if self._background is None and not self._stopped:
                    background = Thread(target=self._run_background, name="bookstand-commit", daemon=True)
                    background.start()
                    # Interrupted before, the next call starts another one: two do no harm.
                    self._background = background
        if self._nudged.locked():
            open_gate(self._nudged)

    def hurry(self) -> None:
        """Have the background commit now."""
        open_gate(self._hurried)
        self.nudge()

    def stop(self) -> None:
        """Commit what is queued, and end the background thread."""
        self.flush()
        self._stopped = True
        background = self._background
        if background is not None:
            self.hurry()
            from threading import current_thread

            if background is not current_thread():
                background.join()

    def _lead(self) -> bool:
        """Commit the open batch, unless another thread leads. Return whether this thread led."""
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
                    # A second one, where memory is short, say. Others wait for what is left to do.
                    if not left:
                        raise
            raise
        return True

    def _give_up_lead(self, batch: Batch | None, later: list[Callable[[], None]], interruption: BaseException) -> None:
        if batch is not None and batch.submissions:
            if batch.outcomes is None:
                batch.outcomes = [(None, _outcome_after(interruption))] * len(batch.submissions)
            _tell(batch, later)
        self._end_lead(batch, later)

    def _commit_batch(self, batch: Batch, later: list[Callable[[], None]]) -> None:
        began = monotonic()
        with self.lock:
            for submission in batch.submissions:
                submission.taken()
        batch.outcomes = self._commit(batch.submissions)
        ended = monotonic()
        self._rally_ends = ended + FOLLOWER_GRACE if ended - began > FOLLOWER_GRACE_MIN_COMMIT else ended
        crash = _tell(batch, later)
        if crash is not None:
            raise crash

    def _end_lead(self, batch: Batch | None, later: list[Callable[[], None]]) -> None:
        """Give up the lead, wake threads and call back. An interrupted call is repeated."""
        if batch is not None:
            self._answered = batch
            batch.committed = True
        if self._leading._is_owned():  # type: ignore[attr-defined]
            self._leading.release()
        if batch is not None:
            batch.wake()
        if batch is None or not (batch.waiting and self._is_rallying()):
            self._wake_open_batch()
        call_all(later)

    def _lead_on(self) -> None:
        """Lead, whatever happens: those who submitted have heard of it, and others will submit."""
        try:
            self._lead()
        except SimulatedCrash:
            # The store is closed by now, and whoever uses it hears of the crash.
            pass
        except Exception:
            logger().exception("a commit was interrupted")

    def _wake_open_batch(self) -> None:
        gathering = self._open
        if gathering is not None:
            gathering.wake()
            if self._halted:
                # There may be nobody else any more to tell those who gathered that they are refused.
                self._lead()

    def _run_background(self) -> None:
        while not self._stopped:
            self._nudged.acquire()
            batch = self._open
            while batch is not None:
                self._hurried.acquire(True, LINGER)
                if batch is self._open:
                    self._lead_on()
                # Somebody is at it, or has come meanwhile with more: stay until nothing is left.
                batch = self._open
        # For another one, if an interruption had two started.
        open_gate(self._nudged)


def _outcome_after(interruption: BaseException) -> BookstandError:
    """What to tell those whose commit was interrupted."""
    if isinstance(interruption, SimulatedCrash):
        return interruption.reason
    return OutcomeUnknownError(f"the commit was interrupted by {interruption!r}")


def _tell(batch: Batch, later: list[Callable[[], None]]) -> SimulatedCrash | None:
    """Let every submission know its outcome, whatever becomes of the others; return the crash that a hook of one of
    them simulated. An interrupted call is repeated: the first outcome of a submission stands."""
    assert batch.outcomes is not None
    crash: SimulatedCrash | None = None
    interruption: Exception | None = None
    for submission, (value, error) in zip(batch.submissions, batch.outcomes, strict=True):
        try:
            if crash is None:
                submission.finished(value, error, later)
            else:
                submission.finished(None, crash.reason, later)
        except SimulatedCrash as caught:
            crash = caught
            submission.finished(None, crash.reason, later)
        except Exception as failure:
            # An interruption is over, and this can be repeated; a hook's error is its own submission's.
            try:
                submission.finished(value, error, later)
                interruption = failure
            except Exception:
                logger().exception("a submission could not be answered")
                later += submission.settle(error=failure)
    # A submission knows its batch: both would live on until the next garbage collection.
    batch.submissions, batch.outcomes = [], None
    if interruption is not None and crash is None:
        raise interruption
    return crash


def call_all(callbacks: list[Callable[[], None]]) -> None:
    """Call each and remove it, also after one that raises: others wait for what they do. The first exception is raised
    at the end. One that was interrupted is called again; so all must allow for that."""
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
