"""Position of an entry in a topic: its ledger, and its id in that ledger."""

from __future__ import annotations

from collections import namedtuple
from itertools import repeat

from bookstand.storage.format.schema import MAX_ENTRY_ID, MAX_LEDGER_ID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NamedTuple

    class _Fields(NamedTuple):
        ledger_id: int
        entry_id: int

else:
    _Fields = namedtuple("_Fields", ["ledger_id", "entry_id"])


class Position(_Fields):
    """A position in a topic, ordered like the entries. Entry −1 is the position before a ledger's first entry."""

    __slots__ = ()

    @property
    def next(self) -> Position:
        """Position after this one, which need not have an entry."""
        return Position(self.ledger_id, self.entry_id + 1)

    @property
    def previous(self) -> Position:
        """Position before this one."""
        return Position(self.ledger_id, self.entry_id - 1)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


def positions_in(ledger_id: int, entry_ids: Iterable[int]) -> list[Position]:
    """Positions in one ledger, created without a Python call for each."""
    return list(map(tuple.__new__, repeat(Position), zip(repeat(ledger_id), entry_ids, strict=False)))


EARLIEST = Position(-1, -1)
"""Position before all entries."""

LATEST = Position(MAX_LEDGER_ID, MAX_ENTRY_ID)
"""Position after all entries, including future ones."""
