"""A subscription of one consumer: what it gives, takes back, gives again, gives up and forgets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bookstand.delivery.subscription.backoff import MultiplierRedeliveryBackoff
from bookstand.errors import ClientClosedError, IncorrectParameterError, LedgerFencedError
from bookstand.storage.format.position import Position
from tests.delivery.subscription_kit import (
    MODES,
    NACK_BUCKET,
    START,
    TOPIC,
    Desk,
    SubscriptionConfig,
    letters,
    positions,
    subscription_config,
    topic_config,
    words,
)
from tests.kit import PATIENCE, eventually


@pytest.fixture
def desk(store_path: Path) -> Iterator[Desk]:
    with Desk(store_path) as desk:
        yield desk


@pytest.fixture
def open_desk(store_path: Path) -> Iterator[Callable[..., Desk]]:
    """With settings of the subscription."""
    desks: list[Desk] = []

    def open_one(mode: str = "in memory", **settings: Any) -> Desk:
        desks.append(Desk(store_path, topic_config(mode), subscription_config(**settings)))
        return desks[-1]

    yield open_one
    for desk in desks:
        desk.close()


def dead_letters(desk: Desk, name: str = f"{TOPIC}-sub-DLQ") -> list[str]:
    found = desk.store.topic(name).subscription("undertaker", subscription_config())
    return words(found.receive(100, timeout=0))


# -- receiving ---------------------------------------------------------------------------------------------------------


def test_each_message_is_given_once(desk: Desk) -> None:
    given = desk.publish(*range(7))
    first = desk.sub.receive(3, timeout=0)
    second = desk.sub.receive(10, timeout=0)
    assert words(first) == ["0", "1", "2"]
    assert words(second) == ["3", "4", "5", "6"]
    assert positions(first + second) == given
    assert [message.redelivery_count for message in first + second] == [0] * 7
    assert desk.sub.receive(10, timeout=0) == []


def test_one_at_a_time_unless_it_is_said(desk: Desk) -> None:
    desk.publish("a", "b")
    assert words(desk.sub.receive()) == ["a"]
    assert words(desk.sub.receive(timeout=PATIENCE)) == ["b"]
    assert desk.sub.receive(timeout=0.01) == []


def test_who_waits_is_given_what_is_published_meanwhile(desk: Desk) -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(words(desk.sub.receive(5))))
    thread.start()
    desk.publish("x")
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert found == ["x"]


def test_who_waits_is_given_what_becomes_due(desk: Desk) -> None:
    desk.publish("x", at=500)
    found: list[tuple[int, str]] = []
    thread = threading.Thread(target=lambda: found.extend((desk.now, word) for word in words(desk.sub.receive(5))))
    thread.start()
    desk.go_to(499)
    desk.go_to(500)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert found == [(500, "x")]


def test_who_waits_is_given_what_comes_again(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(nack_delay=1_000)
    desk.publish("x")
    desk.sub.nack(desk.sub.receive()[0])
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(words(desk.sub.receive(5))))
    thread.start()
    desk.go_to(1_000)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert found == ["x"]


def test_the_machines_clock(open_store: Callable[..., Any]) -> None:
    """Without a clock of the test's: who waits is woken when it is time."""
    topic = open_store().topic("t", topic_config())
    sub = topic.subscription("s", SubscriptionConfig(nack_delay=100))
    position = topic.publish(b"x", deliver_after=50)
    (message,) = sub.receive(timeout=PATIENCE)
    assert message.position == position
    sub.nack(message)
    (again,) = sub.receive(timeout=PATIENCE)
    assert (again.position, again.redelivery_count) == (position, 1)
    sub.ack(again).result()
    topic.close()


@pytest.mark.parametrize("max_messages", [0, -1, "1", None, 1.5, True])
def test_how_many_are_wanted_is_a_number(desk: Desk, max_messages: Any) -> None:
    with pytest.raises(IncorrectParameterError):
        desk.sub.receive(max_messages, timeout=0)


@pytest.mark.parametrize("timeout", [-1, "1", float("nan")])
def test_how_long_to_wait_is_a_number(desk: Desk, timeout: Any) -> None:
    with pytest.raises(IncorrectParameterError):
        desk.sub.receive(1, timeout=timeout)


def test_a_batch_is_given_in_parts(desk: Desk) -> None:
    desk.topic.publish_batch(letters("abcde"))
    desk.publish("f")
    assert words(desk.sub.receive(3, timeout=0)) == ["a", "b", "c"]
    assert words(desk.sub.receive(3, timeout=0)) == ["d", "e", "f"]


