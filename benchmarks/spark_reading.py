"""P13, P13f, P13m: reading through Spark, compared with Parquet, with unfiltered reads, and with reads without Spark.

All runs share a session on two cores. CPU time is that of the whole process tree, including Spark's JVM and workers.
"""

from __future__ import annotations

import gc
import random
import struct
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.figures import Figure, ratio
from benchmarks.measure import ROOT, Missing, Sample, interleave
from benchmarks.places import Bench
from benchmarks.rebuilding import tree_cpu
from benchmarks.rows import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

INDEXES = 5_000_000
_BUCKET = 50_000
_LEDGERS = 10
_HOUR, _STEP = 3_600_000, 300_000
_PER_SEGMENT = 5_000
_BEGIN = 1_700_000_000_000
_BETWEEN_BUCKETS = 600_000
_COLUMNS = "deliver_at_ms,ledger_id,entry_id"
_TOPIC, _CURSOR = "persistent://public/default/orders", "sub"

DISK_BYTES = 1 << 30
_LOG_BYTES = 256 << 20
_RECORDING = ROOT / "tests" / "data" / "bookie" / "a"


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    try:
        from bookstand.pipeline.spark.session import QUICK, session
    except ImportError as error:
        raise Missing(str(error)) from error
    place = bench.memory(4 << 30)
    requested = {row.row: row for row in rows}
    with place.directory() as folder:
        # Use the JIT's defaults, unlike for short jobs, and enough memory.
        settings = {name: value for name, value in QUICK.items() if name != "spark.driver.extraJavaOptions"}
        spark = session("benchmarks", "local[2]", {**settings, "spark.driver.memory": "2g"}, folder / "spark")
        spark.sparkContext.setLogLevel("OFF")
        try:
            rounds = bench.rounds(3, 7)
            if requested.keys() & {"P13", "P13f"}:
                yield from _index_figures(requested, spark, folder, rounds, place.kind)
            if "P13m" in requested:
                yield _disk_figure(requested["P13m"], spark, folder, rounds, place.kind)
        finally:
            spark.stop()


# -- delayed indexes ---------------------------------------------------------------------------------------------------


def _index_figures(
    requested: dict[str, Row], spark: SparkSession, folder: Path, rounds: int, kind: str
) -> Iterator[Figure]:
    store, parquet = folder / "store", folder / "parquet"
    ledger, time_of = _make_indexes(store)
    options = {"table": "delayed_index", "columns": _COLUMNS}

    def ours() -> DataFrame:
        return spark.read.format("bookstand").options(**options).load(str(store))

    ours().write.parquet(str(parquet))
    if "P13" in requested:
        measured = interleave(
            {
                "ours": lambda: _read_rows(ours, INDEXES, INDEXES),
                "parquet": lambda: _read_rows(lambda: spark.read.parquet(str(parquet)), INDEXES, INDEXES),
            },
            rounds,
            # The JIT compiles code that has run often.
            warm_up=6,
        )
        note = f"{INDEXES} rows of {_COLUMNS}, on {kind}"
        yield ratio(requested["P13"], measured["ours"], measured["parquet"], note)
    if "P13f" in requested:
        condition = f"deliver_at_ms >= {time_of} AND deliver_at_ms < {time_of + _HOUR // 2} AND ledger_id = {ledger}"
        count = ours().where(condition).count()
        measured = interleave(
            {
                "filtered": lambda: _read_rows(lambda: ours().where(condition), count, 1),
                "all": lambda: _read_rows(ours, INDEXES, 1),
            },
            rounds,
        )
        yield ratio(requested["P13f"], measured["filtered"], measured["all"], f"{count} of {INDEXES} rows, on {kind}")


