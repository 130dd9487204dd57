"""Selection of the deliverable part of an entry."""

from __future__ import annotations

from collections.abc import Iterable

from bookstand.cursor.cursor import Cursor
from bookstand.delivery.message.message_id import MessageId, members_of, position_of
from bookstand.delivery.message.received_message import Deliverable, PartialBatch, ReceivedMessage, size_of_batch
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.storage.format.position import Position


class BatchFilter:
    """Not thread-safe; callers hold the subscription's lock."""

    def __init__(self, cursor: Cursor, states: MessageStates) -> None:
        self._cursor = cursor
        self._states = states

    def select(self, entries: Iterable[ReceivedMessage], ids: Iterable[MessageId] = ()) -> list[Deliverable]:
        """Return the deliverable part of each entry: all of it, or the messages of a batch that are in no other state.

        ``ids`` are redeliveries. If it names messages of a batch, these are returned, unless they are acknowledged or
        already unacknowledged with a consumer.
        """
        chosen: dict[Position, set[int]] = {}
        for member in ids:
            if len(member) > 2:
                chosen.setdefault(position_of(member), set()).add(member[2])
        deliverables: list[Deliverable] = []
        metadata, is_batch = None, False
        for entry in entries:
            # Consecutive entries usually share one metadata object.
            if entry.metadata is not metadata:
                metadata = entry.metadata
                is_batch = metadata is not None and bool(metadata.num_messages_in_batch)
            size = size_of_batch(entry) if is_batch else 0
            if not size:
                deliverables.append(entry)
                continue
            position = entry.position
            # Empty if the batch was acknowledged after it was read.
            members = members_of(position, self._cursor.unacked_of_batch(position, size))
            some = chosen.get(position) if position not in ids else None
            if some is not None:
                members = [member for member in members if member[2] in some and member not in self._states.unacked]
            elif self._states.has_any_of(position, members):
                members = [member for member in members if member not in self._states]
            if members:
                deliverables.append(PartialBatch(entry, members))
        return deliverables
