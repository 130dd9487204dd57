"""When a cursor writes what it has accepted: at once, at most so often a second, or a while later.

One thread looks after all cursors of the process that have something to write.
"""

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

# Seconds after which a write that is due and was not made is taken for lost.
_LOST = 1.0


class FlushScheduler:
    """``rate``: writes a second that are made at once, 0 for all, None for none; what they leave is written
    ``interval`` seconds later."""

    def __init__(self, rate: float | None, interval: float, flush: Callable[[], None]) -> None:
        self._rate = rate
        self._interval = interval
        self._flush = WeakMethod(flush)
        self._last = -float("inf")
        self._due: float | None = None
        self._stopped = False

    def change(self, rate: float | None, interval: float) -> None:
        """Replace rate and interval. A write that is pending is made at the latest after the new interval."""
        self._rate, self._interval = rate, interval
        if self._due is not None and not self._stopped:
            self._wake_at(monotonic() + interval)

    def accepted(self) -> None:
        """Something is to be written."""
        if self._takes_token():
            self.flush()
        elif not self._stopped and (self._due is None or self._due < monotonic()):
            self._wake_at(monotonic() + self._interval)

    def hurry(self) -> None:
        """Somebody wants to be told, without waiting for it in a thread."""
        if not self._stopped:
            self._wake_at(monotonic())

    def stop(self) -> None:
        self._stopped = True

    def flush(self) -> None:
        self._due = None
        flush = self._flush()
        if flush is not None and not self._stopped:
            flush()

    def _takes_token(self) -> bool:
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
        elif self._due < monotonic() - _LOST:
            # The call that set it was interrupted before it added it. Before that, the time must stay as it is: a task
            # may wait for this write.
            _background().add(self._due, self)


class _Background:
    def __init__(self) -> None:
        self.process = os.getpid()
        # An RLock, not the Condition, is entered: an interrupted thread leaves it free.
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._number = count()
        self._waiting: list[tuple[float, int, ref[FlushScheduler]]] = []
        Thread(target=self._run, name="bookstand-cursors", daemon=True).start()

    def add(self, due: float, throttle: FlushScheduler) -> None:
        with self._lock:
            heapq.heappush(self._waiting, (due, next(self._number), ref(throttle)))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting or self._waiting[0][0] > monotonic():
                    self._changed.wait(self._waiting[0][0] - monotonic() if self._waiting else None)
                due, _, waiting = heapq.heappop(self._waiting)
            throttle = waiting()
            if throttle is not None and throttle._due == due:
                try:
                    throttle.flush()
                except SimulatedCrash:
                    # Nobody waits in this thread; the store has been closed, and tells everybody.
                    pass
                except Exception:
                    logger().exception("a cursor could not be written")
            del throttle


_running: _Background | None = None


def _background() -> _Background:
    """This process's; a forked child has none of its parent's threads."""
    global _running
    if _running is None or _running.process != os.getpid():
        _running = _Background()
    return _running
