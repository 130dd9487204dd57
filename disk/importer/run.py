"""Import of bookies' disks into a store: ledgers with identical entries, and the nodes of their metadata.

An import compares first and writes afterwards. Before any change, it is rejected if the store has different data under
the id of a ledger or the path of a node; identical data is left unchanged. A commit holds many entries. Ledgers are
written in the order of their ids, and each exists from the commit that completes it. The nodes follow after all
ledgers, so that a topic never exists before its ledgers.

While an import is unfinished, the store has the node :data:`IMPORT_NODE`, which every commit writes and the last one
removes. To resume an interrupted import, run it again in the same way; the result is that of a single run. The new run
takes over from a run that is still active.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bookstand.disk.importer.diff import (
    IMPORT_NODE,
    ImportConflictError,
    ImportDiff,
    ImportUnfinishedError,
    MissingLedger,
)
from bookstand.disk.importer.plan import Plan, PlannedNode, Skipped
from bookstand.disk.importer.report import ImportReport
from bookstand.errors import (
    BookstandError,
    DiskFullError,
    MetadataVersionError,
    NoSuchNodeError,
    NotEnoughBookiesError,
)
from bookstand.ledger.validation import as_positive
from bookstand.storage.commit.node_operations import DeleteNode, PutNode
from bookstand.storage.commit.operations import MUST_NOT_EXIST, WriteBatch
from bookstand.storage.commit.restore_operations import RaiseNextLedger, RestoreEntries

if TYPE_CHECKING:
    from typing import Protocol

    from bookstand.disk.disks import Disks, StoredEntry
    from bookstand.storage.commit.operations import Operation
    from bookstand.storage.storage import Storage

    class HasStorage(Protocol):
        """A store, or a client of one."""

        @property
        def storage(self) -> Storage: ...


__all__ = ["IMPORT_NODE", "ImportConflictError", "ImportReport", "ImportUnfinishedError", "import_disks"]

Progress = Callable[[int, int], None]
"""Called with the number of entry bytes in the store and their total."""

COMMIT_BYTES = 4 << 20
# Maximum numbers of entries and operations in a commit, for small ones.
_COMMIT_ENTRIES = 20_000
_COMMIT_STEPS = 2_000


def import_disks(
    disks: Disks,
    store: HasStorage,
    *,
    dry_run: bool = False,
    ledgers: Iterable[int] | None = None,
    unlisted: bool = False,
    progress: Progress | None = None,
    commit_bytes: int = COMMIT_BYTES,
) -> ImportReport:
    """Import everything on the disks and in the dump of their metadata into a store.

    A closed ledger is imported up to its last entry. Any other ledger is imported with all existing entries, so that
    recovery finds its end when it is opened. Ledgers without metadata are deleted ones or garbage. They are skipped
    unless ``unlisted`` is set or there is no dump: then metadata is created that closes the ledger at its last entry.

    ``ledgers``: import only these, with or without metadata, and no nodes. ``dry_run``: change nothing, and report the
    changes that an import would make. ``commit_bytes``: approximate size of a commit, which is held in memory. The
    report lists data that cannot be imported. Entries of a closed ledger that are on none of the disks read as lost.
    """
    storage = store.storage
    commit_bytes = as_positive("commit_bytes", commit_bytes)
    if not dry_run:
        storage.check_writable()
    storage.flush_if_queued()
    plan = Plan(disks, ledgers, unlisted)
    look = ImportDiff(plan, storage)
    if not dry_run and look.has_work:
        _Import(plan, storage, look, progress, commit_bytes).run()
    return look.report(disks, dry_run)


class _Import:
    """Writer of the data that :class:`ImportDiff` found to be missing."""

    def __init__(
        self, plan: Plan, storage: Storage, look: ImportDiff, progress: Progress | None, commit_bytes: int
    ) -> None:
        self._commit_bytes = commit_bytes
        self._plan = plan
        self._storage = storage
        self._look = look
        self._progress = progress
        self._total = look.bytes_there + look.bytes_to_come
        self._done = look.bytes_there
        # Version of IMPORT_NODE as last written by this run; any other means that another run has taken over.
        self._version = MUST_NOT_EXIST if look.unfinished is None else look.unfinished
        # Contents of the current commit.
        self._operations: list[Operation] = []
        self._entries = 0
        self._bytes = 0
        self._at: int | None = None

    def run(self) -> None:
        self._operations.append(RaiseNextLedger(self._look.next_ledger))
        self._commit()
        for missing in self._look.ledgers:
            self._at = missing.ledger_id
            self._write_ledger(missing)
        self._at = None
        wanted = set(self._look.nodes)
        for node in self._plan.nodes() if wanted else ():
            if isinstance(node, PlannedNode) and node.path in wanted:
                self._add(PutNode(node.path, node.value, MUST_NOT_EXIST), len(node.value))
        self._commit(last=True)

    def _write_ledger(self, missing: MissingLedger) -> None:
        ledger_id, behind = missing.ledger_id, missing.behind
        if missing.deleted:
            self._storage.collect(ledger_id)
        target = self._plan.target(ledger_id)
        if isinstance(target, Skipped):
            raise ImportConflictError(f"the disks have changed meanwhile: {target}")
        for some in _bunches(target.stored(behind + 1), self._room):
            ids = [entry.entry_id for entry in some]
            stored = [entry.stored for entry in some]
            lac = max(entry.lac for entry in some)
            size = sum(map(len, stored))
            self._entries += len(some)
            self._done += size
            self._add(RestoreEntries(ledger_id, behind, ids, stored, lac), size)
            behind = ids[-1]
        self._add(target.restored, len(target.restored.metadata))

    def _room(self) -> tuple[int, int]:
        """Return the number of bytes and entries that fit into the current commit."""
        return self._commit_bytes - self._bytes, _COMMIT_ENTRIES - self._entries

    def _add(self, operation: Operation, size: int) -> None:
        self._operations.append(operation)
        self._bytes += size
        largest, most = self._room()
        if largest <= 0 or most <= 0 or len(self._operations) >= _COMMIT_STEPS:
            self._commit()

    def _commit(self, last: bool = False) -> None:
        mark: Operation
        if last:
            mark = DeleteNode(IMPORT_NODE, self._version)
        else:
            mark = PutNode(IMPORT_NODE, self._mark(), self._version)
        try:
            # The mark is checked first: a run must not write after another one has taken over.
            self._storage.apply(WriteBatch(mark, *self._operations))
        except (MetadataVersionError, NoSuchNodeError) as error:
            raise self._why_refused(error) from error
        except NotEnoughBookiesError as error:
            if not isinstance(error.__cause__, DiskFullError):
                raise
            raise NotEnoughBookiesError(self._stopped(error)) from error.__cause__
        self._version += 1
        self._operations = []
        self._entries = self._bytes = 0
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _why_refused(self, error: BookstandError) -> BookstandError:
        found = self._storage.node(IMPORT_NODE)
        if (MUST_NOT_EXIST if found is None else found[1]) != self._version:
            return ImportUnfinishedError(f"another import into the store {self._storage.path} has taken over")
        return ImportConflictError(f"the store has changed while it was imported into: {error}")

    def _stopped(self, error: BookstandError) -> str:
        where = "" if self._at is None else f" at ledger {self._at}"
        return f"the import has stopped{where}, because no space is left: {error}. Free some space and run it again"

    def _mark(self) -> bytes:
        told: dict[str, Any] = {
            "what": "an import of bookies' disks that is not finished; run it again",
            "fingerprint": self._look.fingerprint,
            "bytes": self._done,
            "of": self._total,
        }
        if self._at is not None:
            told["at_ledger"] = self._at
        return json.dumps(told).encode()


def _bunches(entries: Iterator[StoredEntry], room: Callable[[], tuple[int, int]]) -> Iterator[list[StoredEntry]]:
    """Yield lists of entries that fit into the current commit, each with at least one entry."""
    bunch: list[StoredEntry] = []
    size = 0
    largest, most = room()
    for entry in entries:
        bunch.append(entry)
        size += len(entry.stored)
        if size >= largest or len(bunch) >= most:
            yield bunch
            bunch, size = [], 0
            largest, most = room()
    if bunch:
        yield bunch
