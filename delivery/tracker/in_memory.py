"""The tracker of delayed messages that keeps everything in memory.

Times go to buckets, whose width is the largest power of two that is not above the tick. Not strict, they are rounded
down and a bucket is due as soon as its last millisecond is within one tick; strict, they are rounded up and a bucket is
due at its time. Width and cutoff both follow from the one tick.
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
from bookstand.delivery.tracker.scheduled import ScheduledPositions, first_of_each
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
    """A :class:`~bookstand.delivery.tracker.protocol.DelayedTracker`. A position costs what its bits in two bitmaps do.

    With a ``relative_precision`` a message is up to this fraction of its delay early, besides the tick; not strict
    only. Without a ``timer`` there is one of its own, which :meth:`close` closes.
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
            raise IncorrectParameterError("relative_precision must be None if strict: it makes deliveries early")
        self._is_relative = precision is not None
        self._waiting = ScheduledPositions(_bits_of(self._tick), round_up=strict, precision=precision)
        self._fixed_delay = FixedDelay(lookahead)
        self._wakeup = Wakeup(wake, self._lock, self._clock, timer, self._tick)

    # -- what is due -------------------------------------------------------------------------------------------------

    def _is_due(self, deliver_at: int) -> bool:
        return deliver_at < 0 or deliver_at <= self._cutoff()

    def _cutoff(self) -> int:
        """Times up to here are delivered at once."""
        now = self._clock.now()
        return now if self._strict else now + self._tick

    def _key_cutoff(self) -> int:
        """Keys up to here are due: those of which the last time, not the first, is."""
        if self._strict or self._is_relative:
            return self._cutoff()
        return self._cutoff() - (1 << _bits_of(self._tick)) + 1

    def _is_available(self) -> bool:
        key = self._waiting.next_key()
        return key is not None and key <= self._key_cutoff()

    # -- in and out --------------------------------------------------------------------------------------------------

    def add(self, position: tuple[int, int], deliver_at: int) -> bool:
        ledger_id, entry_id = check_position(position)
        deliver_at = check_time(deliver_at)
        with self._lock:
            self._check_open()
            tracked = self._add(ledger_id, entry_id, deliver_at)
            self._wakeup.update(self._waiting.no_key_before)
            return tracked

    def _add(self, ledger_id: int, entry_id: int, deliver_at: int) -> bool:
        if self._is_due(deliver_at):
            self._fixed_delay.broken()
            if self._waiting.remove(ledger_id, entry_id):
                # The alarm may have been for this message alone.
                self._waiting.next_key()
            return False
        self._fixed_delay.see(deliver_at, self._tick)
        self._waiting.add(deliver_at, ledger_id, entry_id)
        return True

    def add_many(self, positions: Positions, deliver_at: int | Sequence[int] | Column) -> Mask:
        ledger_ids, entry_ids = columns_of(positions)
        times = times_of(deliver_at, len(ledger_ids))
        with self._lock:
            self._check_open()
            tracked = self._add_many(times, ledger_ids, entry_ids)
            self._wakeup.update(self._waiting.no_key_before)
            return tracked

    def _add_many(self, times: Column, ledger_ids: Column, entry_ids: Column) -> Mask:
        delayed: Mask = (times >= 0) & (times > min(self._cutoff(), LARGEST))
        if not delayed.all():
            if self._order_matters(~delayed, ledger_ids, entry_ids):
                rows = zip(ledger_ids.tolist(), entry_ids.tolist(), times.tolist(), strict=True)
                return np.fromiter((self._add(*row) for row in rows), dtype=np.bool_, count=len(times))
            self._fixed_delay.broken()
            times, ledger_ids, entry_ids = times[delayed], ledger_ids[delayed], entry_ids[delayed]
        self._fixed_delay.see_many(times, self._tick)
        self._waiting.add_many(times, ledger_ids, entry_ids)
        return delayed

    def _order_matters(self, due: Mask, ledger_ids: Column, entry_ids: Column) -> bool:
        """Whether one that is due waits already, or will from elsewhere in the batch."""
        if self._waiting.contains_many(ledger_ids[due], entry_ids[due]).any():
            return True
        return len(first_of_each(ledger_ids, entry_ids)) < len(ledger_ids)

    def pop_due(self, limit: int | None = None) -> list[Position]:
        if limit is not None and (type(limit) is not int or limit < 0):
            raise IncorrectParameterError(f"a limit is a number from 0 up or None, not {limit!r}")
        with self._lock:
            ledger_ids, entry_ids = self._waiting.pop(self._key_cutoff(), limit)
            if not self._waiting:
                self._fixed_delay.reset()
            self._wakeup.update(self._waiting.next_key())
        order = np.lexsort((entry_ids, ledger_ids))
        return list(map(Position, ledger_ids[order].tolist(), entry_ids[order].tolist()))

    def cancel(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = check_position(position)
        with self._lock:
            removed = self._waiting.remove(ledger_id, entry_id)
            # If it was the earliest the alarm rings in vain, and is set anew by whoever asks what is available then.
            self._wakeup.update(self._waiting.no_key_before)
            return removed

    def put(self, position: tuple[int, int], deliver_at: int) -> None:
        """Have a message wait for this time, and for no other, whether it waits already or not; a time that has come
        is due at once."""
        ledger_id, entry_id = check_position(position)
        deliver_at = check_time(deliver_at)
        with self._lock:
            self._check_open()
            self._fixed_delay.broken()
            if self._is_due(deliver_at):
                # Nor does rounding put it off.
                deliver_at = max(min(deliver_at, self._clock.now()) - (1 << _bits_of(self._tick)), -LARGEST)
            self._waiting.remove(ledger_id, entry_id)
            self._waiting.add(deliver_at, ledger_id, entry_id)
            self._wakeup.update(self._waiting.no_key_before)

    # -- questions ---------------------------------------------------------------------------------------------------

    def has_message_available(self) -> bool:
        with self._lock:
            available = self._is_available()
            if not available:
                self._wakeup.update(self._waiting.next_key())
            return available

    def should_pause_all_deliveries(self) -> bool:
        with self._lock:
            return self._fixed_delay.believed(len(self._waiting)) and not self._is_available()

    def contains_message(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = check_position(position)
        with self._lock:
            return self._waiting.contains(ledger_id, entry_id)

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        ledger_ids, entry_ids = columns_of((as_ids("ledger ids", ledger_ids), entry_ids))
        with self._lock:
            return self._waiting.contains_many(ledger_ids, entry_ids)

    def next_delivery(self) -> int | None:
        with self._lock:
            return self._waiting.next_key()

    def peek(self, first: int | None = None, last: int | None = None, limit: int | None = None) -> Indexes:
        """What waits under times from the first to the last, as they are rounded, in the order of time, ledger and
        entry; nothing is removed."""
        with self._lock:
            found = Indexes(*self._waiting.peek(first, last))
        return found.part(0, found.size if limit is None else limit)

    @property
    def next_wake(self) -> int | None:
        """When the alarm is to ring."""
        with self._lock:
            return self._wakeup.armed

    @property
    def count(self) -> int:
        with self._lock:
            return len(self._waiting)

    def __len__(self) -> int:
        return self.count

    @property
    def memory_bytes(self) -> int:
        with self._lock:
            return self._waiting.memory_bytes

    # -- life --------------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """What was found out about the delays stays: it is a property of the topic."""
        with self._lock:
            self._waiting.clear()
            self._wakeup.update(None)

    def reset_tick(self, tick_time_millis: int) -> None:
        """What waits keeps its bucket, until a wider one takes it in. So with a smaller tick it may be early (strict:
        late) by the width that its bucket had."""
        tick = check_millis("tick_time_millis", tick_time_millis, 1)
        with self._lock:
            self._tick = self._wakeup.tick = tick
            self._waiting.rekey(_bits_of(tick))
            self._wakeup.update(self._waiting.next_key())

    def change_config(self, config: DelayedDeliveryConfig) -> None:
        """Use another tick and another look-ahead. The other settings are fixed while the tracker is open."""
        with self._lock:
            self._fixed_delay.change_lookahead(config.delayed_delivery_fixed_delay_detection_lookahead)
            if config.delayed_delivery_tick_time_millis != self._tick:
                self.reset_tick(config.delayed_delivery_tick_time_millis)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._wakeup.close()
            self._waiting.clear()
        if self._own_timer is not None:
            self._own_timer.close()

    def _check_open(self) -> None:
        if self._closed:
            raise TrackerClosedError("the tracker was closed")

    def __repr__(self) -> str:
        return f"<InMemoryDelayedTracker: {len(self)} waiting{', closed' if self._closed else ''}>"


def _bits_of(tick: int) -> int:
    return tick.bit_length() - 1
