"""PIP-195's BucketSnapshotStorage on ledgers: each snapshot is a ledger, whose id is the bucket id.

A snapshot is created with all its entries in one commit, so a crash never leaves a partial one. The commit may include
other changes, such as cursor properties: :meth:`BucketSnapshotStorage.create_in` and
:meth:`~BucketSnapshotStorage.delete_in` take part in a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from bookstand.delivery.tracker.bucket.key import BucketLabels, custom_metadata, read_labels
from bookstand.delivery.tracker.bucket.snapshot.codec import (
    MAX_INDEX_BYTES,
    SnapshotDamagedError,
    SnapshotMetadata,
    SnapshotTooLargeError,
    decode_metadata,
    decode_segments,
    encode_metadata,
    encode_segment,
    encode_segment_metadata,
)
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.errors import (
    BookstandError,
    ClientClosedError,
    DigestMismatchError,
    IncorrectParameterError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StoreDamagedError,
)
from bookstand.ledger.client import Client
from bookstand.ledger.handles.handle import LedgerHandle
from bookstand.ledger.handles.writer import LedgerWriter
from bookstand.ledger.transaction import Transaction
from bookstand.ledger.validation import as_entry_id
from bookstand.storage.commit.futures import Pending, completed
from bookstand.storage.format.digest import digest_for
from bookstand.storage.format.entry_codec import HEADER_BYTES
from bookstand.storage.format.ledger_metadata import CLOSED
from bookstand.storage.logger import logger

# Number of cached ledger handles, of one or two kilobytes each.
_MAX_HANDLES = 1024


class Message(Protocol):
    """A generated protobuf message."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802


