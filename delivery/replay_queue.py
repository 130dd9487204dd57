"""What is to be delivered again, before anything else is. Plain state, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from bookstand.delivery.message_id import MessageId


class ReplayQueue:
    """Messages, the lowest first, each once. Its owner has a lock."""

    def __init__(self) -> None:
        self._waiting: set[MessageId] = set()
        self._heap: list[MessageId] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, message: object) -> bool:
        return message in self._waiting

    def has_any(self, messages: Iterable[MessageId]) -> bool:
        return bool(self._waiting) and not self._waiting.isdisjoint(messages)

    def add(self, messages: Iterable[MessageId]) -> None:
        for message in messages:
            if message not in self._waiting:
                self._waiting.add(message)
                heappush(self._heap, message)

    def take(self, most: int) -> list[MessageId]:
        taken: list[MessageId] = []
        while self._heap and len(taken) < most:
            message = heappop(self._heap)
            self._waiting.discard(message)
            taken.append(message)
        return taken

    def clear(self) -> None:
        self._waiting.clear()
        self._heap.clear()
