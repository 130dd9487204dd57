"""Which buckets are merged, against what trying all choices says, and what that costs over many seals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.delivery.config import MERGE_POLICIES
from bookstand.delivery.merging import CHOICES, Run, least_writes, two_smallest

runs = st.lists(
    st.builds(Run, st.integers(0, 6), st.one_of(st.none(), st.integers(0, 5)), st.integers(0, 3)), max_size=9
)


def test_every_policy_has_a_choice() -> None:
    assert tuple(CHOICES) == MERGE_POLICIES


@pytest.mark.parametrize("choose", CHOICES.values())
@settings(deadline=None, derandomize=True)
@given(found=runs)
def test_several_side_by_side_that_have_something_to_load(
    choose: Callable[[list[Run]], tuple[int, int] | None], found: list[Run]
) -> None:
    chosen = choose(found)
    possible = any(None not in (one.next_time, other.next_time) for one, other in pairwise(found))
    assert (chosen is not None) == possible
    if chosen is not None:
        first, end = chosen
        assert 0 <= first < end - 1 < len(found)
        assert all(run.next_time is not None for run in found[first:end])


@settings(deadline=None, derandomize=True)
@given(found=runs)
def test_two_smallest_are_the_two_smallest(found: list[Run]) -> None:
    pairs = [
        (one.messages + other.messages, min(one.next_time, other.next_time), place)
        for place, (one, other) in enumerate(pairwise(found))
        if one.next_time is not None and other.next_time is not None
    ]
    best = min(pairs, default=None)
    assert two_smallest(found) == (None if best is None else (best[2], best[2] + 2))


@settings(deadline=None, derandomize=True)
@given(found=runs)
def test_least_writes_takes_those_that_were_merged_the_fewest_times(found: list[Run]) -> None:
    """No two side by side were both merged less often than the one of those chosen that was merged most."""
    chosen = least_writes(found)
    if chosen is not None:
        most = max(run.generation for run in found[slice(*chosen)])
        for one, other in pairwise(found):
            if None not in (one.next_time, other.next_time):
                assert max(one.generation, other.generation) >= most


def test_none_of_few() -> None:
    for choose in CHOICES.values():
        assert choose([]) is None
        assert choose([Run(5, 10, 0)]) is None
        assert choose([Run(5, 10, 0), Run(5, None, 0), Run(5, 10, 0)]) is None


def written_by(choose: Callable[[list[Run]], tuple[int, int] | None], seals: int, most: int) -> tuple[float, int]:
    """How often a message is written, in the mean and at most, when so many seals of equal size are made."""
    kept: list[tuple[int, int]] = []
    writes = 0
    for _ in range(seals):
        kept.append((1, 0))
        if len(kept) > most:
            chosen = choose([Run(size, 100, generation) for size, generation in kept])
            assert chosen is not None
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
