"""Exports of stores that are damaged: what is lost is named, and costs no more than itself."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import bookstand
from bookstand import Store
from bookstand.disk.damage import Damage
from bookstand.disk.exporter.run import ExportReport, export_topics
from bookstand.disk.importer.run import import_disks
from bookstand.errors import StoreDamagedError
from bookstand.managed_ledger.records import LedgerInfo, decode_cursor_info, decode_ledger_info, encode_ledger_info
from bookstand.managed_ledger.topic_name import cursor_node_of, node_of
from tests.disk.exports import entries_of, ledger_of, opened
from tests.disk.full_store import ODD, PLAIN, FullStore
from tests.kit import change_entry, raw

ENTRIES = 20


@pytest.fixture
def full(tmp_path: Path) -> FullStore:
    """Closed."""
    with bookstand.open(tmp_path / "store", durability="none") as store:
        return FullStore(store, random.Random(4))


@pytest.fixture
def target() -> Iterator[Store]:
    with bookstand.temporary() as store:
        yield store


def export(tmp_path: Path, **options: object) -> ExportReport:
    with bookstand.open(tmp_path / "store", read_only=True) as store:
        return export_topics(store, tmp_path / "place", **options)  # type: ignore[arg-type]


def change_record(path: Path, database: bytes, key: bytes) -> None:
    """Of which its seal then says that it is another."""
    with raw(path, write=True) as databases:
        records = databases(database)
        stored = records[key]
        records[key] = stored[:-1] + bytes([stored[-1] ^ 1])


def ledger_key(ledger_id: int) -> bytes:
    return ledger_id.to_bytes(8, "big")


def named(report: ExportReport) -> list[tuple[int, int]]:
    return [(one.ledger_id, one.entry_id) for one in report.damage]


def the_rest_is_there(tmp_path: Path, report: ExportReport, without: set[tuple[int, int]], target: Store) -> None:
    """All entries but those; cursors may have other ledgers there."""
    with bookstand.open(tmp_path / "store", read_only=True) as store, opened(report) as disks:
        import_disks(disks, target)
        lost = {ledger_id for ledger_id, _ in without}
        for ledger_id in store.list_ledgers():
            if ledger_id in lost or "pulsar/cursor" in store.ledger_metadata(ledger_id).custom_metadata:
                continue
            assert ledger_of(store, ledger_id) == ledger_of(target, ledger_id)
        found = {(ledger_id, entry_id) for ledger_id, entry_id, _ in entries_of(disks)}
        assert not found & without


def test_lost_entries(tmp_path: Path, full: FullStore, target: Store) -> None:
    ledger_id = full.ledgers["crc32"]
    for entry_id in (3, 4, ENTRIES - 1):
        change_entry(tmp_path / "store", ledger_id, entry_id, lambda _: None)
    report = export(tmp_path)
    store = str(tmp_path / "store")
    assert report.damage == [
        Damage(store, -1, "entries 3 to 4 are lost", ledger_id, 3),
        Damage(store, -1, f"entries {ENTRIES - 1} to {ENTRIES - 1} are lost", ledger_id, ENTRIES - 1),
    ]
    without = {(ledger_id, entry_id) for entry_id in (3, 4, ENTRIES - 1)}
    the_rest_is_there(tmp_path, report, without, target)
    # And they are known to be lost in the store that takes it.
    with target.open_ledger(ledger_id, password=b"crc32") as reader:
        assert reader.last_add_confirmed == ENTRIES - 1
        with pytest.raises(StoreDamagedError, match="is missing"):
            reader.read(3, 3)


def test_lost_entries_of_an_open_ledger(tmp_path: Path, full: FullStore) -> None:
    ledger_id = full.ledgers["open"]
    change_entry(tmp_path / "store", ledger_id, 1, lambda _: None)
    report = export(tmp_path)
    assert named(report) == [(ledger_id, 1)]
    # What was never written is not lost.
    assert full.ledgers["gap"] not in {one.ledger_id for one in report.damage}


def test_a_damaged_entry_is_exported_as_it_is(tmp_path: Path, full: FullStore) -> None:
    """Whoever reads it is told by its digest; and perhaps somebody can use it."""
    ledger_id = full.ledgers["crc32c"]
    change_entry(tmp_path / "store", ledger_id, 7, lambda stored: stored[:-5] + b"wrong")
    report = export(tmp_path, ledgers=[ledger_id])
    assert named(report) == [(ledger_id, 7)]
    assert "digest" in report.damage[0].what
    assert report.entries == ENTRIES
    with opened(report) as disks:
        assert [entry_id for _, entry_id, _ in entries_of(disks)] == [one for one in range(ENTRIES) if one != 7]
        assert disks.damage


def test_what_says_that_it_is_another_entry_is_left_out(tmp_path: Path, full: FullStore) -> None:
    ledger_id = full.ledgers["hmac"]
    change_entry(tmp_path / "store", ledger_id, 7, lambda stored: stored[:8] + (8).to_bytes(8, "big") + stored[16:])
    change_entry(tmp_path / "store", ledger_id, 9, lambda stored: stored[:20])
    report = export(tmp_path, ledgers=[ledger_id])
    assert named(report) == [(ledger_id, 7), (ledger_id, 9)]
    assert report.entries == ENTRIES - 2
    with opened(report) as disks:
        assert [entry_id for _, entry_id, _ in entries_of(disks)] == [
            one for one in range(ENTRIES) if one not in (7, 9)
        ]
        assert disks.damage == []


@pytest.mark.parametrize("database", [b"ledgers", b"state"])
def test_damaged_records_of_a_ledger(tmp_path: Path, full: FullStore, target: Store, database: bytes) -> None:
    ledger_id = full.ledgers["far"]
    change_record(tmp_path / "store", database, ledger_key(ledger_id))
    report = export(tmp_path)
    assert named(report) == [(ledger_id, -1)]
    assert "damaged" in report.damage[0].what
    the_rest_is_there(tmp_path, report, {(ledger_id, entry_id) for entry_id in range(3)}, target)


def test_a_ledger_that_was_asked_for_by_its_id(tmp_path: Path, full: FullStore) -> None:
    ledger_id = full.ledgers["far"]
    change_record(tmp_path / "store", b"ledgers", ledger_key(ledger_id))
    report = export(tmp_path, ledgers=[ledger_id, full.ledgers["open"]])
    assert named(report) == [(ledger_id, -1)]
    assert report.entries == 3


def test_a_damaged_node(tmp_path: Path, full: FullStore, target: Store) -> None:
    path = cursor_node_of(PLAIN, "s-pages")
    change_record(tmp_path / "store", b"nodes", path.encode())
    report = export(tmp_path)
    (damage,) = report.damage
    assert f"node {path}" in damage.what
    with opened(report) as disks:
        assert disks.dump is not None
        assert path not in disks.dump.nodes
        assert disks.dump.cursors(PLAIN) == ["s-cum", "s-done", "s-idle", "s-snapshots"]
        # Its ledger is there, for whoever can make something of it.
        import_disks(disks, target)
    labels = [target.ledger_metadata(ledger_id).custom_metadata for ledger_id in target.list_ledgers()]
    assert b"s-pages" in {label.get("pulsar/cursor") for label in labels}


def test_records_of_topics_that_are_none(tmp_path: Path, full: FullStore) -> None:
    with bookstand.open(tmp_path / "store") as store:
        store.nodes.put(node_of(ODD), b"\xff\xff")
        store.nodes.put(cursor_node_of(PLAIN, "s-cum"), b"\xff")
    report = export(tmp_path)
    assert sorted(one.what.partition(":")[0] for one in report.damage) == [
        f"node {node_of(ODD)}",
        f"node {cursor_node_of(PLAIN, 's-cum')}",
    ]
    with opened(report) as disks:
        assert disks.dump is not None
        # As they are.
        assert disks.dump.nodes[node_of(ODD)].value == b"\xff\xff"
        assert ODD in disks.dump.unreadable_topics
    (tmp_path / "place").rename(tmp_path / "before")
    # Its ledgers are known by what they say of themselves.
    report = export(tmp_path, topics=[ODD])
    assert report.entries >= 20
    assert [one.what.partition(":")[0] for one in report.damage] == [f"node {node_of(ODD)}"]


@pytest.mark.parametrize("topics", [None, [PLAIN]])
def test_a_ledger_of_a_topic_that_is_gone(tmp_path: Path, full: FullStore, topics: list[str] | None) -> None:
    with bookstand.open(tmp_path / "store") as store:
        record, version = store.nodes.get(node_of(PLAIN))
        info = decode_ledger_info(record)
        gone = info.ledgers[1].ledger_id
        store.delete_ledger(gone)
        info.ledgers.append(LedgerInfo(1 << 62))
        store.nodes.put(node_of(PLAIN), encode_ledger_info(info), version)
    report = export(tmp_path, topics=topics)
    assert report.damage == [Damage(PLAIN, -1, "a ledger of it does not exist", one) for one in (gone, 1 << 62)]


def test_a_damaged_cursor_is_as_far_back_as_it_can_be_read(tmp_path: Path, full: FullStore, target: Store) -> None:
    with bookstand.open(tmp_path / "store", read_only=True) as store:
        record, _ = store.nodes.get(cursor_node_of(PLAIN, "s-pages"))
        ledger_id = decode_cursor_info(record).cursor_ledger_id
        state = store.storage.state(ledger_id)
        assert state is not None
        last = state.last_entry
    change_entry(tmp_path / "store", ledger_id, last, lambda stored: stored[:-1] + bytes([stored[-1] ^ 1]))
    report = export(tmp_path)
    assert report.damage
    assert all("'s-pages'" in one.what for one in report.damage)
    with opened(report) as disks:
        import_disks(disks, target)
    cursor = target.topic(PLAIN).cursor("s-pages", create=False)
    acked = full.acked[PLAIN]["s-pages"]
    # Nothing counts as acknowledged that is not.
    for lower, upper in cursor.acked_ranges():
        assert any(
            ledger == upper.ledger_id and first <= lower.entry_id + 1 and upper.entry_id <= last
            for ledger, first, last in acked.ranges
        )
    assert cursor.mark_delete_position <= acked.mark_delete
