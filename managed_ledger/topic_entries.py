"""Entries of a topic with their positions."""

from __future__ import annotations

from bookstand.storage.format.position import Position, positions_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class TopicEntry:
    """An entry of a topic: its position, and its stored bytes."""

    __slots__ = ("data", "position")

    def __init__(self, position: Position, data: bytes) -> None:
        self.position = position
        self.data = data

    def __repr__(self) -> str:
        return f"<TopicEntry {self.position}: {len(self.data)} bytes>"


class EntryRun:
    """Consecutive entries of one ledger, starting at entry ``first``."""

    __slots__ = ("data", "first", "ledger_id")

    def __init__(self, ledger_id: int, first: int, data: Sequence[bytes]) -> None:
        self.ledger_id = ledger_id
        self.first = first
        self.data = data

    def positions(self) -> list[Position]:
        return positions_in(self.ledger_id, range(self.first, self.first + len(self.data)))

    def entries(self) -> Iterator[TopicEntry]:
        return map(TopicEntry, self.positions(), self.data)


def runs_of(positions: Iterable[Position]) -> Iterator[tuple[int, int, int]]:
    """Split ascending positions into runs of consecutive entries: (ledger, first entry, last entry)."""
    run: tuple[int, int, int] | None = None
    for ledger_id, entry_id in positions:
        if run is not None and run[0] == ledger_id and run[2] + 1 == entry_id:
            run = ledger_id, run[1], entry_id
            continue
        if run is not None:
            yield run
        run = ledger_id, entry_id, entry_id
    if run is not None:
        yield run
