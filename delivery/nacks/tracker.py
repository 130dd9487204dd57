"""Negative acknowledgments (PIP-393): messages that could not be handled, to be delivered again after a while.

Deadlines go to buckets of 2^precision_bits milliseconds, and what is in one bucket is given back at once: early by less
than the bucket, late by no more than the timer is. An entry of several messages is one position: nacked for different
times it is given back at each of them, nacked twice for one bucket once.
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
SHORTEST_DELAY_MILLIS = 100
"""Of a fixed delay; what a backoff says is taken as it is."""
AT_ONCE = 1_000
"""How many positions one call of ``redeliver`` gets at most."""
RETRY_MILLIS = 1_000
"""After which time ``redeliver`` is called again when it failed."""
_FEW = 16
"""Fewer messages are added one by one."""


class NegativeAcks(ProcessBound):
    """``redeliver(positions)`` is called in the timer's thread, one call at a time and without any lock held, and may
    call the methods here. An exception is logged, and what the call was for is redelivered a second later.

    Times are in milliseconds. ``precision`` may replace ``precision_bits`` (see ``precision.py``). Without a ``timer``
    there is one of its own, which :meth:`close` closes. Use :meth:`open` for negative acknowledgments that a restart
    keeps.

    ``nacked``: the messages of a subscription, which :meth:`nack` adds to. They are redelivered by message instead of
    by position, each at the time of its last nack, and under ``lock``, which then guards both.
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
        # By bucket and position: the other entries of messages that were cut into several.
        self._chunks: dict[int, dict[Position, list[Position]]] = {}
        # Rings at the latest when the first deadline passes.
        self._alarm: Alarm | None = None
        # A thread is calling redeliver, and another alarm rang meanwhile.
        self._giving = False
        self._missed = False
        self._closed = False
        self._log: NackLog | None = None
        # If new nacks are not recorded: the times of recorded ones, descending; else None.
        self._recorded: list[int] | None = None
        self.damage: list[str] = []
        """Damaged parts of the log that these were read from; their messages are redelivered at once."""

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
        """Open the negative acknowledgments that are recorded under ``name`` in the store, in a ledger. A process that
        had them open before is fenced.

        What :meth:`add` returned from is redelivered at least once, whatever crashes when; what it raised for, perhaps.
        Not ``durable``, those that were recorded before return at their times, new ones are not recorded, and the log
        is deleted when all recorded ones have returned. ``nack_log.forget`` deletes it at once.
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
            # Under the times that were recorded, which those of rounds are compared with.
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
            log.begin(self._all_nacks())
            self._log = log
            self._arm_next()

    def change_delay(self, delay: int, backoff: RedeliveryBackoff | None) -> None:
        """Use another delay and backoff for what is nacked from now on."""
        with self._lock:
            self._delay = check_millis("delay", delay, 0)
            self._backoff = backoff

    # -- in ------------------------------------------------------------------------------------------------------------

    def add(
        self,
        position: tuple[int, int],
        batch_index: int = -1,
        delay: int | None = None,
        redelivery_count: int = 0,
        chunks: Sequence[tuple[int, int]] = (),
    ) -> int:
        """Have a message delivered again: after ``delay``, or what the backoff says of the ``redelivery_count``, or the
        delay of all. Returns the time from which on it is: that of its bucket.

        ``batch_index``: which message of the entry; the entry is what comes again. ``chunks``: all entries of a message
        that was cut into several, the last of which is its position; they come again together, and count as one.
        After a restart they still come together, but each counts.
        """
        if type(batch_index) is not int or batch_index < -1:
            raise IncorrectParameterError(f"a batch index is a number from 0 up, or -1 for none, not {batch_index!r}")
        ledger_id, entry_id = check_position(position)
        others = [Position(*check_position(chunk)) for chunk in chunks]
        wait = self._wait(delay, redelivery_count)
        with self._lock:
            deadline, bucket = self._deadline(wait)
            self._times.add(bucket, (0, ledger_id, entry_id))
            if others:
                self._chunks.setdefault(bucket, {})[Position(ledger_id, entry_id)] = others
            noted = self._added(deadline, lambda: _nacks(bucket, *columns_of([(ledger_id, entry_id), *others])))
        _settle(noted)
        return bucket

    def add_many(self, positions: Positions, delay: int | None = None, redelivery_count: int = 0) -> int:
        """The same for many, which all come again at the same time; positions one by one, or columns."""
        ledger_ids, entry_ids = columns_of(positions)
        wait = self._wait(delay, redelivery_count)
        with self._lock:
            deadline, bucket = self._deadline(wait)
            if not len(ledger_ids):
                return bucket
            self._times.add_many(bucket, 0, ledger_ids, entry_ids)
            noted = self._added(deadline, lambda: _nacks(bucket, ledger_ids, entry_ids))
        _settle(noted)
        return bucket

    def nack(self, messages: Sequence[MessageId], delay: int | None = None, redelivery_count: int = 0) -> None:
        """Redeliver messages of a subscription that were redelivered so many times before."""
        wait = self._wait(delay, redelivery_count)
        if len(messages) < _FEW:
            codes = list(map(code_of, messages))
        else:
            columns = codes_by_width(messages)
        with self._lock:
            deadline, bucket = self._deadline(wait)
            replaces = False
            if len(messages) < _FEW:
                for code in codes:
                    replaces |= self._times.add(bucket, code)
            else:
                for one in columns:
                    replaces |= self._times.add_many(bucket, *one)
            if replaces and self._recorded is not None:
                # A replaced nack may be recorded, and would return at its own time after a restart.
                self._recorded = sorted({*self._recorded, bucket}, reverse=True)
            noted = self._added(
                deadline,
                lambda: (
                    nacks
                    for width, ledger_ids, ids in codes_by_width(messages)
                    for nacks in _nacks(bucket, ledger_ids, ids, width, redelivery_count)
                ),
                is_recorded=self._recorded is None or replaces,
            )
        _settle(noted)

    def _wait(self, delay: int | None, redelivery_count: int) -> int:
        if type(redelivery_count) is not int:
            raise IncorrectParameterError(f"a redelivery count is a number, not {redelivery_count!r}")
        if delay is None and self._backoff is not None:
            return check_millis("what the backoff gives", self._backoff.next(redelivery_count), 0)
        chosen = self._delay if delay is None else check_millis("delay", delay, 0)
        return max(chosen, SHORTEST_DELAY_MILLIS)

    def _deadline(self, wait: int) -> tuple[int, int]:
        """The end of a wait that begins now, and its bucket."""
        if self._closed:
            raise TrackerClosedError("the negative acknowledgments were closed")
        deadline = min(self._clock.now() + wait, LARGEST)
        return deadline, self._times.key(deadline)

    def _added(self, deadline: int, nacks: Callable[[], Iterable[Nacks]], is_recorded: bool = True) -> list[Pending]:
        """Set the alarm for, and record, nacks that are in the index; the lock is held. Returns what the caller is to
        wait for without it."""
        if self._alarm is not None and not self._alarm.live:
            # It is about to ring, or was lost with a fork: what it was for must not wait for this one.
            self._alarm = None
            self._arm_next()
        elif self._alarm is None or deadline < self._alarm.at:
            self._arm(deadline)
        if self._log is None or not is_recorded:
            return []
        # In the index first: what is in the log up to its last entry is there, or was redelivered.
        noted = self._log.note(nacks())
        self._compact()
        return noted

    # -- out -----------------------------------------------------------------------------------------------------------

    def _arm(self, at: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._timer.arm(max(at, self._clock.now()), self._ring)

    def _arm_next(self) -> None:
        """For the first bucket, unless an alarm is set: that one is early enough for all there are."""
        first = self._times.next_time()
        if first is None:
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None
        elif self._alarm is None:
            self._arm(first)

    def _ring(self, alarm: Alarm) -> None:
        with self._lock:
            # One that was cancelled while it began to ring is not taken for the one after it.
            if self._alarm is alarm:
                self._alarm = None
            if self._closed:
                return
            if self._giving:
                self._missed = True
                return
            now = self._clock.now()
            last = -1 if self._log is None else self._log.last
            left = _Left(self._pop(now))
            self._arm_next()
            if not left.rows.keys.size:
                return
            self._giving = True
        try:
            self._give(left)
        except Exception:
            logger().exception("redelivery failed, and is tried again")
        finally:
            noted = self._given(left, now, last)
            try:
                _settle(noted)
            except BookstandError as error:
                _unnoted(error)

    def _pop(self, now: int) -> MessageRows:
        """Remove what is due: each position once, in however many buckets it was."""
        rows = self._times.pop(now)
        chunks = [(key, *one, -1) for key in list(self._chunks) if key <= now for one in _flat(self._chunks.pop(key))]
        if chunks:
            table = np.concatenate([np.column_stack(rows), np.array(chunks, dtype=np.int64)])
            rows = MessageRows(*table[np.argsort(table[:, 0], kind="stable")].T)
        return rows.without_repetitions() if self._nacked is None else rows

    def _give(self, left: _Left) -> None:
        while left.rows.keys.size and not self._closed:
            some = left.rows.pick(slice(AT_ONCE))
            if self._nacked is None:
                self._redeliver(some.messages())
            else:
                with self._lock:
                    if messages := self._nacked.valid(some).messages():
                        self._redeliver(messages)
                    self._nacked.remove(some)
            left.rows = left.rows.pick(slice(AT_ONCE, None))

    def _given(self, left: _Left, until: int, last: int) -> list[Pending]:
        """As much as is not left was given out. What is left goes back to its buckets, where it is due, so that only
        a round that gives out everything up to its time is noted."""
        noted: list[Pending] = []
        with self._lock:
            self._giving = False
            missed, self._missed = self._missed, False
            if self._closed:
                return noted
            if left.rows.keys.size:
                self._times.put_back(left.rows)
                self._arm_by(self._clock.now() + RETRY_MILLIS)
            elif self._log is not None:
                try:
                    noted += self._note_round(self._log, until, last)
                except BookstandError as error:
                    _unnoted(error)
            if missed:
                self._arm_by(self._clock.now())
            self._compact()
        return noted

    def _note_round(self, log: NackLog, until: int, last: int) -> list[Pending]:
        if self._recorded is None:
            return [log.given(until, last)]
        before = len(self._recorded)
        while self._recorded and self._recorded[-1] <= until:
            self._recorded.pop()
        if len(self._recorded) == before:
            return []
        if self._recorded:
            return [log.given(until, last)]
        self._log = None
        log.delete()
        return []

    def _arm_by(self, at: int) -> None:
        if self._alarm is None or at < self._alarm.at:
            self._arm(at)

    # -- the log; the lock is held -------------------------------------------------------------------------------------

    def _compact(self) -> None:
        # Not while something is neither in the index nor redelivered; nor with nacks that are not to be recorded.
        if self._log is not None and self._recorded is None and not self._giving and self._log.is_full:
            self._log.compact(self._all_nacks())

    def _all_nacks(self) -> Iterator[Nacks]:
        yield from self._times.groups()
        for key, chunks in self._chunks.items():
            yield from _nacks(key, *columns_of(_flat(chunks)))

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many messages wait, counted once for each bucket that they are in."""
        return len(self._times)

    def __len__(self) -> int:
        return self.count

    def positions(self) -> list[Position]:
        """Of all that wait, once for each bucket that they are in."""
        return self._times.positions()

    def buckets(self) -> dict[int, int]:
        """How many wait in each bucket, by its time."""
        return self._times.buckets()

    @property
    def next_redelivery(self) -> int | None:
        """When the alarm is to ring; None if nothing waits."""
        with self._lock:
            return None if self._alarm is None else self._alarm.at

    @property
    def memory_bytes(self) -> int:
        return self._times.memory_bytes

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing is given back any more, but for a call that is under way. What is kept in a store stays there."""
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


class _Left:
    """Remaining messages of a round, the earliest bucket first."""

    def __init__(self, rows: MessageRows) -> None:
        self.rows = rows


def _flat(chunks: dict[Position, list[Position]]) -> Iterator[Position]:
    for others in chunks.values():
        yield from others


def _nacks(key: int, ledger_ids: Column, ids: Column, width: int = 0, count: int = 0) -> Iterator[Nacks]:
    for ledger_id in np.unique(ledger_ids).tolist():
        yield nacks_of(key, ledger_id, np.unique(ids[ledger_ids == ledger_id]), width, count)


def _unnoted(error: BookstandError) -> None:
    logger().warning("what was given back could not be noted, and comes again after a restart: %s", error)


def _settle(noted: Iterable[Pending]) -> None:
    for pending in noted:
        pending.result()
