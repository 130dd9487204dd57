"""Negative acknowledgments (PIP-393): redelivery of messages after a delay.

Deadlines are grouped into buckets of 2^precision_bits milliseconds. All messages of a bucket are redelivered together,
early by less than the bucket's width and late only by the timer's delay. Messages of one batch share a position: it is
redelivered once in each bucket that contains it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from bookstand.delivery.message.message_id import MessageId
from bookstand.delivery.message.message_set import RedeliveryCounts, code_of, codes_by_width
from bookstand.delivery.nacks import log as nack_log
from bookstand.delivery.nacks.log import NackLog
from bookstand.delivery.nacks.pending import MessageRows, NackTimes, PendingNacks
from bookstand.delivery.nacks.record import Nacks, nacks_of
from bookstand.delivery.subscription.backoff import RedeliveryBackoff
from bookstand.delivery.time_index.precision import PowerOfTwoPrecision, Precision
from bookstand.delivery.timer import Alarm, Timer, timer_for
from bookstand.delivery.tracker.protocol import (
    LARGEST,
    Column,
    Positions,
    TrackerClosedError,
    check_millis,
    check_position,
    columns_of,
)
from bookstand.errors import BookstandError, IncorrectParameterError
from bookstand.storage.clock import SystemClock
from bookstand.storage.format.position import Position
from bookstand.storage.logger import logger
from bookstand.storage.process.fork_guard import ProcessBound

if TYPE_CHECKING:
    from bookstand.delivery.nacks.log import Store
    from bookstand.storage.clock import Clock
    from bookstand.storage.commit.futures import Pending

PRECISION_BITS = 8
DELAY_MILLIS = 60_000
MIN_DELAY_MILLIS = 100
"""Minimum of a fixed delay; delays of a backoff have no minimum."""
MAX_BATCH = 1_000
"""Maximum number of positions in one call of ``redeliver``."""
RETRY_MILLIS = 1_000
"""Delay before ``redeliver`` is called again after a failure."""
_SCALAR_LIMIT = 16
"""Smaller numbers of messages are added one by one."""


class NegativeAcks(ProcessBound):
    """Delays messages and calls ``redeliver(positions)`` when they are due.

    Calls are made one at a time in the timer's thread, without holding a lock, and may call methods of this object. An
    exception is logged, and the positions of that call are redelivered a second later.

    Times are in milliseconds. ``precision`` may replace ``precision_bits`` (see ``time_index/precision.py``). Without a
    ``timer``, the object creates its own and closes it in :meth:`close`. Use :meth:`open` for negative acknowledgments
    that survive a restart.

    ``nacked`` contains the messages of a subscription, which are added by :meth:`nack`. They are redelivered by message
    instead of by position, each at the time of its last nack, while ``lock`` is held.
    """

    def __init__(
        self,
        redeliver: Callable[[list[Any]], object],
        precision_bits: int = PRECISION_BITS,
        delay: int = DELAY_MILLIS,
        backoff: RedeliveryBackoff | None = None,
        clock: Clock | None = None,
        timer: Timer | None = None,
        *,
        precision: Precision | None = None,
        nacked: PendingNacks | None = None,
        lock: RLock | None = None,
    ) -> None:
        self._redeliver = redeliver
        self._delay = check_millis("delay", delay, 0)
        self._backoff = backoff
        self._clock = SystemClock() if clock is None else clock
        self._nacked = nacked
        self._times = NackTimes(precision or PowerOfTwoPrecision(precision_bits)) if nacked is None else nacked
        self._own_timer = timer_for(self._clock) if timer is None else None
        self._timer: Timer = timer or self._own_timer  # type: ignore[assignment]
        self._lock = RLock() if lock is None else lock
        # Entries of chunked messages, by bucket and position of the last chunk.
        self._chunks: dict[int, dict[Position, list[Position]]] = {}
        # Set for the earliest deadline, or earlier.
        self._alarm: Alarm | None = None
        # An alarm that fires during a redelivery is set again afterwards.
        self._redelivering = False
        self._alarm_missed = False
        self._closed = False
        self._log: NackLog | None = None
        # Descending times of the recorded nacks if new nacks are not recorded; else None.
        self._recorded: list[int] | None = None
        self.damage: list[str] = []
        """Damaged parts of the log. Their messages are redelivered immediately."""

    @classmethod
    def open(
        cls,
        store: Store,
        name: str,
        redeliver: Callable[[list[Any]], object],
        precision_bits: int = PRECISION_BITS,
        delay: int = DELAY_MILLIS,
        backoff: RedeliveryBackoff | None = None,
        clock: Clock | None = None,
        timer: Timer | None = None,
        compact_bytes: int | None = None,
        *,
        durable: bool = True,
        precision: Precision | None = None,
        nacked: PendingNacks | None = None,
        lock: RLock | None = None,
    ) -> Self:
        """Open the negative acknowledgments that are recorded in a ledger under ``name``. Another process that has them
        open is fenced.

        Nacks for which :meth:`add` has returned are redelivered at least once, even after a crash. If it raised, they
        may be redelivered. If ``durable`` is False, recorded nacks return at their times, but new ones are not
        recorded, and the log is deleted when all recorded nacks have returned. ``nacks.log.delete`` deletes it
        immediately.
        """
        acks = cls(
            redeliver, precision_bits, delay, backoff, clock, timer, precision=precision, nacked=nacked, lock=lock
        )
        if durable or nack_log.exists(store, name):
            limit = nack_log.COMPACT_BYTES if compact_bytes is None else compact_bytes
            acks._recover(NackLog(store, name, limit), durable)
        return acks

    def _recover(self, log: NackLog, durable: bool) -> None:
        with self._lock:
            # Redelivery records refer to the recorded times, so these must not be rounded again before the replay.
            exact = PowerOfTwoPrecision(0)
            before = NackTimes(exact) if self._nacked is None else PendingNacks(exact, RedeliveryCounts())
            for records in log.read():
                nack_log.replay(records, before)
            self.damage = log.damage
            for nacks in before.groups():
                self._times.restore(nacks._replace(time=self._times.key(nacks.time)))
            if not durable:
                self._recorded = sorted(self._times.buckets(), reverse=True)
                if not self._recorded:
                    log.delete()
                    return
            log.start_ledger(self._all_nacks())
            self._log = log
            self._arm_next()

    def change_delay(self, delay: int, backoff: RedeliveryBackoff | None) -> None:
        """Use another delay and backoff for future nacks."""
        with self._lock:
            self._delay = check_millis("delay", delay, 0)
            self._backoff = backoff

    def add(
        self,
        position: tuple[int, int],
        batch_index: int = -1,
        delay: int | None = None,
        redelivery_count: int = 0,
        chunks: Sequence[tuple[int, int]] = (),
    ) -> int:
        """Redeliver a message after ``delay``, by default after the delay of the backoff for ``redelivery_count``, or
        after the fixed delay. Return the time of its bucket.

        ``batch_index`` selects a message of a batch; the whole entry is redelivered. ``chunks`` are all entries of a
        chunked message, whose position is its last entry. They are redelivered together and count as one message, but
        after a restart as one each.
        """
        if type(batch_index) is not int or batch_index < -1:
            raise IncorrectParameterError(f"batch_index must be an integer of -1 (none) or more, not {batch_index!r}")
        ledger_id, entry_id = check_position(position)
        others = [Position(*check_position(chunk)) for chunk in chunks]
        wait = self._delay_for(delay, redelivery_count)
        with self._lock:
            deadline, bucket = self._deadline(wait)
            self._times.add(bucket, (0, ledger_id, entry_id))
            if others:
                self._chunks.setdefault(bucket, {})[Position(ledger_id, entry_id)] = others
            pendings = self._schedule(deadline, lambda: _nacks(bucket, *columns_of([(ledger_id, entry_id), *others])))
        _wait_for(pendings)
        return bucket

    def add_many(self, positions: Positions, delay: int | None = None, redelivery_count: int = 0) -> int:
        """Add many messages with one delay, like :meth:`add`. Positions are a sequence or columns."""
        ledger_ids, entry_ids = columns_of(positions)
        wait = self._delay_for(delay, redelivery_count)
        with self._lock:
            deadline, bucket = self._deadline(wait)
            if not len(ledger_ids):
                return bucket
            self._times.add_many(bucket, 0, ledger_ids, entry_ids)
            pendings = self._schedule(deadline, lambda: _nacks(bucket, ledger_ids, entry_ids))
        _wait_for(pendings)
        return bucket

    def nack(self, messages: Sequence[MessageId], delay: int | None = None, redelivery_count: int = 0) -> None:
        """Redeliver messages of a subscription. All have the same ``redelivery_count``."""
        wait = self._delay_for(delay, redelivery_count)
        if len(messages) < _SCALAR_LIMIT:
            codes = list(map(code_of, messages))
        else:
            columns = codes_by_width(messages)
        with self._lock:
            deadline, bucket = self._deadline(wait)
            replaces = False
            if len(messages) < _SCALAR_LIMIT:
                for code in codes:
                    replaces |= self._times.add(bucket, code)
            else:
                for one in columns:
                    replaces |= self._times.add_many(bucket, *one)
            if replaces and self._recorded is not None:
                # Record it, because a recorded nack that it replaces would be restored after a restart.
                self._recorded = sorted({*self._recorded, bucket}, reverse=True)
            pendings = self._schedule(
                deadline,
                lambda: (
                    nacks
                    for width, ledger_ids, ids in codes_by_width(messages)
                    for nacks in _nacks(bucket, ledger_ids, ids, width, redelivery_count)
                ),
                is_recorded=self._recorded is None or replaces,
            )
        _wait_for(pendings)

    def _delay_for(self, delay: int | None, redelivery_count: int) -> int:
        if type(redelivery_count) is not int:
            raise IncorrectParameterError(f"redelivery_count must be an integer, not {redelivery_count!r}")
        if delay is None and self._backoff is not None:
            return check_millis("delay of the backoff", self._backoff.next(redelivery_count), 0)
        chosen = self._delay if delay is None else check_millis("delay", delay, 0)
        return max(chosen, MIN_DELAY_MILLIS)

    def _deadline(self, wait: int) -> tuple[int, int]:
        """Time at which a delay ends that starts now, and its bucket."""
        if self._closed:
            raise TrackerClosedError("the negative acknowledgments are closed")
        deadline = min(self._clock.now() + wait, LARGEST)
        return deadline, self._times.key(deadline)

    def _schedule(self, deadline: int, nacks: Callable[[], Iterable[Nacks]], is_recorded: bool = True) -> list[Pending]:
        """Set the alarm for new nacks and record them. Callers hold the lock, and await the Pendings without it."""
        if self._alarm is not None and not self._alarm.live:
            # The alarm is about to fire, or was lost in a fork. Earlier nacks must not wait for the new deadline.
            self._alarm = None
            self._arm_next()
        elif self._alarm is None or deadline < self._alarm.at:
            self._arm(deadline)
        if self._log is None or not is_recorded:
            return []
        # Added to the index first: each nack up to the log's last entry is in the index or was redelivered.
        pendings = self._log.record_nacks(nacks())
        self._compact()
        return pendings

    def _arm(self, at: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._timer.arm(max(at, self._clock.now()), self._on_alarm)

    def _arm_next(self) -> None:
        """Set the alarm for the first bucket, unless an alarm is set, which is then early enough."""
        first = self._times.next_time()
        if first is None:
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None
        elif self._alarm is None:
            self._arm(first)

    def _on_alarm(self, alarm: Alarm) -> None:
        with self._lock:
            # An alarm that was canceled while it fired must not clear its successor.
            if self._alarm is alarm:
                self._alarm = None
            if self._closed:
                return
            if self._redelivering:
                self._alarm_missed = True
                return
            now = self._clock.now()
            last = -1 if self._log is None else self._log.last
            undelivered = _UndeliveredRows(self._pop_due(now))
            self._arm_next()
            if not undelivered.rows.keys.size:
                return
            self._redelivering = True
        try:
            self._redeliver_batches(undelivered)
        except Exception:
            logger().exception("redelivery of negatively acknowledged messages failed and will be retried")
        finally:
            pendings = self._finish_round(undelivered, now, last)
            try:
                _wait_for(pendings)
            except BookstandError as error:
                _log_unrecorded(error)

    def _pop_due(self, now: int) -> MessageRows:
        """Remove due rows: each position once, even if it was in several buckets."""
        rows = self._times.pop(now)
        chunks = [(key, *one, -1) for key in list(self._chunks) if key <= now for one in _flat(self._chunks.pop(key))]
        if chunks:
            table = np.concatenate([np.column_stack(rows), np.array(chunks, dtype=np.int64)])
            rows = MessageRows(*table[np.argsort(table[:, 0], kind="stable")].T)
        return rows.without_repetitions() if self._nacked is None else rows

    def _redeliver_batches(self, undelivered: _UndeliveredRows) -> None:
        while undelivered.rows.keys.size and not self._closed:
            some = undelivered.rows.pick(slice(MAX_BATCH))
            if self._nacked is None:
                self._redeliver(some.messages())
            else:
                with self._lock:
                    if messages := self._nacked.valid(some).messages():
                        self._redeliver(messages)
                    self._nacked.remove(some)
            undelivered.rows = undelivered.rows.pick(slice(MAX_BATCH, None))

    def _finish_round(self, undelivered: _UndeliveredRows, until: int, last: int) -> list[Pending]:
        """Record a complete round, or return undelivered rows to their buckets. An incomplete round is not recorded,
        because its record covers everything up to ``until``."""
        pendings: list[Pending] = []
        with self._lock:
            self._redelivering = False
            missed, self._alarm_missed = self._alarm_missed, False
            if self._closed:
                return pendings
            if undelivered.rows.keys.size:
                self._times.put_back(undelivered.rows)
                self._arm_by(self._clock.now() + RETRY_MILLIS)
            elif self._log is not None:
                try:
                    pendings += self._record_round(self._log, until, last)
                except BookstandError as error:
                    _log_unrecorded(error)
            if missed:
                self._arm_by(self._clock.now())
            self._compact()
        return pendings

    def _record_round(self, log: NackLog, until: int, last: int) -> list[Pending]:
        if self._recorded is None:
            return [log.record_redelivered(until, last)]
        before = len(self._recorded)
        while self._recorded and self._recorded[-1] <= until:
            self._recorded.pop()
        if len(self._recorded) == before:
            return []
        if self._recorded:
            return [log.record_redelivered(until, last)]
        self._log = None
        log.delete()
        return []

    def _arm_by(self, at: int) -> None:
        if self._alarm is None or at < self._alarm.at:
            self._arm(at)

    # -- log; the lock is held -----------------------------------------------------------------------------------------

    def _compact(self) -> None:
        # Popped nacks are not in the index. Without durability, the log must not include new nacks.
        if self._log is not None and self._recorded is None and not self._redelivering and self._log.needs_compaction:
            self._log.compact(self._all_nacks())

    def _all_nacks(self) -> Iterator[Nacks]:
        yield from self._times.groups()
        for key, chunks in self._chunks.items():
            yield from _nacks(key, *columns_of(_flat(chunks)))

    @property
    def count(self) -> int:
        """Number of messages, counted once for each bucket that contains them."""
        return len(self._times)

    def __len__(self) -> int:
        return self.count

    def positions(self) -> list[Position]:
        """Positions of all messages, once for each bucket that contains them."""
        return self._times.positions()

    def buckets(self) -> dict[int, int]:
        """Number of messages in each bucket, by its time."""
        return self._times.buckets()

    @property
    def next_redelivery(self) -> int | None:
        """Time of the alarm; None if there are no messages."""
        with self._lock:
            return None if self._alarm is None else self._alarm.at

    @property
    def memory_bytes(self) -> int:
        return self._times.memory_bytes

    def close(self) -> None:
        """Cancel all redeliveries, except for a running call. Recorded nacks stay in the log."""
        with self._lock:
            closed, self._closed = self._closed, True
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None
            self._times.clear()
            self._chunks.clear()
        if closed:
            return
        if self._own_timer is not None:
            self._own_timer.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<NegativeAcks: {self.count} waiting{', closed' if self._closed else ''}>"


class _UndeliveredRows:
    """Rows of a round that have not been redelivered, the earliest bucket first."""

    def __init__(self, rows: MessageRows) -> None:
        self.rows = rows


def _flat(chunks: dict[Position, list[Position]]) -> Iterator[Position]:
    for others in chunks.values():
        yield from others


def _nacks(key: int, ledger_ids: Column, ids: Column, width: int = 0, count: int = 0) -> Iterator[Nacks]:
    for ledger_id in np.unique(ledger_ids).tolist():
        yield nacks_of(key, ledger_id, np.unique(ids[ledger_ids == ledger_id]), width, count)


def _log_unrecorded(error: BookstandError) -> None:
    logger().warning("redeliveries could not be recorded and will be repeated after a restart: %s", error)


def _wait_for(pendings: Iterable[Pending]) -> None:
    for pending in pendings:
        pending.result()
