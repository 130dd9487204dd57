"""How messages that are out come back: negatively acknowledged, held beyond their deadline, or given back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from threading import RLock
from typing import TYPE_CHECKING

from bookstand.delivery.consumer import Consumer
from bookstand.delivery.doorbell import Doorbell
from bookstand.delivery.message_id import MessageId, position_of
from bookstand.delivery.nack_log import forget
from bookstand.delivery.negative_acks import NegativeAcks
from bookstand.delivery.timer import Alarm, Timer
from bookstand.delivery.times import span_of
from bookstand.delivery.topic_config import SubscriptionConfig
from bookstand.delivery.whereabouts import Whereabouts
from bookstand.storage.position import Position

if TYPE_CHECKING:
    from bookstand.delivery.nack_log import Store
    from bookstand.storage.clock import Clock


class Returning:
    """Its owner has ``lock``, which alarms take by themselves. ``nacks_name``: under which negative acknowledgments are
    kept in the store, where they are."""

    def __init__(
        self,
        store: Store,
        nacks_name: str,
        config: SubscriptionConfig,
        where: Whereabouts,
        bell: Doorbell,
        lock: RLock,
        clock: Clock,
        timer: Timer,
    ) -> None:
        self._config = config
        self._where = where
        self._bell = bell
        self._lock = lock
        self._clock = clock
        self._timer = timer
        self._ack_deadline = None if config.ack_deadline is None else span_of("ack_deadline", config.ack_deadline)
        # Rings when the first deadline passes of what is out.
        self._alarm: Alarm | None = None
        self._stopped = False
        self._nacks = self._open_nacks(store, nacks_name)

    def _open_nacks(self, store: Store, name: str) -> NegativeAcks:
        delay, backoff = span_of("nack_delay", self._config.nack_delay), self._config.nack_backoff
        if not self._config.durable_nacks:
            forget(store, name)
            return NegativeAcks(self._nacks_due, delay=delay, backoff=backoff, clock=self._clock, timer=self._timer)
        with self._lock:
            # What is due by now is announced at once, in another thread, which waits for the lock.
            nacks = NegativeAcks.open(
                store, name, self._nacks_due, delay=delay, backoff=backoff, clock=self._clock, timer=self._timer
            )
            self._where.nacked.add_whole(nacks.positions())
            self._where.reach(self._where.nacked.positions())
            return nacks

    @property
    def damage(self) -> list[str]:
        """Damage of the log of negative acknowledgments."""
        return self._nacks.damage

    # -- negative acknowledgments ------------------------------------------------------------------------------------

    def nack(self, messages: Sequence[MessageId], wait: int | None) -> None:
        """They are to come again, after so many milliseconds, or what the configuration says."""
        # Also what the cursor has not come to waits.
        self._where.reach(map(position_of, messages))
        # What was given back equally often comes again together, and is written down in one commit.
        for count, some in groupby(sorted(messages, key=self._count_of), key=self._count_of):
            messages_of_count = list(some)
            until = self._nacks.add_many(map(position_of, messages_of_count), wait, count)
            for message in messages_of_count:
                self._where.nacked.add(position_of(message), message[2] if len(message) > 2 else -1, until)
                self._where.out.settle(message)

    def _count_of(self, message: MessageId) -> int:
        """How often it was given back, where that decides when it comes again."""
        return 0 if self._config.nack_backoff is None else self._where.given_back.get(message, 0)

    def _nacks_due(self, positions: list[Position]) -> None:
        with self._lock:
            if not self._stopped:
                now = self._clock.now()
                due = [message for position in positions for message in self._where.nacked.due(position, now)]
                # What is out by now was given back for another reason, and went out again.
                self.give_back([message for message in due if self._where.out.handout_of(message) is None])

    # -- deadlines ---------------------------------------------------------------------------------------------------

    def deadline(self) -> int | None:
        """Of what is handed out now, which :meth:`watch` is told of then."""
        return None if self._ack_deadline is None else self._clock.now() + self._ack_deadline

    def watch(self, deadline: int | None) -> None:
        if self._alarm is None and deadline is not None:
            self._alarm = self._timer.arm(deadline, self._deadline_passed)

    def _deadline_passed(self, _: Alarm) -> None:
        with self._lock:
            self._alarm = None
            if self._stopped:
                return
            overdue = self._where.out.overdue(self._clock.now())
            if overdue:
                self.give_back(overdue)
            self.watch(self._where.out.next_deadline)

    # -- giving back -------------------------------------------------------------------------------------------------

    def give_back(self, messages: Sequence[MessageId]) -> None:
        """They come again at once. Those that nobody has seen do not come for another time."""
        where = self._where
        if self._config.is_exclusive and messages:
            messages = list({*messages, *where.out.all()})
        unseen: dict[Consumer, set[MessageId]] = {}
        for message in messages:
            handout = where.out.handout_of(message)
            if handout is not None and handout.consumer not in unseen:
                unseen[handout.consumer] = handout.consumer.held_back(where.out)
            if handout is None or message not in unseen[handout.consumer]:
                where.given_back[message] = where.given_back.get(message, 0) + 1
            where.out.settle(message)
        where.again.add(messages)
        # The cursor may not have come to it in this life.
        where.reach(map(position_of, messages))
        self._bell.ring()

    # -- the end -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Nothing comes back any more."""
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()

    def close(self) -> None:
        """After :meth:`stop`, and without the lock, for which one who announces what is due may wait."""
        self._nacks.close()
