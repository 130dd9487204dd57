"""What is to be delivered again, before anything else is. Plain state, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from bookstand.delivery.message_id import MessageId, position_of
from bookstand.storage.position import Position


class ReplayQueue:
    """Messages, the lowest first, each once. Its owner has a lock."""

    def __init__(self) -> None:
        self._waiting: set[MessageId] = set()
        self._heap: list[MessageId] = []
        # How many messages of each entry there are.
        self._of_entry: dict[Position, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, position: object) -> bool:
        """Whether it has anything of an entry."""
        return position in self._of_entry

    def add(self, messages: Iterable[MessageId]) -> None:
        for message in messages:
            if message not in self._waiting:
                self._waiting.add(message)
                heappush(self._heap, message)
                position = position_of(message)
                self._of_entry[position] = self._of_entry.get(position, 0) + 1

    def take(self, most: int) -> list[MessageId]:
        taken: list[MessageId] = []
        while self._heap and len(taken) < most:
            message = heappop(self._heap)
            self._waiting.discard(message)
            taken.append(message)
            position = position_of(message)
            self._of_entry[position] -= 1
            if not self._of_entry[position]:
                del self._of_entry[position]
        return taken

    def clear(self) -> None:
        self._waiting.clear()
        self._heap.clear()
        self._of_entry.clear()
