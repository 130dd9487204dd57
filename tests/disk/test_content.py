"""What ledgers are, told from their entries alone: against what their metadata says."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.cursor.format import position_info
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.delivery.tracker.bucket.snapshot.codec import seal
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.disk.disks import Disks
from bookstand.disk.topics import cursors, ledger_kind, topics
from bookstand.disk.topics.cursors import LedgerState
from bookstand.disk.topics.ledger_kind import Group, LedgerKind, by_entries, by_labels, groups
from bookstand.managed_ledger.message.format import encode_message
from bookstand.managed_ledger.topic_name import ledger_labels
from bookstand.storage.format.position import Position
from tests.disk.cluster import TOPIC, Cluster
from tests.disk.recordings import RECORDINGS, dump_path, truth
from tests.disk.recordings import settings as recorded_settings

Hidden = tuple[str, Disks]


@pytest.fixture(scope="module", params=RECORDINGS)
def hidden(request: pytest.FixtureRequest, unpacked: Callable[[str], Path]) -> Iterator[Hidden]:
    """A recording's disks without its metadata."""
    with Disks.open([unpacked(request.param)]) as disks:
        yield request.param, disks


def labels_of(line: dict[str, Any]) -> dict[str, bytes]:
    return {name: base64.b64decode(value) for name, value in line["metadata"]["custom_metadata"].items()}


def labelled(name: str) -> dict[int, LedgerKind | None]:
    """What the metadata says of each ledger, of deleted ones as well; None: nothing of Pulsar's."""
    lines = truth(name, "ledgers")
    if name != "f":
        lines += [line for group in truth(name, "deleted") for line in group["ledgers"]]
    return {line["ledger_id"]: by_labels(labels_of(line)) for line in lines}


# -- recorded disks --------------------------------------------------------------------------------------------------


def test_kinds_by_entries_are_those_of_the_labels(hidden: Hidden) -> None:
    name, disks = hidden
    exists = set(disks.ledger_ids).__contains__
    said = labelled(name)
    seen = set()
    for ledger_id in disks.ledger_ids:
        if ledger_id in said:
            told = said[ledger_id]
            kind = by_entries(disks.ledger(ledger_id), exists)
            assert kind == (ledger_kind.OTHER if told is None else told.kind), ledger_id
            seen.add(kind)
    everything = {
        ledger_kind.TOPIC,
        ledger_kind.CURSOR,
        ledger_kind.BUCKET,
        ledger_kind.OTHER,
        ledger_kind.SCHEMA,
        ledger_kind.COMPACTED,
    }
    # What each recording has: in b no cursor kept its ledger, d has no schema, e nothing but Pulsar's.
    without = {
        "b": {ledger_kind.CURSOR},
        "d": {ledger_kind.SCHEMA, ledger_kind.COMPACTED},
        "e": {ledger_kind.OTHER, ledger_kind.SCHEMA, ledger_kind.COMPACTED},
        "f": {ledger_kind.CURSOR, ledger_kind.SCHEMA, ledger_kind.COMPACTED},
    }
    assert seen == everything - without.get(name, set())


def test_groups_are_of_one_topic(hidden: Hidden) -> None:
    name, disks = hidden
    said = labelled(name)
    found = groups(disks)
    listed = [ledger_id for group in found for part in group for ledger_id in part]
    assert len(listed) == len(set(listed))
    for group in found:
        names = {told.topic for part in group for one in part if (told := said.get(one)) is not None}
        assert len(names) <= 1, group
        assert all(part == sorted(part) for part in group)
    topics_found = {one for group in found for one in group.ledgers}
    assert topics_found >= {
        ledger_id
        for ledger_id, told in said.items()
        if told is not None and told.kind == ledger_kind.TOPIC and ledger_id in set(disks.ledger_ids)
    }


