"""Futures: a submit returns a :class:`Pending` that completes later.

Several Pendings may share one :class:`Completion` (all appends of one commit do), so completing two thousand appends
costs as much as completing one. A Completion has no thread: the one that waits for it drives it.
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
        """An object that makes progress on a completion."""

        def drive(self, completion: Completion, deadline: float | None) -> None:
            """Complete it in this thread, or wait for the thread that does, until it is done or the deadline passes."""

        def hurry(self) -> None:
            """Have a background thread complete it: a caller needs the result but does not block for it."""


class _AnotherThread(ProcessBound):
    """Driver of completions that another thread completes. A forked child has no such thread."""

    def drive(self, completion: Completion, deadline: float | None) -> None:
        """Do nothing: the other thread completes it."""

    def hurry(self) -> None:
        """Do nothing."""


# Guards only the rare paths: registering callbacks and gates, against completing.
_lock = Lock()
_another_thread = _AnotherThread()


def _renew() -> None:
    """In a forked child: replace a lock that another thread of the parent may have held."""
    global _lock, _another_thread
    _lock = Lock()
    # The previous driver is disabled, so waiting for a completion of the parent raises.
    _another_thread = _AnotherThread()


call_in_child(_renew)

# Seconds between two checks of a waiting thread for a wake-up that an interruption has lost.
LOST_WAKEUP_POLL = 0.05


def shut_gate() -> Lock:
    """Return a lock at which a thread waits until another one opens it."""
    gate = Lock()
    gate.acquire()
    return gate


def open_gate(gate: Lock) -> None:
    """Let one thread through. An open gate stays open."""
    try:
        gate.release()
    except RuntimeError:
        pass


class Waiters:
    """Threads that wait for an event. Unlike with a Condition, an interrupted thread leaves no lock held."""

    def __init__(self) -> None:
        self._gates: list[Lock] = []

    def __len__(self) -> int:
        return len(self._gates)

    def wait(self, timeout: float, has_happened: Callable[[], bool]) -> None:
        """Wait until :meth:`notify` is called, the event has happened already, or ``timeout`` seconds have passed."""
        gate = shut_gate()
        try:
            self._gates.append(gate)
            # Checked after registration, so that no notification is lost.
            if not has_happened():
                gate.acquire(True, timeout)
        finally:
            self._gates.remove(gate)

    def notify(self) -> None:
        for gate in list(self._gates):
            open_gate(gate)


class Completion:
    """A result or an error, once it is done. Without a ``driver`` another thread completes it."""

    __slots__ = ("_callbacks", "_gate", "done", "driver", "error", "value")

    def __init__(self, driver: Driver | None = None) -> None:
        self.driver = _another_thread if driver is None else driver
        self.done = False
        self.error: BaseException | None = None
        self.value: Any = None
        self._callbacks: list[Callable[[], None]] | None = None
        self._gate: Lock | None = None

    def settle(self, value: Any = None, error: BaseException | None = None) -> Sequence[Callable[[], None]]:
        """Set the outcome once; return the callbacks to run. Can be repeated after an interruption."""
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
                    # Another thread may do the same. An interruption loses no callback: neither statement is a call.
                    if callbacks:
                        callback = callbacks[0]
                        del callbacks[0]
                callback()
            except BaseException:
                # An interruption may have come before the callback did anything.
                callback()
                raise

    def complete(self, value: Any = None, error: BaseException | None = None) -> None:
        for callback in self.settle(value, error):
            callback()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until done; :class:`OperationTimeoutError` after ``timeout`` seconds."""
        if timeout is not None and not isinstance(timeout, int | float):
            raise IncorrectParameterError(f"timeout must be a number of seconds or None, not {timeout!r}")
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
                # Let the next waiting thread through.
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
    """Future result of an operation.

    When a Pending completes without an error, its operation is as durable as the store's durability setting promises.
    """

    # Set by the creator: an __init__ would double the cost of an append.
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
        """Return True if it has completed, with a result or an error."""
        return self._completion.done

    def add_done_callback(self, callback: Callable[[Pending], object]) -> None:
        """Call ``callback(self)`` on completion: immediately if done, else in the thread that completes it."""

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
                    # The loop is closed: no coroutine awaits the result.
                    pass

            self._completion.when_done(wake_from_any_thread)
            self._completion.hurry()
            yield from woken.__await__()
        return self.result()

    def __repr__(self) -> str:
        state = "pending" if not self.done() else "failed" if self._completion.error else "done"
        return f"<Pending {state}>"


def pending_for(completion: Completion, value: Any = None) -> Pending:
    """Create a Pending with a result that is known already, or else with the completion's."""
    pending = Pending()
    pending._completion = completion
    pending._value = value
    return pending


def completed(value: Any = None, error: BaseException | None = None) -> Pending:
    completion = Completion()
    completion.complete(value, error)
    return pending_for(completion)


def with_result(pending: Pending, value: Any) -> Pending:
    """Create a Pending that completes with ``pending``, but with another result."""
    return pending_for(pending._completion, value)