def _make_indexes(path: Path) -> tuple[int, int]:
    """Create a store whose subscription has buckets of 50 000 messages. Returns a ledger and a time in the middle."""
    import bookstand
    from bookstand.delivery.tracker.bucket.key import BucketKey, BucketLabels, custom_metadata
    from bookstand.delivery.tracker.bucket.snapshot.codec import seal
    from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
    from bookstand.managed_ledger.records import (
        CursorInfo,
        LedgerInfo,
        ManagedLedgerInfo,
        encode_cursor_info,
        encode_ledger_info,
    )
    from bookstand.managed_ledger.topic_name import cursor_node_of, node_of
    from bookstand.storage.format.position import Position

    random_numbers = np.random.default_rng(13)
    properties, ledgers = [], []
    with bookstand.open(path, durability="none") as store:
        for number in range(INDEXES // _BUCKET):
            first = 1_000_000 + number * _LEDGERS
            key = BucketKey(first, first + _LEDGERS - 1)
            ledgers += [LedgerInfo(one, _BUCKET // _LEDGERS, 1, 1) for one in range(first, first + _LEDGERS)]
            at = _BEGIN + number * _BETWEEN_BUCKETS + random_numbers.integers(0, _HOUR, _BUCKET)
            indexes = Indexes.of(
                at,
                np.repeat(np.arange(first, first + _LEDGERS), _BUCKET // _LEDGERS),
                np.tile(np.arange(_BUCKET // _LEDGERS), _LEDGERS),
            )
            labels = custom_metadata(BucketLabels(str(key), _TOPIC, _CURSOR))
            with store.create_ledger(custom_metadata=labels) as writer:
                writer.append_many(seal(indexes, _STEP, _PER_SEGMENT).entries)
            properties.append((str(key), str(writer.id)))
        store.nodes.put(node_of(_TOPIC), encode_ledger_info(ManagedLedgerInfo(ledgers)))
        info = CursorInfo(-1, Position(999_999, -1), cursor_properties=tuple(properties))
        store.nodes.put(cursor_node_of(_TOPIC, _CURSOR), encode_cursor_info(info))
    middle = INDEXES // _BUCKET // 2
    return 1_000_000 + middle * _LEDGERS, _BEGIN + middle * _BETWEEN_BUCKETS


# -- a bookie's disk ---------------------------------------------------------------------------------------------------


def _disk_figure(row: Row, spark: SparkSession, folder: Path, rounds: int, kind: str) -> Figure:
    disk = folder / "disk"
    count = _multiply(disk, folder)

    def alone() -> Sample:
        return _clocked(lambda: _read_alone(disk, count), count)

    def with_spark() -> Sample:
        return _read_rows(lambda: spark.read.format("bookie").option("table", "entries").load(str(disk)), count, count)

    measured = interleave({"spark": with_spark, "alone": alone}, rounds)
    return ratio(row, measured["spark"], measured["alone"], f"{count} entries, planning included, on {kind}")


def _multiply(disk: Path, folder: Path) -> int:
    """Repeat the entries of a recorded disk until its logs have a gibibyte, continuing each ledger."""
    from bookstand.disk.format import entry_log
    from bookstand.disk.format.entry_block import TryAllDigests
    from bookstand.storage.format.digest import digest_for
    from bookstand.storage.format.entry_batch import encode_entries

    digest = digest_for("crc32c", b"")
    with tarfile.open(_RECORDING / "bookie-0.tar.xz") as packed:
        packed.extractall(folder / "recorded", filter="data")
    payloads: dict[int, list[bytes]] = {}
    for log in sorted((folder / "recorded").rglob("*.log")):
        if log.stat().st_size and "ledgers" in str(log) and log.parent.name == "current":
            for block in entry_log.read(log, TryAllDigests(), [].append):
                for at in np.flatnonzero(block.digest_sizes == digest.size).tolist():
                    payloads.setdefault(int(block.ledger_ids[at]), []).append(block.stored(at)[32 + digest.size :])
    ledgers, journal = disk / "bookie-0" / "ledgers" / "current", disk / "bookie-0" / "journal" / "current"
    cookie = '5\nbookieHost: "bookie-0"\njournalDir: "journal"\nledgerDirs: "1\\tledgers"\ninstanceId: "i"\n'
    for place in (ledgers, journal):
        place.mkdir(parents=True)
        (place / "VERSION").write_text(cookie)
    (ledgers / "lastMark").write_bytes(bytes(16))
    (journal / "0.txn").write_bytes(struct.pack(">4si", b"BKLG", 6).ljust(512, b"\0"))
    ends = dict.fromkeys(payloads, (0, 0))
    order = random.Random(13)
    written = number = count = 0
    while written < DISK_BYTES:
        with (ledgers / f"{number:x}.log").open("wb") as log_file:
            log_file.write(struct.pack(">4siqi", b"BKLO", 1, 0, 0).ljust(1024, b"\0"))
            while log_file.tell() < min(_LOG_BYTES, DISK_BYTES - written):
                for ledger_id in order.sample(sorted(payloads), len(payloads)):
                    entry_id, length = ends[ledger_id]
                    group = payloads[ledger_id]
                    made = encode_entries(digest, ledger_id, entry_id, entry_id - 1, length, group)
                    log_file.writelines(part for _, one in made.pairs() for part in (struct.pack(">i", len(one)), one))
                    ends[ledger_id] = entry_id + len(group), length + sum(map(len, group))
                    count += len(group)
            written += log_file.tell()
        number += 1
    return count


def _read_alone(disk: Path, count: int) -> None:
    from bookstand.pipeline.tables.query import query
    from bookstand.pipeline.tables.sources import bookies
    from bookstand.pipeline.tables.tables import read

    found = sum(batch.num_rows for batch in read([bookies(disk)], query("entries")))
    if found != count:
        raise RuntimeError(f"{found} of {count} entries were read")


# -- clocks ------------------------------------------------------------------------------------------------------------


def _read_rows(frame: Callable[[], DataFrame], count: int, per: int) -> Sample:
    """Measure reading all rows with all columns; an observation in the plan verifies the number of rows."""
    made = frame()

    def take() -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen = Observation()
        made.observe(seen, f.count(f.lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
        if seen.get["rows"] != count:
            raise RuntimeError(f"{seen.get['rows']} of {count} rows were read")

    return _clocked(take, per)


def _clocked(operation: Callable[[], object], count: int) -> Sample:
    gc.collect()
    wall, cpu = time.perf_counter(), tree_cpu()
    operation()
    return Sample((tree_cpu() - cpu) / count, (time.perf_counter() - wall) / count)
