"""When a tracker of delayed messages has its dispatcher woken.

One alarm at most, for the next delivery. The dispatcher is woken for what *becomes* due: of what is due already it
knows, or finds it when it asks. And it is not woken more often than once in a tick.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING

from bookstand.delivery.timer import Alarm, Timer

if TYPE_CHECKING:
    from bookstand.storage.clock import Clock


def alarm_time(next_delivery: int, now: int, last_run: int, tick: int) -> int | None:
    """When to wake for the next delivery; None where it is due already."""
    if next_delivery <= now:
        return None
    # A clock may be set back: what ran later than now ran now.
    return max(next_delivery, min(last_run, now) + tick, now)


class Wakeup:
    """All methods but the alarm's own are called with the tracker's ``lock`` held; ``wake`` is called without, and
    ``before`` it what the tracker does with the lock."""

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
        """When the alarm is to ring."""
        return None if self._alarm is None else self._alarm.at

    def update(self, next_delivery: int | None) -> None:
        """The next delivery may have changed; None: there is none."""
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
            # One that was cancelled while it began to ring wakes in vain, and is not taken for the one after it.
            if self._alarm is alarm:
                self._alarm = None
        self._wake()
