"""View of bookies' disks, with or without a dump of the cluster's metadata."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bookstand.disk.bookies.copy_catalog import Catalog
from bookstand.disk.bookies.discovery import BookieDisk
from bookstand.disk.bookies.disk_ledger import StoredEntry
from bookstand.disk.bookies.ledger_end import NO_DISK_OF, Ranges, entries_are
from bookstand.disk.damage import Damage
from bookstand.disk.disks import Disks, digests_of
from bookstand.disk.format.entry_block import GOOD
from bookstand.disk.metadata.dump import MetadataDump
from bookstand.disk.topics.delayed import time_of
from bookstand.errors import IncorrectParameterError
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.format.entry_codec import HEADER_BYTES
from bookstand.storage.format.ledger_metadata import CLOSED
from bookstand.tools.cli.output import counted
from bookstand.tools.view import files as disk_files
from bookstand.tools.view.base import Ledger, VerifyResult, View
from bookstand.tools.view.targets import BOOKIE_FILE, Target, find_dump

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

UNLISTED = "UNLISTED"
"""State of a ledger that is missing in the metadata: it was deleted, or belongs to another cluster."""

_JOURNAL_SUFFIX = ".txn"


class DiskView(View):
    kind = "bookie"

    def __init__(
        self,
        target: Target,
        more: Sequence[str] = (),
        metadata: str | None = None,
        passwords: Sequence[bytes] = (),
        progress: Callable[[int, int], None] | None = None,
        limits: ExpansionLimits = DEFAULT,
    ) -> None:
        if target.kind == BOOKIE_FILE:
            self.disks = _disks_of_file(target.path, metadata, passwords, progress, limits)
        else:
            self.disks = Disks.open([target.path, *more], metadata, passwords, progress=progress, limits=limits)
        self._metadata = metadata
        self._more = tuple(more)
        self._passwords = (*passwords, b"")
        super().__init__(target.path, self.disks)
        if self._absent:
            who = ", ".join(sorted(self._absent))
            more = "what is missing may be there, and ledgers that are not closed may end further on (--disk)"
            self.notes.append(f"{NO_DISK_OF} {who}: {more}")

    def close(self) -> None:
        self.disks.close()

    @property
    def title(self) -> str:
        known = "without" if self._metadata is None else "with"
        if self.path.is_file():
            kind = "journal" if self.path.suffix == _JOURNAL_SUFFIX else "entry log"
            return f"{kind} {self.path}, {known} metadata"
        names = ", ".join(dict.fromkeys(bookie.name for bookie in self.disks.bookies))
        several = "bookies" if len(self.disks.bookies) > 1 else "bookie"
        return f"{several} {names} at {' and '.join([str(self.path), *self._more])}, {known} metadata"

    @property
    def hint(self) -> str | None:
        beside = find_dump(self.path) if self._metadata is None else None
        return None if beside is None else f"{beside} may be the metadata: pass it with --metadata"

    @property
    def default_now(self) -> int:
        return time_of(self.disks)

    def about(self) -> dict[str, Any]:
        dump = self.disks.dump
        return {
            "bookies": [_bookie_facts(bookie) for bookie in self.disks.bookies],
            "metadata": self._metadata,
            "nodes": None if dump is None else len(dump.nodes),
            "topics": len(self.topics()),
            "ledgers": len(self.disks.ledger_ids),
            "unlisted_ledgers": None if dump is None else len(set(self.disks.catalog.ledger_ids) - set(dump.ledgers)),
            "fenced_ledgers": len(self.disks.catalog.fenced),
        }

    def files(self) -> list[dict[str, Any]]:
        return disk_files.files(self.disks, self._shortened)

    def contents(self) -> Iterator[dict[str, Any]]:
        """Yield the ledgers in each file, with their use."""
        for row in disk_files.contents(self.disks, self._shortened):
            ledger = self.disks.ledger(row["ledger"])
            what = self.content(ledger)
            yield {**row, "state": self.state_of(ledger), "kind": what.kind, "topic": what.topic or None}

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield every record of every file, by file and offset."""
        return disk_files.records(self.disks, digests_of(self.disks.dump, self._passwords), self._shortened)

    def _shortened(self, path: Path) -> str:
        base = self.path.resolve()
        path = path.resolve()
        return str(path.relative_to(base)) if path.is_relative_to(base) and path != base else str(path)

    def state_of(self, ledger: Ledger) -> str:
        if self.disks.dump is not None and ledger.metadata is None:
            return UNLISTED
        return ledger.extent.state

    @cached_property
    def _absent(self) -> set[str]:
        """Bookies that the metadata names and whose disks are missing."""
        here = {bookie.name for bookie in self.disks.bookies}
        ledgers = [] if self.disks.dump is None else self.disks.dump.ledgers.values()
        named = {bookie for ledger in ledgers for _, members in ledger.ensembles for bookie in members}
        return named - here

    def _decides(self, ledger: Ledger) -> bool:
        """Return True if entries that are on none of the disks are lost. Without metadata or with disks missing, others
        may have them."""
        metadata = ledger.metadata
        return metadata is not None and all(self._absent.isdisjoint(members) for _, members in metadata.ensembles)

    @property
    def damage(self) -> list[Damage]:
        return [one for one in super().damage if not self._may_be_elsewhere(one)]

    def _may_be_elsewhere(self, one: Damage) -> bool:
        """Return True if the only damage is a missing entry that other disks may have. Damage within a file has an
        offset."""
        if not self._absent or one.offset >= 0 or one.entry_id < 0:
            return False
        ledger = self.disks.ledger(one.ledger_id)
        return not self._decides(ledger) and any(first <= one.entry_id <= last for first, last in ledger.extent.missing)

    def _elsewhere(self) -> Iterator[str]:
        """Yield a line for each ledger with missing entries that other disks may have."""
        counts = Counter(one.ledger_id for one in dict.fromkeys(self.disks.damage) if self._may_be_elsewhere(one))
        for ledger_id, count in sorted(counts.items()):
            what = self.content(self.disks.ledger(ledger_id))
            whose = f"{what.kind} of {what.topic}, {what.cursor}" if what.topic else what.kind
            yield f"ledger {ledger_id}, {whose}: {counted(count, 'entry')} of it cannot be had from these disks"

    def _marks(self, ledger: Ledger) -> list[str]:
        extent = ledger.extent
        found = []
        bad = sum(1 for one in self.disks.damage if one.ledger_id == ledger.id and not self._may_be_elsewhere(one))
        if bad:
            found.append(f"{bad} damaged")
        if self._decides(ledger):
            if len(extent.missing):
                found.append(f"{extent.missing.ids} missing: {extent.missing}")
            if extent.state == CLOSED and len(extent.too_few):
                found.append(f"{extent.too_few.ids} with too few copies: {extent.too_few}")
        return found

    def entries(self, ledger: Ledger, first: int, last: int | None, beyond: bool = False) -> Iterator[StoredEntry]:
        for lost in ledger.extent.missing:
            start, end = max(lost[0], first), lost[1] if last is None else min(lost[1], last)
            if start > end:
                continue
            what = f"{entries_are(Ranges([(start, end)]))} on none of the disks"
            if self._decides(ledger):
                self.disks.damage.append(Damage(str(self.path), -1, what, ledger.id, start if start == end else -1))
            else:
                self.notes.append(f"ledger {ledger.id}: {what}")
        return ledger.entries(first, last, beyond=beyond)

    def payload_sizes(self, ledger_id: int) -> Iterator[NDArray[np.int64]]:
        digest_size = self.disks.catalog.digest_size(ledger_id) or 0
        last = self.disks.ledger(ledger_id).extent.last_entry
        for copies in self.disks.catalog.blocks(ledger_id, 0, last):
            yield np.maximum(copies.sizes[copies.firsts()].astype(np.int64) - HEADER_BYTES - digest_size, 0)

    def copies(self, ledger_id: int, entry_id: int) -> list[dict[str, Any]]:
        catalog = self.disks.catalog
        found = catalog.copies(ledger_id, entry_id, entry_id)
        rows = []
        for row in range(len(found)):
            file = catalog.files[int(found.files[row])]
            rows.append(
                {
                    "bookie": self.disks.bookies[file.bookie].name,
                    "file": self._shortened(file.path),
                    "offset": int(found.records[row]),
                    "bytes": int(found.sizes[row]),
                    "lac": int(found.lacs[row]),
                    "verdict": "good" if found.verdicts[row] == GOOD else "unchecked",
                }
            )
        return rows

    def verify(self, messages: bool = False) -> VerifyResult:
        notes = list(self.notes)
        counts = {
            "bookies": len(self.disks.bookies),
            "files": len(self.disks.catalog.files),
            "ledgers": 0,
            "entries": 0,
        }
        found: list[Damage] = []
        unlisted = 0
        for ledger_id in self.disks.ledger_ids:
            ledger = self.disks.ledger(ledger_id)
            extent = ledger.extent
            counts["ledgers"] += 1
            counts["entries"] += extent.last_entry + 1 - (extent.missing.ids if len(extent.missing) else 0)
            if ledger.metadata is None:
                unlisted += self.disks.dump is not None
                if len(extent.missing):
                    notes.append(f"ledger {ledger_id}: {entries_are(extent.missing)} on none of the disks")
                continue
            told = found if self._decides(ledger) else None
            for what in self._shortcomings(ledger):
                if told is not None:
                    told.append(Damage(str(self.path), -1, what, ledger_id))
                else:
                    notes.append(f"ledger {ledger_id}: {what}")
            if extent.state != CLOSED:
                # Missing disks are noted once for all ledgers.
                doubts = [doubt for doubt in extent.doubts if not doubt.startswith(NO_DISK_OF)]
                notes += [f"ledger {ledger_id}: {doubt}" for doubt in doubts]
        self.disks.damage.extend(found)
        disk_files.read_maps(self.disks)
        counts |= self._verify_topics(messages)
        notes += self._elsewhere()
        if unlisted:
            notes.append(f"not in the metadata, so deleted and not collected yet: {counted(unlisted, 'ledger')}")
        if self.disks.dump is None:
            notes.append("without metadata the ends of ledgers and their quorums are unknown")
        return VerifyResult(self.damage, notes, counts)

    def _shortcomings(self, ledger: Ledger) -> Iterator[str]:
        extent = ledger.extent
        if len(extent.missing):
            yield f"{entries_are(extent.missing)} on none of the disks"
        if extent.state != CLOSED:
            return
        if len(extent.too_few):
            assert ledger.metadata is not None
            yield f"{entries_are(extent.too_few)} on fewer than {ledger.metadata.ack_quorum_size} bookies"
        for doubt in extent.doubts:
            # Doubts about missing entries are reported above.
            if "says length" in doubt:
                yield doubt


