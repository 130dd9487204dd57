"""Table of messages: the entries of topics' ledgers, decoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bookstand.disk.damage import Damage
from bookstand.disk.topics.messages import NO_PLACE, DiskMessage, Value
from bookstand.managed_ledger.message.metadata import MessageMetadata, SingleMessageMetadata
from bookstand.pipeline.tables.arrow import pa
from bookstand.pipeline.tables.entries import DiskWork, EntryColumns, plan_entries, runs
from bookstand.pipeline.tables.partitioning import PlanDamage, ReadPart
from bookstand.pipeline.tables.query import Query
from bookstand.pipeline.tables.record_batches import Row, damage_text, damaged_row, from_rows
from bookstand.pipeline.tables.sources import DataSource, open_source, without_metadata
from bookstand.storage.format.position import Position

# Columns that require decompression of the payload. Payloads of batches are always decompressed.
_PACKED = frozenset(("payload", "payload_size"))


class MessageWork(NamedTuple):
    """Work item: entries, and the topic of each ledger."""

    entries: Any
    topics: Mapping[int, str]


def plan(place: DataSource, query: Query) -> list[ReadPart]:
    with open_source(place, query.passwords) as source:
        dump = source.dump
        if dump is None:
            raise without_metadata(place)
        topics: dict[int, str] = {}
        for name in dump.topics:
            if query.wanted.has("topic", name):
                topics.update((ledger.ledger_id, name) for ledger in dump.topic_info(name).ledgers)
        gone = list(_gone(place, query, topics, source))
        parts = plan_entries(place, query, topics.__contains__, source)
        found = [
            part if isinstance(part.work, PlanDamage) else part._replace(work=of_topics(part.work, topics))
            for part in parts
        ]
        return (
            [*found, ReadPart(place, of_topics(gone, topics)._replace(entries=PlanDamage(tuple(gone))))]
            if gone
            else found
        )


def of_topics(work: Any, topics: Mapping[int, str]) -> MessageWork:
    """Make a work item for messages from one for entries."""
    ledger_ids = work.slots if isinstance(work, DiskWork) else [one.ledger_id for one in work]
    return MessageWork(work, {ledger_id: topics[ledger_id] for ledger_id in ledger_ids if ledger_id in topics})


def _gone(place: DataSource, query: Query, topics: Mapping[int, str], source: Any) -> Iterator[Damage]:
    """Report missing ledgers of topics that should have entries."""
    known = set(source.ledger_ids)
    for name in dict.fromkeys(topics.values()):
        for info in source.dump.topic_info(name).ledgers:
            ledger_id = info.ledger_id
            if info.entries and ledger_id not in known and query.wanted.has("ledger_id", ledger_id):
                yield Damage(place.name, NO_PLACE, f"{info.entries} entries of {name} are nowhere", ledger_id)


def read(part: ReadPart, query: Query) -> Iterator[pa.RecordBatch]:
    """Read a row for each message."""
    work, topics = (part.work.entries, part.work.topics) if isinstance(part.work, MessageWork) else (part.work, {})
    for run in runs(part._replace(work=work), query):
        if isinstance(run, EntryColumns):
            yield from from_rows(query, part.place, _rows(part.place, run, topics, query))
        else:
            yield from from_rows(query, part.place, (damaged_row(one, topic=topics.get(one.ledger_id)) for one in run))


def _rows(place: DataSource, run: EntryColumns, topics: Mapping[int, str], query: Query) -> Iterator[Row]:
    unpacks = not _PACKED.isdisjoint(query.names)
    low, high = query.wanted.range("publish_ms")
    due_low, due_high = query.wanted.range("deliver_at_ms")
    by_due = "deliver_at_ms" in query.wanted.columns
    ledger_ids = np.broadcast_to(run.ledger_ids, len(run.entry_ids)).tolist()
    damage: list[Damage] = []
    for ledger_id, entry_id, data in zip(ledger_ids, run.entry_ids.tolist(), run.pieces(), strict=True):
        message = DiskMessage(place.name, Position(ledger_id, entry_id), data, damage.append, place.limits)
        metadata = message.metadata
        if metadata is not None and not damage:
            # Do not unpack messages that the predicate excludes.
            if not low <= _signed(metadata.publish_time) <= high:
                continue
            due = metadata.deliver_at_time
            if by_due and (due is None or not due_low <= due <= due_high):
                continue
        row: Row = {"topic": topics.get(ledger_id), "ledger_id": ledger_id, "entry_id": entry_id}
        if metadata is not None:
            row |= _of_entry(message, metadata)
        rows = list(_of_values(message, row, unpacks)) if metadata is not None else []
        if damage:
            error = "\n".join(map(damage_text, damage))
            damage.clear()
            if rows and len(rows) == message.count:
                rows = [{**one, "error": error} for one in rows]
            else:
                rows.append({**row, "error": error})
        yield from rows


def _of_entry(message: DiskMessage, metadata: MessageMetadata) -> Row:
    return {
        "batch_size": message.count,
        "producer": metadata.producer_name,
        "sequence_id": _long(metadata.sequence_id),
        "publish_ms": _long(metadata.publish_time),
        "event_ms": _long(metadata.event_time),
        "deliver_at_ms": metadata.deliver_at_time,
        "key": metadata.partition_key,
        "ordering_key": metadata.ordering_key,
        "properties": list(metadata.properties),
        "compression": message.compression,
        "null_value": bool(metadata.null_value),
        "encrypted": message.is_encrypted,
        "chunk_uuid": metadata.uuid if message.is_chunk else None,
        "chunk_id": (metadata.chunk_id or 0) if message.is_chunk else None,
        "chunks": metadata.num_chunks_from_msg if message.is_chunk else None,
        "schema_version": metadata.schema_version,
    }


def _of_values(message: DiskMessage, row: Row, unpacks: bool) -> Iterator[Row]:
    metadata = message.metadata
    assert metadata is not None
    is_batch = metadata.num_messages_in_batch is not None and not message.is_chunk and not message.is_encrypted
    values: Iterator[Value] | Sequence[None] = message.values() if unpacks or is_batch else [None]
    for index, value in enumerate(values):
        found = dict(row)
        if value is not None:
            found["payload"] = value.payload
            found["payload_size"] = len(value.payload)
        if is_batch:
            found["batch_index"] = index
            if value is not None and value.metadata is not None:
                found |= _of_single(value.metadata)
        yield found


def _of_single(single: SingleMessageMetadata) -> Row:
    """Columns from the metadata of a single message in a batch."""
    row: Row = {
        "event_ms": _long(single.event_time),
        "key": single.partition_key,
        "ordering_key": single.ordering_key,
        "properties": list(single.properties),
        "null_value": bool(single.null_value),
    }
    if single.sequence_id is not None:
        row["sequence_id"] = _long(single.sequence_id)
    return row


def _long(number: int | None) -> int | None:
    return None if number is None else _signed(number)


def _signed(number: int) -> int:
    """The signed 64-bit integer with the bits of ``number``, as in Java."""
    return number if number < 1 << 63 else number - (1 << 64)
