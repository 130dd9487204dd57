"""Subscription: dispatch of a topic's messages to consumers, with the redelivery logic of Pulsar's broker and client.

Messages come from three sources, listed by precedence:

1. redeliveries (``dispatch/redelivery_source.py``): messages whose negative acknowledgment or deadline is due, or whose
   consumer was closed;
2. due messages (``dispatch/delayed_source.py``): delayed messages whose delivery time has passed;
3. new messages (``dispatch/backlog_source.py``): entries from the cursor's read position on.

``dispatch/dispatcher.py`` combines the sources. While the cursor's state is at its limit, ``dispatch/holes.py`` does so
instead. The sources share ``message_states.py`` and ``delayed_delivery.py``; ``acks.py`` and ``redelivery.py`` handle
messages in flight.

``_lock`` guards all of them, except that an acknowledgment updates the cursor and removes the message from those in
flight without it. After an interrupted call the next call rebuilds the in-memory state: it keeps the messages in flight
and reads all other unacknowledged messages again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING

from bookstand.cursor.cursor import Cursor
from bookstand.delivery.config import DelayedDeliveryConfig
from bookstand.delivery.dispatch.backlog_source import BacklogSource, BatchSizeEstimator
from bookstand.delivery.dispatch.delayed_source import DelayedSource
from bookstand.delivery.dispatch.dispatcher import Dispatcher
from bookstand.delivery.dispatch.holes import Holes
from bookstand.delivery.dispatch.redelivery_source import RedeliverySource
from bookstand.delivery.message.batch_filter import BatchFilter
from bookstand.delivery.message.message_id import MessageId, position_of
from bookstand.delivery.message.received_message import (
    Deliverable,
    MessageRef,
    ReceivedMember,
    ReceivedMessage,
    are_single_messages,
    ids_of,
    message_count,
    messages_of,
    resolve_id,
    resolve_position,
)
from bookstand.delivery.nacks.log import nack_name
from bookstand.delivery.notifier import Notifier
from bookstand.delivery.subscription.acks import AckHandler
from bookstand.delivery.subscription.consumer import Consumer
from bookstand.delivery.subscription.dead_letters import DeadLetterRouter, dead_letter_topic_of
from bookstand.delivery.subscription.delayed_delivery import DelayedDelivery
from bookstand.delivery.subscription.expiry import ExpiringReader
from bookstand.delivery.subscription.mark_delete_watcher import MarkDeleteWatcher
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.delivery.subscription.redelivery import RedeliveryTracker
from bookstand.delivery.subscription.stats import Counters, SubscriptionStats, samples
from bookstand.delivery.subscription.unreadable_entries import UnreadableEntries
from bookstand.delivery.time_arguments import Moment, Span, delivery_time, to_millis
from bookstand.delivery.topic_config import SUBSCRIPTION_WHILE_OPEN, SubscriptionConfig
from bookstand.delivery.tracker.factory import Tracker, check_relative_precision, open_tracker
from bookstand.delivery.tracker.protocol import check_position
from bookstand.errors import (
    BookstandError,
    ClientClosedError,
    IllegalOperationError,
    IncorrectParameterError,
    InterruptedOperationError,
)
from bookstand.storage.commit.futures import Pending
from bookstand.storage.format.position import Position
from bookstand.storage.metrics import Sample
from bookstand.storage.process.fork_guard import ProcessBound
from bookstand.storage.process.interrupt_guard import InterruptGuard

if TYPE_CHECKING:
    from bookstand.delivery.topic import Topic

_POSITION_OF = attrgetter("position")
_ID_OF = attrgetter("id")


class ConsumerBusyError(IllegalOperationError):
    """The exclusive subscription already has a consumer."""


class Subscription(ProcessBound):
    """Use ``topic.subscription(name)``. All methods are thread-safe.

    *At least once*: a durably published message is redelivered until it is durably acknowledged. After a restart,
    exactly the messages that were not durably acknowledged are redelivered. Redelivery counts restart at 0, except for
    recorded negative acknowledgments (``durable_nacks``).

    *Never early*: a delayed message is delivered at most one tick early, and with strict delivery never early.

    *Order*: new messages and redeliveries are each delivered in the topic's order, due messages by delivery time.
    Redeliveries precede due messages, and due messages precede new ones, but none of the three is skipped more than
    eight times in a row. In an exclusive subscription, a redelivery of one message includes all messages in flight, and
    redeliveries precede all other messages, so that messages without a delay stay in order.

    *One consumer at a time*: a message in flight with one consumer is not delivered to another until it is redelivered.

    *Damage*: a damaged entry does not block intact ones (but see *Pause*). When ``receive`` has nothing else to
    deliver, it raises :class:`UnreadableEntryError` once for each damaged entry, and skips that entry until the
    subscription is opened again. The entry stays in the backlog until ``ack(error.position)`` acknowledges it. With
    ``TopicConfig.auto_skip_non_recoverable_data`` damaged entries are acknowledged and counted instead.

    *Pause*: while the state of the cursor is at its limit (PIP-299), no message above the highest acknowledged position
    is dispatched. Messages in acknowledgment holes are dispatched lowest first: redeliveries, due and new messages
    alike. If there is no hole, the lowest unacknowledged message is dispatched. A consumer ends the pause by
    acknowledging every message that it receives and every damaged entry that is raised.
    """

    def __init__(self, topic: Topic, name: str, config: SubscriptionConfig, initial: str) -> None:
        check_relative_precision(topic.config, config.delayed_delivery_relative_precision)
        self.topic = topic
        self.name = name
        self.config = config
        self._clock = topic.ledger.client.clock
        self._lock = RLock()
        self._guard = InterruptGuard(self._repair)
        # Messages that each interrupted call took and did not return.
        self._interrupted: list[list[ReceivedMessage]] = []
        self.notifier = Notifier()
        """Notified when there may be something to receive."""
        self._closed: BookstandError | None = None
        self._counters = Counters()
        self._own_consumer = Consumer(self, name)
        self._consumers = {self._own_consumer}
        # The consumer that holds an exclusive subscription.
        self._active: Consumer | None = None
        self.cursor: Cursor = topic.cursor(name, config.cursor, initial=initial)
        self.cursor.on_resume(self.notifier.notify)
        self._states = MessageStates(config.nack_precision(self._clock))
        self._create_parts()
        topic.ledger.client.add_metrics(self)

    def _create_parts(self) -> None:
        """Create everything that depends on the cursor."""
        topic, name, config, states = self.topic, self.name, self.config, self._states
        self._delayed = delayed = DelayedDelivery(self._open_tracker)
        if delayed.tracker.count:
            # Delayed messages of an earlier process may be dispatched before the cursor reaches them.
            states.extend_high_watermark([topic.ledger.last_confirmed])
        watcher = MarkDeleteWatcher(self.cursor, states, delayed, self._lock, topic.schedule_trim)
        self._acks = AckHandler(self.cursor, states, watcher, self.notifier, self._counters)
        self._unreadable = UnreadableEntries(
            name, self.cursor, self._acks, self._counters, lambda: topic.config.auto_skip_non_recoverable_data
        )
        self._reader = ExpiringReader(
            self.cursor, self._current_config, self._clock, states, delayed, watcher, self._counters, self._unreadable
        )
        batch_filter = BatchFilter(self.cursor, states)
        batch_sizes = BatchSizeEstimator()
        dead_letter_router = DeadLetterRouter(
            self._current_config, topic.name, self._dead_letter_topic, states, batch_filter, self._acks, self._counters
        )
        self._backlog_source = BacklogSource(self.cursor, delayed, states, self._reader, batch_filter, batch_sizes)
        redelivery_source = RedeliverySource(topic.name, name, states, self._reader, batch_filter, dead_letter_router)
        delayed_source = DelayedSource(delayed, states, self._reader, batch_filter, batch_sizes)
        # Redeliveries of an exclusive subscription always precede other messages, to preserve the order.
        self._dispatcher = Dispatcher(
            [redelivery_source, delayed_source, self._backlog_source], states, first_precedes=config.is_exclusive
        )
        self._holes = Holes(redelivery_source, delayed_source, self._backlog_source, states)
        self._redelivery = RedeliveryTracker(
            topic.store,
            nack_name(topic.name, name),
            config,
            states,
            self.notifier,
            self._lock,
            self._clock,
            topic.timer,
        )

    def _check_and_repair(self) -> None:
        """Raise if the subscription is closed, and repair the state after an interruption."""
        self._check_open()
        if self._interrupted or self.cursor.was_interrupted:
            self._repair()

    def _repair(self) -> None:
        """Rebuild the in-memory state after an interrupted call, except for the messages in flight. Redelivery counts
        and unrecorded negative acknowledgments are lost."""
        if self._closed is not None:
            return
        seen = len(self._interrupted)
        self._redelivery.stop()
        self._redelivery.close()
        self.tracker.close()
        states = self._states
        for taken in self._interrupted:
            for message in taken:
                states.unacked.remove(message.id)
        for consumer in self._consumers:
            consumer.drop_overflow(states.unacked)
        if self.cursor.was_interrupted:
            self.cursor = self.topic.reopen_cursor(self.cursor, self.config.cursor)
            self.cursor.on_resume(self.notifier.notify)
        else:
            self.cursor.rewind()
        states.forget_undelivered(self.config.nack_precision(self._clock))
        states.unacked.rebuild(self._is_acked)
        # Messages in flight may be at any position.
        states.extend_high_watermark([self.topic.ledger.last_confirmed])
        self._create_parts()
        del self._interrupted[:seen]
        self.notifier.notify()

    def _is_acked(self, message: MessageId) -> bool:
        position = position_of(message)
        if len(message) == 2:
            return self.cursor.is_acked(position)
        return message[2] not in self.cursor.unacked_of_batch(position, message[2] + 1)

    def _open_tracker(self) -> Tracker:
        topic = self.topic
        return open_tracker(
            self.cursor,
            self._delayed_config,
            self.config.delayed_delivery_relative_precision,
            topic.shared_index,
            self.notifier.notify,
            self._clock,
            topic.timer,
        )

    @property
    def _delayed_config(self) -> DelayedDeliveryConfig:
        """The topic's settings of delayed delivery, with the subscription's own tick if it has one."""
        tick = self.config.delayed_delivery_tick_time_millis
        config = self.topic.config
        return config if tick is None else replace(config, delayed_delivery_tick_time_millis=tick)

    def _dead_letter_topic(self) -> Topic:
        name = self.config.dead_letter_topic or dead_letter_topic_of(self.topic.name, self.name)
        return self.topic.store.topic(name)

    # -- settings ----------------------------------------------------------------------------------------------------

    def _current_config(self) -> SubscriptionConfig:
        return self.config

    def change_config(self, config: SubscriptionConfig) -> None:
        """Replace the settings while the subscription is open: all of them, or none if one is rejected.
        :class:`IllegalOperationError` for another ``type`` or ``durable_nacks``, or for another storage format of the
        cursor.

        Limits, delays and ticks take effect immediately, deadlines for messages that are delivered from now on.
        """
        if not isinstance(config, SubscriptionConfig):
            raise IncorrectParameterError(f"config must be a SubscriptionConfig, not {config!r}")
        with self._lock, self._guard:
            self._check_and_repair()
            what = f"subscription {self.name!r} of topic {self.topic.name}"
            SUBSCRIPTION_WHILE_OPEN.check(what, self.config, config)
            self.cursor.change_config(config.cursor)
            self.config = config
            self._redelivery.change_config(config)
            self.config_changed()

    def config_changed(self) -> None:
        """Apply the current settings, including the topic's, and wake waiting receivers."""
        with self._lock, self._guard:
            if self.usable:
                self.tracker.change_config(self._delayed_config)
                self._unreadable.skip_known()
        self.notifier.notify()

    @property
    def tracker(self) -> Tracker:
        """Tracker of delayed messages."""
        return self._delayed.tracker

    # -- receiving ---------------------------------------------------------------------------------------------------

    def receive(self, max: int = 1, timeout: float | None = None) -> list[ReceivedMessage]:
        """Return 1 to ``max`` messages, or none after ``timeout`` seconds (None: no limit; 0: do not wait)."""
        return self._own_consumer.receive(max, timeout)

    async def receive_async(self, max: int = 1, timeout: float | None = None) -> list[ReceivedMessage]:
        """Like :meth:`receive`. Stored entries are read from the memory map in the event loop's thread."""
        return await self._own_consumer.receive_async(max, timeout)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield messages one by one until the subscription is closed."""
        return iter(self._own_consumer)

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return aiter(self._own_consumer)

    def consumer(self, name: str | None = None) -> Consumer:
        """Create a consumer. Its messages in flight are redelivered when it is closed."""
        with self._lock, self._guard:
            self._check_and_repair()
            consumer = Consumer(self, self.name if name is None else name)
            if self.config.is_exclusive:
                self._claim_exclusive(consumer)
            self._consumers.add(consumer)
            return consumer

    def _claim_exclusive(self, consumer: Consumer) -> None:
        active = self._active
        is_idle = active is self._own_consumer and not len(self._states.unacked)
        if active is not None and active is not consumer and not is_idle:
            raise ConsumerBusyError(f"subscription {self.name!r} is exclusive and already has consumer {active.name!r}")
        self._active = consumer

    def dispatch(self, consumer: Consumer, limit: int) -> tuple[list[ReceivedMessage], bool]:
        """Return the messages that a consumer gets now, and True if another call may find more immediately."""
        taken: list[ReceivedMessage] = []
        try:
            try:
                return self._dispatch(consumer, limit, taken)
            except InterruptedOperationError:
                # The cursor noticed an interruption only now; the first attempt did not dispatch anything.
                return self._dispatch(consumer, limit, taken)
        except BookstandError:
            raise
        except BaseException:
            self._interrupted.append(taken)
            raise

    def _dispatch(
        self, consumer: Consumer, limit: int, taken: list[ReceivedMessage]
    ) -> tuple[list[ReceivedMessage], bool]:
        """Messages are added to ``taken`` before they are in flight, so that :meth:`_repair` can withdraw them."""
        with self._lock, self._guard:
            self._check_and_repair()
            consumer.check_open()
            if self.config.is_exclusive:
                self._claim_exclusive(consumer)
            messages = self._take_overflow(consumer, limit, taken)
            room = min(limit - len(messages), self.config.max_unacked_messages - len(self._states.unacked))
            full = self.config.max_unacked_messages <= len(self._states.unacked) + max(room, 0)
            # During a pause each acknowledgment may admit another message.
            self._acks.is_dispatch_blocked = full or self.paused
            if room <= 0:
                return messages, False
            settled = self._counters.acked_undelivered
            try:
                admission = self.cursor.admission(len(self._states.unacked))
                if admission is None:
                    deliverables, unfinished = self._dispatcher.collect(room)
                else:
                    deliverables, unfinished = self._holes.collect(room, admission)
                    # Messages that were expired, dead-lettered or skipped may admit others.
                    unfinished = unfinished or self._counters.acked_undelivered != settled
                if deliverables:
                    chosen = self._limit_to(deliverables, room)
                    messages += self._deliver(consumer, chosen, limit - len(messages), taken)
            except BookstandError:
                if not messages:
                    raise
                # Messages of the overflow are in flight already. The next call raises the error again.
                return messages, False
            if not messages and not unfinished:
                self._unreadable.report()
            return messages, unfinished

    def _take_overflow(self, consumer: Consumer, limit: int, taken: list[ReceivedMessage]) -> list[ReceivedMessage]:
        messages = consumer.take_overflow(limit, self._states.unacked)
        taken += messages
        if messages and self.config.ack_deadline is not None:
            # The deadline starts when the consumer gets them.
            self._states.unacked.add(consumer, [message.id for message in messages], self._redelivery.deadline())
        self._counters.delivered += len(messages)
        return messages

    def _limit_to(self, deliverables: list[Deliverable], room: int) -> Sequence[Deliverable]:
        """Keep about ``room`` messages, and move the others to the replay queue."""
        if len(deliverables) <= room and are_single_messages(deliverables):
            return deliverables
        for number, item in enumerate(deliverables, 1):
            room -= message_count([item])
            if room <= 0:
                self._states.replay_queue.add(message for later in deliverables[number:] for message in ids_of(later))
                return deliverables[:number]
        return deliverables

    def _deliver(
        self, consumer: Consumer, deliverables: Sequence[Deliverable], limit: int, taken: list[ReceivedMessage]
    ) -> list[ReceivedMessage]:
        batch = None
        if are_single_messages(deliverables):
            messages = deliverables
            ids: list[MessageId] = list(map(_POSITION_OF, messages))
        else:
            try:
                messages = [message for item in deliverables for message in messages_of(item)]
            except BookstandError:
                self._states.replay_queue.add(message for item in deliverables for message in ids_of(item))
                raise
            ids = list(map(_ID_OF, messages))
            if len(deliverables) == 1 and isinstance(messages[0], ReceivedMember):
                batch = messages[0].position
        deadline = self._redelivery.deadline()
        taken += messages
        delivery = self._states.unacked.add(consumer, ids, deadline, batch)
        self._redelivery.schedule_deadline(deadline)
        if self._states.redelivery_counts:
            for message, count in zip(messages, self._states.redelivery_counts.of_each(ids), strict=True):
                message.redelivery_count = count
                self._counters.redelivered += count > 0
        if len(messages) > limit:
            consumer.buffer_overflow(messages[limit:], delivery)
            messages = messages[:limit]
        self._counters.delivered += len(messages)
        return messages

    def expire(self) -> int:
        """Acknowledge all messages past their time to live and return their number."""
        with self._lock, self._guard:
            self._check_and_repair()
            return self._reader.expire_all()

    # -- acknowledgments ---------------------------------------------------------------------------------------------

    def ack(self, message: MessageRef) -> Pending:
        """Acknowledge a message, durably once the Pending's ``result()`` returns."""
        try:
            return self._acks.ack(message)
        except BaseException as error:
            return self._retry_ack(lambda: self._acks.ack(message), error)

    def ack_many(self, messages: Iterable[MessageRef]) -> Pending:
        """Acknowledge many messages, faster than one by one."""
        messages = list(messages)
        try:
            return self._acks.ack_many(messages)
        except BaseException as error:
            return self._retry_ack(lambda: self._acks.ack_many(messages), error)

    def ack_cumulative(self, message: MessageRef) -> Pending:
        """Acknowledge a message and all messages before it."""
        try:
            return self._acks.ack_cumulative(message)
        except BaseException as error:
            return self._retry_ack(lambda: self._acks.ack_cumulative(message), error)

    def _retry_ack(self, acknowledge: Callable[[], Pending], error: BaseException) -> Pending:
        """Repeat an acknowledgment that failed because of an earlier interruption; raise any other error."""
        if not isinstance(error, BookstandError):
            # The message may be acknowledged and still in flight; this triggers a repair.
            self._interrupted.append([])
        if not isinstance(error, InterruptedOperationError):
            raise error
        with self._lock, self._guard:
            self._check_and_repair()
        return acknowledge()

    # -- redelivery --------------------------------------------------------------------------------------------------

    def nack(self, message: MessageRef, delay: Span | None = None) -> None:
        """Redeliver a message after ``delay``; by default as ``nack_backoff`` decides, or after ``nack_delay``. The
        last negative acknowledgment of a message replaces earlier ones.

        The position of a batch means all its unacknowledged messages, and replaces their negative acknowledgments.
        """
        self.nack_many([message], delay)

    def nack_many(self, messages: Iterable[MessageRef], delay: Span | None = None) -> None:
        """Redeliver several messages, like :meth:`nack`."""
        wait = None if delay is None else to_millis("delay", delay)
        ids = [resolve_id(message) for message in messages]
        with self._lock, self._guard:
            self._check_and_repair()
            self._redelivery.nack([message for message in ids if not self.cursor.is_acked(position_of(message))], wait)
        self._acks.on_settled()

    def redeliver_all(self) -> None:
        """Redeliver all messages in flight immediately."""
        with self._lock, self._guard:
            self._check_and_repair()
            self._redelivery.redeliver(self._states.unacked.all())

    def on_consumer_closed(self, consumer: Consumer) -> None:
        """Redeliver the messages of a consumer that is being closed."""
        with self._lock, self._guard:
            consumer.closed = True
            self._consumers.discard(consumer)
            if self._active is consumer:
                self._active = None
            if self._closed is None:
                self._redelivery.redeliver(self._states.unacked.of(consumer))

    # -- delayed messages --------------------------------------------------------------------------------------------

    def cancel(self, position: tuple[int, int]) -> Pending:
        """Acknowledge a delayed message and remove it from the tracker, so that it is not delivered."""
        cancelled = resolve_position(position)
        pending = self.ack(cancelled)
        with self._lock, self._guard:
            self._check_and_repair()
            self.tracker.cancel(cancelled)
        return pending

    def reschedule(
        self, position: tuple[int, int], deliver_at: Moment | None = None, deliver_after: Span | None = None
    ) -> bool:
        """Change the delivery time of a delayed message, durably on return. Return False if the message is not delayed:
        it was delivered, or is due and held back by a pause."""
        time = delivery_time(deliver_after, deliver_at, self._clock.now())
        if time is None:
            raise IncorrectParameterError("reschedule needs deliver_at or deliver_after")
        with self._lock, self._guard:
            self._check_and_repair()
            chosen = resolve_position(position)
            # After a restart, a snapshot of the tracker may still contain such a message.
            if self.cursor.is_acked(chosen) or chosen in self._states:
                return False
            if chosen >= self.cursor.read_position:
                self._backlog_source.index_unread()
            moved = self._delayed.reschedule(chosen, time)
        if moved:
            self.notifier.notify()
        return moved

    def peek_delayed(
        self, first: Moment | None = None, last: Moment | None = None, limit: int | None = None
    ) -> list[tuple[int, Position]]:
        """Delivery times and positions of the delayed messages from the first time to the last, in order of time.
        Messages that the cursor has not reached are read and indexed first. Times are as precise as the tick."""
        if limit is not None and (type(limit) is not int or limit < 0):
            raise IncorrectParameterError(f"limit must be a non-negative integer or None, not {limit!r}")
        with self._lock, self._guard:
            self._check_and_repair()
            self._backlog_source.index_unread()
            self._delayed.cancel_up_to(self.topic.ledger, self.cursor.mark_delete_position)
            found = self.tracker.peek(delivery_time(None, first, 0), delivery_time(None, last, 0), limit)
        return [(time, Position(ledger_id, entry_id)) for time, ledger_id, entry_id in found.indexes]

    def reset(self, position: tuple[int, int]) -> None:
        """Move the read position, durably, and forget the messages in flight. Negative acknowledgments and delayed
        messages keep their times."""
        with self._lock, self._guard:
            self._check_and_repair()
            read_position = self.cursor.read_position
            pending = self.cursor.reset(Position(*check_position(position)))
            self._states.clear()
            self._states.extend_high_watermark([read_position])
            self._backlog_source.on_seek()
            self._delayed.reset(self.cursor.mark_delete_position, shared=self.topic.shared_index is not None)
        pending.result()
        self.notifier.notify()

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Number of unacknowledged entries."""
        return self.cursor.backlog

    @property
    def paused(self) -> bool:
        """True during a pause of dispatch (see *Pause*)."""
        return self.cursor.paused

    @property
    def damage(self) -> list[str]:
        """Damaged records of the subscription, and what replaced them; empty if all records were readable. Messages
        whose acknowledgments were lost are redelivered."""
        index = self.topic.shared_index
        return [
            *self.cursor.recovered_from.damage,
            *self.tracker.problems,
            *([] if index is None else index.damage),
            *self._redelivery.damage,
        ]

    @property
    def stats(self) -> SubscriptionStats:
        """Current counts of messages by state."""
        with self._lock, self._guard:
            if self._closed is None:
                self._check_and_repair()
            self._delayed.cancel_up_to(self.topic.ledger, self.cursor.mark_delete_position)
            unacked = self._states.unacked
            return SubscriptionStats(
                backlog=self.cursor.backlog,
                delayed=self.tracker.delayed_count,
                out=len(unacked) - sum(len(one.undelivered(unacked)) for one in self._consumers),
                waiting=len(self._states.replay_queue),
                nacked=len(self._states.nacked),
                unreadable=len(self._unreadable.positions),
                paused=self.paused,
                pause_reasons=self.cursor.pause_reasons,
                entries_to_resume=self.cursor.entries_to_resume,
                **asdict(self._counters),
            )

    @property
    def unreadable(self) -> list[Position]:
        """Unacknowledged damaged entries that were found since the subscription was opened, in order.
        ``ack_many(subscription.unreadable)`` acknowledges them."""
        with self._lock:
            return self._unreadable.positions

    def samples(self) -> Iterator[Sample]:
        """Metrics of the subscription; none after it is closed."""
        with self._lock:
            if not self.usable:
                return iter(())
            found = samples(len(self._unreadable.positions), self._counters.skipped, self.topic.name, self.name)
            return iter(list(found))

    # -- closing -----------------------------------------------------------------------------------------------------

    def check_owned(self) -> None:
        """Raise if the subscription is closed, or if another process has taken over the topic."""
        self._check_open()
        self.topic.ledger.check_owned()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    @property
    def usable(self) -> bool:
        """True while the subscription is open and its topic has not been taken over."""
        return self._closed is None and (self.cursor.usable or self.cursor.was_interrupted)

    def close(self) -> None:
        """Write acknowledgments durably and close. All other messages are delivered after the next opening."""
        self.stop()
        self.cursor.close()

    def stop(self) -> None:
        """Stop dispatching; leave the cursor open."""
        with self._lock:
            if self._closed is not None:
                return
            self._closed = ClientClosedError(f"subscription {self.name!r} of topic {self.topic.name} is closed")
            self._redelivery.stop()
            self.tracker.close()
        self._redelivery.close()
        self.notifier.notify()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r} of {self.topic.name!r}{', closed' if self._closed else ''}>"
