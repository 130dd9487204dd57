"""A plan bounds what is read: what is written later, whoever reads when, is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.delivery.topic_config import TopicConfig
from bookstand.delivery.tracker.bucket.key import bucket_key
from bookstand.delivery.tracker.bucket.snapshot.codec import seal
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.errors import IncorrectParameterError, NotAStoreError, StoreNotFoundError
from bookstand.pipeline.tables.partitioning import ReadPart, target_parallelism
from bookstand.pipeline.tables.predicate import Predicate
from bookstand.pipeline.tables.query import Query, query
from bookstand.pipeline.tables.record_batches import DamagedDataError
from bookstand.pipeline.tables.schemas import TABLES
from bookstand.pipeline.tables.sources import bookies, stores
from bookstand.pipeline.tables.tables import plan, plan_all, rows
from bookstand.testing.clock import VirtualClock

NOW = 1_000_000


def all_of(parts: list[ReadPart], asked: Query) -> list[dict[str, Any]]:
    return [row for part in parts for batch in rows(part, asked) for row in batch.to_pylist()]


def grow(store: bookstand.Store, entries: int) -> None:
    """A topic with a subscription, some messages acknowledged, some delayed."""
    config = TopicConfig(
        max_entries_per_ledger=40,
        trim_consumed=False,
        delayed_delivery_tracker="bucket",
        delayed_delivery_min_index_count_per_bucket=20,
    )
    topic = store.topic("orders", config)
    waiting = topic.subscription("sub")
    for number in range(entries):
        topic.publish(b"message %d" % number, deliver_at=NOW + 10_000 + number if number % 3 == 0 else None)
    for message in waiting.receive(entries, timeout=0):
        if message.position.entry_id % 2:
            waiting.ack(message)
    topic.cursor("sub").flush()


@pytest.mark.long
@pytest.mark.parametrize("table", TABLES)
def test_what_is_written_after_the_plan_is_not_there(tmp_path: Path, table: str) -> None:
    with bookstand.open(tmp_path / "store", clock=VirtualClock(NOW)) as store:
        grow(store, 90)
        (place,) = stores(tmp_path / "store")
        asked = query(table, unsealed=True) if table == "delayed_index" else query(table)
        parts = plan(place, asked)
        before = all_of(parts, asked)
        assert before
        grow(store, 90)
        store.create_ledger().append(b"new")
        assert all_of(parts, asked) == before
        assert all_of(plan(place, asked), asked) != before


@pytest.mark.parametrize("table", ["entries", "ledgers"])
def test_what_is_deleted_after_the_plan_is_told(tmp_path: Path, table: str) -> None:
    with bookstand.open(tmp_path / "store") as store:
        for _ in range(3):
            with store.create_ledger() as writer:
                writer.append_many([b"x"] * 5)
        (place,) = stores(tmp_path / "store")
        asked = query(table)
        parts = plan(place, asked)
        store.delete_ledger(1)
        store.compact()
        found = all_of(parts, asked)
        assert {row["ledger_id"] for row in found if not row["error"]} == {0, 2}
        (gone,) = [row for row in found if row["error"]]
        assert gone["ledger_id"] == 1
        assert "ledger 1: the ledger is gone since the read was planned" in gone["error"]
        with pytest.raises(DamagedDataError, match="ledger 1"):
            all_of(parts, query(table, strict=True))


def test_filters_keep_tasks_from_reading_what_is_not_wanted(tmp_path: Path) -> None:
    with bookstand.open(tmp_path / "store") as store:
        for _ in range(4):
            with store.create_ledger() as writer:
                writer.append_many([b"x" * 100] * 50)
    (place,) = stores(tmp_path / "store")
    asked = query("entries", wanted=Predicate().between("ledger_id", 1, 2).between("entry_id", 10, 19))
    parts = plan(place, asked)
    assert [tuple(one)[:3] for part in parts for one in part.work] == [(1, 10, 19), (2, 10, 19)]
    assert len(all_of(parts, asked)) == 20
    assert plan(place, query("entries", wanted=Predicate().among("place", {"/elsewhere"}))) == []


def test_segments_that_are_not_due_are_not_read(tmp_path: Path) -> None:
    clock = VirtualClock(NOW)
    config = TopicConfig(
        max_entries_per_ledger=100, delayed_delivery_tracker="bucket", delayed_delivery_min_index_count_per_bucket=50
    )
    with bookstand.open(tmp_path / "store", clock=clock) as store:
        topic = store.topic("orders", config)
        waiting = topic.subscription("sub")
        for number in range(400):
            topic.publish(b"x", deliver_at=NOW + 600_000 * (1 + number % 10))
        waiting.receive(400, timeout=0)
    (place,) = stores(tmp_path / "store")
    whole = all_of(plan(place, query("delayed_index")), query("delayed_index"))
    assert whole
    low, high = NOW + 1_200_000, NOW + 1_800_000
    asked = query("delayed_index", wanted=Predicate().between("deliver_at_ms", low, high))
    parts = plan(place, asked)
    assert all_of(parts, asked) == [row for row in whole if low <= row["deliver_at_ms"] <= high]
    segments = {row["segment"] for row in whole}
    read = {number for part in parts for one in part.work.ranges for number in range(one.first, one.last + 1)}
    assert len(read) < len(segments)


def test_a_merge_that_was_broken_off_leaves_messages_in_two_buckets(tmp_path: Path) -> None:
    """The broker names the merged bucket first, and those that it is made of no longer after that."""
    with bookstand.open(tmp_path / "store", clock=VirtualClock(NOW)) as store:
        grow(store, 200)
    (place,) = stores(tmp_path / "store")
    asked = query("delayed_index")
    before = all_of(plan(place, asked), asked)
    rows_before = sorted((row["deliver_at_ms"], row["ledger_id"], row["entry_id"]) for row in before)
    ledger_ids = [row[1] for row in rows_before]
    merged = seal(Indexes.of(*zip(*rows_before, strict=True)), 300_000)
    with bookstand.open(tmp_path / "store", clock=VirtualClock(NOW)) as store:
        cursor = store.topic("orders").cursor("sub")
        key = bucket_key(min(ledger_ids), max(ledger_ids))
        storage = BucketSnapshotStorage(store._client)
        first, *others = merged.entries
        bucket = storage.create_bucket_snapshot(first, others, key, cursor.topic.name, "sub").result()
        cursor.put_cursor_property(key, str(bucket))
    after = all_of(plan(place, asked), asked)
    both = {row["bucket_ledger_id"] for row in before} | {bucket}
    assert len(both) > 2
    assert {row["bucket_ledger_id"] for row in after} == both
    rows_after = [(row["deliver_at_ms"], row["ledger_id"], row["entry_id"]) for row in after]
    assert sorted(rows_after) == sorted(rows_before * 2)


def test_much_is_divided_further_than_the_planning_machine_has_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1})
    counts = [target_parallelism(query("entries"), weight << 20) for weight in (0, 4, 8, 100, 128, 129, 6400)]
    assert counts == [1, 1, 2, 2, 2, 3, 100]
    assert target_parallelism(query("entries", partitions=7), 6400 << 20) == 7


# -- places ------------------------------------------------------------------------------------------------------------


def test_stores_by_list_and_glob(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        with bookstand.open(tmp_path / name) as store:
            store.create_ledger().append(b"x")
    (tmp_path / "notes.txt").write_text("no store")
    (tmp_path / "empty").mkdir()
    every = [str(tmp_path / name) for name in ("a", "b", "c")]
    assert [place.name for place in stores(tmp_path / "*")] == every
    assert [place.name for place in stores([tmp_path / "c", str(tmp_path / "[ab]"), tmp_path / "a"])] == [
        every[2],
        *every[:2],
    ]
    asked = query("entries", partitions=2)
    bundles = plan_all(stores(tmp_path / "*"), asked)
    assert len(bundles) == 2
    assert sorted(row["place"] for bundle in bundles for row in all_of(list(bundle), asked)) == every
    assert [place.name for place in stores(f"file://{tmp_path}/%61")] == every[:1]
    (tmp_path / "a").rename(tmp_path / "[b]")
    assert [place.name for place in stores(tmp_path / "[b]")] == [str(tmp_path / "[b]")]
    for wrong in (tmp_path / "nothing-*", tmp_path / "nothing"):
        with pytest.raises(StoreNotFoundError):
            stores(wrong)
    with pytest.raises(NotAStoreError):
        stores(tmp_path / "empty")
    with pytest.raises(NotAStoreError):
        bookies(tmp_path / "b")
    with pytest.raises(IncorrectParameterError):
        stores([])


def test_without_metadata_nobody_knows_topics(tmp_path: Path) -> None:
    from tests.disk.cluster import Cluster

    cluster = Cluster(tmp_path)
    cluster.ledger(3, [b"x"])
    cluster.open().close()
    place = bookies(tmp_path)
    assert len(all_of(plan(place, query("entries")), query("entries"))) == 1
    for table in ("messages", "cursors", "acks", "delayed_buckets", "delayed_index", "nodes"):
        with pytest.raises(IncorrectParameterError, match="option metadata"):
            plan(place, query(table))
