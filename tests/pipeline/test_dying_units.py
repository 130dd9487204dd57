"""One bad unit costs one unit, on Spark and without; the soak kind ``dying_units`` has 100, as has that of Spark."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet  # noqa: F401
import pytest

from bookstand.pipeline.execution import protocol as jobs
from bookstand.pipeline.execution.cli import NOT_ALL, main
from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.execution.unit import Packed, Part, Result, Unit
from bookstand.pipeline.execution.worker import Limits
from bookstand.pipeline.jobs.bucket_cutting import CutSettings
from bookstand.pipeline.jobs.export import Export
from bookstand.pipeline.jobs.rebuild_delayed import RebuildDelayed
from bookstand.pipeline.spark.runner import SparkRunner
from bookstand.pipeline.tables import tables
from bookstand.pipeline.tables.sources import STORE, DataSource
from tests.pipeline import kit
from tests.pipeline.dying import die, first_time
from tests.soak import dying_units
from tests.soak.dying_units import LIMITS, Plan, make_plan, make_stores

# Modules are imported above so that no unit takes long.
SPARK = pytest.mark.xdist_group("spark")


def planned(folder: Path, count: int, dying: dict[str, bool], damaged: int = 0) -> Plan:
    """``dying``: ways, and whether the first attempt only dies."""
    plan = make_plan(folder, random.Random(1), count, list(dying), damaged)
    return plan._replace(dying={path: (way, dying[way]) for path, (way, _) in plan.dying.items()})


EVERY_WAY = {way: False for way in dying_units.WAYS if way not in dying_units.SLOW} | {"hangs": True}


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 3])
def test_units_that_die_cost_no_other_without_spark(tmp_path: Path, processes: int) -> None:
    plan = planned(tmp_path, 24, EVERY_WAY, damaged=3)
    problems = dying_units.run(tmp_path, plan, LocalRunner(processes, LIMITS))
    assert not problems, "\n".join(problems)


@pytest.mark.long
@SPARK
def test_units_that_die_cost_no_other_on_spark(spark: Any, tmp_path: Path) -> None:
    plan = planned(tmp_path, 8, {"killed": False, "out_of_memory": True, "hangs": True, "raises": False}, damaged=1)
    problems = dying_units.run(tmp_path, plan, SparkRunner(spark, LIMITS))
    assert not problems, "\n".join(problems)


def test_a_unit_that_dies_leaves_no_files_to_the_units_after_it(tmp_path: Path) -> None:
    """They may be what has exhausted the disk."""
    plan = planned(tmp_path, 4, {"killed": False, "out_of_disk": False})
    places = tuple(DataSource(STORE, (str(path),)) for path in plan.paths)
    dying = {f"{path} entries": how for path, how in plan.dying.items()}
    for folder in ("notes", "work"):
        (tmp_path / folder).mkdir()
    job = dying_units.DyingExport(
        places, str(tmp_path / "out"), ("entries",), dying=dying, notes=str(tmp_path / "notes")
    )
    results = list(LocalRunner(1, LIMITS).run(job, job.plan().units, tmp_path / "work"))
    assert sum(result.crashed for result in results) == 2
    left = {str(one) for one in (tmp_path / "work").iterdir()}
    assert left == {result.staged for result in results if result.failure is None}


# -- units of several places -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DyingRebuild(RebuildDelayed):
    """The first part that is read, and the first unit that is joined, die: once, or each time."""

    marks: str = ""
    reading: str = ""
    joining: str = ""
    always: bool = False

    def read(self, part: Part) -> list[Packed]:
        found = super().read(part)
        if part.name == self.reading and (first_time(Path(self.marks) / "read") or self.always):
            die()
        return found

    def join(self, unit: Unit, pieces: Any, folder: Path) -> Result:
        result = super().join(unit, pieces, folder)
        if unit.name == self.joining and (first_time(Path(self.marks) / "joined") or self.always):
            die()
        return result


@pytest.fixture(params=["here", pytest.param("spark", marks=SPARK)])
def runner(request: pytest.FixtureRequest) -> Any:
    return LocalRunner(2) if request.param == "here" else SparkRunner(request.getfixturevalue("spark"))


@pytest.mark.long
def test_parts_and_joins_that_die_are_tried_again_and_then_fail_alone(runner: Any, tmp_path: Path) -> None:
    store = kit.fill(tmp_path / "store", topics=3)
    cut = CutSettings(least=50, step_millis=100_000)
    parts = tuple(map(str, kit.spread(store, tmp_path, 2)))
    (tmp_path / "marks").mkdir()
    job = DyingRebuild(parts, cut, together=True, workplace=str(tmp_path / "work"), marks=str(tmp_path / "marks"))
    units = [unit.name for unit in job.plan().joined]
    reading = next(part.name for part in job.plan().parts if part.units == (units[0],))
    dying: dict[str, Any] = {**job.__dict__, "reading": reading, "joining": units[1]}
    failing = execute(DyingRebuild(**{**dying, "always": True}), runner)
    assert {result.unit for result in failing.failed} == set(units[:2])
    assert all("killed by SIGKILL" in (result.failure or "") for result in failing.failed)
    assert reading in next(one.failure or "" for one in failing.failed if one.unit == units[0])
    for mark in (tmp_path / "marks").iterdir():
        mark.unlink()
    again = execute(DyingRebuild(**dying), runner)
    assert again.ok, str(again)
    assert len(list((tmp_path / "marks").iterdir())) == 2
    assert [result.unit for result in again.before] == units[2:]
    assert execute(RebuildDelayed((str(store),), cut), LocalRunner()).ok
    for topic in kit.topics_of(store):
        assert kit.entries_of_buckets(Path(parts[0]), topic) == kit.entries_of_buckets(store, topic)


# -- the command -------------------------------------------------------------------------------------------------------


def test_a_store_that_kills_its_readers_is_reported_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics are planned, and tables read, where such a store ends a process that is not the command's."""
    good, bad = (kit.fill(tmp_path / name, topics=1) for name in ("good", "bad"))
    real = tables.read

    def read(places: Any, asked: Any) -> Iterator[Any]:
        for place in places:
            if place.paths[0] == str(bad):
                die()
        return real(places, asked)

    monkeypatch.setattr(tables, "read", read)
    arguments = ["export", str(good), str(bad), "--output", str(tmp_path / "out"), "--json"]
    assert main([*arguments, "--table", "entries", "--unit-seconds", "600", "--unit-memory", "1000"]) == NOT_ALL
    told = json.loads(capsys.readouterr().out)
    assert told["done"] == 1
    (failed,) = told["failed"]
    assert failed["unit"] == f"{bad} entries"
    assert "killed by SIGKILL" in failed["why"]
    assert "then, done alone:" in failed["why"]

    from bookstand.pipeline.jobs import export

    opened = export.open_source
    monkeypatch.setattr(export, "open_source", lambda place: die() if place.paths[0] == str(bad) else opened(place))
    assert main([*arguments, "--table", "messages"]) == NOT_ALL
    told = json.loads(capsys.readouterr().out)
    assert told["done"] == 1
    assert [one["what"] for one in told["problems"] if str(bad) in one["what"]]


