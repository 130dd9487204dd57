"""The benchmarks' table of rows and what the command prints; no test here judges a time."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import recorded, rows
from benchmarks.__main__ import main
from benchmarks.figures import Figure, ratio, table
from benchmarks.measure import Missing, Sample, Series, interleave

ROOT = Path(__file__).resolve().parent.parent.parent

GOALS = {
    "P1": ">= 0.8",
    "P1s": ">= 3",
    "P1r": ">= 1",
    "P1h": ">= 0.4",
    "P1hs": ">= 1.5",
    "PRopen": "<= 2",
    "P2": "<= 1.2",
    "P3": ">= 6",
    "P3l": ">= 0.6",
    "P4": ">= 0.3",
    "P4o": ">= 0.2",
    "P5": ">= 10",
    "P5h": ">= 1",
    "P5a": ">= 0.25",
    "P6": ">= 10",
    "P6m": ">= 6",
    "P6d": ">= 0.4",
    "P7": "<= 0.2",
    "P8": ">= 2",
    "P8p": ">= 5",
    "P8j": ">= 5",
    "P9": "<= 2",
    "P9b": ">= 1000",
    "P10": ">= 100",
    "P10m": "<= 1.1",
    "P11": ">= 50",
    "P11m": "<= 2.5",
    "P13": ">= 0.4",
    "P13f": ">= 3",
    "P13m": ">= 0.5",
    "P15": "<= 4",
    "P15g": "<= 1.5",
    "P16": "<= 3.5",
    "P12": "<= 2.5",
    "P12s": "<= 0.5",
    "P14": ">= 1.4",
    "P14r": ">= 3",
    "P14q": ">= 15",
    "P17": "<= 0.1",
    "P18": ">= 0.6",
    "P18b": ">= 10",
    "P18m": "<= 0.1",
    "P19": "<= 1.5",
    "P20": ">= 3",
    "P20d": ">= 20",
    "P21": "<= 1.1",
    "P22": "<= 3",
    "P22m": "<= 20",
    "P23": "<= 2",
    "P24": ">= 0.4",
    "P25": ">= 1.5",
    "P25v3": ">= 0.8",
    "P25s": ">= 10",
    "P26": "<= 0.5",
    "P26r": "<= 6",
    "P29": "<= 150",
    "P29o": "<= 150",
    "P27": "<= 3",
    "P28": "<= 1.5",
    "PMimport": "<= 128",
    "PMscan": "<= 64",
    "PMscan-large": "<= 64",
    "PMrecover": "<= 64",
    "PMrecover-tail": "<= 64",
}
KEYS = {"row", "name", "value", "unit", "ours", "baseline", "against", "goal", "ok"}


def test_every_goal_has_its_row_and_no_other_row_has_a_goal() -> None:
    assert {row.row: str(row.goal) for row in rows.ROWS if row.goal} == GOALS


def test_rows_have_names_of_their_own_and_a_module_that_measures_them() -> None:
    assert len(rows.BY_NAME) == len(rows.ROWS)
    for row in rows.ROWS:
        assert callable(importlib.import_module(f"benchmarks.{row.module}").measure)


def test_a_row_brings_its_companions_and_no_other_row() -> None:
    assert [row.row for row in rows.select(["P1s"])] == ["P1s", "P1s-disk"]
    assert [row.row for row in rows.select(["P2"])] == ["P2"]
    assert rows.select([]) == list(rows.ROWS)


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["P99"])
    assert stopped.value.code == 2
    assert "P99" in capsys.readouterr().err


def test_json_is_all_that_is_printed() -> None:
    command = [sys.executable, "-m", "benchmarks", "P22m", "--quick", "--json"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    document = json.loads(run.stdout)
    assert list(document) == ["rows"]
    (row,) = document["rows"]
    assert row.keys() >= KEYS
    if row["value"] is not None:
        assert row["value"] > 0
        assert row["ok"] is (row["value"] <= 20)
        assert len(row["rounds"]["ours"]["RssAnon MiB"]) == 3


def test_a_missing_baseline_is_named() -> None:
    figure = ratio(rows.BY_NAME["P1r"], Series([Sample(1e-6, 2e-6)]), Missing("rocksdict cannot be imported"))
    written = figure.as_json()
    assert written["value"] is None
    assert written["ok"] is None
    assert written["ours"] == 1
    assert "missing: RocksDB" in written["note"]
    assert "missing" in list(table([figure]))[1]


def test_a_speed_is_a_ratio_upwards_and_a_cost_downwards() -> None:
    fast, slow = Series([Sample(1e-6, 1e-6)]), Series([Sample(4e-6, 4e-6)])
    speed = ratio(rows.BY_NAME["P1"], fast, slow)
    assert speed.value == pytest.approx(4)
    assert speed.ok
    cost = ratio(rows.BY_NAME["P2"], slow, fast)
    assert cost.value == pytest.approx(4)
    assert cost.ok is False
    assert (speed.ours, speed.baseline) == (pytest.approx(1), pytest.approx(4))


def test_rows_of_wall_time_show_cpu_time_too() -> None:
    figure = ratio(rows.BY_NAME["P2"], Series([Sample(1e-4, 3e-4)]), Series([Sample(1e-4, 3e-4)]))
    assert figure.as_json()["clocks"] == {"ours": {"cpu": 100, "wall": 300}, "baseline": {"cpu": 100, "wall": 300}}
    assert "300 (CPU 100)" in list(table([figure]))[1]


def test_rounds_are_interleaved_and_a_candidate_that_cannot_run_does_not_stop_the_others() -> None:
    order = []

    def candidate(name: str) -> Sample:
        order.append(name)
        if name == "c":
            raise Missing("not here")
        return Sample(1, 1)

    measured = interleave({name: lambda name=name: candidate(name) for name in "abc"}, rounds=2, warm_up=1)
    assert order == ["c", "a", "b", "a", "b", "b", "a"]
    assert isinstance(measured["c"], Missing)
    assert [len(measured[name].samples) for name in "ab"] == [2, 2]


def test_the_table_has_a_line_for_every_figure() -> None:
    figures = [Figure(row) for row in rows.ROWS]
    lines = list(table(figures))
    assert [line.split()[0] for line in lines] == ["row", *(row.row for row in rows.ROWS)]


def test_a_recorded_figure_takes_the_place_of_its_own_row_only(tmp_path: Path) -> None:
    file = tmp_path / "benchmarks.json"
    recorded.record(ratio(rows.BY_NAME["P2"], Series([Sample(1e-4, 3e-4)]), Series([Sample(1e-4, 1e-4)])), True, file)
    recorded.record(ratio(rows.BY_NAME["P1"], Series([Sample(1e-6, 1e-6)]), Missing("it cannot run here")), False, file)
    recorded.record(ratio(rows.BY_NAME["P2"], Series([Sample(1e-4, 1e-4)]), Series([Sample(1e-4, 1e-4)])), False, file)
    found = recorded.recorded(file)
    assert list(found) == ["P1", "P2"]  # in the order of the rows
    assert found["P2"]["value"] == 1
    assert found["P2"]["rounds"] == "all"
    assert found["P1"]["value"] is None
    assert "it cannot run here" in found["P1"]["note"]
    assert all(figures["machine"] and figures["at"] for figures in found.values())


def test_what_was_recorded_of_a_row_that_is_gone_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "benchmarks.json").write_text('{"P0": {"value": 1}}')
    assert recorded.recorded(tmp_path / "benchmarks.json") == {}
    assert recorded.recorded(tmp_path / "nothing.json") == {}
