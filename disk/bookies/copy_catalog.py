"""Catalog of the copies of entries in all files of all bookies.

Every file is read once, and each entry's digest is checked. The catalog stores a row of numbers per copy. Rows are
sorted by ledger and entry in unnamed temporary files (:mod:`bookstand.disk.bookies.external_sort`), so memory does not
grow with the disks. It grows only with the number of ledgers that have a master key, fence or explicit LAC, by some
hundred bytes each.

An entry has several copies if a bookie has it in both its journal and a log, if several bookies have it, or if recovery
or compaction wrote it again. Copies with a valid digest precede copies that could not be checked. Then the copy written
last comes first, as far as the files show it:

* a journal precedes the logs, because the entries it still has were written last;
* then the higher id of the file, then the higher offset.

Copies with different headers are normal, because recovery writes entries again with another LAC. Copies with different
payloads are reported, and the best one is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bookstand.disk.bookies.discovery import BookieDisk, id_of
from bookstand.disk.bookies.entry_fetcher import Fetcher
from bookstand.disk.bookies.external_sort import ExternalSorter, Rows, SpilledTable
from bookstand.disk.bookies.ledger_facts import LedgerFacts
from bookstand.disk.damage import Damage, Report
from bookstand.disk.format import entry_log, journal
from bookstand.disk.format.entry_block import GOOD, LENGTH_BYTES, NO_DIGEST, Block, Digests
from bookstand.errors import IllegalOperationError
from bookstand.storage.format.entry_codec import HEADER_BYTES
from bookstand.storage.format.schema import MAX_ENTRY_ID

Column = NDArray[Any]
Progress = Callable[[int, int], None]
"""Called with the number of bytes read and their total."""

LOG, JOURNAL = "log", "journal"

# ``mark`` holds the eight bytes after the header. Copies with valid digests and the same header, size and mark are
# equal.
_COPY = {
    "ledger": "i8", "entry": "i8", "file": "i4", "offset": "i8", "size": "i4", "lac": "i8", "length": "i8",
    "verdict": "u1", "digest": "i1", "mark": "u8",
}  # fmt: skip
_LEDGER = {"ledger": "i8", "start": "i8"}
_PAIR = {"best": "i8", "other": "i8"}
_MARK_BYTES = 8
_BLOCK_ROWS = 1 << 15
# Number of copies that are examined for the size of the digest.
_TELLING = 4096
_DIGEST_SIZES = (0, 4, 8, 20)


class SourceFile(NamedTuple):
    """A file with entries. ``rank`` is its position by age: of two copies, the one of higher rank is used."""

    bookie: int
    path: Path
    kind: str
    rank: int


@dataclass(frozen=True, slots=True, eq=False)
class Copies:
    """Copies of entries of one ledger, a row each."""

    ledger_id: int
    entry_ids: Column
    files: Column
    offsets: Column
    sizes: Column
    """Sizes of the stored entries, which begin at ``offsets`` of ``Catalog.files[files]``."""
    lacs: Column
    lengths: Column
    verdicts: Column
    digest_sizes: Column

    def __len__(self) -> int:
        return len(self.entry_ids)

    def rows(self, which: Any) -> Copies:
        """Select rows by a slice, a mask, or indices."""
        return Copies(self.ledger_id, *(getattr(self, column.name)[which] for column in fields(self)[1:]))

    @property
    def records(self) -> Column:
        """Offsets of the records, which are the positions in reports."""
        return self.offsets - LENGTH_BYTES

    def firsts(self) -> Column:
        """Mask of the rows that are the best copy of their entry."""
        first = np.ones(len(self), bool)
        first[1:] = self.entry_ids[1:] != self.entry_ids[:-1]
        return first


class Catalog:
    """Copies of all entries: a context manager, created by :meth:`build`."""

    files: list[SourceFile]
    bookies: Sequence[BookieDisk]
    fenced: Mapping[int, tuple[int, ...]]
    """Bookies that have fenced each ledger."""
    master_keys: Mapping[int, bytes]
    explicit_lacs: Mapping[int, int]

    def __init__(self, bookies: Sequence[BookieDisk], report: Report, folder: str | os.PathLike[str] | None) -> None:
        self.bookies = bookies
        self.files = _files_by_age(bookies)
        self._report = report
        self._fetcher = Fetcher([file.path for file in self.files], report)
        self._specials = LedgerFacts(report)
        self.fenced = self._specials.fenced
        self.master_keys = self._specials.master_keys
        self.explicit_lacs = self._specials.explicit_lacs
        # Ledgers whose copies without a matching digest are excluded, because other copies match one.
        self._matched_only: set[int] = set()
        # Contents of the tables when they are complete: copies by column, and the first row of each ledger.
        self._columns: Rows | None = None
        self._index: Rows = {}
        self._tables: list[SpilledTable] = []
        try:
            self._copies = self._table(_COPY, folder)
            self._ledgers = self._table(_LEDGER, folder)
            self._pairs = self._table(_PAIR, folder)
        except BaseException:
            self.close()
            raise

    def _table(self, dtypes: Mapping[str, str], folder: str | os.PathLike[str] | None) -> SpilledTable:
        table = SpilledTable(dtypes, folder)
        self._tables.append(table)
        return table

    @classmethod
    def build(
        cls,
        bookies: Sequence[BookieDisk],
        digests: Digests,
        report: Report,
        *,
        folder: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> Catalog:
        """Read all files of ``bookies``. ``folder``: where temporary files for sorting are created, by default the
        system's; they take some 140 bytes for each copy of an entry."""
        catalog = cls(bookies, report, folder)
        try:
            sorter = ExternalSorter(_COPY, "ledger", "entry", _best_first, folder)
            try:
                catalog._read_files(digests, sorter, progress)
                mixed = catalog._sort(sorter)
            finally:
                sorter.close()
            catalog._columns = catalog._copies.columns()
            catalog._index = catalog._ledgers.columns()
            for ledger_id in mixed:
                catalog._leave_out_unmatched(ledger_id)
            catalog._compare()
        except BaseException:
            catalog.close()
            raise
        return catalog

    def __enter__(self) -> Catalog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._columns = None
        self._index = {}
        for table in self._tables:
            table.close()
        self._fetcher.close()

    # -- questions ---------------------------------------------------------------------------------------------------

    @property
    def ledger_ids(self) -> list[int]:
        """Ids of the ledgers with entries, ascending."""
        self._rows()
        found: list[int] = self._index["ledger"].tolist()
        return found

    def has(self, ledger_id: int) -> bool:
        """Return True if the ledger has entries."""
        return self._between(ledger_id, 0, MAX_ENTRY_ID) != (0, 0)

    def copies(self, ledger_id: int, first: int = 0, last: int | None = None) -> Copies:
        """Return all copies of the entries from ``first`` to ``last``, sorted by entry with the best copy first."""
        start, stop = self._between(ledger_id, first, MAX_ENTRY_ID if last is None else last)
        return self._usable(ledger_id, start, stop)

    def best(self, ledger_id: int, first: int = 0, last: int | None = None) -> Copies:
        """Return the best copy of each of these entries."""
        copies = self.copies(ledger_id, first, last)
        return copies.rows(copies.firsts())

    def blocks(
        self, ledger_id: int, first: int = 0, last: int | None = None, rows: int = _BLOCK_ROWS
    ) -> Iterator[Copies]:
        """Yield :meth:`copies` in blocks of about ``rows`` rows; the copies of an entry are never split."""
        start, stop = self._between(ledger_id, first, MAX_ENTRY_ID if last is None else last)
        entries = self._rows()["entry"]
        while start < stop:
            end = stop
            if start + rows < stop:
                end = start + int(np.searchsorted(entries[start:stop], entries[start + rows - 1], "right"))
            yield self._usable(ledger_id, start, end)
            start = end

    def read(self, copies: Copies) -> Iterator[bytes]:
        """Yield the stored entries in row order, with read-ahead. Bytes lost since the catalog was built are
        missing."""
        self._rows()
        return self._fetcher.fetch(copies.files, copies.offsets, copies.sizes)

    def holders(self, copies: Copies) -> Column:
        """Return the number of bookies with each entry, for each of ``firsts()``; ``copies`` must have all copies."""
        if len(self.bookies) == 1:
            return np.ones(int(copies.firsts().sum()), np.int64)
        bookie_of = np.array([file.bookie for file in self.files], np.int64)
        entry = np.cumsum(copies.firsts()) - 1
        held = np.unique(entry * len(self.bookies) + bookie_of[copies.files])
        return np.bincount(held // len(self.bookies))

    def digest_size(self, ledger_id: int) -> int | None:
        """Return the digest size of the ledger's entries, or None if it is unknown. If no digest could be checked, it
        follows from the cumulative lengths, which give the size of each payload."""
        copies = next(self.blocks(ledger_id, rows=_TELLING), None)
        if copies is None:
            return None
        known = copies.digest_sizes[copies.digest_sizes != NO_DIGEST]
        if not len(known):
            best = copies.rows(copies.firsts())
            payloads = np.diff(best.lengths, prepend=0)
            follows = np.diff(best.entry_ids, prepend=-1) == 1
            known = (best.sizes - HEADER_BYTES - payloads)[follows]
            known = known[np.isin(known, _DIGEST_SIZES)]
        if not len(known):
            return None
        sizes, counts = np.unique(known, return_counts=True)
        return int(sizes[np.argmax(counts)])

    def _rows(self) -> Rows:
        if self._columns is None:
            raise IllegalOperationError("the catalog of the disks is closed")
        return self._columns

    def _between(self, ledger_id: int, first: int, last: int) -> tuple[int, int]:
        """Return the row range of the entries from ``first`` to ``last``."""
        entries = self._rows()["entry"]
        ledgers, starts = self._index["ledger"], self._index["start"]
        at = int(np.searchsorted(ledgers, ledger_id))
        if at == len(ledgers) or ledgers[at] != ledger_id or first > last:
            return 0, 0
        start = int(starts[at])
        stop = int(starts[at + 1]) if at + 1 < len(starts) else len(entries)
        mine = entries[start:stop]
        return start + int(np.searchsorted(mine, first, "left")), start + int(np.searchsorted(mine, last, "right"))

    def _usable(self, ledger_id: int, start: int, stop: int) -> Copies:
        found = _copies(ledger_id, self._rows(), slice(start, stop))
        return found.rows(found.digest_sizes != NO_DIGEST) if ledger_id in self._matched_only else found

    # -- building ----------------------------------------------------------------------------------------------------

    def _read_files(self, digests: Digests, sorter: ExternalSorter, progress: Progress | None) -> None:
        sizes = [_size(file.path) for file in self.files]
        done, total = 0, sum(sizes)
        for file, size in zip(self.files, sizes, strict=True):
            for block in self._blocks_of(file, digests):
                if len(block.offsets):
                    sorter.add(_rows_of(block, file.rank))
                    if progress is not None:
                        progress(done + int(block.offsets[-1] + block.sizes[-1]), total)
            done += size
            if progress is not None:
                progress(done, total)
        for number, bookie in enumerate(self.bookies):
            for path in bookie.index_files:
                self._specials.take_index(path, number)

    def _blocks_of(self, file: SourceFile, digests: Digests) -> Iterator[Block]:
        if file.kind == LOG:
            return entry_log.read(file.path, digests, self._report)
        return journal.read(file.path, digests, self._report, special=self._specials.of(str(file.path), file.bookie))

    def _sort(self, sorter: ExternalSorter) -> list[int]:
        """Fill the tables; return the ledgers in which some copies match no digest, but at least as many do."""
        mixed: list[int] = []
        # Ledger of the last row so far, and the numbers of its copies with and without a matching digest.
        ledger, matching, unmatched = -1, 0, 0
        for rows in sorter.merged():
            base = len(self._copies)
            self._copies.append(rows)
            self._note_pairs(rows, base)
            ledgers, starts = np.unique(rows["ledger"], return_index=True)
            new = slice(1 if ledgers[0] == ledger else 0, None)
            self._ledgers.append({"ledger": ledgers[new], "start": starts[new] + base})
            unknown = rows["digest"] == NO_DIGEST
            counts = [np.add.reduceat(column, starts, dtype=np.int64).tolist() for column in (~unknown, unknown)]
            for now, good, bad in zip(ledgers.tolist(), *counts, strict=True):
                if now != ledger:
                    if 0 < unmatched <= matching:
                        mixed.append(ledger)
                    ledger, matching, unmatched = now, 0, 0
                matching += good
                unmatched += bad
        if 0 < unmatched <= matching:
            mixed.append(ledger)
        return mixed

    def _note_pairs(self, rows: Rows, base: int) -> None:
        """Record copies that may differ, so that their payloads are compared later."""
        same = np.zeros(len(rows["entry"]), bool)
        same[1:] = (rows["entry"][1:] == rows["entry"][:-1]) & (rows["ledger"][1:] == rows["ledger"][:-1])
        if not same.any():
            return
        best = np.maximum.accumulate(np.where(same, 0, np.arange(len(same))))
        alike = rows["verdict"] == GOOD
        for name in ("verdict", "lac", "length", "size", "mark"):
            alike &= rows[name] == rows[name][best]
        other = np.flatnonzero(same & ~alike)
        self._pairs.append({"best": best[other] + base, "other": other + base})

    def _leave_out_unmatched(self, ledger_id: int) -> None:
        """Exclude copies that match no digest: a ledger has only one digest, so they are damaged."""
        for copies in self.blocks(ledger_id):
            wrong = copies.rows(copies.digest_sizes == NO_DIGEST)
            places = (wrong.entry_ids.tolist(), wrong.files.tolist(), wrong.records.tolist())
            for entry_id, file, offset in zip(*places, strict=True):
                what = "it matches no digest, and other entries of its ledger do; it is left out"
                self._report(Damage(str(self.files[file].path), offset, what, ledger_id, entry_id))
        self._matched_only.add(ledger_id)

    def _compare(self) -> None:
        """Report copies whose payload differs from that of the best one."""
        pairs, columns = self._pairs.columns(), self._rows()
        sizes: dict[int, int | None] = {}
        for start in range(0, len(self._pairs), _BLOCK_ROWS):
            best, other = (pairs[name][start : start + _BLOCK_ROWS] for name in ("best", "other"))
            left_out = np.isin(columns["ledger"][other], list(self._matched_only))
            left_out &= columns["digest"][other] == NO_DIGEST
            best, other = best[~left_out], other[~left_out]
            one, two = (_copies(-1, columns, rows) for rows in (best, other))
            ledgers = columns["ledger"][best].tolist()
            for row, (ledger_id, a, b) in enumerate(zip(ledgers, self.read(one), self.read(two), strict=True)):
                if ledger_id not in sizes:
                    sizes.clear()
                    sizes[ledger_id] = self.digest_size(ledger_id)
                start_of_payload = HEADER_BYTES + (sizes[ledger_id] or 0)
                if a[start_of_payload:] != b[start_of_payload:]:
                    self._report_difference(ledger_id, one.rows(row), two.rows(row))

    def _report_difference(self, ledger_id: int, best: Copies, other: Copies) -> None:
        checked = "digests of both are right" if other.verdicts == GOOD else "digest of this one could not be checked"
        self._report(
            Damage(
                str(self.files[int(other.files)].path),
                int(other.records),
                f"its payload is not that of the copy in {self.files[int(best.files)].path} at {int(best.records)}, "
                f"which counts; the {checked}",
                ledger_id,
                int(other.entry_ids),
            )
        )


def _files_by_age(bookies: Sequence[BookieDisk]) -> list[SourceFile]:
    found = [
        (kind == JOURNAL, id_of(path), bookie, path, kind)
        for bookie, disk in enumerate(bookies)
        for kind, paths in ((LOG, disk.entry_logs), (JOURNAL, disk.journals))
        for path in paths
    ]
    return [SourceFile(bookie, path, kind, rank) for rank, (_, _, bookie, path, kind) in enumerate(sorted(found))]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # reported when the file is read
        return 0


def _rows_of(block: Block, file: int) -> Rows:
    count = len(block.starts)
    # If fewer than eight bytes follow the header, zeros take their place.
    data = np.frombuffer(block.data, np.uint8)
    places = (block.starts + HEADER_BYTES)[:, None] + np.arange(_MARK_BYTES)
    inside = places < (block.starts + block.sizes)[:, None]
    marks = np.where(inside, data[np.where(inside, places, 0)], 0).astype(np.uint8).view(np.uint64)[:, 0]
    return {
        "ledger": block.ledger_ids,
        "entry": block.entry_ids,
        "file": np.full(count, file, np.int32),
        "offset": block.offsets,
        "size": block.sizes.astype(np.int32),
        "lac": block.lacs,
        "length": block.lengths,
        "verdict": block.verdicts,
        "digest": block.digest_sizes.astype(np.int8),
        "mark": marks,
    }


def _best_first(rows: Rows) -> Column:
    return np.lexsort((-rows["offset"], -rows["file"], rows["verdict"], rows["entry"], rows["ledger"]))


def _copies(ledger_id: int, columns: Rows, which: Any) -> Copies:
    names = ("entry", "file", "offset", "size", "lac", "length", "verdict", "digest")
    return Copies(ledger_id, *(columns[name][which] for name in names))
