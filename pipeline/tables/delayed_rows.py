"""Delayed messages with their delivery times, read from the entries of a topic or from a table of messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bookstand.delivery.tracker.bucket.rebuild import deliver_at_time
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes, concatenate
from bookstand.disk.topics.topics import DiskTopic
from bookstand.errors import MalformedError, MalformedMessageError
from bookstand.pipeline.execution.blob import pack, unpack

if TYPE_CHECKING:
    from bookstand.disk.disks import DiskLedger

COLUMNS = ("topic", "ledger_id", "entry_id", "deliver_at_ms")
"""Required columns of a table of messages. Each message of a batch has a row. A null time means no delay."""


def of_ledger(topic: DiskTopic, ledger: DiskLedger, first: int = 0) -> Indexes:
    """Delayed messages of a ledger, from entry ``first``. Malformed entries are reported and skipped."""
    times: list[int] = []
    entry_ids: list[int] = []
    for entry in ledger.entries(first):
        try:
            time = deliver_at_time(entry.payload)
        except MalformedMessageError as error:
            topic.report(f"it is taken for a message without delay: {error}", ledger.id, entry.entry_id)
            continue
        if time is not None:
            times.append(time)
            entry_ids.append(entry.entry_id)
    return Indexes.of(times, np.full(len(times), ledger.id), entry_ids)


def of_topic(topic: DiskTopic, ledger_ids: Iterable[int]) -> Iterator[Indexes]:
    """Delayed messages of a topic by ledger. Missing ledgers and entries are reported."""
    listed = {info.ledger_id: info.entries for info in topic.info.ledgers}
    for ledger_id in ledger_ids:
        ledger = topic.ledger(ledger_id)
        if ledger is None:
            if listed[ledger_id]:
                topic.report(f"its {listed[ledger_id]} entries are not to be had", ledger_id)
            continue
        for lost, last in ledger.extent.missing:
            topic.report(f"entries {lost} to {last} are not to be had", ledger_id)
        yield of_ledger(topic, ledger)


def of_table(file: str, topic: str, row_groups: Sequence[int]) -> Iterator[Indexes]:
    """Delayed messages of a topic from row groups of a Parquet file, which must have no messages of other topics."""
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file, read_dictionary=["topic"]).read_row_groups(list(row_groups), columns=list(COLUMNS))
    found = dict(by_topic(table))
    if found.keys() - {topic}:
        raise MalformedError(f"{file}: row groups of topic {topic} have messages of others")
    if topic in found:
        yield found[topic]


def by_topic(table: Any) -> Iterator[tuple[str, Indexes]]:
    """Delayed messages in a table (:data:`COLUMNS`) by topic, in the order of ledgers and entries."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in ("topic", "deliver_at_ms"):
        if table.column(name).null_count:
            table = table.filter(pc.is_valid(table.column(name)))
    # Codes are comparable only with one dictionary for all chunks.
    topics = table.column("topic").unify_dictionaries().combine_chunks()
    topics = topics if pa.types.is_dictionary(topics.type) else topics.dictionary_encode()
    codes = topics.indices.to_numpy()
    columns = [table.column(name).to_numpy() for name in ("deliver_at_ms", "ledger_id", "entry_id")]
    for code, name in enumerate(topics.dictionary.to_pylist()):
        here = codes == code
        if here.any():
            yield name, _each_once(Indexes.of(*(columns if here.all() else (column[here] for column in columns))))


def in_order(rows: Indexes) -> Indexes:
    """Sort rows by ledger and entry, the order of the topic."""
    ledgers, entries = rows.ledger_ids, rows.entry_ids
    follows = (ledgers[1:] > ledgers[:-1]) | ((ledgers[1:] == ledgers[:-1]) & (entries[1:] > entries[:-1]))
    if follows.all():
        return rows
    order = np.lexsort((entries, ledgers))
    return Indexes(*(column[order] for column in rows))


def _each_once(rows: Indexes) -> Indexes:
    """Sort rows in the order of the topic and retain one for each entry: a batch is delayed as a whole."""
    rows = in_order(rows)
    fresh = np.ones(rows.size, dtype=np.bool_)
    fresh[1:] = np.diff(rows.ledger_ids).astype(np.bool_) | np.diff(rows.entry_ids).astype(np.bool_)
    return rows if fresh.all() else Indexes(*(column[fresh] for column in rows))


# -- serialization -----------------------------------------------------------------------------------------------------


def packed_rows(rows: Indexes) -> bytes:
    return pack({}, [column.data for column in rows])


def unpacked_rows(pieces: Iterable[bytes]) -> Indexes:
    """Merge pieces in the order of the topic. An entry may be in several pieces if it is a batch."""
    parts = [Indexes(*(np.frombuffer(one, dtype=np.int64) for one in unpack(piece)[1])) for piece in pieces]
    return _each_once(concatenate(parts)) if parts else Indexes.of([], [], [])
