"""What a rule keeps from going on: for a while, or until a test lets it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Event, Lock

from bookstand.errors import BookstandError, IncorrectParameterError

GoOn = Callable[[BookstandError | None], None]


class BlockedOperation:
    """Something on its way that goes on once, with or without an error, whoever lets it go first."""

    def __init__(self, go_on: GoOn) -> None:
        self._go_on: GoOn | None = go_on
        self._lock = Lock()

    def let_go(self, error: BookstandError | None = None) -> None:
        with self._lock:
            go_on, self._go_on = self._go_on, None
        if go_on is not None:
            go_on(error)


class BlockedCall:
    """For operations whose thread waits: ``go_on`` is given to a :class:`BlockedOperation`, ``wait`` returns or raises
    then."""

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
    """What :meth:`Faults.stall` gives: operations that it meets wait until ``release``.

    An append waits without a thread: ``append_async`` returns, other ledgers' appends and reads go on, and so do later
    appends to the same ledger, which are stored, but not acknowledged before it. Everything else waits in the thread
    that called it. A stalled "commit" holds up all commits of the store.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._held: list[BlockedOperation] = []
        self._count = 0
        self._released = False
        self._error: BookstandError | None = None

    @property
    def held(self) -> int:
        """How many operations wait."""
        with self._changed:
            return len(self._held)

    def reached(self, timeout: float | None = 60.0) -> bool:
        """Wait until an operation has come here; False if none does within so many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count > 0, timeout)

    def reached_by(self, number: int, timeout: float | None = 60.0) -> bool:
        """The same for so many operations."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count >= number, timeout)

    def release(self, error: BookstandError | None = None) -> None:
        """Let everything go on that waits, and stop nothing from now on; with an error they fail with it, and so does
        what comes later, as far as the rule would have stopped it."""
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
