"""Which messages were negatively acknowledged, and wait to come again. Plain state, no I/O.

What counts the time gives back positions: of a batch it does not know which of its messages is meant.
"""

from __future__ import annotations

from collections.abc import Iterable

from bookstand.delivery.message_id import Member, MessageId, position_of
from bookstand.storage.position import Position

_WHOLE = -1


class Nacked:
    """Its owner has a lock."""

    def __init__(self) -> None:
        # For each position the members, and until when each waits.
        self._until: dict[Position, dict[int, int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._until.values()))

    def __contains__(self, message: MessageId) -> bool:
        members = self._until.get(position_of(message))
        return members is not None and (_WHOLE in members or (len(message) > 2 and message[2] in members))

    def has_any_of(self, position: Position) -> bool:
        """The entry, or a member of it."""
        return position in self._until

    def add(self, position: Position, batch_index: int, until: int) -> None:
        """``batch_index`` is -1 for the whole entry."""
        self._until.setdefault(position, {})[batch_index] = until

    def add_whole(self, positions: Iterable[Position]) -> None:
        """Of these it is not known for which of their messages they wait, nor until when: they come as a whole."""
        for position in positions:
            self.add(position, _WHOLE, 0)

    def due(self, position: Position, now: int) -> list[MessageId]:
        """What waits no longer of an entry that was given back: nothing, if all of it came before."""
        members = self._until.get(position, {})
        due = [index for index, until in members.items() if until <= now]
        for index in due:
            del members[index]
        if not members:
            self._until.pop(position, None)
        return [position if index == _WHOLE else Member(*position, index) for index in due]

    def positions(self) -> list[Position]:
        return list(self._until)
