"""Damaged entries of a topic: the intact ones around them are delivered, each is reported once or skipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bookstand
from bookstand.delivery.message.received_message import ReceivedMessage
from bookstand.errors import DigestMismatchError, ReadError, StoreDamagedError
from bookstand.managed_ledger.managed_ledger import TopicDamagedError, UnreadableEntryError
from bookstand.managed_ledger.message.format import assemble, batch_alike
from bookstand.managed_ledger.message.metadata import MessageMetadata
from bookstand.storage.format import schema
from bookstand.storage.format.position import Position
from bookstand.testing.faults.faults import Faults
from tests.delivery.subscription_kit import (
    CURSOR,
    MODES,
    START,
    SUBSCRIPTION,
    TOPIC,
    Desk,
    subscription_config,
    topic_config,
    words,
)
from tests.kit import change_entry, raw

pytestmark = pytest.mark.damaged

Change = Callable[[bytes], bytes | None]


def flipped(stored: bytes) -> bytes:
    return stored[:-1] + bytes((stored[-1] ^ 1,))


def missing(stored: bytes) -> None:
    return None


def shortened(stored: bytes) -> bytes:
    return stored[:20]


def damage(desk: Desk, *positions: Position, change: Change = flipped) -> None:
    """Close the store, damage entries and open it again."""
    desk.topic.close()
    desk.store.close()
    for position in positions:
        change_entry(Path(desk.path), *position, change)
    desk._open()


def received(desk: Desk, sub: Any = None, ack: bool = True) -> tuple[list[str], list[Position]]:
    """The payloads of all that is delivered now, acknowledged, and the positions of the damage that is raised."""
    sub = desk.sub if sub is None else sub
    found: list[ReceivedMessage] = []
    raised: list[Position] = []
    while True:
        try:
            some = sub.receive(3, timeout=0)
        except UnreadableEntryError as error:
            raised += error.positions
            continue
        if not some:
            return words(found), raised
        found += some
        if ack:
            sub.ack_many(some)


# -- new messages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [flipped, missing, shortened])
def test_intact_entries_around_a_damaged_one_are_delivered_and_it_is_raised_once(
    store_path: Path, change: Change
) -> None:
    with Desk(store_path, topic_config(max_entries_per_ledger=20)) as desk:
        positions = desk.publish(*range(30))
        damage(desk, positions[7], positions[8], positions[25], change=change)
        found: list[str] = []
        while len(found) < 27:
            found += words(desk.sub.receive(30, timeout=0))
        assert found == [str(n) for n in range(30) if n not in (7, 8, 25)]
        for position in (positions[7], positions[8], positions[25]):
            with pytest.raises(UnreadableEntryError) as raised:
                desk.sub.receive(30, timeout=0)
            error = raised.value
            assert (error.topic, error.position, error.positions) == (TOPIC, position, [position])
            for part in (TOPIC, str(position), error.reason, "subscription.ack", "auto_skip_non_recoverable_data"):
                assert part in str(error)
            assert isinstance(error, StoreDamagedError)
            assert error.__cause__ is not None
        assert desk.sub.receive(30, timeout=0) == []
        stats = desk.sub.stats
        assert (stats.unreadable, stats.skipped, stats.backlog) == (3, 0, 30)
        assert desk.sub.unreadable == [positions[7], positions[8], positions[25]]


def test_a_damaged_entry_is_raised_again_after_a_restart_until_it_is_acknowledged_unread(store_path: Path) -> None:
    with Desk(store_path) as desk:
        positions = desk.publish(*"abcdef")
        damage(desk, positions[2])
        assert received(desk) == (list("abdef"), [positions[2]])
        assert desk.sub.backlog == 1
        desk.restart()
        assert received(desk) == ([], [positions[2]])
        desk.sub.ack(positions[2]).result()
        assert (desk.sub.stats.unreadable, desk.sub.unreadable, desk.sub.backlog) == (0, [], 0)
        assert desk.sub.cursor.mark_delete_position >= positions[-1]
        desk.restart()
        assert received(desk) == ([], [])


def test_one_that_is_acknowledged_before_it_is_raised_is_not_raised(store_path: Path) -> None:
    with Desk(store_path) as desk:
        positions = desk.publish(*"abc")
        damage(desk, positions[1])
        found = desk.sub.receive(10, timeout=0)
        assert words(found) == ["a", "c"]
        assert desk.sub.unreadable == [positions[1]]
        desk.sub.ack_cumulative(found[-1])
        assert received(desk) == ([], [])


def test_each_subscription_raises_for_itself(store_path: Path) -> None:
    with Desk(store_path) as desk:
        positions = desk.publish(*"abc")
        desk.topic.subscription("other", subscription_config(type="exclusive"))
        damage(desk, positions[1])
        other = desk.topic.subscription("other", subscription_config(type="exclusive"))
        for sub in (desk.sub, other):
            assert received(desk, sub) == (["a", "c"], [positions[1]])


def test_two_consumers_of_one_subscription_share_the_one_report(store_path: Path) -> None:
    with Desk(store_path) as desk:
        positions = desk.publish(*"abc")
        damage(desk, positions[1])
        one, other = desk.sub.consumer("one"), desk.sub.consumer("other")
        assert received(desk, one) == (["a", "c"], [positions[1]])
        assert received(desk, other) == ([], [])


# -- skipping ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_damaged_entries_are_skipped_counted_and_hold_back_no_mark_delete(store_path: Path, mode: str) -> None:
    with Desk(store_path, topic_config(mode, auto_skip_non_recoverable_data=True)) as desk:
        positions = desk.publish(*range(12))
        delayed = desk.publish("x", "y", "z", at=1_000)
        desk.restart()
        damage(desk, positions[3], positions[4], delayed[1])
        assert received(desk) == ([str(n) for n in range(12) if n not in (3, 4)], [])
        desk.go_to(1_000)
        assert received(desk) == (["x", "z"], [])
        desk.sub.cursor.flush()
        stats = desk.sub.stats
        assert (stats.skipped, stats.unreadable, stats.backlog, stats.acked) == (3, 0, 0, 12)
        assert desk.sub.cursor.durable_mark_delete_position >= delayed[-1]
        desk.restart()
        assert received(desk) == ([], [])
        assert desk.sub.stats.skipped == 0


def test_skipping_that_is_switched_on_skips_what_was_met_before(store_path: Path) -> None:
    with Desk(store_path) as desk:
        positions = desk.publish(*"abcd")
        damage(desk, positions[0], positions[2])
        assert words(desk.sub.receive(10, timeout=0)) == ["b", "d"]
        with pytest.raises(UnreadableEntryError):
            desk.sub.receive(10, timeout=0)
        desk.store.topic(TOPIC, replace(desk.topic.config, auto_skip_non_recoverable_data=True))
        assert desk.sub.receive(10, timeout=0) == []
        assert (desk.sub.stats.skipped, desk.sub.stats.unreadable, desk.sub.backlog) == (2, 0, 2)


def test_a_damaged_entry_that_is_skipped_while_dispatch_is_paused_lets_the_next_go_out(store_path: Path) -> None:
    cursor = replace(CURSOR, max_per_cursor_metadata_size_in_bytes=1 << 10)
    config = topic_config(auto_skip_non_recoverable_data=True)
    with Desk(store_path, config, subscription_config(cursor=cursor)) as desk:
        positions = desk.publish(*"abcd")
        desk.sub.cursor.put_property("p" * 2_000, 1)
        damage(desk, positions[0], positions[2])
        assert desk.sub.paused
        assert received(desk) == (["b", "d"], [])
        assert (desk.sub.stats.skipped, desk.sub.backlog) == (2, 0)


def test_a_lowest_entry_that_is_damaged_holds_up_others_during_a_pause_until_it_is_acknowledged(
    store_path: Path,
) -> None:
    cursor = replace(CURSOR, max_per_cursor_metadata_size_in_bytes=1 << 10)
    with Desk(store_path, sub=subscription_config(cursor=cursor)) as desk:
        positions = desk.publish(*"abc")
        desk.sub.cursor.put_property("p" * 2_000, 1)
        damage(desk, positions[0])
        assert desk.sub.paused
        assert received(desk) == ([], [positions[0]])
        desk.sub.ack_many(desk.sub.unreadable)
        assert received(desk) == (["b", "c"], [])


def test_a_read_that_fails_for_now_is_no_damage_and_nothing_is_skipped(store_path: Path) -> None:
    faults = Faults()
    config = topic_config(auto_skip_non_recoverable_data=True)
    with Desk(store_path, config, hooks=faults) as desk:
        positions = desk.publish(*"abc")
        failing = faults.fail("read", error=ReadError, entry=positions[1].entry_id, times=None)
        assert received_until_error(desk, ReadError) == ["a"]
        faults.remove(failing)
        assert received(desk) == (["b", "c"], [])
        assert desk.sub.stats.skipped == 0


def received_until_error(desk: Desk, error: type[Exception]) -> list[str]:
    found: list[str] = []
    while True:
        try:
            found += words(desk.sub.receive(1, timeout=0))
        except UnreadableEntryError:
            raise
        except error:
            return found


def test_the_metrics_count_what_is_skipped_and_what_is_unreadable(store_path: Path) -> None:
    with Desk(store_path) as desk:
        positions = desk.publish(*"abc")
        damage(desk, positions[1])
        received(desk)

        def figures() -> dict[str, float]:
            return {
                sample.name: sample.value
                for metric in desk.store.metrics().collect()
                for sample in metric.samples
                if sample.name.startswith("bookstand_subscription_")
            }

        skipped, unreadable = (
            "bookstand_subscription_skipped_entries_total",
            "bookstand_subscription_unreadable_entries",
        )
        assert figures() == {skipped: 0, unreadable: 1}
        desk.store.topic(TOPIC, replace(desk.topic.config, auto_skip_non_recoverable_data=True))
        assert figures() == {skipped: 1, unreadable: 0}
        page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
        assert all(f"`{name}`" in page for name in figures())
        desk.sub.close()
        assert figures() == {}


# -- all sources -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_delayed_message_that_is_damaged_at_its_time(store_path: Path, mode: str) -> None:
    """It is tracked before it is damaged; and another is damaged before it is tracked."""
    with Desk(store_path, topic_config(mode)) as desk:
        positions = desk.publish(*"abcdefgh", at=1_000)
        assert desk.read() == []
        damage(desk, positions[3])
        late = desk.publish("i", "j", at=1_000)
        assert received(desk)[0] == []
        damage(desk, positions[6], late[0])
        raised = received(desk)[1]
        desk.go_to(1_000)
        found, more = received(desk)
        assert found == list("abcefhj")
        assert sorted(raised + more) == [positions[3], positions[6], late[0]]


def test_a_bucket_that_is_rebuilt_from_a_damaged_topic(store_path: Path) -> None:
    with Desk(store_path, topic_config("buckets")) as desk:
        positions = desk.publish(*range(12), at=1_000)
        assert desk.read() == []
        snapshot = desk.sub.tracker.buckets[0].bucket_id
        damage(desk, positions[1])
        desk.topic.close()
        desk.store.close()
        change_entry(store_path, snapshot, 0, flipped)
        desk._open()
        raised = received(desk)[1]
        desk.go_to(1_000)
        found, more = received(desk)
        assert found == [str(n) for n in range(12) if n != 1]
        assert raised + more == [positions[1]]


def test_a_redelivery_that_is_damaged_by_then(store_path: Path) -> None:
    faults = Faults()
    with Desk(store_path, hooks=faults) as desk:
        positions = desk.publish(*"abcd")
        a, b, c, _ = desk.drain()
        for message in (a, b, c):
            desk.sub.nack(message, delay=100)
        faults.fail("read", error=DigestMismatchError, entry=positions[1].entry_id, times=None)
        desk.pass_time(1_000)
        assert received(desk) == (["a", "c"], [positions[1]])
        assert desk.sub.stats.waiting == desk.sub.stats.nacked == 0
        desk.sub.redeliver_all()
        assert received(desk) == (["d"], [])


def test_what_is_worn_out_and_damaged_is_raised_and_the_others_go_to_the_dead_letter_topic(store_path: Path) -> None:
    faults = Faults()
    with Desk(store_path, sub=subscription_config(max_redeliveries=0), hooks=faults) as desk:
        positions = desk.publish(*"abc")
        desk.drain()
        ledger = positions[1].ledger_id
        faults.fail("read", error=DigestMismatchError, ledger=ledger, entry=positions[1].entry_id, times=None)
        desk.sub.redeliver_all()
        assert received(desk) == ([], [positions[1]])
        assert desk.sub.stats.dead_lettered == 2
        graves = desk.store.topic(f"{TOPIC}-{SUBSCRIPTION}-DLQ").subscription("all")
        assert words(graves.receive(10, timeout=0)) == ["a", "c"]


def test_a_batch_that_is_damaged_is_one_entry(store_path: Path) -> None:
    with Desk(store_path) as desk:
        one = desk.topic.publish_batch([b"a", b"b"])
        desk.topic.publish_batch([b"c", b"d"])
        damage(desk, one)
        assert received(desk) == (["c", "d"], [one])
        desk.sub.ack(one).result()
        assert desk.sub.backlog == 0


@pytest.mark.parametrize("broken", ["payload", "members"])
def test_a_batch_whose_entry_is_intact_and_whose_messages_are_not_is_delivered_as_one_message(
    store_path: Path, broken: str
) -> None:
    """The consumer decides about it; it can be acknowledged like any other."""
    with Desk(store_path) as desk:
        desk.publish("a")
        if broken == "payload":
            metadata = MessageMetadata("p", 0, 1, num_messages_in_batch=2, compression=2, uncompressed_size=40)
            desk.topic.ledger.append_entry(assemble(metadata, b"not compressed at all"))
        else:
            whole = batch_alike([b"b" * 20, b"c" * 20], publish_time=START, compression="NONE")
            desk.topic.ledger.append_entry(whole[:-25])
        desk.publish("d")
        found = desk.drain()
        assert [message.batch_index for message in found] == [-1] * 3
        assert [found[0].payload, found[2].payload] == [b"a", b"d"]
        desk.sub.ack_many(found).result()
        assert (desk.sub.backlog, desk.sub.stats.unreadable) == (0, 0)


def test_a_scan_for_expired_messages_passes_over_damage(store_path: Path) -> None:
    with Desk(store_path, sub=subscription_config(time_to_live=1_000)) as desk:
        positions = desk.publish(*"abcd")
        damage(desk, positions[1])
        desk.pass_time(5_000)
        assert desk.sub.expire() == 3
        assert received(desk) == ([], [positions[1]])


def test_peeking_at_delayed_messages_and_rescheduling_pass_over_damage(store_path: Path) -> None:
    with Desk(store_path) as desk:
        positions = desk.publish(*"abcd", at=1_000)
        damage(desk, positions[1])
        assert [position for _, position in desk.sub.peek_delayed()] == [positions[0], *positions[2:]]
        assert desk.sub.reschedule(positions[3], deliver_at=START + 500)
        assert not desk.sub.reschedule(positions[1], deliver_at=START + 500)
        assert received(desk) == ([], [positions[1]])
        desk.go_to(1_000)
        assert received(desk) == (["a", "c", "d"], [])


def test_the_builder_of_a_shared_index_passes_over_damage(store_path: Path) -> None:
    config = topic_config("shared index", auto_skip_non_recoverable_data=False)
    with Desk(store_path, config) as desk:
        positions = desk.publish(*range(12), at=1_000)
        desk.topic.subscription("other", subscription_config())
        damage(desk, positions[0], positions[7])
        other = desk.topic.subscription("other", subscription_config())
        raised = {sub.name: received(desk, sub)[1] for sub in (desk.sub, other)}
        desk.go_to(1_000)
        for sub in (desk.sub, other):
            found, more = received(desk, sub)
            assert found == [str(n) for n in range(12) if n not in (0, 7)]
            assert sorted(raised[sub.name] + more) == [positions[0], positions[7]]


# -- topics and cursors ------------------------------------------------------------------------------------------------


def test_a_topic_raises_at_the_position_and_is_read_on_behind_it(store_path: Path) -> None:
    with Desk(store_path) as desk:
        positions = desk.publish(*range(8))
        damage(desk, positions[2], positions[6])
        ledger = desk.topic.ledger
        seen: list[Position] = []
        with pytest.raises(UnreadableEntryError) as raised:
            seen.extend(entry.position for entry in ledger.entries(positions[0]))
        assert raised.value.position == positions[2]
        assert [one.position for one in ledger.read(positions[3], 3)] == positions[3:6]
        with pytest.raises(UnreadableEntryError, match=f"entry {positions[6]} cannot be read"):
            ledger.read_entry(positions[6])
        met: list[UnreadableEntryError] = []
        found = ledger.read_positions(positions, met.append)
        assert [one.position for one in found] == [*positions[:2], *positions[3:6], positions[7]]
        assert [one.position for one in met] == [positions[2], positions[6]]


def test_a_cursor_raises_at_the_position_after_the_intact_entries_and_seek_passes_it(store_path: Path) -> None:
    with Desk(store_path, topic_config(max_entries_per_ledger=20)) as desk:
        positions = desk.publish(*range(8))
        damage(desk, positions[3])
        cursor = desk.topic.cursor("plain", CURSOR)
        assert [entry.position for entry in cursor.read(8)] == positions[:3]
        for _ in range(2):
            with pytest.raises(UnreadableEntryError) as raised:
                cursor.read(8)
        assert cursor.read_position == positions[3]
        cursor.seek(raised.value.last.next)
        assert [entry.position for entry in cursor.read(8)] == positions[4:]
        cursor.rewind()
        cursor.ack(positions[3])
        assert [entry.position for entry in cursor.read(8)] == [*positions[:3], *positions[4:]]


def test_a_store_opened_read_only_raises_the_same(store_path: Path) -> None:
    with Desk(store_path) as desk:
        positions = desk.publish(*range(4))
        damage(desk, positions[1])
    with bookstand.open(store_path, read_only=True) as store:
        cursor = store.topic(TOPIC).cursor(SUBSCRIPTION)
        assert [entry.position for entry in cursor.read(4)] == positions[:1]
        with pytest.raises(UnreadableEntryError, match=str(positions[1])):
            cursor.read(4)
        cursor.seek(positions[2])
        assert [entry.position for entry in cursor.read(4)] == positions[2:]


# -- whole ledgers -----------------------------------------------------------------------------------------------------


def damage_record(path: Path, database: bytes, ledger_id: int, change: Change) -> None:
    with raw(path, write=True) as databases:
        records, key = databases(database), schema.LEDGER_KEY.pack(ledger_id)
        changed = change(records[key])
        if changed is None:
            del records[key]
        else:
            records[key] = changed


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize(
    ("database", "change"),
    [(schema.LEDGERS, flipped), (schema.LEDGERS, missing), (schema.STATE, flipped)],
)
def test_a_ledger_whose_records_are_damaged_is_raised_once_as_a_whole_and_the_others_are_delivered(
    store_path: Path, database: bytes, change: Change, skips: bool
) -> None:
    with Desk(store_path, topic_config(auto_skip_non_recoverable_data=skips, trim_consumed=False)) as desk:
        positions = desk.publish(*range(13))
        desk.topic.close()
        desk.store.close()
        damage_record(store_path, database, positions[5].ledger_id, change)
        desk._open()
        found, raised = received(desk)
        assert found == [str(n) for n in range(13) if not 5 <= n < 10]
        assert raised == ([] if skips else positions[5:10])
        assert desk.sub.stats.skipped == (5 if skips else 0)
        assert desk.sub.unreadable == raised
        if not skips:
            assert desk.sub.backlog == 5
            desk.sub.ack_many(desk.sub.unreadable).result()
        assert desk.sub.backlog == 0
        assert desk.sub.cursor.mark_delete_position == positions[-1]
        # Once it is acknowledged, it does not keep the topic from being trimmed.
        assert positions[5].ledger_id in desk.topic.trim()
        assert received(desk) == ([], [])
        assert [info.entries for info in desk.topic.ledger.ledgers] == [0]


def test_a_ledger_whose_state_is_missing_is_delivered_as_far_as_its_entries_are_there(store_path: Path) -> None:
    with Desk(store_path) as desk:
        positions = desk.publish(*range(13))
        desk.topic.close()
        desk.store.close()
        damage_record(store_path, schema.STATE, positions[5].ledger_id, missing)
        change_entry(store_path, *positions[7], missing)
        desk._open()
        assert received(desk) == ([str(n) for n in range(13) if n != 7], [positions[7]])


def test_a_last_ledger_that_cannot_be_recovered_is_named_with_a_way_on(store_path: Path) -> None:
    with Desk(store_path) as desk:
        positions = desk.publish(*range(7))
        desk.store.close()
        damage_record(store_path, schema.LEDGERS, positions[-1].ledger_id, flipped)
        with bookstand.open(store_path) as store, pytest.raises(TopicDamagedError) as raised:
            store.topic(TOPIC)
        for part in (TOPIC, f"ledger, {positions[-1].ledger_id},", "bookstand verify", "bookstand repair"):
            assert part in str(raised.value)


# -- any damage --------------------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_consumer_that_goes_on_gets_every_intact_message(data: st.DataObject, tmp_path_factory: Any) -> None:
    """Whatever is damaged, delayed or in batches, however it is tracked, with restarts: every intact message is
    delivered, every damaged entry is raised once in an opening, or skipped, and nothing is left of the backlog."""
    path = tmp_path_factory.mktemp("damage") / "store"
    skips = data.draw(st.booleans())
    mode = data.draw(st.sampled_from(sorted(MODES)))
    kind = data.draw(st.sampled_from(["shared", "exclusive"]))
    config = topic_config(mode, auto_skip_non_recoverable_data=skips)
    desk = Desk(path, config, subscription_config(type=kind), durability="none")
    with desk:
        shapes = data.draw(st.lists(st.sampled_from(["now", "delayed", "batch"]), min_size=1, max_size=25))
        expected: dict[Position, list[str]] = {}
        for number, shape in enumerate(shapes):
            word = str(number)
            if shape == "batch":
                position = desk.topic.publish_batch([f"{word}a".encode(), f"{word}b".encode()])
                expected[position] = [f"{word}a", f"{word}b"]
            else:
                (position,) = desk.publish(word, at=500 if shape == "delayed" else None)
                expected[position] = [word]
        seen: list[str] = []
        raised: list[Position] = []
        if data.draw(st.booleans()):
            seen += received(desk, ack=True)[0]
        doomed = data.draw(st.lists(st.sampled_from(sorted(expected)), unique=True))
        damage(desk, *doomed, change=data.draw(st.sampled_from([flipped, missing, shortened])))
        acked = {position for position in doomed if desk.sub.cursor.is_acked(position)}
        for _ in range(2):
            found, more = received(desk)
            seen += found
            raised += more
            desk.pass_time(600)
        assert len(raised) == len(set(raised))
        intact = [word for position, some in expected.items() for word in some if position not in doomed]
        gone = [word for position in acked for word in expected[position]]
        assert sorted(seen) == sorted(intact + gone)
        assert sorted(raised) == ([] if skips else sorted(set(doomed) - acked)) == desk.sub.unreadable
        desk.sub.ack_many(desk.sub.unreadable)
        assert desk.sub.backlog == 0
