"""Negative acknowledgments through a subscription: their memory, their precision, and what a restart keeps of them."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand import MultiplierRedeliveryBackoff
from bookstand.delivery.nacks import log
from bookstand.delivery.nacks.log import nack_name, node_of
from bookstand.errors import IncorrectParameterError
from bookstand.storage.format.position import Position
from tests.delivery.subscription_kit import (
    MODES,
    NACK_BUCKET,
    SUBSCRIPTION,
    TOPIC,
    Desk,
    letters,
    subscription_config,
    topic_config,
    words,
)

NODE = node_of(nack_name(TOPIC, SUBSCRIPTION))
HOUR = 3_600_000


@pytest.fixture
def open_desk(store_path: Path) -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def make(mode: str = "in memory", topic: dict[str, Any] | None = None, **settings: Any) -> Desk:
        desk = Desk(store_path, topic_config(mode, **(topic or {})), subscription_config(**settings))
        desks.append(desk)
        return desk

    yield make
    for desk in desks:
        desk.close()


def is_logged(desk: Desk) -> bool:
    return log.exists(desk.store, nack_name(TOPIC, SUBSCRIPTION))


def batch(desk: Desk, text: str, **options: Any) -> list[Any]:
    """Publish a batch, and receive its messages."""
    desk.topic.publish_batch(letters(text), **options)
    return desk.drain()


def arrivals(desk: Desk, *moments: int) -> list[tuple[int, str]]:
    """Each message with the earliest of these moments at which it is delivered, none of them acknowledged."""
    found = []
    for moment in sorted(moments):
        desk.go_to(moment)
        found += [(moment, word) for word in desk.read()]
    return found


# -- each message at its own time --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["none", "restart", "crash"])
@pytest.mark.parametrize("mode", MODES)
def test_members_of_one_batch_return_each_at_its_own_time(open_desk: Callable[..., Desk], mode: str, how: str) -> None:
    """Also after a restart, where nacks are durable: the fourth problem of PIP-393."""
    desk = open_desk(mode, durable_nacks=True, negative_ack_precision_bits=0)
    a, b, c, d = batch(desk, "abcd")
    desk.sub.nack(b, delay=20_000)
    desk.sub.nack(a, delay=10_000)
    desk.sub.nack(d, delay=30_000)
    desk.sub.ack(c).result()
    if how != "none":
        getattr(desk, how)()
    moments = [9_999, 10_000, 19_999, 20_000, 29_999, 30_000, 60_000]
    assert arrivals(desk, *moments) == [(10_000, "a"), (20_000, "b"), (30_000, "d")]


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_a_restart_between_them_returns_none_twice_and_none_late(open_desk: Callable[..., Desk], how: str) -> None:
    desk = open_desk(durable_nacks=True, negative_ack_precision_bits=0)
    a, b, *_ = batch(desk, "abc")
    desk.sub.nack(a, delay=10_000)
    desk.sub.nack(b, delay=20_000)
    desk.go_to(10_000)
    assert desk.read() == ["a"]
    getattr(desk, how)()
    # Messages in flight when the subscription ends are redelivered at once.
    assert desk.read() == ["a", "c"]
    assert arrivals(desk, 19_999, 20_000, 60_000) == [(20_000, "b")]


@pytest.mark.parametrize("how", ["none", "restart"])
def test_a_message_of_a_nacked_batch_has_its_own_later_nack(open_desk: Callable[..., Desk], how: str) -> None:
    desk = open_desk(durable_nacks=True, negative_ack_precision_bits=0)
    a, b, *_ = batch(desk, "abc")
    desk.sub.nack(a.position, delay=10_000)
    desk.sub.nack(b, delay=20_000)
    desk.sub.nack(a, delay=5_000)
    if how != "none":
        getattr(desk, how)()
    assert arrivals(desk, 4_999, 5_000, 10_000, 20_000, 60_000) == [(5_000, "a"), (10_000, "c"), (20_000, "b")]


@pytest.mark.parametrize("how", ["none", "restart"])
def test_a_nack_of_the_whole_batch_replaces_those_of_its_messages(open_desk: Callable[..., Desk], how: str) -> None:
    desk = open_desk(durable_nacks=True, negative_ack_precision_bits=0)
    a, b, *_ = batch(desk, "abc")
    desk.sub.nack(a, delay=5_000)
    desk.sub.nack(b, delay=20_000)
    desk.sub.nack(a.position, delay=10_000)
    assert desk.sub.stats.nacked == 1
    if how != "none":
        getattr(desk, how)()
    found = arrivals(desk, 5_000, 9_999, 10_000, 20_000, 60_000)
    assert found == [(10_000, "a"), (10_000, "b"), (10_000, "c")]


@pytest.mark.parametrize("how", ["none", "restart", "crash"])
@pytest.mark.parametrize("delays", [(10_000, 20_000), (20_000, 10_000), (20_000, 10_000, 30_000), (10_000, 10_000)])
@pytest.mark.parametrize("batched", [False, True])
def test_of_several_nacks_the_last_counts(
    open_desk: Callable[..., Desk], delays: tuple[int, ...], batched: bool, how: str
) -> None:
    desk = open_desk(durable_nacks=True, negative_ack_precision_bits=0)
    if batched:
        messages = batch(desk, "ab")
    else:
        desk.publish("a", "b")
        messages = desk.drain()
    for delay in delays:
        desk.sub.nack(messages[0], delay=delay)
    desk.sub.ack(messages[1]).result()
    assert desk.sub.stats.nacked == 1
    if how != "none":
        getattr(desk, how)()
    assert arrivals(desk, 9_999, 10_000, 19_999, 20_000, 29_999, 30_000, 60_000) == [(delays[-1], "a")]


def test_a_nack_that_was_replaced_does_not_return_a_later_one_early(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(durable_nacks=True, negative_ack_precision_bits=0)
    desk.publish("a")
    (a,) = desk.drain()
    desk.sub.nack(a, delay=20_000)
    desk.sub.nack(a, delay=1_000)
    desk.go_to(1_000)
    (a,) = desk.drain()
    desk.sub.nack(a, delay=50_000)
    assert arrivals(desk, 20_000, 50_999, 51_000) == [(51_000, "a")]


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_after_a_restart_a_replaced_nack_holds_nothing_back(open_desk: Callable[..., Desk], how: str) -> None:
    """It was replaced by one that has returned since."""
    desk = open_desk(durable_nacks=True, negative_ack_precision_bits=0)
    desk.publish("a")
    (a,) = desk.drain()
    desk.sub.nack(a, delay=20_000)
    desk.sub.nack(a, delay=1_000)
    assert arrivals(desk, 1_000) == [(1_000, "a")]
    getattr(desk, how)()
    assert desk.read() == ["a"]


def test_many_messages_nacked_twice_return_once(
    open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than are remembered one by one, and more than are looked at together."""
    monkeypatch.setattr("bookstand.delivery.nacks.pending._MOVED_MIN", 30)
    monkeypatch.setattr("bookstand.delivery.nacks.pending._SCAN_PAGE", 16)
    desk = open_desk(negative_ack_precision_bits=0)
    desk.topic.publish_many(letters("x" * 100))
    messages = [*desk.drain(), *(one for _ in range(10) for one in batch(desk, "yyyyyyyyyy"))]
    desk.sub.nack_many(messages, delay=10_000)
    for message in messages:
        desk.sub.nack(message, delay=5_000)
        assert len(desk.sub._states.nacked._moved) <= 31
    assert desk.sub.stats.nacked == 200
    assert len(arrivals(desk, 4_999)) == 0
    assert len(arrivals(desk, 5_000)) == 200
    assert arrivals(desk, 10_000, 20_000) == []