@pytest.mark.parametrize("value", ["0", "-1", "x"])
def test_limits_must_be_positive(value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--unit-seconds", "--unit-memory"):
        with pytest.raises(SystemExit):
            main(["verify", str(tmp_path), option, value])
        assert option in capsys.readouterr().err


def test_progress_counts_each_unit_once(tmp_path: Path) -> None:
    plan = planned(tmp_path, 6, {"killed": False, "aborted": True})
    (tmp_path / "notes").mkdir()
    dying = {f"{path} entries": how for path, how in plan.dying.items()}
    places = tuple(DataSource(STORE, (str(path),)) for path in plan.paths)
    job = dying_units.DyingExport(
        places, str(tmp_path / "out"), ("entries",), dying=dying, notes=str(tmp_path / "notes")
    )
    seen: list[tuple[int, int]] = []
    summary = execute(job, LocalRunner(2), dry_run=True, progress=lambda *some: seen.append(some))
    assert seen == [(number, 6) for number in range(1, 7)]
    assert len(summary.failed) == 1
    assert not (tmp_path / "out").exists()


class Unreliable:
    """A runner that loses results, or has some twice."""

    def __init__(self, change: Callable[[list[Result]], list[Result]]) -> None:
        self._change = change

    def run(self, job: Any, units: Any, work: Any) -> Iterator[Result]:
        return iter(self._change(list(LocalRunner(0).run(job, units, work))))

    def run_joined(self, *_: Any) -> Iterator[Result]:
        return iter(())


def test_every_unit_has_one_result_whatever_runs_it(tmp_path: Path) -> None:
    places = tuple(DataSource(STORE, (str(path),)) for path in make_stores(tmp_path, 3))
    summary = execute(Export(places, str(tmp_path / "out"), ("entries",)), Unreliable(lambda results: results[:2]))
    assert [result.failure for result in summary.failed] == ["the runner has no result of it"]
    with pytest.raises(jobs.StoreError, match="second result of unit"):
        execute(Export(places, str(tmp_path / "two"), ("entries",)), Unreliable(lambda results: results * 2))


# -- without the cures, the campaign fails -----------------------------------------------------------------------------


def never_again(self: Any, units: Any, joined: Any) -> Iterator[Result]:
    yield from self._run(units)


def at_once(self: Any, units: Any, joined: Any) -> Iterator[Result]:
    """Crashed units are done again beside others."""
    first = list(self._run(units))
    yield from (result for result in first if not result.crashed)
    again = {result.unit for result in first if result.crashed}
    yield from self._run([unit for unit in units if unit.name in again])


def both_counted(self: Any, units: Any, joined: Any) -> Iterator[Result]:
    for result in self._run(units):
        yield result
        if result.crashed:
            yield from self._run([unit for unit in units if unit.name == result.unit])


MUTANTS: dict[str, tuple[Any, str, Any, str]] = {
    "no second attempt": (jobs._Attempted, "results", never_again, "failed:"),
    "not alone": (jobs._Attempted, "results", at_once, "was not alone"),
    "both attempts counted": (jobs._Attempted, "results", both_counted, "has 2 results"),
    "exhaustion is final": (jobs, "_is_exhaustion", lambda error: False, "was tried 1 times"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_the_campaign_notices_what_is_not_cured(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, instead, what = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, instead)
    plan = planned(tmp_path, 8, {"killed": True, "aborted": True, "segmentation_fault": True, "out_of_disk": False})
    problems = dying_units.run(tmp_path, plan, LocalRunner(3, LIMITS), linger=2.0 if name == "not alone" else 0.0)
    assert any(what in one for one in problems), problems


def test_the_campaign_notices_calls_without_limit(tmp_path: Path) -> None:
    """A limit that is never reached is none."""
    plan = planned(tmp_path, 2, {"out_of_memory": False})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            dying_units, "WAYS", {**dying_units.WAYS, "out_of_memory": dying_units.Way(some_memory, "MemoryError")}
        )
        problems = dying_units.run(tmp_path, plan, LocalRunner(1, Limits(seconds=600, memory=None)))
    assert any("(out_of_memory) is reported as None" in one for one in problems), problems


def some_memory() -> None:
    """More than the campaign's limit, without an end of the machine."""
    bytes(300 << 20)
