"""Timers: something is done at a time, unless it was cancelled before.

An alarm rings at its time or after it, never before. Cancelling it does not stop one that is ringing already, in
another thread: who is rung finds out under his own lock whether the alarm, which he is given, is still his.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from sys import is_finalizing
from threading import Condition, Lock, RLock, Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Protocol, cast

from bookstand.storage.hooks import SimulatedCrash
from bookstand.storage.logger import logger
from bookstand.storage.process.fork_guard import ProcessBound, notify_of_forks

if TYPE_CHECKING:
    from bookstand.storage.clock import Clock

# Clocks may be set, and machines sleep: how long the thread waits, in seconds, without a look at the clock.
_LOOK = 1.0
# How long the thread waits for something to do, in seconds, before it ends.
_LINGER = 5.0


class Alarm:
    """``at`` is in milliseconds of the timer's clock."""

    __slots__ = ("_action", "_timer", "at", "live")

    def __init__(self, at: int, action: Callable[[Alarm], object], timer: Timer) -> None:
        self.at = at
        self.live = True
        self._action = action
        self._timer = timer

    def cancel(self) -> None:
        if self.live:
            self.live = False
            self._timer.cancelled(self)

    def ring(self) -> None:
        """Whatever it says, for the timer alone to call."""
        self.live = False
        self._action(self)


class Timer(Protocol):
    """Safe between threads."""

    def arm(self, at: int, action: Callable[[Alarm], object]) -> Alarm:
        """Call ``action(alarm)`` at ``at``, at once if that has passed; never inside this call."""

    def cancelled(self, alarm: Alarm) -> None:
        """An alarm that was cancelled tells."""

    def close(self) -> None:
        """Nothing rings any more."""


def timer_for(clock: Clock) -> Timer:
    """A clock that can call, as those for tests do, is asked to; for any other there is a thread."""
    if hasattr(clock, "call_later"):
        return ClockTimer(cast("CallingClock", clock))
    return ThreadTimer(clock)


