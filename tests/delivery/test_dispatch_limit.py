"""Dispatch while the state of the cursor is at its limit (PIP-299): acknowledgment holes go out, nothing above them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookstand.cursor.config import CursorConfig
from bookstand.delivery.subscription.subscription import ReceivedMessage
from tests.delivery.subscription_kit import (
    MODES,
    Desk,
    numbered,
    positions,
    subscription_config,
    topic_config,
    words,
)
from tests.kit import PATIENCE

LIMIT = 1 << 10
PADDING = "p" * 880
"""The name of a property of the cursor. With it a few acknowledgments reach the limit."""
PAGES = CursorConfig(flush_interval=1e9, max_per_cursor_metadata_size_in_bytes=LIMIT)
OLD = CursorConfig(
    flush_interval=1e9, enable_lru_cache_max_unacked_ranges=False, max_per_cursor_metadata_size_in_bytes=LIMIT
)
TYPES = ("shared", "exclusive")
COUNT = 60

OpenDesk = Callable[..., Desk]


@pytest.fixture
def open_desk(tmp_path: Path) -> Any:
    with contextlib.ExitStack() as stack:

        def make(mode: str = "in memory", cursor: CursorConfig = PAGES, **settings: Any) -> Desk:
            path = tmp_path / f"store-{len(list(tmp_path.iterdir()))}"
            return stack.enter_context(
                Desk(
                    path,
                    topic_config(mode, max_entries_per_ledger=1_000),
                    subscription_config(cursor=cursor, **settings),
                )
            )

        yield make


def with_holes(desk: Desk, count: int = COUNT) -> list[ReceivedMessage]:
    """Every second of so many messages is acknowledged, and the state at its limit; those that are not."""
    desk.sub.cursor.put_property(PADDING, 1)
    desk.topic.publish_many(numbered(count))
    received = desk.drain()
    desk.sub.ack_many(received[1::2]).result()
    assert desk.sub.stats.paused
    return received[::2]


def drain_acknowledging(desk: Desk, most: int = 7) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while some := desk.sub.receive(most, timeout=0):
        found += some
        desk.sub.ack_many(some).result()
    return found


# -- holes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", ["close", "crash"])
def test_holes_go_out_after_a_restart_while_dispatch_is_paused(
    open_desk: OpenDesk, mode: str, kind: str, way: str
) -> None:
    desk = open_desk(mode, type=kind)
    held = with_holes(desk)
    desk.publish("new")
    desk.restart() if way == "close" else desk.crash()
    assert desk.sub.stats.paused
    first = desk.sub.receive(7, timeout=0)
    # The lowest first, and nothing above the highest acknowledged position.
    assert positions(first) == positions(held[:7])
    assert positions(desk.drain()) == positions(held[7:])
    size = desk.sub.cursor.cursor_metadata_size_in_bytes
    desk.sub.ack_many(held).result()
    assert desk.sub.cursor.cursor_metadata_size_in_bytes < size
    assert not desk.sub.stats.paused
    assert desk.read() == ["new"]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("restarts", [False, True])
def test_with_mixed_delays_due_messages_are_the_holes(
    open_desk: OpenDesk, mode: str, kind: str, restarts: bool
) -> None:
    """The example of PIP-299: the short delays are over, the long ones leave holes."""
    desk = open_desk(mode, type=kind)
    desk.sub.cursor.put_property(PADDING, 1)
    times = [10_000 if number % 2 else 100 for number in range(COUNT)]
    desk.topic.publish_many(numbered(COUNT), deliver_after=times)
    desk.go_to(100)
    assert len(desk.consume()) == COUNT // 2
    assert desk.sub.stats.paused
    desk.publish("new")
    desk.publish("due", at=5_000)
    assert desk.read() == []
    if restarts:
        desk.restart()
    desk.go_to(9_999)
    assert desk.read() == []
    desk.go_to(10_000)
    found = drain_acknowledging(desk)
    assert [int(word) for word in words(found)[: COUNT // 2]] == list(range(1, COUNT, 2))
    assert sorted(words(found)[COUNT // 2 :]) == ["due", "new"]
    assert desk.sub.backlog == 0


def test_due_redelivered_and_new_holes_go_out_lowest_first(open_desk: OpenDesk) -> None:
    desk = open_desk()
    with_holes(desk)
    desk.restart(sub=subscription_config(cursor=CursorConfig(flush_interval=1e9), nack_delay=1_000))
    holes = desk.sub.receive(COUNT // 2, timeout=0)
    # Some of the holes come back before others do.
    desk.sub.nack_many(holes[5:8], delay=2_000)
    desk.sub.nack_many(holes[2:4], delay=3_000)
    desk.restart(sub=subscription_config(cursor=PAGES, nack_delay=1_000))
    assert desk.sub.stats.paused
    first = desk.sub.receive(6, timeout=0)
    assert positions(first) == positions(holes[:6])
    desk.sub.nack_many([first[4], first[1]], delay=1_000)
    desk.pass_time(1_000)
    assert positions(desk.sub.receive(4, timeout=0)) == positions([holes[1], holes[4], holes[6], holes[7]])


def test_what_lies_above_the_highest_acknowledged_position_is_held_back_whatever_it_is(open_desk: OpenDesk) -> None:
    desk = open_desk(nack_delay=1_000)
    desk.sub.cursor.put_property(PADDING, 1)
    desk.topic.publish_many(numbered(COUNT))
    (due,) = desk.publish("due", at=500)
    received = desk.drain()
    below, above = received[: COUNT - 10], received[COUNT - 10 :]
    desk.sub.ack_many(below[1::2]).result()
    assert desk.sub.stats.paused
    highest = below[1::2][-1].position
    desk.publish("new")
    desk.sub.nack_many([above[3], below[4]])
    desk.go_to(2_000)
    assert positions(desk.drain()) == [below[4].position]
    # Messages in flight when the pause began may still be acknowledged, which leaves holes below them.
    desk.sub.ack(above[5]).result()
    assert highest < above[3].position < above[5].position
    assert positions(desk.drain()) == [above[3].position]
    desk.sub.ack_many(received).result()
    assert not desk.sub.stats.paused
    assert words(desk.drain()) == ["due", "new"]
    assert due


@pytest.mark.parametrize("kind", TYPES)
def test_where_no_acknowledgment_makes_the_state_smaller_the_lowest_message_goes_out(
    open_desk: OpenDesk, kind: str
) -> None:
    desk = open_desk(type=kind)
    desk.sub.cursor.put_property("p" * LIMIT, 1)
    desk.sub.cursor.flush()
    assert desk.sub.stats.paused
    assert desk.sub.stats.entries_to_resume is None
    desk.publish(*range(5))
    assert words(desk.sub.receive(5, timeout=0)) == ["0"]
    assert desk.sub.receive(5, timeout=0) == []
    desk.sub.redeliver_all()
    assert words(drain_acknowledging(desk)) == ["0", "1", "2", "3", "4"]
    assert desk.sub.cursor.acked_ranges() == []


def test_members_of_a_batch_at_the_highest_acknowledged_position_go_out(open_desk: OpenDesk) -> None:
    desk = open_desk()
    desk.sub.cursor.put_property(PADDING, 1)
    desk.topic.publish_many(numbered(COUNT))
    desk.topic.publish_batch([b"a", b"b", b"c"])
    received = desk.drain()
    desk.publish("new")
    desk.sub.ack_many([*received[1:COUNT:2], received[COUNT + 1]]).result()
    assert desk.sub.stats.paused
    desk.restart()
    assert words(desk.drain()) == [*(str(number) for number in range(0, COUNT, 2)), "a", "c"]


# -- neighbors ---------------------------------------------------------------------------------------------------------


def test_messages_read_ahead_are_held_back_or_go_out_as_holes(open_desk: OpenDesk) -> None:
    """Batches are read ahead: some were read when the pause begins, and handed out to nobody."""
    desk = open_desk()
    desk.sub.cursor.put_property(PADDING, 1)
    count = 3 * COUNT
    for number in range(count):
        desk.topic.publish_batch([b"%d" % number, b"%d'" % number])
    received: list[ReceivedMessage] = []
    while not desk.sub.stats.paused:
        (message,) = desk.sub.receive(1, timeout=0)
        received.append(message)
        if message.position.entry_id % 2:
            desk.sub.ack(message).result()
    assert len(received) < count
    rest = drain_acknowledging(desk, most=1)
    desk.sub.ack_many(received).result()
    rest += drain_acknowledging(desk, most=1)
    assert sorted(words([*received, *rest])) == sorted(words(received + rest))
    assert len({message.id for message in [*received, *rest]}) == 2 * count
    assert desk.sub.backlog == 0


def test_a_waiting_receive_wakes_when_an_acknowledgment_makes_a_hole(open_desk: OpenDesk) -> None:
    """It comes out that what waits lies below the highest acknowledged position."""
    desk = open_desk(nack_delay=0)
    desk.sub.cursor.put_property(PADDING, 1)
    desk.topic.publish_many(numbered(COUNT))
    received = desk.drain()
    desk.sub.ack_many(received[1 : COUNT - 10 : 2]).result()
    assert desk.sub.stats.paused
    desk.sub.nack(received[-5], delay=1_000)
    desk.pass_time(2_000)
    found: list[ReceivedMessage] = []
    thread = threading.Thread(target=lambda: found.extend(desk.sub.receive(5)))
    thread.start()
    desk.sub.ack(received[-1])
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert positions(found) == [received[-5].position]


def test_a_waiting_task_wakes_when_a_hole_becomes_due(open_desk: OpenDesk) -> None:
    desk = open_desk()
    desk.sub.cursor.put_property(PADDING, 1)
    desk.publish("late", at=1_000)
    desk.topic.publish_many(numbered(COUNT))
    desk.sub.ack_many(desk.drain()[1::2]).result()
    assert desk.sub.stats.paused

    async def receive() -> list[str]:
        task = asyncio.ensure_future(desk.sub.receive_async(5))
        await asyncio.sleep(0)
        assert not task.done()
        desk.go_to(1_000)
        return words(await asyncio.wait_for(task, PATIENCE))

    assert asyncio.run(receive()) == ["late"]


def test_a_waiting_receive_wakes_when_a_consumer_closes(open_desk: OpenDesk) -> None:
    desk = open_desk()
    one, other = desk.sub.consumer("one"), desk.sub.consumer("other")
    desk.sub.cursor.put_property(PADDING, 1)
    desk.topic.publish_many(numbered(COUNT))
    received = desk.drain(one)
    one.ack_many(received[1::2]).result()
    assert desk.sub.stats.paused
    found: list[ReceivedMessage] = []
    thread = threading.Thread(target=lambda: found.extend(other.receive(COUNT)))
    thread.start()
    one.close()
    thread.join(PATIENCE)
    assert positions(found) == positions(received[::2])


def test_two_consumers_share_the_holes(open_desk: OpenDesk) -> None:
    desk = open_desk()
    held = with_holes(desk)
    desk.restart()
    one, other = desk.sub.consumer("one"), desk.sub.consumer("other")
    found = []
    while some := [*one.receive(2, timeout=0), *other.receive(3, timeout=0)]:
        found += some
    assert positions(found) == positions(held)


def test_what_is_held_beyond_its_deadline_goes_out_again_while_paused(open_desk: OpenDesk) -> None:
    desk = open_desk(ack_deadline=1_000)
    held = with_holes(desk)
    desk.publish("new")
    desk.pass_time(1_000)
    again = desk.drain()
    assert positions(again) == positions(held)
    assert {message.redelivery_count for message in again} == {1}


def test_expired_holes_are_acknowledged_while_paused(open_desk: OpenDesk) -> None:
    desk = open_desk(time_to_live=1_000)
    with_holes(desk)
    desk.restart()
    desk.pass_time(1_000)
    desk.publish("new")
    assert desk.read() == ["new"]
    assert desk.sub.stats.expired == COUNT // 2
    desk.sub.cursor.flush()
    assert not desk.sub.stats.paused


def test_worn_out_holes_go_to_the_dead_letter_topic_while_paused(open_desk: OpenDesk) -> None:
    desk = open_desk(max_redeliveries=0)
    held = with_holes(desk)
    desk.publish("new")
    desk.sub.nack_many(held, delay=0)
    desk.pass_time(1_000)
    assert desk.read() == ["new"]
    assert desk.sub.stats.dead_lettered == len(held)


def test_with_as_many_out_as_may_be_no_hole_goes_out(open_desk: OpenDesk) -> None:
    desk = open_desk()
    held = with_holes(desk)
    desk.restart(sub=subscription_config(cursor=PAGES, max_unacked_messages=5))
    assert positions(desk.drain()) == positions(held[:5])
    desk.sub.ack_many(held[:2]).result()
    assert positions(desk.drain()) == positions(held[5:7])


@pytest.mark.parametrize("mode", MODES)
def test_durable_nacks_of_holes_keep_their_time_while_paused(open_desk: OpenDesk, mode: str) -> None:
    desk = open_desk(mode, durable_nacks=True)
    held = with_holes(desk)
    desk.sub.nack_many(held[:3], delay=5_000)
    desk.restart()
    assert positions(desk.drain()) == positions(held[3:])
    desk.pass_time(6_000)
    assert positions(desk.drain()) == positions(held[:3])


@pytest.mark.parametrize("mode", MODES)
def test_a_delayed_hole_can_be_cancelled_and_rescheduled_while_paused(open_desk: OpenDesk, mode: str) -> None:
    desk = open_desk(mode)
    cancelled, sooner, later = desk.publish("cancelled", "sooner", "later", at=1_000)
    desk.sub.cursor.put_property(PADDING, 1)
    desk.topic.publish_many(numbered(COUNT))
    received = desk.drain()
    (above,) = desk.publish("above", at=500)
    desk.sub.ack_many(received[1::2]).result()
    assert desk.sub.stats.paused
    desk.sub.cancel(cancelled).result()
    assert desk.sub.reschedule(sooner, deliver_after=100)
    assert desk.sub.reschedule(later, deliver_after=2_000)
    assert desk.sub.reschedule(above, deliver_after=50)
    seen = [(when, desk.read()) for when in (99, 100, 1_999, 2_000) if desk.go_to(when) is None]
    assert seen == [(99, []), (100, ["sooner"]), (1_999, []), (2_000, ["later"])]


def test_a_reset_while_paused_reads_from_there(open_desk: OpenDesk) -> None:
    desk = open_desk()
    held = with_holes(desk)
    desk.restart()
    assert len(desk.sub.receive(3, timeout=0)) == 3
    desk.sub.reset(held[10].position)
    assert not desk.sub.stats.paused
    assert words(desk.drain()) == [str(number) for number in range(20, COUNT)]


def test_without_a_flush_the_lowest_message_goes_on(open_desk: OpenDesk) -> None:
    """The size is that of the last write; whoever acknowledges what comes gets on all the same."""
    desk = open_desk()
    held = with_holes(desk)
    desk.publish("new", "newer")
    desk.sub.ack_many(held)
    assert desk.sub.stats.paused
    assert desk.sub.stats.entries_to_resume == 0
    found = []
    while some := desk.sub.receive(5, timeout=0):
        found += words(some)
        desk.sub.ack_many(some)
    assert found == ["new", "newer"]


# -- the old form ------------------------------------------------------------------------------------------------------


def old_form(most_ranges: int, most_batches: int = 10_000, limit: int = 1 << 20) -> CursorConfig:
    return CursorConfig(
        flush_interval=1e9,
        enable_lru_cache_max_unacked_ranges=False,
        max_per_cursor_metadata_size_in_bytes=limit,
        max_unacked_ranges_to_persist=most_ranges,
        max_batch_deleted_index_to_persist=most_batches,
    )


def test_in_the_old_form_a_hole_goes_out_only_if_the_ranges_still_fit(open_desk: OpenDesk) -> None:
    desk = open_desk(cursor=old_form(3))
    desk.topic.publish_many(numbered(40))
    received = desk.drain()
    # Four ranges, of which one is left out; between them runs of nine.
    desk.sub.ack_many(received[9:40:10]).result()
    assert desk.sub.stats.paused
    assert desk.sub.stats.pause_reasons == ("left_out",)
    desk.sub.redeliver_all()
    first = desk.sub.receive(40, timeout=0)
    # The ends of runs: acknowledging them adds no range.
    assert [int(word) for word in words(first)] == [0, 8, 10, 18, 20, 28, 30, 38]
    most = len(desk.sub.cursor.acked_ranges())
    for message in reversed(first):
        desk.sub.ack(message).result()
        assert len(desk.sub.cursor.acked_ranges()) <= most
    rest = []
    while some := desk.sub.receive(40, timeout=0):
        for message in reversed(some):
            rest.append(message)
            desk.sub.ack(message).result()
            assert len(desk.sub.cursor.acked_ranges()) <= most
    assert len(first) + len(rest) == 36
    assert desk.sub.backlog == 0


def test_in_the_old_form_a_batch_goes_out_only_if_its_part_still_fits(open_desk: OpenDesk) -> None:
    desk = open_desk(cursor=old_form(1_000, most_batches=2))
    for number in range(6):
        desk.topic.publish_batch([b"%d" % number, b"%d'" % number])
    received = desk.drain()
    desk.sub.ack_many([received[5], received[7], received[9], received[11]]).result()
    assert desk.sub.stats.pause_reasons == ("left_out",)
    desk.publish("new")
    desk.sub.redeliver_all()
    # The lowest, and those that are acknowledged in part already; not the one between.
    assert words(desk.drain()) == ["0", "0'", "2", "3", "4", "5"]
    assert words(drain_acknowledging(desk)) == []
    desk.sub.redeliver_all()
    assert words(drain_acknowledging(desk))[-1] == "new"
    assert desk.sub.backlog == 0


# -- no limit, and exclusive -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, -1])
@pytest.mark.parametrize("kind", TYPES)
def test_below_one_the_limit_is_off_in_the_old_form_as_well(open_desk: OpenDesk, kind: str, limit: int) -> None:
    desk = open_desk(cursor=old_form(2, most_batches=1, limit=limit), type=kind)
    desk.topic.publish_many(numbered(20))
    for number in range(3):
        desk.topic.publish_batch([b"%d" % number, b"%d'" % number])
    received = desk.drain()
    desk.sub.ack_many([*received[1:20:2], *received[21::2]]).result()
    stats = desk.sub.cursor.stats
    assert (stats.left_out_ranges, stats.left_out_batches) == (8, 2)
    desk.publish("new")
    assert not desk.sub.cursor.paused
    assert (desk.sub.stats.paused, desk.sub.stats.pause_reasons, desk.sub.stats.entries_to_resume) == (False, (), 0)
    assert desk.read() == ["new"]


@pytest.mark.parametrize("cursor", [PAGES, OLD], ids=["pages", "old form"])
def test_an_exclusive_subscription_pauses_like_the_others(open_desk: OpenDesk, cursor: CursorConfig) -> None:
    desk = open_desk(cursor=cursor, type="exclusive")
    desk.publish("due", at=100)
    count = COUNT if cursor is PAGES else 2_000
    desk.sub.cursor.put_property(PADDING, 1)
    desk.topic.publish_many(numbered(count))
    received = desk.drain(max=count)
    desk.sub.ack_many(received[: count - 10 : 2] if cursor is PAGES else received[1 : count - 10 : 2]).result()
    assert desk.sub.stats.paused
    desk.publish("new")
    desk.go_to(200)
    assert desk.read() == ["due"]
    desk.sub.ack_many(received).result()
    desk.sub.ack((received[0].position.ledger_id, 0)).result()
    assert not desk.sub.stats.paused
    assert desk.read() == ["new"]


# -- why, and for how long ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cursor", [PAGES, OLD], ids=["pages", "old form"])
def test_stats_say_why_dispatch_is_paused_and_how_many_messages_free_it(
    open_desk: OpenDesk, cursor: CursorConfig
) -> None:
    desk = open_desk(cursor=cursor)
    assert desk.sub.stats.pause_reasons == ()
    assert desk.sub.stats.entries_to_resume == 0
    held = with_holes(desk, COUNT if cursor is PAGES else 2_000)
    stats = desk.sub.stats
    assert stats.pause_reasons == ("state_size",)
    assert stats.entries_to_resume is not None
    assert 0 < stats.entries_to_resume <= len(held)
    desk.sub.ack_many(held[: stats.entries_to_resume]).result()
    assert not desk.sub.stats.paused
    assert desk.sub.stats.entries_to_resume == 0


def test_in_the_old_form_a_subscription_with_more_ranges_than_are_written_opens_again(open_desk: OpenDesk) -> None:
    """The record, into which a clean close writes a small state, has room for more."""
    cursor = replace(OLD, max_unacked_ranges_to_persist=1, max_unacked_ranges_in_metadata_store=2)
    desk = open_desk(cursor=cursor)
    desk.topic.publish_many(numbered(5))
    received = desk.drain()
    desk.sub.ack_many(received[1::2])
    desk.restart()
    left = drain_acknowledging(desk)
    assert {b"0", b"2", b"4"} <= {message.payload for message in left}
    assert b"1" not in {message.payload for message in left}
    assert desk.sub.backlog == 0
