"""Messages in flight: delivered to a consumer, and neither acknowledged nor scheduled for redelivery. No I/O.

Messages that are delivered together share one :class:`Delivery` with one deadline, so that each costs only a dictionary
entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count, groupby
from operator import itemgetter
from threading import Lock
from typing import TYPE_CHECKING

from bookstand.delivery.message.message_id import BatchMessageId, MessageId, position_of
from bookstand.storage.format.position import Position
from bookstand.storage.process.fork_guard import ProcessBound

if TYPE_CHECKING:
    from bookstand.delivery.subscription.consumer import Consumer

# The deadline heap may exceed twice the number of messages in flight by this many.
_STALE_ALLOWANCE = 1_000
_POSITION_IN: Callable[[MessageId], tuple[int, int]] = itemgetter(slice(2))


class Delivery:
    __slots__ = ("consumer", "deadline", "messages")

    def __init__(self, consumer: Consumer, messages: Sequence[MessageId], deadline: int | None) -> None:
        self.consumer = consumer
        self.messages = messages
        self.deadline = deadline


class UnackedMessages(ProcessBound):
    """Not thread-safe, except for the ``remove`` methods; callers hold the subscription's lock."""

    def __init__(self) -> None:
        self._deliveries: dict[MessageId, Delivery] = {}
        # Messages in flight by their batch. Another thread may add messages of a batch while some are removed.
        self._members: dict[tuple[int, int], set[MessageId]] = {}
        self._members_lock = Lock()
        # Heap by deadline. Deliveries stay in it after their messages have been removed.
        self._by_deadline: list[tuple[int, int, Delivery]] = []
        self._number = count()
        # Upper bound of the number of messages in the heap, including removed ones.
        self._scheduled = 0

    def __len__(self) -> int:
        return len(self._deliveries)

    def __contains__(self, message: object) -> bool:
        return message in self._deliveries

    def has_any_of(self, position: Position, members: Iterable[BatchMessageId]) -> bool:
        in_flight = self._members.get(position)
        return in_flight is not None and not in_flight.isdisjoint(members)

    def delivery_of(self, message: MessageId) -> Delivery | None:
        return self._deliveries.get(message)

    def is_from(self, message: MessageId, delivery: Delivery) -> bool:
        """Return True if the message is in flight since this delivery."""
        return self._deliveries.get(message) is delivery

    def add(
        self,
        consumer: Consumer,
        messages: Sequence[MessageId],
        deadline: int | None,
        batch: tuple[int, int] | None = None,
    ) -> Delivery:
        """``batch`` is the position of the batch that contains all messages, if the caller knows it."""
        delivery = Delivery(consumer, messages, deadline)
        deliveries = dict.fromkeys(messages, delivery)
        self._deliveries.update(deliveries)
        if batch is not None:
            with self._members_lock:
                # The dictionary already stores the hashes.
                self._members.setdefault(batch, set()).update(deliveries)
        elif BatchMessageId in set(map(type, messages)):
            # Messages of a batch are usually adjacent; groups of one batch may repeat.
            of_batches = groupby([message for message in messages if len(message) > 2], _POSITION_IN)
            with self._members_lock:
                for position, members in of_batches:
                    self._members.setdefault(position, set()).update(members)
        if deadline is not None:
            heappush(self._by_deadline, (deadline, next(self._number), delivery))
            self._scheduled += len(messages)
            if self._scheduled > 2 * len(self._deliveries) + _STALE_ALLOWANCE:
                self._drop_removed()
        return delivery

    def _drop_removed(self) -> None:
        """Drop removed messages from the heap before their deadlines, which may be far away."""
        for _, _, delivery in self._by_deadline:
            delivery.messages = [message for message in delivery.messages if self.is_from(message, delivery)]
        # A sorted list is a heap.
        self._by_deadline = sorted(one for one in self._by_deadline if one[2].messages)
        self._scheduled = sum(len(delivery.messages) for _, _, delivery in self._by_deadline)

    def remove(self, message: MessageId) -> bool:
        """Remove a message, or an entry with all its messages. Return True if the message itself was in flight."""
        was_in_flight = self._deliveries.pop(message, None) is not None
        if self._members:
            self._remove_members(position_of(message), (message,) if len(message) > 2 else None)
        return was_in_flight

    def remove_entries(self, positions: Iterable[Position]) -> list[Position]:
        """Remove entries with all their messages; return the ones that were not in flight as a whole."""
        if self._members:
            return [position for position in positions if not self.remove(position)]
        pop = self._deliveries.pop
        return [position for position in positions if pop(position, None) is None]

    def remove_members(self, position: Position, members: Iterable[BatchMessageId]) -> None:
        pop = self._deliveries.pop
        for member in members:
            pop(member, None)
        self._remove_members(position, members)

    def _remove_members(self, position: Position, members: Iterable[MessageId] | None) -> None:
        """Remove messages of a batch; None removes all."""
        with self._members_lock:
            in_flight = self._members.get(position)
            if in_flight is None:
                return
            if members is None:
                for member in in_flight:
                    self._deliveries.pop(member, None)
                del self._members[position]
                return
            in_flight.difference_update(members)
            if not in_flight:
                del self._members[position]

    def remove_up_to(self, last: Position) -> list[MessageId]:
        """Remove and return all messages of the entries up to a position."""
        removed = [message for message in list(self._deliveries) if position_of(message) <= last]
        for message in removed:
            self.remove(message)
        return removed

    def of(self, consumer: Consumer) -> list[MessageId]:
        return [message for message, delivery in list(self._deliveries.items()) if delivery.consumer is consumer]

    def all(self) -> list[MessageId]:
        return list(self._deliveries)

    @property
    def next_deadline(self) -> int | None:
        """Earliest deadline in the heap, at or before the earliest of the messages in flight."""
        return self._by_deadline[0][0] if self._by_deadline else None

    def pop_overdue(self, now: int) -> list[MessageId]:
        """Remove past deadlines and return their messages in flight."""
        heap = self._by_deadline
        found: list[MessageId] = []
        while heap and heap[0][0] <= now:
            _, _, delivery = heappop(heap)
            found += [message for message in delivery.messages if self.is_from(message, delivery)]
        while heap and not any(self.is_from(message, heap[0][2]) for message in heap[0][2].messages):
            heappop(heap)
        return found

    def rebuild(self, is_acked: Callable[[MessageId], bool]) -> None:
        """Rebuild the state after an interrupted call, without messages that are acknowledged."""
        in_flight, self._deliveries = self._deliveries, {}
        self._members, self._by_deadline, self._scheduled = {}, [], 0
        try:
            deliveries: dict[int, tuple[Delivery, list[MessageId]]] = {}
            for message, delivery in in_flight.items():
                if not is_acked(message):
                    deliveries.setdefault(id(delivery), (delivery, []))[1].append(message)
            for delivery, messages in deliveries.values():
                self.add(delivery.consumer, messages, delivery.deadline)
        except BaseException:
            self._deliveries = in_flight
            raise

    def clear(self) -> None:
        self._deliveries.clear()
        self._members.clear()
        self._by_deadline.clear()
