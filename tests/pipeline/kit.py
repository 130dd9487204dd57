"""Stores with topics, delayed messages and cursors, made as users make them, for jobs to work on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import bookstand
from bookstand.cursor.cursor import Cursor
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes, concatenate, distinct
from bookstand.disk.disks import Disks
from bookstand.disk.exporter.run import export_topics
from bookstand.disk.importer.run import import_disks
from bookstand.disk.metadata.dump import write_dump
from bookstand.disk.topics.cursors import cursor as cursor_of
from bookstand.disk.topics.delayed import DelayedIndex
from bookstand.disk.topics.topics import topic as topic_of
from bookstand.managed_ledger.message.format import encode_message
from bookstand.managed_ledger.records import CursorInfo
from bookstand.pipeline.tables.sources import STORE, DataSource, bookies, open_source
from bookstand.storage.format.position import Position
from tests.disk.cluster import Cluster
from tests.kit import change_entry

TOPIC = "persistent://acme/orders/{}"
NOW = 1_700_000_000_000


def fill(
    path: Path,
    topics: int = 2,
    ledgers: int = 3,
    per_ledger: int = 60,
    *,
    cursors: Iterable[str] = ("sub",),
    first: int = 0,
    delay: int = 1_000_000,
) -> Path:
    """A store with so many topics. Every fourth message is not delayed; each cursor has acknowledged some."""
    with bookstand.open(path) as store:
        for number in range(first, first + topics):
            ml = store.managed_ledger(TOPIC.format(number), max_entries_per_ledger=per_ledger)
            count = ledgers * per_ledger
            times = [None if place % 4 == 0 else NOW + (place * 7919 + number) % delay for place in range(count)]
            positions = ml.append_many([b"m%d" % place for place in range(count)], times)
            for shift, name in enumerate(cursors):
                with Cursor.open(ml, name) as cursor:
                    cursor.ack(positions[10 + shift :: 7]).result()
                    cursor.mark_delete(positions[5]).result()
    return path


def waiting(path: Path, topic: str, cursor: str = "sub", now: int = 0) -> list[tuple[int, int, int]]:
    """What waits for a cursor by its buckets and its topic."""
    with open_source(DataSource(STORE, (str(path),))) as disks:
        index = DelayedIndex(cursor_of(topic_of(disks, topic), cursor), now)
        parts = list(index.rows())
        assert not disks.damage
    return rows(concatenate(parts)) if parts else []


def in_buckets(path: Path, topic: str, cursor: str = "sub") -> dict[str, list[tuple[int, int, int]]]:
    """By key, what the buckets of a cursor hold."""
    with open_source(DataSource(STORE, (str(path),))) as disks:
        index = DelayedIndex(cursor_of(topic_of(disks, topic), cursor), 0)
        found = {
            str(bucket.key): [row for segment in bucket.segments() for row in rows(segment.indexes)]
            for bucket in index.buckets
        }
        assert not disks.damage
    return found


def rows(indexes: Indexes) -> list[tuple[int, int, int]]:
    return [tuple(row) for row in distinct(indexes).indexes]  # type: ignore[misc]


def content(path: Path, *, check: bool = True) -> Mapping[str, Any]:
    """Everything in a store but what is new with each one: ids of its own, times, and who wrote it."""
    with bookstand.open(path, create=False, read_only=True) as store:
        storage = store.storage
        ledgers = {
            ledger_id: [(first, stored) for first, stored in storage.runs(ledger_id, (1 << 63) - 1)]
            for ledger_id in store.list_ledgers()
        }
        metadata = {ledger_id: storage.metadata(ledger_id) for ledger_id in ledgers}
        nodes = {path: storage.node(path) for path in storage.node_paths("/")}
        assert not check or store.verify().ok
    return {"ledgers": ledgers, "metadata": metadata, "nodes": nodes}


def position(row: tuple[int, int, int]) -> Position:
    return Position(row[1], row[2])


def segments(path: Path, topic: str, cursor: str = "sub") -> list[list[tuple[int, int, int]]]:
    with open_source(DataSource(STORE, (str(path),))) as disks:
        index = DelayedIndex(cursor_of(topic_of(disks, topic), cursor), 0)
        return [rows(segment.indexes) for bucket in index.buckets for segment in bucket.segments()]


def entries_of_buckets(path: Path, topic: str, cursor: str = "sub") -> dict[str, list[bytes]]:
    """By key, the bytes of the snapshots."""
    with open_source(DataSource(STORE, (str(path),))) as disks:
        index = DelayedIndex(cursor_of(topic_of(disks, topic), cursor), 0)
        return {
            str(bucket.key): [entry.payload for entry in disks.ledger(bucket.ledger_id).entries()]
            for bucket in index.buckets
        }


def spread(store: Path, folder: Path, count: int) -> list[Path]:
    """The ledgers of a store in several; the first has the nodes."""
    paths = [folder / f"part-{number}" for number in range(count)]
    with bookstand.open(store) as whole:
        exported = export_topics(whole, folder / "exported", old_form=False)
        nodes = {path: whole.nodes.get(path)[0] for path in whole.storage.node_paths("/managed-ledgers")}
        ids = list(whole.list_ledgers())
    with Disks.open([exported.bookie], exported.metadata) as disks:
        for number, path in enumerate(paths):
            with bookstand.open(path) as part:
                import_disks(disks, part, ledgers=[one for one in ids if one % count == number])
                if number == 0:
                    for node, value in nodes.items():
                        part.nodes.put(node, value)
                    cursors = [one for one in ids if one % count and _is_of_cursor(disks, one)]
                    import_disks(disks, part, ledgers=cursors)
    return paths


def _is_of_cursor(disks: Disks, ledger_id: int) -> bool:
    metadata = disks.ledger(ledger_id).metadata
    return metadata is not None and "pulsar/cursor" in metadata.custom_metadata


def interleaved(files: Sequence[str], target: Path) -> Path:
    """The rows of all files in one, in turns, and in several row groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.concat_tables(pq.read_table(file) for file in files)
    order = np.argsort(np.arange(len(table)) * 7919 % len(table), kind="stable")
    pq.write_table(table.take(pa.array(order)), target, row_group_size=100)
    return target


