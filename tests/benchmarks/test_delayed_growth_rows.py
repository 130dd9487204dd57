"""What the rows about many delayed messages are measured with, on few of them; no test here judges a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import delayed_adding, delayed_growth, delayed_growth_worker, delayed_sharing, rows
from benchmarks.delayed_buckets import original
from benchmarks.delayed_growth_worker import AT_A_TIME, POLLS, run
from benchmarks.delayed_sharing_worker import fill
from benchmarks.measure import Sample, Series


def test_messages_are_added_and_drained_both_ways(tmp_path: Path) -> None:
    measured = delayed_adding.costs(tmp_path, 5_000, 1_000, rounds=1)
    assert set(measured) == {"adding", "columns", "positions"}
    for series in measured.values():
        assert all(sample.cpu > 0 for sample in series.samples)
    # Each drain had its own.
    assert len(measured["adding"].samples) == 2


def test_the_lowest_recorded_is_held_against_the_best_round() -> None:
    ours = Series([Sample(500e-9, 1e-6), Sample(250e-9, 1e-6)])
    recorded = original("bucket_tracker_1m_random_1h", "add_ns_all")
    figure = delayed_adding._against(rows.BY_NAME["P20"], ours, recorded, "")
    assert recorded == 996.764
    assert figure.value == pytest.approx(recorded / 250)


def test_what_does_not_come_back_is_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(delayed_adding.DRAINS, "columns", lambda tracker, limit: tracker.pop_due(limit)[:-1])
    with pytest.raises(RuntimeError, match="came back"):
        delayed_adding.costs(tmp_path, 2_000, 1_000, rounds=1)


def test_a_backlog_is_added_begun_again_and_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_growth_worker, "_DUE_AFTER", 3_700)
    messages = (2 * POLLS + 50) * AT_A_TIME
    told = run(tmp_path, messages, per_seal=50_000)
    assert told["buckets"] == messages // 50_000 - 1
    assert all(told[what] > 0 for what in delayed_growth.COSTS)
    assert told["reported"] > 0


def test_growth_is_the_worst_of_all_costs() -> None:
    def told(**costs: int) -> dict[str, int]:
        return {"add": 100, "poll": 100, "idle": 100, "restart": 100, "bytes": 300, "bytes_again": 50, **costs} | {
            "buckets": 7
        }

    measured: dict[int, list[Any]] = {
        100: [told(), told(idle=90)],
        1_000: [told(poll=140, idle=400), told(poll=500, idle=99, bytes=200)],
    }
    growth = delayed_growth._growth(rows.BY_NAME["P15g"], measured, "")
    assert growth.value == pytest.approx(1.4)
    assert growth.ok
    memory = delayed_growth._memory(rows.BY_NAME["P15"], measured, "")
    assert memory.value == pytest.approx(0.2)


def test_an_index_is_shared_by_any_number(tmp_path: Path) -> None:
    fill(tmp_path / "store", 6_000, 1_000)
    measured = delayed_sharing.memory(tmp_path / "store", (1, 3), rounds=1)
    figure = delayed_sharing._figure(rows.BY_NAME["P21"], measured)
    assert figure.value is not None
    assert figure.value >= 1
    # The index says as much of itself, whoever shares it.
    (_, one), (_, three) = measured[1][0], measured[3][0]
    assert one > 0
    assert three <= one + 2 * 2_000
