"""What a submit returns at once: a :class:`Pending` that completes later.

Many Pendings may share one :class:`Completion` (all appends that travel in one commit do), so that completing costs
the same for one append as for two thousand. A Completion has no thread of its own: whoever waits drives it.
"""

from __future__ import annotations

from threading import Lock
from time import monotonic

from bookstand.errors import IncorrectParameterError, OperationTimeoutError
from bookstand.storage.logger import logger
from bookstand.storage.process.fork_guard import ProcessBound, call_in_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Any, Protocol

    class Driver(Protocol):
        """Whoever can move a completion forward."""

        def drive(self, completion: Completion, deadline: float | None) -> None:
            """Work on it in this thread, or wait for the thread that does, until it is done or the deadline passes."""

        def hurry(self) -> None:
            """Somebody wants the result without waiting for it in a thread: let the background do the work."""


class _AnotherThread(ProcessBound):
    """Driver of completions that another thread completes. A forked child has no other thread."""

    def drive(self, completion: Completion, deadline: float | None) -> None:
        """Do nothing: the other thread needs no help."""

    def hurry(self) -> None:
        """Do nothing."""


# Guards the rare paths only: registering callbacks and events, against completing.
_lock = Lock()
_another_thread = _AnotherThread()


def _renew() -> None:
    """In a forked child: replace what another thread of the parent may hold for ever."""
    global _lock, _another_thread
    _lock = Lock()
    # The former one is disabled, which ends the waiting for completions of the parent.
    _another_thread = _AnotherThread()


call_in_child(_renew)

# Seconds after which a waiting thread looks whether its wake-up was lost: the thread that should wake it may have been
# interrupted.
LOST_WAKEUP_POLL = 0.05


def shut_gate() -> Lock:
    """A lock at which threads wait until it is opened."""
    gate = Lock()
    gate.acquire()
    return gate


def open_gate(gate: Lock) -> None:
    """Let one thread through. A gate that is open stays open."""
    try:
        gate.release()
    except RuntimeError:
        pass


class Waiters:
    """Threads that wait for something to happen. Unlike with a Condition, an interrupted thread leaves no lock
    behind."""

    def __init__(self) -> None:
        self._gates: list[Lock] = []

    def __len__(self) -> int:
        return len(self._gates)

    def wait(self, timeout: float, has_happened: Callable[[], bool]) -> None:
        """Wait until :meth:`notify` is called, unless it has happened already, or for so many seconds."""
        gate = shut_gate()
        try:
            self._gates.append(gate)
            # After that: what happens from now on is not missed.
            if not has_happened():
                gate.acquire(True, timeout)
        finally:
            self._gates.remove(gate)

    def notify(self) -> None:
        """Wake all."""
        for gate in list(self._gates):
            open_gate(gate)


