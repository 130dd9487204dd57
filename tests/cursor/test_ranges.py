"""The set of ranges over bitmaps, against a plain set of positions."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from bookstand.cursor.state.ranges import AckRange, RangeSet
from bookstand.storage.format.position import Position
from tests.replay.rangesets import PlainRanges, apply, shown

UNHURRIED = settings(deadline=None)  # the machine may be busy

PLACE = st.builds("{}:{}".format, st.integers(0, 3), st.integers(-1, 40))
STEPS = st.one_of(
    st.fixed_dictionaries({"op": st.sampled_from(["add_open_closed", "cardinality"]), "lower": PLACE, "upper": PLACE}),
    st.fixed_dictionaries(
        {"op": st.sampled_from(["remove_at_most", "contains", "range_containing"]), "position": PLACE}
    ),
    st.just({"op": "to_ranges"}),
)


@UNHURRIED
@given(st.lists(STEPS, max_size=30))
def test_it_is_a_set_of_positions(steps: list[dict[str, Any]]) -> None:
    ranges, plain = RangeSet(), PlainRanges()
    for step in steps:
        assert apply(ranges, step) == plain.apply(step), step
        assert shown(ranges) == plain.shown(), step
        assert len(ranges) == len(plain.shown())
        assert all(ranges.bitmaps.values()), "an empty ledger was kept"
        everything = ranges.to_ranges()
        assert [ranges.first, ranges.last] == ([everything[0], everything[-1]] if everything else [None, None])
        assert ranges.to_ranges(2) == everything[:2]


def positions(*pairs: tuple[int, int]) -> list[Position]:
    return [Position(*pair) for pair in pairs]


def test_neighbours_join() -> None:
    """Case 20."""
    ranges = RangeSet()
    for lower, upper in ((97, 99), (98, 105), (5, 75)):
        ranges.add_open_closed(*positions((0, lower), (0, upper)))
    assert str(ranges) == "[(0:5..0:75], (0:97..0:105]]"


def test_emptied_ledgers_are_gone() -> None:
    """Case 21."""
    ranges = RangeSet({ledger: BitMap64(range(10)) for ledger in range(3)})
    ranges.remove_at_most(Position(2, -1))
    assert list(ranges.bitmaps) == [2]
    assert len(ranges.bitmaps[2]) == 10


def test_cardinality_counts_both_ends() -> None:
    """Case 22."""
    ranges = RangeSet({0: BitMap64(range(10)), 1: BitMap64(range(20)), 2: BitMap64(range(5))})
    found = [ranges.cardinality(*positions(*ends)) for ends in (((0, 0), (2, 4)), ((0, 3), (0, 7)), ((0, 5), (1, 5)))]
    assert found == [35, 5, 11]


def test_a_view_changes_the_bitmaps_it_was_given() -> None:
    mine = BitMap64([1, 2, 3])
    ranges = RangeSet({7: mine, 8: BitMap64()})
    ranges.add_open_closed(*positions((7, 3), (7, 5)))
    assert list(mine) == [1, 2, 3, 4, 5]
    assert list(ranges) == [AckRange(*positions((7, 0), (7, 5)))]
    assert 8 not in ranges.bitmaps


def test_runs_are_found_without_walking_through_them() -> None:
    wide = BitMap64()
    wide.add_range(10, 1 << 30)
    ranges = RangeSet({1: wide})
    assert ranges.range_containing(Position(1, 1 << 29)) == AckRange(*positions((1, 9), (1, (1 << 30) - 1)))
