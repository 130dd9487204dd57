"""What of an entry is to be handed out: the whole of it, or those messages of a batch that are nowhere else."""

from __future__ import annotations

from collections.abc import Iterable

from bookstand.cursor.cursor import Cursor
from bookstand.delivery.message.message_id import MessageId, members_of, position_of
from bookstand.delivery.message.received_message import Deliverable, PartialBatch, ReceivedMessage, size_of_batch
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.storage.format.position import Position


class BatchFilter:
    """Its owner has a lock."""

    def __init__(self, cursor: Cursor, where: MessageStates) -> None:
        self._cursor = cursor
        self._where = where

    def of(self, entries: Iterable[ReceivedMessage], ids: Iterable[MessageId] = ()) -> list[Deliverable]:
        """Of batches the members in ``ids``, where any are; else those that are nowhere else. What is acknowledged, or
        out, is in none."""
        chosen: dict[Position, set[int]] = {}
        for member in ids:
            if len(member) > 2:
                chosen.setdefault(position_of(member), set()).add(member[2])
        portions: list[Deliverable] = []
        metadata, says_batch = None, False
        for entry in entries:
            # Neighboring entries mostly share their metadata, but not the size of their payload.
            if entry.metadata is not metadata:
                metadata = entry.metadata
                says_batch = metadata is not None and bool(metadata.num_messages_in_batch)
            size = size_of_batch(entry) if says_batch else 0
            if not size:
                portions.append(entry)
                continue
            position = entry.position
            # The whole entry may have been acknowledged since it was read.
            members = members_of(position, self._cursor.unacked_of_batch(position, size))
            some = chosen.get(position) if position not in ids else None
            if some is not None:
                members = [member for member in members if member[2] in some and member not in self._where.out]
            elif self._where.has_any_of(position, members):
                members = [member for member in members if member not in self._where]
            if members:
                portions.append(PartialBatch(entry, members))
        return portions
