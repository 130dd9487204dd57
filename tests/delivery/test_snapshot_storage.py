"""Snapshots in ledgers: the proposal's interface method for method, one commit each, and damage said by its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyroaring import BitMap, BitMap64

from bookstand.delivery.tracker.bucket.key import BucketLabels, bucket_key, read_labels
from bookstand.delivery.tracker.bucket.snapshot.bitmap import write_bitmap
from bookstand.delivery.tracker.bucket.snapshot.codec import (
    SegmentMetadata,
    Snapshot,
    SnapshotDamagedError,
    SnapshotMetadata,
    SnapshotTooLargeError,
    encode_segment,
    encode_segment_metadata,
    seal,
)
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.errors import (
    ClientClosedError,
    EntryTooLargeError,
    IncorrectParameterError,
    LedgerError,
    MetadataVersionError,
    NoSuchLedgerError,
    OperationTimeoutError,
    ReadError,
    StoreDamagedError,
    WriteOnReadOnlyError,
)
from bookstand.ledger.defaults import bookkeeper_defaults
from bookstand.proto import delayed_bucket_metadata_pb2 as metadata_pb2
from bookstand.proto import delayed_bucket_segment_pb2 as segment_pb2
from tests.kit import Faults, absent, change_entry, corrupted, cut_short, failing

NOW = 1_700_000_000_000
KEY = bucket_key(1, 9)
NAMES = (KEY, "persistent://public/default/topic", "sub/1")
LABELS = BucketLabels(*NAMES)


def storage_of(store: Any) -> BucketSnapshotStorage:
    storage = BucketSnapshotStorage(store._client)
    storage.start()
    return storage


@pytest.fixture
def storage(store: Any) -> BucketSnapshotStorage:
    return storage_of(store)


def indexes(count: int) -> Indexes:
    numbers = range(count)
    return Indexes.of([NOW + 13 * n % 997 for n in numbers], [1 + n % 9 for n in numbers], [n // 9 for n in numbers])


SEALED = seal(indexes(500), 200)
SEGMENTS = [SEALED.segment(number) for number in range(1, SEALED.segment_count + 1)]


def rows(segments: list[Indexes]) -> list[list[Any]]:
    return [segment.indexes for segment in segments]


def created(storage: BucketSnapshotStorage, sealed: Snapshot = SEALED) -> int:
    return storage.create(sealed.entries, LABELS)


def metadata() -> SnapshotMetadata:
    """The metadata of what is sealed, as objects."""
    found = []
    for segment in SEGMENTS:
        bitmaps: dict[int, BitMap] = {}
        for index in segment.indexes:
            bitmaps.setdefault(index.ledger_id, BitMap()).add(index.entry_id)
        times = segment.timestamps.tolist()
        found.append(SegmentMetadata({one: bits.serialize() for one, bits in bitmaps.items()}, times[-1], times[0]))
    return SnapshotMetadata(found)


# -- the interface ---------------------------------------------------------------------------------------------------


def test_a_snapshot_is_created_read_and_deleted(store: Any, storage: BucketSnapshotStorage) -> None:
    bucket_id = storage.create_bucket_snapshot(metadata(), SEGMENTS, *NAMES).result()
    found = storage.get_bucket_snapshot_metadata(bucket_id).result()
    assert list(found.metadata_list) == list(metadata().metadata_list)
    assert found.bitmaps() == metadata().bitmaps()
    last = len(SEGMENTS)
    assert rows(storage.get_bucket_snapshot_segment(bucket_id, 1, last).result()) == rows(SEGMENTS)
    assert rows(storage.get_bucket_snapshot_segment(bucket_id, 2, 2).result()) == rows(SEGMENTS[1:2])
    with store.open_ledger(bucket_id) as reader:
        lengths = [len(entry.data) for entry in reader]
    assert storage.get_bucket_snapshot_length(bucket_id).result() == sum(lengths)
    assert storage.delete_bucket_snapshot(bucket_id).result() is None
    assert bucket_id not in list(store.list_ledgers())


def test_a_sealed_bucket_is_stored_byte_for_byte(store: Any, storage: BucketSnapshotStorage) -> None:
    bucket_id = created(storage)
    with store.open_ledger(bucket_id) as reader:
        assert [entry.data for entry in reader] == SEALED.entries
    assert storage.read_length(bucket_id) == SEALED.length
    read = storage.read_segments(bucket_id, 1, SEALED.segment_count)
    assert rows(read) == rows(SEGMENTS)
    assert storage.read_metadata(bucket_id).bitmaps() == metadata().bitmaps()


def test_the_ledger_is_closed_and_labelled(store: Any, storage: BucketSnapshotStorage) -> None:
    found = store.ledger_metadata(created(storage))
    assert (found.state, found.last_entry_id, found.length) == ("CLOSED", SEALED.segment_count, SEALED.length)
    assert found.password == b""
    assert read_labels(found.custom_metadata) == LABELS


def test_a_store_with_the_originals_defaults_takes_snapshots(open_store: Callable[..., Any]) -> None:
    """There a password has to be given."""
    store = open_store(defaults=bookkeeper_defaults)
    storage = storage_of(store)
    bucket_id = created(storage)
    assert rows(storage.read_segments(bucket_id, 1, 1)) == rows(SEGMENTS[:1])
    assert store.ledger_metadata(bucket_id).digest_type == "crc32"


def test_results_can_be_awaited(storage: BucketSnapshotStorage) -> None:
    async def life() -> tuple[int, int]:
        bucket_id = await storage.create_bucket_snapshot(metadata(), SEGMENTS, *NAMES)
        (segment,) = await storage.get_bucket_snapshot_segment(bucket_id, 1, 1)
        await storage.delete_bucket_snapshot(bucket_id)
        with pytest.raises(NoSuchLedgerError):
            await storage.get_bucket_snapshot_metadata(bucket_id)
        return bucket_id, segment.size

    assert asyncio.run(life())[1] == SEGMENTS[0].size


def test_generated_messages_and_bytes_are_taken_as_well(store: Any, storage: BucketSnapshotStorage) -> None:
    head = metadata_pb2.SnapshotMetadata()
    one = head.metadata_list.add(max_schedule_timestamp=NOW + 1, min_schedule_timestamp=NOW)
    one.delayed_index_bit_map[7] = BitMap([3]).serialize()
    segment = segment_pb2.SnapshotSegment()
    segment.indexes.add(timestamp=NOW, ledger_id=7, entry_id=3)
    as_messages = storage.create_bucket_snapshot(head, [segment], *NAMES).result()
    as_bytes = storage.create_bucket_snapshot(head.SerializeToString(), [segment.SerializeToString()], *NAMES).result()
    for bucket_id in (as_messages, as_bytes):
        assert storage.read_metadata(bucket_id).bitmaps() == {7: BitMap64([3])}
        assert rows(storage.read_segments(bucket_id, 1, 1)) == [[(NOW, 7, 3)]]


def test_an_empty_snapshot_is_one(storage: BucketSnapshotStorage) -> None:
    bucket_id = storage.create_bucket_snapshot(SnapshotMetadata([]), [], *NAMES).result()
    assert list(storage.get_bucket_snapshot_metadata(bucket_id).result().metadata_list) == []
    assert storage.get_bucket_snapshot_length(bucket_id).result() == 0


def test_bitmaps_are_not_looked_at_before_they_are_used(storage: BucketSnapshotStorage) -> None:
    wrong = SnapshotMetadata([SegmentMetadata({100: b"test1"}, 20, 10)])
    bucket_id = storage.create_bucket_snapshot(wrong, [], *NAMES).result()
    found = storage.get_bucket_snapshot_metadata(bucket_id).result()
    assert list(found.metadata_list) == list(wrong.metadata_list)
    with pytest.raises(SnapshotDamagedError, match=f"ledger {bucket_id}, entry 0: segment 1, bitmap of ledger 100"):
        found.bitmaps()


def test_deleting_what_is_gone_is_done(storage: BucketSnapshotStorage) -> None:
    bucket_id = created(storage)
    for _ in range(2):
        assert storage.delete_bucket_snapshot(bucket_id).result() is None


def test_what_is_another_ledger_is_not_deleted(store: Any, storage: BucketSnapshotStorage) -> None:
    topic = store.managed_ledger("topic")
    topic.append(b"message")
    ledger_id = topic.ledgers[0].ledger_id
    with pytest.raises(IncorrectParameterError, match=f"ledger {ledger_id} is not a bucket snapshot"):
        storage.delete_bucket_snapshot(ledger_id).result()
    with pytest.raises(IncorrectParameterError), store.transaction() as transaction:
        storage.delete_in(transaction, ledger_id)
    assert topic.read_entry(topic.last_confirmed).data


READS: dict[str, Callable[[BucketSnapshotStorage, int], Any]] = {
    "metadata": lambda storage, bucket_id: storage.get_bucket_snapshot_metadata(bucket_id),
    "segment": lambda storage, bucket_id: storage.get_bucket_snapshot_segment(bucket_id, 1, 1),
    "length": lambda storage, bucket_id: storage.get_bucket_snapshot_length(bucket_id),
}


@pytest.mark.parametrize("what", READS)
@pytest.mark.parametrize("bucket_id", [12_345, -1, "7", None])
def test_a_snapshot_that_never_was_does_not_exist(storage: BucketSnapshotStorage, what: str, bucket_id: Any) -> None:
    pending = READS[what](storage, bucket_id)
    with pytest.raises(NoSuchLedgerError):
        pending.result()


@pytest.mark.parametrize("range_", [(0, 0), (0, 1), (2, 1), (-1, 1), (None, 1), (1, "2"), (1, 1 << 63)])
def test_no_such_segments(storage: BucketSnapshotStorage, range_: tuple[Any, Any]) -> None:
    bucket_id = created(storage)
    with pytest.raises(IncorrectParameterError):
        storage.get_bucket_snapshot_segment(bucket_id, *range_).result()


def test_labels_have_to_be_strings(store: Any, storage: BucketSnapshotStorage) -> None:
    before = list(store.list_ledgers())
    with pytest.raises(IncorrectParameterError, match="topic"):
        storage.create_bucket_snapshot(metadata(), SEGMENTS, KEY, None, "sub").result()  # type: ignore[arg-type]
    assert list(store.list_ledgers()) == before


@pytest.mark.parametrize("what", [*READS, "create", "delete"])
def test_a_closed_storage_takes_no_calls_until_it_is_started_again(storage: BucketSnapshotStorage, what: str) -> None:
    bucket_id = created(storage)
    calls: dict[str, Callable[[BucketSnapshotStorage, int], Any]] = {
        **READS,
        "create": lambda storage, _: storage.create_bucket_snapshot(metadata(), SEGMENTS, *NAMES),
        "delete": lambda storage, bucket_id: storage.delete_bucket_snapshot(bucket_id),
    }
    storage.close()
    with pytest.raises(ClientClosedError):
        calls[what](storage, bucket_id).result()
    storage.start()
    calls[what](storage, bucket_id).result()


# -- one commit ------------------------------------------------------------------------------------------------------


def test_a_snapshot_and_a_property_change_together(store: Any, storage: BucketSnapshotStorage) -> None:
    old = created(storage)
    store.nodes.put("/cursor", b"old")
    with store.transaction() as transaction:
        writer = storage.create_in(transaction, SEALED.entries, LABELS)
        assert storage.delete_in(transaction, old)
        assert not storage.delete_in(transaction, 99_999)
        transaction.put_node("/cursor", b"%d" % writer.id, 0)
    storage.finish([writer])
    assert store.ledger_metadata(writer.id).state == "CLOSED"
    assert store.nodes.get("/cursor")[0] == b"%d" % writer.id
    assert list(store.list_ledgers()) == [writer.id]
    assert rows(storage.read_segments(writer.id, 1, SEALED.segment_count)) == rows(SEGMENTS)


def test_where_the_property_is_refused_there_is_no_snapshot(store: Any, storage: BucketSnapshotStorage) -> None:
    old = created(storage)
    store.nodes.put("/cursor", b"old")

    def swap() -> None:
        with store.transaction() as transaction:
            storage.create_in(transaction, SEALED.entries, LABELS)
            storage.delete_in(transaction, old)
            transaction.put_node("/cursor", b"new", 5)

    with pytest.raises(MetadataVersionError):
        swap()
    assert list(store.list_ledgers()) == [old]
    assert storage.read_length(old) == SEALED.length


def test_a_snapshot_whose_writer_vanished_is_closed_by_its_first_reader(
    open_store: Callable[..., Any], store: Any, storage: BucketSnapshotStorage
) -> None:
    with store.transaction() as transaction:
        bucket_id = storage.create_in(transaction, SEALED.entries, LABELS).id
    other = open_store()
    assert other.ledger_metadata(bucket_id).state == "OPEN"
    read_only = storage_of(open_store(read_only=True))
    for reader in (read_only, storage_of(other)):
        assert rows(reader.read_segments(bucket_id, 1, SEALED.segment_count)) == rows(SEGMENTS)
        assert reader.read_metadata(bucket_id).bitmaps() == metadata().bitmaps()
        assert reader.read_length(bucket_id) == SEALED.length
    assert other.ledger_metadata(bucket_id).state == "CLOSED"


def test_a_read_only_store_creates_and_deletes_none(
    open_store: Callable[..., Any], storage: BucketSnapshotStorage
) -> None:
    bucket_id = created(storage)
    read_only = storage_of(open_store(read_only=True))
    for pending in (
        read_only.create_bucket_snapshot(metadata(), SEGMENTS, *NAMES),
        read_only.delete_bucket_snapshot(bucket_id),
    ):
        with pytest.raises(WriteOnReadOnlyError):
            pending.result()
    assert storage.read_length(bucket_id) == SEALED.length


# -- more than an entry holds ----------------------------------------------------------------------------------------


def test_metadata_of_several_entries_is_read_as_one(open_store: Callable[..., Any]) -> None:
    storage = storage_of(open_store(max_entry_bytes=1_500))
    sealed = seal(indexes(2_000), 10, entry_limit=storage.entry_limit)
    assert len(sealed.entries) > sealed.segment_count + 2
    bucket_id = created(storage, sealed)
    found = storage.read_metadata(bucket_id)
    assert len(found.metadata_list) == sealed.segment_count
    assert [one.min_schedule_timestamp for one in found.metadata_list] == [
        int(sealed.segment(number).timestamps[0]) for number in range(1, sealed.segment_count + 1)
    ]
    assert sum(map(len, found.bitmaps().values())) == 2_000
    again = storage.create_bucket_snapshot(
        found, storage.read_segments(bucket_id, 1, sealed.segment_count), *NAMES
    ).result()
    assert storage.read_metadata(again).bitmaps() == found.bitmaps()
    assert storage.read_length(again) == sealed.length


def test_a_continuation_that_is_missing_is_damage(open_store: Callable[..., Any]) -> None:
    storage = storage_of(open_store(max_entry_bytes=1_500))
    sealed = seal(indexes(2_000), 10, entry_limit=storage.entry_limit)
    for kept in (len(sealed.entries) - 1, sealed.segment_count + 1, sealed.segment_count, 1):
        bucket_id = storage.create(sealed.entries[:kept], LABELS)
        with pytest.raises(SnapshotDamagedError, match=f"ledger {bucket_id}"):
            storage.read_metadata(bucket_id)


def test_a_segment_that_no_entry_holds_is_refused_with_the_way_out(open_store: Callable[..., Any]) -> None:
    store = open_store(max_entry_bytes=2_000)
    storage = storage_of(store)
    pending = storage.create_bucket_snapshot(SnapshotMetadata([]), [SEALED.indexes], *NAMES)
    with pytest.raises(
        SnapshotTooLargeError, match=r"segment 1 takes \d+ bytes and an entry \d+: cut .* 30 indexes"
    ) as caught:
        pending.result()
    assert isinstance(caught.value, EntryTooLargeError)
    assert list(store.list_ledgers()) == []


def test_an_entry_of_the_limit_is_taken(open_store: Callable[..., Any]) -> None:
    storage = storage_of(open_store(max_entry_bytes=2_000))
    entries = [b"", bytes(storage.entry_limit)]
    bucket_id = storage.create(entries, LABELS)
    assert storage.read_length(bucket_id) == storage.entry_limit
    with pytest.raises(EntryTooLargeError):
        storage.create([b"", bytes(storage.entry_limit + 1)], LABELS)


# -- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [corrupted, cut_short, absent])
def test_an_entry_that_cannot_be_read_is_damage_by_name(open_store: Callable[..., Any], fault: Any) -> None:
    faults = Faults()
    storage = storage_of(open_store(hooks=faults))
    bucket_id = created(storage)
    for entry_id, read in ((0, READS["metadata"]), (1, READS["segment"])):
        faults.on_entry = lambda ledger, entry, stored, bad=entry_id: (
            fault(ledger, entry, stored) if (ledger, entry) == (bucket_id, bad) else stored
        )
        with pytest.raises(SnapshotDamagedError, match=str(bucket_id)) as caught:
            read(storage, bucket_id).result()
        assert isinstance(caught.value, StoreDamagedError)
        faults.mend()
        read(storage, bucket_id).result()


@pytest.mark.parametrize("error", [ReadError, OperationTimeoutError])
def test_what_may_be_over_the_next_time_is_no_damage(open_store: Callable[..., Any], error: type[LedgerError]) -> None:
    faults = Faults()
    storage = storage_of(open_store(hooks=faults))
    bucket_id = created(storage)
    for read in (READS["metadata"], READS["segment"]):
        faults.on_entry = failing(error)
        with pytest.raises(error) as caught:
            read(storage, bucket_id).result()
        assert not isinstance(caught.value, StoreDamagedError)
        faults.mend()
        read(storage, bucket_id).result()


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        ([], "entry 0"),
        ([b"\x0a"], "entry 0"),
        ([b"", b"\x0a\x07\x08"], "entry 1"),
        ([b""], "entry 1"),
        ([SEALED.entries[0], SEALED.entries[0]], "entry 1"),
    ],
)
def test_entries_that_are_something_else_are_damage_by_name(
    storage: BucketSnapshotStorage, entries: list[bytes], what: str
) -> None:
    bucket_id = storage.create(entries, LABELS)
    with pytest.raises(SnapshotDamagedError, match=rf"ledger {bucket_id}\b.*{what}"):
        storage.read_segments(bucket_id, 1, 1) if what == "entry 1" else storage.read_metadata(bucket_id)


def test_a_segment_in_another_shape_is_read(storage: BucketSnapshotStorage) -> None:
    odd = encode_segment(SEGMENTS[0]) + b"\x12\x01?"
    bucket_id = storage.create([b"", odd, SEALED.entries[2]], LABELS)
    assert rows(storage.read_segments(bucket_id, 1, 2)) == rows(SEGMENTS[:2])


@pytest.mark.damaged
def test_bits_that_flipped_in_the_file_are_damage_by_name(open_store: Callable[..., Any], store_path: Path) -> None:
    store = open_store()
    bucket_id = created(storage_of(store))
    store.close()
    change_entry(store_path, bucket_id, 2, lambda stored: stored[:90] + bytes((stored[90] ^ 4,)) + stored[91:])
    storage = storage_of(open_store())
    assert storage.read_metadata(bucket_id).bitmaps() == metadata().bitmaps()
    assert rows(storage.read_segments(bucket_id, 1, 1)) == rows(SEGMENTS[:1])
    with pytest.raises(SnapshotDamagedError, match=f"ledger {bucket_id}.*2"):
        storage.read_segments(bucket_id, 1, 3)


def test_bitmaps_cannot_have_more_ids_than_the_segments_have_room_for(storage: BucketSnapshotStorage) -> None:
    segment = SEALED.entries[1]
    whole = BitMap64(range(1 << 32)).serialize()[12:]
    for bitmap, count in ((whole, 1 << 32), (write_bitmap(np.arange(len(segment) // 8)), len(segment) // 8)):
        head = encode_segment_metadata(SegmentMetadata({100: bitmap}, 20, 10))
        bucket_id = storage.create([head, segment], BucketLabels("key", "topic", "cursor"))
        metadata = storage.read_metadata(bucket_id)
        if count < 1 << 32:
            assert len(metadata.bitmaps()[100]) == count
            continue
        with pytest.raises(SnapshotDamagedError, match=rf"ledger {bucket_id}, entry 0: its bitmaps have {count} ids"):
            metadata.bitmaps()