def _disks_of_file(
    path: Path,
    metadata: str | None,
    passwords: Sequence[bytes],
    progress: Callable[[int, int], None] | None,
    limits: ExpansionLimits,
) -> Disks:
    """Open a single entry log or journal without the rest of its bookie."""
    damage: list[Damage] = []
    dump = None if metadata is None else MetadataDump.open(metadata, damage.append, limits)
    logs, journals = ([], [path]) if path.suffix == _JOURNAL_SUFFIX else ([path], [])
    if not re.fullmatch("[0-9a-fA-F]{1,16}", path.stem):
        raise IncorrectParameterError(f"{path}: the name of an entry log or journal is its id in hexadecimal")
    bookie = BookieDisk(path.name, path.parent, [], [], None, {}, logs, journals, [])
    passwords = (*passwords, b"")
    catalog = Catalog.build([bookie], digests_of(dump, passwords), damage.append, progress=progress)
    return Disks([bookie], dump, catalog, damage, passwords, limits)


def _bookie_facts(bookie: BookieDisk) -> dict[str, Any]:
    cookie = bookie.cookie
    return {
        "name": bookie.name,
        "folder": str(bookie.folder),
        "instance": None if cookie is None else cookie.instance_id or None,
        "cookie_folders": [] if cookie is None else [*cookie.journal_folders, *cookie.ledger_folders],
        "journal_folders": [str(folder) for folder in bookie.journal_folders],
        "ledger_folders": [str(folder) for folder in bookie.ledger_folders],
        "marks": [f"{mark.journal_id:x}.txn at {mark.offset}" for mark in bookie.marks.values()],
        "journals": len(bookie.journals),
        "entry_logs": len(bookie.entry_logs),
        "index_files": len(bookie.index_files),
    }