class BucketSnapshotStorage:
    """Thread-safe storage of bucket snapshots. A returned Pending is already complete. With ``read_only``, snapshots
    that are not closed stay so."""

    def __init__(self, client: Client, *, read_only: bool = False) -> None:
        self._client = client
        self._close_snapshots = not (read_only or client.read_only)
        self._closed = False
        self._handles: dict[int, LedgerHandle] = {}

    def start(self) -> None:
        """Start, or start again after :meth:`close`. The client must be open."""
        self._client.check_usable()
        self._closed = False

    def close(self) -> None:
        """Reject further calls. The store stays open."""
        self._closed = True
        self._handles.clear()

    # -- the PIP's interface ------------------------------------------------------------------------------------------

    def create_bucket_snapshot(
        self,
        snapshot_metadata: SnapshotMetadata | Message | bytes,
        bucket_snapshot_segments: Sequence[Indexes | Message | bytes],
        bucket_key: str,
        topic_name: str,
        cursor_name: str,
    ) -> Pending:
        """Store a snapshot; the result is the bucket id."""

        def create() -> int:
            first, *others = self._metadata_entries(snapshot_metadata)
            segments = [
                self._segment_entry(number, segment) for number, segment in enumerate(bucket_snapshot_segments, 1)
            ]
            return self.create([first, *segments, *others], BucketLabels(bucket_key, topic_name, cursor_name))

        return self._complete(create)

    def get_bucket_snapshot_metadata(self, bucket_id: int) -> Pending:
        """Read a :class:`SnapshotMetadata`."""
        return self._complete(lambda: self.read_metadata(bucket_id))

    def get_bucket_snapshot_segment(
        self, bucket_id: int, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> Pending:
        """Read a list of :class:`Indexes`. A segment number is the entry id, from 1; both bounds are inclusive."""
        return self._complete(lambda: self.read_segments(bucket_id, first_segment_entry_id, last_segment_entry_id))

    def get_bucket_snapshot_length(self, bucket_id: int) -> Pending:
        """Read the number of bytes of all entries."""
        return self._complete(lambda: self.read_length(bucket_id))

    def delete_bucket_snapshot(self, bucket_id: int) -> Pending:
        """Delete a snapshot. A missing one is not an error; a ledger with other labels is rejected."""
        return self._complete(lambda: self.delete(bucket_id))

    def _complete(self, call: Callable[[], Any]) -> Pending:
        try:
            if self._closed:
                raise ClientClosedError("the bucket snapshot storage is closed")
            return completed(call())
        except BookstandError as error:
            return completed(error=error)

    # -- in a transaction ---------------------------------------------------------------------------------------------

    @property
    def entry_limit(self) -> int:
        """Maximum size of an entry of a snapshot in bytes, for ``seal``."""
        return self._client.max_entry_bytes - HEADER_BYTES - digest_for(self._client.defaults.digest, b"").size

    def create_in(self, transaction: Transaction, entries: Sequence[bytes], labels: BucketLabels) -> LedgerWriter:
        """Create a snapshot with these entries of a ``Snapshot`` in a transaction; the writer's id is the bucket id.

        Pass the writer to :meth:`finish` after the commit. Otherwise the first reader closes the ledger.
        """
        writer = transaction.create_ledger(password=b"", custom_metadata=custom_metadata(labels))
        for entry in entries:
            transaction.append(writer, entry)
        return writer

    def finish(self, writers: Iterable[LedgerWriter]) -> None:
        for writer in writers:
            try:
                writer.close()
            except BookstandError as error:
                logger().warning("bucket snapshot %d was created, but not closed: %s", writer.id, error)

    def delete_in(self, transaction: Transaction, bucket_id: int) -> bool:
        """Delete a snapshot in a transaction; return False if it is missing."""
        self._handles.pop(bucket_id, None)
        if not self._exists(bucket_id):
            return False
        transaction.delete_ledger(bucket_id)
        return True

    def _exists(self, bucket_id: int) -> bool:
        try:
            custom = self._client.read_metadata(bucket_id).custom_metadata
        except NoSuchLedgerError:
            return False
        except StoreDamagedError:
            # The labels cannot be read, so trust the property that names the ledger.
            return True
        # The oldest format of metadata cannot contain labels.
        if custom and read_labels(custom) is None:
            raise IncorrectParameterError(f"ledger {bucket_id} is not a bucket snapshot: it is labelled {dict(custom)}")
        return True

    # -- in its own commit --------------------------------------------------------------------------------------------

    def create(self, entries: Sequence[bytes], labels: BucketLabels) -> int:
        with Transaction(self._client) as transaction:
            writer = self.create_in(transaction, entries, labels)
        self.finish([writer])
        return writer.id

    def delete(self, bucket_id: int) -> None:
        self._handles.pop(bucket_id, None)
        if self._exists(bucket_id):
            self._client.delete(bucket_id, missing_ok=True)

    def read_metadata(self, bucket_id: int) -> SnapshotMetadata:
        handle = self._open(bucket_id)
        what = f"bucket snapshot in ledger {bucket_id}"
        (first,) = self._read(handle, 0, 0)
        entry = decode_metadata(first, f"{what}, entry 0")
        try:
            length: int | None = self._length(handle)
        except (NoSuchEntryError, DigestMismatchError):
            # A read of the last segment will report this.
            length = None
        if entry.segment_count is None:
            return SnapshotMetadata(entry.metadata_list, f"{what}, entry 0", length)
        segments = list(entry.metadata_list)
        start = entry.segment_count + 1
        for number, data in enumerate(self._read(handle, start, max(start, self._last_entry(handle))), start):
            segments += decode_metadata(data, f"{what}, entry {number}").metadata_list
        if len(segments) != entry.segment_count:
            raise SnapshotDamagedError(
                f"{what}: entry 0 has {entry.segment_count} segments, but there is metadata for {len(segments)}"
            )
        return SnapshotMetadata(segments, f"{what}, entries 0 and {start} up", length)

    def read_segments(self, bucket_id: int, first: int, last: int) -> list[Indexes]:
        if not 1 <= as_entry_id(first) <= as_entry_id(last):
            raise IncorrectParameterError(f"segments must be a range of entries from 1, not {first} to {last}")
        handle = self._open_cached(bucket_id)
        names = [f"bucket snapshot in ledger {bucket_id}, entry {number}" for number in range(first, last + 1)]
        return decode_segments(self._read(handle, first, last), names)

    def list_snapshots(self, topic: str, cursor: str) -> list[int]:
        """List the snapshots labelled with this cursor. Reads the metadata of every ledger."""
        found = []
        for ledger_id in self._client.list():
            try:
                labels = read_labels(self._client.read_metadata(ledger_id).custom_metadata)
            except (NoSuchLedgerError, StoreDamagedError):
                continue
            if labels is not None and (labels.topic, labels.cursor) == (topic, cursor):
                found.append(ledger_id)
        return found

    def read_labels(self, bucket_id: int) -> BucketLabels | None:
        """Return the labels of a snapshot; None if it has no custom metadata, as in the oldest format.

        Raises :class:`SnapshotDamagedError` for other labels: opening such a ledger would close it.
        """
        custom = self._client.read_metadata(bucket_id).custom_metadata
        labels = read_labels(custom)
        if custom and labels is None:
            raise SnapshotDamagedError(f"ledger {bucket_id} is not a bucket snapshot: it is labelled {dict(custom)}")
        return labels

    def read_length(self, bucket_id: int) -> int:
        return self._length(self._open(bucket_id))

    def _length(self, handle: LedgerHandle) -> int:
        if handle.metadata.state == CLOSED:
            return handle.metadata.length
        last = self._last_entry(handle)
        return handle.read_unconfirmed(last, last)[0].cumulative_length if last >= 0 else 0

    # -- reading ------------------------------------------------------------------------------------------------------

    def _open(self, bucket_id: int) -> LedgerHandle:
        """Open a snapshot, with recovery if it is not closed, because it has no writer."""
        return self._client.open(bucket_id, self._close_snapshots, b"", None)

    def _open_cached(self, bucket_id: int) -> LedgerHandle:
        """Open a snapshot through a cache of handles, because segments are read one at a time."""
        handle = self._handles.get(bucket_id)
        if handle is None:
            handle = self._open(bucket_id)
            while len(self._handles) >= _MAX_HANDLES:
                self._handles.pop(next(iter(self._handles)), None)
            self._handles[bucket_id] = handle
        return handle

    def _last_entry(self, handle: LedgerHandle) -> int:
        if handle.metadata.state == CLOSED:
            return handle.metadata.last_entry_id
        # All entries were created in one commit.
        state = self._client.storage.state(handle.id)
        return -1 if state is None else state.last_entry

    def _read(self, handle: LedgerHandle, first: int, last: int) -> list[bytes]:
        end = self._last_entry(handle)
        if last > end:
            raise SnapshotDamagedError(
                f"bucket snapshot in ledger {handle.id}: entry {last} is missing, the last one is {end}"
            )
        try:
            return [entry.data for entry in handle.read_unconfirmed(first, last)]
        except (NoSuchEntryError, DigestMismatchError) as error:
            # Other errors may be transient.
            raise SnapshotDamagedError(f"bucket snapshot in ledger {handle.id} cannot be read: {error}") from error

    # -- writing ------------------------------------------------------------------------------------------------------

    def _metadata_entries(self, metadata: SnapshotMetadata | Message | bytes) -> list[bytes]:
        if not isinstance(metadata, SnapshotMetadata):
            data = _serialized(metadata)
            if len(data) <= self.entry_limit:
                return [data]
            metadata = SnapshotMetadata(decode_metadata(data).metadata_list)
        return encode_metadata(
            [encode_segment_metadata(segment) for segment in metadata.metadata_list], self.entry_limit
        )

    def _segment_entry(self, number: int, segment: Indexes | Message | bytes) -> bytes:
        data = encode_segment(segment) if isinstance(segment, Indexes) else _serialized(segment)
        if len(data) > self.entry_limit:
            raise SnapshotTooLargeError(
                f"segment {number} takes {len(data)} bytes and an entry {self.entry_limit}: cut segments of up to "
                f"{self.entry_limit // MAX_INDEX_BYTES} indexes"
            )
        return data


def _serialized(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()
