"""Which entries a topic has: a series of ledgers, each with so many of them. Plain values, no I/O.

Ledger ids rise along the series, with gaps, and a ledger may be empty. An entry's *rank* is how many entries there are
up to it and with it, so that the entries between two positions are counted by a subtraction, and everything here costs
the logarithm of the number of ledgers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate

from bookstand.storage.format.position import Position

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class TopicExtent:
    """``ledgers`` are (ledger id, number of entries), ids rising. Only the last ledger grows."""

    __slots__ = ("_before", "_counts", "_ids")

    def __init__(self, ledgers: Iterable[tuple[int, int]]) -> None:
        series = list(ledgers)
        self._ids = [ledger_id for ledger_id, _ in series]
        self._counts = [entries for _, entries in series]
        # Entries in all ledgers before this one.
        self._before = list(accumulate(self._counts, initial=0))[:-1]

    # -- the series ------------------------------------------------------------------------------------------------

    @property
    def ledger_ids(self) -> list[int]:
        return list(self._ids)

    @property
    def total(self) -> int:
        """The number of entries."""
        return self._before[-1] + self._counts[-1] if self._ids else 0

    def entries(self, ledger_id: int) -> int | None:
        """How many entries the ledger has; None if it is none of the series."""
        place = bisect_left(self._ids, ledger_id)
        found = place < len(self._ids) and self._ids[place] == ledger_id
        return self._counts[place] if found else None

    def append(self, ledger_id: int) -> None:
        """A new, empty ledger at the end."""
        self._before.append(self.total)
        self._ids.append(ledger_id)
        self._counts.append(0)

    def resize_last(self, entries: int) -> None:
        """The last ledger has so many entries by now."""
        self._counts[-1] = entries

    # -- positions -------------------------------------------------------------------------------------------------

    def has(self, position: Position) -> bool:
        """Whether there is an entry at the position."""
        return 0 <= position.entry_id < (self.entries(position.ledger_id) or 0)

    def rank(self, position: Position) -> int:
        """How many entries there are up to the position, and with it."""
        place = bisect_right(self._ids, position.ledger_id) - 1
        if place < 0:
            return 0
        entries = self._counts[place]
        if self._ids[place] == position.ledger_id:
            entries = min(entries, max(0, position.entry_id + 1))
        return self._before[place] + entries

    def at(self, rank: int) -> Position | None:
        """The entry of that rank, from 1 on; None if there are fewer."""
        if not 0 < rank <= self.total:
            return None
        place = bisect_left(self._before, rank) - 1
        return Position(self._ids[place], rank - self._before[place] - 1)

    def between(self, after: Position, upto: Position) -> int:
        """How many entries there are behind ``after``, up to ``upto`` and with it; 0 if that is before."""
        return max(0, self.rank(upto) - self.rank(after))

    @property
    def first(self) -> Position | None:
        return self.at(1)

    @property
    def last(self) -> Position | None:
        return self.at(self.total)

    def following(self, position: Position) -> Position | None:
        """The first entry behind the position, past empty and missing ledgers; None at the end."""
        return self.at(self.rank(position) + 1)

    def preceding(self, position: Position) -> Position | None:
        """The last entry before the position; None at the beginning."""
        return self.at(self.rank(position.previous))
