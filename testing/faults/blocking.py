"""Operations that a rule blocks for a time, or until a test releases them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Event, Lock

from bookstand.errors import BookstandError, IncorrectParameterError

GoOn = Callable[[BookstandError | None], None]


class BlockedOperation:
    """Blocked operation that resumes exactly once, with or without an error; only the first release counts."""

    def __init__(self, go_on: GoOn) -> None:
        self._go_on: GoOn | None = go_on
        self._lock = Lock()

    def let_go(self, error: BookstandError | None = None) -> None:
        with self._lock:
            go_on, self._go_on = self._go_on, None
        if go_on is not None:
            go_on(error)


class BlockedCall:
    """Block of a waiting thread: ``wait`` returns or raises when :class:`BlockedOperation` calls ``go_on``."""

    def __init__(self) -> None:
        self._gone_on = Event()
        self._error: BookstandError | None = None

    def go_on(self, error: BookstandError | None) -> None:
        self._error = error
        self._gone_on.set()

    def wait(self) -> None:
        self._gone_on.wait()
        if self._error is not None:
            raise self._error.with_traceback(None)


class Stall:
    """Result of :meth:`Faults.stall`: matching operations wait until ``release``.

    An append waits without blocking a thread: ``append_async`` returns, and appends and reads of other ledgers proceed.
    Later appends to the same ledger are stored, but not acknowledged before it. Other operations block the calling
    thread. A stalled "commit" blocks all commits of the store.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._held: list[BlockedOperation] = []
        self._count = 0
        self._released = False
        self._error: BookstandError | None = None

    @property
    def held(self) -> int:
        """Number of waiting operations."""
        with self._changed:
            return len(self._held)

    def reached(self, timeout: float | None = 60.0) -> bool:
        """Wait until an operation has been stalled; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count > 0, timeout)

    def reached_by(self, number: int, timeout: float | None = 60.0) -> bool:
        """Wait until ``number`` operations have been stalled; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count >= number, timeout)

    def release(self, error: BookstandError | None = None) -> None:
        """Resume the waiting operations and disable the stall. With ``error`` they fail, and so do later operations
        that the rule would have stalled."""
        if error is not None and not isinstance(error, BookstandError):
            raise IncorrectParameterError(f"what is stalled can fail with an error of bookstand's, not with {error!r}")
        with self._changed:
            if not self._released:
                self._released, self._error = True, error
            held, self._held = self._held, []
        for one in held:
            one.let_go(error)

    def hold(self, one: BlockedOperation) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()
            if not self._released:
                self._held.append(one)
                return
        one.let_go(self._error)
