"""Bitmaps. Read from every form in which they were recorded, they hold the recorded ids; written from the ids, they
have the run-optimised bytes. (A container that takes as many bytes as a list as it does as runs keeps the form in which
it was built: a set with such a one is compared as pyroaring writes it from what was built.) What is no 32-bit bitmap is
refused as one, and what is in neither of the portable formats as one of 64 bits too. Not compared is which error the
original's reader gave, and whether it had the same bytes back.

Snapshots. Metadata and segments are read as what was put into them. Sealed anew from all their indexes with the
recorded settings, they have the recorded bytes, entry by entry. Those that were put together from messages, and so need
not be what a seal gives, are written again from what was read, with ledgers in the recorded order.

Ledgers of snapshots. The recorded messages of a bucket are sealed and stored through our storage; compared are the
bytes of all entries, the property's name, the length, and the ledger's metadata but for machines, id and time.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import numpy as np
from pyroaring import BitMap, BitMap64

import bookstand
from bookstand.delivery.tracker.bucket.key import BucketLabels, bucket_key, parse_key
from bookstand.delivery.tracker.bucket.snapshot.bitmap import (
    MalformedBitmapError,
    read_bitmap,
    read_bitmap_64,
    write_bitmap,
    write_bitmap_64,
    write_bitmaps,
)
from bookstand.delivery.tracker.bucket.snapshot.codec import (
    SegmentMetadata,
    SnapshotMetadata,
    decode_metadata,
    decode_segments,
    encode_segment,
    encode_segment_metadata,
    seal,
)
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.delivery.tracker.bucket.snapshot.storage import BucketSnapshotStorage
from bookstand.errors import BookstandError
from bookstand.ledger.defaults import LedgerDefaults
from bookstand.proto import wire_format
from tests.replay.outcome import Outcome
from tests.replay.traces import SUFFIXES, files_of, open_text

FIELDS = str(__doc__).strip()

_WITH_RUNS = b"\x3b\x30"
"""What a bitmap begins with in which there are runs."""

Sample = dict[str, Any]
Differences = Iterator[str]


def replay(paths: list[Path]) -> Iterator[Outcome]:
    for path in files_of(paths):
        if path.name.endswith(SUFFIXES):
            name = path.name.removesuffix(".gz").removesuffix(".jsonl")
            with open_text(path) as text:
                for number, line in enumerate(filter(str.strip, text)):
                    try:
                        sample = json.loads(line)
                    except ValueError:
                        break
                    compare = comparer(sample)
                    if compare is None:
                        break
                    yield outcome(f"{name}:{sample.get('id', number)}", sample, compare)


def comparer(sample: Any) -> Callable[[Sample], Differences] | None:
    """What a file holds is told by its lines, not by its name."""
    if isinstance(sample, dict):
        for keys, compare in COMPARERS:
            if keys <= sample.keys():
                return compare
    return None


def outcome(name: str, sample: Sample, compare: Callable[[Sample], Differences]) -> Outcome:
    try:
        found = list(compare(sample))
    except BookstandError as error:
        found = [f"refused: {error}"]
    return Outcome(name, "different", "; ".join(found)) if found else Outcome(name, "equal", "")


# -- bitmaps ---------------------------------------------------------------------------------------------------------


def compare_roaring(sample: Sample) -> Differences:
    yield from _unequal("cardinality", len(_truth(sample)), sample["cardinality"])
    for form in ("as_built", "run_optimized"):
        yield from _reads(form, read_bitmap, _bytes(sample[form]), sample)
    written = _written(sample, sample["as_built"], BitMap)
    yield from _unequal("written", written, _bytes(sample["run_optimized"]))
    yield from _unequal("run_optimize_changed", sample["run_optimize_changed"], written.startswith(_WITH_RUNS))


def compare_pyroaring(sample: Sample) -> Differences:
    read = read_bitmap_64 if sample["bits64"] else read_bitmap
    for form in ("plain", "run_optimized"):
        yield from _reads(form, read, _bytes(sample[form]), sample)
        answer = sample[f"java_{form}"]
        yield from _unequal(f"java_{form}", [answer["equal"], answer["cardinality"]], [True, len(_truth(sample))])
    written = _written(sample, sample["plain"], BitMap64 if sample["bits64"] else BitMap)
    yield from _unequal("written", written, _bytes(sample["run_optimized"]))
    if sample["bits64"]:
        yield from _refuses("run_optimized", read_bitmap, _bytes(sample["run_optimized"]))


def compare_roaring64(sample: Sample) -> Differences:
    yield from _unequal("cardinality", len(_truth(sample)), sample["cardinality"])
    for form in ("as_built", "run_optimized"):
        forms = sample[form]
        yield from _reads(f"{form}.navigable_portable", read_bitmap_64, _bytes(forms["navigable_portable"]), sample)
        for name, said in forms["read_by_32_bit_reader"].items():
            if not said.endswith("Exception"):
                yield f"{form}.read_by_32_bit_reader.{name}: {said}, which no 64-bit bitmap should be"
            yield from _refuses(f"{form}.{name}", read_bitmap, _bytes(forms[name]))
        for name in ("navigable_legacy", "roaring64bitmap"):
            yield from _refuses(f"{form}.{name}", read_bitmap_64, _bytes(forms[name]))
    written = _written(sample, sample["as_built"]["navigable_portable"], BitMap64)
    yield from _unequal("written", written, _bytes(sample["run_optimized"]["navigable_portable"]))


def _truth(sample: Sample) -> BitMap64:
    truth = BitMap64()
    for first, end in sample["ranges"]:
        # The end may be 2^64, which is no number of 64 bits.
        truth.add_range(first, end - 1)
        truth.add(end - 1)
    return truth


def _ids(sample: Sample) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.frombuffer(_truth(sample).to_array(), dtype=np.uint64).view(np.int64)


def _written(sample: Sample, built: str, kind: type[BitMap] | type[BitMap64]) -> bytes:
    """Written from the ids; where that leaves the form to how the set was built, from what was built."""
    ids = _ids(sample)
    if _undecided(ids):
        bitmap = kind.deserialize(_bytes(built))
        bitmap.run_optimize()
        return bitmap.serialize()
    if kind is BitMap64:
        return write_bitmap_64(ids)
    return write_bitmaps(ids, np.array([len(ids)]))[0] if len(ids) else write_bitmap(ids)


def _undecided(ids: np.ndarray[Any, np.dtype[np.int64]]) -> bool:
    """Whether there is a container that takes as many bytes as a list (2 for each id) and as runs (4 each, and 2)."""
    for container in np.split(ids, np.flatnonzero(np.diff(ids >> 16)) + 1):
        if 2 * len(container) == 4 * (1 + np.count_nonzero(np.diff(container) != 1)) + 2:
            return True
    return False


def _reads(name: str, read: Callable[[bytes], BitMap64], data: bytes, sample: Sample) -> Differences:
    try:
        if read(data) != _truth(sample):
            yield f"{name}: read with other ids"
    except MalformedBitmapError as error:
        yield f"{name}: refused: {error}"


def _refuses(name: str, read: Callable[[bytes], BitMap64], data: bytes) -> Differences:
    try:
        read(data)
    except MalformedBitmapError:
        return
    yield f"{name}: {read.__name__} takes it for a bitmap of its own kind"


# -- snapshots -------------------------------------------------------------------------------------------------------


def compare_snapshot(sample: Sample) -> Differences:
    data = _bytes(sample["metadata"])
    entries = [_bytes(segment) for segment in sample["segments"]]
    metadata = SnapshotMetadata(decode_metadata(data).metadata_list)
    segments = decode_segments(entries, [f"segment {number}" for number in range(1, len(entries) + 1)])
    orders = _ledger_orders(data)
    read_metadata = {"segments": [_said(*one) for one in zip(metadata.metadata_list, orders, strict=True)]}
    read_segments = [[list(index) for index in segment.indexes] for segment in segments]
    if "metadata_truth" in sample:
        yield from _unequal("metadata_truth", read_metadata, sample["metadata_truth"])
        yield from _unequal("segments_truth", read_segments, sample["segments_truth"])
    else:
        yield from _unequal("metadata_truth", _sha256(read_metadata), sample["metadata_truth_sha256"])
        yield from _unequal("segments_truth", list(map(_sha256, read_segments)), sample["segments_truth_sha256"])
    yield from _unequal("indexes", sum(segment.size for segment in segments), sample["indexes"])
    yield from _unequal("segments as they were read", list(map(encode_segment, segments)), entries)
    if "time_step_per_segment_ms" in sample:
        columns = Indexes(*(np.concatenate(column) for column in zip(*segments, strict=True)))
        yield from _sealed_anew(sample, columns, [data, *entries])
        yield from _unequal("bucket_key", str(parse_key(sample["bucket_key"])), sample["bucket_key"])
    else:
        ordered = (
            one._replace(delayed_index_bit_map={ledger: one.delayed_index_bit_map[ledger] for ledger in order})
            for one, order in zip(metadata.metadata_list, orders, strict=True)
        )
        yield from _unequal("metadata as it was read", b"".join(map(encode_segment_metadata, ordered)), data)


def _sealed_anew(sample: Sample, indexes: Indexes, entries: list[bytes]) -> Differences:
    # In an order that is not that of a segment.
    backwards = Indexes(*(column[::-1] for column in indexes))
    sealed = seal(backwards, sample["time_step_per_segment_ms"], sample["max_indexes_per_segment"])
    for number, (ours, recorded) in enumerate(zip(sealed.entries, entries, strict=False)):
        yield from _unequal(f"entry {number}", ours, recorded)
    yield from _unequal("number of entries", len(sealed.entries), len(entries))


def _ledger_orders(metadata: bytes) -> list[list[int]]:
    """The ledgers of each segment in the order in which they stand there."""
    orders = []
    for _, _, segment in wire_format.fields(metadata):
        maps = [chunk for key, _, chunk in wire_format.fields(segment) if key == wire_format.tag(1, wire_format.BYTES)]
        orders.append(
            [wire_format.int64(number) for chunk in maps for key, number, _ in wire_format.fields(chunk) if key == 8]
        )
    return orders


def _said(segment: SegmentMetadata, order: list[int]) -> dict[str, Any]:
    bitmaps = SnapshotMetadata([segment]).bitmaps()
    return {
        "max": segment.max_schedule_timestamp,
        "min": segment.min_schedule_timestamp,
        "bitmaps": [[ledger, _ranges(bitmaps[ledger])] for ledger in order],
    }


def _ranges(bitmap: BitMap64) -> list[list[int]]:
    ids = np.frombuffer(bitmap.to_array(), dtype=np.uint64).view(np.int64)
    breaks = np.flatnonzero(np.diff(ids) != 1)
    firsts = ids[np.concatenate(([0], breaks + 1))] if len(ids) else ids
    ends = ids[np.append(breaks, len(ids) - 1)] + 1 if len(ids) else ids
    return [list(one) for one in zip(firsts.tolist(), ends.tolist(), strict=True)]


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()


# -- ledgers of snapshots --------------------------------------------------------------------------------------------

# What Pulsar creates such ledgers with.
PULSAR = LedgerDefaults(ensemble=2, write_quorum=2, ack_quorum=2, digest="crc32c")


def compare_ledgers(sample: Sample) -> Differences:
    # The store lives in memory and is gone afterwards.
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder,
        bookstand.open(folder, durability="none", defaults=PULSAR) as store,
    ):
        storage = BucketSnapshotStorage(store.managed_ledger("bitmaps").client)
        for bucket in sample["buckets"]:
            yield from _ledger_differences(store, storage, sample, bucket)


def _ledger_differences(store: Any, storage: BucketSnapshotStorage, sample: Sample, bucket: Sample) -> Differences:
    key = parse_key(bucket["property_key"])
    assert key is not None
    what = f"bucket {key.first_ledger}..{key.last_ledger}"
    yield from _unequal(f"{what}, property_key", bucket_key(*key), bucket["property_key"])
    messages = [one for one in sample["messages"] if key.first_ledger <= one[0] <= key.last_ledger]
    ledger_ids, entry_ids, times = zip(*messages, strict=True)
    sealed = seal(
        Indexes.of(times, ledger_ids, entry_ids), sample["time_step_per_segment_ms"], sample["max_indexes_per_segment"]
    )
    labels = BucketLabels(bucket_key(*key), sample["topic"], unquote_plus(sample["cursor"]))
    bucket_id = storage.create(sealed.entries, labels)
    with store.open_ledger(bucket_id) as reader:
        stored = [entry.data for entry in reader]
        metadata = reader.metadata
    for number, (ours, recorded) in enumerate(zip(stored, bucket["entries"], strict=False)):
        yield from _unequal(f"{what}, entry {number}", ours, _bytes(recorded))
    yield from _unequal(f"{what}, number of entries", len(stored), len(bucket["entries"]))
    length = storage.get_bucket_snapshot_length(bucket_id).result()
    yield from _unequal(f"{what}, length_from_storage", length, bucket["length_from_storage"])
    recorded = bucket["ledger_metadata"]
    ours = {
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum_size,
        "ack_quorum": metadata.ack_quorum_size,
        "digest_type": str(metadata.digest_type).upper(),
        "state": metadata.state,
        "last_entry_id": metadata.last_entry_id,
        "length": metadata.length,
        "password": base64.b64encode(metadata.password).decode(),
        "metadata_format_version": metadata.format_version,
        "custom_metadata": {name: base64.b64encode(value).decode() for name, value in metadata.custom_metadata.items()},
    }
    for name in sorted(ours.keys() | recorded.keys()):
        yield from _unequal(f"{what}, {name}", ours.get(name), recorded.get(name))


# -- shared ----------------------------------------------------------------------------------------------------------

COMPARERS: tuple[tuple[set[str], Callable[[Sample], Differences]], ...] = (
    ({"as_built", "run_optimized", "run_optimize_changed"}, compare_roaring),
    ({"plain", "run_optimized", "bits64"}, compare_pyroaring),
    ({"as_built", "run_optimized"}, compare_roaring64),
    ({"metadata", "segments", "indexes"}, compare_snapshot),
    ({"messages", "buckets", "topic"}, compare_ledgers),
)


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _unequal(what: str, ours: object, recorded: object) -> Differences:
    if ours != recorded:
        yield f"{what}: {str(ours)[:200]}, recorded {str(recorded)[:200]}"