class Completion:
    """Done or not, with a value or an error. Without a ``driver`` another thread completes it unasked."""

    __slots__ = ("_callbacks", "_gate", "done", "driver", "error", "value")

    def __init__(self, driver: Driver | None = None) -> None:
        self.driver = _another_thread if driver is None else driver
        self.done = False
        self.error: BaseException | None = None
        self.value: Any = None
        self._callbacks: list[Callable[[], None]] | None = None
        self._gate: Lock | None = None

    def settle(self, value: Any = None, error: BaseException | None = None) -> Sequence[Callable[[], None]]:
        """Make it done, and return what is to be called now. The first outcome stands; a call that was interrupted is
        repeated."""
        with _lock:
            if not self.done:
                self.value = value
                self.error = error
                self.done = True
            gate = self._gate
        if gate is not None:
            open_gate(gate)
        return (self._call_back,) if self._callbacks else ()

    def _call_back(self) -> None:
        callbacks = self._callbacks
        while callbacks:
            callback = _nothing
            try:
                with _lock:
                    # Another thread may do the same. Nothing here is a call, so an interruption does not lose it.
                    if callbacks:
                        callback = callbacks[0]
                        del callbacks[0]
                callback()
            except BaseException:
                # It may have been interrupted before it did anything.
                callback()
                raise

    def complete(self, value: Any = None, error: BaseException | None = None) -> None:
        for callback in self.settle(value, error):
            callback()

    def wait(self, timeout: float | None = None) -> None:
        """Until done; :class:`OperationTimeoutError` if that takes longer than ``timeout`` seconds."""
        if timeout is not None and not isinstance(timeout, int | float):
            raise IncorrectParameterError(f"a timeout is a number of seconds or None, not {timeout!r}")
        deadline = None if timeout is None else monotonic() + timeout
        self.driver.drive(self, deadline)
        if self.done:
            return
        with _lock:
            if self.done:
                return
            if self._gate is None:
                self._gate = shut_gate()
            gate = self._gate
        while not self.done:
            rest = LOST_WAKEUP_POLL if deadline is None else min(LOST_WAKEUP_POLL, deadline - monotonic())
            if gate.acquire(True, max(0.0, rest)):
                # For the next one.
                open_gate(gate)
            elif rest <= 0 and not self.done:
                raise OperationTimeoutError(f"not complete after {timeout} s")

    def when_done(self, callback: Callable[[], None]) -> None:
        with _lock:
            if not self.done:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                callback = _nothing
        callback()

    def hurry(self) -> None:
        if not self.done:
            self.driver.hurry()


def _nothing() -> None:
    pass


class Pending:
    """The result of an operation that may still be under way.

    What a Pending completed for without an error is durable, as far as the store's durability reaches.
    """

    # Filled in by who makes it: an __init__ would double what an append costs.
    __slots__ = ("_completion", "_value")

    _completion: Completion
    _value: Any

    def result(self, timeout: float | None = None) -> Any:
        """Wait, and return the result or raise the error; :class:`OperationTimeoutError` after ``timeout`` seconds."""
        completion = self._completion
        if not completion.done:
            completion.wait(timeout)
        if completion.error is not None:
            raise completion.error.with_traceback(None)
        return completion.value if self._value is None else self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the error or None."""
        if not self._completion.done:
            self._completion.wait(timeout)
        return self._completion.error

    def done(self) -> bool:
        """Whether it is complete, with a result or an error."""
        return self._completion.done

    def add_done_callback(self, callback: Callable[[Pending], object]) -> None:
        """Call ``callback(self)`` when done: at once if it is, else in the thread that completes it."""

        def call() -> None:
            try:
                callback(self)
            except Exception:
                logger().exception("a callback of a Pending failed")

        self._completion.when_done(call)
        self._completion.hurry()

    def __await__(self) -> Generator[Any, None, Any]:
        if not self._completion.done:
            import asyncio

            loop = asyncio.get_running_loop()
            woken = loop.create_future()

            def wake() -> None:
                if not woken.done():
                    woken.set_result(None)

            def wake_from_any_thread() -> None:
                try:
                    loop.call_soon_threadsafe(wake)
                except RuntimeError:
                    # The loop was closed: nobody awaits any more.
                    pass

            self._completion.when_done(wake_from_any_thread)
            self._completion.hurry()
            yield from woken.__await__()
        return self.result()

    def __repr__(self) -> str:
        state = "pending" if not self.done() else "failed" if self._completion.error else "done"
        return f"<Pending {state}>"


def pending_for(completion: Completion, value: Any = None) -> Pending:
    """``value`` is the result where it is known beforehand; else the completion brings it."""
    pending = Pending()
    pending._completion = completion
    pending._value = value
    return pending


def completed(value: Any = None, error: BaseException | None = None) -> Pending:
    """A Pending that is done already."""
    completion = Completion()
    completion.complete(value, error)
    return pending_for(completion)


def with_result(pending: Pending, value: Any) -> Pending:
    """Done when ``pending`` is, with another result."""
    return pending_for(pending._completion, value)
