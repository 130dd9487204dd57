"""Topics of a cluster on its bookies' disks: from their records in the metadata, or without metadata from groups of
ledgers that their entries show to belong together."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from bookstand.disk.damage import Damage
from bookstand.disk.topics.messages import NO_PLACE, DiskMessage, Whole, joined, read
from bookstand.errors import IncorrectParameterError, NoSuchLedgerError
from bookstand.managed_ledger.records import LedgerInfo, ManagedLedgerInfo
from bookstand.managed_ledger.topic_name import ROOT, node_of
from bookstand.proto.expansion import ExpansionLimits
from bookstand.storage.format.position import Position

if TYPE_CHECKING:
    from bookstand.disk.disks import DiskLedger, Disks, StoredEntry
    from bookstand.disk.topics.ledger_kind import Group


class DiskTopic:
    """A topic: its ledgers in order, and their contents. Damage is reported to ``disks.damage``."""

    def __init__(self, disks: Disks, name: str, info: ManagedLedgerInfo) -> None:
        self.disks = disks
        self.name = name
        self.info = info
        self._told: set[Damage] = set()

    @property
    def limits(self) -> ExpansionLimits:
        """Expansion limits for reading the topic."""
        return self.disks.limits

    def __repr__(self) -> str:
        return f"<DiskTopic {self.name}, {len(self.info.ledgers)} ledgers>"

    @property
    def managed_ledger(self) -> str:
        """Name of the managed ledger, as in the labels of ledgers."""
        return node_of(self.name).removeprefix(f"{ROOT}/")

    def tell(self, damage: Damage) -> None:
        """Report damage, but only the first time it is found."""
        if damage not in self._told:
            self._told.add(damage)
            self.disks.damage.append(damage)

    def report(self, what: str, ledger_id: int = -1, entry_id: int = -1) -> None:
        self.tell(Damage(self.name, NO_PLACE, what, ledger_id, entry_id))

    def ledgers(self) -> list[int]:
        return [ledger.ledger_id for ledger in self.info.ledgers]

    def ledger(self, ledger_id: int) -> DiskLedger | None:
        """Return a ledger; None if it is neither on the disks nor in the metadata."""
        try:
            return self.disks.ledger(ledger_id)
        except NoSuchLedgerError:
            return None

    @cached_property
    def entry_counts(self) -> dict[int, int]:
        """Number of entries of each ledger, including lost ones; from the record if the disks have no trace of it."""
        counts = {}
        for info in self.info.ledgers:
            ledger = self.ledger(info.ledger_id)
            counts[info.ledger_id] = info.entries if ledger is None else ledger.extent.last_entry + 1
        return counts

    @cached_property
    def end(self) -> Position:
        """Position after the last entry."""
        last = Position(-1, 0)
        for ledger_id, count in self.entry_counts.items():
            if count:
                last = Position(ledger_id, count)
        return last

    def behind(self, position: Position) -> Position:
        """Return the position of the first entry after ``position``, or :attr:`end`. Several positions precede the same
        entry, so positions are compared by this one."""
        ledger_id, entry_id = position
        for candidate, count in self.entry_counts.items():
            first = entry_id + 1 if candidate == ledger_id else 0
            if candidate >= ledger_id and first < count:
                return Position(candidate, first)
        return self.end

    def entries(self, first: Position | None = None) -> Iterator[StoredEntry]:
        """Yield the entries from a position on, ledger by ledger. Missing entries are reported."""
        for info in self.info.ledgers:
            ledger_id = info.ledger_id
            start = 0
            if first is not None:
                if ledger_id < first.ledger_id:
                    continue
                start = first.entry_id if ledger_id == first.ledger_id else 0
            ledger = self.ledger(ledger_id)
            if ledger is None:
                if info.entries:
                    self.report(f"its {info.entries} entries are missing", ledger_id)
                continue
            there = ledger.extent.last_entry + 1
            if ledger.metadata is None and there < info.entries:
                self.report(f"of its {info.entries} entries the first {there} are on the disks", ledger_id)
            for lost, last in ledger.extent.missing:
                if last >= start:
                    self.report(f"entries {lost} to {last} are missing", ledger_id)
            yield from ledger.entries(max(start, 0))

    def messages(self, first: Position | None = None) -> Iterator[DiskMessage]:
        """Yield each entry as a message, a batch of messages, or a chunk of a message, in order."""
        for entry in self.entries(first):
            yield read(self.name, entry, self.tell, self.limits)

    def joined(self, first: Position | None = None) -> Iterator[Whole]:
        """Yield the messages with chunks reassembled."""
        return joined(self.messages(first), self.tell)

    def cursors(self) -> list[str]:
        """Return the names of all cursors, not only of subscriptions."""
        return [] if self.disks.dump is None else self.disks.dump.cursors(self.name)


def topics(disks: Disks) -> list[DiskTopic]:
    """Return the topics with readable records. The dump reports the others. Without metadata, use :func:`grouped`."""
    if disks.dump is None:
        return []
    return [DiskTopic(disks, name, disks.dump.topic_info(name)) for name in disks.dump.topics]


def topic(disks: Disks, name: str) -> DiskTopic:
    """Return a topic by name."""
    if disks.dump is None:
        raise IncorrectParameterError("without metadata the names of topics are unknown")
    return DiskTopic(disks, name, disks.dump.topic_info(name))


def grouped(disks: Disks, group: Group) -> DiskTopic:
    """Return a group of ledgers (:func:`bookstand.disk.topics.ledger_kind.groups`) as a topic without a real name."""
    name = f"ledgers {group.ledgers[0]} to {group.ledgers[-1]}" if group.ledgers else "no ledger"
    return DiskTopic(disks, name, ManagedLedgerInfo([LedgerInfo(ledger_id) for ledger_id in group.ledgers]))