@pytest.mark.parametrize("how", ["none", "restart", "crash"])
def test_a_message_acknowledged_while_it_is_nacked_does_not_return(open_desk: Callable[..., Desk], how: str) -> None:
    desk = open_desk(durable_nacks=True, max_redeliveries=0)
    a, b, _ = batch(desk, "abc")
    desk.publish("d")
    (d,) = desk.drain()
    desk.sub.nack_many([a, b, d], delay=5_000)
    desk.sub.ack_many([a, d]).result()
    if how != "none":
        getattr(desk, how)()
    desk.go_to(5_000)
    desk.read()
    assert desk.sub.stats.nacked == 0
    # Only what was not acknowledged is a dead letter.
    graves = desk.store.topic(f"{TOPIC}-{SUBSCRIPTION}-DLQ").subscription("graves").receive(5, timeout=0)
    assert words(graves) == ["b"]


# -- redelivery counts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["restart", "crash"])
@pytest.mark.parametrize("batched", [False, True])
def test_each_message_has_its_own_backoff_over_restarts(
    open_desk: Callable[..., Desk], batched: bool, how: str
) -> None:
    backoff = MultiplierRedeliveryBackoff(1_000, 100_000, 2.0)
    desk = open_desk(nack_backoff=backoff, durable_nacks=True, negative_ack_precision_bits=0)
    if batched:
        a, b = batch(desk, "ab")
    else:
        desk.publish("a", "b")
        a, b = desk.drain()
    desk.sub.nack(a)
    desk.sub.ack(b).result()
    moment = 0
    for count, wait in enumerate([1_000, 2_000, 4_000, 8_000], 1):
        getattr(desk, how)()
        moment += wait
        desk.go_to(moment - 1)
        assert desk.read() == []
        desk.go_to(moment)
        (a,) = desk.drain()
        assert a.redelivery_count == count
        desk.sub.nack(a)


