"""Reference cases 17-23: sets of ranges."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from bookstand.cursor.format import position_info
from bookstand.cursor.state.ranges import RangeSet
from bookstand.managed_ledger.records import CursorInfo
from bookstand.storage.format.position import Position

LEDGERS = {1: 100, 3: 50, 5: 200, 10: 2, 20: 10}


def place(text):
    return Position(*map(int, text.split(":")))


def shown(ranges):
    return [f"({one.lower}..{one.upper}]" for one in ranges]


def recovered(*ranges, mark_delete="1:0"):
    parts = [(*place(lower), *place(upper)) for lower, upper in ranges]
    snapshot = position_info.from_parts(place(mark_delete), parts, [], {}, LEDGERS)
    assert snapshot.unsplit == frozenset()
    return shown(RangeSet(snapshot.state.acked).to_ranges())


def acked(ledgers):
    return RangeSet({ledger: BitMap64(entries) for ledger, entries in ledgers.items()})


def test_case_17_a_range_within_a_ledger():
    assert recovered(("1:5", "1:10")) == ["(1:5..1:10]"]


def test_case_18_a_range_into_the_next_ledger():
    assert recovered(("1:10", "3:0")) == ["(1:10..1:99]", "(3:-1..3:0]"]


def test_case_19_a_range_over_ledgers():
    assert recovered(("1:20", "10:1"), ("20:2", "20:9")) == [
        "(1:20..1:99]",
        "(3:-1..3:49]",
        "(5:-1..5:199]",
        "(10:-1..10:1]",
        "(20:2..20:9]",
    ]


@pytest.mark.parametrize("where", ["record", "ledger"])
def test_case_18_in_a_cursor(desk, where):
    """The ledger in between has no entries, and those that were there first are gone."""
    at = desk(per_ledger=4, entries=8, begin=False)
    first, second = (ledger.ledger_id for ledger in at.topic.ledgers[:2])
    lower, upper = Position(first, 1), Position(second, 0)
    info = CursorInfo(-1, Position(first, 0), ranges=((*lower, *upper),))
    if where == "ledger":
        data = b"\x08%c\x10\x00" % first + b"\x1a\x0c\x0a\x04\x08%c\x10\x01\x12\x04\x08%c\x10\x00" % (first, second)
        info = CursorInfo(at.plant_ledger([data]), Position(first, -1))
    at.plant(info)
    at.open()
    assert at.cursor.mark_delete_position == Position(first, 0)
    assert at.acked() == [0, 2, 3, 4]
    assert shown(at.cursor.acked_ranges()) == [f"({first}:1..{first}:3]", f"({second}:-1..{second}:0]"]


def test_case_20_ranges_that_overlap():
    ranges = RangeSet()
    for lower, upper in (("0:97", "0:99"), ("0:98", "0:105"), ("0:5", "0:75")):
        ranges.add_open_closed(place(lower), place(upper))
    assert shown(ranges.to_ranges()) == ["(0:5..0:75]", "(0:97..0:105]"]
    assert len(ranges) == 2


def test_case_21_remove_at_most():
    bitmaps = {ledger: BitMap64(range(10)) for ledger in range(3)}
    ranges = RangeSet(bitmaps)
    ranges.remove_at_most(place("2:-1"))
    assert shown(ranges.to_ranges()) == ["(2:-1..2:9]"]
    assert len(ranges) == 1
    assert not any(ranges.contains(Position(ledger, entry)) for ledger in (0, 1) for entry in range(10))


def test_case_21_in_a_cursor(desk, form):
    """Ledgers that are passed leave nothing behind."""
    at = desk(form, per_ledger=10, entries=30)
    ids = [ledger.ledger_id for ledger in at.topic.ledgers]
    for ledger in ids[:3]:
        at.cursor.ack_many(ledger, range(1, 10))
    at.cursor.mark_delete(Position(ids[1], 9))
    assert shown(at.cursor.acked_ranges()) == [f"({ids[2]}:0..{ids[2]}:9]"]
    assert [one[0].lower.ledger_id for one in at.cursor.build_individual_deleted_message_ranges()] == [ids[2]]
    at.cursor.flush()
    if form == "pages":
        assert list(at.refs()) == [ids[2]]


def test_case_22_cardinality():
    ranges = acked({0: range(10), 1: range(20), 2: range(5)})
    spans = [("0:0", "2:4"), ("0:3", "0:7"), ("0:5", "1:5")]
    assert [ranges.cardinality(place(first), place(last)) for first, last in spans] == [35, 5, 11]


def test_case_23_remove_a_closed_range():
    ranges = acked({2: range(25, 29), 3: range(12, 21), 4: range(12, 21)})
    ranges.remove_closed(place("2:27"), place("4:15"))
    assert shown(ranges.to_ranges()) == ["(2:24..2:26]", "(4:15..4:20]"]
