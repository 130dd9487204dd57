"""Message ids: the position of an entry, with a batch index for a message of a batch."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import NamedTuple

from bookstand.storage.format.position import Position


class BatchMessageId(NamedTuple):
    """Id of one message of a batch. It sorts after the position of its entry."""

    ledger_id: int
    entry_id: int
    batch_index: int


MessageId = Position | BatchMessageId


def members_of(position: Position, batch_indexes: Iterable[int]) -> list[BatchMessageId]:
    """Ids of messages of one batch, created without a Python call for each."""
    ledger_id, entry_id = position
    made = zip(repeat(ledger_id), repeat(entry_id), batch_indexes, strict=False)
    return list(map(tuple.__new__, repeat(BatchMessageId), made))


def position_of(message: MessageId) -> Position:
    return Position(message[0], message[1]) if len(message) > 2 else message
