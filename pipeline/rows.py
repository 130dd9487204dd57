"""What stores and disks hold, as rows for analysts: plain functions over the readers of :mod:`bookstand.disk`.

Each gives columns of one length, some thousand rows at a time, in the order of :data:`TABLES`. What cannot be read is
in the readers' ``damage``, and costs no other row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from pyroaring import BitMap64

from bookstand.disk.content import content_of
from bookstand.disk.cursors import cursors
from bookstand.disk.delayed import DelayedIndex, add, delayed, positions_of
from bookstand.disk.topics import DiskTopic, topics

if TYPE_CHECKING:
    from bookstand.disk.disks import Disks

Columns = tuple[Sequence[Any], ...]

TEXT, NUMBER, NUMBERS = "text", "number", "numbers"

TABLES: Mapping[str, Mapping[str, str]] = {
    "ledgers": {
        "ledger_id": NUMBER,
        "kind": TEXT,
        "topic": TEXT,
        "cursor": TEXT,
        "state": TEXT,
        "entries": NUMBER,
        "bytes": NUMBER,
        "last_entry": NUMBER,
        "digest": TEXT,
        "created": NUMBER,
    },
    "messages": {
        "topic": TEXT,
        "ledger_id": NUMBER,
        "entry_id": NUMBER,
        "deliver_at": NUMBER,
        "publish_time": NUMBER,
        "producer": TEXT,
        "sequence_id": NUMBER,
        "partition_key": TEXT,
        "messages": NUMBER,
        "compression": TEXT,
        "bytes": NUMBER,
        "wrong": TEXT,
    },
    "cursors": {
        "topic": TEXT,
        "cursor": TEXT,
        "mark_delete_ledger": NUMBER,
        "mark_delete_entry": NUMBER,
        "backlog": NUMBER,
        "holes": NUMBER,
        "acknowledged": NUMBER,
        "batches": NUMBER,
        "recovered_from": TEXT,
        "cursor_ledger": NUMBER,
    },
    "acks": {
        "topic": TEXT,
        "cursor": TEXT,
        "ledger_id": NUMBER,
        "first_entry": NUMBER,
        "last_entry": NUMBER,
        "unacknowledged": NUMBERS,
    },
    "delayed_index": {
        "topic": TEXT,
        "cursor": TEXT,
        "bucket": TEXT,
        "deliver_at": NUMBER,
        "ledger_id": NUMBER,
        "entry_id": NUMBER,
    },
}
"""Their columns and what is in them. Times are in ms since 1970. A row of ``acks`` is a range of entries, or one entry
of which some messages, by their place in the batch, are not acknowledged."""

_ROWS = 8192


def of_table(table: str, disks: Disks, only: Iterable[str] = ()) -> Iterator[Columns]:
    """``only``: topics; the rows of others are left out, and ledgers are not asked for them."""
    return _READERS[table](disks, frozenset(only))


def ledgers(disks: Disks, only: frozenset[str]) -> Iterator[Columns]:
    known = set(disks.ledger_ids)
    return _in_columns(_ledger(disks, ledger_id, known) for ledger_id in disks.ledger_ids)


def _ledger(disks: Disks, ledger_id: int, known: set[int]) -> tuple[Any, ...]:
    ledger = disks.ledger(ledger_id)
    what, extent, metadata = content_of(ledger, known.__contains__), ledger.extent, ledger.metadata
    return (
        ledger_id,
        what.kind,
        what.topic or None,
        what.cursor or None,
        extent.state,
        extent.last_entry + 1 - (extent.missing.ids if len(extent.missing) else 0),
        extent.length,
        extent.last_entry,
        ledger.digest_name,
        None if metadata is None or metadata.ctime <= 0 else metadata.ctime,
    )


def messages(disks: Disks, only: frozenset[str]) -> Iterator[Columns]:
    for topic in _topics(disks, only):
        yield from _in_columns(map(_message, topic.messages()))


def _message(message: Any) -> tuple[Any, ...]:
    metadata = message.metadata
    known = metadata is not None
    return (
        message.topic,
        message.ledger_id,
        message.entry_id,
        metadata.deliver_at_time if known else None,
        metadata.publish_time if known else None,
        metadata.producer_name if known else None,
        metadata.sequence_id if known else None,
        metadata.partition_key if known else None,
        message.count,
        message.compression,
        len(message.data),
        "; ".join(message.wrong) or None,
    )


def cursor_states(disks: Disks, only: frozenset[str]) -> Iterator[Columns]:
    return _in_columns(
        (
            topic.name,
            cursor.name,
            *cursor.state.mark_delete,
            cursor.backlog,
            sum(len(ranges_of(acked)[0]) for acked in cursor.state.acked.values()),
            sum(map(len, cursor.state.acked.values())),
            len(cursor.state.batches),
            cursor.source.how,
            cursor.ledger_id,
        )
        for topic in _topics(disks, only)
        for cursor in cursors(topic)
    )


def acks(disks: Disks, only: frozenset[str]) -> Iterator[Columns]:
    for topic in _topics(disks, only):
        for cursor in cursors(topic):
            for ledger_id, acked in cursor.state.acked.items():
                firsts, lasts = ranges_of(acked)
                count = len(firsts)
                names = [topic.name] * count, [cursor.name] * count, [ledger_id] * count
                yield (*names, firsts, lasts, [None] * count)
            yield from _in_columns(
                (topic.name, cursor.name, at.ledger_id, at.entry_id, at.entry_id, sorted(_indexes(bits)))
                for at, bits in cursor.state.batches.items()
            )


def _indexes(bits: int) -> Iterator[int]:
    return (place for place in range(bits.bit_length()) if bits >> place & 1)


def delayed_index(disks: Disks, only: frozenset[str]) -> Iterator[Columns]:
    """Whatever has ever waited and is in a bucket still, or not acknowledged."""
    for topic in _topics(disks, only):
        for index in delayed(topic, 0):
            for bucket, rows in _by_bucket(index):
                count = rows.size
                names = [topic.name] * count, [index.cursor.name] * count, [bucket] * count
                yield (*names, rows.timestamps, rows.ledger_ids, rows.entry_ids)


def _by_bucket(index: DelayedIndex) -> Iterator[tuple[str | None, Any]]:
    held: dict[int, BitMap64] = {}
    for bucket in index.buckets:
        for segment in bucket.segments():
            add(held, positions_of(segment.indexes))
            yield bucket.property_name, segment.indexes
    for rows in index.rows_of_topic(held):
        yield None, rows


_READERS: Mapping[str, Callable[[Disks, frozenset[str]], Iterator[Columns]]] = {
    "ledgers": ledgers,
    "messages": messages,
    "cursors": cursor_states,
    "acks": acks,
    "delayed_index": delayed_index,
}


def _topics(disks: Disks, only: frozenset[str]) -> Iterator[DiskTopic]:
    return (topic for topic in topics(disks) if not only or topic.name in only)


def _in_columns(rows: Iterable[tuple[Any, ...]]) -> Iterator[Columns]:
    source = iter(rows)
    while some := list(islice(source, _ROWS)):
        yield tuple(zip(*some, strict=True))


def ranges_of(bitmap: BitMap64) -> tuple[Any, Any]:
    """Where runs of numbers begin and end, both included."""
    if not bitmap:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    numbers = np.array(bitmap.to_array(), dtype=np.uint64).view(np.int64)
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    return numbers[np.concatenate(([0], breaks + 1))], numbers[np.concatenate((breaks, [len(numbers) - 1]))]