@pytest.mark.parametrize("tick", [1, 100, 1_000])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_no_message_is_early_by_more_than_a_tick_nor_late(store_path: Path, mode: str, strict: bool, tick: int) -> None:
    config = topic_config(
        mode, delayed_delivery_tick_time_millis=tick, is_delayed_delivery_deliver_at_time_strict=strict
    )
    with Desk(store_path, config) as desk:
        times = [3_000, 1_500, 777, 2_048, 1_500, 1, 4_999, 1_023, 100, 2_500]
        for time in times:
            desk.publish(time, at=time)
        seen: dict[str, int] = {}
        step = max(1, tick // 4) if tick > 1 else 97
        moments = sorted({*range(0, 7_000, step), *times, *(time - 1 for time in times)})
        for moment in moments:
            desk.go_to(moment)
            for word in desk.consume():
                assert word not in seen or times.count(int(word)) > 1
                seen[word] = moment
                assert moment >= int(word) - (0 if strict else tick)
                assert moment <= int(word) + tick + step
        assert sorted(seen) == sorted(map(str, set(times)))


def test_a_subscription_may_have_a_tick_of_its_own(store_path: Path) -> None:
    config = topic_config(delayed_delivery_tick_time_millis=1_000, is_delayed_delivery_deliver_at_time_strict=False)
    with Desk(store_path, config, subscription_config(delayed_delivery_tick_time_millis=1)) as desk:
        rough = desk.topic.subscription("rough", subscription_config())
        desk.publish("x", at=1_500)
        desk.go_to(1_000)
        assert desk.read() == []
        assert desk.read(rough) == ["x"]
        desk.go_to(1_500)
        assert desk.read() == ["x"]


# -- acknowledging -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["message", "position", "many", "cumulative"])
def test_what_was_acknowledged_does_not_come_again(desk: Desk, how: str) -> None:
    desk.publish(*range(6))
    received = desk.drain()
    if how == "message":
        pending = [desk.sub.ack(message) for message in received[:3]]
    elif how == "position":
        pending = [desk.sub.ack(message.position) for message in received[:3]]
    elif how == "many":
        pending = [desk.sub.ack_many(iter([received[0], received[1].position, received[2]]))]
    else:
        pending = [desk.sub.ack_cumulative(received[2])]
    for one in pending:
        one.result(PATIENCE)
    assert desk.sub.stats.backlog == 3
    desk.crash()
    assert desk.read() == ["3", "4", "5"]


def test_what_was_not_comes_again_as_if_it_were_new(desk: Desk) -> None:
    desk.publish(*range(4))
    received = desk.drain()
    desk.sub.redeliver_all()
    received = desk.drain()
    assert [message.redelivery_count for message in received] == [1] * 4
    desk.sub.ack(received[2]).result()
    desk.crash()
    again = desk.drain()
    assert words(again) == ["0", "1", "3"]
    assert [message.redelivery_count for message in again] == [0] * 3


def test_closing_in_good_order_keeps_every_ack(desk: Desk) -> None:
    desk.publish(*range(4))
    received = desk.drain()
    pending = desk.sub.ack(received[1])
    desk.restart()
    assert pending.result(PATIENCE) is None
    assert desk.read() == ["0", "2", "3"]


def test_acknowledging_twice_is_nothing(desk: Desk) -> None:
    desk.publish("a", "b")
    received = desk.drain()
    desk.sub.ack(received[0]).result()
    desk.sub.ack(received[0]).result()
    desk.sub.ack_many([]).result()
    assert desk.sub.stats.backlog == 1


def test_what_is_acknowledged_before_it_is_given_is_not_given(desk: Desk) -> None:
    given = desk.publish(*range(4))
    desk.sub.ack(given[1]).result()
    assert desk.read() == ["0", "2", "3"]


def test_everything_up_to_a_message(desk: Desk) -> None:
    given = desk.publish(*range(8))
    desk.sub.receive(2, timeout=0)
    desk.sub.ack_cumulative(given[4]).result()
    assert desk.sub.cursor.mark_delete_position == given[4]
    assert desk.read() == ["5", "6", "7"]
    assert desk.sub.stats.out == 3
    desk.crash()
    assert desk.read() == ["5", "6", "7"]


def test_everything_up_to_a_message_within_a_batch(desk: Desk) -> None:
    desk.publish("0")
    desk.topic.publish_batch(letters("abcd"))
    received = desk.drain()
    assert words(received) == ["0", *"abcd"]
    desk.sub.ack_cumulative(received[2]).result()
    desk.crash()
    assert desk.read() == ["c", "d"]


def test_messages_of_a_batch_are_acknowledged_one_by_one(desk: Desk) -> None:
    desk.topic.publish_batch(letters("abcd"))
    desk.publish("e")
    received = desk.drain()
    desk.sub.ack_many([received[1], received[3]]).result()
    assert desk.sub.stats.backlog == 2
    desk.crash()
    received = desk.drain()
    assert words(received) == ["a", "c", "e"]
    assert [message.batch_index for message in received] == [0, 2, -1]
    assert [message.batch_size for message in received] == [4, 4, 0]
    desk.sub.ack(received[0]).result()
    desk.sub.ack(received[1]).result()
    assert desk.sub.stats.backlog == 1
    desk.crash()
    assert desk.read() == ["e"]


def test_the_position_of_a_batch_is_all_of_it(desk: Desk) -> None:
    position = desk.topic.publish_batch(letters("abcd"))
    desk.publish("e")
    desk.drain()
    desk.sub.ack(position).result()
    desk.sub.redeliver_all()
    assert desk.read() == ["e"]


@pytest.mark.parametrize("wrong", [None, 5, "1:2", (1,), (1, "2"), b"x"])
def test_what_is_no_message_is_refused(desk: Desk, wrong: Any) -> None:
    desk.publish("a")
    for call in (
        desk.sub.ack,
        lambda one: desk.sub.ack_many([one]),
        desk.sub.ack_cumulative,
        desk.sub.nack,
        lambda one: desk.sub.nack_many([one]),
        desk.sub.cancel,
        lambda one: desk.sub.reschedule(one, deliver_after=1),
        desk.sub.reset,
    ):
        with pytest.raises(IncorrectParameterError):
            call(wrong)
    assert desk.read() == ["a"]


# -- giving back -------------------------------------------------------------------------------------------------------


def test_what_is_nacked_comes_again_after_a_while(desk: Desk) -> None:
    desk.publish("a", "b", "c")
    received = desk.drain()
    desk.sub.nack(received[1])
    assert desk.read() == []
    assert desk.sub.stats.nacked == 1
    desk.go_to(60_000 - NACK_BUCKET)
    assert desk.read() == []
    desk.go_to(60_000)
    (again,) = desk.drain()
    assert (again.payload, again.redelivery_count) == (b"b", 1)
    assert desk.sub.stats.nacked == 0


@pytest.mark.parametrize("delay", [400, timedelta(milliseconds=400)])
def test_how_long_may_be_said(open_desk: Callable[..., Desk], delay: Any) -> None:
    desk = open_desk(nack_delay=5_000)
    desk.publish("a", "b", "c")
    received = desk.drain()
    desk.sub.nack(received[0].position)
    desk.sub.nack_many([received[1], received[2].position], delay=delay)
    desk.go_to(400 - NACK_BUCKET)
    assert desk.read() == []
    desk.go_to(400)
    assert desk.read() == ["b", "c"]
    desk.go_to(5_000 - NACK_BUCKET)
    assert desk.read() == []
    desk.go_to(5_000)
    assert desk.read() == ["a"]


def test_a_shorter_delay_does_not_wait_for_a_longer_one(desk: Desk) -> None:
    """Case 14 of the time index."""
    desk.publish("long", "short")
    long, short = desk.drain()
    desk.sub.nack(long, delay=600_000)
    desk.sub.nack(short, delay=1_000)
    desk.go_to(1_000)
    assert desk.read() == ["short"]


def test_it_waits_the_longer_the_more_often_it_failed(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(nack_backoff=MultiplierRedeliveryBackoff(1_000, 6_000, 2.0))
    desk.publish("a")
    moment = 0
    for count, wait in enumerate([1_000, 2_000, 4_000, 6_000, 6_000]):
        (message,) = desk.drain()
        assert message.redelivery_count == count
        desk.sub.nack(message)
        desk.go_to(moment + wait - NACK_BUCKET)
        assert desk.read() == []
        moment += wait
        desk.go_to(moment)


def test_an_ack_takes_a_nack_back(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(nack_delay=1_000)
    desk.publish("a", "b")
    a, b = desk.drain()
    desk.sub.nack_many([a, b])
    desk.sub.ack(a).result()
    desk.go_to(2_000)
    assert desk.read() == ["b"]
    assert desk.sub.stats.backlog == 1


def test_of_a_batch_only_what_was_nacked_comes_again(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(nack_delay=1_000)
    desk.topic.publish_batch(letters("abcd"))
    a, b, c, d = desk.drain()
    desk.sub.ack(a).result()
    desk.sub.nack(b)
    desk.sub.nack(c, delay=3_000)
    desk.go_to(1_000)
    assert desk.read() == ["b"]
    desk.go_to(3_000)
    (again,) = desk.drain()
    assert (again.payload, again.batch_index) == (b"c", 2)
    desk.sub.ack_many([b, again]).result()
    assert desk.sub.stats.backlog == 1
    desk.sub.ack(d).result()
    assert desk.sub.stats.backlog == 0


@pytest.mark.parametrize("delay", [-1, "1", timedelta(seconds=-1)])
def test_wrong_delays(desk: Desk, delay: Any) -> None:
    desk.publish("a")
    (message,) = desk.drain()
    with pytest.raises(IncorrectParameterError):
        desk.sub.nack(message, delay=delay)
    with pytest.raises(IncorrectParameterError):
        desk.sub.nack_many([message], delay=delay)
    assert desk.sub.stats.out == 1


def test_nacks_are_forgotten_by_a_restart(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(nack_delay=10_000)
    desk.publish("a")
    desk.sub.nack(desk.drain()[0])
    desk.restart()
    assert desk.read() == ["a"]


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_nacks_that_are_kept_still_wait_after_a_restart(open_desk: Callable[..., Desk], how: str) -> None:
    desk = open_desk(nack_delay=10_000, durable_nacks=True)
    desk.publish("a", "b", "c")
    a, _, c = desk.drain()
    desk.sub.nack(a)
    desk.sub.nack(c, delay=20_000)
    getattr(desk, how)()
    assert desk.read() == ["b"]
    desk.go_to(10_000 - NACK_BUCKET)
    assert desk.read() == []
    desk.go_to(10_000)
    assert desk.read() == ["a"]
    getattr(desk, how)()
    assert desk.read() == ["a", "b"]
    desk.go_to(20_000)
    assert desk.read() == ["c"]


def test_everything_that_is_out_comes_again(desk: Desk) -> None:
    desk.publish(*range(5))
    received = desk.sub.receive(3, timeout=0)
    desk.sub.ack(received[1]).result()
    desk.sub.redeliver_all()
    assert desk.sub.stats.out == 0
    again = desk.drain()
    assert words(again) == ["0", "2", "3", "4"]
    assert [message.redelivery_count for message in again] == [1, 1, 0, 0]
    desk.sub.ack_many(again).result()
    assert desk.sub.stats.backlog == 0


# -- the deadline ------------------------------------------------------------------------------------------------------


def test_without_a_deadline_nothing_is_taken_away(desk: Desk) -> None:
    desk.publish("a")
    desk.drain()
    desk.pass_time(10**9)
    assert desk.read() == []


@pytest.mark.parametrize("deadline", [10_000, timedelta(seconds=10)])
def test_who_holds_a_message_too_long_loses_it(open_desk: Callable[..., Desk], deadline: Any) -> None:
    desk = open_desk(ack_deadline=deadline)
    desk.publish("a", "b")
    a, b = desk.drain()
    desk.go_to(5_000)
    desk.sub.ack(b).result()
    desk.publish("c")
    assert desk.read() == ["c"]
    desk.go_to(10_000 - NACK_BUCKET)
    assert desk.read() == []
    desk.go_to(11_000)
    (again,) = desk.drain()
    assert (again.payload, again.redelivery_count) == (b"a", 1)
    desk.go_to(16_000)
    assert desk.read() == ["c"]
    # Late, but an ack nevertheless.
    desk.sub.ack(a).result()
    desk.go_to(60_000)
    assert "a" not in desk.read()


def test_a_nack_takes_a_message_off_the_deadline(open_desk: Callable[..., Desk]) -> None:
    """Case 11 of the time index."""
    desk = open_desk(ack_deadline=10_000, nack_delay=30_000)
    desk.publish("a")
    desk.sub.nack(desk.drain()[0])
    desk.go_to(20_000)
    assert desk.read() == []
    desk.go_to(30_000)
    (again,) = desk.drain()
    assert again.redelivery_count == 1


# -- dead letters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 3])
def test_what_fails_too_often_goes_to_the_dead_letters(open_desk: Callable[..., Desk], most: int) -> None:
    desk = open_desk(max_redeliveries=most, nack_delay=1_000)
    desk.publish("bad", properties={"k": "v"})
    desk.publish("good")
    for count in range(most + 1):
        received = desk.drain()
        (bad,) = [message for message in received if message.payload == b"bad"]
        assert bad.redelivery_count == count
        desk.sub.nack(bad)
        desk.pass_time(1_000)
    assert desk.read() == []
    assert desk.sub.stats.dead_lettered == 1
    assert desk.sub.stats.backlog == 1
    topic = desk.store.topic(f"{TOPIC}-sub-DLQ")
    (letter,) = topic.subscription("undertaker").receive(10, timeout=0)
    assert letter.payload == b"bad"
    assert {"k": "v"}.items() <= letter.properties.items()
    desk.crash()
    assert desk.read() == ["good"]


def test_the_dead_letters_may_have_a_name(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(max_redeliveries=0, nack_delay=100, dead_letter_topic="graves")
    desk.publish("bad")
    desk.sub.nack(desk.drain()[0])
    desk.pass_time(100)
    assert desk.read() == []
    assert dead_letters(desk, "graves") == ["bad"]


def test_what_is_held_too_often_goes_there_too(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(max_redeliveries=1, ack_deadline=1_000)
    desk.publish("bad")
    for _ in range(2):
        assert desk.read() == ["bad"]
        desk.pass_time(2_000)
    assert desk.read() == []
    assert dead_letters(desk) == ["bad"]


def test_of_a_batch_only_the_bad_one_goes_there(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(max_redeliveries=1, nack_delay=1_000)
    desk.topic.publish_batch(letters("abc"))
    a, b, c = desk.drain()
    desk.sub.ack_many([a, c]).result()
    desk.sub.nack(b)
    desk.pass_time(1_000)
    (b,) = desk.drain()
    desk.sub.nack(b)
    desk.pass_time(1_000)
    assert desk.read() == []
    assert dead_letters(desk) == ["b"]
    assert desk.sub.stats.backlog == 0


# -- time to live ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("span", [1_000, timedelta(seconds=1)])
@pytest.mark.parametrize("mode", MODES)
def test_what_is_too_old_is_not_given(open_desk: Callable[..., Desk], mode: str, span: Any) -> None:
    desk = open_desk(mode, time_to_live=span)
    desk.publish("old", "older")
    desk.publish("waits", at=5_000)
    desk.go_to(800)
    desk.publish("young")
    desk.go_to(1_500)
    assert desk.read() == ["young"]
    assert desk.sub.stats.expired == 2
    assert desk.sub.stats.backlog == 2
    # Its life begins when it may be delivered.
    desk.go_to(5_900)
    assert desk.read() == ["waits"]


@pytest.mark.parametrize("mode", MODES)
def test_what_waited_too_long_after_its_time_is_not_given(open_desk: Callable[..., Desk], mode: str) -> None:
    desk = open_desk(mode, time_to_live=1_000)
    desk.publish("waits", at=5_000)
    desk.publish("kept", at=7_500)
    assert desk.read() == []
    desk.go_to(8_000)
    assert desk.read() == ["kept"]
    assert desk.sub.stats.expired == 1


def test_what_is_too_old_goes_when_it_is_asked_for(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(time_to_live=1_000)
    desk.publish(*range(7))
    desk.publish("waits", at=5_000)
    desk.go_to(1_000 - 1)
    assert desk.sub.expire() == 0
    desk.go_to(2_000)
    desk.publish("young")
    assert desk.sub.expire() == 7
    assert desk.sub.expire() == 0
    assert desk.sub.stats.backlog == 2
    assert desk.read() == ["young"]
    desk.crash()
    desk.go_to(5_000)
    assert desk.read() == ["waits"]


def test_without_a_time_to_live_nothing_is_too_old(desk: Desk) -> None:
    desk.publish("a")
    desk.pass_time(10**11)
    assert desk.sub.expire() == 0
    assert desk.read() == ["a"]


# -- cancelled and rescheduled -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("how", ["none", "restart", "crash"])
@pytest.mark.parametrize("mode", MODES)
def test_what_is_cancelled_never_comes(open_desk: Callable[..., Desk], mode: str, how: str, read: bool) -> None:
    desk = open_desk(mode)
    given = [desk.topic.publish(b"%d" % number, deliver_after=100 + 10 * number) for number in range(12)]
    if read:
        assert desk.read() == []
    for number in (0, 5, 11):
        desk.sub.cancel(given[number]).result(PATIENCE)
    assert desk.sub.stats.backlog == 9
    if how != "none":
        getattr(desk, how)()
    moments = [100 + 10 * number for number in range(12)]
    assert desk.run_out(*moments) == [(100 + 10 * n, str(n)) for n in range(12) if n not in (0, 5, 11)]
    assert desk.sub.stats.backlog == 0
    assert desk.sub.stats.delayed == 0


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("how", ["none", "restart", "crash"])
@pytest.mark.parametrize("mode", MODES)
def test_what_is_rescheduled_comes_then(open_desk: Callable[..., Desk], mode: str, how: str, read: bool) -> None:
    desk = open_desk(mode)
    given = [desk.topic.publish(b"%d" % number, deliver_after=100 + 10 * number) for number in range(12)]
    if read:
        assert desk.read() == []
    assert desk.sub.reschedule(given[0], deliver_after=500)
    assert desk.sub.reschedule(given[7], deliver_at=START + 400)
    assert desk.sub.reschedule(given[11], deliver_at=START + 50)
    assert desk.sub.reschedule(given[3], deliver_after=timedelta(milliseconds=300))
    assert desk.sub.reschedule(given[3], deliver_after=350)
    if how != "none":
        getattr(desk, how)()
    wanted = {number: 100 + 10 * number for number in range(12)} | {0: 500, 7: 400, 11: 50, 3: 350}
    moments = [*wanted.values(), 100, 130, 170, 210, 300]
    assert desk.run_out(*moments) == sorted((time, str(number)) for number, time in wanted.items())


@pytest.mark.slow
@pytest.mark.parametrize("last_to_go", ["cancelled", "delivered", "given a time"])
@pytest.mark.parametrize("mode", MODES)
def test_what_is_cancelled_and_comes_all_the_same_has_its_time(
    open_desk: Callable[..., Desk], mode: str, last_to_go: str
) -> None:
    """A crash comes before its acknowledgment is durable, whatever was done to the times that others were given."""
    desk = open_desk(mode)
    cancelled, other = desk.publish("cancelled", "other", at=100)
    assert desk.read() == []
    assert desk.sub.reschedule(cancelled, deliver_at=START + 500)
    if last_to_go != "cancelled":
        assert desk.sub.reschedule(other, deliver_at=START + 50)
    desk.sub.cancel(cancelled)
    if last_to_go == "delivered":
        desk.go_to(50)
        assert desk.read() == ["other"]
    elif last_to_go == "given a time":
        # So often that the record of such times is written anew.
        for _ in range(1_100):
            assert desk.sub.reschedule(other, deliver_at=START + 600)
    desk.crash()
    desk.go_to(400)
    assert "cancelled" not in desk.read()


def test_what_does_not_wait_cannot_be_rescheduled(desk: Desk) -> None:
    (now,) = desk.publish("now")
    (later,) = desk.publish("later", at=100)
    assert not desk.sub.reschedule(now, deliver_after=50)
    desk.drain()
    assert not desk.sub.reschedule(now, deliver_after=50)
    desk.go_to(100)
    (message,) = desk.drain()
    assert not desk.sub.reschedule(later, deliver_after=50)
    desk.sub.ack(message).result()
    assert not desk.sub.reschedule(later, deliver_after=50)
    desk.pass_time(1_000)
    assert desk.read() == []


@pytest.mark.parametrize("how", ["none", "restart", "crash"])
@pytest.mark.parametrize("mode", MODES)
def test_what_was_given_back_waits_for_nothing_else(open_desk: Callable[..., Desk], mode: str, how: str) -> None:
    """Also where a snapshot on the disk still has it among those that wait for their time."""
    desk = open_desk(mode, nack_delay=1_000, durable_nacks=True)
    desk.publish(*"abcdef", at=100)
    desk.publish(*"ghijkl", at=130)
    assert desk.read() == []
    desk.go_to(100)
    messages = desk.drain()
    assert len(messages) == 6
    desk.sub.nack_many(messages)
    if how != "none":
        getattr(desk, how)()
    for message in messages:
        assert not desk.sub.reschedule(message.position, deliver_after=5_000)
    desk.go_to(1_100)
    assert sorted(desk.consume()) == list("abcdefghijkl")
    desk.go_to(6_000)
    assert desk.read() == []


@pytest.mark.parametrize(
    "times", [{}, {"deliver_at": 1, "deliver_after": 1}, {"deliver_after": -1}, {"deliver_at": "x"}]
)
def test_one_time_has_to_be_told(desk: Desk, times: dict[str, Any]) -> None:
    (position,) = desk.publish("later", at=100)
    desk.read()
    with pytest.raises(IncorrectParameterError):
        desk.sub.reschedule(position, **times)
    assert desk.run_out(100) == [(100, "later")]


@pytest.mark.parametrize("mode", MODES)
def test_rescheduled_to_now(open_desk: Callable[..., Desk], mode: str) -> None:
    desk = open_desk(mode)
    (position,) = desk.publish("later", at=1_000)
    assert desk.read() == []
    assert desk.sub.reschedule(position, deliver_after=0)
    assert desk.consume() == ["later"]
    desk.go_to(1_000)
    assert desk.read() == []


def test_what_is_rescheduled_under_a_shared_index_has_the_tick_of_the_subscription(store_path: Path) -> None:
    exact = {"delayed_delivery_tick_time_millis": 10, "is_delayed_delivery_deliver_at_time_strict": False}
    own = subscription_config(delayed_delivery_tick_time_millis=200)
    with Desk(store_path, topic_config("shared index", **exact), own) as desk:
        (position,) = desk.publish("later", at=1_000)
        assert desk.sub.reschedule(position, deliver_at=START + 500)
        desk.go_to(500 - 201)
        assert desk.read() == []
        # In memory times are rounded to the largest power of two that is not above the tick.
        desk.go_to(500 - 200 + 128)
        assert desk.consume() == ["later"]


@pytest.mark.parametrize("mode", MODES)
def test_other_subscriptions_keep_their_time(open_desk: Callable[..., Desk], mode: str) -> None:
    desk = open_desk(mode)
    other = desk.topic.subscription("other", subscription_config())
    given = desk.publish("a", "b", at=100)
    assert desk.read() == desk.read(other) == []
    assert desk.sub.reschedule(given[0], deliver_at=START + 300)
    desk.sub.cancel(given[1]).result()
    desk.go_to(100)
    assert desk.read() == []
    assert desk.read(other) == ["a", "b"]
    desk.go_to(300)
    assert desk.read() == ["a"]
    assert desk.read(other) == []


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_what_waits_can_be_looked_at(open_desk: Callable[..., Desk], mode: str, read: bool) -> None:
    desk = open_desk(mode)
    times = [500, 100, 900, 100, 700, 300, 200, 1_000, 50, 600]
    given = {desk.topic.publish(b"%d" % time, deliver_at=START + time): time for time in times}
    desk.publish("now")
    if read:
        assert desk.read() == ["now"]
    everything = sorted((START + time, position) for position, time in given.items())
    assert desk.sub.peek_delayed() == everything
    assert desk.sub.peek_delayed(limit=3) == everything[:3]
    assert desk.sub.peek_delayed(first=START + 200) == everything[3:]
    assert desk.sub.peek_delayed(last=START + 199) == everything[:3]
    assert desk.sub.peek_delayed(START + 200, START + 699, 2) == everything[3:5]
    assert desk.sub.stats.delayed == 10
    desk.sub.reschedule(everything[0][1], deliver_at=START + 2_000)
    assert desk.sub.peek_delayed()[-1] == (START + 2_000, everything[0][1])
    with pytest.raises(IncorrectParameterError):
        desk.sub.peek_delayed(limit=-1)


# -- reading again -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["none", "restart", "crash"])
@pytest.mark.parametrize("mode", MODES)
def test_reading_again_from_a_message(open_desk: Callable[..., Desk], mode: str, how: str) -> None:
    desk = open_desk(mode)
    given = desk.publish(*range(8))
    desk.publish("delayed", at=100)
    received = desk.drain()
    desk.sub.ack_many(received[:6]).result()
    desk.sub.reset(given[3])
    assert desk.sub.stats.out == 0
    if how != "none":
        getattr(desk, how)()
    assert desk.read() == ["3", "4", "5", "6", "7"]
    assert desk.sub.stats.backlog == 6
    desk.go_to(100)
    assert desk.read() == ["delayed"]


def test_reading_on_from_a_later_message(desk: Desk) -> None:
    given = desk.publish(*range(8))
    received = desk.sub.receive(2, timeout=0)
    desk.sub.nack(received[0])
    desk.sub.reset(given[5])
    desk.pass_time(10**6)
    assert desk.read() == ["5", "6", "7"]
    desk.sub.reset(given[7].next)
    assert desk.read() == []
    desk.publish("new")
    assert desk.read() == ["new"]


@pytest.mark.parametrize("mode", MODES)
def test_what_came_at_its_time_comes_again_after_a_reset(open_desk: Callable[..., Desk], mode: str) -> None:
    desk = open_desk(mode)
    given = desk.publish(*range(10), at=100)
    far = desk.publish("far", at=1_000)
    desk.go_to(100)
    assert len(desk.consume()) == 10
    desk.sub.reset(given[4])
    assert desk.read() == [str(number) for number in range(4, 10)]
    desk.sub.reset(far[0])
    assert desk.read() == []
    desk.go_to(1_000)
    assert desk.read() == ["far"]


def test_an_ack_from_before_a_reset_is_an_ack(desk: Desk) -> None:
    given = desk.publish(*range(3))
    received = desk.drain()
    desk.sub.reset(given[0])
    desk.sub.ack(received[1]).result()
    assert desk.read() == ["0", "2"]


# -- how many are out --------------------------------------------------------------------------------------------------


def test_no_more_are_out_than_may_be(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(max_unacked_messages=3, nack_delay=1_000)
    desk.publish(*range(8))
    received = desk.sub.receive(10, timeout=0)
    assert words(received) == ["0", "1", "2"]
    assert desk.sub.receive(10, timeout=0) == []
    desk.sub.ack(received[1]).result()
    assert desk.read() == ["3"]
    desk.sub.nack(received[0])
    assert desk.read() == ["4"]
    desk.pass_time(1_000)
    assert desk.read() == []
    desk.sub.ack_many([received[2]]).result()
    assert desk.read() == ["0"]


# -- figures -----------------------------------------------------------------------------------------------------------


def test_figures(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(nack_delay=1_000)
    desk.publish(*range(6))
    desk.publish("a", "b", at=500)
    received = desk.drain()
    stats = desk.sub.stats
    assert (stats.backlog, stats.delayed, stats.out, stats.waiting, stats.nacked) == (8, 2, 6, 0, 0)
    assert (stats.delivered, stats.redelivered, stats.acked, stats.expired, stats.dead_lettered) == (6, 0, 0, 0, 0)
    assert stats.paused is False
    desk.sub.ack_many(received[:3]).result()
    desk.sub.nack(received[3])
    stats = desk.sub.stats
    assert (stats.backlog, stats.out, stats.waiting, stats.nacked, stats.acked) == (5, 2, 0, 1, 3)
    desk.sub.redeliver_all()
    assert desk.sub.stats.waiting == 2
    desk.go_to(1_000)
    assert len(desk.drain()) == 5
    stats = desk.sub.stats
    assert (stats.delayed, stats.out, stats.waiting, stats.nacked) == (0, 5, 0, 0)
    assert (stats.delivered, stats.redelivered) == (11, 3)


# -- closing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["subscription", "topic", "store"])
def test_who_waits_is_told_of_the_end(desk: Desk, what: str) -> None:
    told: list[str] = []

    def wait() -> None:
        try:
            desk.sub.receive()
        except ClientClosedError:
            told.append("closed")

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    {"subscription": desk.sub, "topic": desk.topic, "store": desk.store}[what].close()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert told == ["closed"] * 2


def test_a_task_that_waits_is_told_of_the_end(desk: Desk) -> None:
    async def main() -> None:
        task = asyncio.create_task(desk.sub.receive_async())
        await asyncio.sleep(0)
        desk.sub.close()
        with pytest.raises(ClientClosedError):
            await asyncio.wait_for(task, PATIENCE)
        with pytest.raises(ClientClosedError):
            await desk.sub.receive_async(timeout=0)

    asyncio.run(main())


def test_nothing_can_be_asked_of_what_is_closed(desk: Desk) -> None:
    (position,) = desk.publish("a")
    (message,) = desk.drain()
    desk.sub.close()
    desk.sub.close()
    for call in (
        lambda: desk.sub.receive(timeout=0),
        lambda: desk.sub.ack(message).result(PATIENCE),
        lambda: desk.sub.ack_many([message]).result(PATIENCE),
        lambda: desk.sub.ack_cumulative(message).result(PATIENCE),
        lambda: desk.sub.nack(message),
        lambda: desk.sub.nack_many([message]),
        lambda: desk.sub.cancel(position).result(PATIENCE),
        lambda: desk.sub.reschedule(position, deliver_after=1),
        lambda: desk.sub.peek_delayed(),
        lambda: desk.sub.reset(position),
        lambda: desk.sub.expire(),
        lambda: desk.sub.redeliver_all(),
        lambda: desk.sub.consumer(),
    ):
        with pytest.raises(ClientClosedError):
            call()
    again = desk.topic.subscription("sub", subscription_config())
    assert desk.read(again) == ["a"]


def test_a_subscription_that_is_closed_leaves_the_topic_open(desk: Desk) -> None:
    with desk.sub:
        desk.publish("a")
        desk.sub.ack(desk.drain()[0]).result()
    desk.publish("b")
    assert desk.read(desk.topic.subscription("sub", subscription_config())) == ["b"]


def test_nothing_rings_any_more_once_it_is_closed(open_desk: Callable[..., Desk]) -> None:
    """Case 13 of the time index."""
    desk = open_desk(nack_delay=1_000, ack_deadline=5_000)
    desk.publish("a", "b")
    desk.publish("c", at=700)
    a, _ = desk.drain()
    desk.sub.nack(a)
    desk.sub.close()
    desk.pass_time(10_000)
    assert desk.read(desk.topic.subscription("sub", subscription_config())) == ["a", "b", "c"]


def test_threads_end_with_the_store(open_store: Callable[..., Any]) -> None:
    before = set(threading.enumerate())
    store = open_store()
    topic = store.topic("t")
    sub = topic.subscription("s", SubscriptionConfig(ack_deadline=10_000))
    topic.publish(b"a", deliver_after=60_000)
    topic.publish(b"b")
    sub.nack(sub.receive(timeout=0)[0])
    topic.close()
    store.close()
    # A timer with nothing to do waits a little for something, and ends.
    left = eventually(
        lambda: not {thread for thread in threading.enumerate() if not thread.daemon} - before, "the threads end"
    )
    assert left


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "failover"},
        {"type": None},
        {"cursor": {}},
        {"delayed_delivery_tick_time_millis": 0},
        {"delayed_delivery_tick_time_millis": "1"},
        {"ack_deadline": 0},
        {"ack_deadline": -1},
        {"ack_deadline": "1"},
        {"nack_delay": -1},
        {"nack_delay": None},
        {"nack_backoff": 5},
        {"durable_nacks": 1},
        {"max_redeliveries": -1},
        {"max_redeliveries": 1.5},
        {"dead_letter_topic": ""},
        {"dead_letter_topic": 5},
        {"time_to_live": -1},
        {"time_to_live": "1"},
        {"max_unacked_messages": 0},
        {"max_unacked_messages": None},
    ],
)
def test_settings_that_are_none(settings: dict[str, Any]) -> None:
    with pytest.raises(IncorrectParameterError):
        SubscriptionConfig(**settings)


def test_settings_stand() -> None:
    config = SubscriptionConfig()
    assert (config.type, config.nack_delay, config.max_unacked_messages) == ("shared", 60_000, 50_000)
    with pytest.raises(AttributeError):
        config.type = "exclusive"  # type: ignore[misc]
    with pytest.raises(TypeError):
        SubscriptionConfig("exclusive")  # type: ignore[misc]


def test_positions_come_as_positions(desk: Desk) -> None:
    desk.publish(*range(7))
    received = desk.drain()
    assert all(type(message.position) is Position for message in received)
    assert all(one.position < other.position for one, other in pairwise(received))


# -- from one place only -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_kept_nack_that_is_due_at_the_first_receive_comes_once(open_desk: Callable[..., Desk], how: str) -> None:
    """The cursor comes to it in the same call."""
    desk = open_desk(nack_delay=1_000, durable_nacks=True)
    desk.publish("a", "b")
    desk.sub.nack(desk.sub.receive(1, timeout=0)[0])
    getattr(desk, how)()
    desk.go_to(2_000)
    assert desk.read() == ["a", "b"]


@pytest.mark.parametrize("mode", MODES)
def test_what_is_due_at_the_first_receive_after_a_reset_comes_once(open_desk: Callable[..., Desk], mode: str) -> None:
    desk = open_desk(mode)
    given = desk.publish("a")
    desk.publish("late", at=100)
    assert desk.read() == ["a"]
    desk.sub.reset(given[0])
    desk.go_to(100)
    assert sorted(desk.read()) == ["a", "late"]


def test_one_who_was_fenced_out_does_not_take_the_cursor_back(store_path: Path) -> None:
    """However early it acknowledges: before the new owner has written anything."""
    with Desk(store_path) as desk:
        desk.publish(*range(4))
        old, received = desk.sub, desk.drain()
        old.ack(received[0]).result()
        desk.crash()
        new = desk.drain()
        with pytest.raises(LedgerFencedError):
            old.ack(received[1]).result(PATIENCE)
        desk.sub.ack(new[-1]).result(PATIENCE)
        desk.crash()
        assert desk.read() == ["1", "2"]
