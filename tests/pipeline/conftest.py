"""One Spark session for all tests of a run that want it. It is small, and repeats a task whose process died."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from bookstand.pipeline.java import java_home
from bookstand.pipeline.session import QUICK, REQUIRED
from tests.disk.recordings import unpacked
from tests.kit import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["unpacked"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    sql = pytest.importorskip("pyspark.sql")
    folder = tmp_path_factory.mktemp("spark")
    wanted = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    if (home := java_home(folder)) is not None:
        wanted["JAVA_HOME"] = home
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    settings = {
        **REQUIRED,
        **QUICK,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = sql.SparkSession.builder.appName("tests").master("local[2,3]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
    finally:
        # The JVM has it, and gives it to workers. Other tests' processes are not to find what is not installed.
        for name, old in before.items():
            if old is None:
                del os.environ[name]
            else:
                os.environ[name] = old
    yield session
    session.stop()
