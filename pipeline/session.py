"""Spark sessions as this package wants them, and as tests and small machines want them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bookstand.errors import MissingExtraError
from bookstand.pipeline.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REQUIRED = {
    # Readers that can filter fail every read without it.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Columns of a batch that are in another order than the schema says are told, not swapped.
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""What a session of anybody's needs so that everything here works."""

QUICK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""For short work on one machine: two thirds of the time until the first result is the JVM's."""


def session(
    name: str = "bookstand",
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> SparkSession:
    """A session, or the one there is: with Java, whether or not the machine has one, and with the two data sources.

    ``folder`` is for what Spark writes; by default a temporary one. On ``local`` masters it listens on this machine
    only. ``settings`` come last.
    """
    try:
        # Workers need both, and would say so in the middle of a job.
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtraError(f"Spark is needed: pip install 'bookstand[spark]' ({error})") from error
    place = Path(tempfile.mkdtemp(prefix="bookstand-spark-") if folder is None else folder).absolute()
    place.mkdir(parents=True, exist_ok=True)
    if (home := java_home(place)) is not None:
        os.environ["JAVA_HOME"] = home
    # Otherwise workers are whatever python3 is on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    wanted = {"spark.local.dir": str(place / "local"), "spark.sql.warehouse.dir": str(place / "warehouse"), **REQUIRED}
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        wanted |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**wanted, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Have ``format("bookstand")`` and ``format("bookie")`` in somebody's session.

    Set :data:`REQUIRED` in it before: whether they take filters depends on what the session says of that now.
    """
    from bookstand.pipeline import datasource

    filters = str(spark.conf.get("spark.sql.python.filterPushdown.enabled", "false")).lower() == "true"
    for source in datasource.FILTERING if filters else datasource.PLAIN:
        spark.dataSource.register(source)
