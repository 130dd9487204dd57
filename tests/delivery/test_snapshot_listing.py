"""What a store says of the snapshots of delayed messages that it has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import bookstand
from bookstand.delivery.tracker.bucket.key import BucketKey, BucketLabels, bucket_key
from bookstand.delivery.tracker.shared_index import BUILDER
from bookstand.managed_ledger.topic_name import cursor_node_of
from tests.delivery.bucket_kit import SUBSCRIPTION, TOPIC, BucketBench, config_of, seq
from tests.delivery.shared_kit import Desk


@pytest.fixture
def b(tmp_path: Path) -> Iterator[BucketBench]:
    bench = BucketBench(tmp_path / "store", config_of(5, 30))
    yield bench
    bench.end()


def test_none(b: BucketBench) -> None:
    with b.store.create_ledger(1, 1, 1, password=b"") as writer:
        writer.append(b"x")
    assert b.store.bucket_snapshots() == []


def test_what_a_tracker_has(b: BucketBench) -> None:
    b.add(*seq(11))
    one, other = b.store.bucket_snapshots()
    first, second = b.tracker.buckets
    assert one == (
        first.bucket_id,
        TOPIC,
        SUBSCRIPTION,
        bucket_key(1, 5),
        BucketKey(1, 5),
        2,
        5,
        10,
        50,
        False,
        None,
    )
    assert (other.ledger_id, other.ledgers, other.messages, other.orphaned) == (second.bucket_id, (6, 10), 5, False)
    # The tracker goes on as if nobody had looked.
    b.go_to(1000)
    assert len(b.drain()) == 11
    assert b.store.bucket_snapshots() == []


def test_what_is_left_over(b: BucketBench) -> None:
    b.add(*seq(6))
    kept = b.tracker.buckets[0].bucket_id
    replaced = b.write_bucket(7, 8, [(7, 1, 100)])
    taking = b.write_bucket(7, 8, [(7, 1, 100), (8, 1, 200)])
    nobodys = b.storage.create([b""], BucketLabels(bucket_key(1, 5), TOPIC, "gone"))
    nowheres = b.storage.create([b""], BucketLabels("no key", "no topic", ""))
    found = {one.ledger_id: one for one in b.store.bucket_snapshots()}
    assert list(found) == sorted([kept, replaced, taking, nobodys, nowheres])
    assert {ledger for ledger, one in found.items() if one.orphaned} == {replaced, nobodys, nowheres}
    assert (found[nowheres].key, found[nowheres].ledgers, found[nowheres].messages) == ("no key", None, 0)
    assert found[nobodys].cursor == "gone"


def test_damage(b: BucketBench) -> None:
    damaged = b.storage.create([b"\xff" * 9], BucketLabels(bucket_key(1, 5), b.home.topic, b.home.cursor))
    b.set_property(bucket_key(1, 5), str(damaged))
    (one,) = b.store.bucket_snapshots()
    assert (one.ledger_id, one.orphaned, one.messages, one.segments) == (damaged, False, None, None)
    assert one.problem
    assert str(damaged) in one.problem
    b.cursor.close()
    b.store.nodes.put(cursor_node_of(TOPIC, SUBSCRIPTION), b"\xff\xff")
    (one,) = b.store.bucket_snapshots()
    assert one.orphaned is None


def test_a_snapshot_that_was_not_closed_stays_so(tmp_path: Path) -> None:
    with bookstand.open(tmp_path / "store") as store:
        b = BucketBench(tmp_path / "store", config_of(5, 30))
        with store.transaction() as transaction:
            labels = BucketLabels(bucket_key(1, 5), TOPIC, SUBSCRIPTION)
            writer = b.storage.create_in(transaction, [b""], labels)
        assert [one.ledger_id for one in store.bucket_snapshots()] == [writer.id]
        assert not store.is_closed(writer.id)
        writer.append(b"")
        b.end()


def test_read_only_and_of_a_shared_index(tmp_path: Path) -> None:
    desk = Desk("ab")
    desk.publish(*range(100, 130))
    desk.index.catch_up()
    found = desk.store.bucket_snapshots()
    assert [one.ledger_id for one in found] == desk.snapshots
    assert {(one.topic, one.cursor, one.orphaned) for one in found} == {(TOPIC, BUILDER, False)}
    assert sum(one.messages or 0 for one in found) == sum(bucket.waiting for bucket in desk.index.tracker.buckets)
    desk.store.backup(tmp_path / "copy")
    with bookstand.open(tmp_path / "copy", read_only=True) as copy:
        assert copy.bucket_snapshots() == found
    desk.end()
