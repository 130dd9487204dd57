"""Bins against a plain count of everything, one by one."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand.tools.report.histogram import CoverageBins, TimeHistogram, step_for, steps

TIMES = st.one_of(
    st.integers(0, 1 << 45),
    st.integers(1_800_000_000_000, 1_800_000_600_000),
    st.integers(0, (1 << 62) - 1),
)


def test_each_step_fits_into_the_next_one_and_none_is_far_from_it() -> None:
    for one, larger in pairwise(islice(steps(), 50)):
        assert larger % one == 0
        assert larger <= 5 * one


@given(st.lists(st.lists(TIMES, max_size=30), max_size=6), st.integers(1, 50))
def test_times(parts: list[list[int]], bins: int) -> None:
    histogram = TimeHistogram(bins)
    for part in parts:
        histogram.add(np.array(part, np.int64))
    found = histogram.result()
    times = [time for part in parts for time in part]
    if not times:
        assert found is None
        return
    assert found is not None
    assert found.step == step_for(min(times), max(times), bins)
    assert found.first % found.step == 0
    assert len(found.counts) <= bins
    assert found.counts[0] > 0
    assert found.counts[-1] > 0
    expected = Counter(time // found.step for time in times)
    first = found.first // found.step
    assert {number + first: count for number, count in enumerate(found.counts.tolist()) if count} == expected
    assert found.total == len(times)


@given(st.lists(TIMES, min_size=1, max_size=40), st.integers(1, 20), st.randoms(use_true_random=False))
def test_the_order_does_not_matter(times: list[int], bins: int, random: object) -> None:
    ours, theirs = TimeHistogram(bins), TimeHistogram(bins)
    ours.add(np.array(times, np.int64))
    random.shuffle(times)  # type: ignore[attr-defined]
    for time in times:
        theirs.add(np.array([time], np.int64))
    one, other = ours.result(), theirs.result()
    assert one is not None
    assert other is not None
    assert (one.first, one.step, one.counts.tolist()) == (other.first, other.step, other.counts.tolist())


@given(st.sets(st.integers(0, 400)), st.integers(0, 400), st.integers(1, 60), st.integers(1, 5))
def test_runs(places: set[int], more: int, bins: int, parts: int) -> None:
    """However many of them are given at a time."""
    total = max(places, default=-1) + 1 + more
    firsts = np.array(sorted(place for place in places if place - 1 not in places), np.int64)
    ends = np.array(sorted(place + 1 for place in places if place + 1 not in places), np.int64)
    line = CoverageBins(total, bins)
    for part in range(parts):
        line.add(firsts[part::parts], ends[part::parts])
    strip = line.result()
    assert len(strip.covered) == min(bins, total)
    assert strip.edges.tolist()[0] == 0
    assert strip.edges.tolist()[-1] == total
    for number, (low, high) in enumerate(pairwise(strip.edges.tolist())):
        assert high > low
        assert strip.covered[number] == sum(low <= place < high for place in places)
        assert strip.runs[number] == sum(low <= first < high for first in firsts.tolist())
    widths = np.diff(strip.edges)
    assert not len(widths) or widths.max() - widths.min() <= 1


def test_what_does_not_count_as_a_run_covers_all_the_same() -> None:
    line = CoverageBins(10, 5)
    line.add(np.array([0]), np.array([5]), count=False)
    line.add(np.array([7]), np.array([8]))
    strip = line.result()
    assert strip.covered.tolist() == [2, 2, 1, 1, 0]
    assert strip.runs.tolist() == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("total", [1 << 40, (1 << 62) + 3])
def test_a_line_as_long_as_ledgers_can_be(total: int) -> None:
    line = CoverageBins(total, 7)
    line.add(np.array([0]), np.array([total]))
    strip = line.result()
    assert int(strip.covered.sum()) == total
    assert strip.covered.tolist() == np.diff(strip.edges).tolist()
