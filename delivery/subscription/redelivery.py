"""How messages that are out come back: negatively acknowledged, held beyond their deadline, or given back."""

from __future__ import annotations

from collections.abc import Sequence
from threading import RLock
from typing import TYPE_CHECKING

from bookstand.delivery.message.message_id import MessageId, position_of
from bookstand.delivery.nacks.tracker import NegativeAcks
from bookstand.delivery.notifier import Notifier
from bookstand.delivery.subscription.consumer import Consumer
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.delivery.time_arguments import to_millis
from bookstand.delivery.timer import Alarm, Timer
from bookstand.delivery.topic_config import SubscriptionConfig

if TYPE_CHECKING:
    from bookstand.delivery.nacks.log import Store
    from bookstand.storage.clock import Clock


class RedeliveryTracker:
    """Callers hold ``lock``; alarms take it on their own. ``nacks_name``: the name of the log of negative
    acknowledgments."""

    def __init__(
        self,
        store: Store,
        nacks_name: str,
        config: SubscriptionConfig,
        states: MessageStates,
        notifier: Notifier,
        lock: RLock,
        clock: Clock,
        timer: Timer,
    ) -> None:
        self._config = config
        self._states = states
        self._notifier = notifier
        self._lock = lock
        self._clock = clock
        self._timer = timer
        # Rings when the first deadline passes of what is out.
        self._alarm: Alarm | None = None
        self._stopped = False
        self._nacks = self._open_nacks(store, nacks_name)

    def _open_nacks(self, store: Store, name: str) -> NegativeAcks:
        with self._lock:
            # What is due by now is announced at once, in another thread, which waits for the lock.
            nacks = NegativeAcks.open(
                store,
                name,
                self._nacks_due,
                delay=to_millis("nack_delay", self._config.nack_delay),
                backoff=self._config.nack_backoff,
                clock=self._clock,
                timer=self._timer,
                durable=self._config.durable_nacks,
                nacked=self._states.nacked,
                lock=self._lock,
            )
            self._states.extend_high_watermark(self._states.nacked.last_entries())
            return nacks

    def change_config(self, config: SubscriptionConfig) -> None:
        """Use these settings for what is delivered and acknowledged negatively from now on."""
        self._config = config
        self._nacks.change_delay(to_millis("nack_delay", config.nack_delay), config.nack_backoff)

    @property
    def damage(self) -> list[str]:
        """Damage of the log of negative acknowledgments."""
        return self._nacks.damage

    # -- negative acknowledgments ------------------------------------------------------------------------------------

    def nack(self, messages: Sequence[MessageId], wait: int | None) -> None:
        """Redeliver messages after so many milliseconds, or as the configuration says."""
        # Messages that the cursor has not read yet are nacked as well.
        self._states.extend_high_watermark(map(position_of, messages))
        # Messages of one count have one delay, and are recorded in one commit.
        counts = self._states.redelivery_counts.of_each(messages)
        for count in sorted(set(counts)):
            self._nacks.nack([one for one, its in zip(messages, counts, strict=True) if its == count], wait, count)
        for message in messages:
            self._states.unacked.remove(message)
        # What was given back before waits for the nack as well.
        self._states.replay_queue.discard(messages)

    def _nacks_due(self, messages: list[MessageId]) -> None:
        with self._lock:
            if not self._stopped:
                # What is out by now was given back for another reason, and went out again.
                self.redeliver([message for message in messages if self._states.unacked.delivery_of(message) is None])

    # -- deadlines ---------------------------------------------------------------------------------------------------

    def deadline(self) -> int | None:
        """The deadline of messages that are delivered now, to be passed to :meth:`watch`; None if they have none."""
        span = self._config.ack_deadline
        return None if span is None else self._clock.now() + to_millis("ack_deadline", span)

    def schedule_deadline(self, deadline: int | None) -> None:
        """Have what is overdue redelivered at this deadline, or at an earlier one that is watched already."""
        if deadline is None or (self._alarm is not None and self._alarm.at <= deadline):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._timer.arm(deadline, self._redeliver_overdue)

    def _redeliver_overdue(self, alarm: Alarm) -> None:
        with self._lock:
            if self._alarm is alarm:
                self._alarm = None
            if self._stopped:
                return
            overdue = self._states.unacked.overdue(self._clock.now())
            if overdue:
                self.redeliver(overdue)
            self.schedule_deadline(self._states.unacked.next_deadline)

    # -- giving back -------------------------------------------------------------------------------------------------

    def redeliver(self, messages: Sequence[MessageId]) -> None:
        """They come again at once. Those that nobody has seen do not come for another time."""
        states = self._states
        if self._config.is_exclusive and messages:
            messages = list({*messages, *states.unacked.all()})
        # The count of a whole entry is part of that of each of its members.
        whole = {message for message in messages if len(message) == 2}
        unseen: dict[Consumer, set[MessageId]] = {}
        for message in messages:
            delivery = states.unacked.delivery_of(message)
            if delivery is not None and delivery.consumer not in unseen:
                unseen[delivery.consumer] = delivery.consumer.undelivered(states.unacked)
            is_seen = delivery is None or message not in unseen[delivery.consumer]
            if is_seen and (len(message) == 2 or position_of(message) not in whole):
                states.redelivery_counts.increment(message)
            if delivery is not None:
                # Of a nacked batch that is due, messages may be in flight that returned before it.
                states.unacked.remove(message)
        states.replay_queue.add(messages)
        # The cursor may not have come to it in this life.
        states.extend_high_watermark(map(position_of, messages))
        self._notifier.notify()

    # -- the end -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Nothing comes back any more."""
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()

    def close(self) -> None:
        """After :meth:`stop`, and without the lock, for which one who announces what is due may wait."""
        self._nacks.close()
