"""A subscription: what Pulsar's dispatcher and its consumers' client do together, and a durable queue for programs.

Messages come from three places, and go out in this order:

1. *again* (``coming_again.py``): what was negatively acknowledged, held beyond its deadline, or given back by a
   consumer that left;
2. *due* (``coming_due.py``): delayed messages whose time has come, which the tracker knows;
3. *new* (``coming_new.py``): what the cursor reads on from where it stands.

``gathering.py`` puts together what they give; while the cursor's state is at its limit, ``holes.py`` does. Beside them
stand what all of them look at, ``whereabouts.py`` and
``delayed.py``, and what happens to messages that are out: ``acknowledging.py`` and ``returning.py``. None of these
knows the subscription.

``_lock`` guards all of it. Acknowledgments do not take it: they go to the cursor, and settle what is out in one step.
After an interrupted call the next one has everything read again that is neither acknowledged nor in flight.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING

from bookstand.cursor.cursor import Cursor
from bookstand.delivery.config import DelayedDeliveryConfig
from bookstand.delivery.dispatch.backlog_source import BacklogSource
from bookstand.delivery.dispatch.batch_size_estimator import BatchSizeEstimator
from bookstand.delivery.dispatch.delayed_source import DelayedSource
from bookstand.delivery.dispatch.dispatcher import Dispatcher
from bookstand.delivery.dispatch.holes import Holes
from bookstand.delivery.dispatch.redelivery_source import RedeliverySource
from bookstand.delivery.message.batch_filter import BatchFilter
from bookstand.delivery.message.message_id import MessageId, position_of
from bookstand.delivery.message.received_message import (
    Deliverable,
    ReceivedMember,
    ReceivedMessage,
    are_single_messages,
    ids_of,
    message_count,
    messages_of,
)
from bookstand.delivery.message.references import MessageRef, resolve_id, resolve_position
from bookstand.delivery.nacks.log import nack_name
from bookstand.delivery.notifier import Notifier
from bookstand.delivery.subscription.acks import AckHandler
from bookstand.delivery.subscription.consumer import Consumer
from bookstand.delivery.subscription.dead_letter_router import DeadLetterRouter
from bookstand.delivery.subscription.dead_letters import dead_letter_topic_of
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
    """An exclusive subscription has a consumer already."""


class Subscription(ProcessBound):
    """Use ``topic.subscription(name)``. All methods may be called from any thread.

    *At least once*: a message that was published durably is delivered until it was durably acknowledged. A restart
    delivers again what was not, and nothing else. Redelivery counts begin anew, except for recorded nacks
    (``durable_nacks``).

    *Never early*: a delayed message is not delivered more than a tick before its time; strict, not before it.

    *Order*: new messages are delivered in the topic's order, due messages by their time, redeliveries in the topic's
    order. Redeliveries precede due messages, and due messages precede new ones; but none of the three is passed over
    more than eight times in a row. In an exclusive subscription a redelivery of one message includes all messages that
    are out, and all of them precede any other, so that unacknowledged messages without a delay stay in order.

    *One at a time*: what is out with one consumer no other gets, until it is given back.

    *Damage*: a damaged entry does not block intact ones (but see *A pause*). ``receive`` delivers these, and raises
    :class:`UnreadableEntryError` once for each damaged one (for each opening of the subscription) when it has nothing
    else to deliver; from then on it is passed over. It stays in the backlog until ``ack(error.position)`` acknowledges
    it unread. With ``TopicConfig.auto_skip_non_recoverable_data`` it is acknowledged at once instead, and counted.

    *A pause*: while the state of the cursor is at its limit (PIP-299), nothing above the highest acknowledged position
    goes out. Holes below it do, lowest first: redeliveries, due and new messages alike. So does the lowest message that
    is not acknowledged, where there is no hole. A consumer that acknowledges every message that it gets, and each
    damaged entry that is raised, ends the pause.
    """

    def __init__(self, topic: Topic, name: str, config: SubscriptionConfig, initial: str) -> None:
        check_relative_precision(topic.config, config.delayed_delivery_relative_precision)
        self.topic = topic
        self.name = name
        self.config = config
        self._clock = topic.ledger.client.clock
        self._lock = RLock()
        self._guard = InterruptGuard(self._repair)
        # Of each call that was interrupted, what it had taken and did not return.
        self._interrupted: list[list[ReceivedMessage]] = []
        self.notifier = Notifier()
        """Rings when there may be something to receive."""
        self._closed: BookstandError | None = None
        self._counters = Counters()
        self._own_consumer = Consumer(self, name)
        self._consumers = {self._own_consumer}
        # Who has an exclusive subscription.
        self._active: Consumer | None = None
        self.cursor: Cursor = topic.cursor(name, config.cursor, initial=initial)
        self.cursor.on_resume(self.notifier.notify)
        self._states = MessageStates(config.nack_precision(self._clock))
        self._create_parts()
        topic.ledger.client.add_metrics(self)

    def _create_parts(self) -> None:
        """Make the parts, around the cursor and what is in flight."""
        topic, name, config, states = self.topic, self.name, self.config, self._states
        self._delayed = delayed = DelayedDelivery(self._open_tracker)
        if delayed.tracker.count:
            # What it knows from before may be out when the cursor comes to it.
            states.extend_high_watermark([topic.ledger.last_confirmed])
        mark_delete_watcher = MarkDeleteWatcher(self.cursor, states, delayed, self._lock, topic.schedule_trim)
        self._acks = AckHandler(self.cursor, states, mark_delete_watcher, self.notifier, self._counters)
        self._unreadable = UnreadableEntries(
            name, self.cursor, self._acks, self._counters, lambda: topic.config.auto_skip_non_recoverable_data
        )
        self._reader = ExpiringReader(
            self.cursor,
            self._current_config,
            self._clock,
            states,
            delayed,
            mark_delete_watcher,
            self._counters,
            self._unreadable,
        )
        batch_filter = BatchFilter(self.cursor, states)
        batch_sizes = BatchSizeEstimator()
        dead_letter_router = DeadLetterRouter(
            self._current_config,
            topic.name,
            self._dead_letter_topic,
            states,
            batch_filter,
            self._acks,
            self._counters,
        )
        self._backlog_source = BacklogSource(self.cursor, delayed, states, self._reader, batch_filter, batch_sizes)
        redelivery_source = RedeliverySource(topic.name, name, states, self._reader, batch_filter, dead_letter_router)
        delayed_source = DelayedSource(delayed, states, self._reader, batch_filter, batch_sizes)
        # Redeliveries of an exclusive subscription precede all else, because its messages stay in order.
        self._dispatcher = Dispatcher(
            [redelivery_source, delayed_source, self._backlog_source], states, first_stays=config.is_exclusive
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
        """At the beginning of a call, with the lock: raise if the subscription is closed, and repair what an
        interruption has left."""
        self._check_open()
        if self._interrupted or self.cursor.was_interrupted:
            self._repair()

    def _repair(self) -> None:
        """After an interrupted call: keep what is in flight, and read again what else is not acknowledged. Redelivery
        counts begin anew; nacks that are not recorded are over."""
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
        states.unacked.repair(self._is_acked)
        # What is in flight may be anywhere.
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
        :class:`IllegalOperationError` for another ``type`` or ``durable_nacks``, and for another form of storage of the
        cursor.

        Limits, delays and ticks act at once, and deadlines on what is delivered from now on.
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
        """Apply the settings as they are now, those of the topic included, and wake waiting receivers."""
        with self._lock, self._guard:
            if self.usable:
                self.tracker.change_config(self._delayed_config)
                self._unreadable.skip_known()
        self.notifier.notify()

    @property
    def tracker(self) -> Tracker:
        """Of what is delayed."""
        return self._delayed.tracker

    # -- receiving ---------------------------------------------------------------------------------------------------

    def receive(self, max: int = 1, timeout: float | None = None) -> list[ReceivedMessage]:
        """Up to ``max`` messages, and at least one, unless ``timeout`` seconds pass without any. None: wait for as long
        as it takes; 0: do not wait."""
        return self._own_consumer.receive(max, timeout)

    async def receive_async(self, max: int = 1, timeout: float | None = None) -> list[ReceivedMessage]:
        """The same for a task. What is there is read in the loop's thread, from the mapped file."""
        return await self._own_consumer.receive_async(max, timeout)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """One message after the other, until the subscription is closed."""
        return iter(self._own_consumer)

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return aiter(self._own_consumer)

    def consumer(self, name: str | None = None) -> Consumer:
        """One of those who share the subscription; what it holds when it is closed is delivered again at once."""
        with self._lock, self._guard:
            self._check_and_repair()
            consumer = Consumer(self, self.name if name is None else name)
            if self.config.is_exclusive:
                self._claim_exclusive(consumer)
            self._consumers.add(consumer)
            return consumer

    def _claim_exclusive(self, consumer: Consumer) -> None:
        active = self._active
        if (
            active is not None
            and active is not consumer
            and (active is not self._own_consumer or len(self._states.unacked))
        ):
            raise ConsumerBusyError(f"subscription {self.name!r} is exclusive, and has consumer {active.name!r}")
        self._active = consumer

    def dispatch(self, consumer: Consumer, limit: int) -> tuple[list[ReceivedMessage], bool]:
        """For consumers: what can go out now, and whether looking again at once makes sense."""
        taken: list[ReceivedMessage] = []
        try:
            try:
                return self._dispatch(consumer, limit, taken)
            except InterruptedOperationError:
                # The cursor noticed it on the way.
                return self._dispatch(consumer, limit, taken)
        except BookstandError:
            raise
        except BaseException:
            self._interrupted.append(taken)
            raise

    def _dispatch(
        self, consumer: Consumer, limit: int, taken: list[ReceivedMessage]
    ) -> tuple[list[ReceivedMessage], bool]:
        """``taken`` gets what goes out before it does."""
        with self._lock, self._guard:
            self._check_and_repair()
            consumer.check_open()
            if self.config.is_exclusive:
                self._claim_exclusive(consumer)
            messages = self._take_overflow(consumer, limit, taken)
            room = min(limit - len(messages), self.config.max_unacked_messages - len(self._states.unacked))
            full = self.config.max_unacked_messages <= len(self._states.unacked) + max(room, 0)
            # During a pause each acknowledgment may let something else go out.
            self._acks.at_unacked_limit = full or self.paused
            if room <= 0:
                return messages, False
            settled = self._counters.acked_undelivered
            try:
                admission = self.cursor.admission(len(self._states.unacked))
                if admission is None:
                    deliverables, unfinished = self._dispatcher.collect(room)
                else:
                    deliverables, unfinished = self._holes.collect(room, admission)
                    # Messages acknowledged on the way may admit others.
                    unfinished = unfinished or self._counters.acked_undelivered != settled
                if deliverables:
                    messages += self._deliver(
                        consumer, self._limit_to(deliverables, room), limit - len(messages), taken
                    )
            except BookstandError:
                if not messages:
                    raise
                # These are out; the next call raises.
                return messages, False
            if not messages and not unfinished:
                self._unreadable.report()
            return messages, unfinished

    def _take_overflow(self, consumer: Consumer, limit: int, taken: list[ReceivedMessage]) -> list[ReceivedMessage]:
        messages = consumer.take_overflow(limit, self._states.unacked)
        taken += messages
        if messages and self.config.ack_deadline is not None:
            # Nobody has seen them until now.
            self._states.unacked.add(consumer, [message.id for message in messages], self._redelivery.deadline())
        self._counters.delivered += len(messages)
        return messages

    def _limit_to(self, deliverables: list[Deliverable], room: int) -> Sequence[Deliverable]:
        """As many of them as have so many messages; the rest comes next."""
        if len(deliverables) <= room and are_single_messages(deliverables):
            return deliverables
        for number, deliverable in enumerate(deliverables, 1):
            room -= message_count([deliverable])
            if room <= 0:
                self._states.replay_queue.add(message for left in deliverables[number:] for message in ids_of(left))
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
                messages = [message for deliverable in deliverables for message in messages_of(deliverable)]
            except BookstandError:
                self._states.replay_queue.add(
                    message for deliverable in deliverables for message in ids_of(deliverable)
                )
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
        """Acknowledge what is past its time to live; how many. The dispatcher does it with what it meets."""
        with self._lock, self._guard:
            self._check_and_repair()
            return self._reader.expire_all()

    # -- acknowledging -----------------------------------------------------------------------------------------------

    def ack(self, message: MessageRef) -> Pending:
        """It is done with. Accepted on return, and durable once the Pending's ``result()`` has returned."""
        try:
            return self._acks.ack(message)
        except BaseException as error:
            return self._retry_ack(lambda: self._acks.ack(message), error)

    def ack_many(self, messages: Iterable[MessageRef]) -> Pending:
        """Many at once, the fast way."""
        given = list(messages)
        try:
            return self._acks.ack_many(given)
        except BaseException as error:
            return self._retry_ack(lambda: self._acks.ack_many(given), error)

    def ack_cumulative(self, message: MessageRef) -> Pending:
        """It, and everything before it."""
        try:
            return self._acks.ack_cumulative(message)
        except BaseException as error:
            return self._retry_ack(lambda: self._acks.ack_cumulative(message), error)

    def _retry_ack(self, acknowledge: Callable[[], Pending], error: BaseException) -> Pending:
        """After an attempt that failed because of an earlier interruption; else raise its error."""
        if not isinstance(error, BookstandError):
            # It may be acknowledged, and in flight all the same.
            self._interrupted.append([])
        if not isinstance(error, InterruptedOperationError):
            raise error
        with self._lock, self._guard:
            self._check_and_repair()
        return acknowledge()

    # -- what comes again --------------------------------------------------------------------------------------------

    def nack(self, message: MessageRef, delay: Span | None = None) -> None:
        """Redeliver a message after ``delay``, or as ``nack_backoff`` says, or after ``nack_delay``. Of several nacks
        of a message the last one counts.

        A position of a batch stands for all its messages that are not acknowledged, and replaces their nacks."""
        self.nack_many([message], delay)

    def nack_many(self, messages: Iterable[MessageRef], delay: Span | None = None) -> None:
        """Many at once."""
        wait = None if delay is None else to_millis("delay", delay)
        ids = [resolve_id(message) for message in messages]
        with self._lock, self._guard:
            self._check_and_repair()
            self._redelivery.nack([message for message in ids if not self.cursor.is_acked(position_of(message))], wait)
        self._acks.on_settled()

    def redeliver_all(self) -> None:
        """Everything that is out comes again at once."""
        with self._lock, self._guard:
            self._check_and_repair()
            self._redelivery.redeliver(self._states.unacked.all())

    def on_consumer_closed(self, consumer: Consumer) -> None:
        """For consumers: one of them is there no more."""
        with self._lock, self._guard:
            consumer.closed = True
            self._consumers.discard(consumer)
            if self._active is consumer:
                self._active = None
            if self._closed is None:
                self._redelivery.redeliver(self._states.unacked.of(consumer))

    # -- delayed messages --------------------------------------------------------------------------------------------

    def cancel(self, position: tuple[int, int]) -> Pending:
        """A message that waits for its time is not to be delivered: it is acknowledged, and forgotten."""
        cancelled = resolve_position(position)
        pending = self.ack(cancelled)
        with self._lock, self._guard:
            self._check_and_repair()
            self.tracker.cancel(cancelled)
        return pending

    def reschedule(
        self, position: tuple[int, int], deliver_at: Moment | None = None, deliver_after: Span | None = None
    ) -> bool:
        """Deliver a message that waits for its time at another, durably on return. False if it does not wait: it was
        delivered, or is due and held back by a pause of dispatch."""
        time = delivery_time(deliver_after, deliver_at, self._clock.now())
        if time is None:
            raise IncorrectParameterError("a message is rescheduled for a time: deliver_at, or deliver_after")
        with self._lock, self._guard:
            self._check_and_repair()
            chosen = resolve_position(position)
            # The tracker may have it all the same: from a snapshot, after a restart.
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
        """Times and positions of what waits for times from the first to the last, in their order; in memory, as exact
        as the tick. What was not read yet is looked at for it."""
        if limit is not None and (type(limit) is not int or limit < 0):
            raise IncorrectParameterError(f"a limit is a number from 0 up or None, not {limit!r}")
        with self._lock, self._guard:
            self._check_and_repair()
            self._backlog_source.index_unread()
            self._delayed.cancel_up_to(self.topic.ledger, self.cursor.mark_delete_position)
            found = self.tracker.peek(delivery_time(None, first, 0), delivery_time(None, last, 0), limit)
        return [(time, Position(ledger_id, entry_id)) for time, ledger_id, entry_id in found.indexes]

    def reset(self, position: tuple[int, int]) -> None:
        """Read again from there, durably; what is out is out no more. What was negatively acknowledged keeps its time,
        and what waits for its time goes on to."""
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

    # -- questions ---------------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """How many entries are not acknowledged."""
        return self.cursor.backlog

    @property
    def paused(self) -> bool:
        """True while nothing above the highest acknowledged position is dispatched."""
        return self.cursor.paused

    @property
    def damage(self) -> list[str]:
        """Damaged records of the subscription, and what took their place. Messages whose acknowledgments were lost are
        delivered again; empty if everything could be read."""
        index = self.topic.shared_index
        return [
            *self.cursor.recovered_from.damage,
            *self.tracker.problems,
            *([] if index is None else index.damage),
            *self._redelivery.damage,
        ]

    @property
    def stats(self) -> SubscriptionStats:
        """How many messages are where, at this moment."""
        with self._lock, self._guard:
            if self._closed is None:
                self._check_and_repair()
            self._delayed.cancel_up_to(self.topic.ledger, self.cursor.mark_delete_position)
            return SubscriptionStats(
                backlog=self.cursor.backlog,
                delayed=self.tracker.delayed_count,
                out=len(self._states.unacked)
                - sum(len(one.undelivered(self._states.unacked)) for one in self._consumers),
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
        """Damaged entries that were met since the subscription was opened and are not acknowledged, in their order.
        ``ack_many(subscription.unreadable)`` acknowledges them unread."""
        with self._lock:
            return self._unreadable.positions

    def samples(self) -> Iterator[Sample]:
        """Figures for metrics, as long as the subscription is open."""
        with self._lock:
            if not self.usable:
                return iter(())
            found = samples(len(self._unreadable.positions), self._counters.skipped, self.topic.name, self.name)
            return iter(list(found))

    # -- the end -----------------------------------------------------------------------------------------------------

    def check_owned(self) -> None:
        """Raise if another has taken the topic over, or the subscription was closed."""
        self._check_open()
        self.topic.ledger.check_owned()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    @property
    def usable(self) -> bool:
        """Whether it is open, and still its topic's."""
        return self._closed is None and (self.cursor.usable or self.cursor.was_interrupted)

    def close(self) -> None:
        """Write what is acknowledged. What is out, and what waits, is there when it is opened again."""
        self.stop()
        self.cursor.close()

    def stop(self) -> None:
        """Everything ends but the cursor."""
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
