"""Redelivery of messages in flight, after a negative acknowledgment, a missed deadline or the end of their consumer."""

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
    """Callers hold ``lock``, the subscription's; alarms acquire it. ``nacks_name``: name of the log."""

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
        # Set for the earliest deadline of the messages in flight.
        self._alarm: Alarm | None = None
        self._stopped = False
        self._nacks = self._open_nacks(store, nacks_name)

    def _open_nacks(self, store: Store, name: str) -> NegativeAcks:
        with self._lock:
            # Nacks that are already due are announced by another thread, which waits for the lock.
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
        """Use new settings for messages that are delivered or negatively acknowledged from now on."""
        self._config = config
        self._nacks.change_delay(to_millis("nack_delay", config.nack_delay), config.nack_backoff)

    @property
    def damage(self) -> list[str]:
        return self._nacks.damage

    def nack(self, messages: Sequence[MessageId], wait: int | None) -> None:
        """Redeliver messages after ``wait`` milliseconds; None: after the configured delay or backoff."""
        # A message above the read position may be negatively acknowledged, too.
        self._states.extend_high_watermark(map(position_of, messages))
        # The delay depends on the redelivery count. Each group is recorded in one commit.
        counts = self._states.redelivery_counts.of_each(messages)
        for count in sorted(set(counts)):
            self._nacks.nack([one for one, its in zip(messages, counts, strict=True) if its == count], wait, count)
        for message in messages:
            self._states.unacked.remove(message)
        # The nack replaces an earlier, immediate redelivery.
        self._states.replay_queue.discard(messages)

    def _nacks_due(self, messages: list[MessageId]) -> None:
        with self._lock:
            if not self._stopped:
                # A message in flight was redelivered for another reason in the meantime.
                self.redeliver([message for message in messages if self._states.unacked.delivery_of(message) is None])

    def deadline(self) -> int | None:
        """Deadline of messages that are delivered now, for :meth:`schedule_deadline`; None if they have none."""
        span = self._config.ack_deadline
        return None if span is None else self._clock.now() + to_millis("ack_deadline", span)

    def schedule_deadline(self, deadline: int | None) -> None:
        """Set the alarm for a deadline, unless it is set for an earlier one."""
        if deadline is None or (self._alarm is not None and self._alarm.at <= deadline):
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._timer.arm(deadline, self._on_deadline)

    def _on_deadline(self, alarm: Alarm) -> None:
        with self._lock:
            if self._alarm is alarm:
                self._alarm = None
            if self._stopped:
                return
            overdue = self._states.unacked.pop_overdue(self._clock.now())
            if overdue:
                self.redeliver(overdue)
            self.schedule_deadline(self._states.unacked.next_deadline)

    def redeliver(self, messages: Sequence[MessageId]) -> None:
        """Move messages to the replay queue. Messages that no caller has received are not counted."""
        states = self._states
        if self._config.is_exclusive and messages:
            messages = list({*messages, *states.unacked.all()})
        # The count of an entry is included in the counts of its messages.
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
                # Messages of a batch that is due may be in flight again.
                states.unacked.remove(message)
        states.replay_queue.add(messages)
        # After a restart, the cursor may be below these messages.
        states.extend_high_watermark(map(position_of, messages))
        self._notifier.notify()

    def stop(self) -> None:
        """Ignore deadlines and due nacks from now on."""
        self._stopped = True
        if self._alarm is not None:
            self._alarm.cancel()

    def close(self) -> None:
        """Close the log. Call it after :meth:`stop`, and without the lock, because the thread that announces due nacks
        may wait for the lock."""
        self._nacks.close()
