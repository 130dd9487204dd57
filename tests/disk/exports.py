"""What tests of exports share: a store's contents to be compared, and what lies in an exported folder."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import bookstand
from bookstand import Store
from bookstand.disk.disks import Disks
from bookstand.disk.exporter.run import ExportReport
from bookstand.disk.importer.run import ImportReport, import_disks
from bookstand.storage.format.ledger_metadata import CLOSED
from bookstand.storage.format.ledger_state import LedgerState
from tests.disk.full_store import stored_entries

LENGTH = struct.Struct(">i")
IDS = struct.Struct(">qq")
LOG_HEADER = struct.Struct(">4siqi")
LOG_HEADER_BYTES = 1024


def bytes_below(folder: Path) -> dict[str, bytes | None]:
    """All files by their places, and folders, which have none."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


# -- logs, read the plain way ------------------------------------------------------------------------------------------


class Log(NamedTuple):
    """``map_offset`` and ``map_count`` are in its header; ``rows`` are those of the map that is there."""

    entries: list[tuple[int, int, bytes]]
    taken: dict[int, int]
    map_offset: int
    map_count: int
    first_map_record: int
    rows: dict[int, int]


def read_log(path: Path) -> Log:
    data = path.read_bytes()
    magic, version, map_offset, map_count = LOG_HEADER.unpack_from(data)
    assert (magic, version) == (b"BKLO", 1)
    assert not data[LOG_HEADER.size : LOG_HEADER_BYTES].strip(b"\0")
    log = Log([], {}, map_offset, map_count, 0, {})
    offset = LOG_HEADER_BYTES
    while offset < len(data):
        (size,) = LENGTH.unpack_from(data, offset)
        stored = data[offset + LENGTH.size : offset + LENGTH.size + size]
        assert len(stored) == size
        ledger_id, entry_id = IDS.unpack_from(stored)
        if ledger_id == -1:
            assert entry_id == -2
            (count,) = LENGTH.unpack_from(stored, IDS.size)
            assert size == IDS.size + LENGTH.size + count * IDS.size
            log.rows.update(IDS.unpack_from(stored, IDS.size + LENGTH.size + row * IDS.size) for row in range(count))
            log = log._replace(first_map_record=log.first_map_record or offset)
        else:
            assert not log.rows, "an entry behind the map"
            log.entries.append((ledger_id, entry_id, stored))
            log.taken[ledger_id] = log.taken.get(ledger_id, 0) + LENGTH.size + size
        offset += LENGTH.size + size
    return log


def logs_of(report: ExportReport) -> list[Path]:
    """In their order."""
    return sorted((report.bookie / "ledgers" / "current").glob("*.log"), key=lambda path: int(path.stem, 16))


# -- stores ------------------------------------------------------------------------------------------------------------


def opened(report: ExportReport) -> Disks:
    return Disks.open([report.bookie.parent], report.metadata)


def imported(report: ExportReport, store: Store) -> ImportReport:
    """Into the store, without damage."""
    with opened(report) as disks:
        found = import_disks(disks, store)
        assert not disks.damage
        assert not found.left_out
        return found


def ledger_of(store: Store, ledger_id: int) -> dict[str, Any]:
    """Everything that is known of a ledger, but where its entries are said to be: that is another bookie."""
    metadata = store.ledger_metadata(ledger_id).replace(
        ensemble_size=1, write_quorum_size=1, ack_quorum_size=1, ensembles=[(0, ["bookie"])]
    )
    state = store.storage.state(ledger_id)
    known = {} if state is None else {name: getattr(state, name) for name in LedgerState.__slots__}
    known.pop("incarnation", None)
    return {"metadata": metadata, "state": known, "entries": list(stored_entries(store, ledger_id))}


def same_ledgers(one: Store, other: Store) -> None:
    assert list(one.list_ledgers()) == list(other.list_ledgers())
    for ledger_id in one.list_ledgers():
        assert ledger_of(one, ledger_id) == ledger_of(other, ledger_id), ledger_id


def nodes_of(store: Store) -> dict[str, bytes]:
    """All but those of ledgers and bookies, and but those that are only there for others to be below them."""
    found = {path: store.nodes.get(path)[0] for path in store.storage.node_paths("/")}
    return {path: value for path, value in found.items() if value and not path.startswith("/ledgers/")}


def open_copy(store: Store, folder: Path) -> Store:
    """Of the store as it is now; what is done to the copy is not done to it."""
    store.backup(folder)
    return bookstand.open(folder, durability="none")


def entries_of(disks: Disks) -> Iterator[tuple[int, int, bytes]]:
    """All that there are, also behind gaps of ledgers that are not closed."""
    for ledger_id in disks.ledger_ids:
        ledger = disks.ledger(ledger_id)
        closed = ledger.metadata is not None and ledger.metadata.state == CLOSED
        for entry in ledger.entries(beyond=not closed):
            yield ledger_id, entry.entry_id, entry.stored
