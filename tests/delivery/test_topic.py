"""A topic: what is published, to whom it is kept, what is deleted, and who may write to it."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.delivery.tracker.shared_index import BUILDER
from bookstand.errors import (
    BookstandError,
    ClientClosedError,
    IncorrectParameterError,
    LedgerFencedError,
    NoSuchNodeError,
)
from bookstand.managed_ledger.message.format import Message
from bookstand.storage.format.position import EARLIEST, Position
from tests.delivery.subscription_kit import (
    CURSOR,
    MODES,
    START,
    TOPIC,
    Desk,
    SubscriptionConfig,
    TopicConfig,
    letters,
    numbered,
    positions,
    subscription_config,
    topic_config,
    words,
)
from tests.kit import PATIENCE, ChildRefusedError

A_WHILE = 5_000
"""Milliseconds after which what nobody needs is gone."""


@pytest.fixture
def desk(store_path: Path) -> Iterator[Desk]:
    with Desk(store_path) as desk:
        yield desk


def ledgers(desk: Desk) -> list[int]:
    return [ledger.ledger_id for ledger in desk.topic.ledger.ledgers]


# -- publishing --------------------------------------------------------------------------------------------------------


def test_who_stops_waiting_for_what_he_published_has_rung_all_the_same(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = desk.topic.ledger.append_entry

    def interrupted(entry: bytes) -> None:
        append(entry)
        raise KeyboardInterrupt

    monkeypatch.setattr(desk.topic.ledger, "append_entry", interrupted)
    rings = desk.sub.notifier.generation
    with pytest.raises(KeyboardInterrupt):
        desk.topic.publish(b"a")
    assert desk.sub.notifier.generation > rings
    assert words(desk.drain()) == ["a"]


def test_one_message_kept_of_a_compressed_batch_keeps_no_others(store_path: Path) -> None:
    with Desk(store_path, topic_config(compression="ZLIB", max_entries_per_ledger=100)) as desk:
        for _ in range(20):
            desk.topic.publish_batch([bytes(1_000)] * 100)
        tracemalloc.start()
        try:
            kept = [desk.sub.receive(100, timeout=0)[50] for _ in range(20)]
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
    assert {message.payload for message in kept} == {bytes(1_000)}
    assert taken < 20 * 100 * 1_000 / 2


def test_what_is_published_is_in_the_ledger_as_pulsar_frames_it(desk: Desk) -> None:
    position = desk.topic.publish(b"hello", deliver_after=5_000, properties={"a": "1", "b": ""})
    assert position == desk.topic.ledger.last_confirmed
    message = Message(desk.topic.ledger.read_entry(position).data)
    message.check()
    assert message.payload() == b"hello"
    assert message.metadata.publish_time == START
    assert message.metadata.deliver_at_time == START + 5_000
    assert dict(message.metadata.properties) == {"a": "1", "b": ""}
    assert not message.is_batch


def test_positions_rise_and_ledgers_are_as_long_as_the_settings_say(desk: Desk) -> None:
    given = desk.publish(*range(12))
    assert given == sorted(given)
    assert [position.entry_id for position in given] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]
    assert words(desk.drain()) == [str(number) for number in range(12)]


@pytest.mark.parametrize(
    "options",
    [
        {"deliver_at": START + 5_000},
        {"deliver_after": 5_000},
        {"deliver_after": timedelta(seconds=5)},
        {"deliver_at": datetime.fromtimestamp((START + 5_000) / 1000, UTC)},
    ],
)
def test_times_are_milliseconds_or_dates(desk: Desk, options: dict[str, Any]) -> None:
    desk.publish("later", **options)
    desk.publish("now")
    assert desk.read() == ["now"]
    desk.go_to(4_999)
    assert desk.read() == []
    desk.go_to(5_000)
    (message,) = desk.drain()
    assert (message.payload, message.deliver_at, message.publish_time) == (b"later", START + 5_000, START)


@pytest.mark.parametrize("options", [{"deliver_at": START}, {"deliver_at": START - 1}, {"deliver_after": 0}])
def test_a_time_that_has_come_is_no_delay(desk: Desk, options: dict[str, Any]) -> None:
    desk.publish("first")
    desk.publish("second", **options)
    desk.publish("third")
    assert desk.read() == ["first", "second", "third"]


@pytest.mark.parametrize(
    "options",
    [
        {"deliver_at": START + 1, "deliver_after": 1},
        {"deliver_after": -1},
        {"deliver_after": timedelta(milliseconds=-1)},
        {"deliver_after": "1"},
        {"deliver_at": "soon"},
        {"deliver_at": datetime(2030, 1, 1)},
        {"deliver_after": True},
        {"deliver_after": 1.5},
        {"properties": {"a": 1}},
    ],
)
def test_wrong_arguments_publish_nothing(desk: Desk, options: dict[str, Any]) -> None:
    for call in (
        lambda: desk.topic.publish(b"x", **options),
        lambda: desk.topic.publish_async(b"x", **options).result(PATIENCE),
        lambda: desk.topic.publish_many([b"x"], **options),
        lambda: desk.topic.publish_batch([b"x"], **options),
    ):
        with pytest.raises(IncorrectParameterError):
            call()
    assert desk.read() == []


@pytest.mark.parametrize("payload", ["text", None, 5])
def test_a_payload_is_bytes(desk: Desk, payload: Any) -> None:
    with pytest.raises(IncorrectParameterError):
        desk.topic.publish(payload)
    with pytest.raises(IncorrectParameterError):
        desk.topic.publish_many([b"fine", payload])
    with pytest.raises(IncorrectParameterError):
        desk.topic.publish_batch([b"fine", payload])
    assert desk.read() == []


def test_many_are_an_entry_each(desk: Desk) -> None:
    given = desk.topic.publish_many(numbered(13), properties={"k": "v"})
    assert len(set(given)) == 13
    assert given == sorted(given)
    received = desk.drain()
    assert positions(received) == given
    assert [(message.batch_index, message.batch_size) for message in received] == [(-1, 0)] * 13
    assert all(message.properties == {"k": "v"} for message in received)
    assert desk.topic.publish_many([]) == []


def test_many_that_wait(desk: Desk) -> None:
    desk.topic.publish_many(numbered(4), deliver_after=10)
    assert desk.run_out(10) == [(10, str(number)) for number in range(4)]


def test_a_batch_is_one_entry(desk: Desk) -> None:
    position = desk.topic.publish_batch(letters("abc"), deliver_after=10)
    assert desk.read() == []
    desk.go_to(10)
    received = desk.drain()
    assert words(received) == ["a", "b", "c"]
    assert positions(received) == [position] * 3
    assert [(message.batch_index, message.batch_size) for message in received] == [(0, 3), (1, 3), (2, 3)]
    with pytest.raises(IncorrectParameterError):
        desk.topic.publish_batch([])


def test_a_batch_of_one(desk: Desk) -> None:
    position = desk.topic.publish_batch([b"alone"])
    (message,) = desk.drain()
    assert (message.payload, message.position) == (b"alone", position)
    desk.sub.ack(message).result()
    desk.crash()
    assert desk.read() == []
    assert desk.sub.cursor.mark_delete_position == position


def test_publishing_does_not_have_to_wait(desk: Desk) -> None:
    pending = [desk.topic.publish_async(b"%d" % number, deliver_after=7) for number in range(20)]
    given = [one.result(PATIENCE) for one in pending]
    assert given == sorted(set(given))
    assert desk.run_out(7) == [(7, str(number)) for number in range(20)]

    async def publish() -> Position:
        return await desk.topic.publish_async(b"awaited")

    assert asyncio.run(publish()) > given[-1]
    assert desk.read() == ["awaited"]


@pytest.mark.parametrize("codec", ["NONE", "ZLIB"])
def test_payloads_may_be_packed(store_path: Path, codec: str) -> None:
    payload = bytes(5_000) + b"end"
    with Desk(store_path, topic_config(compression=codec)) as desk:
        position = desk.topic.publish(payload)
        desk.topic.publish_batch([payload, b"other"])
        stored = desk.topic.ledger.read_entry(position).data
        assert (len(stored) < len(payload)) is (codec == "ZLIB")
        assert [message.payload for message in desk.drain()] == [payload, payload, b"other"]


def test_what_pulsar_would_know_of_a_message_is_told(desk: Desk) -> None:
    given = desk.topic.publish_many(letters("ab"))
    received = desk.drain()
    for message, position in zip(received, given, strict=True):
        assert message.data == desk.topic.ledger.read_entry(position).data
        stored = Message(message.data).metadata
        assert (message.producer_name, message.sequence_id) == (stored.producer_name, stored.sequence_id)
        assert (message.key, message.event_time, message.redelivery_count) == (None, None, 0)


def test_entries_that_others_wrote_are_delivered(desk: Desk) -> None:
    entry = desk.topic.ledger.framed(b"old", deliver_at=START + 50)
    desk.topic.ledger.append_entry(entry)
    assert desk.run_out(50) == [(50, "old")]


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_topic_and_a_subscription_are_opened_once(desk: Desk) -> None:
    assert desk.store.topic(TOPIC) is desk.topic
    assert desk.topic.subscription("sub") is desk.sub
    assert desk.topic.name == TOPIC
    assert (desk.sub.name, desk.sub.topic) == ("sub", desk.topic)
    assert desk.sub.config == subscription_config()
    desk.sub.close()
    assert desk.topic.subscription("sub") is not desk.sub
    desk.topic.close()
    again = desk.store.topic(TOPIC, topic_config())
    assert again is not desk.topic
    again.close()


def test_subscriptions_are_told_by_name(desk: Desk) -> None:
    desk.topic.subscription("b")
    desk.topic.subscription("a")
    assert sorted(desk.topic.subscriptions()) == ["a", "b", "sub"]
    desk.restart()
    assert sorted(desk.topic.subscriptions()) == ["a", "b", "sub"]


def test_the_builder_of_a_shared_index_is_none_of_them(store_path: Path) -> None:
    with Desk(store_path, topic_config("shared index")) as desk:
        desk.publish("x", at=10)
        desk.read()
        assert BUILDER in desk.topic.ledger.cursor_names()
        assert desk.topic.subscriptions() == ["sub"]
        with pytest.raises(BookstandError):
            desk.topic.subscription(BUILDER)


@pytest.mark.parametrize("name", ["", None, 5])
def test_names_that_are_none(desk: Desk, name: Any) -> None:
    with pytest.raises(IncorrectParameterError):
        desk.topic.subscription(name)
    with pytest.raises(IncorrectParameterError):
        desk.store.topic(name)


@pytest.mark.parametrize("name", ["café/ü", "a b", "x" * 200])
def test_names_that_are_unusual(store_path: Path, name: str) -> None:
    with bookstand.open(store_path) as store:
        topic = store.topic(f"persistent://t/n/{name}")
        sub = topic.subscription(name)
        topic.publish(b"x")
        (message,) = sub.receive(timeout=0)
        sub.ack(message).result()
        assert topic.subscriptions() == [name]
        topic.unsubscribe(name)
        assert topic.subscriptions() == []


def test_where_a_subscription_begins(desk: Desk) -> None:
    desk.publish("old")
    early = desk.topic.subscription("early", subscription_config())
    late = desk.topic.subscription("late", subscription_config(), initial="latest")
    desk.publish("new")
    assert desk.read(early) == ["old", "new"]
    assert desk.read(late) == ["new"]
    with pytest.raises(IncorrectParameterError):
        desk.topic.subscription("none", initial="middle")
    assert "none" not in desk.topic.subscriptions()


def test_where_it_began_counts_once(desk: Desk) -> None:
    desk.topic.subscription("late", subscription_config(), initial="latest")
    desk.publish("missed by nobody")
    desk.restart()
    late = desk.topic.subscription("late", subscription_config(), initial="latest")
    assert desk.read(late) == ["missed by nobody"]


@pytest.mark.parametrize(
    "settings",
    [
        {"max_entries_per_ledger": 0},
        {"max_entries_per_ledger": "5"},
        {"max_bytes_per_ledger": 0},
        {"max_ledger_age": -1},
        {"compression": "BROTLI"},
        {"delayed_delivery_tick_time_millis": 0},
        {"trim_consumed": "yes"},
    ],
)
def test_settings_that_are_none(settings: dict[str, Any]) -> None:
    with pytest.raises(IncorrectParameterError):
        TopicConfig(**settings)


def test_a_cursor_of_the_topic(desk: Desk) -> None:
    given = desk.publish("a", "b", "c")
    cursor = desk.topic.cursor("raw", CURSOR)
    assert [entry.position for entry in cursor.read(10)] == given
    cursor.ack(given[:2]).result()
    assert cursor.mark_delete_position == given[1]
    assert desk.read() == ["a", "b", "c"]


# -- gone --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_open", [True, False])
def test_who_unsubscribes_leaves_nothing(store_path: Path, mode: str, is_open: bool) -> None:
    with Desk(store_path, topic_config(mode), subscription_config(durable_nacks=True)) as desk:
        before = set(desk.store.nodes.children("/"))
        other = desk.topic.subscription("other", subscription_config())
        desk.publish(*range(10), at=500)
        desk.publish(*range(10, 20), at=700)
        desk.publish("now")
        (message,) = desk.drain()
        desk.sub.nack(message)
        desk.sub.reschedule(desk.sub.peek_delayed()[0][1], deliver_after=900)
        other.receive(1, timeout=0)
        if is_open:
            desk.topic.unsubscribe("sub")
            with pytest.raises(ClientClosedError):
                desk.sub.receive(timeout=0)
        else:
            desk.sub.close()
            desk.topic.unsubscribe("sub")
        assert desk.topic.subscriptions() == ["other"]
        desk.topic.unsubscribe("other")
        assert desk.topic.subscriptions() == []
        assert not set(desk.store.nodes.children("/")) - before
        # Nobody remembers where it was.
        again = desk.topic.subscription("sub", subscription_config())
        assert desk.read(again) == ["now"]
        desk.go_to(700)
        assert sorted(desk.read(again), key=int) == [str(number) for number in range(20)]
        desk.topic.unsubscribe("sub")
        desk.topic.close()
        desk.topic.ledger.close()
        if mode != "shared index":
            assert list(desk.store.list_ledgers()) == ledgers(desk)


def test_who_was_never_there_cannot_unsubscribe(desk: Desk) -> None:
    with pytest.raises(NoSuchNodeError):
        desk.topic.unsubscribe("nobody")
    desk.topic.unsubscribe("sub")
    with pytest.raises(NoSuchNodeError):
        desk.topic.unsubscribe("sub")


@pytest.mark.parametrize("mode", MODES)
def test_a_topic_that_is_deleted_leaves_nothing(store_path: Path, mode: str) -> None:
    with Desk(store_path, topic_config(mode), subscription_config(durable_nacks=True)) as desk:
        desk.topic.subscription("other", subscription_config())
        desk.publish(*range(14), at=500)
        desk.publish("now")
        desk.sub.nack(desk.drain()[0])
        desk.topic.delete()
        assert list(desk.store.list_ledgers()) == []
        with pytest.raises(BookstandError):
            desk.topic.publish(b"x")
        with pytest.raises(BookstandError):
            desk.sub.receive(timeout=0)
        again = desk.store.topic(TOPIC, topic_config(mode))
        assert again.subscriptions() == []
        sub = again.subscription("sub", subscription_config())
        again.publish(b"of another life")
        assert words(sub.receive(10, timeout=0)) == ["of another life"]


@pytest.mark.parametrize("what", ["topic", "store"])
def test_nothing_is_published_to_what_is_closed(desk: Desk, what: str) -> None:
    desk.publish("x")
    if what == "topic":
        desk.topic.close()
        desk.topic.close()
    else:
        desk.store.close()
    for call in (
        lambda: desk.topic.publish(b"x"),
        lambda: desk.topic.publish_async(b"x").result(PATIENCE),
        lambda: desk.topic.publish_many([b"x"]),
        lambda: desk.topic.publish_batch([b"x"]),
        lambda: desk.topic.subscription("other"),
        lambda: desk.sub.receive(timeout=0),
    ):
        with pytest.raises(ClientClosedError):
            call()


def test_a_topic_is_a_context_manager(store_path: Path) -> None:
    with bookstand.open(store_path) as store:
        with store.topic("t") as topic, topic.subscription("s") as sub:
            topic.publish(b"x")
            assert words(sub.receive(timeout=0)) == ["x"]
        with pytest.raises(ClientClosedError):
            topic.publish(b"y")


# -- deleting what nobody needs ----------------------------------------------------------------------------------------


def test_consumed_ledgers_go_by_themselves(store_path: Path) -> None:
    with Desk(store_path, topic_config(trim_consumed=True)) as desk:
        desk.publish(*range(12))
        before = ledgers(desk)
        assert len(before) == 3
        assert len(desk.consume()) == 12
        desk.pass_time(A_WHILE)
        assert ledgers(desk) == before[2:]
        assert not set(before[:2]) & set(desk.store.list_ledgers())


def test_nothing_goes_unless_it_is_asked_for(desk: Desk) -> None:
    desk.publish(*range(12))
    before = ledgers(desk)
    desk.consume()
    assert ledgers(desk)[:2] == before[:2]
    assert desk.topic.trim() == before[:2]
    assert ledgers(desk)[0] == before[2]
    assert desk.topic.trim() == []


def test_what_one_subscription_needs_stays(desk: Desk) -> None:
    slow = desk.topic.subscription("slow", subscription_config())
    desk.publish(*range(12))
    desk.consume()
    assert desk.topic.trim() == []
    some = slow.receive(6, timeout=0)
    slow.ack_many(some).result()
    assert len(desk.topic.trim()) == 1
    assert desk.read(slow) == [str(number) for number in range(6, 12)]


def test_what_a_closed_subscription_needs_stays(desk: Desk) -> None:
    desk.topic.subscription("slow", subscription_config()).close()
    desk.publish(*range(12))
    desk.consume()
    assert desk.topic.trim() == []
    desk.topic.unsubscribe("slow")
    assert len(desk.topic.trim()) == 2


@pytest.mark.parametrize("mode", MODES)
def test_what_waits_stays(store_path: Path, mode: str) -> None:
    with Desk(store_path, topic_config(mode)) as desk:
        desk.publish("waits", at=1_000)
        desk.publish(*range(20))
        desk.consume()
        assert desk.topic.trim() == []
        assert desk.run_out(1_000) == [(1_000, "waits")]
        assert len(desk.topic.trim()) == 4


@pytest.mark.parametrize("durable", [True, False])
def test_what_was_nacked_stays(store_path: Path, durable: bool) -> None:
    with Desk(store_path, sub=subscription_config(durable_nacks=durable, nack_delay=1_000)) as desk:
        desk.publish(*range(21))
        received = desk.drain()
        desk.sub.nack(received[0])
        desk.sub.ack_many(received[1:]).result()
        assert desk.topic.trim() == []
        desk.pass_time(1_000)
        assert desk.consume() == ["0"]
        assert len(desk.topic.trim()) == 4


def test_a_subscription_that_begins_later_gets_what_is_still_there(desk: Desk) -> None:
    desk.publish(*range(12))
    desk.consume()
    desk.topic.trim()
    assert desk.read(desk.topic.subscription("new", subscription_config())) == ["10", "11"]


@pytest.mark.parametrize("mode", MODES)
def test_deleting_by_itself_loses_nothing(store_path: Path, mode: str) -> None:
    """Delays short and long, deleted as soon as can be, started again in between."""
    with Desk(store_path, topic_config(mode, trim_consumed=True, max_entries_per_ledger=2)) as desk:
        times = [0, 40, 5, 300, 7, 80, 0, 1, 200, 90, 15, 60, 2, 0]
        for number, time in enumerate(times):
            desk.publish(number, at=time)
        found = desk.run_out(0, 1, 2, 5, 7, 15)
        desk.restart()
        found += desk.run_out(40, 60)
        desk.crash()
        found += desk.run_out(80, 90, 200, 300)
        assert sorted(found) == sorted((time, str(number)) for number, time in enumerate(times))
        desk.publish("last")
        desk.consume()
        desk.pass_time(A_WHILE)
        assert len(ledgers(desk)) <= 2


# -- starting again ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["restart", "crash"])
@pytest.mark.parametrize("mode", MODES)
def test_what_was_published_is_there_again(store_path: Path, mode: str, how: str) -> None:
    with Desk(store_path, topic_config(mode)) as desk:
        desk.publish(*range(7))
        desk.topic.publish_batch(letters("xyz"))
        desk.publish("late", at=100)
        sub = getattr(desk, how)()
        assert desk.read() == [*map(str, range(7)), *"xyz"]
        desk.go_to(100)
        assert words(sub.receive(timeout=0)) == ["late"]


def test_without_a_configuration(store_path: Path) -> None:
    with bookstand.open(store_path) as store:
        topic = store.topic("t")
        sub = topic.subscription("s")
        assert sub.config == SubscriptionConfig()
        topic.publish(b"x")
        assert words(sub.receive(timeout=0)) == ["x"]
        assert sub.stats.out == 1
    with bookstand.temporary() as store:
        topic = store.topic("t")
        assert topic.subscription("s").receive(timeout=0) == []


def test_a_topic_that_was_a_managed_ledger(store_path: Path) -> None:
    with bookstand.open(store_path) as store:
        ledger = store.managed_ledger("t")
        ledger.append(b"before")
        topic = store.topic("t")
        assert topic.ledger is ledger
        assert words(topic.subscription("s").receive(timeout=0)) == ["before"]


# -- another process ---------------------------------------------------------------------------------------------------


def test_another_process_takes_the_topic_over(store_path: Path, child: Callable[..., Any]) -> None:
    with bookstand.open(store_path) as store:
        topic = store.topic("t")
        sub = topic.subscription("s")
        topic.publish(b"one")
        (message,) = sub.receive(timeout=0)
        other = child()
        other.run("topic = store.topic('t')")
        with pytest.raises(LedgerFencedError):
            topic.publish(b"two")
        with pytest.raises(LedgerFencedError):
            topic.publish_async(b"two").result(PATIENCE)
        with pytest.raises(LedgerFencedError):
            topic.publish_many([b"two"])
        other.run("sub = topic.subscription('s')")
        assert other.run("[m.payload.decode() for m in sub.receive(5, timeout=0)]") == ["one"]
        with pytest.raises(LedgerFencedError):
            sub.ack(message).result(PATIENCE)
        with pytest.raises(LedgerFencedError):
            sub.receive(timeout=PATIENCE)
        assert other.run("topic.publish(b'three') and topic.ledger.name") == "t"
        sub.close()
        topic.close()
        # And back: a new one takes it over again.
        topic = store.topic("t")
        sub = topic.subscription("s")
        assert words(sub.receive(10, timeout=0)) == ["one", "three"]
        with pytest.raises(ChildRefusedError) as refused:
            other.run("topic.publish(b'four')")
        assert refused.value.code == LedgerFencedError.code


@pytest.mark.slow
def test_a_receive_that_waits_is_told_when_the_topic_is_taken_over(store_path: Path, child: Callable[..., Any]) -> None:
    other = child()
    other.run("topic = store.topic('t'); sub = topic.subscription('s'); told = []")
    other.run(
        "def wait():\n"
        "    try:\n"
        "        told.append(sub.receive(timeout=None))\n"
        "    except bookstand.errors.LedgerFencedError as error:\n"
        "        told.append('fenced')\n"
        "thread = threading.Thread(target=wait, daemon=True)\n"
        "thread.start()"
    )
    with bookstand.open(store_path) as store, store.topic("t") as topic:
        other.run(f"thread.join({PATIENCE})")
        assert other.run("told") == ["fenced"]
        topic.publish(b"mine")
        assert words(topic.subscription("s").receive(timeout=0)) == ["mine"]


def test_positions_read_by_hand_are_those_published(desk: Desk) -> None:
    given = desk.publish(*range(8))
    assert [entry.position for entry in desk.topic.ledger.entries(EARLIEST)] == given
