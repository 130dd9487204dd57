"""Reference cases 1-16, 24-25 and 32-40: what acknowledgments do."""

from __future__ import annotations

import random

import pytest

from bookstand.cursor.state.ranges import AckRange
from bookstand.errors import BookstandError
from bookstand.managed_ledger.records import CursorInfo
from bookstand.storage.format.position import Position
from tests.kit import PATIENCE


def mark_delete(desk):
    """The number of the entry it is at, −1 at the start."""
    position = desk.cursor.mark_delete_position
    return -1 if position == desk.start else desk.p.index(position)


def acked_in(desk, position, size=10):
    """The messages of a batch that are acknowledged, one by one."""
    left = desk.cursor.unacked_in_batch(position)
    return None if left is None else sorted(set(range(size)) - set(left))


# -- entries ---------------------------------------------------------------------------------------------------------


def test_case_1_holes_close_across_ledgers(desk, form):
    at = desk(form, per_ledger=3, entries=6)
    seen = []
    for number in (3, 0, 2, 2, 1, 4):
        at.cursor.ack(at.p[number])
        seen.append(mark_delete(at))
    assert seen == [-1, 0, 0, 0, 3, 4]
    assert at.cursor.acked_ranges() == []


def test_case_2_lists(desk, form):
    at = desk(form, per_ledger=2, entries=7)
    seen = []
    for numbers in ((1, 2, 4, 6), (0,), (3, 5, 6)):
        at.ack(numbers)
        seen.append((at.cursor.backlog, mark_delete(at)))
    assert seen == [(3, -1), (2, 2), (0, 6)]


def test_case_3_mark_delete_up_to_what_is_acked(desk, form):
    at = desk(form, entries=4)
    at.ack((1, 2))
    at.cursor.mark_delete(at.p[0])
    assert mark_delete(at) == 2
    assert at.cursor.acked_ranges() == []


def test_case_4_mark_delete_beyond_what_is_acked(desk, form):
    at = desk(form, entries=5)
    at.ack((1, 2))
    at.cursor.mark_delete(at.p[3])
    assert mark_delete(at) == 3
    assert at.cursor.acked_ranges() == []
    assert at.cursor.backlog == 1


def test_case_5_the_last_hole(desk, form):
    at = desk(form, entries=4)
    for number in (1, 2, 0):
        at.cursor.ack(at.p[number])
    assert mark_delete(at) == 2
    assert at.cursor.acked_ranges() == []


@pytest.mark.parametrize("per_ledger", [2, 3, 50])
def test_case_6_any_order(desk, form, per_ledger):
    at = desk(form, per_ledger=per_ledger, entries=10)
    numbers = list(range(10))
    random.Random(per_ledger).shuffle(numbers)
    for count, number in enumerate(numbers, 1):
        at.cursor.ack(at.p[number])
        assert at.cursor.backlog == 10 - count
    assert at.cursor.mark_delete_position == at.p[-1]


def test_case_7_twice(desk, form):
    at = desk(form, entries=6)
    for number in (4, 1, 0, 2):
        at.cursor.ack(at.p[number])
        once = at.seen()
        at.cursor.ack(at.p[number]).result(PATIENCE)
        assert at.seen() == once
    assert at.cursor.backlog == 2


def test_case_8_many(desk, form):
    at = desk(form, entries=1000)
    for number in range(0, 1000, 3):
        at.cursor.ack(at.p[number])
    assert mark_delete(at) == 0
    for number in range(500):
        if number % 3:
            at.cursor.ack(at.p[number])
    assert mark_delete(at) == 499
    assert at.acked() == sorted({*range(500), *range(0, 1000, 3)})


@pytest.mark.parametrize("call", ["ack", "mark_delete", "ack_batch", "ack_many", "mark_delete_batch"])
def test_case_9_behind_the_end(desk, form, call):
    at = desk(form, entries=4)
    at.ack((0, 2))
    at.cursor.read(1)
    before = at.seen(), at.cursor.read_position
    where = Position(100, 100)
    calls = {
        "ack": lambda: at.cursor.ack(where),
        "mark_delete": lambda: at.cursor.mark_delete(where),
        "ack_batch": lambda: at.cursor.ack_batch(where, [0], 2),
        "ack_many": lambda: at.cursor.ack_many(100, [100]),
        "mark_delete_batch": lambda: at.cursor.mark_delete_batch(where, [0], 2),
    }
    with pytest.raises(BookstandError):
        calls[call]().result(PATIENCE)
    assert (at.seen(), at.cursor.read_position) == before


