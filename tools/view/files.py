"""Files of bookies' disks, and the records in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bookstand.disk.bookies.copy_catalog import LOG
from bookstand.disk.damage import Damage
from bookstand.disk.disks import Disks
from bookstand.disk.format import entry_log, journal
from bookstand.disk.format.entry_block import GOOD, LENGTH_BYTES, Block, Digests
from bookstand.disk.format.journal import MetaEntry

Name = Callable[[Path], str]


def files(disks: Disks, name: Name) -> list[dict[str, Any]]:
    """List files by bookie, kind and name."""
    catalog = disks.catalog
    entries = np.zeros(len(catalog.files), np.int64)
    for ledger_id in catalog.ledger_ids:
        for copies in catalog.blocks(ledger_id):
            entries += np.bincount(copies.files, minlength=len(entries))
    marks, maps = _marks(disks), read_maps(disks)
    rows = []
    for file, count in zip(catalog.files, entries.tolist(), strict=True):
        rows.append(
            {
                "name": name(file.path),
                "kind": "entry log" if file.kind == LOG else "journal",
                "bookie": disks.bookies[file.bookie].name,
                "version": _version(file.path),
                "records": count,
                "bytes": _size(file.path),
                "mark": None if file.kind == LOG else marks.get(file.path),
                "ledgers": len(maps[file.path]) if file.path in maps else None,
            }
        )
    for bookie in disks.bookies:
        rows += [
            {"name": name(path), "kind": "index", "bookie": bookie.name, "bytes": _size(path)}
            for path in bookie.index_files
        ]
    return sorted(rows, key=lambda row: (row["bookie"], row["kind"], row["name"]))


def _marks(disks: Disks) -> dict[Path, int]:
    """Return, for each journal with a mark, the offset up to which it has been flushed to the entry logs."""
    return {
        path: mark.offset
        for bookie in disks.bookies
        for number, mark in bookie.marks.items()
        for path in bookie.journals
        if int(path.stem, 16) == mark.journal_id
        and (len(bookie.journal_folders) < 2 or bookie.journal_folders[number : number + 1] == [path.parent.parent])
    }


def contents(disks: Disks, name: Name) -> Iterator[dict[str, Any]]:
    """Yield the ledgers in each log and journal. ``in_map`` is the size according to the ledgers map at the end of the
    log."""
    catalog, maps = disks.catalog, read_maps(disks)
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for ledger_id in catalog.ledger_ids:
        for copies in catalog.blocks(ledger_id):
            entries = np.bincount(copies.files)
            sizes = np.bincount(copies.files, copies.sizes + LENGTH_BYTES)
            for number in np.flatnonzero(entries).tolist():
                before = found.get((number, ledger_id), (0, 0))
                found[number, ledger_id] = before[0] + int(entries[number]), before[1] + int(sizes[number])
    for (number, ledger_id), (count, size) in sorted(found.items()):
        file = catalog.files[number]
        yield {
            "file": name(file.path),
            "bookie": disks.bookies[file.bookie].name,
            "ledger": ledger_id,
            "entries": count,
            "bytes": size,
            "in_map": maps.get(file.path, {}).get(ledger_id),
        }


def records(disks: Disks, digests: Digests, name: Name) -> Iterator[dict[str, Any]]:
    """Yield every record of every file, by file and offset."""
    for file in disks.catalog.files:
        special = list[MetaEntry]()
        if file.kind == LOG:
            blocks = entry_log.read(file.path, digests, _ignore)
        else:
            blocks = journal.read(file.path, digests, _ignore, special=special.append)
        for block in blocks:
            rows = [*_entry_records(block)]
            # Special records after the last entry of this block belong to the next one.
            end = rows[-1]["offset"] if rows else -1
            rows += map(_special_record, (one for one in special if one.offset < end))
            special[:] = [one for one in special if one.offset >= end]
            for row in sorted(rows, key=lambda row: row["offset"]):
                yield {"file": name(file.path), **row}
        for one in special:
            yield {"file": name(file.path), **_special_record(one)}


def _ignore(damage: Damage) -> None:
    """Ignore damage, which was reported when the disks were opened."""


def _entry_records(block: Block) -> Iterator[dict[str, Any]]:
    columns = (block.offsets, block.ledger_ids, block.entry_ids, block.lacs, block.lengths, block.sizes, block.verdicts)
    for offset, ledger_id, entry_id, lac, length, stored, verdict in zip(*(c.tolist() for c in columns), strict=True):
        yield {
            "offset": offset - LENGTH_BYTES,
            "what": "entry",
            "ledger": ledger_id,
            "entry": entry_id,
            "lac": lac,
            "length": length,
            "bytes": stored,
            "digest": "good" if verdict == GOOD else "unchecked",
        }


def _special_record(special: MetaEntry) -> dict[str, Any]:
    return {
        "offset": special.offset,
        "what": special.kind.replace("_", " "),
        "ledger": special.ledger_id,
        "lac": special.lac if special.kind == "explicit_lac" else None,
        "key": special.data.hex() if special.kind == "ledger_key" else None,
    }


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _version(path: Path) -> int | None:
    """Read the format version, which follows a four-byte magic in both kinds of files."""
    try:
        with open(path, "rb") as file:
            head = file.read(8)
    except OSError:
        return None
    return int.from_bytes(head[4:], "big", signed=True) if len(head) == 8 and head[:2] == b"BK" else None


def read_maps(disks: Disks) -> dict[Path, dict[int, int]]:
    """Read the ledgers maps of entry logs: bytes by ledger. Logs without a map are left out."""
    logs = (file.path for file in disks.catalog.files if file.kind == LOG)
    maps = {path: entry_log.read_ledgers_map(path, disks.damage.append) for path in logs}
    return {path: ledgers for path, ledgers in maps.items() if ledgers is not None}
