"""Spark sessions with the settings that this package requires, and settings for tests and small machines."""

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
    # Raise an error if the columns of a batch are not in the order of the schema; otherwise Spark swaps them.
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings that this package requires."""

_CONNECT = "sc://"

QUICK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Settings for short jobs on one machine, where JVM startup takes two thirds of the time to the first result."""


def session(
    name: str = "bookstand",
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> SparkSession:
    """Create a session with the two data sources, or return the existing session. Java need not be installed.

    ``master`` is a Spark master URL, or the address of a Connect server (``sc://host:port``), whose machines must have
    bookstand installed. ``folder`` is for the files of Spark; the default is a temporary folder, which is removed when
    the process exits. With ``local`` masters, Spark listens on the loopback interface only. ``settings`` take
    precedence; a Connect server accepts only settings that can be changed at run time.
    """
    try:
        # Workers need both packages. Without this check, a job would fail only in a task.
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        from pyspark.sql import SparkSession

        if master.startswith(_CONNECT):
            # Spark's error message names only the first missing package.
            for package in ("grpc", "grpc_status", "zstandard"):
                import_module(package)
    except ImportError as error:
        raise MissingExtraError(f"Spark is needed: pip install 'bookstand[spark]' ({error})") from error
    if master.startswith(_CONNECT):
        return _connected(SparkSession.builder.appName(name).remote(master).getOrCreate(), settings)
    if folder is None:
        # A session that follows a stopped session must not share its warehouse.
        folder = tempfile.mkdtemp(dir=_temporary_folder(os.getpid()))
    place = Path(local_path(folder, "folder"))
    place.mkdir(parents=True, exist_ok=True)
    if (home := java_home(place)) is not None:
        os.environ["JAVA_HOME"] = home
    # Otherwise Spark starts workers with the python3 on PATH.
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


def configured_session() -> SparkSession:
    """Return the session that spark-submit has configured."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtraError(f"Spark is needed: pip install 'bookstand[spark]' ({error})") from error
    return SparkSession.builder.getOrCreate()


def _connected(spark: SparkSession, settings: Mapping[str, str] | None) -> SparkSession:
    for key, value in {**REQUIRED, **(settings or {})}.items():
        if spark.conf.isModifiable(key):
            spark.conf.set(key, value)
    register(spark)
    return spark


@cache
def _temporary_folder(process: int) -> Path:
    """Temporary folder of this process, removed at exit. If the process is killed, a later process removes it."""
    stack = ExitStack()
    folder = stack.enter_context(run_folder(Path(tempfile.gettempdir()), "spark"))
    assert folder is not None

    def remove() -> None:
        if os.getpid() == process:
            from pyspark.sql import SparkSession

            # Stop Spark first: the JVM exits after this process and would still write to the folder.
            with stack, suppress(Exception):
                if (spark := SparkSession.getActiveSession()) is not None:
                    spark.stop()

    atexit.register(remove)
    return folder


def register(spark: SparkSession) -> None:
    """Register the two data sources. The session should have the :data:`REQUIRED` settings."""
    from bookstand.pipeline.spark import datasource

    for source in datasource.SOURCES:
        spark.dataSource.register(source)