def damage_a_bucket(path: Path, topic: str) -> None:
    """The last entry of the first bucket is flipped in the file."""
    with open_source(DataSource(STORE, (str(path),))) as disks:
        bucket = DelayedIndex(cursor_of(topic_of(disks, topic), "sub"), 0).buckets[0]
        last = disks.ledger(bucket.ledger_id).extent.last_entry
    change_entry(path, bucket.ledger_id, last, lambda stored: stored[:-1] + bytes((stored[-1] ^ 1,)))


def in_all_buckets(path: Path, topic: str, cursor: str = "sub") -> list[tuple[int, int, int]]:
    return [row for some in in_buckets(path, topic, cursor).values() for row in some]


def parquet(folder: Path) -> dict[str, Any]:
    """The tables of an export, by file."""
    import pyarrow.parquet as pq

    return {str(file.relative_to(folder)): pq.read_table(file).to_pydict() for file in folder.rglob("*.parquet")}


def copied(store: Path, target: Path) -> Path:
    with bookstand.open(store) as opened_store:
        opened_store.backup(target)
    return target


def topics_of(store: Path) -> list[str]:
    with open_source(DataSource(STORE, (str(store),))) as disks:
        assert disks.dump is not None
        return disks.dump.topics


def acks(path: Path, topic: str, cursor: str = "sub") -> Any:
    """What a cursor has acknowledged, and how the disk tells."""
    with open_source(DataSource(STORE, (str(path),))) as disks:
        found = cursor_of(topic_of(disks, topic), cursor)
        state = found.state
        acked = {ledger_id: list(bitmap) for ledger_id, bitmap in state.acked.items()}
        return found.next, acked, state.batches, state.properties, found.source.how


def clusters(folder: Path, *names: str) -> dict[str, DataSource]:
    """Disks of clusters with a bookie each, and the dump beside. All have ledgers of the same ids."""
    found = {}
    for number, name in enumerate(names):
        made = Cluster(folder / name)
        made.topic(
            {one: [encode_message(b"%d" % one, publish_time=1, deliver_at=5)] * 20 for one in range(number, number + 3)}
        )
        made.cursor("sub", CursorInfo(-1, Position(number, 3)))
        made.open().close()
        write_dump(folder / name / "metadata.jsonl.gz", made.nodes.values())
        found[name] = bookies(folder / name, str(folder / name / "metadata.jsonl.gz"))
    return found
