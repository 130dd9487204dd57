"""Cursors in exports: the same acknowledgments, in a form that every reader of the original's knows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import bookstand
from bookstand import Store
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.format import record
from bookstand.cursor.store import recovery
from bookstand.disk.exporter import cursors as exported_cursors
from bookstand.disk.exporter.run import ExportReport, export_topics
from bookstand.disk.importer.run import import_disks
from bookstand.disk.topics import cursors, topics
from bookstand.disk.topics.cursors import DiskCursor
from bookstand.managed_ledger.message.compression import NUMBERS
from bookstand.managed_ledger.records import decode_cursor_info
from bookstand.managed_ledger.topic_name import cursor_node_of
from bookstand.storage.format.position import Position
from tests.disk.cluster import TOPIC, Cluster
from tests.disk.exports import imported, opened
from tests.disk.full_store import Acked, acked_of

LEDGERS, PER_LEDGER, BATCH = 5, 40, 70
PAGES = CursorConfig(flush_interval=1e9)


class OnTopic(NamedTuple):
    store: Store
    entries: list[Position]

    def cursor(self, name: str, config: CursorConfig = PAGES, **options: object) -> Cursor:
        topic = self.store.topic(TOPIC)
        return topic.cursor(name, config, **options)

    def export(self, folder: Path, **options: object) -> ExportReport:
        return export_topics(self.store, folder, [TOPIC], **options)  # type: ignore[arg-type]


@pytest.fixture
def on_topic() -> Iterator[OnTopic]:
    with bookstand.temporary() as store:
        topic = store.managed_ledger(TOPIC, max_entries_per_ledger=PER_LEDGER)
        entries = topic.append_many([b"."] * (LEDGERS * PER_LEDGER))
        topic.close()
        yield OnTopic(store, entries)


def read(report: ExportReport, check: Callable[[DiskCursor], object]) -> None:
    """Each cursor of the export, which is as the original reads it."""
    with opened(report) as disks:
        for cursor in cursors.cursors(topics.topic(disks, TOPIC)):
            assert disks.dump is not None
            stored = disks.dump.nodes[cursor_node_of(TOPIC, cursor.name)].value
            assert not stored.startswith(b"\x47\x78"), "compressed"
            if cursor.info.cursor_ledger_id >= 0:
                assert cursor.source.how == recovery.SNAPSHOT
                ledger = disks.ledger(cursor.info.cursor_ledger_id)
                assert not record.is_ours(list(ledger.entries())[-1].payload)
                assert cursor.info.ranges == cursor.info.batches == ()
            else:
                assert cursor.source.how == recovery.RECORD
                assert cursor.info.batches == ()
            assert cursor.skipped == ()
            check(cursor)
        assert disks.damage == []


def acknowledge(rng: random.Random, cursor: Cursor, entries: list[Position]) -> None:
    kind = rng.randrange(4)
    if kind == 0:
        cursor.ack(rng.sample(entries, rng.randint(1, len(entries))))
    elif kind == 1:
        for position in rng.sample(entries, 5):
            if not cursor.is_acked(position):
                cursor.ack_batch(position, rng.sample(range(BATCH), rng.randint(1, BATCH - 1)), BATCH)
    elif kind == 2:
        position = entries[rng.randrange(len(entries)) // 3]
        if position > cursor.mark_delete_position:
            cursor.mark_delete(position, {"a": rng.getrandbits(60), "b": -1})
    else:
        start = rng.randrange(len(entries))
        cursor.ack(entries[start : start + rng.randint(1, 50)])


def test_any_cursors(on_topic: OnTopic, tmp_path: Path) -> None:
    """Of all kinds, open and closed, exported and imported."""
    rng = random.Random(1)
    expected: dict[str, Acked] = {}
    for number in range(60):
        config = CursorConfig(
            flush_interval=1e9,
            enable_lru_cache_max_unacked_ranges=rng.random() < 0.6,
            persist_as_long_array=rng.random() < 0.5,
            compression=rng.choice((None, *NUMBERS)),
            compression_threshold=rng.choice((0, 200)),
            retained_cursor_ledgers=rng.choice((0, 2)),
            max_entries_per_cursor_ledger=rng.choice((2, 1000)),
        )
        name = f"cursor/{number} +ü"
        properties = {"owner": "ü" * 200} if rng.random() < 0.5 else {}
        cursor = on_topic.cursor(name, config, cursor_properties=properties)
        for _ in range(rng.randint(0, 6)):
            acknowledge(rng, cursor, on_topic.entries)
            cursor.flush()
        expected[name] = acked_of(cursor)
        if rng.random() < 0.5:
            cursor.close()
    report = on_topic.export(tmp_path / "place")
    assert report.damage == []
    assert 20 < report.cursors < 60
    found = {}

    def keep(cursor: DiskCursor) -> None:
        found[cursor.name] = cursor.state

    read(report, keep)
    assert found.keys() == expected.keys()
    with bookstand.temporary() as target:
        imported(report, target)
        topic = target.managed_ledger(TOPIC, create=False)
        for name, acked in expected.items():
            with Cursor.open(topic, name, create=False) as cursor:
                assert acked_of(cursor) == acked
            assert found[name].mark_delete == acked.mark_delete


def test_what_is_in_the_old_form_already_stays(on_topic: OnTopic, tmp_path: Path) -> None:
    config = CursorConfig(
        flush_interval=1e9, enable_lru_cache_max_unacked_ranges=False, max_unacked_ranges_in_metadata_store=0
    )
    with on_topic.cursor("sub", config) as cursor:
        cursor.ack(on_topic.entries[1::2])
        acked = acked_of(cursor)
    before, _ = on_topic.store.nodes.get(cursor_node_of(TOPIC, "sub"))
    report = on_topic.export(tmp_path / "place")
    assert report.cursors == 0

    def check(cursor: DiskCursor) -> None:
        # Fields that only bookstand knows are left out.
        assert cursor.info == decode_cursor_info(before)._replace(unknown=b"")
        assert cursor.state.mark_delete == acked.mark_delete

    read(report, check)


def test_former_ledgers_are_left_behind(on_topic: OnTopic, tmp_path: Path) -> None:
    config = CursorConfig(flush_interval=1e9, retained_cursor_ledgers=3, max_entries_per_cursor_ledger=1)
    cursor = on_topic.cursor("sub", config)
    for position in on_topic.entries[3:9]:
        cursor.ack([position])
        cursor.flush()
    of_cursor = {
        ledger_id
        for ledger_id in on_topic.store.list_ledgers()
        if "pulsar/cursor" in on_topic.store.ledger_metadata(ledger_id).custom_metadata
    }
    assert len(of_cursor) == 4
    with opened(on_topic.export(tmp_path / "old")) as disks:
        assert not of_cursor & disks.dump.ledgers.keys()  # type: ignore[union-attr]
    # As the store has it, it has its history with it.
    report = on_topic.export(tmp_path / "as-it-is", old_form=False)
    history = cursor.history()
    assert len(history) > 3
    with bookstand.temporary() as target:
        imported(report, target)
        topic = target.managed_ledger(TOPIC, create=False)
        with Cursor.open(topic, "sub", config, create=False) as again:
            assert again.history() == history


def test_many_ranges_go_into_a_ledger(on_topic: OnTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the original keeps in a record by default, without a batch among them."""
    monkeypatch.setattr(exported_cursors, "_INLINE", CursorConfig(max_unacked_ranges_in_metadata_store=20))
    for name, count in (("many", 21), ("few", 20)):
        cursor = on_topic.cursor(name)
        cursor.ack(on_topic.entries[1 : 2 * count : 2])
        cursor.flush()
        assert len(cursor.acked_ranges()) == count
    places = {}

    def check(cursor: DiskCursor) -> None:
        places[cursor.name] = cursor.info.cursor_ledger_id
        assert sum(map(len, cursor.state.acked.values())) == {"many": 21, "few": 20}[cursor.name]

    read(on_topic.export(tmp_path / "place"), check)
    assert places["few"] == -1
    # Behind all that the store has given.
    assert places["many"] > max(on_topic.store.list_ledgers())


