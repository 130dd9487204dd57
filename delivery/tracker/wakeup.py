"""Timer of a tracker: wakes the dispatcher when the next message becomes due.

There is at most one alarm, for the next delivery. It only signals messages that *become* due; the dispatcher finds
those already due when it polls. It fires at most once per tick.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING

from bookstand.delivery.timer import Alarm, Timer

if TYPE_CHECKING:
    from bookstand.storage.clock import Clock


def alarm_time(next_delivery: int, now: int, last_run: int, tick: int) -> int | None:
    """Return the time to wake for the next delivery; None if it is already due."""
    if next_delivery <= now:
        return None
    # The clock may have been set back: treat a last run in the future as now.
    return max(next_delivery, min(last_run, now) + tick, now)


class Wakeup:
    """Alarm of a tracker, used with its ``lock`` held. It calls ``before`` with the lock, and ``wake`` without it."""

    def __init__(
        self,
        wake: Callable[[], object],
        lock: RLock,
        clock: Clock,
        timer: Timer,
        tick: int,
        *,
        before: Callable[[], object] | None = None,
    ) -> None:
        self._before = before
        self._wake = wake
        self._lock = lock
        self._clock = clock
        self._timer = timer
        self._alarm: Alarm | None = None
        self._next_delivery: int | None = None
        self._last_run = 0
        self._closed = False
        self.tick = tick

    @property
    def armed(self) -> int | None:
        return None if self._alarm is None else self._alarm.at

    def update(self, next_delivery: int | None) -> None:
        """Rearm the alarm, because the next delivery may have changed; None means no delivery."""
        if self._alarm is not None and self._alarm.live and next_delivery == self._next_delivery:
            return
        self.cancel()
        if next_delivery is None or self._closed:
            return
        at = alarm_time(next_delivery, self._clock.now(), self._last_run, self.tick)
        if at is not None:
            self._next_delivery = next_delivery
            self._alarm = self._timer.arm(at, self._ring)

    def cancel(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def close(self) -> None:
        self._closed = True
        self.cancel()

    def _ring(self, alarm: Alarm) -> None:
        with self._lock:
            if self._closed:
                return
            self._last_run = self._clock.now()
            if self._before is not None:
                self._before()
            # An alarm cancelled while it fires causes a spurious wake-up, but must not clear its successor.
            if self._alarm is alarm:
                self._alarm = None
        self._wake()
