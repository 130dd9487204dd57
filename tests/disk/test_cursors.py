"""Cursors as the disks have them: against what the original recovers, and where a cursor's ledger is damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.format import position_info, record
from bookstand.cursor.format.chunked_snapshot import CODEC_PROPERTY
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.cursor.store import recovery
from bookstand.disk.disks import Disks
from bookstand.disk.topics import cursors, ledger_kind, topics
from bookstand.disk.topics.cursors import DiskCursor, LedgerState
from bookstand.managed_ledger.message import compression
from bookstand.managed_ledger.message.format import encode_message
from bookstand.managed_ledger.records import CursorInfo
from bookstand.managed_ledger.topic_name import ledger_labels
from bookstand.storage.format.position import Position
from tests.disk.cluster import TOPIC, Change, Cluster
from tests.disk.recordings import RECORDINGS, dump_path, truth

Recorded = tuple[str, Disks]
CURSOR_LEDGER = 20
LABELS = ledger_labels(TOPIC, "sub")


@pytest.fixture(scope="module", params=RECORDINGS)
def recorded(request: pytest.FixtureRequest, unpacked: Callable[[str], Path]) -> Iterator[Recorded]:
    with Disks.open([unpacked(request.param)], dump_path(request.param)) as disks:
        yield request.param, disks


# -- recorded disks --------------------------------------------------------------------------------------------------


def acked_of(line: dict[str, Any]) -> dict[int, BitMap64]:
    acked: dict[int, BitMap64] = {}
    for ledger, lower, upper_ledger, upper in line["individually_deleted"]:
        assert ledger == upper_ledger
        acked.setdefault(ledger, BitMap64()).update(range(lower + 1, upper + 1))
    return acked


def batches_of(line: dict[str, Any]) -> dict[Position, int]:
    return {
        Position(ledger, entry): sum((word % (1 << 64)) << (64 * place) for place, word in enumerate(words))
        for ledger, entry, words in line["batch_deleted"]
    }


def test_recorded_cursors(recorded: Recorded) -> None:
    name, disks = recorded
    found = {(topic.name, cursor.name): cursor for topic in topics.topics(disks) for cursor in cursors.cursors(topic)}
    lines = truth(name, "cursors")
    assert sorted(found) == sorted((line["topic"], line["subscription"]) for line in lines)
    for line in lines:
        cursor = found[line["topic"], line["subscription"]]
        if cursor.name == "pulsar.dedup" and dict(cursor.state.properties) != line["properties"]:
            # The broker that was started again has read on from there.
            assert cursor.next < cursor.topic.behind(Position(*line["mark_delete"]))
            state = cursors.replayed(cursor)
        else:
            state = cursor.state
            if name != "f":  # of the last entries there the restart decided
                assert cursor.backlog == line["backlog"]
        assert cursor.topic.behind(state.mark_delete) == cursor.topic.behind(Position(*line["mark_delete"]))
        assert state.acked == acked_of(line)
        assert state.properties == line["properties"]
        assert cursor.cursor_properties == line["cursor_properties"]
        # What the node has the broker forgets, and so the truth does not have it.
        in_node = {Position(ledger, entry): bits for ledger, entry, bits in cursor.info.batches}
        if cursor.source.how == recovery.RECORD:
            assert cursor.ledger_id == cursors.NO_LEDGER
            assert state.batches == in_node
        else:
            assert cursor.source.ledger_id == cursor.ledger_id == cursor.info.cursor_ledger_id
            assert state.batches == batches_of(line)
        assert cursor.skipped == ()
    assert not [damage for damage in disks.damage if damage.file.startswith("persistent:")]


def test_sets_in_a_record_are_told(unpacked: Callable[[str], Path]) -> None:
    with Disks.open([unpacked("b")], dump_path("b")) as disks:
        lines = {(line["topic"], line["subscription"]): line for line in truth("b", "cursors-live")}
        seen = 0
        for topic in topics.topics(disks):
            for cursor in cursors.cursors(topic):
                assert cursor.state.batches == batches_of(lines[topic.name, cursor.name])
                seen += len(cursor.state.batches)
        assert seen


def test_what_a_broker_that_loads_the_topic_knows_of_its_producers(unpacked: Callable[[str], Path]) -> None:
    with Disks.open([unpacked("c")], dump_path("c")) as disks:
        topic = topics.topic(disks, "persistent://acme/dedup/dedup")
        cursor = cursors.cursor(topic, "pulsar.dedup")
        (line,) = [line for line in truth("c", "cursors") if line["subscription"] == "pulsar.dedup"]
        assert cursor.state.properties != line["properties"]
        assert cursors.replayed(cursor).properties == line["properties"]
        assert cursors.replayed(cursor).mark_delete == Position(*line["mark_delete"])


def test_the_highest_sequence_id_counts(tmp_path: Path) -> None:
    sent = [("a", 5), ("b", 2), ("a", 9), ("a", 7), ("c", 1)]
    cluster = Cluster(tmp_path)
    cluster.topic(
        {3: [encode_message(b"x", publish_time=1, producer_name=name, sequence_id=number) for name, number in sent]}
    )
    cluster.cursor("pulsar.dedup", CursorInfo(-1, Position(3, 0), properties=(("a", 5), ("b", 3))))
    with cluster.open() as disks:
        state = cursors.replayed(cursors.cursor(topics.topic(disks, TOPIC), "pulsar.dedup"))
        assert state == AckSnapshot(Position(3, 4), {}, {}, {"a": 9, "b": 3, "c": 1})


# -- where a state comes from ----------------------------------------------------------------------------------------


def state(entry_id: int, **more: Any) -> AckSnapshot:
    """A state that differs from others by its mark-delete position."""
    return AckSnapshot(Position(3, entry_id), more.get("acked", {}), more.get("batches", {}), {"at": entry_id})


def snapshot(entry_id: int, **more: Any) -> bytes:
    return position_info.write(state(entry_id, **more)).data


def of(cluster: Cluster, info: CursorInfo, **opening: Any) -> tuple[DiskCursor, list[Any]]:
    """The cursor of that record, and what is reported of it."""
    messages = [encode_message(b"%d" % number, publish_time=1) for number in range(10)]
    cluster.topic({3: messages, 4: messages, 6: messages})
    cluster.cursor("sub", info)
    with cluster.open(**opening) as disks:
        cursor = cursors.cursor(topics.topic(disks, TOPIC), "sub")
        return cursor, [damage for damage in disks.damage if damage.file == TOPIC]


IN_LEDGER = CursorInfo(CURSOR_LEDGER, Position(3, 0), cursor_properties=(("owner", "me"),))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_the_last_entry_counts(cluster: Cluster) -> None:
    acked = {4: BitMap64([1, 2, 7])}
    batches = {Position(6, 1): 0b101}
    cluster.ledger(CURSOR_LEDGER, [snapshot(1), snapshot(2, acked=acked, batches=batches)], custom=LABELS)
    cursor, damage = of(cluster, IN_LEDGER)
    assert cursor.state == state(2, acked=acked, batches=batches)
    assert cursor.source == (recovery.SNAPSHOT, CURSOR_LEDGER, 1, (), ())
    assert cursor.cursor_properties == {"owner": "me"}
    assert cursor.next == Position(3, 3)
    assert cursor.backlog == 7 + 7 + 10
    assert [cursor.is_acked(Position(*at)) for at in ((3, 2), (3, 3), (4, 2), (6, 1))] == [True, False, True, False]
    assert not damage


def test_of_an_entry_that_has_both_ranges_and_words_the_ranges_count(cluster: Cluster) -> None:
    ranges = snapshot(2, acked={4: BitMap64([1, 2, 7])})
    head = snapshot(2)
    words = position_info.write(state(2, acked={4: BitMap64([5]), 6: BitMap64([3])}), "long_arrays").data
    both = ranges + words.removeprefix(head)
    cluster.ledger(CURSOR_LEDGER, [both], custom=LABELS)
    cursor, damage = of(cluster, IN_LEDGER)
    assert cursor.state == state(2, acked={4: BitMap64([1, 2, 7])})
    assert not damage


@pytest.mark.parametrize("tail", [[b""], [b"{{"], [b"\x08\x03"], [b"\xff" * 40, snapshot(5)[:-3]]])
def test_a_damaged_end_is_passed_over_and_said(cluster: Cluster, tail: list[bytes]) -> None:
    cluster.ledger(CURSOR_LEDGER, [snapshot(1), snapshot(2), *tail], custom=LABELS)
    cursor, damage = of(cluster, IN_LEDGER)
    assert cursor.state == state(2)
    assert cursor.source[:3] == (recovery.SNAPSHOT, CURSOR_LEDGER, 1)
    assert len(cursor.skipped) == len(damage) == len(tail)
    assert {one.ledger_id for one in damage} == {CURSOR_LEDGER}


def test_lost_entries_at_the_end(cluster: Cluster) -> None:
    cluster.ledger(CURSOR_LEDGER, [snapshot(at) for at in range(4)], custom=LABELS, without=[2, 3])
    cursor, damage = of(cluster, IN_LEDGER)
    assert cursor.state == state(1)
    assert len(cursor.skipped) == len(damage) == 2
    assert f"{CURSOR_LEDGER}:3 is missing or damaged" in cursor.skipped[0]


def test_an_open_ledger_ends_where_its_entries_do(cluster: Cluster) -> None:
    cluster.ledger(CURSOR_LEDGER, [snapshot(at) for at in range(2)], custom=LABELS, closed=False)
    cursor, damage = of(cluster, IN_LEDGER)
    assert cursor.state == state(1)
    assert cursor.skipped == ()
    assert not damage


def nothing(cluster: Cluster) -> None:
    pass


def empty(cluster: Cluster) -> None:
    cluster.ledger(CURSOR_LEDGER, [], custom=LABELS)


def all_lost(cluster: Cluster) -> None:
    cluster.ledger(CURSOR_LEDGER, [snapshot(5)], custom=LABELS, without=[0])


def garbage(cluster: Cluster) -> None:
    cluster.ledger(CURSOR_LEDGER, [b"nothing", b"of the kind"], custom=LABELS)


@pytest.mark.parametrize("there", [nothing, empty, all_lost, garbage])
def test_the_record_is_what_is_left(cluster: Cluster, there: Callable[[Cluster], None]) -> None:
    there(cluster)
    cursor, damage = of(cluster, IN_LEDGER)
    assert cursor.state == AckSnapshot(Position(3, 0), {}, {}, {})
    assert cursor.source.how == recovery.RECORD
    assert cursor.skipped
    assert len(damage) == len(cursor.skipped)
    assert all("its record is used" in one.what and one.ledger_id == CURSOR_LEDGER for one in damage)


def test_the_record_alone(cluster: Cluster) -> None:
    info = CursorInfo(
        -1,
        Position(3, 4),
        ranges=((3, 6, 3, 8), (4, 7, 6, 1)),
        properties=(("n", 5),),
        batches=((4, 1, 0b11), (3, 1, 0b1)),
    )
    cursor, damage = of(cluster, info)
    # A range from one ledger into another has all that is between; what is passed is not kept.
    acked = {3: BitMap64([7, 8]), 4: BitMap64([8, 9]), 6: BitMap64([0, 1])}
    assert cursor.state == AckSnapshot(Position(3, 4), acked, {Position(4, 1): 0b11}, {"n": 5})
    assert cursor.source == (recovery.RECORD, -1, -1, (), ())
    assert not damage


def test_a_record_without_a_position_begins_at_the_beginning(cluster: Cluster) -> None:
    cursor, _ = of(cluster, CursorInfo(-1))
    assert cursor.next == Position(3, 0)
    assert cursor.backlog == 30


def test_ranges_that_would_take_all_memory(cluster: Cluster) -> None:
    cursor, (damage,) = of(
        cluster, CursorInfo(-1, Position(3, 1), ranges=((4, 0, 4, 1 << 60),), properties=(("n", 1),))
    )
    assert cursor.state == AckSnapshot(Position(3, 1), {}, {}, {"n": 1})
    assert "blocks of entries" in damage.what
    assert cursor.skipped


def test_a_snapshot_in_chunks(cluster: Cluster) -> None:
    whole = snapshot(7, acked={4: BitMap64(range(0, 4000, 2))})
    packed = len(whole).to_bytes(4, "big") + compression.pack("ZLIB", whole)
    parts = [packed[at : at + 100] for at in range(0, len(packed), 100)]
    footer = json.dumps({"numParts": len(parts), "length": len(packed)}).encode()
    custom = {**LABELS, CODEC_PROPERTY: b"ZLIB"}
    cluster.ledger(CURSOR_LEDGER, [*parts, footer], custom=custom)
    cursor, damage = of(cluster, IN_LEDGER)
    assert len(parts) > 1
    assert cursor.state == state(7, acked={4: BitMap64(range(0, 4000, 2))})
    assert not damage


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=60) | st.just(snapshot(2)) | st.just(b'{"numParts":1,"length":3}'), max_size=4))
def test_no_entries_are_too_odd(tmp_path_factory: pytest.TempPathFactory, entries: list[bytes]) -> None:
    cluster = Cluster(tmp_path_factory.mktemp("odd"))
    cluster.ledger(CURSOR_LEDGER, entries, custom=LABELS)
    cursor, damage = of(cluster, IN_LEDGER)
    if cursor.source.how == recovery.SNAPSHOT:
        assert len(cursor.skipped) == len(entries) - 1 - cursor.source.entry
    else:
        assert cursor.state.mark_delete == Position(3, 0)
    assert len(damage) == len(cursor.skipped)


# -- pages and markers -----------------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """A cluster with what a store has of a cursor, and the state that the cursor had at its last two flushes."""

    cluster: Cluster
    earlier: AckSnapshot
    latest: AckSnapshot


def state_of(cursor: Cursor, positions: list[Position]) -> AckSnapshot:
    """What a live cursor knows, by its answers."""
    mark_delete = cursor.mark_delete_position
    acked: dict[int, BitMap64] = {}
    for position in positions:
        if position > mark_delete and cursor.is_acked(position):
            acked.setdefault(position.ledger_id, BitMap64()).add(position.entry_id)
    batches = {position: sum(1 << index for index in left) for position, left in cursor.partial_batches().items()}
    return AckSnapshot(mark_delete, acked, batches, cursor.properties)


def kept(folder: Path, change: Change = lambda _, payloads: payloads) -> Kept:
    with bookstand.open(folder / "store") as store:
        topic = store.managed_ledger(TOPIC, max_entries_per_ledger=40)
        positions = list(
            topic.append_entries([encode_message(b"%d" % number, publish_time=1) for number in range(200)])
        )
        cursor = Cursor.open(topic, "sub", CursorConfig(flush_interval=1e9))
        cursor.ack(positions[5::3])
        cursor.mark_delete(positions[2], {"step": 1})
        cursor.ack_batch(positions[127], [0, 2], 4)
        cursor.flush()
        earlier = state_of(cursor, positions)
        # The page of the last ledger stays as it is.
        cursor.ack(positions[9:150:7])
        cursor.mark_delete(positions[3], {"step": 2})
        cursor.ack_batch(positions[129], [1], 70)
        cursor.flush()
        latest = state_of(cursor, positions)
        cluster = Cluster(folder)
        cluster.copy(store, "sub", change)
        cursor.close()
    assert earlier != latest
    assert earlier.batches
    assert len(earlier.acked) > 2
    return Kept(cluster, earlier, latest)


def damaged(*wanted: int) -> Change:
    """Flips a bit in these entries of the cursor's ledger."""

    def change(ledger_id: int, payloads: list[bytes]) -> list[bytes]:
        if not payloads or not record.is_ours(payloads[0]):
            return payloads
        for place in wanted:
            payloads[place] = payloads[place][:-1] + bytes([payloads[place][-1] ^ 1])
        return payloads

    return change


