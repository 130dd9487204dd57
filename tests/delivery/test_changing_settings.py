"""Settings that are changed while a topic, a subscription or a cursor is open: each acts, or its change is rejected."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bookstand
from bookstand.cursor.config import CURSOR_WHILE_OPEN, CursorConfig, WhileOpen
from bookstand.delivery.config import DELAYED_WHILE_OPEN, DelayedDeliveryConfig
from bookstand.delivery.message.received_message import ReceivedMessage
from bookstand.delivery.topic_config import (
    SUBSCRIPTION_WHILE_OPEN,
    TOPIC_WHILE_OPEN,
    SubscriptionConfig,
    TopicConfig,
)
from bookstand.errors import IllegalOperationError, IncorrectParameterError
from bookstand.testing import VirtualClock
from tests.delivery.subscription_kit import (
    CURSOR,
    MODES,
    NACK_BUCKET,
    START,
    SUBSCRIPTION,
    TOPIC,
    Desk,
    subscription_config,
    topic_config,
    words,
)
from tests.kit import change_entry

TABLES: dict[type, WhileOpen] = {
    DelayedDeliveryConfig: DELAYED_WHILE_OPEN,
    TopicConfig: TOPIC_WHILE_OPEN,
    SubscriptionConfig: SUBSCRIPTION_WHILE_OPEN,
    CursorConfig: CURSOR_WHILE_OPEN,
}
OPENED = TopicConfig, SubscriptionConfig, CursorConfig
ACTING: set[tuple[type, str]] = set()
"""Settings of which a test here shows that a new value acts."""

Test = Callable[..., None]


def acts(config: type, *names: str) -> Callable[[Test], Test]:
    """Mark the test that shows that new values of these settings act."""
    ACTING.update((config, name) for name in names)
    return lambda test: test


@pytest.fixture
def desk(store_path: Path) -> Iterator[Desk]:
    with Desk(store_path) as desk:
        yield desk


@pytest.fixture
def mode_desk(store_path: Path, mode: str) -> Iterator[Desk]:
    with Desk(store_path, topic_config(mode, is_delayed_delivery_deliver_at_time_strict=False)) as desk:
        yield desk


def change_topic(desk: Desk, **changes: Any) -> None:
    assert desk.store.topic(TOPIC, replace(desk.topic.config, **changes)) is desk.topic


def change(desk: Desk, **changes: Any) -> None:
    assert desk.topic.subscription(SUBSCRIPTION, replace(desk.sub.config, **changes)) is desk.sub


def change_cursor(desk: Desk, **changes: Any) -> None:
    change(desk, cursor=replace(desk.sub.config.cursor, **changes))


# -- the tables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", TABLES, ids=lambda config: config.__name__)
def test_every_setting_is_changeable_or_fixed_while_open(config: type) -> None:
    table = TABLES[config]
    names = {field.name for field in fields(config)}
    advice = (
        f"put each setting of {config.__name__} into `changeable` or `fixed` of its WhileOpen table, beside the class; "
        "a changeable one needs a test in this file, marked @acts, that its new value acts, a fixed one nothing more"
    )
    assert table.changeable | table.fixed == names, advice
    assert not table.changeable & table.fixed, advice


@pytest.mark.parametrize("config", OPENED, ids=lambda config: config.__name__)
def test_every_changeable_setting_has_a_test_that_its_new_value_acts(config: type) -> None:
    tested = {name for one, name in ACTING if one is config}
    assert tested == TABLES[config].changeable, (
        f"write a test in this file that a new value of each changeable setting of {config.__name__} acts, and mark it "
        "@acts; a setting that does not act while open belongs to `fixed`"
    )


# -- rejected changes --------------------------------------------------------------------------------------------------

OTHERS: dict[str, Any] = {
    "type": "exclusive",
    "durable_nacks": True,
    "delayed_delivery_tracker": "bucket",
    "is_delayed_delivery_deliver_at_time_strict": False,
    "delayed_delivery_shared_index_enabled": True,
    "enable_lru_cache_max_unacked_ranges": False,
    "negative_ack_relative_precision": 0.01,
    "delayed_delivery_relative_precision": 0.01,
}


def other_value(present: object) -> Any:
    """For settings that are not named above: a flag is turned round, a number raised."""
    return not present if isinstance(present, bool) else present + 1 if isinstance(present, int) else "other"


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (config, name)
        for config in (TopicConfig, SubscriptionConfig, CursorConfig)
        for name in sorted(TABLES[config].fixed)
    ],
)
def test_a_fixed_setting_is_rejected_by_name_with_both_values_and_the_remedy(
    desk: Desk, config: type, name: str
) -> None:
    owner: Any = {
        TopicConfig: desk.topic.config, SubscriptionConfig: desk.sub.config, CursorConfig: desk.sub.config.cursor
    }[config]  # fmt: skip
    present = getattr(owner, name)
    wanted = OTHERS[name] if name in OTHERS else other_value(present)
    make = {TopicConfig: change_topic, SubscriptionConfig: change, CursorConfig: change_cursor}[config]
    with pytest.raises(IllegalOperationError) as raised:
        make(desk, **{name: wanted})
    message = str(raised.value)
    assert f"{name}={present!r}" in message
    assert repr(wanted) in message
    assert TABLES[config].remedy in message
    assert TOPIC in message


def test_a_rejected_change_changes_nothing(desk: Desk) -> None:
    """Neither of the subscription nor of its cursor, in whichever of them the fixed setting is."""
    before = desk.sub.config
    old_form = replace(CURSOR, enable_lru_cache_max_unacked_ranges=False, max_per_cursor_metadata_size_in_bytes=2_000)
    other_cursor = replace(CURSOR, max_per_cursor_metadata_size_in_bytes=3_000)
    for wanted in (
        subscription_config(max_unacked_messages=1, cursor=old_form),
        subscription_config(max_unacked_messages=1, cursor=other_cursor, durable_nacks=True),
    ):
        with pytest.raises(IllegalOperationError):
            desk.topic.subscription(SUBSCRIPTION, wanted)
        assert desk.sub.config is before
        assert desk.sub.cursor.config is before.cursor
    topic_before = desk.topic.config
    with pytest.raises(IllegalOperationError):
        change_topic(desk, max_entries_per_ledger=1, delayed_delivery_tracker="bucket")
    assert desk.topic.config is topic_before
    assert desk.topic.ledger.max_entries_per_ledger == 5
    desk.publish("a", "b", "c")
    assert desk.read() == ["a", "b", "c"]
    assert len(desk.topic.ledger.ledgers) == 1


def test_the_remedy_works(desk: Desk) -> None:
    desk.sub.close()
    assert desk.topic.subscription(SUBSCRIPTION, subscription_config(type="exclusive")).config.is_exclusive
    desk.topic.close()
    topic = desk.store.topic(TOPIC, topic_config("buckets"))
    assert topic.config.delayed_delivery_tracker == "bucket"


def test_none_leaves_everything_as_it_is(desk: Desk) -> None:
    change_topic(desk, max_entries_per_ledger=3)
    change(desk, max_unacked_messages=7)
    topic_config_, sub_config, cursor_config = desk.topic.config, desk.sub.config, desk.sub.cursor.config
    assert desk.store.topic(TOPIC) is desk.topic
    assert desk.topic.subscription(SUBSCRIPTION) is desk.sub
    assert desk.topic.cursor(SUBSCRIPTION) is desk.sub.cursor
    assert desk.topic.config is topic_config_
    assert desk.sub.config is sub_config
    assert desk.sub.cursor.config is cursor_config


@pytest.mark.parametrize("wrong", [5, "fast", CursorConfig()])
def test_what_is_no_config(desk: Desk, wrong: Any) -> None:
    with pytest.raises(IncorrectParameterError, match="TopicConfig"):
        desk.store.topic(TOPIC, wrong)
    with pytest.raises(IncorrectParameterError, match="SubscriptionConfig"):
        desk.topic.subscription(SUBSCRIPTION, wrong)
    with pytest.raises(IncorrectParameterError, match="CursorConfig"):
        desk.topic.cursor(SUBSCRIPTION, SubscriptionConfig() if isinstance(wrong, CursorConfig) else wrong)


def test_initial_says_where_a_new_subscription_begins_and_moves_none(desk: Desk) -> None:
    desk.publish("a")
    assert desk.topic.subscription(SUBSCRIPTION, initial="latest") is desk.sub
    assert desk.read() == ["a"]
    with pytest.raises(IncorrectParameterError, match="initial must be 'earliest' or 'latest', not 'first'"):
        desk.topic.subscription(SUBSCRIPTION, initial="first")


# -- cursors, and managed ledgers --------------------------------------------------------------------------------------


def test_a_subscriptions_cursor_is_changed_with_its_subscription(desk: Desk) -> None:
    wanted = replace(CURSOR, max_entries_per_cursor_ledger=9)
    assert desk.topic.cursor(SUBSCRIPTION, wanted).config is wanted
    assert desk.sub.config.cursor is wanted
    with pytest.raises(IncorrectParameterError, match="batch_index_acks"):
        desk.topic.cursor(SUBSCRIPTION, replace(CURSOR, batch_index_acks=False))
    assert desk.sub.config.cursor is desk.sub.cursor.config is wanted


def test_a_subscription_over_an_open_cursor(desk: Desk) -> None:
    opened = replace(CURSOR, max_entries_per_cursor_ledger=9)
    cursor = desk.topic.cursor("other", opened)
    assert desk.topic.subscription("other").cursor is cursor
    assert cursor.config is opened
    third = desk.topic.cursor("third", opened)
    with pytest.raises(IllegalOperationError, match="enable_lru_cache_max_unacked_ranges"):
        desk.topic.subscription(
            "third", subscription_config(cursor=replace(CURSOR, enable_lru_cache_max_unacked_ranges=False))
        )
    assert desk.topic.subscription("third", subscription_config()).cursor is third
    assert third.config == CURSOR


def test_an_open_cursor_is_not_another_one(desk: Desk) -> None:
    with pytest.raises(IllegalOperationError, match="read_only=False, not True"):
        desk.topic.cursor(SUBSCRIPTION, read_only=True)
    desk.publish("a")
    desk.sub.ack(desk.drain()[0]).result()
    marker = desk.sub.cursor.history()[0].marker
    with pytest.raises(IllegalOperationError, match="at_marker"):
        desk.topic.cursor(SUBSCRIPTION, at_marker=marker)


def test_the_options_of_an_open_managed_ledger(desk: Desk) -> None:
    ledger = desk.store.managed_ledger(TOPIC, max_entries_per_ledger=2)
    assert ledger is desk.topic.ledger
    desk.publish(*"abcd")
    assert [info.entries for info in ledger.ledgers] == [2, 2, 0]
    assert desk.store.managed_ledger(TOPIC).max_entries_per_ledger == 2
    for wrong in ({"max_bytes_per_ledger": 0}, {"max_ledger_age": -1}, {"info_compression": "RAR"}):
        with pytest.raises(IncorrectParameterError):
            desk.store.managed_ledger(TOPIC, max_entries_per_ledger=9, **wrong)
    assert ledger.max_entries_per_ledger == 2
    desk.store.managed_ledger(TOPIC, skip_lost=True, info_compression="ZLIB")
    assert ledger.skip_lost
    # A topic that is opened over an open managed ledger takes its limits over, unless it has its own.
    other = desk.store.managed_ledger("other", max_entries_per_ledger=3)
    assert desk.store.topic("other").config.max_entries_per_ledger == 3
    desk.store.managed_ledger("third", max_entries_per_ledger=3)
    desk.store.topic("third", TopicConfig(max_entries_per_ledger=4))
    assert (other.max_entries_per_ledger, desk.store.managed_ledger("third").max_entries_per_ledger) == (3, 4)


# -- what acts: topics -------------------------------------------------------------------------------------------------


@acts(TopicConfig, "max_entries_per_ledger", "max_bytes_per_ledger", "max_ledger_age")
def test_new_limits_of_ledgers(desk: Desk) -> None:
    def sizes() -> list[int]:
        return [info.entries for info in desk.topic.ledger.ledgers]

    desk.publish("a", "b", "c")
    change_topic(desk, max_entries_per_ledger=2)
    desk.publish("d")
    assert sizes() == [3, 1]
    desk.topic.publish_many([b"e", b"f", b"g"])
    assert sizes() == [3, 2, 2, 0]
    change_topic(desk, max_entries_per_ledger=100, max_bytes_per_ledger=1_000)
    desk.topic.publish(b"h" * 1_000)
    assert sizes() == [3, 2, 2, 1, 0]
    change_topic(desk, max_bytes_per_ledger=1 << 20, max_ledger_age=10)
    desk.publish("i")
    desk.pass_time(10_000)
    desk.publish("j", "k")
    assert sizes() == [3, 2, 2, 1, 1, 2]


@acts(TopicConfig, "compression")
def test_a_new_compression_of_what_is_published(desk: Desk) -> None:
    desk.topic.publish(b"a" * 100)
    change_topic(desk, compression="ZLIB")
    desk.topic.publish(b"b" * 100)
    before, after = desk.drain()
    assert [one.metadata.compression for one in (before, after) if one.metadata] == [None, 2]
    assert after.payload == b"b" * 100


@pytest.mark.damaged
@acts(TopicConfig, "auto_skip_non_recoverable_data")
def test_skipping_of_damaged_entries_that_is_switched_on(store_path: Path) -> None:
    with Desk(store_path) as desk:
        position = desk.publish("a", "b", "c")[1]
        desk.topic.close()
        desk.store.close()
        change_entry(store_path, *position, lambda stored: stored[:-1] + b"?")
        desk._open()
        change_topic(desk, auto_skip_non_recoverable_data=True)
        assert desk.read() == ["a", "c"]
        assert desk.sub.stats.skipped == 1


@acts(TopicConfig, "trim_consumed")
def test_trimming_that_is_switched_on_and_off(desk: Desk) -> None:
    desk.publish(*range(12))
    desk.consume()
    desk.pass_time(5_000)
    assert len(desk.topic.ledger.ledgers) == 3
    change_topic(desk, trim_consumed=True)
    desk.pass_time(5_000)
    assert len(desk.topic.ledger.ledgers) == 1
    change_topic(desk, trim_consumed=False)
    desk.publish(*range(12))
    desk.consume()
    desk.pass_time(5_000)
    assert len(desk.topic.ledger.ledgers) > 1


EDGE = 255
"""A time at the end of a bucket of 64 ms, so that a message in memory is due exactly a tick of 64 ms before it."""


@pytest.mark.parametrize("mode", MODES)
@acts(TopicConfig, "delayed_delivery_tick_time_millis")
def test_a_new_tick_of_the_topic(mode_desk: Desk) -> None:
    desk = mode_desk
    desk.publish("a", at=EDGE)
    assert desk.read() == []
    change_topic(desk, delayed_delivery_tick_time_millis=64)
    desk.go_to(EDGE - 65)
    assert desk.read() == []
    desk.go_to(EDGE - 64)
    assert desk.read() == ["a"]
    change_topic(desk, delayed_delivery_tick_time_millis=1)
    desk.publish("b", at=400)
    desk.go_to(398)
    assert desk.read() == []
    desk.go_to(400)
    assert desk.read() == ["b"]


@pytest.mark.slow
@acts(TopicConfig, "delayed_delivery_fixed_delay_detection_lookahead")
def test_a_lookahead_that_pauses_and_one_that_resumes(store_path: Path) -> None:
    with Desk(store_path, topic_config(delayed_delivery_fixed_delay_detection_lookahead=50)) as desk:
        desk.publish(*"abcde", at=1_000)
        assert desk.read() == []
        change_topic(desk, delayed_delivery_fixed_delay_detection_lookahead=5)
        desk.publish("now")
        assert desk.read() == []
        change_topic(desk, delayed_delivery_fixed_delay_detection_lookahead=0)
        assert desk.read() == ["now"]


def buckets_with(path: Path, before: dict[str, Any], after: dict[str, Any]) -> list[tuple[int, int, int]]:
    """First and last ledger and number of segments of each bucket, of messages published half before a change and half
    after it."""
    with Desk(path, topic_config("buckets", **before), durability="none") as desk:
        sizes = iter([3, 7, 3, 4, 3, 9, 3, 3, 5, 3, 4, 3])
        for half in range(2):
            for _ in range(6):
                times = [START + 1_000_000 + 20 * number for number in range(next(sizes))]
                desk.topic.publish_many([b"x"] * len(times), deliver_at=times)
                desk.topic.ledger.roll()
            desk.read()
            if not half:
                change_topic(desk, **after)
        desk.publish("last", at=2_000_000)
        desk.read()
        listed = [one for one in desk.store.bucket_snapshots() if not one.orphaned]
        segments = {one.ledger_id: one.segments or 0 for one in listed}
        assert desk.sub.tracker.count == 51
        return [
            (bucket.key.first_ledger, bucket.key.last_ledger, segments[bucket.bucket_id])
            for bucket in desk.sub.tracker.buckets
        ]


@acts(
    TopicConfig,
    "delayed_delivery_min_index_count_per_bucket",
    "delayed_delivery_max_indexes_per_bucket_snapshot_segment",
    "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds",
    "delayed_delivery_max_num_buckets",
    "delayed_delivery_merge_policy",
)
def test_new_sizes_of_buckets(tmp_path: Path) -> None:
    base = {
        "delayed_delivery_min_index_count_per_bucket": 3,
        "delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds": 1000,
        "delayed_delivery_max_indexes_per_bucket_snapshot_segment": -1,
        "delayed_delivery_max_num_buckets": -1,
        "max_entries_per_ledger": 100,
    }
    number = iter(range(100))

    def buckets(**after: Any) -> list[tuple[int, int, int]]:
        return buckets_with(tmp_path / str(next(number)), base, after)

    same = buckets()
    assert {segments for _, _, segments in same} == {1}
    for finer in (
        {"delayed_delivery_max_indexes_per_bucket_snapshot_segment": 2},
        {"delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds": 0.02},
    ):
        changed = buckets(**finer)
        assert [one[:2] for one in changed] == [one[:2] for one in same]
        # Buckets sealed before the change stay as they are.
        assert changed[:3] == same[:3]
        assert all(segments > 1 for _, _, segments in changed[-3:])
    assert len(buckets(delayed_delivery_min_index_count_per_bucket=1_000)) < len(same)
    base["delayed_delivery_max_indexes_per_bucket_snapshot_segment"] = 2
    few = {"delayed_delivery_max_num_buckets": 4}
    least_writes, two_smallest = (
        buckets(**few, delayed_delivery_merge_policy=policy) for policy in ("least-writes", "two-smallest")
    )
    assert len(least_writes) < len(same)
    assert len(two_smallest) < len(same)
    assert least_writes != two_smallest


# -- what acts: subscriptions ------------------------------------------------------------------------------------------


@acts(SubscriptionConfig, "max_unacked_messages")
def test_a_raised_limit_wakes_a_receiver_that_waits(store_path: Path) -> None:
    with Desk(store_path, sub=subscription_config(max_unacked_messages=2)) as desk:
        desk.publish("a", "b", "c")
        assert desk.read() == ["a", "b"]
        found: list[ReceivedMessage] = []
        waiting = threading.Thread(target=lambda: found.extend(desk.sub.receive(1, timeout=60)))
        rings = desk.sub.notifier.generation
        waiting.start()
        change(desk, max_unacked_messages=3)
        waiting.join(60)
        assert words(found) == ["c"]
        assert desk.sub.notifier.generation > rings
        change(desk, max_unacked_messages=1)
        desk.publish("d")
        assert desk.read() == []
        desk.sub.redeliver_all()
        assert len(desk.read()) == 1


@acts(SubscriptionConfig, "ack_deadline")
def test_a_new_deadline_is_that_of_what_is_delivered_from_then_on(desk: Desk) -> None:
    change(desk, ack_deadline=10_000)
    desk.publish("a")
    assert desk.read() == ["a"]
    change(desk, ack_deadline=100)
    desk.publish("b")
    assert desk.read() == ["b"]
    desk.go_to(99)
    assert desk.read() == []
    desk.go_to(100)
    assert desk.read() == ["b"]
    change(desk, ack_deadline=None)
    desk.go_to(200)
    assert desk.read() == ["b"]
    desk.go_to(10_000)
    assert desk.read() == ["a"]
    desk.go_to(100_000)
    assert desk.read() == []


@acts(SubscriptionConfig, "nack_delay", "nack_backoff")
def test_a_new_delay_of_what_is_negatively_acknowledged(desk: Desk) -> None:
    class Backoff:
        def next(self, redelivery_count: int) -> int:
            return 50_000

    desk.publish("a", "b", "c")
    a, b, c = desk.drain()
    change(desk, nack_delay=30_000)
    desk.sub.nack(a)
    change(desk, nack_delay=10_000)
    desk.sub.nack(b)
    change(desk, nack_backoff=Backoff())
    desk.sub.nack(c)
    found = {}
    for time in (10_000, 30_000, 50_000):
        desk.go_to(time - NACK_BUCKET)
        assert desk.read() == []
        desk.go_to(time)
        found[time] = desk.read()
    assert found == {10_000: ["b"], 30_000: ["a"], 50_000: ["c"]}


@acts(SubscriptionConfig, "max_redeliveries", "dead_letter_topic")
def test_a_new_limit_of_redeliveries_and_another_dead_letter_topic(desk: Desk) -> None:
    desk.publish("a")
    for _ in range(3):
        (message,) = desk.drain()
        desk.sub.redeliver_all()
    assert message.redelivery_count == 2
    change(desk, max_redeliveries=2, dead_letter_topic="graves")
    assert desk.drain() == []
    assert desk.sub.stats.dead_lettered == 1
    graves = desk.store.topic("graves")
    assert words(graves.subscription("all").receive(10, timeout=0)) == ["a"]
    change(desk, max_redeliveries=0, dead_letter_topic=None)
    desk.publish("b")
    desk.drain()
    desk.sub.redeliver_all()
    assert desk.drain() == []
    default = desk.store.topic(f"{TOPIC}-{SUBSCRIPTION}-DLQ")
    assert words(default.subscription("all").receive(10, timeout=0)) == ["b"]


@acts(SubscriptionConfig, "time_to_live")
def test_a_new_time_to_live(desk: Desk) -> None:
    desk.publish("a", "b")
    desk.go_to(5_000)
    change(desk, time_to_live=5_000)
    desk.publish("c")
    assert desk.read() == ["c"]
    assert desk.sub.stats.expired == 2
    change(desk, time_to_live=None)
    desk.publish("d")
    desk.go_to(50_000)
    assert desk.read() == ["d"]
    assert desk.sub.expire() == 0
    desk.publish("e")
    desk.go_to(60_000)
    change(desk, time_to_live=5_000)
    assert desk.sub.expire() == 1


@pytest.mark.parametrize("mode", MODES)
@acts(SubscriptionConfig, "delayed_delivery_tick_time_millis")
def test_a_new_tick_of_a_subscription(mode_desk: Desk) -> None:
    """The other subscription has that of the topic."""
    desk = mode_desk
    other = desk.topic.subscription("other", subscription_config())
    desk.publish("a", at=EDGE)
    assert desk.read() == desk.read(other) == []
    change(desk, delayed_delivery_tick_time_millis=64)
    desk.go_to(EDGE - 65)
    assert desk.read() == []
    desk.go_to(EDGE - 64)
    assert (desk.read(), desk.read(other)) == (["a"], [])
    desk.go_to(EDGE - 2)
    assert desk.read(other) == []
    desk.go_to(EDGE)
    assert desk.read(other) == ["a"]
    # Reopened at its mark-delete position by a reset, the tracker has the new tick too.
    desk.consume()
    desk.sub.reset((0, 0))
    desk.publish("b", at=EDGE + 256)
    desk.consume()
    desk.go_to(EDGE + 256 - 64)
    assert desk.read() == ["b"]
    change(desk, delayed_delivery_tick_time_millis=None)
    desk.publish("c", at=600)
    desk.go_to(598)
    assert desk.read() == []
    desk.go_to(600)
    assert desk.read() == ["c"]


# -- what acts: cursors ------------------------------------------------------------------------------------------------


@acts(SubscriptionConfig, "cursor")
@acts(CursorConfig, "max_per_cursor_metadata_size_in_bytes")
def test_a_new_limit_of_the_state_pauses_and_resumes_at_once(store_path: Path) -> None:
    limited = subscription_config(cursor=replace(CURSOR, max_per_cursor_metadata_size_in_bytes=1_024))
    with Desk(store_path, topic_config(max_entries_per_ledger=10_000), sub=limited) as desk:
        desk.topic.publish_many([b"x"] * 8_000)
        found = desk.drain(max=5_000)
        desk.sub.ack_many(found[1::7])
        desk.sub.ack_many(found[2::3]).result()
        desk.sub.cursor.flush()
        size = desk.sub.cursor.cursor_metadata_size_in_bytes
        assert size > 1_024
        assert desk.sub.paused
        desk.publish("held back")
        assert desk.read() == []
        received: list[ReceivedMessage] = []
        waiting = threading.Thread(target=lambda: received.extend(desk.sub.receive(1, timeout=60)))
        waiting.start()
        change_cursor(desk, max_per_cursor_metadata_size_in_bytes=size + 1)
        waiting.join(60)
        assert words(received) == ["held back"]
        assert not desk.sub.paused
        change_cursor(desk, max_per_cursor_metadata_size_in_bytes=size)
        assert desk.sub.paused
        change_cursor(desk, max_per_cursor_metadata_size_in_bytes=0)
        assert not desk.sub.paused


@acts(CursorConfig, "flush_interval", "throttle_mark_delete")
def test_a_new_rhythm_of_writing(desk: Desk) -> None:
    cursor = desk.sub.cursor
    desk.publish("a", "b", "c", "d")
    a, b, _, d = desk.drain()
    written = threading.Event()
    flush = cursor._scheduler._flush
    pending = desk.sub.ack(a)
    assert not pending.done()
    # What is accepted already is written at the latest after the new interval.
    change_cursor(desk, flush_interval=0.01)
    for _ in range(6_000):
        if pending.done():
            break
        written.wait(0.01)
    assert pending.done()
    assert flush is not None
    change_cursor(desk, flush_interval=1e9, throttle_mark_delete=0)
    assert desk.sub.ack(b).done()
    change_cursor(desk, throttle_mark_delete=None)
    assert not desk.sub.ack(d).done()


@acts(CursorConfig, "max_individual_ack_cache_bytes")
def test_a_new_limit_of_the_page_cache(desk: Desk) -> None:
    change_topic(desk, max_entries_per_ledger=2)
    desk.publish(*range(80))
    cursor = desk.sub.cursor
    for info in desk.topic.ledger.ledgers[:-1]:
        cursor.ack((info.ledger_id, 1))
    cursor.flush()
    pages = cursor._state.pages
    before = len(pages)
    assert before == 40
    change_cursor(desk, max_individual_ack_cache_bytes=1)
    assert len(pages) == 1
    change_cursor(desk, max_individual_ack_cache_bytes=1 << 20)
    assert all(cursor.lru_switch(info.ledger_id) for info in desk.topic.ledger.ledgers[:-1])
    assert len(pages) == 40


@acts(CursorConfig, "max_entries_per_cursor_ledger", "max_cursor_ledger_age", "retained_cursor_ledgers")
def test_new_limits_of_the_cursors_ledger(desk: Desk) -> None:
    cursor = desk.sub.cursor
    desk.publish(*range(20))
    positions = [message.position for message in desk.drain()]

    def ledger_after_ack() -> int:
        cursor.ack(positions.pop()).result()
        assert cursor._log.writer is not None
        return cursor._log.writer.id

    first = ledger_after_ack()
    assert ledger_after_ack() == first
    change_cursor(desk, max_entries_per_cursor_ledger=1, retained_cursor_ledgers=1)
    second = ledger_after_ack()
    assert second != first
    assert first in list(desk.store.list_ledgers())
    change_cursor(desk, max_entries_per_cursor_ledger=1_000, max_cursor_ledger_age=3_600.0, retained_cursor_ledgers=0)
    assert ledger_after_ack() == second
    desk.pass_time(3_600_000)
    assert ledger_after_ack() not in (first, second)
    # A former ledger is retained until the new one has two states.
    ledger_after_ack()
    ledger_after_ack()
    assert first not in list(desk.store.list_ledgers())
    assert second not in list(desk.store.list_ledgers())


@acts(CursorConfig, "flush_commit_bytes")
def test_a_new_size_of_commits(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    from bookstand.cursor.store import cursor_ledger

    sizes: list[int] = []
    append = cursor_ledger.append

    def noting(writer: Any, entries: Any, commit_bytes: int) -> None:
        sizes.append(commit_bytes)
        append(writer, entries, commit_bytes)

    monkeypatch.setattr(cursor_ledger, "append", noting)
    change_cursor(desk, flush_commit_bytes=12_345)
    desk.publish("a")
    desk.consume()
    assert set(sizes) == {12_345}


@acts(
    CursorConfig,
    "persist_as_long_array",
    "max_unacked_ranges_to_persist",
    "max_unacked_ranges_in_metadata_store",
    "max_batch_deleted_index_to_persist",
)
def test_new_limits_of_the_old_form(store_path: Path) -> None:
    old_form = subscription_config(cursor=replace(CURSOR, enable_lru_cache_max_unacked_ranges=False))
    with Desk(store_path, topic_config(max_entries_per_ledger=100), sub=old_form) as desk:
        desk.publish(*range(21))
        batch = desk.topic.publish_batch([b"x", b"y", b"z"])
        found = desk.drain()
        cursor = desk.sub.cursor
        desk.sub.ack_many(found[1:21:2])
        desk.sub.ack(next(one for one in found if one.position == batch)).result()
        assert not cursor.paused
        assert cursor.snapshot_misfit() is None
        change_cursor(desk, max_unacked_ranges_to_persist=4, persist_as_long_array=False)
        assert cursor.snapshot_misfit() is not None
        change_cursor(desk, max_unacked_ranges_to_persist=100)
        assert cursor.snapshot_misfit() is None
        change_cursor(desk, max_batch_deleted_index_to_persist=0)
        assert cursor.snapshot_misfit() is not None
        change_cursor(desk, max_batch_deleted_index_to_persist=100)
        ranges = cursor.cursor_metadata_size_in_bytes
        desk.sub.ack(found[2].position).result()
        in_ranges = cursor.cursor_metadata_size_in_bytes
        change_cursor(desk, persist_as_long_array=True)
        desk.sub.ack(found[4].position).result()
        assert cursor.cursor_metadata_size_in_bytes != in_ranges
        assert ranges
        # More ranges than fit into the record, so that they stay in the cursor's ledger when it is closed.
        change_cursor(desk, max_unacked_ranges_in_metadata_store=1)
        acked = cursor.acked_ranges()
        desk.restart()
        assert desk.sub.cursor.recovered_from.ledger_id >= 0
        assert desk.sub.cursor.acked_ranges() == acked


@acts(CursorConfig, "compression", "compression_threshold")
def test_a_new_compression_of_the_record(desk: Desk) -> None:
    cursor = desk.sub.cursor

    def size() -> int:
        cursor.put_cursor_property("text", "x" * 50_000)
        return len(desk.store.nodes.get(cursor._log.path)[0])

    assert size() > 50_000
    change_cursor(desk, compression="ZLIB", compression_threshold=100_000)
    assert size() > 50_000
    change_cursor(desk, compression_threshold=1_000)
    assert size() < 5_000
    with pytest.raises(IncorrectParameterError, match="compression"):
        replace(CURSOR, compression="RAR")


@acts(CursorConfig, "batch_index_acks")
def test_acknowledging_parts_of_batches_switched_off(desk: Desk) -> None:
    cursor = desk.topic.cursor("plain", CURSOR)
    batch = desk.topic.publish_batch([b"x", b"y", b"z"])
    cursor.ack_batch(batch, [0], 3)
    desk.topic.cursor("plain", replace(CURSOR, batch_index_acks=False))
    cursor.ack_batch(batch, [1], 3)
    assert cursor.partial_batches() == {batch: [1, 2]}


# -- any changes in any order ------------------------------------------------------------------------------------------

_SPANS = st.sampled_from([None, 100, 1_000])


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), mode=st.sampled_from(sorted(MODES)))
def test_whatever_is_changed_each_message_is_delivered_and_none_early(data: st.DataObject, mode: str) -> None:
    """With changes between all steps, everything that was published is delivered until it is acknowledged, and no more
    than the largest tick so far before its time."""
    clock = VirtualClock(START)
    with bookstand.temporary(clock=clock) as store:
        config = topic_config(mode, is_delayed_delivery_deliver_at_time_strict=data.draw(st.booleans()))
        topic = store.topic(TOPIC, config)
        sub = topic.subscription(SUBSCRIPTION, subscription_config())
        due: dict[Any, int] = {}
        ticks = [1]
        for _ in range(data.draw(st.integers(3, 12))):
            step = data.draw(st.sampled_from(["publish", "delayed", "take", "wait", "topic", "sub"]))
            if step == "publish":
                due[topic.publish(b"x")] = 0
            elif step == "delayed":
                at = clock.now() + data.draw(st.integers(1, 500))
                due[topic.publish(b"x", deliver_at=at)] = at
            elif step == "wait":
                clock.advance(data.draw(st.integers(1, 400)) / 1000)
            elif step == "topic":
                change_ = {"max_entries_per_ledger": data.draw(st.integers(1, 6))}
                assert store.topic(TOPIC, replace(topic.config, **change_)) is topic
            elif step == "sub":
                tick = data.draw(st.sampled_from([1, 30, 100]))
                ticks.append(tick)
                wanted = replace(
                    sub.config,
                    delayed_delivery_tick_time_millis=tick,
                    ack_deadline=data.draw(_SPANS),
                    max_unacked_messages=data.draw(st.integers(1, 5)),
                )
                assert topic.subscription(SUBSCRIPTION, wanted) is sub
            else:
                for message in sub.receive(10, timeout=0):
                    early = 0 if config.is_delayed_delivery_deliver_at_time_strict else max(ticks)
                    assert due[message.position] <= clock.now() + early
                    if data.draw(st.booleans()):
                        sub.ack(message)
                        del due[message.position]
                    else:
                        sub.nack(message, delay=100)
        for _ in range(60):
            clock.advance(1)
            for message in sub.receive(10, timeout=0):
                sub.ack(message)
                del due[message.position]
        assert due == {}


# -- ticks over a shared index -----------------------------------------------------------------------------------------

_TICKS = st.sampled_from([None, 1, 30, 64, 500])


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_each_subscription_of_a_shared_index_is_early_by_its_own_tick_at_most(data: st.DataObject) -> None:
    """Whatever the ticks of the others; with changes while it is open, by the largest that it had since it was opened;
    strict, never. What it has read is delivered at its time at the latest, and once."""
    clock = VirtualClock(START)
    strict, changing = data.draw(st.booleans()), data.draw(st.booleans())
    config = topic_config(
        "shared index",
        delayed_delivery_tick_time_millis=50,
        is_delayed_delivery_deliver_at_time_strict=strict,
        max_entries_per_ledger=4,
    )
    with bookstand.temporary(clock=clock) as store:
        topic = store.topic(TOPIC, config)
        ticks = {name: [data.draw(_TICKS)] for name in "abc"}
        due: dict[Any, int] = {}
        delivered: dict[str, set[Any]] = {name: set() for name in ticks}

        def opened(name: str) -> Any:
            return topic.subscription(name, subscription_config(delayed_delivery_tick_time_millis=ticks[name][-1]))

        def take(name: str) -> None:
            sub = opened(name)
            while found := sub.receive(3, timeout=0):
                for message in found:
                    assert message.position not in delivered[name]
                    delivered[name].add(message.position)
                    early = 0 if strict else max(tick or 50 for tick in ticks[name])
                    assert due[message.position] <= clock.now() + early
                sub.ack_many(found)
            assert {position for position, at in due.items() if at <= clock.now()} <= delivered[name]

        for name in ticks:
            opened(name)
        for _ in range(data.draw(st.integers(5, 25))):
            step = data.draw(st.sampled_from(["publish", "take", "take", "wait", "tick", "restart"]))
            name = data.draw(st.sampled_from("abc"))
            if step == "publish":
                for after in data.draw(st.lists(st.integers(0, 900), min_size=1, max_size=4)):
                    due[topic.publish(b"x", deliver_at=clock.now() + after)] = clock.now() + after
            elif step == "take":
                take(name)
            elif step == "wait":
                clock.advance(data.draw(st.sampled_from([1, 29, 31, 64, 200])) / 1000)
            elif step == "tick" and changing:
                ticks[name].append(data.draw(_TICKS))
                opened(name)
            elif step == "restart":
                topic.close()
                topic = store.topic(TOPIC, config)
                for other in ticks:
                    del ticks[other][:-1]
                    opened(other)
        clock.advance(2)
        for name in ticks:
            take(name)
            assert opened(name).stats.delayed == 0 or topic.shared_index


def test_a_subscription_leaves_and_the_index_has_the_tick_of_the_others(store_path: Path) -> None:
    with Desk(store_path, topic_config("shared index", is_delayed_delivery_deliver_at_time_strict=False)) as desk:
        index = desk.topic.shared_index
        assert index is not None
        other = desk.topic.subscription("other", subscription_config(delayed_delivery_tick_time_millis=300))
        assert index.tracker.config.delayed_delivery_tick_time_millis == 300
        desk.publish("a", at=1_000)
        assert desk.read() == []
        other.close()
        assert index.tracker.config.delayed_delivery_tick_time_millis == 1
        desk.go_to(998)
        assert desk.read() == []
        desk.go_to(1_000)
        assert desk.read() == ["a"]


def test_a_message_that_another_subscription_has_early_can_be_seen_moved_and_cancelled(store_path: Path) -> None:
    """It has left the index, for a subscription with a larger tick."""
    with Desk(store_path, topic_config("shared index", is_delayed_delivery_deliver_at_time_strict=False)) as desk:
        other = desk.topic.subscription("other", subscription_config(delayed_delivery_tick_time_millis=500))
        a, b, c = desk.publish("a", "b", "c", at=1_000)
        assert desk.read() == desk.read(other) == []
        desk.go_to(600)
        assert sorted(desk.read(other)) == ["a", "b", "c"]
        assert desk.read() == []
        assert [position for _, position in desk.sub.peek_delayed()] == [a, b, c]
        assert desk.sub.stats.delayed == 3
        desk.sub.cancel(a)
        assert desk.sub.reschedule(b, deliver_at=START + 2_000)
        assert [position for _, position in desk.sub.peek_delayed()] == [c, b]
        desk.go_to(998)
        assert desk.read() == []
        desk.go_to(1_000)
        assert desk.read() == ["c"]
        desk.go_to(2_000)
        assert desk.read() == ["b"]


def test_a_receiver_is_woken_when_a_message_that_left_the_index_early_is_due(store_path: Path) -> None:
    with Desk(store_path, topic_config("shared index", is_delayed_delivery_deliver_at_time_strict=False)) as desk:
        other = desk.topic.subscription("other", subscription_config(delayed_delivery_tick_time_millis=500))
        desk.publish("a", at=1_000)
        desk.go_to(600)
        assert (desk.read(), desk.read(other)) == ([], ["a"])
        rings = desk.sub.notifier.generation
        desk.go_to(1_000)
        assert desk.sub.notifier.generation > rings


def test_a_message_that_is_early_is_delivered_once_when_the_index_has_it_again(store_path: Path) -> None:
    """The index is rid of it by a larger tick, and tracks it again with a smaller one for a new subscription."""
    with Desk(store_path, topic_config("shared index", is_delayed_delivery_deliver_at_time_strict=False)) as desk:
        other = desk.topic.subscription("other", subscription_config(delayed_delivery_tick_time_millis=2_000))
        desk.topic.publish_batch([b"%d" % number for number in range(10)], deliver_at=START + 1_000)
        desk.publish("a", "b", at=1_000)
        assert desk.read() == []
        other.close()
        new = desk.topic.subscription("new", subscription_config())
        assert desk.read(new) == []
        assert (desk.sub.stats.delayed, new.stats.delayed) == (3, 3)
        desk.go_to(998)
        assert desk.read() == desk.read(new) == []
        desk.go_to(1_000)
        wanted = [*map(str, range(10)), "a", "b"]
        assert words(desk.sub.receive(20, timeout=0)) == wanted
        assert (desk.read(), desk.read(new)) == ([], wanted)
        assert desk.sub.stats.delayed == new.stats.delayed == 0


def test_a_message_in_the_log_is_delivered_once_when_the_index_has_it_again(store_path: Path) -> None:
    with Desk(store_path, topic_config("shared index", is_delayed_delivery_deliver_at_time_strict=False)) as desk:
        other = desk.topic.subscription("other", subscription_config(delayed_delivery_tick_time_millis=500))
        a, b = desk.publish("a", "b", at=1_000)
        assert desk.read() == desk.read(other) == []
        desk.go_to(600)
        assert desk.read(other) == ["a", "b"]
        other.close()
        new = desk.topic.subscription("new", subscription_config())
        assert desk.read(new) == desk.read() == []
        assert [position for _, position in desk.sub.peek_delayed()] == [a, b]
        assert (desk.sub.stats.delayed, new.stats.delayed) == (2, 2)
        assert desk.sub.reschedule(b, deliver_at=START + 2_000)
        assert desk.sub.stats.delayed == 2
        desk.go_to(1_000)
        assert (desk.read(), desk.read(new)) == (["a"], ["a", "b"])
        desk.go_to(2_000)
        assert (desk.read(), desk.read(new)) == (["b"], [])
        assert desk.sub.stats.delayed == new.stats.delayed == 0


# -- beside consumers that work ----------------------------------------------------------------------------------------


def test_settings_that_change_while_consumers_work(store_path: Path) -> None:
    """No message is lost and no receiver waits forever, with dead letters opened by the dispatcher in between."""
    count = 300
    config = subscription_config(max_redeliveries=1, max_unacked_messages=5)
    with Desk(store_path, topic_config(max_entries_per_ledger=50), config, durability="none") as desk:
        graves = desk.store.topic("graves").subscription("all")
        done: set[str] = set()

        def consume() -> None:
            while len(done) < count:
                for message in desk.sub.receive(3, timeout=0.01):
                    word = message.payload.decode()
                    if int(word) % 7:
                        desk.sub.ack(message)
                        done.add(word)
                    else:
                        desk.sub.nack(message, delay=0)
                for message in graves.receive(10, timeout=0):
                    graves.ack(message)
                    done.add(message.payload.decode())

        threads = [threading.Thread(target=consume, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for number in range(count):
            desk.publish(number)
            change(
                desk,
                max_unacked_messages=1 + number % 9,
                max_redeliveries=number % 3,
                dead_letter_topic="graves",
                cursor=replace(CURSOR, max_per_cursor_metadata_size_in_bytes=2_000 + number),
            )
            change_topic(desk, max_entries_per_ledger=1 + number % 50)
        for _ in range(6_000):
            # What is negatively acknowledged is due after a while.
            desk.pass_time(200)
            threads[0].join(0.01)
            if len(done) == count:
                break
        for thread in threads:
            thread.join(60)
        assert done == {str(number) for number in range(count)}