def test_words_where_ranges_take_too_much_room(
    on_topic: OnTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = on_topic.cursor("sub")
    cursor.ack(on_topic.entries[1::2])
    cursor.ack_batch(on_topic.entries[2], [1], 3)
    cursor.flush()
    acked = acked_of(cursor)
    sizes = []
    for largest in (1 << 20, 1000, 60):
        monkeypatch.setattr(exported_cursors, "_LARGEST_SNAPSHOT", largest)
        report = on_topic.export(tmp_path / str(largest))
        told = [one.what for one in report.damage]
        with opened(report) as disks:
            found = cursors.cursor(topics.topic(disks, TOPIC), "sub")
            (entry,) = disks.ledger(found.ledger_id).entries()
        assert len(entry.payload) <= largest
        sizes.append(len(entry.payload))
        assert found.state.mark_delete == acked.mark_delete
        if largest == 60:
            # Of what has no room the lowest is there, and nothing that is not acknowledged.
            assert ["'sub': no entry has room" in what for what in told] == [True]
            left = sum(map(len, found.state.acked.values()))
            assert left < len(acked.ranges)
            for ledger_id, some in found.state.acked.items():
                assert all(Position(ledger_id, entry_id) in on_topic.entries[1::2] for entry_id in some)
        else:
            assert not told
            assert sum(map(len, found.state.acked.values())) == len(acked.ranges)
            assert len(found.state.batches) == 1
    assert sizes[0] > 1000 > sizes[1]


@pytest.mark.parametrize("lost", ["marker", "everything"])
def test_a_cursor_that_was_cut_off(on_topic: OnTopic, tmp_path: Path, lost: str) -> None:
    """Pages behind the last marker: an old reader would take them for the state."""
    cursor = on_topic.cursor("sub")
    cursor.ack(on_topic.entries[1:20:2])
    cursor.flush()
    before = acked_of(cursor)
    cursor.ack(on_topic.entries[21::2])
    cursor.flush()
    info = decode_cursor_info(on_topic.store.nodes.get(cursor_node_of(TOPIC, "sub"))[0])

    def cut(ledger_id: int, payloads: list[bytes]) -> list[bytes]:
        if ledger_id != info.cursor_ledger_id:
            return payloads
        return payloads[:-1] if lost == "marker" else []

    made = Cluster(tmp_path / "cut")
    made.copy(on_topic.store, "sub", cut)
    found = []
    with made.open() as disks, bookstand.temporary() as target:
        import_disks(disks, target)
        expected = cursors.cursor(topics.topic(disks, TOPIC), "sub").state
        report = export_topics(target, tmp_path / "place")
        read(report, lambda cursor: found.append(cursor.state))
    assert found == [expected]
    assert expected.mark_delete == before.mark_delete
    assert sum(map(len, expected.acked.values())) == (len(before.ranges) if lost == "marker" else 0)
    assert report.damage
