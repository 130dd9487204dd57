"""Alternative ways to rebuild buckets from a table of messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bookstand.delivery.tracker.bucket.key import BucketKey
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.pipeline.jobs.bucket_cutting import CutSettings
from bookstand.pipeline.jobs.bucket_staging import ENTRY_LIMIT, BucketChange, StagedBucket

_CUT = CutSettings()


def one_process(path: Path, files: Sequence[str], cursor: str) -> None:
    """Rebuild topic by topic, each of which is a row group of the table, in one process."""
    import pyarrow.parquet as pq

    import bookstand

    with bookstand.open(path) as store:
        for file in files:
            table = pq.ParquetFile(file, read_dictionary=["topic"])
            for number in range(table.num_row_groups):
                rows = table.read_row_group(number)
                topic = rows.column("topic")[0].as_py()
                ledgers, entries, times = (
                    rows.column(name).to_numpy() for name in ("ledger_id", "entry_id", "deliver_at_ms")
                )
                buckets = []
                start = 0
                while start < len(ledgers):
                    ledger_id = int(ledgers[start])
                    end = int(ledgers.searchsorted(ledger_id, side="right"))
                    indexes = Indexes(times[start:end], ledgers[start:end], entries[start:end])
                    buckets.append(_sealed(cursor, indexes))
                    start = end
                _commit(store, topic, cursor, buckets)


def _sealed(cursor: str, indexes: Indexes) -> StagedBucket:
    key = BucketKey(int(indexes.ledger_ids[0]), int(indexes.ledger_ids[-1]))
    return StagedBucket(cursor, key, _CUT.seal(indexes, ENTRY_LIMIT).entries)


def _commit(store: Any, topic: str, cursor: str, buckets: Iterable[StagedBucket]) -> None:
    change = BucketChange(store, topic, {cursor: 0}, buckets)
    with store.transaction() as transaction:
        change(transaction)
    change.finish()


def shuffled(spark: Any, path: Path, files: Sequence[str], cursor: str, work: Path, *, pandas: bool) -> None:
    """Shuffle the rows to their buckets, which the ledger determines, and seal each group."""
    import pyarrow as pa

    import bookstand
    from bookstand.disk.topics.topics import topics
    from bookstand.pipeline.jobs.bucket_staging import stage, staged
    from bookstand.pipeline.tables.sources import STORE, DataSource, open_source

    folder = work / f"{path.name}-shuffled"
    folder.mkdir(parents=True)

    def seal(ledger_id: int, times: Any, ledgers: Any, entries: Any) -> int:
        indexes = Indexes(times, ledgers, entries)
        snapshot = _CUT.seal(indexes, ENTRY_LIMIT)
        stage(folder, cursor, ledger_id, BucketKey(ledger_id, ledger_id), snapshot)
        return indexes.size

    def of_arrow(rows: pa.Table) -> pa.Table:
        columns = {name: rows.column(name).to_numpy() for name in rows.column_names}
        ledger_id = int(columns["ledger_id"][0])
        count = seal(ledger_id, columns["deliver_at_ms"], columns["ledger_id"], columns["entry_id"])
        return pa.table({"ledger_id": [ledger_id], "rows": [count]})

    def of_pandas(rows: Any) -> Any:
        ledger_id = int(rows["ledger_id"].iloc[0])
        columns = (rows[name].to_numpy() for name in ("deliver_at_ms", "ledger_id", "entry_id"))
        count = seal(ledger_id, *columns)
        return type(rows)({"ledger_id": [ledger_id], "rows": [count]})

    groups = spark.read.parquet(*files).select("ledger_id", "entry_id", "deliver_at_ms").groupBy("ledger_id")
    schema = "ledger_id long, rows long"
    (groups.applyInPandas(of_pandas, schema) if pandas else groups.applyInArrow(of_arrow, schema)).collect()
    by_ledger = {bucket.key.first_ledger: bucket for bucket in staged(folder)}
    with open_source(DataSource(STORE, (str(path),))) as disks:
        known = {topic.name: topic.ledgers() for topic in topics(disks)}
    with bookstand.open(path) as store:
        for topic, ledgers in known.items():
            _commit(store, topic, cursor, [by_ledger[one] for one in ledgers if one in by_ledger])
    for file in folder.iterdir():
        file.unlink()