def test_what_cursors_and_buckets_name_is_in_their_group(hidden: Hidden) -> None:
    name, disks = hidden
    of = {ledger_id: group for group in groups(disks) for part in group for ledger_id in part}
    there = {ledger_id for group in of.values() for ledger_id in group.ledgers}
    checked = 0
    # What a killed broker knew is not all on its disks.
    live = truth(name, "cursors-live") if recorded_settings(name)["stop"] == "graceful" else []
    for line in truth(name, "cursors") + live:
        group = of.get(line["cursor_ledger"])
        if group is None or line["cursor_ledger"] not in group.cursors:
            continue  # a ledger that only the restarted cluster has
        named = {one[0] for one in line["individually_deleted"]} | {line["mark_delete"][0]}
        if line["subscription"] == "pulsar.dedup" or not named <= there:
            continue
        assert named <= set(group.ledgers), line["subscription"]
        checked += 1
    for line in truth(name, "delayed"):
        for bucket in line["buckets"]:
            named = {int(ledger) for segment in bucket["segments"] for ledger in segment["bitmaps"]}
            assert named <= set(of[bucket["ledger_id"]].ledgers)
            assert bucket["ledger_id"] in of[bucket["ledger_id"]].buckets
            checked += 1
    assert checked


def test_a_group_reads_like_a_topic(hidden: Hidden) -> None:
    name, disks = hidden
    lines = [line for line in truth(name, "messages") if line["topic"].endswith("/delayed")]
    ledgers = {line["ledger"] for line in lines}
    (group,) = [group for group in groups(disks) if ledgers & set(group.ledgers)]
    assert ledgers <= set(group.ledgers)
    topic = topics.grouped(disks, group)
    sums = {(message.ledger_id, message.entry_id): message.checksum for message in topic.messages()}
    assert all(sums[line["ledger"], line["entry"]] == line["checksum"] for line in lines)
    for ledger_id in group.cursors:
        found = cursors.in_ledger(disks.ledger(ledger_id), topic.entry_counts)
        assert isinstance(found, LedgerState)
        assert found.state.mark_delete.ledger_id in group.ledgers


def test_recorded_names(unpacked: Callable[[str], Path]) -> None:
    with Disks.open([unpacked("a")], dump_path("a")) as disks:
        found = [ledger_kind.content_of(disks.ledger(ledger_id), lambda _: True) for ledger_id in disks.ledger_ids]
        kinds: dict[str, set[tuple[str, str]]] = {}
        for one in found:
            if one.labelled:
                kinds.setdefault(one.kind, set()).add((one.topic, one.cursor))
        names = {line["topic"] for line in truth("a", "topics")}
        subscriptions = {(line["topic"], line["subscription"]) for line in truth("a", "cursors")}
        assert {topic for topic, _ in kinds[ledger_kind.TOPIC]} <= names
        assert kinds[ledger_kind.CURSOR] <= subscriptions
        assert ("persistent://acme/orders/odd name+ü%2F:x", "sub/1 ü%+") in kinds[ledger_kind.CURSOR]
        assert {topic for topic, _ in kinds[ledger_kind.BUCKET]} == {"persistent://acme/orders/delayed"}
        assert kinds[ledger_kind.SCHEMA] == {("acme/orders/schema", "")}
        assert kinds[ledger_kind.COMPACTED] == {("persistent://acme/orders/compacted", "")}


# -- made ledgers ----------------------------------------------------------------------------------------------------


def snapshot(ledger_id: int, entry_id: int = 0) -> bytes:
    return position_info.write(AckSnapshot(Position(ledger_id, entry_id), {}, {}, {})).data


def bucket(*ledger_ids: int) -> list[bytes]:
    return seal(Indexes.of([5] * len(ledger_ids), list(ledger_ids), [1] * len(ledger_ids)), 50).entries


MESSAGES = [encode_message(b"x", publish_time=1)]