class AlarmQueue:
    """Alarms by time, of which canceled ones take memory for a while at most. Not thread-safe."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Alarm]] = []
        self._numbers = count()
        self._canceled = 0

    def __len__(self) -> int:
        """The number of alarms, with canceled ones that are not dropped yet."""
        return len(self._heap)

    def push(self, alarm: Alarm) -> None:
        heapq.heappush(self._heap, (alarm.at, next(self._numbers), alarm))

    def first(self) -> Alarm | None:
        """The alarm that rings first; None if none is set."""
        while self._heap and not self._heap[0][2].live:
            heapq.heappop(self._heap)
            self._canceled = max(0, self._canceled - 1)
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Alarm:
        """Remove what :meth:`first` returned."""
        return heapq.heappop(self._heap)[2]

    def canceled(self) -> None:
        """Note that an alarm was canceled, and drop canceled ones when they are most of the queue."""
        self._canceled += 1
        if self._canceled > 16 and self._canceled > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].live]
            heapq.heapify(self._heap)
            self._canceled = 0

    def clear(self) -> None:
        """Cancel all alarms, without a word to their timer."""
        for _, _, alarm in self._heap:
            alarm.live = False
        self._heap.clear()


class ThreadTimer:
    """One daemon thread, which is there only while something is armed, and a little longer.

    What is done holds up whatever is due after it. A forked child gets a timer with nothing armed. When the
    interpreter exits, what has not rung does not; then the lock may be held by a thread that is no more, and is not
    asked for.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._closed = False
        self._begin()
        notify_of_forks(self)

    def _begin(self) -> None:
        # An RLock, not the Condition, is entered: an interrupted thread leaves it free.
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._alarms = AlarmQueue()
        self._thread: Thread | None = None

    def arm(self, at: int, action: Callable[[Alarm], object]) -> Alarm:
        alarm = Alarm(at, action, self)
        if is_finalizing():
            alarm.live = False
            return alarm
        with self._lock:
            if self._closed:
                alarm.live = False
                return alarm
            self._alarms.push(alarm)
            # A thread may have ended by an exception that is not for catching.
            if self._thread is None or not self._thread.is_alive():
                self._start()
            elif self._alarms.first() is alarm:
                self._changed.notify()
        return alarm

    def _start(self) -> None:
        self._thread = Thread(target=self._run, name="bookstand-timer", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._thread = None
            # Newer interpreters begin no thread once the main one has ended, when exit handlers may still arm.
            if main_thread().is_alive():
                raise

    def cancelled(self, alarm: Alarm) -> None:
        if is_finalizing():
            return
        with self._lock:
            self._alarms.canceled()

    def close(self) -> None:
        """Nothing begins to ring any more; what is ringing is not waited for."""
        if is_finalizing():
            return
        with self._lock:
            self._closed = True
            self._alarms.clear()
            self._changed.notify()

    def join(self) -> None:
        """Wait for what is ringing, from any other thread; for after :meth:`close`."""
        thread = self._thread
        if thread is not None and thread is not current_thread():
            thread.join()

    def _forked(self) -> None:
        """In the child: the thread is not there, its lock may be held for good."""
        self._alarms.clear()
        self._begin()

    def _run(self) -> None:
        while (alarm := self._next()) is not None:
            try:
                alarm.ring()
            except SimulatedCrash:
                # Nobody waits in this thread; the store has been closed, and tells everybody.
                continue
            except Exception:
                logger().exception("what a timer called failed")
            del alarm

    def _next(self) -> Alarm | None:
        """Wait for what is due; None if nothing was to do for a while."""
        lingering = False
        with self._lock:
            while True:
                first = self._alarms.first()
                if first is None:
                    if lingering or self._closed:
                        self._thread = None
                        return None
                    lingering = not self._changed.wait(_LINGER)
                    continue
                rest = first.at - self._clock.now()
                if rest <= 0:
                    return self._alarms.pop()
                self._changed.wait(min(rest / 1000, _LOOK))


class CallingClock(Protocol):
    """A clock of which somebody else moves the hands."""

    def now(self) -> int:
        """Milliseconds since the epoch."""

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call ``action`` when so much time has passed."""


class ClockTimer(ProcessBound):
    """For a clock that calls: alarms ring in the thread that moves it. Time must not pass by itself in ``arm``.

    A call cannot be canceled, so the clock is asked for one only where no earlier one is pending.
    """

    def __init__(self, clock: CallingClock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._alarms = AlarmQueue()
        # Times of the pending calls, descending.
        self._calls: list[int] = []
        self._closed = False

    def arm(self, at: int, action: Callable[[Alarm], object]) -> Alarm:
        alarm = Alarm(at, action, self)
        with self._lock:
            if self._closed:
                alarm.live = False
                return alarm
            self._alarms.push(alarm)
        self._call_for_first()
        return alarm

    def _call_for_first(self) -> None:
        """Have the clock call when the first alarm is due, or before."""
        with self._lock:
            first = self._alarms.first()
            if first is None or (self._calls and self._calls[-1] <= first.at):
                return
            at = first.at
            self._calls.append(at)
        rest = max(0, at - self._clock.now())
        self._clock.call_later(rest / 1000, lambda: self._called(at))

    def _called(self, at: int) -> None:
        with self._lock:
            self._calls.remove(at)
            first = None if self._closed else self._alarms.first()
            # Seconds as a float are not exact for times that are far away: it may be too early.
            is_due = first is not None and first.at <= self._clock.now()
            if is_due:
                self._alarms.pop()
        try:
            if first is not None and is_due:
                first.ring()
        finally:
            # What follows rings in a call of its own, also if this one failed.
            self._call_for_first()

    def cancelled(self, alarm: Alarm) -> None:
        with self._lock:
            self._alarms.canceled()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._alarms.clear()


class ManualTimer(ProcessBound):
    """For tests and replays: writes down what is asked of it, and rings when it is told to."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._alarms: list[Alarm] = []
        self._cancelled: list[Alarm] = []
        self.events: list[tuple[str, int, int] | tuple[str, int]] = []
        """("arm", delay, time) and ("cancel", time), in the order in which they happened."""

    def arm(self, at: int, action: Callable[[Alarm], object]) -> Alarm:
        alarm = Alarm(at, action, self)
        with self._lock:
            self._alarms.append(alarm)
            self.events.append(("arm", at - self._clock.now(), at))
        return alarm

    def cancelled(self, alarm: Alarm) -> None:
        with self._lock:
            # Not there if it is about to ring.
            if alarm in self._alarms:
                self._alarms.remove(alarm)
            self._cancelled.append(alarm)
            self.events.append(("cancel", alarm.at))

    def close(self) -> None:
        for alarm in list(self._alarms):
            alarm.cancel()

    @property
    def armed(self) -> list[int]:
        """The times that something is armed for, ascending."""
        with self._lock:
            return sorted(alarm.at for alarm in self._alarms)

    def fire(self) -> int:
        """Ring all that is due by the clock, also what is armed meanwhile; how many there were."""
        rung = 0
        while (first := self._take_due()) is not None:
            first.ring()
            rung += 1
        return rung

    def _take_due(self) -> Alarm | None:
        with self._lock:
            due = [alarm for alarm in self._alarms if alarm.at <= self._clock.now()]
            if not due:
                return None
            first = min(due, key=lambda alarm: alarm.at)
            self._alarms.remove(first)
            return first

    def fire_stale(self) -> bool:
        """Ring the alarm that was cancelled last, as if it had begun to before; False if there is none."""
        if not self._cancelled:
            return False
        self._cancelled.pop().ring()
        return True
