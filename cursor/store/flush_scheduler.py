"""Scheduling of flushes: immediate, rate-limited or delayed. One thread serves all cursors of the process."""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable
from itertools import count
from threading import Condition, RLock, Thread
from time import monotonic
from weakref import WeakMethod, ref

from bookstand.storage.hooks import SimulatedCrash
from bookstand.storage.logger import logger

# Seconds after its due time at which a scheduled flush counts as lost.
_LOST_AFTER = 1.0


class FlushScheduler:
    """Schedules flushes. ``rate`` is the number of immediate flushes per second, 0 for no limit, None for no immediate
    flush. Other changes are flushed ``interval`` seconds later."""

    def __init__(self, rate: float | None, interval: float, flush: Callable[[], None]) -> None:
        self._rate = rate
        self._interval = interval
        self._flush = WeakMethod(flush)
        self._last = -float("inf")
        self._due: float | None = None
        self._stopped = False

    def change(self, rate: float | None, interval: float) -> None:
        """Replace rate and interval. A pending flush happens no later than after the new interval."""
        self._rate, self._interval = rate, interval
        if self._due is not None and not self._stopped:
            self._wake_at(monotonic() + interval)

    def on_change(self) -> None:
        """Flush now, or schedule a flush."""
        if self._take_token():
            self.flush()
        elif not self._stopped and (self._due is None or self._due < monotonic()):
            self._wake_at(monotonic() + self._interval)

    def request_flush(self) -> None:
        """Flush in the background without delay."""
        if not self._stopped:
            self._wake_at(monotonic())

    def stop(self) -> None:
        self._stopped = True

    def flush(self) -> None:
        self._due = None
        flush = self._flush()
        if flush is not None and not self._stopped:
            flush()

    def _take_token(self) -> bool:
        if self._rate is None:
            return False
        now = monotonic()
        if self._rate and now - self._last < 1 / self._rate:
            return False
        self._last = now
        return True

    def _wake_at(self, due: float) -> None:
        if self._due is None or due < self._due:
            self._due = due
            _background().add(due, self)
        elif self._due < monotonic() - _LOST_AFTER:
            # The call that set the due time was interrupted before it queued the flush. The due time must not change,
            # because an entry in the queue counts only if it has the scheduler's due time.
            _background().add(self._due, self)


class _Background:
    def __init__(self) -> None:
        self.process = os.getpid()
        # Threads enter the RLock rather than the Condition, because an interrupted thread always releases it.
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._number = count()
        self._waiting: list[tuple[float, int, ref[FlushScheduler]]] = []
        Thread(target=self._run, name="bookstand-cursors", daemon=True).start()

    def add(self, due: float, scheduler: FlushScheduler) -> None:
        with self._lock:
            heapq.heappush(self._waiting, (due, next(self._number), ref(scheduler)))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting or self._waiting[0][0] > monotonic():
                    self._changed.wait(self._waiting[0][0] - monotonic() if self._waiting else None)
                due, _, waiting = heapq.heappop(self._waiting)
            scheduler = waiting()
            if scheduler is not None and scheduler._due == due:
                try:
                    scheduler.flush()
                except SimulatedCrash:
                    # No caller waits in this thread. The store is closed, and rejects all later calls.
                    pass
                except Exception:
                    logger().exception("a cursor could not be written")
            del scheduler


_running: _Background | None = None


def _background() -> _Background:
    """Return the background thread of this process; a forked child does not inherit its parent's."""
    global _running
    if _running is None or _running.process != os.getpid():
        _running = _Background()
    return _running
