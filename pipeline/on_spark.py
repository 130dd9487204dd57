"""A runner on Spark: each unit is a task.

A unit and its result are a few hundred bytes, whatever the unit reads: no rows go through the JVM. Only the parts of
units that are in several places are shuffled, packed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bookstand.pipeline.job import Job, JoiningJob, attempt, attempt_to_join, read_part
from bookstand.pipeline.unit import Packed, Part, Result, Unit

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


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
        wanted = {unit.name: (number, unit) for number, unit in enumerate(units)}

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for number in _numbers(batches):
                for packed in read_part(job, told[number], wanted):
                    row = (wanted[packed.unit][0], *packed)
                    yield pa.record_batch([[one] for one in row], schema=_packed_schema())

        def join(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            pieces = [Packed(*list(row.values())[1:]) for batch in batches for row in batch.to_pylist()]
            if pieces:
                unit = wanted[pieces[0].unit][1]
                yield _as_batch([attempt_to_join(job, unit, pieces, work, _tag()).to_json()])

        schema = "number int, unit string, data binary, failure string, problem string"
        packed = self._numbered(len(told)).mapInArrow(read, schema).repartitionById(len(wanted), "number")
        left = {name: unit for name, (_, unit) in wanted.items()}
        for result in self._results(packed.mapInArrow(join, "result string")):
            del left[result.unit]
            yield result
        for unit in left.values():
            # None of the parts has anything for it.
            yield attempt_to_join(job, unit, [], work)

    def _numbered(self, count: int) -> Any:
        """Numbers from 0, one in each partition: a task that dies fails for one unit, and whatever cores a cluster has
        when it runs them are used."""
        return self._spark.range(0, count, 1, count)

    def _results(self, frame: Any) -> Iterator[Result]:
        for row in frame.collect():
            yield Result.from_json(row["result"])


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _as_batch(results: list[str]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.record_batch([results], schema=pa.schema([("result", pa.string())]))


def _packed_schema() -> pa.Schema:
    import pyarrow as pa

    reasons = [(name, pa.string()) for name in ("failure", "problem")]
    return pa.schema([("number", pa.int32()), ("unit", pa.string()), ("data", pa.binary()), *reasons])


def _tag() -> str:
    """Which attempt of which task this is."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "" if context is None else f"{context.partitionId()}-{context.attemptNumber()}-{context.taskAttemptId()}-"
