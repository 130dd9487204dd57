"""Rows sorted through files, against sorting them at once."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.disk.bookies.external_sort import ExternalSorter, Rows, SpilledTable
from bookstand.errors import DiskFullError, IncorrectParameterError

UNHURRIED = settings(deadline=None, max_examples=60)

DTYPES = {"ledger": "i8", "entry": "i8", "value": "u1"}


def order(rows: Rows):
    return np.lexsort((rows["value"], rows["entry"], rows["ledger"]))


def some(random: np.random.Generator, count: int, ledgers: int, entries: int) -> Rows:
    return {
        "ledger": random.integers(-3, ledgers, count),
        "entry": random.integers(0, entries, count),
        "value": random.integers(0, 256, count).astype(np.uint8),
    }


@UNHURRIED
@given(
    st.integers(0, 1 << 32),
    st.lists(st.integers(0, 1500), max_size=6),
    st.sampled_from([1, 3, 1000]),
    st.sampled_from([1, 5, 100_000]),
    st.sampled_from([1, 500, 2000]),
    st.sampled_from([1, 300, 1000, 5000]),
)
def test_it_sorts(seed: int, counts: list[int], ledgers: int, entries: int, run: int, merged: int) -> None:
    random = np.random.default_rng(seed)
    added = [some(random, count, ledgers, entries) for count in counts]
    sorter = ExternalSorter(DTYPES, "ledger", "entry", order, run_rows=run, merged_rows=merged)
    for rows in added:
        sorter.add(rows)
    parts = list(sorter.merged())
    sorter.close()
    for name in DTYPES:
        if added:
            whole = {key: np.concatenate([rows[key] for rows in added]) for key in DTYPES}
            expected = whole[name][order(whole)]
        else:
            expected = np.empty(0)
        found = np.concatenate([part[name] for part in parts]) if parts else np.empty(0)
        assert np.array_equal(found, expected)
    for before, after in itertools.pairwise(parts):
        assert (before["ledger"][-1], before["entry"][-1]) < (after["ledger"][0], after["entry"][0])


def test_parts_are_small_also_where_runs_do_not_overlap() -> None:
    sorter = ExternalSorter(DTYPES, "ledger", "entry", order, run_rows=10_000, merged_rows=4096)
    for start in range(0, 200_000, 10_000):
        ids = np.arange(start, start + 10_000)
        sorter.add({"ledger": ids // 50_000, "entry": ids % 50_000, "value": np.zeros(10_000, np.uint8)})
    sizes = [len(part["entry"]) for part in sorter.merged()]
    sorter.close()
    assert sum(sizes) == 200_000
    assert max(sizes) <= 4096 + 20 * 256
    assert len(sizes) <= 200_000 // 4096 + 2


def test_files_have_no_name(tmp_path: Path) -> None:
    table = SpilledTable(DTYPES, tmp_path)
    table.append(some(np.random.default_rng(1), 100, 5, 5))
    columns = table.columns()
    assert not os.listdir(tmp_path)
    table.close()
    assert len(columns["entry"]) == 100


def test_a_full_disk_is_named(small_disk: Path) -> None:
    sorter = ExternalSorter(DTYPES, "ledger", "entry", order, small_disk, run_rows=1000)
    rows = some(np.random.default_rng(1), 1000, 5, 5)

    def fill() -> None:
        for _ in range(400):
            sorter.add(rows)

    with pytest.raises(DiskFullError, match=r"small: no space left .*name another folder"):
        fill()
    sorter.close()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(IncorrectParameterError, match="gone"):
        SpilledTable(DTYPES, tmp_path / "gone")
