"""Defects of what runs on Spark, which the campaigns of frames and of dying units notice: the kind ``spark_defects``.

Defects of what needs no Spark are in ``tests/pipeline/test_dying_units.py``, and are noticed there.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, LessThan

from bookstand.errors import BookstandError
from bookstand.pipeline.execution.protocol import attempt
from bookstand.pipeline.execution.unit import Result
from bookstand.pipeline.spark import runner
from bookstand.pipeline.spark.datasource import BookstandSource, Reader
from bookstand.pipeline.spark.runner import SparkRunner
from bookstand.pipeline.spark.session import QUICK, register, session
from tests.pipeline import frames
from tests.soak import dying_units
from tests.soak.dying_units import LIMITS, make_plan
from tests.soak.kinds import Done, Kind, KindUnavailableError

# -- filters that frames share -----------------------------------------------------------------------------------------


class PushingReader(Reader):
    """Accepts the filters that Spark pushes."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for one in filters:
            if isinstance(one, EqualTo | GreaterThan | LessThan) and type(one.value) is int:
                (name,) = one.attribute
                low = one.value + isinstance(one, GreaterThan) if not isinstance(one, LessThan) else -1
                high = one.value - isinstance(one, LessThan) if not isinstance(one, GreaterThan) else 1 << 40
                self._query = replace(self._query, wanted=self._query.wanted.between(name, low, high))
            else:
                yield one


class PushingSource(BookstandSource):
    def reader(self, schema: Any) -> Reader:
        of = super().reader(schema)
        assert isinstance(of, Reader)
        return PushingReader(of._kind, of._options, of._query)


def pushed_filters(spark: Any, folder: Path) -> list[str]:
    spark.dataSource.register(PushingSource)
    try:
        # Even ones switch the filters off, of which such a source would complain.
        return [one for seed in (1, 5) for one in frames.run(spark, folder, seed)[1]]
    finally:
        register(spark)


# -- units that end tasks ----------------------------------------------------------------------------------------------


def in_the_worker(job: Any, units: Any, work: Any, tag: str = "", **_: Any) -> Iterator[Result]:
    """Without child processes."""
    return (attempt(job, unit, work, tag) for unit in units)


def units_end_workers(spark: Any, folder: Path) -> list[str]:
    with mock.patch.object(runner, "attempt_each", in_the_worker):
        plan = make_plan(folder, random.Random(0), 3, ["killed"], damaged=0)
        return dying_units.run(folder, plan, SparkRunner(spark, LIMITS))


def lost_tasks_end_jobs(spark: Any, folder: Path) -> list[str]:
    with mock.patch.object(SparkRunner, "_is_loss", return_value=False):
        plan = make_plan(folder, random.Random(0), 3, ["kills_what_runs_it"], damaged=0)
        return dying_units.run(folder, plan, SparkRunner(spark, LIMITS))


DEFECTS = (pushed_filters, units_end_workers, lost_tasks_end_jobs)


def one_round(seed: int) -> Done:
    """Each defect once; the seed changes nothing."""
    try:
        spark = session("defects", "local[2,3]", QUICK)
    except BookstandError as error:
        raise KindUnavailableError(str(error)) from error
    missed = []
    for defect in DEFECTS:
        with tempfile.TemporaryDirectory(prefix="bookstand-defects-") as folder:
            if not defect(spark, Path(folder)):
                missed.append(f"nothing noticed {defect.__name__}")
    return Done(len(DEFECTS), missed)


KIND = Kind(one_round)
