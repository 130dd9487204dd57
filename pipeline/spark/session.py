"""Spark sessions as this package wants them, and as tests and small machines want them."""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from bookstand.errors import MissingExtraError
from bookstand.pipeline.execution.run_directory import run_folder
from bookstand.pipeline.spark.java import java_home
from bookstand.pipeline.tables.sources import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REQUIRED = {
    # Columns of a batch that are in another order than the schema says are told, not swapped.
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings that a session needs so that everything here works."""

_CONNECT = "sc://"

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
    """Make a session with the two data sources, or return the existing one. Java is included if the machine has none.

    ``master``: Spark's own, or the address of a Connect server (``sc://host:port``), whose machines need bookstand.
    ``folder`` is for the files of Spark; by default a temporary one, which is removed when the process ends. On
    ``local`` masters Spark listens on this machine only. ``settings`` take precedence; a Connect server takes those
    that may change at run time.
    """
    try:
        # Workers need both, and would say so in the middle of a job.
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        from pyspark.sql import SparkSession

        if master.startswith(_CONNECT):
            # Spark's own message names only the first that is missing.
            for package in ("grpc", "grpc_status", "zstandard"):
                import_module(package)
    except ImportError as error:
        raise MissingExtraError(f"Spark is needed: pip install 'bookstand[spark]' ({error})") from error
    if master.startswith(_CONNECT):
        return _connected(SparkSession.builder.appName(name).remote(master).getOrCreate(), settings)
    if folder is None:
        # A session that follows one that was stopped has a warehouse of its own.
        folder = tempfile.mkdtemp(dir=_temporary_folder(os.getpid()))
    place = Path(local_path(folder, "folder"))
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


def _connected(spark: SparkSession, settings: Mapping[str, str] | None) -> SparkSession:
    for key, value in {**REQUIRED, **(settings or {})}.items():
        if spark.conf.isModifiable(key):
            spark.conf.set(key, value)
    register(spark)
    return spark


@cache
def _temporary_folder(process: int) -> Path:
    """The folder of this process, which it removes when it ends, or, if it is killed, the next one that needs one."""
    stack = ExitStack()
    folder = stack.enter_context(run_folder(Path(tempfile.gettempdir()), "spark"))
    assert folder is not None

    def remove() -> None:
        if os.getpid() == process:
            from pyspark.sql import SparkSession

            # Or the JVM, which ends after this process, would still write to the folder.
            with stack, suppress(Exception):
                if (spark := SparkSession.getActiveSession()) is not None:
                    spark.stop()

    atexit.register(remove)
    return folder


def register(spark: SparkSession) -> None:
    """Add ``format("bookstand")`` and ``format("bookie")`` to a session, which should have :data:`REQUIRED` set."""
    from bookstand.pipeline.spark import datasource

    for source in datasource.SOURCES:
        spark.dataSource.register(source)
