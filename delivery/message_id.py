"""What a message goes by: the position of its entry, and in a batch which of the entry's it is."""

from __future__ import annotations

from typing import NamedTuple

from bookstand.storage.position import Position


class Member(NamedTuple):
    """One of a batch. Ordered as positions are, and behind its entry's."""

    ledger_id: int
    entry_id: int
    batch_index: int


MessageId = Position | Member


def position_of(message: MessageId) -> Position:
    return Position(message[0], message[1]) if len(message) > 2 else message
