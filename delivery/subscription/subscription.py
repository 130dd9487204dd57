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
    are_whole,
    ids_of,
    messages_in,
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
        self.bell = Notifier()
        """Rings when there may be something to receive."""
        self._closed: BookstandError | None = None
        self._tally = Counters()
        self._own_consumer = Consumer(self, name)
        self._consumers = {self._own_consumer}
        # Who has an exclusive subscription.
        self._active: Consumer | None = None
        self.cursor: Cursor = topic.cursor(name, config.cursor, initial=initial)
        self.cursor.on_resume(self.bell.ring)
        self._where = MessageStates(config.nack_precision(self._clock))
        self._open()
        topic.ledger.client.add_metrics(self)

    def _open(self) -> None:
        """Make the parts, around the cursor and what is in flight."""
        topic, name, config, where = self.topic, self.name, self.config, self._where
        self._delayed = delayed = DelayedDelivery(self._open_tracker)
        if delayed.tracker.count:
            # What it knows from before may be out when the cursor comes to it.
            where.reach([topic.ledger.last_confirmed])
        passing = MarkDeleteWatcher(self.cursor, where, delayed, self._lock, topic.trim_soon)
        self._acknowledging = AckHandler(self.cursor, where, passing, self.bell, self._tally)
        self._unreadable = UnreadableEntries(
            name, self.cursor, self._acknowledging, self._tally, lambda: topic.config.auto_skip_non_recoverable_data
        )
        self._living = ExpiringReader(
            self.cursor, self._present_config, self._clock, where, delayed, passing, self._tally, self._unreadable
        )
        portions = BatchFilter(self.cursor, where)
        sizes = BatchSizeEstimator()
        worn_out = DeadLetterRouter(
            self._present_config,
            topic.name,
            self._dead_letter_topic,
            where,
            portions,
            self._acknowledging,
            self._tally,
        )
        self._new = BacklogSource(self.cursor, delayed, where, self._living, portions, sizes)
        again = RedeliverySource(topic.name, name, where, self._living, portions, worn_out)
        due = DelayedSource(delayed, where, self._living, portions, sizes)
        # Redeliveries of an exclusive subscription precede all else, because its messages stay in order.
        self._gathering = Dispatcher([again, due, self._new], where, first_stays=config.is_exclusive)
        self._holes = Holes(again, due, self._new, where)
        self._returning = RedeliveryTracker(
            topic.store, nack_name(topic.name, name), config, where, self.bell, self._lock, self._clock, topic.timer
        )

    def _begin(self) -> None:
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
        self._returning.stop()
        self._returning.close()
        self.tracker.close()
        where = self._where
        for taken in self._interrupted:
            for message in taken:
                where.out.settle(message.id)
        for consumer in self._consumers:
            consumer.drop_spilled(where.out)
        if self.cursor.was_interrupted:
            self.cursor = self.topic.reopen_cursor(self.cursor, self.config.cursor)
            self.cursor.on_resume(self.bell.ring)
        else:
            self.cursor.rewind()
        where.begin_anew(self.config.nack_precision(self._clock))
        where.out.repair(self._is_acked)
        # What is in flight may be anywhere.
        where.reach([self.topic.ledger.last_confirmed])
        self._open()
        del self._interrupted[:seen]
        self.bell.ring()

    def _is_acked(self, message: MessageId) -> bool:
        position = position_of(message)
        if len(message) == 2:
            return self.cursor.is_acked(position)
        return message[2] not in self.cursor.unacked_of_batch(position, message[2] + 1)

    def _open_tracker(self) -> Tracker:
        topic = self.topic
        return open_tracker(
            self.cursor,
            self._delays,
            self.config.delayed_delivery_relative_precision,
            topic.shared_index,
            self.bell.ring,
            self._clock,
            topic.timer,
        )

    @property
    def _delays(self) -> DelayedDeliveryConfig:
        """The topic's settings of delayed delivery, with the subscription's own tick if it has one."""
        tick = self.config.delayed_delivery_tick_time_millis
        config = self.topic.config
        return config if tick is None else replace(config, delayed_delivery_tick_time_millis=tick)

    def _dead_letter_topic(self) -> Topic:
        name = self.config.dead_letter_topic or dead_letter_topic_of(self.topic.name, self.name)
        return self.topic.store.topic(name)

    # -- settings ----------------------------------------------------------------------------------------------------

    def _present_config(self) -> SubscriptionConfig:
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
            self._begin()
            what = f"subscription {self.name!r} of topic {self.topic.name}"
            SUBSCRIPTION_WHILE_OPEN.check(what, self.config, config)
            self.cursor.change_config(config.cursor)
            self.config = config
            self._returning.change_config(config)
            self.config_changed()

    def config_changed(self) -> None:
        """Apply the settings as they are now, those of the topic included, and wake waiting receivers."""
        with self._lock, self._guard:
            if self.usable:
                self.tracker.change_config(self._delays)
                self._unreadable.skip_known()
        self.bell.ring()

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
            self._begin()
            consumer = Consumer(self, self.name if name is None else name)
            if self.config.is_exclusive:
                self._take_over_exclusively(consumer)
            self._consumers.add(consumer)
            return consumer

    def _take_over_exclusively(self, consumer: Consumer) -> None:
        active = self._active
        if active is not None and active is not consumer and (active is not self._own_consumer or len(self._where.out)):
            raise ConsumerBusyError(f"subscription {self.name!r} is exclusive, and has consumer {active.name!r}")
        self._active = consumer

    def take(self, consumer: Consumer, most: int) -> tuple[list[ReceivedMessage], bool]:
        """For consumers: what can go out now, and whether looking again at once makes sense."""
        taken: list[ReceivedMessage] = []
        try:
            try:
                return self._take(consumer, most, taken)
            except InterruptedOperationError:
                # The cursor noticed it on the way.
                return self._take(consumer, most, taken)
        except BookstandError:
            raise
        except BaseException:
            self._interrupted.append(taken)
            raise

    def _take(self, consumer: Consumer, most: int, taken: list[ReceivedMessage]) -> tuple[list[ReceivedMessage], bool]:
        """``taken`` gets what goes out before it does."""
        with self._lock, self._guard:
            self._begin()
            consumer.check_open()
            if self.config.is_exclusive:
                self._take_over_exclusively(consumer)
            messages = self._take_spilled(consumer, most, taken)
            room = min(most - len(messages), self.config.max_unacked_messages - len(self._where.out))
            full = self.config.max_unacked_messages <= len(self._where.out) + max(room, 0)
            # During a pause each acknowledgment may let something else go out.
            self._acknowledging.is_awaited = full or self.paused
            if room <= 0:
                return messages, False
            settled = self._tally.settled_unseen
            try:
                admission = self.cursor.admission(len(self._where.out))
                if admission is None:
                    portions, unfinished = self._gathering.gather(room)
                else:
                    portions, unfinished = self._holes.gather(room, admission)
                    # Messages acknowledged on the way may admit others.
                    unfinished = unfinished or self._tally.settled_unseen != settled
                if portions:
                    messages += self._hand_out(consumer, self._cut(portions, room), most - len(messages), taken)
            except BookstandError:
                if not messages:
                    raise
                # These are out; the next call raises.
                return messages, False
            if not messages and not unfinished:
                self._unreadable.report()
            return messages, unfinished

    def _take_spilled(self, consumer: Consumer, most: int, taken: list[ReceivedMessage]) -> list[ReceivedMessage]:
        messages = consumer.take_spilled(most, self._where.out)
        taken += messages
        if messages and self.config.ack_deadline is not None:
            # Nobody has seen them until now.
            self._where.out.hand_out(consumer, [message.id for message in messages], self._returning.deadline())
        self._tally.delivered += len(messages)
        return messages

    def _cut(self, portions: list[Deliverable], room: int) -> Sequence[Deliverable]:
        """As many of them as have so many messages; the rest comes next."""
        if len(portions) <= room and are_whole(portions):
            return portions
        for number, portion in enumerate(portions, 1):
            room -= messages_in([portion])
            if room <= 0:
                self._where.again.add(message for left in portions[number:] for message in ids_of(left))
                return portions[:number]
        return portions

    def _hand_out(
        self, consumer: Consumer, portions: Sequence[Deliverable], most: int, taken: list[ReceivedMessage]
    ) -> list[ReceivedMessage]:
        batch = None
        if are_whole(portions):
            messages = portions
            ids: list[MessageId] = list(map(_POSITION_OF, messages))
        else:
            try:
                messages = [message for portion in portions for message in messages_of(portion)]
            except BookstandError:
                self._where.again.add(message for portion in portions for message in ids_of(portion))
                raise
            ids = list(map(_ID_OF, messages))
            if len(portions) == 1 and isinstance(messages[0], ReceivedMember):
                batch = messages[0].position
        deadline = self._returning.deadline()
        taken += messages
        handout = self._where.out.hand_out(consumer, ids, deadline, batch)
        self._returning.watch(deadline)
        if self._where.given_back:
            for message, count in zip(messages, self._where.given_back.of_each(ids), strict=True):
                message.redelivery_count = count
                self._tally.redelivered += count > 0
        if len(messages) > most:
            consumer.spill(messages[most:], handout)
            messages = messages[:most]
        self._tally.delivered += len(messages)
        return messages

    def expire(self) -> int:
        """Acknowledge what is past its time to live; how many. The dispatcher does it with what it meets."""
        with self._lock, self._guard:
            self._begin()
            return self._living.expire_all()

    # -- acknowledging -----------------------------------------------------------------------------------------------

    def ack(self, message: MessageRef) -> Pending:
        """It is done with. Accepted on return, and durable once the Pending's ``result()`` has returned."""
        try:
            return self._acknowledging.ack(message)
        except BaseException as error:
            return self._acknowledge_again(lambda: self._acknowledging.ack(message), error)

    def ack_many(self, messages: Iterable[MessageRef]) -> Pending:
        """Many at once, the fast way."""
        given = list(messages)
        try:
            return self._acknowledging.ack_many(given)
        except BaseException as error:
            return self._acknowledge_again(lambda: self._acknowledging.ack_many(given), error)

    def ack_cumulative(self, message: MessageRef) -> Pending:
        """It, and everything before it."""
        try:
            return self._acknowledging.ack_cumulative(message)
        except BaseException as error:
            return self._acknowledge_again(lambda: self._acknowledging.ack_cumulative(message), error)

    def _acknowledge_again(self, acknowledge: Callable[[], Pending], error: BaseException) -> Pending:
        """After an attempt that failed because of an earlier interruption; else raise its error."""
        if not isinstance(error, BookstandError):
            # It may be acknowledged, and in flight all the same.
            self._interrupted.append([])
        if not isinstance(error, InterruptedOperationError):
            raise error
        with self._lock, self._guard:
            self._begin()
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
            self._begin()
            self._returning.nack([message for message in ids if not self.cursor.is_acked(position_of(message))], wait)
        self._acknowledging.settled()

    def redeliver_all(self) -> None:
        """Everything that is out comes again at once."""
        with self._lock, self._guard:
            self._begin()
            self._returning.give_back(self._where.out.all())

    def left(self, consumer: Consumer) -> None:
        """For consumers: one of them is there no more."""
        with self._lock, self._guard:
            consumer.closed = True
            self._consumers.discard(consumer)
            if self._active is consumer:
                self._active = None
            if self._closed is None:
                self._returning.give_back(self._where.out.of(consumer))

    # -- delayed messages --------------------------------------------------------------------------------------------

    def cancel(self, position: tuple[int, int]) -> Pending:
        """A message that waits for its time is not to be delivered: it is acknowledged, and forgotten."""
        cancelled = resolve_position(position)
        pending = self.ack(cancelled)
        with self._lock, self._guard:
            self._begin()
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
            self._begin()
            chosen = resolve_position(position)
            # The tracker may have it all the same: from a snapshot, after a restart.
            if self.cursor.is_acked(chosen) or chosen in self._where:
                return False
            if chosen >= self.cursor.read_position:
                self._new.track_unread()
            moved = self._delayed.reschedule(chosen, time)
        if moved:
            self.bell.ring()
        return moved

    def peek_delayed(
        self, first: Moment | None = None, last: Moment | None = None, limit: int | None = None
    ) -> list[tuple[int, Position]]:
        """Times and positions of what waits for times from the first to the last, in their order; in memory, as exact
        as the tick. What was not read yet is looked at for it."""
        if limit is not None and (type(limit) is not int or limit < 0):
            raise IncorrectParameterError(f"a limit is a number from 0 up or None, not {limit!r}")
        with self._lock, self._guard:
            self._begin()
            self._new.track_unread()
            self._delayed.forget_passed(self.topic.ledger, self.cursor.mark_delete_position)
            found = self.tracker.peek(delivery_time(None, first, 0), delivery_time(None, last, 0), limit)
        return [(time, Position(ledger_id, entry_id)) for time, ledger_id, entry_id in found.indexes]

    def reset(self, position: tuple[int, int]) -> None:
        """Read again from there, durably; what is out is out no more. What was negatively acknowledged keeps its time,
        and what waits for its time goes on to."""
        with self._lock, self._guard:
            self._begin()
            read_position = self.cursor.read_position
            pending = self.cursor.reset(Position(*check_position(position)))
            self._where.clear()
            self._where.reach([read_position])
            self._new.begin_anew()
            self._delayed.reset(self.cursor.mark_delete_position, shared=self.topic.shared_index is not None)
        pending.result()
        self.bell.ring()

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
            *self._returning.damage,
        ]

    @property
    def stats(self) -> SubscriptionStats:
        """How many messages are where, at this moment."""
        with self._lock, self._guard:
            if self._closed is None:
                self._begin()
            self._delayed.forget_passed(self.topic.ledger, self.cursor.mark_delete_position)
            return SubscriptionStats(
                backlog=self.cursor.backlog,
                delayed=self.tracker.delayed_count,
                out=len(self._where.out) - sum(len(one.held_back(self._where.out)) for one in self._consumers),
                waiting=len(self._where.again),
                nacked=len(self._where.nacked),
                unreadable=len(self._unreadable.positions),
                paused=self.paused,
                pause_reasons=self.cursor.pause_reasons,
                entries_to_resume=self.cursor.entries_to_resume,
                **asdict(self._tally),
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
            found = samples(len(self._unreadable.positions), self._tally.skipped, self.topic.name, self.name)
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
            self._returning.stop()
            self.tracker.close()
        self._returning.close()
        self.bell.ring()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r} of {self.topic.name!r}{', closed' if self._closed else ''}>"
