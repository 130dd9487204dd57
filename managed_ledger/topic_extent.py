"""Extent of a topic: its ledgers and the number of entries in each. No I/O.

Ledger ids ascend, with gaps, and a ledger may be empty. The *rank* of an entry is the number of entries up to and
including it. The number of entries between two positions is the difference of their ranks. Each operation takes time
logarithmic in the number of ledgers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate

from bookstand.storage.format.position import Position

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class TopicExtent:
    """Extent of a topic. ``ledgers`` are pairs (ledger id, number of entries) with ascending ids."""

    __slots__ = ("_before", "_counts", "_ids")

    def __init__(self, ledgers: Iterable[tuple[int, int]]) -> None:
        series = list(ledgers)
        self._ids = [ledger_id for ledger_id, _ in series]
        self._counts = [entries for _, entries in series]
        # For each ledger, the number of entries in the ledgers before it.
        self._before = list(accumulate(self._counts, initial=0))[:-1]

    # -- ledgers ---------------------------------------------------------------------------------------------------

    @property
    def ledger_ids(self) -> list[int]:
        return list(self._ids)

    @property
    def total(self) -> int:
        """Number of entries."""
        return self._before[-1] + self._counts[-1] if self._ids else 0

    def entries(self, ledger_id: int) -> int | None:
        """Return the number of entries in the ledger, or None if the topic does not have it."""
        place = bisect_left(self._ids, ledger_id)
        found = place < len(self._ids) and self._ids[place] == ledger_id
        return self._counts[place] if found else None

    def append(self, ledger_id: int) -> None:
        """Add an empty ledger at the end."""
        self._before.append(self.total)
        self._ids.append(ledger_id)
        self._counts.append(0)

    def resize_last(self, entries: int) -> None:
        """Set the number of entries in the last ledger."""
        self._counts[-1] = entries

    # -- positions -------------------------------------------------------------------------------------------------

    def has(self, position: Position) -> bool:
        """Return True if an entry exists at the position."""
        return 0 <= position.entry_id < (self.entries(position.ledger_id) or 0)

    def rank(self, position: Position) -> int:
        """Return the number of entries up to and including the position."""
        place = bisect_right(self._ids, position.ledger_id) - 1
        if place < 0:
            return 0
        entries = self._counts[place]
        if self._ids[place] == position.ledger_id:
            entries = min(entries, max(0, position.entry_id + 1))
        return self._before[place] + entries

    def at(self, rank: int) -> Position | None:
        """Return the position of the entry with the rank, which starts at 1; None if no entry has it."""
        if not 0 < rank <= self.total:
            return None
        place = bisect_left(self._before, rank) - 1
        return Position(self._ids[place], rank - self._before[place] - 1)

    def between(self, after: Position, upto: Position) -> int:
        """Return the number of entries after ``after``, up to and including ``upto``."""
        return max(0, self.rank(upto) - self.rank(after))

    @property
    def first(self) -> Position | None:
        return self.at(1)

    @property
    def last(self) -> Position | None:
        return self.at(self.total)

    def following(self, position: Position) -> Position | None:
        """Return the position of the first entry after ``position``, or None."""
        return self.at(self.rank(position) + 1)

    def preceding(self, position: Position) -> Position | None:
        """Return the position of the last entry before ``position``, or None."""
        return self.at(self.rank(position.previous))
