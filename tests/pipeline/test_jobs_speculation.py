"""On a cluster, what is slow is done a second time beside the first; what is published is there once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.jobs.export import Export
from bookstand.pipeline.tables.sources import STORE, DataSource
from tests.kit import PATIENCE, ROOT
from tests.pipeline import kit

pytestmark = pytest.mark.xdist_group("spark")

_DRIVER = """
import json, sys
from pyspark.sql import SparkSession
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.spark.runner import SparkRunner
from bookstand.pipeline.tables.sources import STORE, DataSource
from bookstand.pipeline.spark.session import QUICK, REQUIRED
from tests.pipeline.dying import SlowExport

url, store, output, marks, local = sys.argv[1:]
speculating = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.interval": "100ms",
    "spark.executor.memory": "600m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.local.dir": local,
}
builder = SparkSession.builder.master(url)
for name, value in {**REQUIRED, **QUICK, **speculating}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
places = (DataSource(STORE, (store,)),)
job = SlowExport(places, output, ("messages", "cursors"), marks=marks)
slow = job.plan().units[0].name
job = SlowExport(places, output, ("messages", "cursors"), marks=marks, slow=slow)
summary = execute(job, SparkRunner(spark))
print(json.dumps(summary.as_dict()))
spark.stop()
"""


@pytest.mark.long
def test_two_attempts_of_one_task_leave_one_outcome(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    from tests.pipeline.cluster import cluster, environment

    store = kit.fill(tmp_path / "store", topics=5)
    marks = tmp_path / "marks"
    marks.mkdir()
    assert execute(
        Export((DataSource(STORE, (str(store),)),), str(tmp_path / "wanted"), ("messages", "cursors")), LocalRunner()
    ).ok
    with cluster(tmp_path / "cluster") as url:
        arguments = [url, str(store), str(tmp_path / "out"), str(marks), str(tmp_path / "local")]
        done = subprocess.run(
            [sys.executable, "-c", _DRIVER, *arguments],
            env=environment(tmp_path / "cluster", "127.0.0.1"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=4 * PATIENCE,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["ok"]
    assert told["done"] == 6
    attempts: dict[str, set[str]] = {}
    for mark in marks.iterdir():
        if mark.name != "slow":
            unit, attempt = mark.name.split(".", 1)
            attempts.setdefault(unit, set()).add(attempt)
    assert len(attempts) == 6
    twice = [some for some in attempts.values() if len(some) > 1]
    # Both wrote all that they had to, at the same time, in processes of different workers.
    assert twice
    assert kit.parquet(tmp_path / "out") == kit.parquet(tmp_path / "wanted")
    assert not list((tmp_path / "out" / "_bookstand" / "attempts").iterdir())
