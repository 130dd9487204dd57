"""Read-only view of a store. Inspecting does not fence or recover ledgers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

import numpy as np

import bookstand
from bookstand.disk.importer.diff import IMPORT_NODE
from bookstand.disk.store_source import NOWHERE, StoreLedger, StoreSource
from bookstand.errors import StoreDamagedError
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.format import entry_codec as layout
from bookstand.storage.format import schema
from bookstand.storage.format.digest import digest_for
from bookstand.storage.lmdb.environment import data_file
from bookstand.storage.process import process_markers
from bookstand.storage.verify import verify
from bookstand.tools.cli.output import counted
from bookstand.tools.view.base import Ledger, VerifyResult, View

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bookstand.cursor.store.history import HistoryEntry
    from bookstand.storage.format.position import Position


class StoreView(View):
    kind = "store"

    def __init__(self, path: Path, passwords: Sequence[bytes] = (), limits: ExpansionLimits = DEFAULT) -> None:
        others = process_markers.OpenProcesses(os.fspath(path)) if path.is_dir() else None
        self._others = (others.writers, others.readers) if others is not None else (0, 0)
        self.store = bookstand.open(path, create=False, read_only=True, check="structure", expansion_limits=limits)
        self._storage = self.store.storage
        self._source = StoreSource(self._storage, passwords, limits)
        super().__init__(path, self._source)

    def close(self) -> None:
        self.store.close()

    @property
    def title(self) -> str:
        used = ", open in another process" if any(self._others) else ""
        return f"store {self.path}{used}"

    @property
    def default_now(self) -> int:
        return int(time() * 1000)

    def about(self) -> dict[str, Any]:
        storage = self._storage
        store_id = self._meta(schema.META_STORE_ID)
        next_ledger = self._meta(schema.META_NEXT_LEDGER)
        form = self._meta(schema.META_FORMAT)
        file = data_file(storage.path)
        status = os.stat(file)
        return {
            "store_id": None if store_id is None else store_id.hex(),
            "format": None if form is None else int.from_bytes(form, "big"),
            "file": file,
            "bytes": status.st_size,
            "changed": int(status.st_mtime * 1000),
            "writers": self._others[0],
            "readers": self._others[1],
            "ledgers": len(self._source.ledger_ids),
            "deleted_ledgers": len(self._source.deleted_ids),
            "next_ledger": None if next_ledger is None else int.from_bytes(next_ledger, "big"),
            "nodes": len(self._source.dump.nodes),
            "topics": len(self.topics()),
        }

    def _meta(self, key: bytes) -> bytes | None:
        try:
            return self._storage.meta(key)
        except StoreDamagedError as error:
            self._source.report(str(error))
            return None

    def files(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [
            {"name": name, "kind": "sub-database", "records": records, "bytes": size, "depth": depth, "pages": pages}
            for name, records, pages, size, depth in self._storage.sizes()
        ]
        for file in sorted(self.path.iterdir()):
            if file.is_file() and not file.name.startswith((process_markers.READER, process_markers.WRITER)):
                rows.append({"name": file.name, "kind": "file", "bytes": file.stat().st_size})
        return rows

    def _marks(self, ledger: Ledger) -> list[str]:
        assert isinstance(ledger, StoreLedger)
        found = list(ledger.problems)
        state = ledger.state
        if state is not None and ledger.metadata is not None and not state.deleted_at:
            if len(ledger.extent.missing) and state.must_exist(ledger.extent.missing[0][0]):
                found.append(f"{ledger.extent.missing.ids} missing: {ledger.extent.missing}")
            elif ledger.extent.last_entry > state.last_entry:
                found.append(f"closed at {ledger.extent.last_entry}, stored up to {state.last_entry}")
        bad = sum(1 for one in self._source.damage if one.ledger_id == ledger.id and one.entry_id >= 0)
        if bad:
            found.append(f"{bad} damaged")
        return found

    def payload_sizes(self, ledger_id: int) -> Iterator[NDArray[np.int64]]:
        ledger = self._source.ledger(ledger_id)
        digest = digest_for(ledger.digest_name or "dummy", b"")
        for _, part in ledger.stored(0, ledger.extent.last_entry):
            sizes = np.fromiter(map(len, part), np.int64, len(part))
            yield np.maximum(sizes - layout.HEADER_BYTES - digest.size, 0)

    def copies(self, ledger_id: int, entry_id: int) -> list[dict[str, Any]]:
        stored = self._storage.entry_as_stored(ledger_id, entry_id)
        if stored is None:
            return []
        ledger = self._source.ledger(ledger_id)
        good = ledger.decoded(entry_id, stored)
        verdict = "bad" if good is None else "good" if good.checked else "unchecked"
        return [{"file": data_file(self._storage.path), "bytes": len(stored), "verdict": verdict}]

    def history(self, topic: str, cursor: str) -> list[HistoryEntry]:
        """Return the earlier states of a cursor that its ledger still has, newest first."""
        found: list[HistoryEntry] = self._cursor(topic, cursor).history()
        return found

    def at_marker(self, topic: str, cursor: str, marker: Position) -> Any:
        """Open a cursor in the state that a marker records."""
        return self._cursor(topic, cursor, marker)

    def _cursor(self, topic: str, cursor: str, marker: Position | None = None) -> Any:
        from bookstand.cursor.cursor import Cursor

        return Cursor.open(self.store.managed_ledger(topic, create=False), cursor, create=False, at_marker=marker)

    def verify(self, messages: bool = False) -> VerifyResult:
        # The structure was checked when the store was opened.
        report = verify(self._storage, structure=False)
        for problem in report.problems:
            ledger_id = NOWHERE if problem.ledger_id is None else problem.ledger_id
            entry_id = NOWHERE if problem.entry_id is None else problem.entry_id
            self._source.report(problem.message, ledger_id, entry_id)
        counts = {"ledgers": report.ledgers, "entries": report.entries, "bytes": report.bytes, "nodes": report.nodes}
        counts |= self._verify_topics(messages)
        notes = [
            f"bucket snapshot in ledger {one} is orphaned: no cursor references it" for one in self.leftover_buckets()
        ]
        deleted = self._source.deleted_ids
        if deleted:
            notes.append(f"deleted and not yet collected (see bookstand compact): {counted(len(deleted), 'ledger')}")
        if IMPORT_NODE in self._source.dump.nodes:
            notes.append("an import of bookies' disks is not finished: run it again")
        return VerifyResult(self.damage, notes, counts)
