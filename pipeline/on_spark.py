"""Units done by the tasks of Spark. What tasks are told and tell is a few hundred bytes a unit, whatever it reads: no
rows cross over to the JVM. Only what is to be joined from several places is shuffled, packed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bookstand.pipeline.job import Job, JoiningJob, attempt, attempt_to_join, read_part
from bookstand.pipeline.unit import Packed, Part, Result, Unit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# More partitions cost more than they even out.
_PARTITIONS_PER_CORE = 4


class SparkRunner:
    """Does units as tasks of Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, job: Job, units: Sequence[Unit], work: Path | None) -> Iterator[Result]:
        if not units:
            return
        # Python's own objects, so that nothing of a unit depends on what Spark makes of it.
        told = list(units)

        def do(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number in _numbers(batches):
                yield _as_batch([attempt(job, told[number], work, _tag()).to_json()])

        yield from self._results(self._numbered(len(told)).mapInArrow(do, "result string"))

    def run_joined(
        self, job: JoiningJob, units: Sequence[Unit], parts: Sequence[Part], work: Path | None
    ) -> Iterator[Result]:
        import pyarrow as pa

        told = list(parts)
        wanted = {unit.name: unit for unit in units}

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number in _numbers(batches):
                for packed in read_part(job, told[number], wanted):
                    yield pa.record_batch([[one] for one in packed], schema=_packed_schema())

        def join(table: pa.Table) -> pa.Table:
            pieces = [Packed(*row.values()) for row in table.to_pylist()]
            result = attempt_to_join(job, wanted[pieces[0].unit], pieces, work, _tag())
            return pa.Table.from_batches([_as_batch([result.to_json()])])

        packed = self._numbered(len(told)).mapInArrow(read, "unit string, data binary, failure string, problem string")
        left = dict(wanted)
        for result in self._results(packed.groupBy("unit").applyInArrow(join, "result string")):
            del left[result.unit]
            yield result
        for unit in left.values():
            # None of the parts has anything for it.
            yield attempt_to_join(job, unit, [], work)

    def _numbered(self, count: int) -> Any:
        cores = int(self._spark.conf.get("spark.default.parallelism", "0") or 0) or _cores(self._spark)
        return self._spark.range(0, count, 1, max(1, min(count, cores * _PARTITIONS_PER_CORE)))

    def _results(self, frame: Any) -> Iterator[Result]:
        for row in frame.collect():
            yield Result.from_json(row["result"])


def _cores(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:
        # Spark Connect does not tell.
        return 16


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _as_batch(results: list[str]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.record_batch([results], schema=pa.schema([("result", pa.string())]))


def _packed_schema() -> pa.Schema:
    import pyarrow as pa

    told = [(name, pa.string()) for name in ("failure", "problem")]
    return pa.schema([("unit", pa.string()), ("data", pa.binary()), *told])


def _tag() -> str:
    """Which attempt of which task this is."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "" if context is None else f"{context.partitionId()}-{context.attemptNumber()}-{context.taskAttemptId()}-"
