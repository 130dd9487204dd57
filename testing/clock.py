"""Clocks for tests: a virtual one that only advances on request, and the system clock for real delays."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from threading import Condition, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING

from bookstand.delivery.timer import Alarm
from bookstand.errors import IncorrectParameterError
from bookstand.storage.hooks import SimulatedCrash
from bookstand.storage.process.fork_guard import ProcessBound

if TYPE_CHECKING:
    from bookstand.storage.clock import Clock


class VirtualClock:
    """Virtual clock for :func:`bookstand.open` and for the delays of :class:`Faults`.

    ``advance`` moves the clock and runs due actions in order of time. With ``auto=True``, each wait advances the clock
    to its own end, so delays are visible in ``now()`` and take no time.

    Timeouts of the store (``add_quorum_timeout``, ``result(timeout)``) still use the system clock.
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
        """Return the milliseconds since the epoch."""
        return self._micros // 1000

    @property
    def waiting(self) -> int:
        """Number of pending actions and waits."""
        with self._changed:
            return len(self._due)

    def advance(self, seconds: float) -> None:
        """Move the clock, and run the due actions in this thread."""
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
        """Advance the clock to the next due time and run its actions; return False if nothing is pending."""
        with self._changed:
            if not self._due:
                return False
            rest = max(0, self._due[0][0] - self._micros)
        self.advance(rest / 1_000_000)
        return True

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call ``action`` in the thread that advances the clock past that time."""
        with self._changed:
            at = self._micros + _micros(seconds)
            heapq.heappush(self._due, (at, next(self._numbers), action))
            self._changed.notify_all()
        if self._auto:
            self.advance(seconds)

    def sleep(self, seconds: float) -> None:
        """Wait until another thread has advanced the clock by ``seconds``."""
        woken: list[bool] = []

        def wake() -> None:
            with self._changed:
                woken.append(True)
                self._changed.notify_all()

        self.call_later(seconds, wake)
        with self._changed:
            self._changed.wait_for(lambda: woken)

    def wait_until_waiting(self, number: int = 1, timeout: float = 60.0) -> bool:
        """Wait, by the system clock, until ``number`` actions or waits are pending; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._due) >= number, timeout)


class RealClock:
    """System clock for callers that must not block."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._thread: Thread | None = None

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call ``action`` in the clock's own thread."""
        with self._changed:
            heapq.heappush(self._due, (monotonic() + seconds, next(self._numbers), action))
            self._changed.notify_all()
            if self._thread is None:
                self._thread = Thread(target=self._run, name="bookstand-delays", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        """Run until nothing is pending."""
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
                # No caller waits in this thread. The crash has closed the store, which notifies all callers.
                continue


def _micros(seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise IncorrectParameterError(f"a time is a number of seconds from 0 up, not {seconds!r}")
    return round(seconds * 1_000_000)


class ManualTimer(ProcessBound):
    """Timer for tests and replays: records calls, and fires alarms on request."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._alarms: list[Alarm] = []
        self._canceled: list[Alarm] = []
        self.events: list[tuple[str, int, int] | tuple[str, int]] = []
        """("arm", delay, time) and ("cancel", time), in order of the calls."""

    def arm(self, at: int, action: Callable[[Alarm], object]) -> Alarm:
        alarm = Alarm(at, action, self)
        with self._lock:
            self._alarms.append(alarm)
            self.events.append(("arm", at - self._clock.now(), at))
        return alarm

    def on_cancel(self, alarm: Alarm) -> None:
        with self._lock:
            # An alarm that is being fired was already removed.
            if alarm in self._alarms:
                self._alarms.remove(alarm)
            self._canceled.append(alarm)
            self.events.append(("cancel", alarm.at))

    def close(self) -> None:
        for alarm in list(self._alarms):
            alarm.cancel()

    @property
    def armed(self) -> list[int]:
        """Times of the alarms, ascending."""
        with self._lock:
            return sorted(alarm.at for alarm in self._alarms)

    def fire(self) -> int:
        """Fire all due alarms, including those set meanwhile, and return their number."""
        fired = 0
        while (first := self._take_due()) is not None:
            first.fire()
            fired += 1
        return fired

    def _take_due(self) -> Alarm | None:
        with self._lock:
            due = [alarm for alarm in self._alarms if alarm.at <= self._clock.now()]
            if not due:
                return None
            first = min(due, key=lambda alarm: alarm.at)
            self._alarms.remove(first)
            return first

    def fire_stale(self) -> bool:
        """Fire the alarm that was canceled last, as if it had already started firing; False if none was canceled."""
        if not self._canceled:
            return False
        self._canceled.pop().fire()
        return True
