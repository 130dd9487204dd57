"""Which messages are out: handed to a consumer, and neither acknowledged nor given back. Plain state, no I/O.

What is handed out together is one :class:`Handout`, with one deadline; so a message costs an entry in a dictionary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from threading import Lock
from typing import TYPE_CHECKING

from bookstand.delivery.message_id import Member, MessageId, position_of
from bookstand.storage.position import Position

if TYPE_CHECKING:
    from bookstand.delivery.consumer import Consumer

# So many that are settled are not worth looking for.
_FEW = 1_000
_POSITION_IN: Callable[[MessageId], tuple[int, int]] = itemgetter(slice(2))


class Handout:
    __slots__ = ("consumer", "deadline", "messages")

    def __init__(self, consumer: Consumer, messages: Sequence[MessageId], deadline: int | None) -> None:
        self.consumer = consumer
        self.messages = messages
        self.deadline = deadline


class HandedOut:
    """Its owner has a lock for all but settling."""

    def __init__(self) -> None:
        self._entries: dict[MessageId, Handout] = {}
        # Of batches: those of an entry that are out, by its position. While one is settled, another may go out.
        self._members: dict[tuple[int, int], dict[MessageId, Handout]] = {}
        self._members_count = 0
        self._members_lock = Lock()
        # By deadline, for they all last equally long; those whose messages are all settled may still be in it.
        self._by_deadline: deque[Handout] = deque()
        # How many messages they have, settled or not, at most.
        self._kept = 0

    def __len__(self) -> int:
        return len(self._entries) + self._members_count

    def __contains__(self, message: MessageId) -> bool:
        return self.handout_of(message) is not None

    def has_any_of(self, position: Position, members: Iterable[Member]) -> bool:
        """Of a batch."""
        out = self._members.get(position)
        return out is not None and not out.keys().isdisjoint(members)

    def handout_of(self, message: MessageId) -> Handout | None:
        if len(message) == 2:
            return self._entries.get(message)
        out = self._members.get(_POSITION_IN(message))
        return None if out is None else out.get(message)

    def is_in(self, message: MessageId, handout: Handout) -> bool:
        """Whether it is out since this handout, and was not given back meanwhile."""
        return self.handout_of(message) is handout

    def hand_out(self, consumer: Consumer, messages: Sequence[MessageId], deadline: int | None) -> Handout:
        handout = Handout(consumer, messages, deadline)
        if Member in set(map(type, messages)):
            with self._members_lock:
                for position, of_entry in _by_entry(messages):
                    self._hand_out_of_entry(position, dict.fromkeys(of_entry, handout))
        else:
            self._entries.update(dict.fromkeys(messages, handout))
        if deadline is not None:
            self._by_deadline.append(handout)
            self._kept += len(messages)
            if self._kept > 2 * len(self) + _FEW:
                self._forget_settled()
        return handout

    def _forget_settled(self) -> None:
        """A deadline may be a long time off."""
        kept: deque[Handout] = deque()
        for handout in self._by_deadline:
            handout.messages = [message for message in handout.messages if self.is_in(message, handout)]
            if handout.messages:
                kept.append(handout)
        self._by_deadline = kept
        self._kept = sum(len(handout.messages) for handout in kept)

    def _hand_out_of_entry(self, position: tuple[int, int], handouts: dict[MessageId, Handout]) -> None:
        """Itself, or members of it; the lock is held."""
        if position in handouts:
            self._entries.update(handouts)
            return
        out = self._members.setdefault(position, handouts)
        if out is handouts:
            self._members_count += len(out)
        else:
            self._members_count -= len(out)
            out.update(handouts)
            self._members_count += len(out)

    def settle(self, message: MessageId) -> None:
        """It is not out any more, and with an entry none of its members."""
        if len(message) > 2:
            self.settle_members(position_of(message), (message,))
            return
        self._entries.pop(message, None)
        if message in self._members:
            with self._members_lock:
                self._members_count -= len(self._members.pop(message, ()))

    def settle_all(self, positions: Iterable[Position]) -> None:
        """The same of many entries."""
        if self._members:
            for position in positions:
                self.settle(position)
            return
        pop = self._entries.pop
        for position in positions:
            pop(position, None)

    def settle_members(self, position: Position, members: Iterable[MessageId]) -> None:
        """The same of some of a batch."""
        with self._members_lock:
            out = self._members.get(position)
            if out is None:
                return
            self._members_count -= len(out)
            for member in members:
                out.pop(member, None)
            self._members_count += len(out)
            if not out:
                del self._members[position]

    def settle_up_to(self, last: Position) -> list[MessageId]:
        """All of the entries up to a position."""
        settled = [message for message in self.all() if position_of(message) <= last]
        for message in settled:
            self.settle(message)
        return settled

    def of(self, consumer: Consumer) -> list[MessageId]:
        return [message for message, handout in self._all() if handout.consumer is consumer]

    def all(self) -> list[MessageId]:
        return [message for message, _ in self._all()]

    def _all(self) -> list[tuple[MessageId, Handout]]:
        found = list(self._entries.items())
        for out in list(self._members.values()):
            found += out.items()
        return found

    @property
    def next_deadline(self) -> int | None:
        """Not later than that of what is out."""
        return self._by_deadline[0].deadline if self._by_deadline else None

    def overdue(self, now: int) -> list[MessageId]:
        """What is out beyond its deadline."""
        waiting = self._by_deadline
        found: list[MessageId] = []
        while waiting and (waiting[0].deadline or 0) <= now:
            handout = waiting.popleft()
            found += [message for message in handout.messages if self.is_in(message, handout)]
        while waiting and not any(self.is_in(message, waiting[0]) for message in waiting[0].messages):
            waiting.popleft()
        return found

    def clear(self) -> None:
        self._entries.clear()
        with self._members_lock:
            self._members.clear()
            self._members_count = 0
        self._by_deadline.clear()


def _by_entry(messages: Sequence[MessageId]) -> Iterable[tuple[tuple[int, int], Iterable[MessageId]]]:
    """Those of an entry are next to each other."""
    first = _POSITION_IN(messages[0])
    if first == _POSITION_IN(messages[-1]):
        # One batch, as it is mostly.
        return [(first, messages)]
    return groupby(messages, _POSITION_IN)
