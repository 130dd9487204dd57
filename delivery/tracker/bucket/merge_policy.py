"""Choice of the buckets to merge where a seal would exceed the limit: plain functions, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from bookstand.delivery.config import LEAST_WRITES, TWO_SMALLEST

_LATEST = (1 << 63) - 1


class MergeCandidate(NamedTuple):
    """One bucket, in the order of the buckets; one of them may be about to be sealed.

    ``next_time`` is the start of its next segment that is not loaded; None: all are loaded.
    """

    messages: int
    next_time: int | None
    generation: int


Choice = tuple[int, int]
"""A block of adjacent buckets: the place of the first, and the place behind the last."""


def two_smallest(runs: Sequence[MergeCandidate]) -> Choice:
    """PIP-195's rule: the two adjacent buckets with the fewest messages; of equal ones those with the earliest segment
    to load. There are at least two buckets."""

    def weight(place: int) -> tuple[int, int]:
        pair = runs[place : place + 2]
        times = [_LATEST if run.next_time is None else run.next_time for run in pair]
        return sum(run.messages for run in pair), min(times)

    place = min(range(len(runs) - 1), key=weight)
    return place, place + 2


def least_writes(runs: Sequence[MergeCandidate]) -> Choice:
    """All adjacent buckets of the lowest generation that has several side by side, the newest if there is a choice.
    There are at least two buckets.

    Ten buckets then hold 10 seals that were never merged, or 55 that were merged once, or 220 merged twice: a message
    is written 1 + g times for C(buckets + g, g) seals, which no choice of adjacent buckets improves by much.
    """
    generation = min(max(one.generation, other.generation) for one, other in pairwise(runs))
    end = next(
        place + 2
        for place in range(len(runs) - 2, -1, -1)
        if max(runs[place].generation, runs[place + 1].generation) == generation
    )
    start = end - 1
    # Neighbors that were merged less often join the block.
    while start > 0 and runs[start - 1].generation <= generation:
        start -= 1
    while end < len(runs) and runs[end].generation <= generation:
        end += 1
    return start, end


CHOICES: dict[str, Callable[[Sequence[MergeCandidate]], Choice]] = {
    LEAST_WRITES: least_writes,
    TWO_SMALLEST: two_smallest,
}
"""By policy: the block to merge, of at least two buckets."""


def blocks_to_merge(runs: Sequence[MergeCandidate], most: int, policy: str) -> list[Choice]:
    """Disjoint blocks to merge so that at most ``most`` buckets remain, in their order. One block is enough after each
    seal; several may be needed after the limit was lowered."""
    left = list(runs)
    spans = [(place, place + 1) for place in range(len(runs))]
    while len(left) > most:
        start, end = CHOICES[policy](left)
        block = left[start:end]
        times = [run.next_time for run in block if run.next_time is not None]
        left[start:end] = [
            MergeCandidate(
                sum(run.messages for run in block),
                min(times, default=None),
                max(run.generation for run in block) + 1,
            )
        ]
        spans[start:end] = [(spans[start][0], spans[end - 1][1])]
    return [(start, end) for start, end in spans if end - start > 1]
