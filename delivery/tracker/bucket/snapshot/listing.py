"""Listing of the bucket snapshots in a store, for tools. Read-only."""

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
    """A snapshot, as labelled by its ledger."""

    ledger_id: int
    topic: str
    cursor: str
    key: str
    """Name of the property that its cursor should have."""
    ledgers: BucketKey | None
    """Ledgers of the topic that it covers, parsed from the key; None if the key is malformed."""
    segments: int | None
    messages: int | None
    """Number of messages that it was sealed with; None, like the other numbers, if the snapshot is damaged."""
    first_time: int | None
    last_time: int | None
    """Times of the first and the last message."""
    orphaned: bool | None
    """True if no cursor names it. It is deleted when its cursor's tracker recovers from damage. None if the cursor's
    record cannot be read."""
    problem: str | None
    """Description of the damage."""


def bucket_snapshots(client: Client) -> Iterator[BucketSnapshot]:
    """Yield all snapshots, sorted by ledger. Reads the metadata of every ledger."""
    storage = BucketSnapshotStorage(client, read_only=True)
    for ledger_id in client.list():
        try:
            labels = read_labels(client.read_metadata(ledger_id).custom_metadata)
            if labels is not None:
                found = _describe(client, storage, ledger_id, labels)
                # A snapshot deleted in the meantime was not an orphan.
                client.read_metadata(ledger_id)
                yield found
        except NoSuchLedgerError:
            continue


def _describe(client: Client, storage: BucketSnapshotStorage, ledger_id: int, labels: BucketLabels) -> BucketSnapshot:
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
    """Ledger id in the cursor's property for the bucket; None if the property or the cursor is missing."""
    nodes = Nodes(client.storage, client.check_usable, client.check_writable)
    try:
        path = cursor_node_of(labels.topic, labels.cursor)
        stored, _ = nodes.get(path)
    except (NoSuchNodeError, IncorrectParameterError):
        # The labels may not be valid names.
        return None
    return dict(decode_cursor_info(stored, f"node {path}").cursor_properties).get(labels.key)
