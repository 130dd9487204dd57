"""Blocks: runs of numbers, encoded and decoded, and how small."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.delivery.time_index import block_codec

gaps = st.one_of(st.integers(2, 5), st.sampled_from([64, 65, 66, 67, 255, 256, 257, 1 << 16, 1 << 32, 1 << 50]))
lengths = st.one_of(st.integers(1, 3), st.sampled_from([100, 255, 256, 1 << 16, 1 << 33]))


@settings(deadline=None)
@given(st.lists(st.tuples(gaps, lengths), min_size=1, max_size=80))
def test_runs(runs: list[tuple[int, int]]) -> None:
    starts = np.array(list(accumulate([0, *(length + gap for (_, length), (gap, _) in pairwise(runs))])))
    ends = starts + np.array([length for _, length in runs])
    decoded = block_codec.decode(block_codec.encode(starts, ends))
    assert decoded[0].tolist() == starts.tolist()
    assert decoded[1].tolist() == ends.tolist()


@settings(deadline=None)
@given(st.lists(st.one_of(st.just(1), gaps), max_size=80))
def test_numbers(distances: list[int]) -> None:
    numbers = np.array(list(accumulate([0, *distances])))
    starts, ends = block_codec.decode(block_codec.encode(numbers, None))
    decoded = [
        number for start, end in zip(starts.tolist(), ends.tolist(), strict=True) for number in range(start, end)
    ]
    assert decoded == numbers.tolist()


@pytest.mark.parametrize(
    ("numbers", "most"),
    [
        (np.arange(0, 8192 * 3500, 3500), 2.01),
        (np.arange(0, 8192 * 200, 200), 1.01),
        (np.arange(0, 8192 * 2, 2), 0.26),
        (np.repeat(np.arange(8) << 40, 1024) + np.tile(np.arange(0, 2048, 2), 8), 0.28),
    ],
    ids=["u16 gaps", "u8 gaps", "bits", "bits with gaps cut out"],
)
def test_bytes_for_a_number(numbers: np.ndarray, most: float) -> None:
    data = block_codec.encode(numbers, None)
    assert len(data) <= most * len(numbers)
    assert np.array_equal(block_codec.decode(data)[0], numbers)


def test_a_long_run_is_small() -> None:
    assert len(block_codec.encode(np.array([0]), np.array([1 << 40]))) < 50
