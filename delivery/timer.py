"""Timers, which call an action at a time unless it is canceled before.

An alarm fires at its time or later, never earlier. Canceling does not stop an alarm that another thread is already
firing: the action receives the alarm, and must check under its own lock that the alarm is still current.
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

# Maximum wait of the thread, in seconds, between two reads of the clock, which may be set or suspended.
_CLOCK_POLL_SECONDS = 1.0
# The thread ends after being idle for this many seconds.
_IDLE_SECONDS = 5.0


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
            self._timer.on_cancel(self)

    def fire(self) -> None:
        """Run the action. Only the timer calls it."""
        self.live = False
        self._action(self)


class Timer(Protocol):
    """Implementations are thread-safe."""

    def arm(self, at: int, action: Callable[[Alarm], object]) -> Alarm:
        """Call ``action(alarm)`` at ``at``, or soon if that has passed, but never inside this call."""

    def on_cancel(self, alarm: Alarm) -> None:
        """React to the cancellation of an alarm."""

    def close(self) -> None:
        """Cancel all alarms and reject new ones."""


def timer_for(clock: Clock) -> Timer:
    """Return a timer that uses the clock's callbacks if it has them, as test clocks do, or a thread otherwise."""
    if hasattr(clock, "call_later"):
        return ClockTimer(cast("CallbackClock", clock))
    return ThreadTimer(clock)


class AlarmQueue:
    """Alarms by time. Not thread-safe. Canceled alarms are removed lazily."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Alarm]] = []
        self._numbers = count()
        self._canceled = 0

    def __len__(self) -> int:
        """Number of alarms, including canceled ones that have not been removed."""
        return len(self._heap)

    def push(self, alarm: Alarm) -> None:
        heapq.heappush(self._heap, (alarm.at, next(self._numbers), alarm))

    def first(self) -> Alarm | None:
        """The earliest alarm, or None."""
        while self._heap and not self._heap[0][2].live:
            heapq.heappop(self._heap)
            self._canceled = max(0, self._canceled - 1)
        return self._heap[0][2] if self._heap else None

    def pop(self) -> Alarm:
        """Remove the alarm that :meth:`first` returned."""
        return heapq.heappop(self._heap)[2]

    def note_canceled(self) -> None:
        """Count a canceled alarm, and remove all canceled ones when they are the majority."""
        self._canceled += 1
        if self._canceled > 16 and self._canceled > len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].live]
            heapq.heapify(self._heap)
            self._canceled = 0

    def clear(self) -> None:
        """Cancel all alarms without notifying their timer."""
        for _, _, alarm in self._heap:
            alarm.live = False
        self._heap.clear()


class ThreadTimer:
    """Timer with a daemon thread that runs only while alarms are set.

    Actions run one after the other. A forked child starts without alarms. Alarms do not fire during interpreter
    shutdown; the methods then do not acquire the lock either, because a thread that no longer runs may hold it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._closed = False
        self._reset()
        notify_of_forks(self)

    def _reset(self) -> None:
        # The RLock is entered instead of the Condition because an interrupted thread releases it.
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
            # The thread may have ended by an exception that it does not catch.
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
            # After the main thread has ended, newer interpreters start no thread for exit handlers.
            if main_thread().is_alive():
                raise

    def on_cancel(self, alarm: Alarm) -> None:
        if is_finalizing():
            return
        with self._lock:
            self._alarms.note_canceled()

    def close(self) -> None:
        """Fire no more alarms. Does not wait for an action that is running."""
        if is_finalizing():
            return
        with self._lock:
            self._closed = True
            self._alarms.clear()
            self._changed.notify()

    def join(self) -> None:
        """After :meth:`close`, wait for an action that is running in the timer's thread."""
        thread = self._thread
        if thread is not None and thread is not current_thread():
            thread.join()

    def _forked(self) -> None:
        """In the child process the thread does not exist, and its lock may be held forever."""
        self._alarms.clear()
        self._reset()

    def _run(self) -> None:
        while (alarm := self._next()) is not None:
            try:
                alarm.fire()
            except SimulatedCrash:
                # The store is closed, and its callers get the error.
                continue
            except Exception:
                logger().exception("timer: the action of an alarm failed")
            del alarm

    def _next(self) -> Alarm | None:
        """Wait for the next due alarm; None after an idle time."""
        lingering = False
        with self._lock:
            while True:
                first = self._alarms.first()
                if first is None:
                    if lingering or self._closed:
                        self._thread = None
                        return None
                    lingering = not self._changed.wait(_IDLE_SECONDS)
                    continue
                rest = first.at - self._clock.now()
                if rest <= 0:
                    return self._alarms.pop()
                self._changed.wait(min(rest / 1000, _CLOCK_POLL_SECONDS))


class CallbackClock(Protocol):
    """A clock that is advanced explicitly and calls back."""

    def now(self) -> int: ...

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Call ``action`` after this time has passed."""


class ClockTimer(ProcessBound):
    """Timer for a clock with callbacks: alarms fire in the thread that advances the clock. Time must not advance inside
    ``arm``.

    Callbacks cannot be canceled, so one is requested only if no earlier one is pending.
    """

    def __init__(self, clock: CallbackClock) -> None:
        self._clock = clock
        self._lock = Lock()
        self._alarms = AlarmQueue()
        # Times of the requested callbacks, descending.
        self._calls: list[int] = []
        self._closed = False

    def arm(self, at: int, action: Callable[[Alarm], object]) -> Alarm:
        alarm = Alarm(at, action, self)
        with self._lock:
            if self._closed:
                alarm.live = False
                return alarm
            self._alarms.push(alarm)
        self._request_callback()
        return alarm

    def _request_callback(self) -> None:
        """Request a callback for the earliest alarm, unless one is pending before it."""
        with self._lock:
            first = self._alarms.first()
            if first is None or (self._calls and self._calls[-1] <= first.at):
                return
            at = first.at
            self._calls.append(at)
        rest = max(0, at - self._clock.now())
        self._clock.call_later(rest / 1000, lambda: self._on_callback(at))

    def _on_callback(self, at: int) -> None:
        with self._lock:
            self._calls.remove(at)
            first = None if self._closed else self._alarms.first()
            # Float seconds are inexact for distant times; the callback may be early.
            is_due = first is not None and first.at <= self._clock.now()
            if is_due:
                self._alarms.pop()
        try:
            if first is not None and is_due:
                first.fire()
        finally:
            # The next alarm fires in its own callback, even if this action failed.
            self._request_callback()

    def on_cancel(self, alarm: Alarm) -> None:
        with self._lock:
            self._alarms.note_canceled()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._alarms.clear()