@pytest.mark.parametrize("compacted", [False, True])
def test_redeliveries_before_a_restart_count_for_dead_letters(
    open_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, compacted: bool
) -> None:
    if compacted:
        monkeypatch.setattr("bookstand.delivery.nacks.log.COMPACT_BYTES", 1)
    desk = open_desk(max_redeliveries=2, durable_nacks=True, nack_delay=1_000)
    a, b = batch(desk, "ab")
    desk.sub.ack(b).result()
    for _ in range(2):
        desk.sub.nack(a)
        desk.restart()
        desk.pass_time(1_000)
        (a,) = desk.drain()
    desk.sub.nack(a)
    desk.crash()
    desk.pass_time(1_000)
    assert desk.read() == []
    assert desk.sub.stats.dead_lettered == 1


def test_a_batch_that_was_nacked_whole_counts_for_each_of_its_messages(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(nack_delay=1_000, max_redeliveries=2)
    a, b = batch(desk, "ab")
    desk.sub.nack(a.position)
    desk.pass_time(1_000)
    a, b = desk.drain()
    assert [a.redelivery_count, b.redelivery_count] == [1, 1]
    desk.sub.nack(b)
    desk.pass_time(1_000)
    (b,) = desk.drain()
    assert b.redelivery_count == 2
    desk.sub.nack(b)
    desk.pass_time(1_000)
    assert desk.read() == []
    assert desk.sub.stats.dead_lettered == 1


def test_without_durable_nacks_counts_begin_anew(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(nack_delay=1_000)
    desk.publish("a")
    desk.sub.nack(desk.drain()[0])
    desk.pass_time(1_000)
    (a,) = desk.drain()
    assert a.redelivery_count == 1
    desk.restart()
    (a,) = desk.drain()
    assert a.redelivery_count == 0


# -- precision ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [0, 3, 8, 12])
def test_nacks_are_early_by_less_than_their_bucket_and_never_late(open_desk: Callable[..., Desk], bits: int) -> None:
    desk = open_desk(negative_ack_precision_bits=bits)
    rng = random.Random(bits)
    wanted = {}
    for number in range(40):
        (position,) = desk.publish(number)
        delay = rng.randrange(5_000, 30_000)
        desk.sub.nack(desk.drain()[0], delay=delay)
        wanted[position] = desk.now + delay
        desk.pass_time(rng.randrange(50))
    early = []
    while desk.sub.stats.nacked:
        desk.clock.advance_to_next()
        early += [wanted[message.position] - desk.now for message in desk.drain()]
    assert len(early) == 40
    assert all(0 <= one < 1 << bits for one in early), early
    assert bits < 8 or max(early) > 0


def test_with_a_relative_precision_nacks_are_early_by_a_fraction_of_their_delay(
    open_desk: Callable[..., Desk],
) -> None:
    desk = open_desk(negative_ack_relative_precision=0.01)
    rng = random.Random(1)
    wanted = {}
    for number in range(40):
        (position,) = desk.publish(number)
        delay = rng.choice([500, 5_000, 60_000, HOUR]) + rng.randrange(100)
        desk.sub.nack(desk.drain()[0], delay=delay)
        wanted[position] = desk.now + delay, delay
    early = {}
    while desk.sub.stats.nacked:
        desk.clock.advance_to_next()
        for message in desk.drain():
            time, delay = wanted[message.position]
            early[delay] = time - desk.now
    assert all(0 <= one < 0.01 * delay for delay, one in early.items()), early
    assert all(one == 0 for delay, one in early.items() if delay < 1_600)
    assert max(early.values()) > 1_000


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"negative_ack_precision_bits": -1}, "negative_ack_precision_bits"),
        ({"negative_ack_precision_bits": 63}, "negative_ack_precision_bits"),
        ({"negative_ack_precision_bits": True}, "negative_ack_precision_bits"),
        ({"negative_ack_precision_bits": 8.0}, "negative_ack_precision_bits"),
        ({"negative_ack_relative_precision": 0}, "negative_ack_relative_precision"),
        ({"negative_ack_relative_precision": 1}, "negative_ack_relative_precision"),
        ({"negative_ack_relative_precision": "0.1"}, "negative_ack_relative_precision"),
        ({"negative_ack_precision_bits": 4, "negative_ack_relative_precision": 0.1}, "negative_ack_precision_bits"),
        ({"delayed_delivery_relative_precision": 0}, "delayed_delivery_relative_precision"),
        ({"delayed_delivery_relative_precision": 1.5}, "delayed_delivery_relative_precision"),
        ({"delayed_delivery_relative_precision": False}, "delayed_delivery_relative_precision"),
    ],
)
def test_precisions_that_are_none_are_rejected(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(IncorrectParameterError, match=named):
        subscription_config(**settings)


def test_a_relative_precision_of_delayed_delivery(open_desk: Callable[..., Desk]) -> None:
    """Early by less than a tick and that fraction of the delay, and never late."""
    desk = open_desk(
        topic={"is_delayed_delivery_deliver_at_time_strict": False, "delayed_delivery_tick_time_millis": 10},
        delayed_delivery_relative_precision=0.01,
    )
    rng = random.Random(2)
    wanted = {}
    for number in range(60):
        delay = rng.choice([100, 1_000, 10_000, HOUR]) + rng.randrange(100)
        (position,) = desk.publish(number, at=delay)
        wanted[position] = delay
    early = {}
    assert desk.read() == []
    assert desk.sub.stats.delayed == 60
    while desk.sub.stats.delayed:
        desk.clock.advance_to_next()
        for message in desk.drain():
            early[wanted[message.position]] = wanted[message.position] - desk.now
    assert len(early) == len(set(wanted.values()))
    assert all(0 <= one < 0.01 * delay + 10 for delay, one in early.items()), early
    assert max(early.values()) > 1_000


def test_a_rescheduled_message_has_the_precision_of_its_new_delay(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(
        topic={"is_delayed_delivery_deliver_at_time_strict": False, "delayed_delivery_tick_time_millis": 10},
        delayed_delivery_relative_precision=0.01,
    )
    (position,) = desk.publish("a", at=HOUR)
    assert desk.read() == []
    for time in (HOUR + 5, HOUR - 1, HOUR):
        assert desk.sub.reschedule(position, deliver_after=time - desk.now)
    desk.go_to(HOUR - 1_000)
    if desk.sub.stats.delayed:
        assert desk.sub.reschedule(position, deliver_after=900)
        desk.go_to(HOUR - 111)
        assert desk.read() == []
        desk.go_to(HOUR - 100)
    assert desk.read() == ["a"]


@pytest.mark.parametrize("mode", ["buckets", "shared index", "strict"])
def test_a_relative_precision_is_rejected_where_times_are_exact(store_path: Path, mode: str) -> None:
    config = subscription_config(delayed_delivery_relative_precision=0.01)
    strict = mode == "strict"
    chosen = topic_config("in memory" if strict else mode, is_delayed_delivery_deliver_at_time_strict=strict)
    with bookstand.open(store_path) as store, store.topic(TOPIC, chosen) as topic:
        with pytest.raises(IncorrectParameterError, match="delayed_delivery_relative_precision"):
            topic.subscription(SUBSCRIPTION, config)
        # Nothing was made for it.
        assert topic.subscriptions() == []
        assert topic.subscription(SUBSCRIPTION).stats.backlog == 0


# -- other settings after a restart ------------------------------------------------------------------------------------

EXACT = {"negative_ack_precision_bits": 0}
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "bits up": (EXACT, {"negative_ack_precision_bits": 11}, 1 << 11),
    "bits down": ({"negative_ack_precision_bits": 11}, EXACT, 1 << 11),
    "bits to relative": ({}, {"negative_ack_relative_precision": 0.05}, 1_000),
    "relative to bits": ({"negative_ack_relative_precision": 0.05}, EXACT, 1_000),
    "delay up": (EXACT, {**EXACT, "nack_delay": 100_000}, 1),
    "delay down": (EXACT, {**EXACT, "nack_delay": 100}, 1),
    "to a backoff": (EXACT, {**EXACT, "nack_backoff": MultiplierRedeliveryBackoff(1, 2)}, 1),
}
DURABLE = {"durable_nacks": True}


@pytest.mark.parametrize("how", ["restart", "crash"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_setting_keeps_each_recorded_deadline(open_desk: Callable[..., Desk], change: str, how: str) -> None:
    before, after, early = CHANGES[change]
    desk = open_desk(nack_delay=20_000, **DURABLE, **before)
    a, b, *_ = batch(desk, "abc")
    desk.sub.nack(a)
    desk.sub.nack(b, delay=10_000)
    desk.pass_time(3_000)
    getattr(desk, how)(sub=subscription_config(**({"nack_delay": 20_000} | DURABLE | after)))
    getattr(desk, how)(sub=subscription_config(**({"nack_delay": 20_000} | DURABLE | after)))
    assert desk.read() == ["c"]
    desk.go_to(10_000 - early)
    assert desk.read() == []
    desk.go_to(10_000)
    assert desk.read() == ["b"]
    desk.go_to(20_000 - early)
    assert desk.read() == []
    desk.go_to(20_000)
    assert desk.read() == ["a"]


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_recorded_nacks_keep_their_deadlines_when_nacks_are_durable_no_more(
    open_desk: Callable[..., Desk], how: str
) -> None:
    off = subscription_config(**EXACT)
    desk = open_desk(**DURABLE, **EXACT)
    a, b, *_ = batch(desk, "abc")
    desk.sub.nack(a, delay=10_000)
    desk.sub.nack(b, delay=20_000)
    getattr(desk, how)(sub=off)
    (c,) = desk.drain()
    assert c.payload == b"c"
    desk.sub.nack(c, delay=15_000)
    desk.go_to(10_000)
    (a,) = desk.drain()
    assert (a.payload, a.redelivery_count) == (b"a", 1)
    desk.sub.ack(a).result()
    # The nack of c is not recorded, and the one of b is still.
    getattr(desk, how)(sub=off)
    assert desk.read() == ["c"]
    assert is_logged(desk)
    desk.go_to(19_999)
    assert desk.read() == []
    desk.go_to(20_000)
    assert desk.read() == ["b"]
    assert not is_logged(desk)
    getattr(desk, how)(sub=off)
    assert desk.read() == ["b", "c"]


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_nacks_recorded_before_a_time_without_are_known_when_they_are_durable_again(
    open_desk: Callable[..., Desk], how: str
) -> None:
    on, off = subscription_config(**DURABLE, **EXACT), subscription_config(**EXACT)
    desk = open_desk(**DURABLE, **EXACT)
    desk.publish("a", "b", "c")
    a, b, _ = desk.drain()
    desk.sub.nack(a, delay=10_000)
    desk.sub.nack(b, delay=20_000)
    getattr(desk, how)(sub=off)
    assert desk.read() == ["c"]
    getattr(desk, how)(sub=on)
    (c,) = desk.drain()
    desk.sub.nack(c, delay=15_000)
    getattr(desk, how)(sub=on)
    assert arrivals(desk, 9_999, 10_000, 15_000, 19_999, 20_000) == [(10_000, "a"), (15_000, "c"), (20_000, "b")]


def test_without_durable_nacks_there_is_no_log(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(nack_delay=1_000)
    desk.publish("a")
    before = list(desk.store.list_ledgers())
    desk.sub.nack(desk.drain()[0])
    desk.pass_time(1_000)
    assert desk.read() == ["a"]
    assert not is_logged(desk)
    assert list(desk.store.list_ledgers()) == before


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("damage", ["record", "unknown", "node", "missing"])
def test_a_damaged_log_is_reported_and_its_messages_are_delivered(
    open_desk: Callable[..., Desk], caplog: pytest.LogCaptureFixture, damage: str, durable: bool
) -> None:
    desk = open_desk(**DURABLE, nack_delay=10_000)
    desk.publish("a", "b")
    desk.sub.nack(desk.drain()[0])
    desk.topic.close()
    nodes = desk.store.nodes
    if damage == "node":
        nodes.put(NODE, b"what")
    elif damage == "missing":
        nodes.put(NODE, b"4711")
    else:
        with desk.store.transaction() as transaction:
            writer = transaction.create_ledger(digest="crc32c", password=b"")
            # A field without its length; or numbers that do not say how many of their bits are a batch index.
            transaction.append(writer, b"\x0a\x05" if damage == "record" else bytes.fromhex("0a0a080110011a0205002003"))
            transaction.put_node(NODE, b"%d" % writer.id)
    desk.restart(sub=subscription_config(durable_nacks=durable))
    # By the label of its ledger the log is found without its node.
    assert desk.read() == (["b"] if damage == "node" else ["a", "b"])
    assert f"negative acknowledgments of {TOPIC}/{SUBSCRIPTION}" in caplog.text
    assert is_logged(desk) == (durable or damage == "node")
    desk.go_to(10_000)
    assert desk.read() == (["a"] if damage == "node" else [])
    caplog.clear()
    desk.restart()
    assert "negative acknowledgments" not in caplog.text


@pytest.mark.parametrize("damage", [b"what", b"4711"])
def test_a_subscription_with_a_damaged_log_can_be_deleted(open_desk: Callable[..., Desk], damage: bytes) -> None:
    desk = open_desk(**DURABLE)
    desk.store.nodes.put(NODE, damage)
    desk.topic.unsubscribe(SUBSCRIPTION)
    assert desk.topic.subscriptions() == []
    assert not is_logged(desk)


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_nacked_message_takes_no_objects_of_its_own(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(nack_delay=HOUR)

    def nack(first: int) -> int:
        gc.collect()
        before = sys.getallocatedblocks()
        for entry in range(first, first + many):
            desk.sub.nack(Position(1_000, entry))
        assert desk.sub.stats.nacked == first + many
        gc.collect()
        return sys.getallocatedblocks() - before

    # As many as wait to be moved on together, so that none does at the end.
    many = 4_096
    nack(0)
    assert nack(many) < many // 10


@pytest.mark.slow
def test_redelivery_counts_take_no_objects_of_their_own(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(nack_delay=100, topic={"max_entries_per_ledger": 50_000})

    def redeliver(count: int) -> int:
        desk.topic.publish_many(letters("x" * count))
        while some := desk.sub.receive(1_000, timeout=0):
            desk.sub.nack_many(some)
        gc.collect()
        before = sys.getallocatedblocks()
        desk.pass_time(1_000)
        while some := desk.sub.receive(1_000, timeout=0):
            assert {message.redelivery_count for message in some} == {1}
            desk.sub.nack_many(some, delay=HOUR)
        del some
        gc.collect()
        return sys.getallocatedblocks() - before

    redeliver(1_000)
    assert redeliver(4_000) < 400
    assert desk.sub.stats.nacked == 5_000


# -- while it is open --------------------------------------------------------------------------------------------------


def test_the_delay_may_change_while_it_is_open(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(nack_delay=10_000, **EXACT)
    desk.publish("a", "b", "c")
    a, b, c = desk.drain()
    desk.sub.nack(a)
    desk.sub.change_config(replace(desk.sub.config, nack_delay=2_000))
    desk.sub.nack(b)
    desk.sub.change_config(replace(desk.sub.config, nack_backoff=MultiplierRedeliveryBackoff(500, 1_000)))
    desk.sub.nack(c)
    assert arrivals(desk, 499, 500, 1_999, 2_000, 9_999, 10_000) == [(500, "c"), (2_000, "b"), (10_000, "a")]


def test_nothing_of_a_bucket_is_due_before_it(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(nack_delay=60_000)
    desk.publish("a")
    desk.sub.nack(desk.drain()[0])
    desk.go_to(60_000 - NACK_BUCKET)
    assert desk.read() == []
    desk.go_to(60_000)
    assert desk.read() == ["a"]


def test_exclusive_a_message_that_returns_with_its_batch_counts_once(store_path: Path) -> None:
    with Desk(store_path, sub=subscription_config(type="exclusive", negative_ack_precision_bits=0)) as desk:
        desk.topic.publish_batch([b"a", b"b", b"c"])
        a, _, _ = desk.drain()
        desk.sub.nack(a.position, delay=10_000)
        desk.sub.nack(a, delay=1_000)
        desk.go_to(1_000)
        assert [(one.payload, one.redelivery_count) for one in desk.drain()] == [(b"a", 1)]
        desk.go_to(10_000)
        again = [(one.payload, one.redelivery_count) for one in desk.drain()]
        assert again == [(b"a", 2), (b"b", 1), (b"c", 1)]


def test_a_nack_of_what_was_given_back_counts_and_it_is_not_delivered_before(store_path: Path) -> None:
    with Desk(store_path, sub=subscription_config(negative_ack_precision_bits=0)) as desk:
        desk.publish("a")
        desk.topic.publish_batch([b"b", b"c", b"d"])
        a, b, c, _ = desk.drain()
        desk.sub.redeliver_all()
        desk.sub.nack(a, delay=1_000)
        desk.sub.nack(b, delay=2_000)
        assert desk.sub.stats.waiting == 2
        assert desk.read() == ["c", "d"]
        desk.go_to(1_000)
        assert desk.read() == ["a"]
        desk.go_to(2_000)
        desk.sub.nack(c.position, delay=3_000)
        assert (desk.sub.stats.waiting, desk.read()) == (0, [])
        desk.go_to(5_000)
        assert desk.read() == ["b", "c", "d"]
        assert desk.read() == []
