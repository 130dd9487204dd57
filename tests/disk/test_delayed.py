"""Delayed indexes as the disks have them: against what the original's tracker says, and with buckets damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyroaring import BitMap64

from bookstand.delivery.tracker.bucket.key import BucketLabels, bucket_key, custom_metadata
from bookstand.delivery.tracker.bucket.snapshot.codec import decode_metadata, seal
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.disk.disks import Disks
from bookstand.disk.topics import cursors, delayed, topics
from bookstand.disk.topics.delayed import DelayedIndex
from bookstand.managed_ledger.message.format import encode_message
from bookstand.managed_ledger.records import CursorInfo
from bookstand.storage.format.position import Position
from tests.disk.cluster import TOPIC, Cluster
from tests.disk.recordings import RECORDINGS, dump_path, truth

Recorded = tuple[str, Disks]


@pytest.fixture(scope="module", params=RECORDINGS)
def recorded(request: pytest.FixtureRequest, unpacked: Callable[[str], Path]) -> Iterator[Recorded]:
    with Disks.open([unpacked(request.param)], dump_path(request.param)) as disks:
        yield request.param, disks


# -- recorded disks --------------------------------------------------------------------------------------------------


def described(index: DelayedIndex) -> list[dict[str, Any]]:
    """Buckets as the truth has them."""
    return [
        {
            "property": bucket.property_name,
            "ledger_id": bucket.ledger_id,
            "segments": [
                {
                    "entry": segment.entry,
                    "min": segment.min_time,
                    "max": segment.max_time,
                    "bitmaps": {str(ledger): list(bitmap) for ledger, bitmap in segment.bitmaps.items()},
                    "indexes": [list(row) for row in segment.indexes.indexes],
                }
                for segment in bucket.segments()
            ],
        }
        for bucket in index.buckets
    ]


def test_recorded_delayed_indexes(recorded: Recorded) -> None:
    name, disks = recorded
    found = {
        (topic.name, index.cursor.name): index for topic in topics.topics(disks) for index in delayed.delayed(topic)
    }
    for line in truth(name, "delayed"):
        index = found.pop((line["topic"], line["subscription"]))
        buckets = described(index)
        for bucket in line["buckets"]:
            last = bucket.pop("ledger_last_entry")
            assert last == len(bucket["segments"])
        by_ledger = sorted(line["buckets"], key=lambda bucket: int(bucket["ledger_id"]))
        assert sorted(buckets, key=lambda bucket: int(bucket["ledger_id"])) == by_ledger
        assert index.count() == line["tracker_count"]
        assert sum(rows.size for rows in index.rows()) == line["tracker_count"]
    assert {index.count() for index in found.values()} <= {0}
    assert not [damage for damage in disks.damage if damage.file.startswith("persistent:")]


def test_nothing_that_waits_is_left_out(recorded: Recorded) -> None:
    name, disks = recorded
    for line in truth(name, "delayed"):
        cursor = cursors.cursor(topics.topic(disks, line["topic"]), line["subscription"])
        now = delayed.time_of(disks)
        found = DelayedIndex(cursor, now).positions()
        waiting = {
            Position(one["ledger"], one["entry"])
            for one in truth(name, "messages")
            if one["topic"] == line["topic"] and one["metadata"].get("deliver_at_time", 0) > now
        }
        assert waiting
        missing = {at for at in waiting if not cursor.is_acked(at) and at.entry_id not in found.get(at.ledger_id, ())}
        assert not missing


# -- made buckets ----------------------------------------------------------------------------------------------------

NOW = 1_000
LEDGERS = (3, 4, 6)
PER_LEDGER = 50


def time_of(ledger_id: int, entry_id: int) -> int | None:
    """Every fifth message is not delayed; the others wait, some only until now."""
    return None if entry_id % 5 == 0 else NOW - 100 + (entry_id * 37 + ledger_id * 11) % 1000


DELAYED = {
    Position(ledger_id, entry_id): time
    for ledger_id in LEDGERS
    for entry_id in range(PER_LEDGER)
    if (time := time_of(ledger_id, entry_id)) is not None
}


def rows(first_ledger: int, last_ledger: int) -> Indexes:
    chosen = [(time, *at) for at, time in DELAYED.items() if first_ledger <= at.ledger_id <= last_ledger and time > NOW]
    return Indexes.of(*zip(*sorted(chosen), strict=True))


def segments_of(first_ledger: int, last_ledger: int) -> list[Indexes]:
    snapshot = seal(rows(first_ledger, last_ledger), 50)
    return [snapshot.segment(number) for number in range(1, snapshot.segment_count + 1)]


def bucket_entries(first_ledger: int, last_ledger: int, **options: Any) -> list[bytes]:
    return seal(rows(first_ledger, last_ledger), 50, **options).entries


ACKED = {4: BitMap64([1, 2, 3]), 6: BitMap64([11])}
BUCKET, SECOND = 30, 31


class Case:
    """A subscription with a bucket for ledgers 3 and 4, in ledger 30, and one for ledger 6, in ledger 31."""

    def __init__(self, folder: Path) -> None:
        self.cluster = Cluster(folder)
        self.cluster.topic(
            {
                ledger_id: [
                    encode_message(b"x", publish_time=1, deliver_at=time_of(ledger_id, entry_id))
                    for entry_id in range(PER_LEDGER)
                ]
                for ledger_id in LEDGERS
            }
        )
        self.entries = {BUCKET: bucket_entries(3, 4), SECOND: bucket_entries(6, 6)}
        self.keys = {BUCKET: bucket_key(3, 4), SECOND: bucket_key(6, 6)}
        self.labels = {ledger_id: BucketLabels(key, TOPIC, "sub") for ledger_id, key in self.keys.items()}
        self.lost: dict[int, list[int]] = {}

    def read(self, *, buckets: bool = True) -> tuple[DelayedIndex, dict[int, BitMap64], list[Any]]:
        """The index, what waits by it, and what is reported."""
        for ledger_id, entries in self.entries.items():
            custom = custom_metadata(self.labels[ledger_id])
            self.cluster.ledger(ledger_id, entries, custom=custom, without=self.lost.get(ledger_id, ()))
        ranges = tuple(
            (ledger_id, entry - 1, ledger_id, entry) for ledger_id, acked in ACKED.items() for entry in acked
        )
        properties = tuple((key, str(ledger_id)) for ledger_id, key in self.keys.items()) if buckets else ()
        self.cluster.cursor("sub", CursorInfo(-1, Position(3, 9), ranges=ranges, cursor_properties=properties))
        with self.cluster.open() as disks:
            index = DelayedIndex(cursors.cursor(topics.topic(disks, TOPIC), "sub"), NOW)
            found = index.positions()
            return index, found, [damage for damage in disks.damage if damage.file == TOPIC]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def waiting(now: int = NOW) -> dict[int, BitMap64]:
    """Messages that are delayed: not acknowledged, and due later."""
    found: dict[int, BitMap64] = {}
    for (ledger_id, entry_id), time in DELAYED.items():
        acked = Position(ledger_id, entry_id) <= Position(3, 9) or entry_id in ACKED.get(ledger_id, ())
        if time > now and not acked:
            found.setdefault(ledger_id, BitMap64()).add(entry_id)
    return found


def test_whole_buckets(case: Case) -> None:
    index, found, damage = case.read()
    assert found == waiting()
    held = rows(3, 6)
    assert held.size > sum(map(len, found.values()))
    assert [bucket.ledger_id for bucket in index.buckets] == [BUCKET, SECOND]
    assert not damage


def test_without_buckets_the_topic_tells(case: Case) -> None:
    index, found, damage = case.read(buckets=False)
    assert found == waiting()
    assert index.buckets == []
    assert not damage


def test_a_bucket_that_is_gone(case: Case) -> None:
    del case.entries[BUCKET]
    _, found, damage = case.read()
    assert found == waiting()
    assert {one.ledger_id for one in damage} == {BUCKET}
    assert "3_4" in damage[0].what


@pytest.mark.parametrize("entry", [b"", b"\xff", b"\x0a\x03abc"])
def test_a_bucket_without_metadata(case: Case, entry: bytes) -> None:
    case.entries[SECOND][0] = entry
    _, found, damage = case.read()
    assert found == waiting()
    # No bytes at all are metadata of no segment, which nothing tells from a bucket that holds none.
    assert {one.ledger_id for one in damage} <= {SECOND}
    assert damage or not entry


def test_a_damaged_segment_costs_no_other(case: Case) -> None:
    segments = segments_of(3, 4)
    assert len(segments) > 5
    lost = 2
    case.entries[BUCKET][lost] = b"\x0a\x7f"
    _, found, damage = case.read()
    assert {(one.ledger_id, one.entry_id) for one in damage} == {(BUCKET, lost)}
    # The topic has what was in the segment.
    assert found == waiting()


def test_lost_entries_of_a_bucket(case: Case) -> None:
    case.lost[BUCKET] = [2, 4]
    _, found, damage = case.read()
    assert {(one.ledger_id, one.entry_id) for one in damage} == {(BUCKET, 2), (BUCKET, 4)}
    for ledger_id, bitmap in waiting().items():
        assert bitmap <= found[ledger_id]


def test_a_segment_that_is_not_what_the_metadata_says(case: Case) -> None:
    case.entries[BUCKET][2], case.entries[BUCKET][3] = case.entries[BUCKET][3], case.entries[BUCKET][2]
    _, found, damage = case.read()
    assert [(one.ledger_id, one.entry_id) for one in damage] == [(BUCKET, 2), (BUCKET, 3)]
    assert found == waiting()


@pytest.mark.parametrize("labels", [{"topic": TOPIC + "-x"}, {"cursor": "other"}, {"key": bucket_key(3, 5)}])
def test_a_bucket_of_somebody_else(case: Case, labels: dict[str, str]) -> None:
    case.labels[BUCKET] = case.labels[BUCKET]._replace(**labels)
    _, found, damage = case.read()
    assert found == waiting()
    assert any("says that it is" in one.what for one in damage)


def test_properties_that_name_no_bucket(case: Case) -> None:
    case.keys[SECOND] = "#pulsar.internal.delayed.bucket_6"
    _, found, damage = case.read()
    assert found == waiting()
    assert len(damage) == 1


def test_metadata_in_several_entries(case: Case) -> None:
    case.entries[BUCKET] = bucket_entries(3, 4, entry_limit=400)
    first = decode_metadata(case.entries[BUCKET][0])
    assert first.segment_count is not None
    assert first.segment_count > len(first.metadata_list)
    index, found, damage = case.read()
    assert found == waiting()
    assert not damage
    assert len(index.buckets) == 2


def test_what_is_due_is_not_delayed(case: Case) -> None:
    _, found, _ = case.read()
    later = int(np.median(rows(3, 6).timestamps))
    with case.cluster.open() as disks:
        again = DelayedIndex(cursors.cursor(topics.topic(disks, TOPIC), "sub"), later)
        assert again.positions() == waiting(later)
        # Of a segment of which some messages are due, the others are delayed.
        assert any(segment.min_time <= later < segment.max_time for one in again.buckets for segment in one.segments())
        assert 0 < again.count() < sum(map(len, found.values()))


def test_a_damaged_message_is_taken_for_one_without_delay(case: Case) -> None:
    case.cluster.topic({7: [b"", encode_message(b"x", publish_time=1, deliver_at=NOW + 1)]}, TOPIC)
    case.cluster.cursor("sub", CursorInfo(-1, Position(7, -1)))
    with case.cluster.open() as disks:
        index = DelayedIndex(cursors.cursor(topics.topic(disks, TOPIC), "sub"), NOW)
        assert index.positions() == {7: BitMap64([1])}
        assert [(one.ledger_id, one.entry_id) for one in disks.damage if one.file == TOPIC] == [(7, 0)]
