"""Delayed messages in memory, in buckets, in an index that all subscriptions share: from one to the other between
restarts nothing is lost, nothing comes early, and nothing twice."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bookstand
from bookstand.delivery.tracker.bucket.key import read_properties
from bookstand.delivery.tracker.reschedule_log import PROPERTY
from bookstand.storage.format.position import Position
from bookstand.testing import Faults, SimulatedCrash
from tests.delivery.subscription_kit import MODES, START, TOPIC, Desk, subscription_config, topic_config

WAYS = [*permutations(MODES, 2), *permutations(MODES, 3)]
TIMES = [100 + 10 * (7 * number % 31) for number in range(30)]


def name_of(way: tuple[str, ...]) -> str:
    return " > ".join(way)


@pytest.mark.parametrize("trim", [True, False])
@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=name_of)
def test_from_one_to_another(store_path: Path, way: tuple[str, ...], crash: bool, trim: bool) -> None:
    """Some are delivered on the way, some cancelled, some rescheduled, some new."""
    with Desk(store_path, topic_config(way[0], trim_consumed=trim)) as desk:
        given = [desk.topic.publish(b"%d" % number, deliver_at=START + time) for number, time in enumerate(TIMES)]
        wanted = dict(enumerate(TIMES))
        found: list[tuple[int, str]] = []
        for number, mode in enumerate([*way, way[0]]):
            if number:
                (desk.crash if crash else desk.restart)(topic_config(mode, trim_consumed=trim))
            found += desk.run_out(desk.now)
            waiting = sorted(one for one, time in wanted.items() if time > desk.now + 100)
            earlier, later, gone = waiting[0], waiting[1], waiting[2]
            wanted[earlier] = desk.now + 37
            wanted[later] = desk.now + 333
            assert desk.sub.reschedule(given[earlier], deliver_after=37)
            assert desk.sub.reschedule(given[later], deliver_after=333)
            desk.sub.cancel(given[gone]).result()
            del wanted[gone]
            new = desk.topic.publish(b"%d" % len(given), deliver_after=55)
            wanted[len(given)] = desk.now + 55
            given.append(new)
            until = desk.now + 60
            found += desk.run_out(*(time for time in wanted.values() if time <= until), until)
        found += desk.run_out(*wanted.values())
        assert sorted(found) == sorted((time, str(number)) for number, time in wanted.items())
        assert desk.sub.stats.backlog == desk.sub.stats.delayed == 0


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(list(MODES)),
            st.booleans(),
            st.lists(st.integers(0, 60), max_size=8),
            st.integers(0, 25),
            st.lists(st.tuples(st.integers(0, 30), st.integers(0, 60)), max_size=2),
        ),
        min_size=2,
        max_size=6,
    ),
    strict=st.booleans(),
    tick=st.sampled_from([1, 8]),
)
def test_any_way(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, bool, list[int], int, list[tuple[int, int]]]],
    strict: bool,
    tick: int,
) -> None:
    exact = {"delayed_delivery_tick_time_millis": tick, "is_delayed_delivery_deliver_at_time_strict": strict}
    configs = {mode: topic_config(mode, trim_consumed=True, max_entries_per_ledger=2, **exact) for mode in MODES}
    early = 0 if strict else tick
    due: dict[Position, int] = {}
    other_due: dict[Position, int] = {}
    with Desk(tmp_path_factory.mktemp("modes") / "store", configs[steps[0][0]]) as desk:
        other = desk.topic.subscription("other", subscription_config())

        def take() -> None:
            for sub, wanted in ((desk.sub, due), (other, other_due)):
                found = desk.drain(sub)
                for message in found:
                    assert desk.now >= wanted.pop(message.position) - early
                sub.ack_many(found).result()
                assert all(time + tick > desk.now for time in wanted.values())

        for mode, crash, delays, passing, others in steps:
            (desk.crash if crash else desk.restart)(configs[mode])
            other = desk.topic.subscription("other", subscription_config())
            for delay in delays:
                position = desk.topic.publish(b"x", deliver_after=delay or None)
                due[position] = other_due[position] = desk.now + delay
            take()
            for which, delay in others:
                waiting = sorted(position for position, time in due.items() if time > desk.now + tick)
                if waiting:
                    position = waiting[which % len(waiting)]
                    assert desk.sub.reschedule(position, deliver_after=delay)
                    due[position] = desk.now + delay
            desk.pass_time(passing)
            take()
        desk.pass_time(200)
        take()
        assert due == other_due == {}


@pytest.mark.parametrize("mode", ["in memory", "shared index"])
def test_snapshots_go_when_buckets_are_given_up(store_path: Path, mode: str) -> None:
    """What a mode does not use it need not keep; whether it does or not, the way back loses nothing."""
    with Desk(store_path, topic_config("buckets")) as desk:
        for number in range(20):
            desk.publish(number, at=100 + number)
        assert desk.read() == []
        assert read_properties(desk.sub.cursor.cursor_properties.items()).buckets
        desk.restart(topic_config(mode))
        assert desk.run_out(100, 101, 102) == [(100, "0"), (101, "1"), (102, "2")]
        desk.restart(topic_config("buckets"))
        assert desk.run_out(*range(103, 120)) == [(100 + number, str(number)) for number in range(3, 20)]
        desk.restart(topic_config("buckets"))
        assert not read_properties(desk.sub.cursor.cursor_properties.items()).buckets


@pytest.mark.parametrize("before", MODES)
@pytest.mark.parametrize("after", MODES)
def test_who_unsubscribes_in_another_mode_leaves_no_snapshot(store_path: Path, before: str, after: str) -> None:
    """All snapshots go before their cursor does."""
    with Desk(store_path, topic_config(before), subscription_config(durable_nacks=True)) as desk:
        given = [desk.topic.publish(b"%d" % number, deliver_after=100 + number) for number in range(20)]
        desk.publish("now")
        desk.sub.nack(desk.drain()[0])
        desk.sub.reschedule(given[3], deliver_after=500)
        desk.restart(topic_config(after))
        desk.sub.close()
        desk.topic.unsubscribe("sub")
        assert desk.topic.subscriptions() == []
        desk.restart(topic_config("in memory"))
        desk.topic.unsubscribe("sub")
        desk.topic.delete()
        assert list(desk.store.list_ledgers()) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("nth", range(1, 9))
def test_a_crash_while_it_unsubscribes(store_path: Path, mode: str, nth: int) -> None:
    """The cursor is gone only if the snapshots are: nothing is left that nobody would ever delete."""
    faults = Faults()
    with Desk(store_path, topic_config(mode), subscription_config(durable_nacks=True), hooks=faults) as desk:
        given = [desk.topic.publish(b"%d" % number, deliver_after=100 + number) for number in range(20)]
        desk.publish("now")
        desk.sub.nack(desk.drain()[0])
        desk.sub.reschedule(given[3], deliver_after=500)
        crash = faults.crash("commit.before_write", nth)
        try:
            desk.topic.unsubscribe("sub")
            desk.topic.close()
        except SimulatedCrash:
            pass
        finally:
            faults.remove(crash)
        desk.given_up.append(desk.store)
        with bookstand.open(store_path, clock=desk.clock) as store:
            topic = store.topic(TOPIC, topic_config(mode))
            if topic.subscriptions():
                sub = topic.subscription("sub", subscription_config(durable_nacks=True))
                sub.receive(1, timeout=0)
                topic.unsubscribe("sub")
            topic.delete()
            assert list(store.list_ledgers()) == []


def test_what_was_rescheduled_is_kept_by_the_cursor(store_path: Path) -> None:
    for mode in MODES:
        with Desk(store_path / mode.replace(" ", "-"), topic_config(mode)) as desk:
            (position,) = desk.publish("x", at=100)
            desk.read()
            assert PROPERTY not in desk.sub.cursor.cursor_properties
            desk.sub.reschedule(position, deliver_after=300)
            assert desk.run_out(100, 300) == [(300, "x")]
            assert PROPERTY not in desk.sub.cursor.cursor_properties


@pytest.mark.parametrize("mode", MODES)
def test_a_damaged_bucket_is_read_from_the_topic_again(store_path: Path, mode: str) -> None:
    """Case 25."""
    with Desk(store_path, topic_config("buckets")) as desk:
        for number in range(20):
            desk.publish(number, at=100 + number)
        assert desk.read() == []
        buckets = read_properties(desk.sub.cursor.cursor_properties.items()).buckets
        desk.topic.close()
        desk.store.delete_ledger(sorted(buckets.values())[0])
        desk.restart(topic_config(mode))
        assert desk.run_out(*range(100, 120)) == [(100 + number, str(number)) for number in range(20)]
