"""Bitmaps written by the thousand, against Roaring's own of the same ids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from bookstand.delivery.tracker.bucket.snapshot.bitmap import read_bitmap, write_bitmaps

PAGE = 1 << 16


def roaring(ids: list[int]) -> bytes:
    bitmap = BitMap(ids)
    bitmap.run_optimize()
    return bitmap.serialize()


def written(stretches: list[list[int]]) -> list[bytes]:
    ids = np.array([one for stretch in stretches for one in stretch], dtype=np.int64)
    return write_bitmaps(ids, np.cumsum([len(stretch) for stretch in stretches]))


@st.composite
def stretches(draw: st.DrawFn) -> list[int]:
    """Runs with gaps between them; from a single id to more runs than are worth listing in any other form."""
    run, gap = draw(st.integers(1, 40)), draw(st.integers(1, 20))
    count = draw(st.one_of(st.integers(1, 60), st.integers(1_900, 2_200), st.integers(3_900, 9_000)))
    start = draw(st.one_of(st.integers(0, 10), st.integers(0, 3 * PAGE)))
    ids = start + np.arange(count) % run + np.arange(count) // run * (run + gap)
    return [int(one) for one in ids if one < 4 * PAGE]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(stretches().filter(bool), min_size=1, max_size=4))
def test_all_forms_are_those_that_roaring_chooses(some: list[list[int]]) -> None:
    found = written(some)
    assert found == [roaring(ids) for ids in some]
    assert [list(read_bitmap(data)) for data in found] == some


@pytest.mark.parametrize("left_out", [15, 31, 32, 33])
def test_a_full_page_with_holes_is_bits_unless_runs_take_less(left_out: int) -> None:
    """2 048 runs take more than 8 192 bytes, 2 047 take less."""
    ids = [one for one in range(PAGE) if one % left_out]
    (data,) = written([ids])
    assert data == roaring(ids)
    assert (len(data) == 16 + PAGE // 8) == (left_out < 33)


@pytest.mark.parametrize("count", [4_096, 4_097])
def test_ids_are_listed_up_to_4096(count: int) -> None:
    ids = list(range(5, 5 + 9 * count, 9))
    assert written([[1], ids, [2, 3]]) == [roaring([1]), roaring(ids), roaring([2, 3])]
