"""Which messages are out: handed to a consumer, and neither acknowledged nor given back. Plain state, no I/O.

What is handed out together is one :class:`Delivery`, with one deadline; so a message costs an entry in a dictionary.
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

# So many that are settled are not worth looking for.
_FEW = 1_000
_POSITION_IN: Callable[[MessageId], tuple[int, int]] = itemgetter(slice(2))


class Delivery:
    __slots__ = ("consumer", "deadline", "messages")

    def __init__(self, consumer: Consumer, messages: Sequence[MessageId], deadline: int | None) -> None:
        self.consumer = consumer
        self.messages = messages
        self.deadline = deadline


class UnackedMessages(ProcessBound):
    """Its owner has a lock for all but settling."""

    def __init__(self) -> None:
        self._deliveries: dict[MessageId, Delivery] = {}
        # Of batches: those of an entry that are out. While one is settled, another may go out.
        self._members: dict[tuple[int, int], set[MessageId]] = {}
        self._members_lock = Lock()
        # A heap by deadline; handouts whose messages are all settled may still be in it.
        self._by_deadline: list[tuple[int, int, Delivery]] = []
        self._number = count()
        # How many messages they have, settled or not, at most.
        self._scheduled = 0

    def __len__(self) -> int:
        return len(self._deliveries)

    def __contains__(self, message: object) -> bool:
        return message in self._deliveries

    def has_any_of(self, position: Position, members: Iterable[BatchMessageId]) -> bool:
        """Of a batch."""
        out = self._members.get(position)
        return out is not None and not out.isdisjoint(members)

    def delivery_of(self, message: MessageId) -> Delivery | None:
        return self._deliveries.get(message)

    def is_from(self, message: MessageId, delivery: Delivery) -> bool:
        """Whether it is out since this handout, and was not given back meanwhile."""
        return self._deliveries.get(message) is delivery

    def add(
        self,
        consumer: Consumer,
        messages: Sequence[MessageId],
        deadline: int | None,
        batch: tuple[int, int] | None = None,
    ) -> Delivery:
        """``batch``: the position of the entry that all of them are members of, where that is known."""
        delivery = Delivery(consumer, messages, deadline)
        deliveries = dict.fromkeys(messages, delivery)
        self._deliveries.update(deliveries)
        if batch is not None:
            with self._members_lock:
                # The dictionary knows their hashes.
                self._members.setdefault(batch, set()).update(deliveries)
        elif BatchMessageId in set(map(type, messages)):
            # Those of an entry are mostly next to each other.
            of_batches = groupby([message for message in messages if len(message) > 2], _POSITION_IN)
            with self._members_lock:
                for position, members in of_batches:
                    self._members.setdefault(position, set()).update(members)
        if deadline is not None:
            heappush(self._by_deadline, (deadline, next(self._number), delivery))
            self._scheduled += len(messages)
            if self._scheduled > 2 * len(self._deliveries) + _FEW:
                self._drop_removed()
        return delivery

    def _drop_removed(self) -> None:
        """A deadline may be a long time off."""
        for _, _, delivery in self._by_deadline:
            delivery.messages = [message for message in delivery.messages if self.is_from(message, delivery)]
        # Sorted, it is a heap again.
        self._by_deadline = sorted(one for one in self._by_deadline if one[2].messages)
        self._scheduled = sum(len(delivery.messages) for _, _, delivery in self._by_deadline)

    def remove(self, message: MessageId) -> bool:
        """Remove a message, and with an entry all of its members; return whether the message itself was out."""
        was_out = self._deliveries.pop(message, None) is not None
        if self._members:
            self._remove_members(position_of(message), (message,) if len(message) > 2 else None)
        return was_out

    def remove_entries(self, positions: Iterable[Position]) -> list[Position]:
        """Settle many entries; return those that were not in flight as a whole."""
        if self._members:
            return [position for position in positions if not self.remove(position)]
        pop = self._deliveries.pop
        return [position for position in positions if pop(position, None) is None]

    def remove_members(self, position: Position, members: Iterable[BatchMessageId]) -> None:
        """The same of some of a batch."""
        pop = self._deliveries.pop
        for member in members:
            pop(member, None)
        self._remove_members(position, members)

    def _remove_members(self, position: Position, members: Iterable[MessageId] | None) -> None:
        """All of the batch, if ``members`` is None."""
        with self._members_lock:
            out = self._members.get(position)
            if out is None:
                return
            if members is None:
                for member in out:
                    self._deliveries.pop(member, None)
                del self._members[position]
                return
            out.difference_update(members)
            if not out:
                del self._members[position]

    def remove_up_to(self, last: Position) -> list[MessageId]:
        """All of the entries up to a position."""
        settled = [message for message in list(self._deliveries) if position_of(message) <= last]
        for message in settled:
            self.remove(message)
        return settled

    def of(self, consumer: Consumer) -> list[MessageId]:
        return [message for message, delivery in list(self._deliveries.items()) if delivery.consumer is consumer]

    def all(self) -> list[MessageId]:
        return list(self._deliveries)

    @property
    def next_deadline(self) -> int | None:
        """Not later than that of what is out."""
        return self._by_deadline[0][0] if self._by_deadline else None

    def overdue(self, now: int) -> list[MessageId]:
        """What is out beyond its deadline."""
        waiting = self._by_deadline
        found: list[MessageId] = []
        while waiting and waiting[0][0] <= now:
            _, _, delivery = heappop(waiting)
            found += [message for message in delivery.messages if self.is_from(message, delivery)]
        while waiting and not any(self.is_from(message, waiting[0][2]) for message in waiting[0][2].messages):
            heappop(waiting)
        return found

    def repair(self, is_settled: Callable[[MessageId], bool]) -> None:
        """After an interrupted call: make everything else out of what is in flight, and settle what is to be."""
        out, self._deliveries = self._deliveries, {}
        self._members, self._by_deadline, self._scheduled = {}, [], 0
        try:
            deliveries: dict[int, tuple[Delivery, list[MessageId]]] = {}
            for message, delivery in out.items():
                if not is_settled(message):
                    deliveries.setdefault(id(delivery), (delivery, []))[1].append(message)
            for delivery, messages in deliveries.values():
                self.add(delivery.consumer, messages, delivery.deadline)
        except BaseException:
            self._deliveries = out
            raise

    def clear(self) -> None:
        self._deliveries.clear()
        self._members.clear()
        self._by_deadline.clear()
