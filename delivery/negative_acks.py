"""Negative acknowledgments (PIP-393): messages that could not be handled, to be delivered again after a while.

Deadlines go to buckets of 2^precision_bits milliseconds, and what is in one bucket is given back at once: early by less
than the bucket, late by no more than the timer is. An entry of several messages is one position: nacked for different
times it is given back at each of them, nacked twice for one bucket once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Self

import numpy as np

from bookstand.delivery.backoff import RedeliveryBackoff
from bookstand.delivery.nack_log import COMPACT_BYTES, NackLog
from bookstand.delivery.nack_record import Nacks, nacks_of
from bookstand.delivery.time_index import TimeIndex
from bookstand.delivery.timer import Alarm, Timer, timer_for
from bookstand.delivery.tracker import (
    LARGEST,
    Column,
    Positions,
    TrackerClosedError,
    check_millis,
    check_position,
    columns_of,
)
from bookstand.delivery.waiting import first_of_each
from bookstand.errors import BookstandError, IncorrectParameterError
from bookstand.storage.clock import SystemClock
from bookstand.storage.log import logger
from bookstand.storage.position import Position

if TYPE_CHECKING:
    from bookstand.delivery.nack_log import Store
    from bookstand.storage.clock import Clock
    from bookstand.storage.pending import Pending

PRECISION_BITS = 8
DELAY_MILLIS = 60_000
SHORTEST_DELAY_MILLIS = 100
"""Of a fixed delay; what a backoff says is taken as it is."""
AT_ONCE = 1_000
"""How many positions one call of ``redeliver`` gets at most."""
RETRY_MILLIS = 1_000
"""After which time ``redeliver`` is called again when it failed."""


class NegativeAcks:
    """``redeliver(positions)`` is called in the timer's thread, without any lock held, one call at a time, and may call
    the methods here. What it raises is logged, and what it was given comes again a second later.

    Times are in milliseconds. Without a ``timer`` it has one of its own, which it closes. Use :meth:`open` for one that
    a restart does not make forget.
    """

    def __init__(
        self,
        redeliver: Callable[[list[Position]], object],
        precision_bits: int = PRECISION_BITS,
        delay: int = DELAY_MILLIS,
        backoff: RedeliveryBackoff | None = None,
        clock: Clock | None = None,
        timer: Timer | None = None,
    ) -> None:
        self._redeliver = redeliver
        self._delay = check_millis("delay", delay, 0)
        self._backoff = backoff
        self._clock = SystemClock() if clock is None else clock
        self._index = TimeIndex(precision_bits)
        self._own_timer = timer_for(self._clock) if timer is None else None
        self._timer: Timer = timer or self._own_timer  # type: ignore[assignment]
        self._lock = RLock()
        # By bucket and position: the other entries of messages that were cut into several.
        self._chunks: dict[int, dict[Position, list[Position]]] = {}
        # Rings at the latest when the first deadline passes.
        self._alarm: Alarm | None = None
        # Somebody is calling redeliver, and another alarm rang meanwhile.
        self._giving = False
        self._missed = False
        self._closed = False
        self._log: NackLog | None = None
        self.damage: list[str] = []
        """Damaged parts of the log that these were read from; their messages are redelivered at once."""

    @classmethod
    def open(
        cls,
        store: Store,
        name: str,
        redeliver: Callable[[list[Position]], object],
        precision_bits: int = PRECISION_BITS,
        delay: int = DELAY_MILLIS,
        backoff: RedeliveryBackoff | None = None,
        clock: Clock | None = None,
        timer: Timer | None = None,
        compact_bytes: int = COMPACT_BYTES,
    ) -> Self:
        """Those that are kept under ``name`` in the store, in a ledger. Whoever had them open before is fenced.

        What :meth:`add` returned from is given back at least once, whatever crashes when; what it raised for, perhaps.
        ``nack_log.forget`` deletes what is kept.
        """
        acks = cls(redeliver, precision_bits, delay, backoff, clock, timer)
        acks._recover(NackLog(store, name, compact_bytes))
        return acks

    def _recover(self, log: NackLog) -> None:
        with self._lock:
            for nacks in log.read():
                for first, last in zip(nacks.firsts.tolist(), nacks.lasts.tolist(), strict=True):
                    self._index.add_range(nacks.time, nacks.ledger_id, first, last)
            self.damage += log.damage
            for problem in log.damage:
                logger().warning("negative acknowledgments: %s", problem)
            log.begin(self._all_nacks())
            self._log = log
            self._arm_next()

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
            deadline = self._deadline(wait)
            self._index.add(deadline, ledger_id, entry_id)
            if others:
                self._chunks.setdefault(self._index.key(deadline), {})[Position(ledger_id, entry_id)] = others
            noted = self._added(deadline, [(ledger_id, entry_id), *others])
            bucket = self._index.key(deadline)
        _settle(noted)
        return bucket

    def add_many(self, positions: Positions, delay: int | None = None, redelivery_count: int = 0) -> int:
        """The same for many, which all come again at the same time; positions one by one, or columns."""
        ledger_ids, entry_ids = columns_of(positions)
        wait = self._wait(delay, redelivery_count)
        with self._lock:
            deadline = self._deadline(wait)
            bucket = self._index.key(deadline)
            if not len(ledger_ids):
                return bucket
            self._index.add_many(np.full(len(ledger_ids), deadline), ledger_ids, entry_ids)
            noted = self._added(deadline, (ledger_ids, entry_ids))
        _settle(noted)
        return bucket

    def _wait(self, delay: int | None, redelivery_count: int) -> int:
        if type(redelivery_count) is not int:
            raise IncorrectParameterError(f"a redelivery count is a number, not {redelivery_count!r}")
        if delay is None and self._backoff is not None:
            return check_millis("what the backoff gives", self._backoff.next(redelivery_count), 0)
        chosen = self._delay if delay is None else check_millis("delay", delay, 0)
        return max(chosen, SHORTEST_DELAY_MILLIS)

    def _deadline(self, wait: int) -> int:
        if self._closed:
            raise TrackerClosedError("the negative acknowledgments were closed")
        return min(self._clock.now() + wait, LARGEST)

    def _added(self, deadline: int, positions: Positions) -> list[Pending]:
        """They are in the index; the lock is held. What the caller is to wait for without it."""
        if self._alarm is not None and not self._alarm.live:
            # It is about to ring, or was lost with a fork: what it was for must not wait for this one.
            self._alarm = None
            self._arm_next()
        elif self._alarm is None or deadline < self._alarm.at:
            self._arm(deadline)
        if self._log is None:
            return []
        # In the index first: what stands in the log up to its last entry is there, or was given out.
        noted = self._log.note(_nacks(self._index.key(deadline), *columns_of(positions)))
        self._compact()
        return noted

    # -- out -----------------------------------------------------------------------------------------------------------

    def _arm(self, at: int) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._timer.arm(max(at, self._clock.now()), self._ring)

    def _arm_next(self) -> None:
        """For the first bucket, unless an alarm is set: that one is early enough for all there are."""
        first = self._index.next_time()
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
            left = self._pop(now)
            self._arm_next()
            if not left.ledger_ids.size:
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

    def _pop(self, now: int) -> _Left:
        """What is due, each position once, in however many buckets it was."""
        keys, ledger_ids, entry_ids = self._index.pop_due(now).columns()
        chunks = [(key, *one) for key in list(self._chunks) if key <= now for one in _flat(self._chunks.pop(key))]
        if chunks:
            rows = np.concatenate([np.column_stack([keys, ledger_ids, entry_ids]), np.array(chunks, dtype=np.int64)])
            keys, ledger_ids, entry_ids = rows[np.argsort(rows[:, 0], kind="stable")].T
        once = first_of_each(ledger_ids, entry_ids)
        return _Left(keys[once], ledger_ids[once], entry_ids[once])

    def _give(self, left: _Left) -> None:
        while left.ledger_ids.size and not self._closed:
            self._redeliver(list(map(Position, left.ledger_ids[:AT_ONCE].tolist(), left.entry_ids[:AT_ONCE].tolist())))
            left.drop(AT_ONCE)

    def _given(self, left: _Left, until: int, last: int) -> list[Pending]:
        """As much as is not left was given out. What is left goes back to its buckets, where it is due, so that only
        a round that gives out everything up to its time is noted."""
        noted: list[Pending] = []
        with self._lock:
            self._giving = False
            missed, self._missed = self._missed, False
            if self._closed:
                return noted
            if left.ledger_ids.size:
                self._index.add_many(left.keys, left.ledger_ids, left.entry_ids)
                self._arm_by(self._clock.now() + RETRY_MILLIS)
            elif self._log is not None:
                try:
                    noted.append(self._log.given(until, last))
                except BookstandError as error:
                    _unnoted(error)
            if missed:
                self._arm_by(self._clock.now())
            self._compact()
        return noted

    def _arm_by(self, at: int) -> None:
        if self._alarm is None or at < self._alarm.at:
            self._arm(at)

    # -- the log; the lock is held -------------------------------------------------------------------------------------

    def _compact(self) -> None:
        # Not while something is neither in the index nor given out.
        if self._log is not None and not self._giving and self._log.is_full:
            self._log.compact(self._all_nacks())

    def _all_nacks(self) -> Iterator[Nacks]:
        for one in self._index.peek():
            yield nacks_of(one.key, one.ledger_id, one.entry_ids.astype(np.int64))
        for key, chunks in self._chunks.items():
            yield from _nacks(key, *columns_of(_flat(chunks)))

    # -- questions -----------------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many messages wait, counted once for each bucket that they are in."""
        return len(self._index)

    def __len__(self) -> int:
        return self.count

    def positions(self) -> list[Position]:
        """Of all that wait, once for each bucket that they are in."""
        return self._index.peek().positions()

    def buckets(self) -> dict[int, int]:
        """How many wait in each bucket, by its time."""
        counts: dict[int, int] = {}
        for segment in self._index.peek():
            counts[segment.key] = counts.get(segment.key, 0) + len(segment.entry_ids)
        return counts

    @property
    def next_redelivery(self) -> int | None:
        """When the alarm is to ring; None if nothing waits."""
        with self._lock:
            return None if self._alarm is None else self._alarm.at

    @property
    def memory_bytes(self) -> int:
        return self._index.memory_bytes

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing is given back any more, but for a call that is under way. What is kept in a store stays there."""
        with self._lock:
            closed, self._closed = self._closed, True
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None
            self._index.clear()
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
    """What a round has still to give out, the earliest bucket first."""

    def __init__(self, keys: Column, ledger_ids: Column, entry_ids: Column) -> None:
        self.keys = keys
        self.ledger_ids = ledger_ids
        self.entry_ids = entry_ids

    def drop(self, count: int) -> None:
        self.keys = self.keys[count:]
        self.ledger_ids = self.ledger_ids[count:]
        self.entry_ids = self.entry_ids[count:]


def _flat(chunks: dict[Position, list[Position]]) -> Iterator[Position]:
    for others in chunks.values():
        yield from others


def _nacks(key: int, ledger_ids: Column, entry_ids: Column) -> Iterator[Nacks]:
    for ledger_id in np.unique(ledger_ids).tolist():
        yield nacks_of(key, ledger_id, np.unique(entry_ids[ledger_ids == ledger_id]))


def _unnoted(error: BookstandError) -> None:
    logger().warning("what was given back could not be noted, and comes again after a restart: %s", error)


def _settle(noted: Iterable[Pending]) -> None:
    for pending in noted:
        pending.result()