def test_groups_by_hand(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for ledger_id in (1, 2, 3, 4, 5, 6, 9):
        cluster.ledger(ledger_id, MESSAGES)
    # The cursor has gone from 1 over 2, which it names no more, to 3; ledger 7 is gone, and still tells that 5 and 6
    # are of one topic.
    cluster.ledger(20, [snapshot(1), snapshot(2), snapshot(3)])
    cluster.ledger(21, [snapshot(5), snapshot(7)])
    cluster.ledger(22, [snapshot(7), snapshot(6)])
    cluster.ledger(30, bucket(3, 4))
    cluster.ledger(31, [b"nothing of Pulsar's"])
    cluster.ledger(32, [])
    with cluster.open() as disks:
        assert groups(disks) == [
            Group([1, 2, 3, 4], [20], [30]),
            Group([5, 6], [21, 22], []),
            Group([9], [], []),
        ]


def test_what_is_no_topic_s_connects_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    for ledger_id in (1, 2):
        cluster.ledger(ledger_id, MESSAGES)
    cluster.ledger(20, [snapshot(1), snapshot(31)])
    cluster.ledger(21, [snapshot(2), snapshot(31)])
    cluster.ledger(31, [b"nothing of Pulsar's"])
    with cluster.open() as disks:
        assert groups(disks) == [Group([1], [20], []), Group([2], [21], [])]


def test_numbers_that_are_no_ledgers_make_no_cursor(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.ledger(1, MESSAGES)
    cluster.ledger(20, [snapshot(77)])
    cluster.ledger(21, [snapshot(1)])
    with cluster.open(metadata=False) as disks:
        exists = set(disks.ledger_ids).__contains__
        assert by_entries(disks.ledger(20), exists) == ledger_kind.OTHER
        assert by_entries(disks.ledger(21), exists) == ledger_kind.CURSOR


def test_a_damaged_beginning(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    cluster.ledger(1, [b"\x0e\x01damaged", *MESSAGES])
    cluster.ledger(20, [b"", snapshot(1)])
    cluster.ledger(21, [snapshot(1)], without=[0])
    with cluster.open() as disks:
        exists = set(disks.ledger_ids).__contains__
        found = [by_entries(disks.ledger(ledger_id), exists) for ledger_id in (1, 20, 21)]
        assert found == [ledger_kind.TOPIC, ledger_kind.CURSOR, ledger_kind.EMPTY]


def test_a_cursor_in_chunks(tmp_path: Path) -> None:
    whole = snapshot(1, 5)
    footer = json.dumps({"numParts": 2, "length": len(whole)}).encode()
    cluster = Cluster(tmp_path)
    cluster.ledger(1, MESSAGES)
    cluster.ledger(20, [whole[:1], whole[1:], footer])
    with cluster.open() as disks:
        assert by_entries(disks.ledger(20), set(disks.ledger_ids).__contains__) == ledger_kind.CURSOR
        assert groups(disks) == [Group([1], [20], [])]


def test_labels() -> None:
    topic = ledger_labels("acme/orders/persistent/odd+name%2F")
    assert by_labels(topic) == LedgerKind(ledger_kind.TOPIC, "persistent://acme/orders/odd name/", "", True)
    cursor = ledger_labels("acme/orders/persistent/t", "sub%2F1")
    assert by_labels(cursor) == LedgerKind(ledger_kind.CURSOR, "persistent://acme/orders/t", "sub/1", True)
    assert by_labels(ledger_labels(TOPIC)) == LedgerKind(ledger_kind.TOPIC, TOPIC, "", True)
    for nothing in ({}, {"application": b"pulsar"}, {"application": b"other", "component": b"managed-ledger"}):
        assert by_labels(nothing) is None
    odd = {"application": b"pulsar", "component": b"managed-ledger", "pulsar/managed-ledger": b"\xff persistent://"}
    assert by_labels(odd) is not None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.binary(max_size=50) | st.just(snapshot(1)) | st.just(MESSAGES[0]), max_size=3), max_size=5))
def test_no_entries_are_too_odd(tmp_path_factory: pytest.TempPathFactory, ledgers: list[list[bytes]]) -> None:
    cluster = Cluster(tmp_path_factory.mktemp("odd"))
    for ledger_id, entries in enumerate(ledgers):
        cluster.ledger(ledger_id, entries)
    with cluster.open() as disks:
        listed = [ledger_id for group in groups(disks) for part in group for ledger_id in part]
        assert len(listed) == len(set(listed))
        assert {ledger_id for ledger_id, entries in enumerate(ledgers) if entries[:1] == MESSAGES} <= set(listed)
