"""P12 and P12s: rebuilding 200 buckets of a store from a table of 10 M delayed messages of 50 topics, on Spark.

Ours is the job ``rebuild-delayed``, from its plan to the last commit. P12 compares it with one process that reads the
same table with the same library, seals with the same function and commits the same transactions, without Spark and
without the steps that make a job repeatable. P12s compares it with the obvious design on Spark: rows are shuffled to
their bucket, and each group is sealed with ``applyInArrow`` or ``applyInPandas``, whichever is faster. That baseline
knows the bucket of each ledger in advance, and has no string column.

CPU time is that of all processes: this one, the JVM, and the Python workers. The session is warm.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, ratio
from benchmarks.measure import Missing, Sample, Series, interleave
from benchmarks.places import Bench
from benchmarks.rows import Row

TOPICS, BUCKETS, PER_BUCKET = 50, 4, 50_000
MASTER = "local[2]"
_NOW = 1_700_000_000_000
_HOUR = 3_600_000
# The table, the staged snapshots, and the stores of all candidates.
_ROOM = 4 << 30
_TOPIC = "persistent://public/default/topic-{}"
_CURSOR = "sub"

_COLUMNS = ["ledger_id", "entry_id", "deliver_at_ms"]


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(_ROOM)
    with place.directory() as folder:
        try:
            measured = take_turns(folder, bench.rounds(3, 5), TOPICS)
        except ImportError as error:
            measured = dict.fromkeys(("ours", "numpy", "arrow", "pandas"), Missing(str(error)))
    note = f"{TOPICS * BUCKETS * PER_BUCKET:,} rows, {MASTER}, on {place.kind}"
    for row in rows:
        if row.row == "P12":
            yield ratio(row, measured["ours"], measured["numpy"], note)
        else:
            shuffles = {name: one for name in ("arrow", "pandas") if isinstance(one := measured[name], Series)}
            best = min(shuffles, key=lambda name: shuffles[name].cpu, default="arrow")
            notes = ", ".join(f"{name} {series.cpu:.2f} CPU s" for name, series in shuffles.items())
            yield ratio(row, measured["ours"], measured[best], f"{note}; {notes}")


def take_turns(folder: Path, rounds: int, topics: int) -> dict[str, Series | Missing]:
    from benchmarks.baselines import rebuilding as baselines
    from bookstand.pipeline.spark.runner import SparkRunner

    files = write_table(folder / "table", topics)
    with _session(folder / "spark") as spark:
        work = folder / "work"
        candidates: dict[str, Callable[[Path], object]] = {
            "ours": lambda store: ours(store, files, SparkRunner(spark), work),
            "numpy": lambda store: baselines.one_process(store, files, _CURSOR),
            "arrow": lambda store: baselines.shuffled(spark, store, files, _CURSOR, work, pandas=False),
            "pandas": lambda store: baselines.shuffled(spark, store, files, _CURSOR, work, pandas=True),
        }
        number = 0

        def once(run: Callable[[Path], object]) -> Sample:
            nonlocal number
            number += 1
            store = write_store(folder / f"store-{number}", topics)
            wall, cpu = time.perf_counter(), tree_cpu()
            run(store)
            sample = Sample(tree_cpu() - cpu, time.perf_counter() - wall)
            check(store, topics)
            return sample

        return interleave({name: lambda run=run: once(run) for name, run in candidates.items()}, rounds)  # type: ignore[misc]


def ours(store: Path, files: Sequence[str], runner: Any, work: Path) -> None:
    from bookstand.pipeline.execution.protocol import execute
    from bookstand.pipeline.jobs.rebuild_delayed import RebuildDelayed

    summary = execute(RebuildDelayed((str(store),), table=tuple(files), workplace=str(work)), runner)
    if not summary.ok:
        raise RuntimeError(str(summary))


# -- data --------------------------------------------------------------------------------------------------------------


def ledgers_of(topic: int) -> range:
    """Return the ledgers of a topic, one for each bucket."""
    return range(topic * BUCKETS, (topic + 1) * BUCKETS)


def write_table(folder: Path, topics: int) -> list[str]:
    """Write messages in ascending order with delays of up to an hour, and one row group for each topic."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    random = np.random.default_rng(12)
    file = folder / "messages.parquet"
    schema = pa.schema([("topic", pa.string()), *((name, pa.int64()) for name in _COLUMNS)])
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for topic in range(topics):
            count = BUCKETS * PER_BUCKET
            rows = np.arange(count)
            columns = [
                pa.array([_TOPIC.format(topic)] * count).dictionary_encode().cast(pa.string()),
                pa.array(rows // PER_BUCKET + ledgers_of(topic).start),
                pa.array(rows % PER_BUCKET),
                pa.array(_NOW + rows // 10 + random.integers(0, _HOUR, count)),
            ]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=count)
    return [str(file)]


def write_store(path: Path, topics: int) -> Path:
    """Write the records of topics and cursors. The messages are in the table, so there are no entries."""
    import bookstand
    from bookstand.managed_ledger.records import (
        CursorInfo,
        LedgerInfo,
        ManagedLedgerInfo,
        encode_cursor_info,
        encode_ledger_info,
    )
    from bookstand.managed_ledger.topic_name import cursor_node_of, node_of
    from bookstand.storage.format.position import Position

    with bookstand.open(path) as store, store.transaction() as transaction:
        for topic in range(topics):
            ledgers = [LedgerInfo(one, PER_BUCKET, PER_BUCKET, 1) for one in ledgers_of(topic)]
            name = _TOPIC.format(topic)
            transaction.put_node(node_of(name), encode_ledger_info(ManagedLedgerInfo(ledgers)))
            info = CursorInfo(-1, Position(ledgers[0].ledger_id, -1))
            transaction.put_node(cursor_node_of(name, _CURSOR), encode_cursor_info(info))
    return path


def check(path: Path, topics: int) -> None:
    """Verify that all buckets exist and that a property references each; then delete the store."""
    import bookstand

    with bookstand.open(path, read_only=True) as store:
        found = store.bucket_snapshots()
    if len(found) != topics * BUCKETS or any(one.orphaned or one.messages != PER_BUCKET for one in found):
        raise RuntimeError(f"found {len(found)} buckets, not {topics * BUCKETS} with {PER_BUCKET} messages each")
    for file in path.iterdir():
        file.unlink()


# -- Spark -------------------------------------------------------------------------------------------------------------


@contextmanager
def _session(folder: Path) -> Iterator[Any]:
    """Start a session like the job's command does for short work on one machine."""
    from pyspark.sql import SparkSession

    from bookstand.pipeline.spark.java import java_home
    from bookstand.pipeline.spark.session import QUICK, REQUIRED

    folder.mkdir()
    os.environ.update(SPARK_LOCAL_IP="127.0.0.1", PYSPARK_PYTHON=sys.executable, PYTHONPATH=os.getcwd())
    if (home := java_home(folder)) is not None:
        os.environ["JAVA_HOME"] = home
    builder = SparkSession.builder.master(MASTER)
    places = {"spark.local.dir": str(folder / "local"), "spark.driver.host": "127.0.0.1"}
    for name, value in {**REQUIRED, **QUICK, **places, "spark.driver.memory": "2g"}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()


def tree_cpu() -> float:
    """Return the CPU seconds of this process and its descendants, including exited ones."""
    ticks = 0
    children: dict[int, list[int]] = {}
    spent: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The fields follow the process name in parentheses, which may contain any character.
            words = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(words[1]), []).append(int(entry.name))
        spent[int(entry.name)] = sum(map(int, words[11:15]))
    waiting = [os.getpid()]
    while waiting:
        process = waiting.pop()
        ticks += spent.get(process, 0)
        waiting += children.get(process, [])
    return ticks / os.sysconf("SC_CLK_TCK")