def test_case_9_the_entry_behind_the_last(desk, form):
    at = desk(form, entries=4)
    with pytest.raises(BookstandError):
        at.cursor.ack(at.p[-1].next).result(PATIENCE)
    with pytest.raises(BookstandError):
        at.cursor.mark_delete(at.p[-1].next).result(PATIENCE)
    assert at.cursor.backlog == 4


def test_case_9_a_list_with_a_bad_one(desk, form):
    """What stands before it is acknowledged."""
    at = desk(form, entries=4)
    with pytest.raises(BookstandError):
        at.cursor.ack([at.p[0], at.p[2], Position(100, 100), at.p[3]]).result(PATIENCE)
    assert at.acked() == [0, 2]


def test_case_10_mark_delete_backwards(desk, form):
    at = desk(form, entries=4)
    at.cursor.mark_delete(at.p[1])
    with pytest.raises(BookstandError):
        at.cursor.mark_delete(at.p[0]).result(PATIENCE)
    assert mark_delete(at) == 1


def test_case_11_mark_delete_twice(desk, form):
    at = desk(form, entries=4)
    at.cursor.mark_delete(at.p[0]).result(PATIENCE)
    at.cursor.mark_delete(at.p[0]).result(PATIENCE)
    assert mark_delete(at) == 0


def test_case_12_mark_delete_of_what_was_not_read(desk, form):
    at = desk(form, entries=4)
    at.cursor.mark_delete(at.p[0])
    assert at.cursor.read_position == at.p[1]
    assert [entry.position for entry in at.cursor.read(1)] == [at.p[1]]
    at.cursor.mark_delete(at.p[3])
    assert not at.cursor.has_more
    assert at.cursor.read(10) == []


def test_case_13_the_mark_delete_position_is_in_a_ledger_that_is_gone(desk, form):
    at = desk(form, ledgers_before=5, entries=2, begin=False)
    assert at.p[0] == Position(5, 0)
    at.plant(CursorInfo(-1, Position(3, -1)))
    at.open()
    at.cursor.ack(at.p[0])
    assert at.cursor.mark_delete_position == at.p[0]
    assert at.cursor.backlog == 1
    at.restart("flush")
    assert at.cursor.mark_delete_position == at.p[0]


def test_case_13_an_empty_ledger_before_the_first_entry(desk, form):
    at = desk(form)
    at.restart("close")
    first, second = at.fill(2)
    at.topic.trim(first)
    at.cursor.ack(first)
    assert at.cursor.mark_delete_position == first
    assert at.cursor.backlog == 1
    assert not at.cursor.is_acked(second)


def test_case_14_stale_ranges_below_the_mark_delete_position(desk, form):
    at = desk(form, entries=40, begin=False)
    ledger = at.p[0].ledger_id
    at.plant(CursorInfo(-1, at.p[9], ranges=((ledger, 2, ledger, 5), (ledger, 7, ledger, 8))))
    at.open()
    for number in range(10, 30):
        at.cursor.ack(at.p[number])
    assert mark_delete(at) == 29
    assert at.cursor.acked_ranges() == []
    assert at.cursor.backlog == 10


def test_case_15_the_last_range(desk, form):
    at = desk(form, entries=10)
    for number in (0, 1, 4, 5):
        at.cursor.ack(at.p[number])
    assert at.cursor.acked_ranges()[-1] == AckRange(at.p[3], at.p[5])
    at.cursor.ack(at.p[7])
    assert at.cursor.acked_ranges()[-1] == AckRange(at.p[6], at.p[7])
    assert len(at.cursor.acked_ranges()) == 2


def test_case_16_one_callback_for_a_list(desk, form):
    at = desk(form, entries=4)
    calls = []
    pending = at.ack((0, 1))
    pending.add_done_callback(calls.append)
    pending.result(PATIENCE)
    at.cursor.flush()
    at.cursor.close()
    assert len(calls) == 1


@pytest.mark.parametrize("how", ["close", "flush"], ids=["case_24_clean_close", "case_25_crash"])
def test_case_24_25_a_restart(desk, form, how):
    at = desk(form, entries=20)
    at.ack((2, 5, 7, 8, 9))
    at.restart(how)
    assert at.cursor.backlog == 15
    assert at.read_all() == [0, 1, 3, 4, 6, *range(10, 20)]


