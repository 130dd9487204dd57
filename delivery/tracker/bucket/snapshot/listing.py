"""What snapshots of delayed messages a store has, for who looks at it from outside. Nothing is opened or changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bookstand.delivery.tracker.bucket.key import (
    BucketKey,
    BucketLabels,
    MalformedBucketPropertyError,
    parse_key,
    read_labels,
)
from bookstand.delivery.tracker.bucket.recovery import GONE
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.errors import IncorrectParameterError, MalformedError, NoSuchLedgerError, NoSuchNodeError
from bookstand.ledger.client import Client
from bookstand.managed_ledger.records import decode_cursor_info
from bookstand.managed_ledger.topic_name import cursor_node_of
from bookstand.storage.metadata_store import Nodes


class BucketSnapshot(NamedTuple):
    """A snapshot, by what its ledger says that it is."""

    ledger_id: int
    topic: str
    cursor: str
    key: str
    """The name of the property that its cursor should have."""
    ledgers: BucketKey | None
    """The ledgers of the topic that it is about, as the key says; None if it says no such thing."""
    segments: int | None
    messages: int | None
    """How many it was sealed with; like the others, None if the snapshot is damaged."""
    first_time: int | None
    last_time: int | None
    """When the first and the last of them are due."""
    orphaned: bool | None
    """Whether no cursor names it: it is left over, and goes when its cursor's tracker finds something wrong. None: the
    cursor's record cannot be read."""
    problem: str | None
    """What is damaged, in words."""


def bucket_snapshots(client: Client) -> Iterator[BucketSnapshot]:
    """All there are, by ledger. The metadata of every ledger of the store is looked at."""
    storage = BucketSnapshotStorage(client, look_only=True)
    for ledger_id in client.list():
        try:
            labels = read_labels(client.read_metadata(ledger_id).custom_metadata)
            if labels is not None:
                found = _described(client, storage, ledger_id, labels)
                # One that went in between was no orphan.
                client.read_metadata(ledger_id)
                yield found
        except NoSuchLedgerError:
            continue


def _described(client: Client, storage: BucketSnapshotStorage, ledger_id: int, labels: BucketLabels) -> BucketSnapshot:
    segments = messages = first = last = orphaned = problem = None
    try:
        metadata = storage.read_metadata(ledger_id)
        segments = len(metadata.metadata_list)
        messages = sum(map(len, metadata.bitmaps().values()))
        first = min((one.min_schedule_timestamp for one in metadata.metadata_list), default=None)
        last = max((one.max_schedule_timestamp for one in metadata.metadata_list), default=None)
    except GONE as error:
        problem = str(error)
    try:
        orphaned = _named_ledger(client, labels) != str(ledger_id)
    except MalformedError as error:
        problem = problem or str(error)
    return BucketSnapshot(
        ledger_id,
        labels.topic,
        labels.cursor,
        labels.key,
        _range_of(labels.key),
        segments,
        messages,
        first,
        last,
        orphaned,
        problem,
    )


def _range_of(key: str) -> BucketKey | None:
    try:
        return parse_key(key)
    except MalformedBucketPropertyError:
        return None


def _named_ledger(client: Client, labels: BucketLabels) -> str | None:
    """Which ledger the cursor has for the bucket; None if it has none, or is none."""
    nodes = Nodes(client.storage, client.check_usable, client.check_writable)
    try:
        path = cursor_node_of(labels.topic, labels.cursor)
        stored, _ = nodes.get(path)
    except (NoSuchNodeError, IncorrectParameterError):
        # The labels may be no names at all.
        return None
    return dict(decode_cursor_info(stored, f"node {path}").cursor_properties).get(labels.key)
