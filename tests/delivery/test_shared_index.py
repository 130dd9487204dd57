"""One index for several subscriptions: each gets every message, whatever the others do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import permutations
from threading import Thread
from typing import Any

import numpy as np
import pytest

from bookstand.delivery.tracker.bucket.rebuild import topic_rebuilder
from bookstand.delivery.tracker.protocol import TrackerClosedError
from bookstand.delivery.tracker.shared_index import BUILDER
from bookstand.errors import IncorrectParameterError
from bookstand.storage.format.position import Position
from tests.delivery.bucket_kit import config_of
from tests.delivery.shared_kit import Desk

# Thirty messages, six ledgers: some not delayed, most for times that are not in their order.
TIMES = [None if number % 6 == 0 else 100 + 10 * (7 * number % 31) for number in range(30)]
END = 410

MakeDesk = Callable[..., Desk]


@pytest.fixture
def make() -> Iterator[MakeDesk]:
    made: list[Desk] = []

    def open_desk(*arguments: Any, **options: Any) -> Desk:
        made.append(Desk(*arguments, **options))
        return made[-1]

    yield open_desk
    for desk in made:
        desk.end()


# -- everybody gets everything ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(map("".join, permutations("abc"))))
def test_each_gets_every_message_once_and_in_time_whoever_asks_first(make: MakeDesk, order: str) -> None:
    desk = make("abc")
    positions = desk.publish(*TIMES)
    for now in range(0, END, 20):
        desk.run(now, order=order)
        for sub in desk.subs.values():
            assert sub.once == {p for p, time in zip(positions, TIMES, strict=True) if time is None or time <= now}
    assert desk["a"].once == desk["b"].once == desk["c"].once == desk.published
    assert desk.index.tracker.count == 0
    desk.check_stored()
    assert not desk.snapshots


def test_what_one_has_read_and_another_not_is_delivered_to_both_once(make: MakeDesk) -> None:
    desk = make("ab")
    desk.publish(*TIMES)
    ahead, behind = desk["a"], desk["b"]
    ahead.run()
    behind.read(7)
    desk.run_to(250)
    ahead.run()
    # It meets what is due in the topic while the log has it as well.
    behind.read(10)
    behind.take(2)
    behind.read(3)
    desk.run_to(END)
    behind.read(4)
    ahead.run()
    behind.run()
    assert ahead.once == behind.once == desk.published


def test_what_was_met_while_the_log_had_it_is_not_delivered_again_unacknowledged(make: MakeDesk) -> None:
    desk = make("ab")
    (first,) = desk.publish(100)
    desk["a"].read()
    desk.go_to(100)
    desk["a"].take()
    desk["b"].read()
    assert desk["b"].once == {first}
    desk["b"].take()
    assert desk["b"].once == {first}
    assert not desk["b"].view.memory_bytes > desk["a"].view.memory_bytes + 1000


def test_what_is_due_and_not_read_yet_comes_when_it_is_read(make: MakeDesk) -> None:
    desk = make("ab")
    (first,) = desk.publish(100)
    desk["a"].read()
    desk.go_to(100)
    desk["b"].take()
    assert not desk["b"].given
    desk["b"].read()
    desk["a"].take()
    assert desk["a"].once == desk["b"].once == {first}


def test_what_becomes_due_between_reading_and_adding_is_taken_from_nobody(make: MakeDesk) -> None:
    desk = make("ab")
    (position,) = desk.publish(100)
    desk["a"].read()
    entry = desk["b"].cursor.read(1)
    desk.go_to(100)
    # It is in the index and due: to a tracker that says that it is delivered, and here only to who says it.
    assert not desk["b"].view.add(entry[0].position, 100)
    desk["b"].deliver([position])
    desk["a"].take()
    desk["b"].take()
    assert desk["a"].once == desk["b"].once == {position}


def test_messages_that_come_later_are_found_by_whoever_reads_them(make: MakeDesk) -> None:
    desk = make("ab")
    desk.publish(100, None, 120)
    desk.run(0)
    desk.publish(60, None, 200)
    desk["b"].run()
    desk.publish(150)
    assert desk.index.tracker.count == 4
    desk.index.catch_up()
    assert desk.index.tracker.count == 5
    desk.run(*range(10, 201, 10))
    assert desk["a"].once == desk["b"].once == desk.published


def test_the_builder_reads_no_further_than_it_must(make: MakeDesk) -> None:
    desk = make("a", per_ledger=400)
    desk.publish(*[10_000] * 2500)
    desk["a"].read(5)
    assert desk.index.tracker.count == 1000
    # What it has, nobody reads again.
    desk["a"].read(1)
    assert desk.index.tracker.count == 2000


def test_a_limit_holds_for_each(make: MakeDesk) -> None:
    desk = make("ab")
    desk.publish(*range(100, 112))
    desk.run(0)
    desk.go_to(200)
    for _ in range(6):
        desk["a"].take(2)
    desk["b"].take(0)
    desk["b"].take(5)
    assert (len(desk["a"].once), len(desk["b"].once)) == (12, 5)
    assert desk["b"].view.has_message_available()
    assert not desk["a"].view.has_message_available()
    desk["b"].take(7)
    assert not desk["b"].view.has_message_available()
    assert desk["b"].once == desk.published
    with pytest.raises(IncorrectParameterError):
        desk["b"].view.pop_due(-1)


def test_what_is_acknowledged_is_not_given(make: MakeDesk) -> None:
    desk = make("ab")
    positions = desk.publish(100, 100, 100, 100, 100, 100)
    desk.run(0)
    desk["a"].cursor.mark_delete(positions[1])
    desk["a"].cursor.ack(positions[3])
    desk.run(100)
    assert desk["a"].once == {positions[2], positions[4], positions[5]}
    assert desk["b"].once == set(positions)


def test_cancelling_is_for_one(make: MakeDesk) -> None:
    desk = make("ab")
    one, other, third = desk.publish(100, 100, 200)
    desk.run(0)
    view = desk["a"].view
    assert view.cancel(one)
    assert not view.cancel(one)
    assert not view.contains_message(one)
    assert desk["b"].view.contains_message(one)
    assert not view.cancel((one.ledger_id, 99))
    desk.go_to(100)
    desk["b"].take()
    # It has left the index by now, for one that has not taken it.
    assert view.cancel(other)
    assert not view.cancel(other)
    # Added again, it waits again.
    assert view.cancel(third)
    assert view.add(third, 200)
    assert view.contains_message(third)
    desk.run(200)
    assert desk["a"].once == {third}
    assert desk["b"].once == desk.published
    assert not view._skipped_in_index
    assert not view._skipped_in_log


def test_contains_many_and_add_many_say_the_same_as_one_by_one(make: MakeDesk) -> None:
    desk = make("ab")
    positions = desk.publish(100, 300, None, 200, 100)
    view = desk["a"].view
    desk.go_to(150)
    delayed = [positions[i] for i in (0, 1, 3, 4)]
    assert view.add_many(delayed, [100, 300, 200, 100]).tolist() == [False, True, True, False]
    assert view.add_many([], []).tolist() == []
    view.cancel(positions[3])
    both = columns(positions)
    assert view.contains_many(*both).tolist() == [view.contains_message(one) for one in positions]
    assert desk["b"].view.contains_many(*both).tolist() == [False, True, False, True, False]
    assert view.next_delivery() == 200


def columns(positions: list[Position]) -> tuple[Any, Any]:
    ids = np.array(positions, dtype=np.int64)
    return ids[:, 0], ids[:, 1]


# -- waking ----------------------------------------------------------------------------------------------------------


def test_all_are_woken_for_what_becomes_due(make: MakeDesk) -> None:
    desk = make("ab")
    desk.publish(100)
    desk.run(0)
    desk.run_to(99)
    assert (desk["a"].woken, desk["b"].woken) == (0, 0)
    desk.run_to(100)
    assert (desk["a"].woken, desk["b"].woken) == (1, 1)


def test_who_did_not_ask_is_woken_for_what_another_found_before_the_alarm(make: MakeDesk) -> None:
    desk = make("ab")
    desk.publish(100)
    desk.run(0)
    desk.go_to(100)
    desk["a"].take()
    desk.timer.fire()
    assert desk["b"].woken == 1
    assert desk["a"].woken == 0
    assert desk["b"].view.has_message_available()
    # Nobody is woken for what is taken.
    desk["b"].take()
    assert not desk.timer.armed


# -- coming and going ------------------------------------------------------------------------------------------------


def test_one_that_joins_later_gets_everything(make: MakeDesk) -> None:
    desk = make("a")
    desk.publish(*TIMES)
    desk.run(0, 150, 200)
    late = desk.join("b")
    desk.run(*range(210, END, 10))
    assert desk["a"].once == late.once == desk.published


def test_one_that_joins_when_others_have_passed_its_messages_tracks_them_again(make: MakeDesk) -> None:
    """What all had passed was trimmed from the index, and is in the topic still."""
    desk = make("a")
    positions = desk.publish(*[500 + number for number in range(30)])
    desk.run(0)
    desk["a"].cursor.mark_delete(positions[-1])
    desk.index.trim()
    desk.restart()
    late = desk.join("b")
    desk["a"].run()
    desk.run(100)
    assert not late.given
    desk.run(*range(500, 540, 7))
    assert late.once == desk.published
    assert not desk["a"].given


def test_one_that_leaves_holds_nothing_and_hinders_nobody(make: MakeDesk) -> None:
    desk = make("abc")
    desk.publish(*TIMES)
    desk.run(0)
    desk.run_to(250)
    desk["a"].run()
    desk["b"].run()
    gone = desk.subs.pop("c")
    assert desk.index._due_log.begin < desk.index._due_log.end
    gone.view.close()
    assert desk.index._due_log.begin == desk.index._due_log.end
    with pytest.raises(TrackerClosedError):
        gone.view.pop_due()
    with pytest.raises(TrackerClosedError):
        gone.view.add((1, 1), 1)
    desk.run(*range(260, END, 10))
    assert desk["a"].once == desk["b"].once == desk.published
    # It comes back as it was.
    desk.subs["c"] = gone
    gone.cursor.rewind()
    gone.attach()
    gone.run()
    assert gone.once == desk.published


def test_closing_a_view_that_was_replaced_does_not_end_its_successor(make: MakeDesk) -> None:
    desk = make("ab")
    desk.publish(*TIMES)
    former = desk["a"].view
    desk["a"].attach()
    former.close()
    desk.run(*range(0, END, 10), order="ba")
    assert desk["a"].once == desk.published


def test_one_that_goes_back_gets_all_from_there_on_again(make: MakeDesk) -> None:
    desk = make("ab")
    positions = desk.publish(*TIMES)
    desk.run(0, 250)
    again = [p for p in desk["a"].once if p >= positions[10]]
    desk["a"].cursor.reset(positions[10])
    desk["a"].attach()
    desk.run(*range(250, END, 10))
    # Going back acknowledges all that is before.
    assert {p: desk["a"].given[p] for p in positions[10:]} == {p: 1 + (p in again) for p in positions[10:]}
    assert set(desk["a"].given.values()) <= {1, 2}
    assert desk["b"].once == desk.published


def test_clear_forgets_what_is_due_and_reading_again_brings_it(make: MakeDesk) -> None:
    desk = make("ab")
    desk.publish(*TIMES)
    desk.run(0)
    desk.run_to(250)
    desk["b"].run()
    desk["a"].view.clear()
    desk["a"].take()
    assert not desk["a"].view.has_message_available()
    desk["a"].cursor.rewind()
    desk.run(*range(250, END, 10))
    assert desk["a"].once == desk["b"].once == desk.published


# -- lagging ---------------------------------------------------------------------------------------------------------


def test_one_that_lags_too_far_begins_again_and_misses_nothing(make: MakeDesk) -> None:
    desk = make("ab", due_log_limit=5)
    desk.publish(*TIMES)
    desk.run(0)
    for now in range(10, END, 10):
        desk.run(now, order="a")
        assert desk.index._due_log.end - desk.index._due_log.begin <= 5
    lagging = desk["b"]
    assert lagging.view.must_rewind
    assert not desk["a"].view.must_rewind
    before = set(lagging.given)
    lagging.run()
    assert not lagging.view.must_rewind
    assert set(lagging.given) == desk.published
    # What it had acknowledged does not come again.
    assert all(lagging.given[position] == 1 for position in before)
    assert desk["a"].once == desk.published


def test_no_log_at_all_is_enough_for_a_subscription_alone(make: MakeDesk) -> None:
    desk = make("a", due_log_limit=0)
    desk.publish(*TIMES)
    desk.run(*range(0, END, 30), END)
    assert desk["a"].once == desk.published


# -- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("ending", ["restart", "crash"])
def test_nothing_is_lost_by_an_ending_whoever_comes_back_first(make: MakeDesk, ending: str, order: str) -> None:
    desk = make("ab")
    desk.publish(*TIMES)
    desk["a"].run()
    for now in range(10, END, 30):
        desk.run(now, order="a")
        if now > 200:
            desk["b"].read(3)
            desk["b"].take(1)
            desk["b"].ack(1)
        getattr(desk, ending)(order)
    desk.run(END)
    assert set(desk["a"].given) == set(desk["b"].given) == desk.published
    assert desk.index.tracker.count == 0
    if ending == "restart":
        assert desk["a"].once == desk.published


def test_what_was_found_due_and_not_taken_comes_after_a_restart(make: MakeDesk) -> None:
    desk = make("ab")
    desk.publish(*[100 + number for number in range(20)])
    desk.run(0)
    desk.run_to(110)
    desk["a"].run()
    desk.restart()
    desk.run()
    assert desk["b"].once == desk["a"].once == {p for p, time in desk.times.items() if time and time <= 110}


def test_sealed_buckets_that_the_builder_reads_again_keep_what_is_awaited(make: MakeDesk) -> None:
    """The power goes between a seal and the builder's mark-delete: what is due and sealed is not taken for delivered
    when the builder meets it again, for somebody has read past it."""
    desk = make("ab", config=config_of(8, 1000))
    desk.publish(*[100 + 10 * number for number in range(20)])
    desk["a"].read()
    assert desk.index.tracker.buckets
    desk.index._cursor.reset(Position(0, 0))
    desk.crash()
    assert desk.index.tracker.buckets
    desk.go_to(150)
    desk["a"].read(2)
    desk["b"].read(1)
    desk.index.catch_up()
    desk.run(*range(150, 301, 10))
    assert desk["a"].once == desk["b"].once == desk.published


def test_what_the_index_lost_and_the_builder_will_not_read_again_is_tracked_by_who_meets_it(make: MakeDesk) -> None:
    desk = make("ab")
    desk.publish(*[500 + number for number in range(30)])
    desk.run(0)
    buckets = desk.index.tracker.buckets
    assert len(buckets) >= 2
    desk.index.close()
    desk.topic.client.delete(buckets[0].bucket_id, False)
    desk.restart()
    # Its range is read from the topic again, and sealed.
    assert desk.index.tracker.problems
    for _ in range(2):
        assert desk.index.tracker.count == 20
        desk.check_stored()
        desk.restart()
        assert not desk.index.tracker.problems
    # One of which nothing tells any more, and the builder is past it.
    lost = desk.index.tracker.buckets[0]
    desk.index._cursor.change_properties(lambda _, properties: properties.pop(lost.name))
    desk.topic.client.delete(lost.bucket_id, False)
    desk.restart()
    assert desk.index.tracker.count == 10
    desk.index.catch_up()
    assert desk.index.tracker.count == 20
    desk.run(100)
    assert desk.index.tracker.count == 30
    assert not desk["a"].given
    assert not desk["b"].given
    desk.run(*range(500, 540, 8))
    assert desk["a"].once == desk["b"].once == desk.published


# -- what it holds ---------------------------------------------------------------------------------------------------


def test_the_builder_stands_behind_what_is_sealed(make: MakeDesk) -> None:
    desk = make("ab")
    positions = desk.publish(*[500] * 30)
    desk.run(0)
    last = desk.index.tracker.buckets[-1].key.last_ledger
    assert desk.index._cursor.mark_delete_position == max(p for p in positions if p.ledger_id <= last)
    desk.restart()
    in_buckets = sum(bucket.waiting for bucket in desk.index.tracker.buckets)
    assert desk.index.tracker.count == in_buckets < 30
    desk.index.catch_up()
    assert desk.index.tracker.count == 30


@pytest.mark.parametrize("times", [TIMES, [None] * 30, [500] * 4 + [None] * 26], ids=["most", "none", "few"])
def test_the_builder_holds_no_ledger_that_all_have_passed(make: MakeDesk, times: list[int | None]) -> None:
    desk = make("ab")
    positions = desk.publish(*times)
    desk.run(0, 250, order="a")
    desk["b"].read()
    desk["a"].cursor.mark_delete(positions[-1]).result()
    desk["b"].cursor.mark_delete(positions[12]).result()
    desk.index.trim()
    trimmed = desk.topic.trim_consumed()
    assert trimmed == sorted({p.ledger_id for p in positions[:10]})
    desk["b"].cursor.mark_delete(positions[-1]).result()
    desk.index.trim()
    desk.topic.trim_consumed()
    assert desk.topic.extent.first is None or desk.topic.extent.first > positions[24]
    # Taking moves the builder as well.
    desk.publish(*[600] * 12)
    desk.run(600)
    desk.restart()
    desk.run(700)
    assert desk["a"].once >= set(positions[30:])


def test_views_move_the_builder_ledger_by_ledger(make: MakeDesk) -> None:
    desk = make("ab")
    positions = desk.publish(*[100 + number for number in range(30)])
    desk.run(0)
    desk.run(*range(100, 131))
    desk.run(131)
    assert desk.index._cursor.mark_delete_position.ledger_id >= positions[-1].ledger_id


def test_memory_is_that_of_one_index_however_many_subscriptions(make: MakeDesk) -> None:
    def in_use(count: int) -> tuple[int, int]:
        desk = make("".join(map(chr, range(97, 97 + count))), config=config_of(100_000, 1000), per_ledger=1000)
        desk.publish(*[1000 + number for number in range(2000)])
        for sub in desk.subs.values():
            sub.read(3000)
        waiting = desk.index.memory_bytes
        desk.go_to(5000)
        next(iter(desk.subs.values())).take()
        return waiting, desk.index.memory_bytes

    alone, many = in_use(2), in_use(10)
    for one, other in zip(alone, many, strict=True):
        # Two empty bitmaps and an empty tracker each.
        assert other - one <= 8 * 600


def test_delete_leaves_nothing(make: MakeDesk) -> None:
    desk = make("ab")
    desk.publish(*[500 + number for number in range(30)])
    desk.run(0)
    assert desk.snapshots
    assert BUILDER in desk.topic.cursor_names()
    view = desk["a"].view
    desk.index.delete()
    assert not desk.snapshots
    assert desk.topic.cursor_names() == ["a", "b"]
    with pytest.raises(TrackerClosedError):
        view.pop_due()
    # And whoever begins again begins from the topic.
    desk.crash()
    desk.run(0)
    assert desk.index.tracker.count == 30
    desk.run(600)
    assert desk["a"].once == desk["b"].once == desk.published


def test_one_reads_while_another_takes(make: MakeDesk) -> None:
    """Each subscription has a thread. A cursor asks what to skip with its lock held; the index asks cursors without
    one."""
    desk = make("abc", per_ledger=50)
    desk.publish(*[100 + number % 400 for number in range(600)])
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for _ in range(200):
                desk[name].read(5)
                desk[name].take(5)
                desk[name].ack(3)
                if name == "a" and desk.now < 600:
                    desk.go_to(desk.now + 3)
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=work, args=(name,), daemon=True) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures
    desk.run(700)
    for sub in desk.subs.values():
        assert sub.once == desk.published


def test_the_topic_tells_the_same_as_the_index(make: MakeDesk) -> None:
    desk = make("a")
    desk.publish(*TIMES)
    desk.index.catch_up()
    told = sum(indexes.size for indexes in topic_rebuilder(desk.topic)(0, 1 << 40))
    assert told == desk.index.tracker.count == sum(time is not None for time in TIMES)


def test_a_subscription_that_stands_in_a_ledger_that_was_empty(make: MakeDesk) -> None:
    """Such a ledger goes when the topic is opened again, and there is no entry for the builder to stand by."""
    desk = make("")
    desk.crash([])
    desk.join("a")
    desk.crash(["a"])
    desk.index.trim()
    desk.publish(*TIMES)
    desk.run_to(END)
    desk["a"].run()
    assert desk["a"].once == desk.published