FIRST_MARKER, LAST_MARKER = 5, -1
PAGE_OF_FIRST, PAGE_OF_LAST, PAGE_OF_BOTH = 0, 6, 4


def test_pages_and_a_marker(tmp_path: Path) -> None:
    cluster, _, latest = kept(tmp_path)
    with cluster.open() as disks:
        cursor = cursors.cursor(topics.topic(disks, TOPIC), "sub")
        assert cursor.source.how == recovery.MARKER
        assert cursor.state == latest
        assert cursor.skipped == ()
        assert ledger_kind.by_entries(disks.ledger(cursor.ledger_id), set(disks.ledger_ids).__contains__) == "cursor"


@pytest.mark.parametrize("wanted", [(LAST_MARKER,), (LAST_MARKER, PAGE_OF_LAST)])
def test_a_damaged_flush_gives_way_to_the_one_before(tmp_path: Path, wanted: tuple[int, ...]) -> None:
    cluster, earlier, _ = kept(tmp_path, damaged(*wanted))
    with cluster.open() as disks:
        cursor = cursors.cursor(topics.topic(disks, TOPIC), "sub")
        assert cursor.source[:3] == (recovery.MARKER, cursor.ledger_id, FIRST_MARKER)
        assert cursor.state == earlier
        assert cursor.skipped
        assert {one.ledger_id for one in disks.damage if one.file == TOPIC} == {cursor.ledger_id}


