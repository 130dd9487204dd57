"""Tables, streams and jobs by a client of a Spark Connect server, beside the same without it."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bookstand.errors import MissingExtraError
from bookstand.pipeline.execution.local_runner import LocalRunner
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.jobs.bucket_cutting import CutSettings
from bookstand.pipeline.jobs.rebuild_delayed import RebuildDelayed
from bookstand.pipeline.spark.session import session
from bookstand.pipeline.tables.query import query
from bookstand.pipeline.tables.sources import stores
from bookstand.pipeline.tables.tables import read
from tests.kit import PATIENCE, own_environment
from tests.pipeline import kit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = LocalRunner()
SMALL = CutSettings(least=50, step_millis=100_000)

_CLIENT = """
import json, sys
from bookstand.pipeline.jobs.bucket_cutting import CutSettings
from bookstand.pipeline.execution.cli import main
from bookstand.pipeline.execution.protocol import execute
from bookstand.pipeline.jobs.rebuild_delayed import RebuildDelayed
from bookstand.pipeline.spark.runner import SparkRunner
from bookstand.pipeline.spark.session import session

url, store, parts, checkpoint = sys.argv[1:]
spark = session("client", url)
told = {"kind": type(spark).__module__}
frame = spark.read.format("bookstand").options(table="cursors", columns="topic, cursor, backlog").load(store)
told["cursors"] = sorted(list(row) for row in frame.collect())
frame.createOrReplaceTempView("c")
told["backlog"] = spark.sql("SELECT sum(backlog) FROM c WHERE topic LIKE '%/0'").collect()[0][0]
stream = spark.readStream.format("bookstand").options(stream="topic", topic=told["cursors"][0][0]).load(store)
writing = stream.writeStream.format("memory").queryName("orders").option("checkpointLocation", checkpoint)
writing.trigger(availableNow=True).start().awaitTermination()
told["streamed"] = spark.sql("SELECT * FROM orders").count()
job = RebuildDelayed(tuple(json.loads(parts)), CutSettings(least=50, step_millis=100_000), together=True)
told["together"] = execute(job, SparkRunner(spark)).as_dict()
try:
    spark.read.format("bookstand").load("s3a://bucket/store").count()
except Exception as error:
    told["refused"] = str(error)
print(json.dumps(told))
print(main(["stats", store, "--master", url, "--json"]))
"""


@pytest.mark.long
@pytest.mark.xdist_group("spark")
@pytest.mark.skipif(
    not all(map(find_spec, ("grpc", "grpc_status", "zstandard"))), reason="the packages of Spark Connect are missing"
)
def test_a_connect_client_gets_what_there_is_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    store = kit.fill(tmp_path / "store", topics=2)
    assert execute(RebuildDelayed((str(store),), SMALL), HERE).ok
    parts = kit.spread(store, tmp_path, 2)
    port = spark.conf.get("spark.connect.grpc.binding.port")
    words = [f"sc://127.0.0.1:{port}", store, json.dumps([*map(str, parts)]), tmp_path / "checkpoint"]
    done = subprocess.run(
        [sys.executable, "-c", _CLIENT, *map(str, words)],
        env=own_environment(JAVA_HOME="/nowhere"),
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, *stats, code = done.stdout.splitlines()
    told: dict[str, Any] = json.loads(first)
    assert told["kind"].startswith("pyspark.sql.connect")
    asked = query("cursors", ("topic", "cursor", "backlog"))
    rows = [list(row.values()) for batch in read(stores(store), asked) for row in batch.to_pylist()]
    assert told["cursors"] == sorted(rows)
    assert told["backlog"] == sum(row[2] for row in rows if row[0].endswith("/0"))
    assert told["streamed"] == 180
    assert told["together"]["ok"]
    assert told["together"]["done"] == 2
    for topic in kit.topics_of(store):
        assert kit.entries_of_buckets(parts[0], topic) == kit.entries_of_buckets(store, topic)
    assert "must be a local path" in told["refused"]
    assert code == "0"
    assert json.loads("".join(stats))["facts"]["topics"] == 2


def test_packages_that_connect_needs_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(MissingExtraError, match=r"bookstand\[spark\].*grpc"):
        session(master="sc://127.0.0.1:1")
