"""Report of an import or a dry run: counts, and a list of everything that was not imported unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from bookstand.disk.bookies.ledger_end import Ranges, entries_are
from bookstand.disk.damage import Damage
from bookstand.disk.importer.plan import Skipped


class LedgerNote(NamedTuple):
    """Remarks about an imported ledger."""

    ledger_id: int
    missing: Ranges
    """Entries up to the end that are on none of the disks. Reading one reports it as lost, not as never written."""
    too_few: Ranges
    """Entries with fewer copies than an acknowledgment requires."""
    doubts: tuple[str, ...]
    """Questions that the disks leave open."""

    def __str__(self) -> str:
        said = list(self.doubts)
        if self.missing:
            said.insert(0, f"{entries_are(self.missing)} on none of the disks")
        if self.too_few:
            said.append(f"{entries_are(self.too_few, 'has', 'have')} fewer copies than an acknowledgment takes")
        return f"ledger {self.ledger_id}: {'; '.join(said)}"


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Result of an import. A dry run counts data that would be written. Existing data is counted separately."""

    dry_run: bool
    ledgers: int
    entries: int
    bytes: int
    """Size of the stored entries, including headers and digests."""
    nodes: int
    ledgers_there: int
    entries_there: int
    nodes_there: int
    resumed: bool
    """True if this run continued an interrupted one."""
    left_out: tuple[Skipped, ...]
    notes: tuple[LedgerNote, ...]
    rewritten: tuple[str, ...]
    """Nodes of cursors whose records are decompressed, because Pulsar 4.2.4 cannot load compressed strings."""
    damage: tuple[Damage, ...]

    @property
    def changed(self) -> bool:
        """True if anything was written, or would be in a dry run."""
        return bool(self.ledgers or self.entries or self.nodes or self.resumed)

    @property
    def missing(self) -> dict[int, Ranges]:
        """Entries up to the end that are on none of the disks, by ledger."""
        return {note.ledger_id: note.missing for note in self.notes if note.missing}

    @property
    def too_few(self) -> dict[int, Ranges]:
        """Entries with fewer copies than an acknowledgment requires, by ledger."""
        return {note.ledger_id: note.too_few for note in self.notes if note.too_few}

    def lines(self) -> Iterator[str]:
        """Yield the report as lines of text."""
        would = "would be " if self.dry_run else ""
        if self.changed:
            yield (
                f"{self.ledgers} ledgers, {self.entries} entries of {self.bytes} bytes and {self.nodes} nodes "
                f"{would}imported"
            )
        if self.resumed:
            yield "an interrupted import " + ("would be resumed" if self.dry_run else "was resumed")
        if self.ledgers_there or self.entries_there or self.nodes_there:
            yield (f"existing: {self.ledgers_there} ledgers, {self.entries_there} entries and {self.nodes_there} nodes")
        elif not self.changed:
            yield "there is nothing to import"
        yield from (f"left out: {one}" for one in self.left_out)
        yield from map(str, self.notes)
        yield from (
            f"written uncompressed, because Pulsar 4.2.4 cannot load it compressed: {path}" for path in self.rewritten
        )
        yield from (f"damage: {one}" for one in self.damage)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a dict that can be serialized as JSON."""
        return asdict(self) | {
            "left_out": [one._asdict() for one in self.left_out],
            "notes": [
                {
                    "ledger": note.ledger_id,
                    "missing": [list(pair) for pair in note.missing],
                    "too_few": [list(pair) for pair in note.too_few],
                    "doubts": list(note.doubts),
                }
                for note in self.notes
            ],
            "rewritten": list(self.rewritten),
            "damage": [one._asdict() for one in self.damage],
        }