def test_damage_that_no_marker_means_costs_nothing(tmp_path: Path) -> None:
    cluster, _, latest = kept(tmp_path, damaged(FIRST_MARKER, PAGE_OF_FIRST))
    with cluster.open() as disks:
        cursor = cursors.cursor(topics.topic(disks, TOPIC), "sub")
        assert cursor.state == latest
        assert cursor.skipped == ()


@pytest.mark.parametrize("wanted", [PAGE_OF_LAST, PAGE_OF_BOTH])
def test_a_damaged_page_costs_its_own_ledger_alone(tmp_path: Path, wanted: int) -> None:
    cluster, earlier, latest = kept(tmp_path, damaged(wanted))
    with cluster.open() as disks:
        cursor = cursors.cursor(topics.topic(disks, TOPIC), "sub")
        assert cursor.source.how == recovery.MARKER
        assert cursor.state.mark_delete == latest.mark_delete
        (page,) = cursor.source.pages
        assert (page.replacement is not None) == (wanted == PAGE_OF_LAST)
        expected = {ledger: acked for ledger, acked in latest.acked.items() if ledger != page.user_ledger}
        if page.replacement is not None and page.user_ledger in earlier.acked:
            expected[page.user_ledger] = earlier.acked[page.user_ledger]
        assert cursor.state.acked == expected
        assert cursor.skipped == (str(page),)


@pytest.mark.parametrize("wanted", [(), (LAST_MARKER,)])
def test_pages_and_a_marker_without_metadata(tmp_path: Path, wanted: tuple[int, ...]) -> None:
    cluster, earlier, latest = kept(tmp_path, damaged(*wanted))
    with cluster.open(metadata=False) as disks:
        (group,) = [group for group in ledger_kind.groups(disks) if group.cursors]
        topic = topics.grouped(disks, group)
        assert len(group.ledgers) > 2
        found = cursors.in_ledger(disks.ledger(group.cursors[-1]), topic.entry_counts)
        assert isinstance(found, LedgerState)
        assert found.state == (earlier if wanted else latest)
