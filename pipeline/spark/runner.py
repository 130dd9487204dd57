"""Runner on Spark: each unit is a task.

A unit and its result are a few hundred bytes, regardless of the amount of data that the unit reads: no rows pass
through the JVM. Only the parts of joined units are shuffled, in packed form.

A task runs its unit in a child process. A unit that crashes is then a failed result and does not fail the task, which
would fail the Spark job and with it all units. If a task dies nevertheless, for example because its executor was
killed, the units are divided and run again.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bookstand.pipeline.execution.protocol import Job, ShuffleJob, attempt_each, join_each, read_each
from bookstand.pipeline.execution.unit import Packed, Part, Result, Unit
from bookstand.pipeline.execution.worker import Limits

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class SparkRunner:
    """Runner that executes each unit as a Spark task, in a child process of a Spark worker."""

    def __init__(self, spark: SparkSession, limits: Limits | None = None) -> None:
        self._spark = spark
        self._limits = limits

    def run(self, job: Job, units: Sequence[Unit], work: Path | None) -> Iterator[Result]:
        return self._halved(units, lambda some: self._run(job, some, work))

    def run_joined(
        self, job: ShuffleJob, units: Sequence[Unit], parts: Sequence[Part], work: Path | None
    ) -> Iterator[Result]:
        def run(some: Sequence[Unit]) -> list[Result]:
            names = {unit.name for unit in some}
            return self._run_joined(job, some, [part for part in parts if names.intersection(part.units)], work)

        return self._halved(units, run)

    def _halved(self, units: Sequence[Unit], run: Callable[[Sequence[Unit]], list[Result]]) -> Iterator[Result]:
        """Run the units. If a task is lost, bisect the units until the unit that kills its task is isolated."""
        if not units:
            return
        try:
            yield from run(units)
        except Exception as error:
            if not self._is_loss(error):
                raise
            if len(units) == 1:
                yield Result(units[0].name, failure=f"its task was lost: {_first_line(error)}", crashed=True)
                return
            for half in (units[: len(units) // 2], units[len(units) // 2 :]):
                yield from self._halved(half, run)

    def _is_loss(self, error: Exception) -> bool:
        """Return True if a worker or executor has died. Python exceptions in a task would occur for every unit."""
        from pyspark.errors import PySparkException, PythonException

        if isinstance(error, PythonException) or not (
            isinstance(error, PySparkException) or type(error).__module__.startswith("py4j")
        ):
            return False
        try:
            self._spark.range(1).count()
        except Exception:
            # The Spark session itself has ended.
            return False
        return True

    def _run(self, job: Job, units: Sequence[Unit], work: Path | None) -> list[Result]:
        limits = self._limits

        def do(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            _freeze_imports()
            for result in attempt_each(job, list(_values(batches)), work, _tag(), limits=limits):
                yield _as_batch([result.to_json()])

        return self._results(self._divided(units).mapInArrow(do, "result string"))

    def _run_joined(
        self, job: ShuffleJob, units: Sequence[Unit], parts: Sequence[Part], work: Path | None
    ) -> list[Result]:
        import pyarrow as pa

        limits = self._limits
        numbers = {unit.name: number for number, unit in enumerate(units)}
        wanted = [(part, {name: numbers[name] for name in part.units if name in numbers}) for part in parts]

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            _freeze_imports()
            for part, numbers_of_units in _values(batches):
                for packed in read_each(job, [part], numbers_of_units, limits=limits):
                    row = (numbers_of_units[packed.unit], *packed)
                    yield pa.record_batch([[one] for one in row], schema=_packed_schema())

        def join(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            _freeze_imports()
            unit, pieces = None, []
            for batch in batches:
                for _, name, data, *reasons in (row.values() for row in batch.to_pylist()):
                    if name is None:
                        unit = pickle.loads(data)
                    else:
                        pieces.append(Packed(name, data, *reasons))
            if unit is not None:
                for result in join_each(job, [(unit, pieces)], work, _tag(), limits=limits):
                    yield _as_batch([result.to_json()])

        schema = "number int, unit string, data binary, failure string, problem string, crashed boolean"
        # Rows for the units are shuffled with their pieces, because a unit may have no pieces.
        rows = [(number, None, pickle.dumps(unit), None, None, None) for number, unit in enumerate(units)]
        pieces = self._divided(wanted).mapInArrow(read, schema).union(self._spark.createDataFrame(rows, schema))
        return self._results(pieces.repartitionById(len(units), "number").mapInArrow(join, "result string"))

    def _divided(self, values: Sequence[Any]) -> Any:
        """Frame with one value in each row and one row in each partition. A lost task then affects one unit, and the
        job can use all cores of the cluster. Values are not in a closure, which would be sent with every task."""
        rows = [(number, pickle.dumps(value)) for number, value in enumerate(values)]
        frame = self._spark.createDataFrame(rows, "number int, value binary")
        return frame.repartitionById(max(1, len(rows)), "number")

    def _results(self, frame: Any) -> list[Result]:
        return [Result.from_json(row["result"]) for row in frame.collect()]


@cache
def _freeze_imports() -> None:
    """Exclude imported modules from garbage collection, once in each process.

    Spark's workers collect garbage after each task, which can take longer than a small unit.
    """
    gc.collect()
    gc.freeze()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _values(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        yield from map(pickle.loads, batch.column(1).to_pylist())


def _as_batch(results: list[str]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.record_batch([results], schema=pa.schema([("result", pa.string())]))


def _packed_schema() -> pa.Schema:
    import pyarrow as pa

    reasons = [(name, pa.string()) for name in ("failure", "problem")]
    return pa.schema(
        [("number", pa.int32()), ("unit", pa.string()), ("data", pa.binary()), *reasons, ("crashed", pa.bool_())]
    )


def _tag() -> str:
    """Identifier of the current task attempt."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return "" if context is None else f"{context.partitionId()}-{context.attemptNumber()}-{context.taskAttemptId()}-"