@pytest.mark.parametrize("how", ["close", "flush"], ids=["case_24_clean_close", "case_25_crash"])
def test_case_24_25_several_ledgers(desk, form, how):
    at = desk(form, per_ledger=4, entries=20)
    at.ack((2, 5, 7, 8, 9))
    before = at.seen()
    at.restart(how)
    assert at.seen() == before
    assert at.read_all() == [0, 1, 3, 4, 6, *range(10, 20)]


# -- batches ---------------------------------------------------------------------------------------------------------


def test_case_32_parts_of_a_batch(desk, form):
    at = desk(form, entries=2)
    seen = []
    for indexes in (range(2, 5), range(3, 9), [0], [1]):
        at.cursor.ack_batch(at.p[0], indexes, 10)
        seen.append(acked_in(at, at.p[0]))
    assert seen == [[2, 3, 4], [*range(2, 9)], [0, *range(2, 9)], [*range(9)]]
    assert not at.cursor.is_acked(at.p[0])
    assert at.cursor.backlog == 2
    at.cursor.ack_batch(at.p[0], [9], 10)
    assert at.cursor.is_acked(at.p[0])
    assert mark_delete(at) == 0
    assert at.cursor.partial_batches() == {}


def test_case_33_a_part_and_the_whole(desk, form):
    at = desk(form, entries=4)
    at.cursor.ack_batch(at.p[1], [1, 2], 10)
    at.cursor.ack(at.p[1])
    at.cursor.ack_batch(at.p[1], [3], 10).result(PATIENCE)
    assert at.cursor.partial_batches() == {}
    assert at.acked() == [1]


def test_case_34_mark_delete_over_a_part(desk, form):
    at = desk(form, entries=6)
    at.cursor.ack_batch(at.p[2], [1, 2], 10)
    at.cursor.ack_batch(at.p[4], [1], 10)
    at.cursor.mark_delete(at.p[3])
    assert list(at.cursor.partial_batches()) == [at.p[4]]
    at.restart("flush")
    assert list(at.cursor.partial_batches()) == [at.p[4]]


def test_case_35_reset_forgets_parts(desk, form):
    at = desk(form, entries=6)
    at.cursor.ack_batch(at.p[3], [1, 2], 10)
    at.cursor.reset(at.p[0])
    assert at.cursor.partial_batches() == {}
    at.restart("flush")
    assert at.cursor.partial_batches() == {}
    assert at.read_all() == [*range(6)]


def test_case_36_cumulative_within_a_batch(desk, form):
    at = desk(form, entries=4)
    seen = []
    for index in (3, 4, 2):
        at.cursor.mark_delete_batch(at.p[1], range(index + 1), 10)
        seen.append(acked_in(at, at.p[1]))
        assert mark_delete(at) == 0
    assert seen == [[*range(4)], [*range(5)], [*range(5)]]


@pytest.mark.parametrize("how", ["flush", "close"], ids=["case_37_crash", "case_38_close"])
def test_case_37_38_parts_survive(desk, form, how):
    at = desk(form, entries=10)
    at.cursor.ack_batch(at.p[6], [1, 2, 3], 10)
    at.cursor.ack_batch(at.p[5], [3, 4, 5, 6], 10)
    at.ack(range(5))
    at.restart(how)
    if how == "close" and form != "pages":
        assert at.cursor.recovered_from.how == "record"
    assert mark_delete(at) == 4
    assert acked_in(at, at.p[6]) == [1, 2, 3]
    assert acked_in(at, at.p[5]) == [3, 4, 5, 6]
    at.cursor.ack_batch(at.p[5], [0, 1, 2, 7, 8, 9], 10)
    assert mark_delete(at) == 5


def test_case_39_nothing_but_a_part(desk, form):
    at = desk(form, entries=4)
    at.cursor.mark_delete(at.p[0]).result(PATIENCE)
    at.cursor.ack_batch(at.p[1], [0, 2], 10)
    at.restart("flush")
    assert mark_delete(at) == 0
    assert acked_in(at, at.p[1]) == [0, 2]


def test_case_40_without_batch_indexes(desk, form):
    at = desk(form, entries=4, batch_index_acks=False)
    at.cursor.ack_batch(at.p[0], range(10), 10)
    assert at.cursor.is_acked(at.p[0])
    at.cursor.ack_batch(at.p[1], [1, 2], 10).result(PATIENCE)
    assert not at.cursor.is_acked(at.p[1])
    assert at.cursor.partial_batches() == {}
