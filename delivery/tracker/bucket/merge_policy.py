"""Choice of the buckets to merge when a seal would exceed the limit. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from bookstand.delivery.config import LEAST_WRITES, TWO_SMALLEST

_LATEST = (1 << 63) - 1


class MergeCandidate(NamedTuple):
    """One bucket to choose from, possibly the one to be sealed.

    ``next_time`` is the start of its next segment to load; None if all are loaded.
    """

    messages: int
    next_time: int | None
    generation: int


Choice = tuple[int, int]
"""A block of adjacent buckets, at least two: the index of the first, and the index after the last."""


def two_smallest(buckets: Sequence[MergeCandidate]) -> Choice:
    """PIP-195's rule: the adjacent pair with the fewest messages, then with the earliest segment to load."""

    def weight(place: int) -> tuple[int, int]:
        pair = buckets[place : place + 2]
        times = [_LATEST if bucket.next_time is None else bucket.next_time for bucket in pair]
        return sum(bucket.messages for bucket in pair), min(times)

    place = min(range(len(buckets) - 1), key=weight)
    return place, place + 2


def least_writes(buckets: Sequence[MergeCandidate]) -> Choice:
    """All adjacent buckets of the lowest generation that has several side by side; of equal blocks the newest.

    Ten buckets then hold 10 unmerged seals, 55 merged once, or 220 merged twice: each message is written 1 + g times
    for C(buckets + g, g) seals, which no choice of adjacent buckets improves by much.
    """
    generation = min(max(one.generation, other.generation) for one, other in pairwise(buckets))
    end = next(
        place + 2
        for place in range(len(buckets) - 2, -1, -1)
        if max(buckets[place].generation, buckets[place + 1].generation) == generation
    )
    start = end - 1
    # Neighbors of lower generations join the block.
    while start > 0 and buckets[start - 1].generation <= generation:
        start -= 1
    while end < len(buckets) and buckets[end].generation <= generation:
        end += 1
    return start, end


CHOICES: dict[str, Callable[[Sequence[MergeCandidate]], Choice]] = {
    LEAST_WRITES: least_writes,
    TWO_SMALLEST: two_smallest,
}
"""Function that chooses a block to merge, by policy. It requires at least two buckets."""


def blocks_to_merge(buckets: Sequence[MergeCandidate], limit: int, policy: str) -> list[Choice]:
    """Choose disjoint, sorted blocks to merge so that at most ``limit`` buckets remain; one suffices after a seal."""
    remaining = list(buckets)
    spans = [(place, place + 1) for place in range(len(buckets))]
    while len(remaining) > limit:
        start, end = CHOICES[policy](remaining)
        block = remaining[start:end]
        times = [bucket.next_time for bucket in block if bucket.next_time is not None]
        remaining[start:end] = [
            MergeCandidate(
                sum(bucket.messages for bucket in block),
                min(times, default=None),
                max(bucket.generation for bucket in block) + 1,
            )
        ]
        spans[start:end] = [(spans[start][0], spans[end - 1][1])]
    return [(start, end) for start, end in spans if end - start > 1]
