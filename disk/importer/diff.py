"""Comparison of an import plan with the store, which determines the work to do. Nothing is changed."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from bookstand.disk.importer.plan import Plan, PlannedLedger, PlannedNode, Skipped
from bookstand.disk.importer.report import ImportReport, LedgerNote
from bookstand.errors import BookstandError, IllegalOperationError
from bookstand.storage.format import schema
from bookstand.storage.format.ledger_state import LedgerState

if TYPE_CHECKING:
    from bookstand.disk.disks import Disks
    from bookstand.storage.storage import Storage

IMPORT_NODE = "/bookstand/import"
"""Exists while an import is unfinished, and holds its progress."""

# Maximum number of conflicts in an error message.
_NAMED = 5


class ImportConflictError(BookstandError):
    """The store has different data under the same id or path."""


class ImportUnfinishedError(IllegalOperationError):
    """The store has an unfinished import of other data, or another run has taken over this one."""


class MissingLedger(NamedTuple):
    """A ledger to write, starting after entry ``behind``."""

    ledger_id: int
    behind: int
    deleted: bool
    """True if a deleted ledger with this id must be garbage-collected first."""


class Counts:
    """Amounts of planned data that exist, or that are missing."""

    __slots__ = ("bytes", "entries", "ledgers", "nodes")

    def __init__(self) -> None:
        self.ledgers = self.entries = self.bytes = self.nodes = 0

    def add(self, entries: int, size: int) -> None:
        self.entries += entries
        self.bytes += size


class ImportDiff:
    """Work of an import. Raises :class:`ImportConflictError` for different data and :class:`ImportUnfinishedError`."""

    def __init__(self, plan: Plan, storage: Storage) -> None:
        self._storage = storage
        self._digest = sha256()
        self._conflicts: list[str] = []
        self._notes: list[LedgerNote] = []
        self._left_out: list[Skipped] = []
        self._rewritten: list[str] = []
        self._there, self._to_come = Counts(), Counts()
        self._highest = -1
        # Data that can only exist if an import was interrupted.
        self._begun: str | None = None
        self.ledgers: list[MissingLedger] = []
        self.nodes: list[str] = []
        for ledger_id in plan.ledger_ids:
            self._look_at_ledger(plan.target(ledger_id))
        for node in plan.nodes():
            self._look_at_node(node)
        self.unfinished = self._look_for_unfinished()
        if self._conflicts:
            named = "; ".join(self._conflicts[:_NAMED])
            more = len(self._conflicts) - _NAMED
            raise ImportConflictError(
                f"nothing was imported, because the store holds conflicting data: {named}"
                + (f"; and {more} more" if more > 0 else "")
            )

    @property
    def fingerprint(self) -> str:
        """Hash of the planned data, which differs for imports with different results."""
        return self._digest.hexdigest()

    @property
    def next_ledger(self) -> int:
        """Lowest id for new ledgers after the import."""
        return min(self._highest + 1, schema.MAX_LEDGER_ID)

    @property
    def has_work(self) -> bool:
        next_of_store = int.from_bytes(self._storage.meta(schema.META_NEXT_LEDGER) or b"", "big")
        unfinished = self.unfinished is not None
        return unfinished or bool(self.ledgers or self.nodes) or next_of_store < self.next_ledger

    @property
    def bytes_there(self) -> int:
        return self._there.bytes

    @property
    def bytes_to_come(self) -> int:
        return self._to_come.bytes

    # -- ledgers -----------------------------------------------------------------------------------------------------

    def _look_at_ledger(self, target: PlannedLedger | Skipped) -> None:
        if isinstance(target, Skipped):
            self._left_out.append(target)
            return
        ledger_id, extent = target.ledger.id, target.ledger.extent
        self._highest = max(self._highest, ledger_id)
        self._digest.update(b"ledger %d " % ledger_id + target.restored.metadata + target.ledger_state.pack())
        if extent.missing or extent.too_few or extent.doubts:
            self._notes.append(LedgerNote(ledger_id, extent.missing, extent.too_few, extent.doubts))
        found = self._storage.metadata(ledger_id)
        known = self._storage.state(ledger_id)
        behind = -1 if known is None else known.last_entry
        deleted = found is None and known is not None and bool(known.deleted_at)
        if deleted:
            behind = -1
        elif found is not None:
            different = _difference(target, found[0], known)
            if different is not None:
                self._conflicts.append(different)
                return
        compared = _compare(self._storage, target, behind)
        if isinstance(compared, str):
            self._conflicts.append(compared)
            return
        entries, size = compared
        self._there.add(entries, size)
        self._to_come.add(target.entries - entries, target.stored_bytes - size)
        if found is not None:
            self._there.ledgers += 1
            return
        self._to_come.ledgers += 1
        self.ledgers.append(MissingLedger(ledger_id, behind, deleted))
        if behind >= 0:
            self._begun = f"ledger {ledger_id} has entries, and no metadata"

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _look_at_node(self, node: PlannedNode | Skipped) -> None:
        if isinstance(node, Skipped):
            self._left_out.append(node)
            return
        if node.path == IMPORT_NODE:
            return
        self._digest.update(f"node {node.path} ".encode() + sha256(node.value).digest())
        if node.rewritten:
            self._rewritten.append(node.path)
        found = self._storage.node(node.path)
        if found is None:
            self.nodes.append(node.path)
            self._to_come.nodes += 1
        elif found[0] == node.value:
            self._there.nodes += 1
        else:
            self._conflicts.append(f"node {node.path} has another value")

    def _look_for_unfinished(self) -> int | None:
        """Return the version of the node that an interrupted run of this import left, or None."""
        found = self._storage.node(IMPORT_NODE)
        if found is None:
            if self._begun is not None:
                self._conflicts.append(self._begun)
            return None
        if _fingerprint_in(found[0]) != self.fingerprint:
            raise ImportUnfinishedError(
                "the store has an unfinished import of something else: other disks, other metadata or other options. "
                f"Run that one again to its end, or remove the node {IMPORT_NODE} to give it up"
            )
        return found[1]

    # -- what was found ----------------------------------------------------------------------------------------------

    def report(self, disks: Disks, dry_run: bool) -> ImportReport:
        return ImportReport(
            dry_run=dry_run,
            ledgers=self._to_come.ledgers,
            entries=self._to_come.entries,
            bytes=self._to_come.bytes,
            nodes=self._to_come.nodes,
            ledgers_there=self._there.ledgers,
            entries_there=self._there.entries,
            nodes_there=self._there.nodes,
            resumed=self.unfinished is not None,
            left_out=tuple(self._left_out),
            notes=tuple(self._notes),
            rewritten=tuple(self._rewritten),
            damage=tuple(dict.fromkeys(disks.damage)),
        )


def _fingerprint_in(value: bytes) -> str | None:
    try:
        found = json.loads(value)["fingerprint"]
    except (ValueError, TypeError, KeyError):
        return None
    return found if isinstance(found, str) else None


def _difference(target: PlannedLedger, metadata: bytes, known: LedgerState | None) -> str | None:
    """Describe a difference other than in entries between an existing ledger and its target; None if equal."""
    if metadata != target.restored.metadata:
        return f"ledger {target.ledger.id} has other metadata"
    # The incarnation of the id does not depend on the contents of the ledger.
    names = [name for name in LedgerState.__slots__ if name != "incarnation"]
    different = [name for name in names if getattr(known, name, None) != getattr(target.ledger_state, name)]
    if different:
        return f"ledger {target.ledger.id} has another state: its {', '.join(different)}"
    return None


def _compare(storage: Storage, target: PlannedLedger, upto: int) -> tuple[int, int] | str:
    """Count the existing entries and their bytes if all up to ``upto`` are equal; otherwise describe the difference."""
    ledger_id = target.ledger.id
    count = stored_bytes = 0
    wanted = target.stored(0, upto) if upto >= 0 else iter(())
    for first, stored in storage.runs(ledger_id, upto):
        for entry_id, here in enumerate(stored, first):
            entry = next(wanted, None)
            if entry is None or entry.entry_id != entry_id or entry.stored != here:
                return f"ledger {ledger_id} is another one from entry {entry_id} on"
            count += 1
            stored_bytes += len(here)
    more = next(wanted, None)
    return (count, stored_bytes) if more is None else f"ledger {ledger_id} has no entry {more.entry_id}"
