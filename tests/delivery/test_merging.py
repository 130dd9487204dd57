"""Which buckets are merged, against what trying all choices says, and what that costs over many seals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.delivery.config import MERGE_POLICIES, TWO_SMALLEST
from bookstand.delivery.tracker.bucket.merge_policy import (
    CHOICES,
    MergeCandidate,
    blocks_to_merge,
    least_writes,
    two_smallest,
)

runs = st.lists(
    st.builds(MergeCandidate, st.integers(0, 6), st.one_of(st.none(), st.integers(0, 5)), st.integers(0, 3)),
    min_size=2,
    max_size=9,
)


def test_every_policy_has_a_choice() -> None:
    assert tuple(CHOICES) == MERGE_POLICIES


@pytest.mark.parametrize("choose", CHOICES.values())
@settings(deadline=None, derandomize=True)
@given(found=runs)
def test_several_side_by_side(
    choose: Callable[[list[MergeCandidate]], tuple[int, int]], found: list[MergeCandidate]
) -> None:
    first, end = choose(found)
    assert 0 <= first < end - 1 < len(found)


@settings(deadline=None, derandomize=True)
@given(found=runs)
def test_two_smallest_are_the_two_smallest(found: list[MergeCandidate]) -> None:
    def time(run: MergeCandidate) -> int:
        return 1 << 63 if run.next_time is None else run.next_time

    pairs = [
        (one.messages + other.messages, min(time(one), time(other)), place)
        for place, (one, other) in enumerate(pairwise(found))
    ]
    place = min(pairs)[2]
    assert two_smallest(found) == (place, place + 2)


@settings(deadline=None, derandomize=True)
@given(found=runs)
def test_least_writes_takes_those_that_were_merged_the_fewest_times(found: list[MergeCandidate]) -> None:
    """No two side by side were both merged less often than the one of those chosen that was merged most."""
    chosen = least_writes(found)
    most = max(run.generation for run in found[slice(*chosen)])
    for one, other in pairwise(found):
        assert max(one.generation, other.generation) >= most


@settings(deadline=None, derandomize=True)
@given(found=st.lists(runs.flatmap(st.sampled_from), max_size=12), most=st.integers(1, 5))
@pytest.mark.parametrize("policy", MERGE_POLICIES)
def test_blocks_leave_no_more_buckets_than_the_limit(policy: str, found: list[MergeCandidate], most: int) -> None:
    blocks = blocks_to_merge(found, most, policy)
    left = len(found) - sum(end - start - 1 for start, end in blocks)
    assert left == len(found) if len(found) <= most else 1 <= left <= most
    assert all(end - start >= 2 for start, end in blocks)
    assert all(one[1] <= other[0] for one, other in pairwise(blocks))
    if policy == TWO_SMALLEST:
        assert left == min(len(found), most)


@pytest.mark.parametrize("loaded", [False, True])
def test_of_the_sizes_5_3_2_4_3_the_second_and_the_third_are_merged(loaded: bool) -> None:
    found = [MergeCandidate(size, None if loaded else 100 + size, 0) for size in (5, 3, 2, 4, 3)]
    assert two_smallest(found) == (1, 3)
    assert blocks_to_merge(found, 4, TWO_SMALLEST) == [(1, 3)]


def written_by(choose: Callable[[list[MergeCandidate]], tuple[int, int]], seals: int, most: int) -> tuple[float, int]:
    """How often a message is written, in the mean and at most, when so many seals of equal size are made."""
    kept: list[tuple[int, int]] = []
    writes = 0
    for _ in range(seals):
        kept.append((1, 0))
        if len(kept) > most:
            chosen = choose([MergeCandidate(size, 100, generation) for size, generation in kept])
            first, end = chosen
            size = sum(one for one, _ in kept[first:end])
            kept[first:end] = [(size, max(generation for _, generation in kept[first:end]) + 1)]
            # What is only about to be sealed is written once all the same.
            writes += size - (1 if end == len(kept) + end - first - 1 else 0)
        writes += 1
        assert len(kept) <= most
    return writes / seals, max(generation for _, generation in kept)


@pytest.mark.parametrize(("most", "seals"), [(10, 200), (10, 219), (3, 18), (50, 1000), (2, 40), (1, 20)])
def test_least_writes_are_few(most: int, seals: int) -> None:
    mean, generations = written_by(least_writes, seals, most)
    bound = 0
    while comb(most + bound, bound) <= seals:
        bound += 1
    # As many merges as it takes for so many seals, and no more than one beyond.
    assert generations <= bound + 1
    assert mean <= bound + 1.5


def test_what_the_policies_cost() -> None:
    """Always the oldest with the next, which is what the original comes to, writes a message 32 times on average."""
    ours, _ = written_by(least_writes, 200, 10)
    pairs, _ = written_by(two_smallest, 200, 10)
    assert ours < 4
    assert ours < pairs < 12
