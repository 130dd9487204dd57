"""Jobs on Spark give what they give without it, whatever happens to tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bookstand.pipeline.execution.cli import FINE, main
from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.execution.unit import JobPlan, Packed, Part, Result, Unit
from bookstand.pipeline.jobs.bucket_cutting import CutSettings
from bookstand.pipeline.jobs.export import Export
from bookstand.pipeline.jobs.import_disks import Import
from bookstand.pipeline.jobs.migrate_cursors import MigrateCursors
from bookstand.pipeline.jobs.rebuild_delayed import RebuildDelayed
from bookstand.pipeline.jobs.recut import Recut
from bookstand.pipeline.jobs.stats import Stats, added_up
from bookstand.pipeline.jobs.verify import Verify
from bookstand.pipeline.spark.runner import SparkRunner
from bookstand.pipeline.tables.sources import STORE, DataSource, bookies
from tests.disk.recordings import dump_path
from tests.pipeline import kit
from tests.pipeline.dying import DyingExport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

HERE = LocalRunner()
SMALL = CutSettings(least=50, step_millis=100_000)
T0 = kit.TOPIC.format(0)


@pytest.fixture
def twins(tmp_path: Path) -> tuple[list[Path], list[Path]]:
    """Two stores, and the same once more."""
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    here = [kit.fill(tmp_path / "here" / name, first=ord(name) - 97) for name in "ab"]
    return here, [kit.copied(one, tmp_path / "there" / one.name) for one in here]


def told(summary: Any) -> list[Any]:
    """What a summary says of units, but for where their stores are and what their ledgers are called."""
    assert not summary.failed, str(summary)
    rows = [(Path(one.unit.split(" ")[0]).name, one.unit.split(" ")[1:], one.counts) for one in summary.results]
    return sorted(json.dumps(row) for row in rows)


@pytest.mark.long
def test_stores_are_changed_in_the_same_way(spark: SparkSession, twins: tuple[list[Path], list[Path]]) -> None:
    here, there = ([str(path) for path in paths] for paths in twins)
    runner = SparkRunner(spark)
    for make in (
        lambda stores: RebuildDelayed(tuple(stores), SMALL),
        lambda stores: Recut(tuple(stores), CutSettings(least=1_000), True),
        lambda stores: MigrateCursors(tuple(stores), "snapshot"),
        lambda stores: MigrateCursors(tuple(stores), "pages"),
        lambda stores: Verify(tuple(DataSource(STORE, (one,)) for one in stores)),
    ):
        assert told(execute(make(there), runner)) == told(execute(make(here), HERE))
        for one, other in zip(*twins, strict=True):
            for topic in kit.topics_of(one):
                assert kit.in_buckets(other, topic) == kit.in_buckets(one, topic)
                assert kit.entries_of_buckets(other, topic) == kit.entries_of_buckets(one, topic)
                assert kit.acks(other, topic) == kit.acks(one, topic)
    counted = [
        execute(Stats(tuple(DataSource(STORE, (one,)) for one in stores)), by)
        for stores, by in ((here, HERE), (there, runner))
    ]
    assert told(counted[0]) == told(counted[1])
    assert added_up(counted[0].results)["due"] == added_up(counted[1].results)["due"]


def test_what_several_stores_have_is_brought_together(
    spark: SparkSession, twins: tuple[list[Path], list[Path]], tmp_path: Path
) -> None:
    store = twins[0][0]
    execute(RebuildDelayed((str(store),), SMALL), HERE)
    parts = kit.spread(store, tmp_path, 3)
    job = RebuildDelayed(tuple(map(str, parts)), SMALL, together=True)
    assert execute(job, SparkRunner(spark)).ok
    for topic in kit.topics_of(store):
        assert kit.entries_of_buckets(parts[0], topic) == kit.entries_of_buckets(store, topic)
    assert len(execute(job, SparkRunner(spark)).before) == 2


def test_a_part_that_cannot_be_read_fails_the_units_that_need_it(
    spark: SparkSession, twins: tuple[list[Path], list[Path]], tmp_path: Path
) -> None:
    execute(Export((DataSource(STORE, (str(twins[0][0]),)),), str(tmp_path / "out"), ("messages",)), HERE)
    files = sorted(map(str, (tmp_path / "out" / "messages").iterdir()))
    mixed = kit.interleaved(files, tmp_path / "mixed.parquet")
    whole = mixed.read_bytes()
    job = RebuildDelayed((str(twins[0][0]),), SMALL, table=(str(mixed),))
    plan = job.plan()
    results = {}
    for runner in (HERE, SparkRunner(spark)):
        mixed.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
        (tmp_path / "work").mkdir(exist_ok=True)
        results[type(runner)] = list(runner.run_joined(job, plan.joined, plan.parts, tmp_path / "work"))
        assert {result.unit for result in results[type(runner)]} == {unit.name for unit in plan.joined}
        assert all(str(mixed) in (result.failure or "") for result in results[type(runner)])
    mixed.write_bytes(whole)
    assert execute(job, SparkRunner(spark)).ok


@pytest.mark.long
def test_tables_and_imports_are_the_same(spark: SparkSession, unpacked: Callable[[str], Path], tmp_path: Path) -> None:
    places = {name: bookies(unpacked(name), str(dump_path(name))) for name in "bd"}
    here, there = (Import(places, str(tmp_path / out)) for out in ("here", "there"))
    assert told(execute(here, HERE)) == told(execute(there, SparkRunner(spark)))
    for name in places:
        assert kit.content(tmp_path / "here" / name) == kit.content(tmp_path / "there" / name)
    exported = [Export(tuple(places.values()), str(tmp_path / f"{out}-tables")) for out in ("here", "there")]
    assert told(execute(exported[0], HERE)) == told(execute(exported[1], SparkRunner(spark)))
    assert kit.parquet(tmp_path / "here-tables") == kit.parquet(tmp_path / "there-tables")


def test_a_task_that_dies_is_one_attempt(
    spark: SparkSession, twins: tuple[list[Path], list[Path]], tmp_path: Path
) -> None:
    (tmp_path / "marks").mkdir()
    places = (DataSource(STORE, (str(twins[0][0]),)),)
    assert execute(Export(places, str(tmp_path / "wanted"), ("messages",)), HERE).ok
    job = DyingExport(places, str(tmp_path / "out"), ("messages",), marks=str(tmp_path / "marks"))
    assert execute(job, SparkRunner(spark)).ok
    assert len(list((tmp_path / "marks").iterdir())) == 2
    assert kit.parquet(tmp_path / "out") == kit.parquet(tmp_path / "wanted")
    assert not list((tmp_path / "out" / "_bookstand" / "attempts").iterdir())


def test_the_command_runs_in_the_session_that_is_given(
    spark: SparkSession, twins: tuple[list[Path], list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for more in ([], ["--master", "given"]):
        assert main(["stats", *map(str, twins[0]), *more, "--json"]) == FINE
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]


def test_a_unit_that_fails_costs_no_other(
    spark: SparkSession, twins: tuple[list[Path], list[Path]], tmp_path: Path
) -> None:
    a, b = twins[0]
    assert execute(RebuildDelayed((str(a), str(b)), SMALL), SparkRunner(spark)).ok
    kit.damage_a_bucket(a, T0)
    summary = execute(Recut((str(a), str(b)), CutSettings(least=1_000), True), SparkRunner(spark))
    (failed,) = summary.failed
    assert failed.unit == f"{a} {T0}"
    assert len(summary.results) == 4


@dataclass(frozen=True)
class Placed:
    """Says of each unit which partition it was done in; of joined ones, a part has a piece for each."""

    count: int
    name = "placed"

    def work(self) -> Path | None:
        return None

    def plan(self) -> JobPlan:
        units = [Unit(str(number), {}) for number in range(self.count)]
        joined = [Unit(f"joined {number}", {}) for number in range(self.count)]
        names = tuple(unit.name for unit in joined)
        return JobPlan(units, joined, [Part("a", {}, names), Part("b", {}, names)])

    def done(self, units: Sequence[Unit]) -> Mapping[str, Result]:
        return {}

    def preview(self) -> Placed:
        return self

    def do(self, unit: Unit, folder: Path) -> Result:
        return Result(unit.name, {"pieces": 0}, facts={"partition": _partition()})

    def read(self, part: Part) -> list[Packed]:
        return [Packed(unit, part.name.encode()) for unit in part.units]

    def join(self, unit: Unit, pieces: Sequence[bytes], folder: Path) -> Result:
        assert sorted(pieces) == [b"a", b"b"]
        return Result(unit.name, {"pieces": len(pieces)}, facts={"partition": _partition()})

    def commit(self, done: Sequence[tuple[Unit, Result]]) -> list[Result]:
        return [result for _, result in done]


def test_imports_are_no_garbage_of_every_task(spark: SparkSession) -> None:
    """Spark's workers collect garbage after each task; those that a job has used are used again."""
    assert execute(Placed(4), SparkRunner(spark)).ok

    def count(batches: Any) -> Any:
        import gc

        import pyarrow as pa

        for _ in batches:
            yield pa.record_batch([[gc.get_freeze_count()]], ["count"])

    frozen = spark.range(2, numPartitions=2).mapInArrow(count, "count bigint").collect()
    assert max(row["count"] for row in frozen) > 10_000


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


@pytest.mark.long
@pytest.mark.parametrize("adaptive", ["false", "true"])
def test_each_unit_is_a_partition_of_its_own(spark: SparkSession, adaptive: str) -> None:
    """However many cores there are, when the job begins and later, and whether or not Spark plans again as it runs."""
    before = str(spark.conf.get("spark.sql.adaptive.enabled"))
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        found = execute(Placed(11), SparkRunner(spark))
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)
    assert found.ok, str(found)
    for joined in (False, True):
        partitions = [one.facts["partition"] for one in found.results if one.unit.startswith("joined") is joined]
        assert sorted(partitions) == list(range(11))
