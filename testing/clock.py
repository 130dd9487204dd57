"""Time for tests: a clock that stands still until it is told to go on, and the machine's where delays really last."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from threading import Condition, Thread
from time import monotonic

from bookstand.errors import IncorrectParameterError
from bookstand.storage.hooks import SimulatedCrash


class VirtualClock:
    """A clock for :func:`bookstand.open` and for the delays of :class:`Faults`; it moves only when it is told to.

    ``advance`` moves it, and does on the way, in order of time, what falls due. With ``auto=True`` nobody has to: what
    would wait moves the clock to the end of its waiting itself, so that delays show in ``now()`` and cost nothing.

    Time-outs of the store (``add_quorum_timeout``, ``result(timeout)``) are in the machine's time all the same.
    """

    def __init__(self, now: int = 0, auto: bool = False) -> None:
        """``now``: milliseconds since the epoch."""
        if isinstance(now, bool) or not isinstance(now, int):
            raise IncorrectParameterError(f"a clock begins at a number of milliseconds, not {now!r}")
        self._changed = Condition()
        self._micros = now * 1000
        self._auto = auto
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return self._micros // 1000

    @property
    def waiting(self) -> int:
        """How many things wait for their time."""
        with self._changed:
            return len(self._due)

    def advance(self, seconds: float) -> None:
        """Move the clock, and do what falls due in this thread."""
        target = self._micros + _micros(seconds)
        while True:
            with self._changed:
                if not self._due or self._due[0][0] > target:
                    self._micros = max(self._micros, target)
                    self._changed.notify_all()
                    return
                at, _, action = heapq.heappop(self._due)
                self._micros = max(self._micros, at)
                self._changed.notify_all()
            action()

    def advance_to_next(self) -> bool:
        """Move the clock to when something falls due, and do that; False where nothing waits."""
        with self._changed:
            if not self._due:
                return False
            rest = max(0, self._due[0][0] - self._micros)
        self.advance(rest / 1_000_000)
        return True

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call ``action`` in the thread that moves the clock past that time."""
        with self._changed:
            at = self._micros + _micros(seconds)
            heapq.heappush(self._due, (at, next(self._numbers), action))
            self._changed.notify_all()
        if self._auto:
            self.advance(seconds)

    def sleep(self, seconds: float) -> None:
        """Wait until somebody has moved the clock by so much."""
        woken: list[bool] = []

        def wake() -> None:
            with self._changed:
                woken.append(True)
                self._changed.notify_all()

        self.call_later(seconds, wake)
        with self._changed:
            self._changed.wait_for(lambda: woken)

    def wait_until_waiting(self, number: int = 1, timeout: float = 60.0) -> bool:
        """Wait, in the machine's time, until so many things wait for theirs; False if they do not come."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._due) >= number, timeout)


class RealClock:
    """The machine's time, for those who do not wait themselves."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._thread: Thread | None = None

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call ``action`` in a thread of the clock's own."""
        with self._changed:
            heapq.heappush(self._due, (monotonic() + seconds, next(self._numbers), action))
            self._changed.notify_all()
            if self._thread is None:
                self._thread = Thread(target=self._run, name="bookstand-delays", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        """Lives as long as something waits."""
        while True:
            with self._changed:
                if not self._due:
                    self._thread = None
                    return
                rest = self._due[0][0] - monotonic()
                if rest > 0:
                    self._changed.wait(rest)
                    continue
                _, _, action = heapq.heappop(self._due)
            try:
                action()
            except SimulatedCrash:
                # Nobody waits in this thread; the store has been closed, and tells everybody.
                continue


def _micros(seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise IncorrectParameterError(f"a time is a number of seconds from 0 up, not {seconds!r}")
    return round(seconds * 1_000_000)
