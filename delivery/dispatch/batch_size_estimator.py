"""How many entries are to be read for so many messages, by what was read last. Plain state, no I/O."""

from __future__ import annotations

from collections.abc import Sequence

from bookstand.delivery.message.received_message import DecodedEntries, ReceivedMessage, size_of_batch


class BatchSizeEstimator:
    """Its owner has a lock."""

    def __init__(self) -> None:
        self._messages_per_entry = 0

    @property
    def are_known(self) -> bool:
        """Whether any entry was read."""
        return self._messages_per_entry > 0

    def learn(self, read: DecodedEntries) -> None:
        entries = read.entries
        if entries:
            count = len(entries) if read.plain else sum(size_of_batch(entry) or 1 for entry in entries)
            self._messages_per_entry = count // len(entries)

    def entries_for(self, messages: int) -> int:
        return -(-messages // (self._messages_per_entry or 1))


def take_prefix(entries: Sequence[ReceivedMessage], messages: int) -> int:
    """How many of them, from the first on, have so many messages, or as few more as can be."""
    for count, entry in enumerate(entries):
        if messages <= 0:
            return count
        messages -= size_of_batch(entry) or 1
    return len(entries)
