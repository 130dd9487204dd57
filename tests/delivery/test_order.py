"""Runs of messages in order: what they are, and what is left to others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand.delivery.time_index import run_detection
from bookstand.delivery.time_index.precision import MAX_TIME, MIN_TIME, PowerOfTwoPrecision
from bookstand.delivery.time_index.run_detection import is_run, runs_in_order
from tests.delivery.time_model import Triple

MAX = (1 << 63) - 1


def runs(rows: list[Triple], bits: int = 0, round_up: bool = False) -> list[tuple[int, int, int, int]] | None:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return runs_in_order(PowerOfTwoPrecision(bits, round_up), *columns)


def message(*columns: np.ndarray) -> list[Triple]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("round_up", [False, True])
def test_buckets_and_ledgers_part_them(round_up: bool) -> None:
    number = np.arange(4000)
    rows = message(number // 2, 7 + (number >= 3000), number % 3000)
    up = 1023 if round_up else 0
    expected: dict[tuple[int, int], list[int]] = {}
    for time, ledger, entry in rows:
        expected.setdefault(((time + up) & -1024, ledger), []).append(entry)
    assert runs(rows, 10, round_up) == [(*group, ids[0], len(ids)) for group, ids in expected.items()]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(5, 1, 3)], [(4, 1, 3, 1)]),
        ([(4, 1, 3), (7, 1, 4)], [(4, 1, 3, 2)]),
        ([(7, 1, 3), (4, 1, 4), (7, 1, 5)], [(4, 1, 3, 1), (4, 1, 4, 2)]),
        ([(0, MAX, MAX - 1), (0, MAX, MAX)], [(0, MAX, MAX - 1, 2)]),
        ([(MIN_TIME, 1, 0), (MIN_TIME + 3, 1, 1)], [(MIN_TIME, 1, 0, 2)]),
        ([(MAX_TIME - 3, 1, 0), (MAX_TIME, 1, 1)], [(MAX_TIME - 3, 1, 0, 2)]),
    ],
)
def test_few(rows: list[Triple], expected: list[tuple[int, int, int, int]]) -> None:
    assert runs(rows, 2) == expected


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 1, entry) for entry in (*range(100), *range(101, 200))],
        [(0, 1, entry) for entry in range(0, 200, 2)],
        [(0, 1, MAX), (0, 1, -MAX - 1)],
        [(0, 1, -1), (0, 1, 0)],
        [(0, -1, 0), (0, -1, 1)],
        [(time, 1, time) for time in range(100)],
        [(MIN_TIME, 1, 0), (MAX_TIME, 1, 1)],
        [(5, 1, 0), (0, 1, 1)],
    ],
    ids=["a gap", "gaps", "beyond the highest", "below 0", "a ledger below 0", "short", "all of time", "backwards"],
)
def test_what_is_left_to_others(rows: list[Triple]) -> None:
    assert runs(rows) is None


@pytest.mark.parametrize(
    ("entries", "run"),
    [
        ([0], True),
        ([5, 6, 7], True),
        ([MAX - 1, MAX], True),
        ([5, 7], False),
        ([5, 5, 7], False),
        ([5, 7, 6, 8], False),
        ([-1, 0], False),
        ([-1], False),
        ([MAX, -MAX - 1], False),
    ],
)
def test_what_is_a_run(entries: list[int], run: bool) -> None:
    assert is_run(np.array(entries, dtype=np.int64)) is run


_near = st.tuples(st.integers(-9, 9), st.integers(-1, 1), st.integers(-1, 12))


@given(
    st.lists(_near, min_size=1, max_size=40),
    st.booleans(),
    st.lists(st.integers(0, 5), max_size=40),
    st.sampled_from([0, 2, 4]),
    st.booleans(),
)
def test_no_message_is_lost_and_none_invented(
    rows: list[Triple], in_order: bool, steps: list[int], bits: int, round_up: bool
) -> None:
    if in_order:
        # Each time an entry further, and now and then a ledger.
        time, ledger, entry = rows[0]
        rows = [rows[0]]
        for step in steps:
            time, ledger, entry = time + step // 3, ledger + (step == 5), 0 if step == 5 else entry + 1
            rows.append((time, ledger, entry))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_detection, "_MIN_MEAN_RUN", 2)
        found = runs(rows, bits, round_up)
    if found is None:
        return
    key = PowerOfTwoPrecision(bits, round_up).key
    assert sorted((at, ledger, first + number) for at, ledger, first, count in found for number in range(count)) == (
        sorted((key(time), ledger, entry) for time, ledger, entry in rows)
    )
    assert all(ledger >= 0 and first >= 0 for _, ledger, first, _ in found)
