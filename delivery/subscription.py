"""A subscription: what Pulsar's dispatcher and its consumers' client do together, and a durable queue for programs.

Messages come from three places, and go out in this order:

1. *again*: what was negatively acknowledged, held beyond its deadline, or given back by a consumer that left;
2. *due*: delayed messages whose time has come, which the tracker knows;
3. *new*: what the cursor reads on from where it stands. What is delayed goes to the tracker instead, and what the
   tracker has is passed over without being read.

``_lock`` guards all of it. Acknowledgments do not take it: they go to the cursor, and settle what is out in one step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np

from bookstand.cursor.cursor import Cursor
from bookstand.delivery.choosing import Tracker, open_tracker
from bookstand.delivery.consumer import Consumer
from bookstand.delivery.dead_letters import dead_letter_topic_of, publish_dead_letters
from bookstand.delivery.doorbell import Doorbell
from bookstand.delivery.given_times import GivenTimesTracker
from bookstand.delivery.handed_out import HandedOut
from bookstand.delivery.message_id import Member, MessageId, position_of
from bookstand.delivery.nack_log import forget, nack_name
from bookstand.delivery.nacked import Nacked
from bookstand.delivery.negative_acks import NegativeAcks
from bookstand.delivery.received import (
    Known,
    Members,
    Opened,
    Portion,
    ReceivedMessage,
    are_whole,
    expires_at,
    ids_of,
    messages_of,
    opened,
    opened_all,
    opened_runs,
    size_of_batch,
)
from bookstand.delivery.replay_queue import ReplayQueue
from bookstand.delivery.timer import Alarm
from bookstand.delivery.times import Moment, Span, delivery_time, span_of
from bookstand.delivery.topic_config import SubscriptionConfig
from bookstand.delivery.tracker import check_position
from bookstand.delivery.turns import Turns
from bookstand.errors import BookstandError, ClientClosedError, IllegalOperationError, IncorrectParameterError
from bookstand.storage.log import logger
from bookstand.storage.pending import Pending, completed
from bookstand.storage.position import EARLIEST, Position

if TYPE_CHECKING:
    from bookstand.delivery.topic import Topic

Reference = ReceivedMessage | tuple[int, int]
"""A message that was received, or a position."""

# How many entries are read at once where some are delayed, and where all are.
_FEW, _MANY = 32, 1_000
_POSITION_OF = attrgetter("position")


class ConsumerBusyError(IllegalOperationError):
    """An exclusive subscription has a consumer already."""


@dataclass(frozen=True)
class SubscriptionStats:
    """``backlog`` counts entries that are not acknowledged, wherever they are; the others say where. From ``delivered``
    on they count what happened since the subscription was opened: messages, and entries for all but that."""

    backlog: int
    delayed: int
    out: int
    waiting: int
    nacked: int
    paused: bool
    delivered: int
    redelivered: int
    acked: int
    expired: int
    dead_lettered: int


class Subscription:
    """Use ``topic.subscription(name)``. All methods may be called from any thread.

    *At least once*: a message that was published durably is delivered until it was durably acknowledged. A restart
    delivers again what was not, and nothing else; it does not know how often that was delivered before.

    *Never early*: a delayed message is not delivered more than a tick before its time; strict, not before it.

    *Order*: new messages come in the topic's order, due ones by their time, those that come again in the topic's order.
    What comes again goes before what is due, and that before what is new; but none of the three is passed over more
    than eight times in a row while it has something. Exclusive, whatever comes again brings all with it that is out,
    so that messages without delay keep their order among those that are not acknowledged.

    *One at a time*: what is out with one consumer no other gets, until it is given back.

    While the state of the cursor is at its limit nothing new goes out, nor what is due; redeliveries do, and
    acknowledgments are taken, by which the state gets smaller. An exclusive subscription does not pause.
    """

    def __init__(self, topic: Topic, name: str, config: SubscriptionConfig, initial: str) -> None:
        self.topic = topic
        self.name = name
        self.config = config
        self._clock = topic.ledger.client.clock
        self._lock = RLock()
        self.bell = Doorbell()
        """Rings when there may be something to receive."""
        self._closed: BookstandError | None = None
        self._out = HandedOut()
        self._again = ReplayQueue()
        # Read already, and not handed out for want of a place.
        self._ahead: deque[ReceivedMessage] = deque()
        # How often each message that is not acknowledged was given back.
        self._counts: dict[MessageId, int] = {}
        self._nacked = Nacked()
        # Up to here the cursor may come to what is out, or waits to come again.
        self._read_before = EARLIEST
        # Up to here what is delayed is tracked, although the cursor has not come to it.
        self._tracked_before = EARLIEST
        self._read_at_once = _FEW
        self._known: Known = {}
        self._turns = Turns(3)
        # What is on its way out while it is gathered.
        self._taken: set[MessageId] = set()
        self._alarm: Alarm | None = None
        self._was_full = False
        self._delivered = self._redelivered = self._acked = self._expired = self._dead_lettered = 0
        self._own_consumer = Consumer(self, name)
        self._consumers = {self._own_consumer}
        # Who has an exclusive subscription.
        self._active: Consumer | None = None
        self.cursor: Cursor = topic.cursor(name, config.cursor, initial=initial)
        self.cursor.on_resume(self.bell.ring)
        self._passed_ledger = self.cursor.mark_delete_position.ledger_id
        self.tracker: Tracker = self._open_tracker()
        self._remember_given_times()
        if self.tracker.count:
            # What it knows from before may be out when the cursor comes to it.
            self._read_before = topic.ledger.last_confirmed
        self._nacks = self._open_nacks()

    # -- beginning ---------------------------------------------------------------------------------------------------

    def _open_tracker(self) -> Tracker:
        topic = self.topic
        return open_tracker(
            self.cursor,
            topic.config,
            self.config.delayed_delivery_tick_time_millis,
            topic.shared_index,
            self.bell.ring,
            self._clock,
            topic.timer,
        )

    def _remember_given_times(self) -> None:
        """When messages are to be delivered instead of the time that they say: from then on they age."""
        self._given_times = {Position(*position): time for position, time in self.tracker.given_times.items()}

    @property
    def _nack_name(self) -> str:
        return nack_name(self.topic.name, self.name)

    def _open_nacks(self) -> NegativeAcks:
        config, timer = self.config, self.topic.timer
        delay = span_of("nack_delay", config.nack_delay)
        if not config.durable_nacks:
            forget(self.topic.store, self._nack_name)
            return NegativeAcks(
                self._nacks_due, delay=delay, backoff=config.nack_backoff, clock=self._clock, timer=timer
            )
        with self._lock:
            # What is due by now is announced at once, in another thread, which waits for the lock.
            nacks = NegativeAcks.open(
                self.topic.store,
                self._nack_name,
                self._nacks_due,
                delay=delay,
                backoff=config.nack_backoff,
                clock=self._clock,
                timer=timer,
            )
            self._nacked.add_whole(nacks.positions())
            self._read_before = max([self._read_before, *self._nacked.positions()])
            return nacks

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
        with self._lock:
            self._check_open()
            consumer = Consumer(self, self.name if name is None else name)
            if self.config.is_exclusive:
                self._take_over_exclusively(consumer)
            self._consumers.add(consumer)
            return consumer

    def _take_over_exclusively(self, consumer: Consumer) -> None:
        active = self._active
        if active is not None and active is not consumer and (active is not self._own_consumer or len(self._out)):
            raise ConsumerBusyError(f"subscription {self.name!r} is exclusive, and has consumer {active.name!r}")
        self._active = consumer

    def take(self, consumer: Consumer, most: int) -> tuple[list[ReceivedMessage], bool]:
        """For consumers: what can go out now, and whether looking again at once makes sense."""
        with self._lock:
            self._check_open()
            consumer.check_open()
            if self.config.is_exclusive:
                self._take_over_exclusively(consumer)
            messages = self._take_spilled(consumer, most)
            room = min(most - len(messages), self.config.max_unacked_messages - len(self._out))
            self._was_full = self.config.max_unacked_messages <= len(self._out) + max(room, 0)
            if room <= 0:
                return messages, False
            try:
                portions, unfinished = self._gather(room)
                if portions:
                    messages += self._hand_out(consumer, self._cut(portions, room), most - len(messages))
            except BookstandError:
                if not messages:
                    raise
                # These are out; of what cannot be read the next call tells.
                return messages, False
            return messages, unfinished

    def _take_spilled(self, consumer: Consumer, most: int) -> list[ReceivedMessage]:
        messages = consumer.take_spilled(most, self._out)
        if messages and self.config.ack_deadline is not None:
            # Nobody has seen them until now.
            self._out.hand_out(consumer, [message.id for message in messages], self._next_deadline())
        self._delivered += len(messages)
        return messages

    def _cut(self, portions: list[Portion], room: int) -> Sequence[Portion]:
        """As many of them as have so many messages; the rest comes next."""
        if len(portions) <= room and are_whole(portions):
            return portions
        for number, portion in enumerate(portions, 1):
            room -= len(portion.batch_indexes) if isinstance(portion, Members) else 1
            if room <= 0:
                self._again.add(message for left in portions[number:] for message in ids_of(left))
                return portions[:number]
        return portions

    def _gather(self, room: int) -> tuple[list[Portion], bool]:
        """What the three places give, of so many entries at most; and whether looking further may find more."""
        sources: list[Callable[[int], list[Portion] | None]] = [self._take_again]
        if not self.paused:
            sources += (self._take_due, self._take_new)
        portions: list[Portion] = []
        self._taken.clear()
        noted = 0
        left_out: list[int] = []
        unfinished = False
        failure: BookstandError | None = None
        for source in self._turns.order():
            if source >= len(sources):
                continue
            if len(portions) >= room:
                left_out.append(source)
                continue
            if noted < len(portions):
                self._taken.update(message for portion in portions[noted:] for message in ids_of(portion))
                noted = len(portions)
            try:
                found = sources[source](room - len(portions))
            except BookstandError as error:
                # What the others have goes out; of what cannot be read the next call tells.
                failure = failure or error
                continue
            if found is None:
                unfinished = True
            else:
                portions += found
            self._turns.had(source)
        for source in left_out:
            if self._has_some(source):
                self._turns.passed_over(source)
        if failure is not None and not portions and not unfinished:
            raise failure
        return portions, unfinished

    def _has_some(self, source: int) -> bool:
        if source == 0:
            return bool(self._again)
        if source == 1:
            return self.tracker.has_message_available()
        return bool(self._ahead) or self.cursor.has_more

    def _hand_out(self, consumer: Consumer, portions: Sequence[Portion], most: int) -> list[ReceivedMessage]:
        if are_whole(portions):
            messages = portions
            ids: list[MessageId] = list(map(_POSITION_OF, messages))
        else:
            try:
                messages = [message for portion in portions for message in messages_of(portion)]
            except BookstandError:
                self._again.add(message for portion in portions for message in ids_of(portion))
                raise
            ids = [message.id for message in messages]
        deadline = self._next_deadline()
        handout = self._out.hand_out(consumer, ids, deadline)
        if self._alarm is None and deadline is not None:
            self._alarm = self.topic.timer.arm(deadline, self._deadline_passed)
        if self._counts:
            for message, message_id in zip(messages, ids, strict=True):
                message.redelivery_count = self._counts.get(message_id, 0)
                self._redelivered += message.redelivery_count > 0
        if len(messages) > most:
            consumer.spill(messages[most:], handout)
            messages = messages[:most]
        self._delivered += len(messages)
        return messages

    def _next_deadline(self) -> int | None:
        deadline = self.config.ack_deadline
        return None if deadline is None else self._clock.now() + span_of("ack_deadline", deadline)

    # -- the three places; the lock is held --------------------------------------------------------------------------

    def _take_again(self, most: int) -> list[Portion]:
        found: list[Portion] = []
        while len(found) < most and (ids := self._again.take(most - len(found))):
            try:
                found += self._portions_again(ids)
            except BookstandError as error:
                readable = self._readable(ids)
                if not found and not readable:
                    raise
                found += readable
                logger().warning("topic %s, subscription %s: %s", self.topic.name, self.name, error)
                break
        return found

    def _portions_again(self, ids: list[MessageId]) -> list[Portion]:
        entries = self._read(sorted(set(map(position_of, ids)))).entries
        return self._without_worn_out(self._portions(entries, ids))

    def _readable(self, ids: list[MessageId]) -> list[Portion]:
        """Where one of them cannot be read, or not be buried, the others go on; that one stays."""
        found: list[Portion] = []
        for message in ids:
            try:
                found += self._portions_again([message])
            except BookstandError:
                self._again.add([message])
        return found

    def _take_due(self, most: int) -> list[Portion]:
        found: list[Portion] = []
        # Mostly nothing is due, and asking costs less than looking.
        if not self.tracker.has_message_available():
            return found
        while len(found) < most and (positions := self.tracker.pop_due(most - len(found))):
            self._read_before = max(self._read_before, *positions)
            try:
                entries = self._read([position for position in positions if not self._is_elsewhere(position)]).entries
                entries.sort(key=lambda entry: (entry.deliver_at or 0, entry.position))
                found += self._portions(entries)
            except BookstandError:
                self._again.add(positions)
                if not found:
                    raise
                break
        return found

    def _read(self, positions: list[Position]) -> Opened:
        """Those of the entries that are still to be delivered."""
        return self._living(opened_all(self.cursor.replay(positions), self._known))

    def _take_new(self, most: int) -> list[Portion] | None:
        """None: what was read is delayed, and there may be more."""
        while self._ahead:
            count = min(most, len(self._ahead))
            ahead = [self._ahead.popleft() for _ in range(count)]
            kept = self._unexpired([entry for entry in ahead if not self.cursor.is_acked(entry.position)])
            if portions := self._portions(kept):
                return portions
        if self.tracker.should_pause_all_deliveries():
            return []
        if isinstance(self.tracker, GivenTimesTracker) and self.tracker.takes_rewind():
            self._rewind()
        start = self.cursor.read_position
        wanted = None
        if start <= self._read_before:
            wanted = partial(self._wanted, True)
        elif self.tracker.count:
            wanted = partial(self._wanted, False)
        try:
            # Where one is delayed, others are, and are tracked many at a time.
            runs = self.cursor.read_runs(most if wanted is None else max(most, self._read_at_once), wanted)
            fresh, plain = self._living(opened_runs(runs, self._known))
            if not plain:
                if start <= self._read_before:
                    # Batches of which every member is somewhere else are not tracked anew.
                    fresh = [entry for entry in fresh if not size_of_batch(entry) or self._portions([entry])]
                fresh = self._undelayed(fresh)
        except BookstandError:
            self.cursor.seek(start)
            raise
        self._read_at_once = _FEW if fresh else _MANY
        if not fresh and runs:
            return None
        if len(fresh) > most:
            self._ahead.extend(fresh[most:])
            fresh = fresh[:most]
        # Of a batch all members may be somewhere else.
        return (list(fresh) if plain else self._portions(fresh)) or (None if runs else [])

    def _undelayed(self, entries: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Track what is delayed; returns what is to be delivered now."""
        delayed = [(entry.position, entry.deliver_at) for entry in entries if entry.deliver_at is not None]
        if not delayed:
            return entries
        tracked = self.tracker.add_many([position for position, _ in delayed], [time for _, time in delayed])
        kept = iter(tracked.tolist())
        return [entry for entry in entries if entry.deliver_at is None or not next(kept)]

    def _wanted(self, again: bool, ledger_id: int, first: int, last: int) -> Iterable[int]:
        """Of a run of entries those that do not wait; where the cursor was before (``again``), those that are nowhere
        else besides."""
        if last - first < _FEW:
            contains = self.tracker.contains_message
            entry_ids: Iterable[int] = [one for one in range(first, last + 1) if not contains((ledger_id, one))]
        else:
            entry_ids = self._untracked(ledger_id, first, last)
        if not again:
            return entry_ids
        return [one for one in entry_ids if not self._is_elsewhere(Position(ledger_id, one))]

    def _is_elsewhere(self, message: MessageId) -> bool:
        """Whether it is out or on its way out, or will come again. Of a batch each member is somewhere."""
        return message in self._out or message in self._again or message in self._nacked or message in self._taken

    def _untracked(self, ledger_id: int, first: int, last: int) -> Iterable[int]:
        column = np.arange(first, last + 1)
        untracked: list[int] = column[~self.tracker.contains_many(np.full(len(column), ledger_id), column)].tolist()
        return untracked

    def _rewind(self) -> None:
        self._read_before = max(self._read_before, self.cursor.read_position)
        self._ahead.clear()
        self.cursor.rewind()

    def _portions(self, entries: Iterable[ReceivedMessage], ids: Iterable[MessageId] = ()) -> list[Portion]:
        """Of batches the members in ``ids``, where any are; else those that are nowhere else. What is acknowledged, or
        out, is in none."""
        chosen: dict[Position, set[int]] = {}
        for member in ids:
            if len(member) > 2:
                chosen.setdefault(position_of(member), set()).add(member[2])
        portions: list[Portion] = []
        metadata, is_batch = None, False
        for entry in entries:
            # Neighbours mostly share it.
            if entry.metadata is not metadata:
                metadata, is_batch = entry.metadata, size_of_batch(entry) > 0
            if not is_batch:
                portions.append(entry)
                continue
            position = entry.position
            unacked = self.cursor.unacked_in_batch(position)
            if unacked is None and self.cursor.is_acked(position):
                # Since it was read.
                continue
            some = chosen.get(position) if position not in ids else None
            indexes = [
                index
                for index in (range(size_of_batch(entry)) if unacked is None else unacked)
                if self._is_to_come(Member(*position, index), some)
            ]
            if indexes:
                portions.append(Members(entry, indexes))
        return portions

    def _is_to_come(self, member: Member, chosen: set[int] | None) -> bool:
        if chosen is None:
            return not self._is_elsewhere(member)
        return member.batch_index in chosen and member not in self._out

    # -- what is not delivered any more ------------------------------------------------------------------------------

    def _living(self, found: Opened) -> Opened:
        """All but those past their time to live, which are acknowledged."""
        return found if self.config.time_to_live is None else found._replace(entries=self._unexpired(found.entries))

    def _unexpired(self, found: list[ReceivedMessage]) -> list[ReceivedMessage]:
        if self.config.time_to_live is None:
            return found
        expired = [entry.position for entry in found if self._is_expired(entry)]
        if not expired:
            return found
        self._expire(expired)
        gone = set(expired)
        return [entry for entry in found if entry.position not in gone]

    def _expire(self, positions: list[Position]) -> None:
        self.cursor.ack(positions)
        self._expired += len(positions)
        for position in positions:
            self._counts.pop(position, None)
        self._look_at_trimming()

    def expire(self) -> int:
        """Acknowledge what is past its time to live; how many. The dispatcher does it with what it meets."""
        self._check_open()
        if self.config.time_to_live is None:
            return 0
        with self._lock:
            out = set(map(position_of, self._out.all()))
            expired: list[Position] = []
            for entry in self.cursor.unacked(self._untracked):
                read = opened(entry, self._known)
                if self._is_expired(read):
                    if entry.position not in out:
                        expired.append(entry.position)
                elif read.metadata is not None and read.deliver_at is None:
                    # What was published later has longer to live.
                    break
            if expired:
                self._expire(expired)
            return len(expired)

    def _is_expired(self, entry: ReceivedMessage) -> bool:
        if self.config.time_to_live is None:
            return False
        time_to_live = span_of("time_to_live", self.config.time_to_live)
        end = expires_at(entry, time_to_live, self._given_times.get(entry.position))
        return end is not None and end <= self._clock.now()

    def _without_worn_out(self, portions: list[Portion]) -> list[Portion]:
        """Those that were delivered again too often go to the dead-letter topic, and are acknowledged."""
        most = self.config.max_redeliveries
        if most is None or not self._counts:
            return portions
        worn_out = [
            message
            for portion in portions
            for message in messages_of(portion)
            if self._counts.get(message.id, 0) > most
        ]
        if not worn_out:
            return portions
        name = self.config.dead_letter_topic or dead_letter_topic_of(self.topic.name, self.name)
        publish_dead_letters(worn_out, self.topic.name, self.topic.store.topic(name))
        self.ack_many(worn_out).result()
        self._acked -= len(worn_out)
        self._dead_lettered += len(worn_out)
        gone = {message.id for message in worn_out}
        kept: list[Portion] = []
        for portion in portions:
            ids = [message.id for message in messages_of(portion) if message.id not in gone]
            entry = portion.entry if isinstance(portion, Members) else portion
            kept += self._portions([entry], ids) if ids else []
        return kept

    # -- acknowledging -----------------------------------------------------------------------------------------------

    def ack(self, message: Reference) -> Pending:
        """It is done with. Accepted on return, and durable once the Pending's ``result()`` has returned."""
        if isinstance(message, ReceivedMessage) and message.batch_index >= 0:
            return self._ack_member(message)
        position = _position_of(message)
        pending = self.cursor.ack(position)
        self._settle(position)
        return pending

    def _ack_member(self, message: ReceivedMessage) -> Pending:
        pending = self.cursor.ack_batch(message.position, [message.batch_index], message.batch_size)
        self._settle(message.id)
        return pending

    def ack_many(self, messages: Iterable[Reference]) -> Pending:
        """Many at once, the fast way."""
        given = list(messages)
        whole: list[Position] = []
        pendings: list[Pending] = []
        if set(map(type, given)) == {ReceivedMessage}:
            whole, given = list(map(_POSITION_OF, given)), []
        for message in given:
            if not isinstance(message, ReceivedMessage):
                whole.append(_position_of(message))
            elif message.batch_index < 0:
                whole.append(message.position)
            else:
                pendings.append(self._ack_member(message))
        if whole:
            pendings.append(self.cursor.ack_entries(whole))
            self._out.settle_all(whole)
            if self._counts:
                for position in whole:
                    self._counts.pop(position, None)
            self._acked += len(whole)
            self._settled()
        # What was accepted later is written later, or together with the rest.
        for pending in reversed(pendings):
            if not pending.done() or pending.exception() is not None:
                return pending
        return completed()

    def ack_cumulative(self, message: Reference) -> Pending:
        """It, and everything before it."""
        position = _position_of(message)
        if position <= self.cursor.mark_delete_position:
            return completed()
        if isinstance(message, ReceivedMessage) and message.batch_index >= 0:
            pending = self.cursor.mark_delete_batch(position, range(message.batch_index + 1), message.batch_size)
        else:
            pending = self.cursor.mark_delete(position)
        if isinstance(message, ReceivedMessage):
            for index in range(message.batch_index + 1):
                self._out.settle(Member(*position, index))
        self._acked += len(self._out.settle_up_to(self.cursor.mark_delete_position))
        self._settled()
        return pending

    def _settle(self, message: MessageId) -> None:
        self._out.settle(message)
        if self._counts:
            self._counts.pop(message, None)
        self._acked += 1
        self._settled()

    def _settled(self) -> None:
        if self._was_full:
            self.bell.ring()
        if self.cursor.mark_delete_position.ledger_id != self._passed_ledger:
            self._look_at_trimming()

    def _look_at_trimming(self) -> None:
        """Ledgers may not be needed any more."""
        passed = self.cursor.mark_delete_position
        if passed.ledger_id != self._passed_ledger:
            self._passed_ledger = passed.ledger_id
            with self._lock:
                for message in [message for message in list(self._counts) if position_of(message) <= passed]:
                    self._counts.pop(message, None)
                for position in [position for position in self._given_times if position <= passed]:
                    del self._given_times[position]
            self.topic.trim_soon()

    # -- what comes again --------------------------------------------------------------------------------------------

    def nack(self, message: Reference, delay: Span | None = None) -> None:
        """It could not be handled, and is to come again: after ``delay``, or what the backoff says, or ``nack_delay``.

        Of a batch, what is not acknowledged by then comes again."""
        self.nack_many([message], delay)

    def nack_many(self, messages: Iterable[Reference], delay: Span | None = None) -> None:
        """Many at once."""
        wait = None if delay is None else span_of("delay", delay)
        ids = [_id_of(message) for message in messages]
        with self._lock:
            self._check_open()
            open_ids = [message for message in ids if not self.cursor.is_acked(position_of(message))]
            # What was given back equally often comes again together, and is written down in one commit.
            for count, some in groupby(sorted(open_ids, key=self._count_of), key=self._count_of):
                messages_of_count = list(some)
                until = self._nacks.add_many(map(position_of, messages_of_count), wait, count)
                for message in messages_of_count:
                    self._nacked.add(position_of(message), message[2] if len(message) > 2 else -1, until)
                    self._out.settle(message)
        self._settled()

    def _count_of(self, message: MessageId) -> int:
        """How often it was given back, where that decides when it comes again."""
        return 0 if self.config.nack_backoff is None else self._counts.get(message, 0)

    def _nacks_due(self, positions: list[Position]) -> None:
        with self._lock:
            if self._closed is None:
                now = self._clock.now()
                due = [message for position in positions for message in self._nacked.due(position, now)]
                # What is out by now was given back for another reason, and went out again.
                self._give_back([message for message in due if self._out.handout_of(message) is None])

    def _deadline_passed(self, _: Alarm) -> None:
        with self._lock:
            self._alarm = None
            if self._closed is not None:
                return
            overdue = self._out.overdue(self._clock.now())
            if overdue:
                self._give_back(overdue)
            if (deadline := self._out.next_deadline) is not None:
                self._alarm = self.topic.timer.arm(deadline, self._deadline_passed)

    def redeliver_all(self) -> None:
        """Everything that is out comes again at once."""
        with self._lock:
            self._check_open()
            self._give_back(self._out.all())

    def left(self, consumer: Consumer) -> None:
        """For consumers: one of them is there no more."""
        with self._lock:
            consumer.closed = True
            self._consumers.discard(consumer)
            if self._active is consumer:
                self._active = None
            if self._closed is None:
                self._give_back(self._out.of(consumer))

    def _give_back(self, messages: Sequence[MessageId]) -> None:
        if self.config.is_exclusive and messages:
            messages = list({*messages, *self._out.all()})
        unseen: dict[Consumer, set[MessageId]] = {}
        for message in messages:
            handout = self._out.handout_of(message)
            if handout is not None and handout.consumer not in unseen:
                unseen[handout.consumer] = handout.consumer.held_back(self._out)
            if handout is None or message not in unseen[handout.consumer]:
                self._counts[message] = self._counts.get(message, 0) + 1
            self._out.settle(message)
        self._again.add(messages)
        # The cursor may not have come to it in this life.
        self._read_before = max([self._read_before, *map(position_of, messages)])
        self.bell.ring()

    # -- delayed messages --------------------------------------------------------------------------------------------

    def cancel(self, position: tuple[int, int]) -> Pending:
        """A message that waits for its time is not to be delivered: it is acknowledged, and forgotten."""
        cancelled = _position_of(position)
        pending = self.cursor.ack(cancelled)
        with self._lock:
            self.tracker.cancel(cancelled)
        self._settle(cancelled)
        return pending

    def reschedule(
        self, position: tuple[int, int], deliver_at: Moment | None = None, deliver_after: Span | None = None
    ) -> bool:
        """Deliver a message that waits for its time at another, durably on return. False if it does not wait: it was
        delivered, or the subscription has not come to it yet."""
        time = delivery_time(deliver_after, deliver_at, self._clock.now())
        if time is None:
            raise IncorrectParameterError("a message is rescheduled for a time: deliver_at, or deliver_after")
        with self._lock:
            self._check_open()
            chosen = _position_of(position)
            # The tracker may have it all the same: from a snapshot, after a restart.
            if self.cursor.is_acked(chosen) or self._is_elsewhere(chosen):
                return False
            if chosen >= self.cursor.read_position:
                self._track_unread()
            moved = self.tracker.reschedule(chosen, time)
            if moved:
                self._given_times[chosen] = time
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
        with self._lock:
            self._check_open()
            self._track_unread()
            found = self.tracker.peek(delivery_time(None, first, 0), delivery_time(None, last, 0), limit)
        return [(time, Position(ledger_id, entry_id)) for time, ledger_id, entry_id in found.indexes]

    def _track_unread(self) -> None:
        """What is delayed and was not read yet waits as well, unless it is somewhere else. When the cursor comes to it,
        it may be out already."""
        start = max(self.cursor.read_position, self._tracked_before)
        unread: list[ReceivedMessage] = []
        for entry in chain(self.cursor.unacked(self._untracked, start), [None]):
            if unread and (entry is None or len(unread) == _MANY):
                self._undelayed(unread)
                self._tracked_before = unread[-1].position.next
                self._read_before = max(self._read_before, self._tracked_before)
                unread = []
            if entry is not None and not self._is_elsewhere(entry.position):
                read = opened(entry, self._known)
                if not size_of_batch(read) or self._portions([read]):
                    unread.append(read)

    def reset(self, position: tuple[int, int]) -> None:
        """Read again from there, durably; what is out is out no more. What was negatively acknowledged keeps its time,
        and what waits for its time goes on to."""
        with self._lock:
            self._check_open()
            read_before = max(self._read_before, self.cursor.read_position)
            pending = self.cursor.reset(Position(*check_position(position)))
            self._out.clear()
            self._again.clear()
            self._ahead.clear()
            self._counts.clear()
            self._tracked_before = EARLIEST
            self._read_before = read_before
            if self.topic.shared_index is not None:
                # What it was given of the index is from another place of the topic.
                self.tracker.close()
                self.tracker = self._open_tracker()
            else:
                passed = self.cursor.mark_delete_position
                for _, ledger_id, entry_id in self.tracker.peek().indexes:
                    if (ledger_id, entry_id) <= passed:
                        self.tracker.cancel((ledger_id, entry_id))
            self._remember_given_times()
        pending.result()
        self.bell.ring()

    # -- questions ---------------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """How many entries are not acknowledged."""
        return self.cursor.backlog

    @property
    def paused(self) -> bool:
        """Whether only redeliveries go out."""
        return not self.config.is_exclusive and self.cursor.paused

    @property
    def stats(self) -> SubscriptionStats:
        """How many messages are where, at this moment."""
        with self._lock:
            return SubscriptionStats(
                backlog=self.cursor.backlog,
                delayed=self.tracker.count,
                out=len(self._out) - sum(len(one.held_back(self._out)) for one in self._consumers),
                waiting=len(self._again),
                nacked=len(self._nacked),
                paused=self.paused,
                delivered=self._delivered,
                redelivered=self._redelivered,
                acked=self._acked,
                expired=self._expired,
                dead_lettered=self._dead_lettered,
            )

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
        return self._closed is None and self.cursor.usable

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
            if self._alarm is not None:
                self._alarm.cancel()
            self.tracker.close()
        self._nacks.close()
        self.bell.ring()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Subscription {self.name!r} of {self.topic.name!r}{', closed' if self._closed else ''}>"


def _id_of(message: Reference) -> MessageId:
    return message.id if isinstance(message, ReceivedMessage) else _position_of(message)


def _position_of(message: Reference) -> Position:
    if isinstance(message, ReceivedMessage):
        return message.position
    return Position(*check_position(message))
