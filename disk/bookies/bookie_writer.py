"""Writer of a bookie's folders and metadata nodes for an export plan.

The journal has no entries. It holds the facts about ledgers that a bookie stores in its database, and is replayed when
the bookie starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from bookstand.disk.bookies.bookie_directory import CURRENT, LastMark, mark_bytes
from bookstand.disk.bookies.copy_catalog import Progress
from bookstand.disk.damage import Report
from bookstand.disk.exporter.plan import Plan
from bookstand.disk.format import journal
from bookstand.disk.format.cookie import FILE as COOKIE_FILE
from bookstand.disk.format.entry_log_writer import EntryLogWriter
from bookstand.disk.metadata.dump import DumpNode, ledger_path
from bookstand.disk.stored_ledger import StoredLedger
from bookstand.ledger.cluster import cookie as cookies
from bookstand.ledger.cluster import paths
from bookstand.ledger.cluster.cookie import Cookie
from bookstand.storage.format.ledger_metadata import LedgerMetadata, serialize
from bookstand.storage.process.data_files import sync_file

_JOURNAL, _LEDGERS = "journal", "ledgers"
_JOURNAL_ID = 1
# Empty databases of DbLedgerStorage: the tools that rebuild them replace existing ones.
_DATABASES = ("ledgers", "locations")


class BookieWriter:
    """Writer of one bookie: files are written below ``place`` and moved to ``home`` later."""

    def __init__(self, place: Path, name: str, home: Path, instance_id: str) -> None:
        self.name = name
        self.instance_id = instance_id
        self.cookie = cookies.serialize(
            Cookie(name, (str(home / _JOURNAL),), (str(home / _LEDGERS),), instance_id),
        )
        self._place = place
        self._journal = place / _JOURNAL / CURRENT
        self._ledgers = place / _LEDGERS / CURRENT
        self.ledger_nodes: list[DumpNode] = []

    def write(self, plan: Plan, log_bytes: int, report: Report, progress: Progress | None) -> EntryLogWriter:
        for current in (self._journal, self._ledgers):
            current.mkdir(parents=True)
            _write(current / COOKIE_FILE, self.cookie)
        for name in _DATABASES:
            (self._ledgers / name).mkdir()
        with EntryLogWriter(self._ledgers, log_bytes) as logs:
            specials = self._copy(plan, logs, report, progress)
        _write(self._ledgers / "lastId", f"{len(logs.logs) - 1:x}\n".encode())
        # The facts in the journal are not in the databases yet, so replay starts at its beginning.
        _write(self._ledgers / "lastMark", mark_bytes(LastMark(_JOURNAL_ID, 0)))
        _write(self._journal / f"{_JOURNAL_ID:x}.txn", journal.whole(specials))
        for current in (self._journal, self._ledgers):
            for folder in (current, current.parent):
                sync_file(str(folder))
        sync_file(str(self._place))
        return logs

    def count(self, plan: Plan, log_bytes: int, report: Report, progress: Progress | None) -> EntryLogWriter:
        """Count and report like :meth:`write`, without writing."""
        with EntryLogWriter(None, log_bytes) as logs:
            self._copy(plan, logs, report, progress)
        return logs

    def _copy(self, plan: Plan, logs: EntryLogWriter, report: Report, progress: Progress | None) -> list[bytes]:
        """Copy the entries to the logs; return the records of the journal."""
        specials: list[bytes] = []
        ids = sorted({*plan.ledgers, *plan.snapshots})
        for number, ledger_id in enumerate(ids, 1):
            snapshot = plan.snapshots.get(ledger_id)
            if snapshot is not None:
                metadata, stored = snapshot.make()
                logs.add(ledger_id, [stored])
                self._add_node(metadata)
            elif (ledger := plan.ledger(ledger_id)) is not None:
                for entries in ledger.runs(report):
                    logs.add(ledger_id, entries)
                self._add_node(ledger.metadata)
                specials += _specials(ledger)
            if progress is not None:
                progress(number, len(ids))
        return specials

    def _add_node(self, metadata: LedgerMetadata) -> None:
        path = ledger_path(metadata.ledger_id)
        time = max(metadata.ctime, 0)
        value = serialize(self._here(metadata))
        self.ledger_nodes.append(DumpNode(path, value, metadata.version, time, time))

    def _here(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """Return the metadata with this bookie as the only one that stores the ledger."""
        if all(members == (self.name,) for _, members in metadata.ensembles):
            return metadata
        return metadata.replace(
            ensemble_size=1,
            write_quorum_size=1,
            ack_quorum_size=1,
            ensembles=[(metadata.ensembles[0][0], (self.name,))],
        )


def _specials(ledger: StoredLedger) -> Iterator[bytes]:
    """Yield the facts that a bookie stores about a ledger apart from its entries; none if it never saw the ledger."""
    state = ledger.state
    if state is None or not state.heard_of:
        return
    key = ledger.master_key
    if key is not None:
        yield journal.ledger_key(ledger.id, key)
    if state.fenced:
        yield journal.fence(ledger.id)
    if state.explicit_lac >= 0 and ledger.knows_digest:
        yield journal.explicit_lac(ledger.id, ledger.digest, state.explicit_lac)


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def nodes_of(plan: Plan, disk: BookieWriter) -> list[DumpNode]:
    """Return all metadata nodes, sorted by path."""
    return _with_parents(_nodes(plan, disk))


def _nodes(plan: Plan, disk: BookieWriter) -> Iterator[DumpNode]:
    yield from plan.nodes.values()
    yield from disk.ledger_nodes
    yield DumpNode(paths.LAYOUT, paths.HIERARCHICAL)
    yield DumpNode(paths.INSTANCE_ID, disk.instance_id.encode())
    yield DumpNode(f"{paths.COOKIES}/{disk.name}", disk.cookie)
    yield DumpNode(paths.READ_ONLY, b"")
    yield DumpNode("/ledgers/idgen", b"")
    # A new metadata service restarts its ledger ids, and Pulsar orders a topic's ledgers by id. This node makes new ids
    # start after its number, which is the upper half of an id.
    largest = max((*plan.ledgers, *plan.snapshots), default=0)
    if (upper := (largest >> 32) + 1) < 1 << 31:
        yield DumpNode(f"/ledgers/idgen-long/HOB-{upper:010}", b"")


def _with_parents(nodes: Iterable[DumpNode]) -> list[DumpNode]:
    """Sort nodes by path and add missing parents, without which services do not create nodes."""
    found = {node.path: node for node in nodes}
    for path in list(found):
        above = path.rpartition("/")[0]
        while above and above not in found:
            found[above] = DumpNode(above, b"")
            above = above.rpartition("/")[0]
    return [found[path] for path in sorted(found)]
