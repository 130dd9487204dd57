"""Staging of sealed buckets: attempts write them to files, and the commit writes them to the store in one
transaction."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bookstand.delivery.tracker.bucket.key import BucketKey, BucketLabels, read_properties
from bookstand.delivery.tracker.bucket.snapshot.codec import Snapshot, SnapshotDamagedError
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.disk.topics.cursors import DiskCursor
from bookstand.disk.topics.delayed import BROKERS_OWN
from bookstand.disk.topics.topics import DiskTopic
from bookstand.errors import NoSuchNodeError
from bookstand.ledger.handles.writer import LedgerWriter
from bookstand.ledger.transaction import Transaction
from bookstand.managed_ledger.records import CursorInfo, decode_cursor_info, encode_cursor_info
from bookstand.managed_ledger.topic_name import cursor_node_of
from bookstand.pipeline.execution.blob import packed, unpack
from bookstand.pipeline.execution.unit import Result, Unit, fingerprint
from bookstand.pipeline.jobs.topics import is_wanted
from bookstand.proto.expansion import ExpansionLimits
from bookstand.storage.format.digest import digest_for
from bookstand.storage.format.entry_codec import HEADER_BYTES
from bookstand.storage.storage import Storage
from bookstand.store import Store

ENTRY_LIMIT = (5 << 20) - HEADER_BYTES - digest_for("crc32c", b"").size
"""Maximum payload of an entry in a store that is opened with the default settings."""


def stage(folder: Path, cursor: str, number: int, key: BucketKey, snapshot: Snapshot) -> None:
    """Write a sealed bucket to a file in the folder of an attempt."""
    head = {"cursor": cursor, "key": list(key), "rows": snapshot.indexes.size}
    with (folder / f"{number:08}.bucket").open("wb") as file:
        file.writelines(packed(head, snapshot.entries))


class StagedBucket(NamedTuple):
    cursor: str
    key: BucketKey
    entries: list[bytes]


def staged(folder: Path) -> Iterator[StagedBucket]:
    for file in sorted(folder.glob("*.bucket")):
        head, pieces = unpack(file.read_bytes())
        yield StagedBucket(head["cursor"], BucketKey(*head["key"]), list(map(bytes, pieces)))


def cursor_names(topic: DiskTopic, wanted: Sequence[str] = ()) -> list[str]:
    """Names of the topic's cursors that match ``wanted``; without it, of all except the broker's internal cursors."""
    return [
        name for name in topic.cursors() if is_wanted(name, wanted) and (wanted or not name.startswith(BROKERS_OWN))
    ]


def cursor_fingerprint(cursor: DiskCursor) -> str:
    """Fingerprint of a cursor's mark-delete position, acknowledgments and properties, except its buckets."""
    named = read_properties(cursor.cursor_properties.items())
    buckets = {*map(str, named.buckets), *named.malformed}
    properties = sorted((name, value) for name, value in cursor.cursor_properties.items() if name not in buckets)
    acked = hashlib.sha256()
    for ledger_id, bitmap in sorted(cursor.state.acked.items()):
        acked.update(b"%d %b" % (ledger_id, bitmap.serialize()))
    return fingerprint([list(cursor.state.mark_delete), acked.hexdigest(), properties])


def is_unchanged(storage: Storage, unit: Unit, told: Result, limits: ExpansionLimits) -> bool:
    """Return True if the cursors still have the buckets that the unit created."""
    created: dict[str, dict[str, str]] = told.facts.get("buckets", {})
    for cursor, buckets in created.items():
        info = _record(storage, cursor_node_of(unit.of["topic"], cursor), limits)
        found = read_properties(info.cursor_properties).buckets
        if {str(key): str(ledger_id) for key, ledger_id in found.items()} != buckets:
            return False
    return True


def change_of(store: Store, unit: Unit, result: Result) -> BucketChange:
    """Change that writes the staged buckets of an attempt, for the cursors whose versions the result has."""
    versions = result.facts["versions"]
    buckets = (one for one in staged(Path(result.staged or "")) if one.cursor in versions)
    return BucketChange(store, unit.of["topic"], versions, buckets)


def _record(storage: Storage, path: str, limits: ExpansionLimits) -> CursorInfo:
    stored = storage.node(path)
    if stored is None:
        raise NoSuchNodeError(f"there is no node {path!r}")
    return decode_cursor_info(stored[0], f"node {path}", limits)


class BucketChange:
    """Change that replaces all buckets of some cursors of a topic by the staged buckets."""

    def __init__(self, store: Store, topic: str, versions: dict[str, int], buckets: Iterable[StagedBucket]) -> None:
        self._snapshots = BucketSnapshotStorage(store._client)
        self._storage = store.storage
        self._limits = store.expansion_limits
        self._topic = topic
        self._versions = versions
        self._buckets = buckets
        self._writers: list[LedgerWriter] = []

    def __call__(self, transaction: Transaction) -> dict[str, Any]:
        created: dict[str, dict[str, str]] = {cursor: {} for cursor in self._versions}
        for bucket in self._buckets:
            key = str(bucket.key)
            labels = BucketLabels(key, self._topic, bucket.cursor)
            writer = self._snapshots.create_in(transaction, bucket.entries, labels)
            self._writers.append(writer)
            created[bucket.cursor][key] = str(writer.id)
        for cursor, version in self._versions.items():
            self._replace(transaction, cursor, version, created[cursor])
        return {"buckets": created}

    def _replace(self, transaction: Transaction, cursor: str, version: int, created: dict[str, str]) -> None:
        path = cursor_node_of(self._topic, cursor)
        info = _record(self._storage, path, self._limits)
        properties = dict(info.cursor_properties)
        found = read_properties(info.cursor_properties)
        if not (created or found.buckets or found.malformed):
            return
        for name in (*map(str, found.buckets), *found.malformed):
            del properties[name]
        for key, ledger_id in found.buckets.items():
            if self._is_ours(ledger_id, BucketLabels(str(key), self._topic, cursor)):
                self._snapshots.delete_in(transaction, ledger_id)
        properties.update(created)
        changed = info._replace(cursor_properties=tuple(properties.items()))
        transaction.put_node(path, encode_cursor_info(changed), version)

    def _is_ours(self, ledger_id: int, labels: BucketLabels) -> bool:
        """Return True if the ledger has the labels of the bucket. Other ledgers must not be deleted."""
        try:
            return self._storage.metadata(ledger_id) is not None and self._snapshots.read_labels(ledger_id) == labels
        except SnapshotDamagedError:
            return False

    def finish(self) -> None:
        self._snapshots.finish(self._writers)
