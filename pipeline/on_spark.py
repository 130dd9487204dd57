"""A runner on Spark: each unit is a task.

A unit and its result are a few hundred bytes, whatever the unit reads: no rows go through the JVM. Only the parts of
units that are in several places are shuffled, packed.
"""

from __future__ import annotations

import pickle
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

        def do(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for unit in _values(batches):
                yield _as_batch([attempt(job, unit, work, _tag()).to_json()])

        yield from self._results(self._divided(units).mapInArrow(do, "result string"))

    def run_joined(
        self, job: JoiningJob, units: Sequence[Unit], parts: Sequence[Part], work: Path | None
    ) -> Iterator[Result]:
        import pyarrow as pa

        numbers = {unit.name: number for number, unit in enumerate(units)}
        wanted = [(part, {name: numbers[name] for name in part.units if name in numbers}) for part in parts]

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for part, numbers_of_units in _values(batches):
                for packed in read_part(job, part, numbers_of_units):
                    row = (numbers_of_units[packed.unit], *packed)
                    yield pa.record_batch([[one] for one in row], schema=_packed_schema())

        def join(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            unit, pieces = None, []
            for batch in batches:
                for _, name, data, *reasons in (row.values() for row in batch.to_pylist()):
                    if name is None:
                        unit = pickle.loads(data)
                    else:
                        pieces.append(Packed(name, data, *reasons))
            if unit is not None:
                yield _as_batch([attempt_to_join(job, unit, pieces, work, _tag()).to_json()])

        schema = "number int, unit string, data binary, failure string, problem string"
        # The units themselves, among their pieces: a unit may have none.
        rows = [(number, None, pickle.dumps(unit), None, None) for number, unit in enumerate(units)]
        pieces = self._divided(wanted).mapInArrow(read, schema).union(self._spark.createDataFrame(rows, schema))
        yield from self._results(pieces.repartitionById(len(units), "number").mapInArrow(join, "result string"))

    def _divided(self, values: Sequence[Any]) -> Any:
        """Rows with one value each, one row in each partition: a task that dies fails for one unit, and a job uses the
        cores that a cluster has when it runs. Values are rows because a function's closure is sent with every task."""
        rows = [(number, pickle.dumps(value)) for number, value in enumerate(values)]
        frame = self._spark.createDataFrame(rows, "number int, value binary")
        return frame.repartitionById(max(1, len(rows)), "number")

    def _results(self, frame: Any) -> Iterator[Result]:
        for row in frame.collect():
            yield Result.from_json(row["result"])


def _values(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        yield from map(pickle.loads, batch.column(1).to_pylist())


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
