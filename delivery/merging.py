"""Which buckets are merged when there would be too many: plain functions over what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from bookstand.delivery.config import LEAST_WRITES, TWO_SMALLEST


class Run(NamedTuple):
    """One of the buckets, in their order; the last may be one that is only about to be sealed.

    ``next_time`` is when its next segment begins that is not loaded. One that has none is about to go: merging it would
    be writing for nothing, and it lies between those beside it.
    """

    messages: int
    next_time: int | None
    generation: int


def two_smallest(runs: Sequence[Run]) -> tuple[int, int] | None:
    """The two adjacent ones that have the fewest messages, as (place of the first, place behind the last). Of equal
    ones those that have the next segment to load first."""
    best: tuple[tuple[int, int], int] | None = None
    for place, (one, other) in enumerate(pairwise(runs)):
        if one.next_time is None or other.next_time is None:
            continue
        weight = one.messages + other.messages, min(one.next_time, other.next_time)
        if best is None or weight < best[0]:
            best = weight, place
    return None if best is None else (best[1], best[1] + 2)


def least_writes(runs: Sequence[Run]) -> tuple[int, int] | None:
    """All adjacent ones of the lowest generation there are several of side by side, the newest if there is a choice.

    So that ten buckets take the place of 10 seals that were never merged, of 55 that were merged once, of 220 merged
    twice: a message is written 1 + g times where C(buckets + g, g) seals are kept, which no choice of adjacent buckets
    betters by much.
    """
    best: tuple[int, int, int] | None = None
    for start, end in _mergeable(runs):
        at = end
        while at > start:
            generation = runs[at - 1].generation
            first = at - 1
            # What is newer and was merged less often goes with it.
            while first > start and runs[first - 1].generation <= generation:
                first -= 1
            behind = at
            while behind < end and runs[behind].generation <= generation:
                behind += 1
            if behind - first >= 2 and (best is None or generation < best[0]):
                best = generation, first, behind
            at = first
    return None if best is None else (best[1], best[2])


def _mergeable(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """Stretches of those that have something to load."""
    stretches = []
    start = 0
    for place in range(len(runs) + 1):
        if place == len(runs) or runs[place].next_time is None:
            if place - start >= 2:
                stretches.append((start, place))
            start = place + 1
    return stretches


CHOICES: dict[str, Callable[[Sequence[Run]], tuple[int, int] | None]] = {
    LEAST_WRITES: least_writes,
    TWO_SMALLEST: two_smallest,
}
"""By policy: which runs to merge, or None where none can be."""
