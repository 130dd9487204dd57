"""In which order messages come, that none is passed over for long, and when no new ones come at all (PIP-299)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.delivery.subscription.subscription import ConsumerBusyError, ReceivedMessage
from bookstand.errors import IncorrectParameterError
from bookstand.storage.format.position import EARLIEST
from bookstand.testing import VirtualClock
from tests.delivery.subscription_kit import (
    CURSOR,
    MODES,
    NACK_BUCKET,
    START,
    Desk,
    letters,
    numbered,
    positions,
    subscription_config,
    topic_config,
    words,
)
from tests.kit import PATIENCE

MOST_PASSED_OVER = 8


@pytest.fixture
def open_desk(store_path: Path) -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def open_one(mode: str = "in memory", topic: dict[str, Any] | None = None, **settings: Any) -> Desk:
        desks.append(Desk(store_path, topic_config(mode, **(topic or {})), subscription_config(**settings)))
        return desks[-1]

    yield open_one
    for desk in desks:
        desk.close()


# -- order -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["shared", "exclusive"])
def test_new_messages_come_in_the_order_of_the_topic(open_desk: Callable[..., Desk], kind: str) -> None:
    desk = open_desk(type=kind)
    given = desk.topic.publish_many(numbered(23))
    received: list[ReceivedMessage] = []
    for size in (1, 5, 2, 100):
        received += desk.sub.receive(size, timeout=0)
    assert positions(received) == given


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("mode", MODES)
def test_due_messages_come_in_the_order_of_their_times(open_desk: Callable[..., Desk], mode: str, size: int) -> None:
    desk = open_desk(mode)
    times = [70, 20, 90, 10, 50, 30, 80, 40, 60, 100, 15, 25]
    for time in times:
        desk.publish(time, at=time)
    assert desk.read() == []
    desk.go_to(100)
    assert [int(word) for word in words(desk.drain(max=size))] == sorted(times)


@pytest.mark.parametrize("size", [1, 4, 100])
def test_what_comes_again_comes_in_the_order_of_the_topic(open_desk: Callable[..., Desk], size: int) -> None:
    desk = open_desk(nack_delay=1_000)
    desk.publish(*range(9))
    received = desk.drain()
    for number in (7, 2, 5):
        desk.sub.nack(received[number])
    desk.sub.nack(received[0], delay=900)
    desk.pass_time(2_000)
    desk.publish("new")
    assert words(desk.drain(max=size)) == ["0", "2", "5", "7", "new"]


def test_what_comes_again_comes_before_all_others(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk()
    desk.publish(*range(4))
    desk.publish("due", at=100)
    assert words(desk.sub.receive(4, timeout=0)) == ["0", "1", "2", "3"]
    assert desk.read() == []
    desk.publish("new")
    desk.sub.redeliver_all()
    desk.go_to(100)
    received = desk.drain()
    assert words(received)[:4] == ["0", "1", "2", "3"]
    assert sorted(words(received)[4:]) == ["due", "new"]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    mode=st.sampled_from(list(MODES)),
    delays=st.lists(st.one_of(st.just(0), st.integers(1, 30)), min_size=1, max_size=25),
    steps=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6)), max_size=12),
)
def test_each_source_keeps_its_order(mode: str, delays: list[int], steps: list[tuple[int, int]]) -> None:
    clock = VirtualClock(START)
    with bookstand.temporary(clock=clock) as store, store.topic("t", topic_config(mode)) as topic:
        sub = topic.subscription("s", subscription_config())
        new = [topic.publish(b"%d" % delay, deliver_after=delay or None) for delay in delays]
        found: list[ReceivedMessage] = []
        for passing, size in [*steps, (100, 1000)]:
            clock.advance(passing / 1000)
            part = sub.receive(size, timeout=0)
            found += part
            # Of those given at once, too.
            due = [message for message in part if message.deliver_at is not None]
            assert all(message.deliver_at <= clock.now() for message in due if message.deliver_at is not None)
        while part := sub.receive(1000, timeout=0):
            found += part
        assert sorted(positions(found)) == new
        undelayed = [message.position for message in found if message.deliver_at is None]
        assert undelayed == sorted(undelayed)


@pytest.mark.parametrize("size", [1, 3])
def test_redeliveries_of_an_exclusive_subscription_precede_all_new_messages(
    open_desk: Callable[..., Desk], size: int
) -> None:
    """However many turns they take."""
    desk = open_desk(type="exclusive")
    given = desk.topic.publish_many(numbered(40))
    assert len(desk.sub.receive(30, timeout=0)) == 30
    desk.sub.redeliver_all()
    assert positions(desk.drain(max=size)) == given


# -- none is passed over -----------------------------------------------------------------------------------------------


def kind_of(message: ReceivedMessage) -> str:
    if message.redelivery_count:
        return "again"
    return "new" if message.deliver_at is None else "due"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [1, 3])
def test_no_source_is_passed_over_for_long(open_desk: Callable[..., Desk], mode: str, size: int) -> None:
    desk = open_desk(mode)
    count = 100
    desk.topic.publish_many(numbered(count))
    assert len(desk.drain()) == count
    desk.topic.publish_many(numbered(count), deliver_after=100)
    assert desk.read() == []
    desk.topic.publish_many(numbered(count))
    desk.sub.redeliver_all()
    desk.go_to(100)
    left = {"again": count, "due": count, "new": count}
    passed_over = dict.fromkeys(left, 0)
    first = None
    while sum(left.values()):
        part = desk.sub.receive(size, timeout=0)
        assert part
        kinds = [kind_of(message) for message in part]
        first = first or kinds[0]
        for kind in left:
            passed_over[kind] = 0 if kind in kinds or not left[kind] else passed_over[kind] + 1
        for kind in kinds:
            left[kind] -= 1
        assert max(passed_over.values()) <= MOST_PASSED_OVER
    assert first == "again"


def test_what_fails_for_ever_does_not_hold_the_others_up(open_desk: Callable[..., Desk]) -> None:
    """There is always something to be delivered again."""
    desk = open_desk()
    desk.publish(*(f"bad {number}" for number in range(20)))
    desk.drain()
    desk.publish(*(f"late {number}" for number in range(3)), at=100)
    assert desk.read() == []
    desk.publish(*(f"good {number}" for number in range(3)))
    desk.go_to(100)
    seen: set[str] = set()
    for _ in range(8 * MOST_PASSED_OVER):
        (word,) = words(desk.sub.receive(1, timeout=0))
        seen.add(word)
        desk.sub.redeliver_all()
        if sum(not one.startswith("bad") for one in seen) == 6:
            return
    raise AssertionError(f"only {sorted(seen)} came")


# -- exclusive ---------------------------------------------------------------------------------------------------------


def test_exclusive_gives_everything_again(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(type="exclusive", nack_delay=1_000)
    desk.publish(*range(8))
    received = desk.sub.receive(6, timeout=0)
    desk.sub.ack_many([received[0], received[3]]).result()
    desk.sub.nack(received[4])
    desk.pass_time(1_000)
    assert desk.read() == ["1", "2", "4", "5", "6", "7"]


def test_exclusive_gives_everything_again_after_the_deadline(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(type="exclusive", ack_deadline=1_000)
    desk.publish("a", "b")
    a, b = desk.drain()
    desk.pass_time(500)
    desk.publish("c")
    assert desk.read() == ["c"]
    desk.sub.ack(b).result()
    desk.pass_time(700)
    again = desk.drain()
    assert words(again) == ["a", "c"]
    desk.sub.ack_many([a, *again]).result()
    assert desk.sub.stats.backlog == 0


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("receive"), st.integers(1, 5)),
            st.tuples(st.sampled_from(["ack", "nack"]), st.integers(0, 9)),
            st.tuples(st.just("pass"), st.sampled_from([100, 1_000])),
            st.tuples(st.just("publish"), st.integers(1, 3)),
        ),
        max_size=30,
    )
)
def test_exclusive_keeps_the_order_of_what_is_not_acknowledged(steps: list[tuple[str, int]]) -> None:
    """Whatever comes after a message that is not acknowledged is behind it, until everything comes again."""
    clock = VirtualClock(START)
    with bookstand.temporary(clock=clock) as store, store.topic("t", topic_config()) as topic:
        sub = topic.subscription("s", subscription_config(type="exclusive", nack_delay=500))
        topic.publish_many(numbered(6))
        published = 6
        out: list[ReceivedMessage] = []
        acked: set[Any] = set()
        nacks = 0

        def take(part: list[ReceivedMessage]) -> None:
            nonlocal nacks
            for message in part:
                assert message.position not in acked
                if out and message.position <= out[-1].position:
                    # Everything that was out has been given back, and comes from the first on.
                    assert nacks
                    nacks -= 1
                    out.clear()
                    assert message.position == unacked()[0]
                out.append(message)

        def unacked() -> list[Any]:
            return [entry.position for entry in topic.ledger.entries(EARLIEST) if entry.position not in acked]

        for step, number in steps:
            if step == "receive":
                take(sub.receive(number, timeout=0))
            elif step == "publish":
                topic.publish_many(numbered(number, published))
                published += number
            elif step == "pass":
                clock.advance(number / 1000)
            elif out:
                message = out[number % len(out)]
                if step == "ack":
                    sub.ack(message).result()
                    acked.add(message.position)
                elif message.position not in acked:
                    sub.nack(message)
                    nacks += 1
        clock.advance(10)
        sub.redeliver_all()
        last = sub.receive(1000, timeout=0)
        assert positions(last) == unacked()


def test_exclusive_has_one_consumer(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(type="exclusive")
    desk.publish("a", "b")
    first = desk.sub.consumer("one")
    with pytest.raises(ConsumerBusyError):
        desk.sub.consumer("two")
    with pytest.raises(ConsumerBusyError):
        desk.sub.receive(timeout=0)
    assert desk.read(first) == ["a", "b"]
    first.close()
    with desk.sub.consumer("two") as second:
        received = desk.drain(second)
        assert words(received) == ["a", "b"]
        second.ack(received[0]).result()
    (message,) = desk.sub.receive(5, timeout=0)
    assert message.payload == b"b"
    with pytest.raises(ConsumerBusyError):
        desk.sub.consumer("three")
    desk.sub.ack(message).result()
    desk.sub.consumer("three").close()


# -- the limit of the cursor (PIP-299) ---------------------------------------------------------------------------------

LIMIT = 1 << 10
LIMITED = CursorConfig(flush_interval=1e9, max_per_cursor_metadata_size_in_bytes=LIMIT)
ENOUGH = 1_600


def over_the_limit(desk: Desk) -> list[ReceivedMessage]:
    """Every second message is acknowledged; those that are not, which are out."""
    desk.topic.publish_many(numbered(ENOUGH))
    received = desk.drain(max=ENOUGH)
    assert len(received) == ENOUGH
    desk.sub.ack_many(received[1::2]).result()
    assert desk.sub.cursor.cursor_metadata_size_in_bytes >= LIMIT
    assert desk.sub.cursor.paused
    assert desk.sub.stats.paused
    return received[::2]


def limited(open_desk: Callable[..., Desk], mode: str = "in memory", **settings: Any) -> Desk:
    return open_desk(mode, {"max_entries_per_ledger": 50_000}, **({"cursor": LIMITED} | settings))


@pytest.mark.parametrize("mode", MODES)
def test_over_the_limit_nothing_new_comes_until_enough_is_acknowledged(
    open_desk: Callable[..., Desk], mode: str
) -> None:
    """Case 70, but for what lies below the highest acknowledged position, such as a message that becomes due."""
    desk = limited(open_desk, mode)
    (hole,) = desk.publish("hole", at=100)
    held = over_the_limit(desk)
    desk.publish("due", at=100)
    desk.publish("new")
    desk.go_to(200)
    assert desk.read() == ["hole"]
    assert desk.read() == []
    desk.sub.ack(hole)
    # What was given back comes nevertheless.
    desk.sub.nack(held[3], delay=1_000)
    desk.pass_time(1_000)
    assert desk.read() == [held[3].payload.decode()]
    assert desk.sub.stats.paused
    desk.sub.ack_many(held).result()
    assert not desk.sub.cursor.paused
    assert not desk.sub.stats.paused
    assert sorted(desk.read()) == ["due", "new"]


def test_it_goes_on_when_the_cursor_is_reset(open_desk: Callable[..., Desk]) -> None:
    """Case 71."""
    desk = limited(open_desk)
    over_the_limit(desk)
    (new,) = desk.publish("new")
    assert desk.read() == []
    desk.sub.reset(new)
    desk.sub.cursor.flush()
    assert desk.read() == ["new"]


def test_it_goes_on_with_everything_acknowledged(open_desk: Callable[..., Desk]) -> None:
    desk = limited(open_desk)
    held = over_the_limit(desk)
    desk.publish("new")
    assert desk.read() == []
    desk.sub.ack_cumulative(held[-1]).result()
    assert desk.read() == ["new"]


def test_who_waits_over_the_limit_is_woken(open_desk: Callable[..., Desk]) -> None:
    desk = limited(open_desk)
    held = over_the_limit(desk)
    desk.publish("new")
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(words(desk.sub.receive(5))))
    thread.start()
    desk.sub.ack_many(held).result()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert found == ["new"]


def test_exclusive_pauses_as_shared_does(open_desk: Callable[..., Desk]) -> None:
    """Case 72 is about whoever does not ask the cursor; a subscription of either type asks."""
    desk = limited(open_desk, type="exclusive")
    held = over_the_limit(desk)
    desk.publish("due", at=100)
    desk.publish("new")
    desk.go_to(200)
    assert desk.read() == []
    desk.sub.ack_many(held).result()
    assert sorted(desk.read()) == ["due", "new"]


def test_another_consumer_gets_what_comes_again_and_then_the_rest(open_desk: Callable[..., Desk]) -> None:
    """Case 73."""
    desk = limited(open_desk)
    with desk.sub.consumer() as consumer:
        desk.topic.publish_many(numbered(ENOUGH))
        received = desk.drain(consumer, max=ENOUGH)
        consumer.ack_many(received[1::2]).result()
        assert desk.sub.stats.paused
        desk.publish("new")
        assert desk.read(consumer) == []
    other = desk.sub.consumer()
    again = desk.drain(other, max=ENOUGH)
    assert positions(again) == positions(received[::2])
    other.ack_many(again).result()
    assert desk.read(other) == ["new"]


def test_without_a_limit_nothing_pauses(open_desk: Callable[..., Desk]) -> None:
    """Cases 74 and 75: below 1 the limit is off."""
    desk = limited(open_desk, cursor=CursorConfig(flush_interval=1e9, max_per_cursor_metadata_size_in_bytes=0))
    desk.topic.publish_many(numbered(ENOUGH))
    desk.sub.ack_many(desk.drain(max=ENOUGH)[1::2]).result()
    assert desk.sub.cursor.cursor_metadata_size_in_bytes >= LIMIT
    desk.publish("new")
    assert desk.read() == ["new"]
    assert not desk.sub.stats.paused
    with pytest.raises(IncorrectParameterError):
        CursorConfig(max_per_cursor_metadata_size_in_bytes=LIMIT - 1)


def test_over_the_limit_after_a_restart(open_desk: Callable[..., Desk]) -> None:
    """What is not acknowledged comes, for nothing of it is out; what is new to all, when the limit is not reached."""
    desk = limited(open_desk)
    over_the_limit(desk)
    desk.publish("new")
    desk.restart(sub=subscription_config(cursor=CURSOR))
    received = desk.drain(max=ENOUGH)
    assert len(received) == ENOUGH // 2 + 1
    assert received[-1].payload == b"new"


def test_a_size_just_below_the_limit_does_not_pause(open_desk: Callable[..., Desk]) -> None:
    desk = limited(open_desk)
    desk.topic.publish_many(numbered(ENOUGH))
    received = desk.drain(max=ENOUGH)
    odd = received[1::2]
    while not desk.sub.cursor.paused:
        assert desk.sub.cursor.cursor_metadata_size_in_bytes < LIMIT
        assert desk.sub.stats.paused is False
        part, odd = odd[:50], odd[50:]
        desk.sub.ack_many(part).result()
        assert desk.sub.stats.paused is (desk.sub.cursor.cursor_metadata_size_in_bytes >= LIMIT)
    assert odd


def test_a_batch_comes_again_in_its_order(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(nack_delay=1_000)
    desk.topic.publish_batch(letters("abcd"))
    desk.publish("e")
    a, b, c, d, e = desk.drain()
    desk.sub.nack_many([e, d, b, a])
    desk.pass_time(1_000 - NACK_BUCKET)
    assert desk.read() == []
    desk.pass_time(NACK_BUCKET)
    again = desk.drain()
    assert words(again) == ["a", "b", "d", "e"]
    assert all(one.position <= other.position for one, other in pairwise(again))
    desk.sub.ack_many([*again, c]).result()
    assert desk.sub.stats.backlog == 0
