"""Tracker of delayed messages in memory.

Times are rounded to buckets whose width is the largest power of two not above the tick. In strict mode they are rounded
up, and a bucket is due at its time; otherwise they are rounded down, and a bucket is due when its last millisecond is
within one tick.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np

from bookstand.delivery.time_index.precision import relative
from bookstand.delivery.timer import Timer, timer_for
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.delivery.tracker.fixed_delay import FixedDelay
from bookstand.delivery.tracker.protocol import (
    LARGEST,
    Column,
    Mask,
    Positions,
    TrackerClosedError,
    as_ids,
    check_millis,
    check_position,
    check_time,
    columns_of,
    times_of,
)
from bookstand.delivery.tracker.scheduled import ScheduledPositions, order_matters
from bookstand.delivery.tracker.wakeup import Wakeup
from bookstand.errors import IncorrectParameterError
from bookstand.storage.clock import SystemClock
from bookstand.storage.format.position import Position
from bookstand.storage.process.fork_guard import ProcessBound

if TYPE_CHECKING:
    from bookstand.delivery.config import DelayedDeliveryConfig
    from bookstand.storage.clock import Clock

TICK_TIME_MILLIS = 1000
FIXED_DELAY_DETECTION_LOOKAHEAD = 50_000


class InMemoryDelayedTracker(ProcessBound):
    """In-memory :class:`~bookstand.delivery.tracker.protocol.DelayedTracker`; a position takes its bits in two bitmaps.

    ``relative_precision`` allows messages to be early by a fraction of their delay in addition to the tick; it
    requires ``strict=False``. Without a ``timer`` the tracker creates one, which :meth:`close` closes.
    """

    def __init__(
        self,
        wake: Callable[[], object],
        *,
        tick_time_millis: int = TICK_TIME_MILLIS,
        strict: bool = False,
        relative_precision: float | None = None,
        fixed_delay_detection_lookahead: int = FIXED_DELAY_DETECTION_LOOKAHEAD,
        clock: Clock | None = None,
        timer: Timer | None = None,
    ) -> None:
        self._tick = check_millis("tick_time_millis", tick_time_millis, 1)
        lookahead = check_millis("fixed_delay_detection_lookahead", fixed_delay_detection_lookahead, -LARGEST)
        self._strict = strict
        self._clock = SystemClock() if clock is None else clock
        self._own_timer = timer_for(self._clock) if timer is None else None
        timer = self._own_timer if timer is None else timer
        assert timer is not None
        self._lock = RLock()
        self._closed = False
        precision = None if relative_precision is None else relative(relative_precision, clock=self._clock)
        if precision is not None and strict:
            raise IncorrectParameterError("relative_precision must be None if strict: it allows early deliveries")
        self._is_relative = precision is not None
        self._scheduled = ScheduledPositions(_bits_of(self._tick), round_up=strict, precision=precision)
        self._fixed_delay = FixedDelay(lookahead)
        self._wakeup = Wakeup(wake, self._lock, self._clock, timer, self._tick)

    def _is_due(self, deliver_at: int) -> bool:
        return deliver_at < 0 or deliver_at <= self._cutoff()

    def _cutoff(self) -> int:
        now = self._clock.now()
        return now if self._strict else now + self._tick

    def _key_cutoff(self) -> int:
        """The latest bucket whose last millisecond is due."""
        if self._strict or self._is_relative:
            return self._cutoff()
        return self._cutoff() - (1 << _bits_of(self._tick)) + 1

    def _is_available(self) -> bool:
        key = self._scheduled.next_key()
        return key is not None and key <= self._key_cutoff()

    def add(self, position: tuple[int, int], deliver_at: int) -> bool:
        ledger_id, entry_id = check_position(position)
        deliver_at = check_time(deliver_at)
        with self._lock:
            self._check_open()
            tracked = self._add(ledger_id, entry_id, deliver_at)
            self._wakeup.update(self._scheduled.earliest_key_bound)
            return tracked

    def _add(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        if self._is_due(deliver_at):
            self._fixed_delay.rule_out()
            if self._scheduled.remove(ledger_id, entry_id):
                # The alarm may have been set for this message alone.
                self._scheduled.next_key()
            return False
        self._fixed_delay.observe(deliver_at, self._tick)
        self._scheduled.add(deliver_at, ledger_id, entry_id)
        return True

    def add_many(self, positions: Positions, deliver_at: int | Sequence[int] | Column) -> Mask:
        ledger_ids, entry_ids = columns_of(positions)
        times = times_of(deliver_at, len(ledger_ids))
        with self._lock:
            self._check_open()
            tracked = self._add_many(times, ledger_ids, entry_ids)
            self._wakeup.update(self._scheduled.earliest_key_bound)
            return tracked

    def _add_many(self, times: Column, ledger_ids: Column, entry_ids: Column) -> Mask:
        delayed: Mask = (times >= 0) & (times > min(self._cutoff(), LARGEST))
        if not delayed.all():
            if order_matters(self._scheduled, ~delayed, ledger_ids, entry_ids):
                rows = zip(ledger_ids.tolist(), entry_ids.tolist(), times.tolist(), strict=True)
                return np.fromiter((self._add(*row) for row in rows), dtype=np.bool_, count=len(times))
            self._fixed_delay.rule_out()
            times, ledger_ids, entry_ids = times[delayed], ledger_ids[delayed], entry_ids[delayed]
        self._fixed_delay.observe_many(times, self._tick)
        self._scheduled.add_many(times, ledger_ids, entry_ids)
        return delayed

    def pop_due(self, limit: int | None = None) -> list[Position]:
        if limit is not None and (type(limit) is not int or limit < 0):
            raise IncorrectParameterError(f"limit must be a non-negative integer or None, not {limit!r}")
        with self._lock:
            ledger_ids, entry_ids = self._scheduled.pop(self._key_cutoff(), limit)
            if not self._scheduled:
                self._fixed_delay.reset()
            self._wakeup.update(self._scheduled.next_key())
        order = np.lexsort((entry_ids, ledger_ids))
        return list(map(Position, ledger_ids[order].tolist(), entry_ids[order].tolist()))

    def cancel(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = check_position(position)
        with self._lock:
            removed = self._scheduled.remove(ledger_id, entry_id)
            # If it was the earliest, the alarm fires for nothing, and the next availability check rearms it.
            self._wakeup.update(self._scheduled.earliest_key_bound)
            return removed

    def put(self, position: tuple[int, int], deliver_at: int) -> None:
        """Track a message for this time only, replacing its earlier time; a past time is due at once."""
        ledger_id, entry_id = check_position(position)
        deliver_at = check_time(deliver_at)
        with self._lock:
            self._check_open()
            self._fixed_delay.rule_out()
            if self._is_due(deliver_at):
                # Rounding must not delay it either.
                deliver_at = max(min(deliver_at, self._clock.now()) - (1 << _bits_of(self._tick)), -LARGEST)
            self._scheduled.remove(ledger_id, entry_id)
            self._scheduled.add(deliver_at, ledger_id, entry_id)
            self._wakeup.update(self._scheduled.earliest_key_bound)

    def has_message_available(self) -> bool:
        with self._lock:
            available = self._is_available()
            if not available:
                self._wakeup.update(self._scheduled.next_key())
            return available

    def should_pause_all_deliveries(self) -> bool:
        with self._lock:
            return self._fixed_delay.is_fixed(len(self._scheduled)) and not self._is_available()

    def contains_message(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = check_position(position)
        with self._lock:
            return self._scheduled.contains(ledger_id, entry_id)

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        ledger_ids, entry_ids = columns_of((as_ids("ledger ids", ledger_ids), entry_ids))
        with self._lock:
            return self._scheduled.contains_many(ledger_ids, entry_ids)

    def next_delivery(self) -> int | None:
        with self._lock:
            return self._scheduled.next_key()

    def peek(self, first: int | None = None, last: int | None = None, limit: int | None = None) -> Indexes:
        """Messages with rounded times from ``first`` to ``last``, by time, ledger and entry; nothing is removed."""
        with self._lock:
            found = Indexes(*self._scheduled.peek(first, last))
        return found.part(0, found.size if limit is None else limit)

    @property
    def next_wake(self) -> int | None:
        """Time of the pending alarm."""
        with self._lock:
            return self._wakeup.armed

    @property
    def count(self) -> int:
        with self._lock:
            return len(self._scheduled)

    def __len__(self) -> int:
        return self.count

    @property
    def memory_bytes(self) -> int:
        with self._lock:
            return self._scheduled.memory_bytes

    def clear(self) -> None:
        """Stop tracking every message. The detected delay is a property of the topic and is retained."""
        with self._lock:
            self._scheduled.clear()
            self._wakeup.update(None)

    def reset_tick(self, tick_time_millis: int) -> None:
        """Change the tick. Tracked messages are rounded to a wider bucket, but not to a narrower one: with a smaller
        tick they may be early (strict: late) by their old bucket width."""
        tick = check_millis("tick_time_millis", tick_time_millis, 1)
        with self._lock:
            self._tick = self._wakeup.tick = tick
            self._scheduled.rekey(_bits_of(tick))
            self._wakeup.update(self._scheduled.next_key())

    def change_config(self, config: DelayedDeliveryConfig) -> None:
        """Apply the tick and the look-ahead; the other settings are fixed while the tracker is open."""
        with self._lock:
            self._fixed_delay.change_lookahead(config.delayed_delivery_fixed_delay_detection_lookahead)
            if config.delayed_delivery_tick_time_millis != self._tick:
                self.reset_tick(config.delayed_delivery_tick_time_millis)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._wakeup.close()
            self._scheduled.clear()
        if self._own_timer is not None:
            self._own_timer.close()

    def _check_open(self) -> None:
        if self._closed:
            raise TrackerClosedError("the tracker is closed")

    def __repr__(self) -> str:
        return f"<InMemoryDelayedTracker: {len(self)} delayed{', closed' if self._closed else ''}>"


def _bits_of(tick: int) -> int:
    return tick.bit_length() - 1
