"""Decoders whose output may be far larger than their input: the part of the table that is theirs.

Unlike most of the others they are run together with the code that uses what they decode.
"""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bookstand.cursor.format import chunked_snapshot, position_info
from bookstand.delivery.message import received_message
from bookstand.delivery.message.message_id import members_of
from bookstand.delivery.nacks import record
from bookstand.delivery.tracker.bucket.rebuild import deliver_at_time
from bookstand.delivery.tracker.bucket.snapshot import codec as snapshot
from bookstand.delivery.tracker.bucket.snapshot.bitmap import read_bitmap, read_bitmap_64, write_bitmap, write_bitmap_64
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.disk.damage import Damage
from bookstand.disk.topics.messages import DiskMessage, joined
from bookstand.errors import MalformedError, MalformedMessageError
from bookstand.managed_ledger import records
from bookstand.managed_ledger.message import compression, format
from bookstand.managed_ledger.topic_entries import TopicEntry
from bookstand.proto.expansion import DEFAULT
from bookstand.storage.format.position import Position
from tests.soak import disk_decoders
from tests.soak.decoder import Decoder

SHARE = 2.0


def all_of_them(rng: random.Random, folder: Path) -> dict[str, Decoder]:
    return _of_messages(rng) | _of_buckets(rng) | _of_nacks(rng) | _of_cursors(rng) | _of_files(folder)


def _batches(rng: random.Random) -> list[bytes]:
    found = []
    for codec in compression.NUMBERS:
        for count in (1, 3, 40):
            several = [format.single(rng.randbytes(count % 7)) for _ in range(count)]
            data = format.batch(several, publish_time=12345, compression=codec)
            one = format.Message(data)
            found += [data, format.assemble(one.metadata, one.stored_payload, checksum=False)]
        bare = format.Message(format.encode_message(bytes(5000), publish_time=12345, deliver_at=9, compression=codec))
        found.append(format.assemble(bare.metadata, bare.stored_payload, checksum=False))
    return found


def _of_messages(rng: random.Random) -> dict[str, Decoder]:
    samples = _batches(rng)

    def received_of(data: bytes) -> int:
        """A subscription's way to the messages of an entry."""
        entry = received_message.decode_entry(TopicEntry(Position(3, 4), data), {})
        size = received_message.size_of_batch(entry)
        if not size:
            return len(entry.payload)
        found = received_message.messages_of(
            received_message.PartialBatch(entry, members_of(entry.position, range(size)))
        )
        return sum(len(one.payload) + len(one.properties) for one in found)

    def of_disk(data: bytes) -> int:
        """A disk reader's way: chunks are put together."""
        damage: list[Damage] = []
        parts = [DiskMessage("topic", Position(3, number), data, damage.append) for number in range(3)]
        wholes = list(joined(parts, damage.append))
        found = sum(len(value.payload) for whole in wholes for value in whole.message.values())
        if damage:
            raise MalformedError(damage[0].what)
        return found

    return {
        "messages of a received entry": Decoder(samples, received_of, refusals=MalformedError, share=SHARE),
        "messages of an entry of a disk": Decoder(samples, of_disk, refusals=MalformedError, share=SHARE),
        "time of delivery": Decoder(samples, deliver_at_time, refusals=MalformedMessageError),
    }


def _of_buckets(rng: random.Random) -> dict[str, Decoder]:
    rows = Indexes.of(
        sorted(rng.randrange(1_700_000_000_000, 1_700_000_900_000) for _ in range(60)),
        [rng.randrange(5, 9) for _ in range(60)],
        [rng.choice((number, number + (1 << 33))) for number in range(60)],
    )
    sealed = snapshot.seal(rows, 300_000, 20)
    ids = [np.array(sorted(rng.sample(range(1 << 18), count)), dtype=np.int64) for count in (1, 40)]
    ids.append(np.arange(70_000, dtype=np.int64))

    def metadata(data: bytes) -> int:
        said = snapshot.SnapshotMetadata(snapshot.decode_metadata(data).metadata_list)
        return sum(map(len, said.bitmaps().values()))

    def segments(data: bytes) -> list[list[list[int]]]:
        both = snapshot.decode_segments([data, sealed.entries[1]], ["first", "second"])
        alone = snapshot.decode_segment(data)
        if [column.tolist() for column in both[0]] != [column.tolist() for column in alone]:
            raise AssertionError("a segment reads as something else among others")
        return [[column.tolist() for column in one] for one in both]

    return {
        "bitmap of 32 bits": Decoder(
            [write_bitmap(some) for some in ids],
            lambda data: (bitmap := read_bitmap(data)) and (len(bitmap), bitmap.min(), bitmap.max()),
            share=SHARE,
        ),
        "bitmap of 64 bits": Decoder(
            [write_bitmap_64(some + (number << 35)) for number, some in enumerate(ids)],
            lambda data: (bitmap := read_bitmap_64(data)) and (len(bitmap), bitmap.min(), bitmap.max()),
            share=SHARE,
        ),
        "metadata of a bucket": Decoder([sealed.entries[0]], metadata, share=SHARE),
        "segment of a bucket": Decoder(sealed.entries[1:4], segments, share=SHARE),
    }


def _of_nacks(rng: random.Random) -> dict[str, Decoder]:
    ids = np.array(sorted(rng.sample(range(300), 90)), dtype=np.int64)
    nacks = [record.nacks_of(12345, 5, ids), record.nacks_of(12345, 6, ids, 10, 3)]
    samples = [*record.encode_nacks(nacks, 5000), record.encode_redelivered(record.Redelivered(5, 6))]

    def listed(data: bytes) -> list[Any]:
        found = record.decode(data, "the record")
        return [(one.time, one.ledger_id, record.codes_in(one).tolist()) for one in found.nacks]

    return {"negative acknowledgments": Decoder(samples, listed, share=SHARE)}


def _of_cursors(rng: random.Random) -> dict[str, Decoder]:
    info = records.CursorInfo(
        7, Position(5, -1), tuple((5, 2 * number, 5, 2 * number + 1) for number in range(12)), batches=((6, 1, 5),)
    )
    plain = records.encode_cursor_info(info, None, 0)
    data = position_info.write(position_info.from_parts(Position(5, 3), info.ranges, info.batches, {}).state).data

    def state(stored: bytes) -> int:
        found = records.decode_cursor_info(stored)
        mark = found.mark_delete or Position(0, -1)
        read = position_info.from_parts(mark, found.ranges, found.batches, {}, {5: 900, 6: 900})
        return sum(map(len, read.state.acked.values()))

    def packed(codec: str) -> Callable[[bytes], int]:
        def decode(stored: bytes) -> int:
            expansion = DEFAULT.of(len(stored))
            read = position_info.read(chunked_snapshot.unpacked(stored, codec, expansion), {3: 900, 5: 900}, expansion)
            return sum(map(len, read.state.acked.values()))

        return decode

    found = {"state in the record of a cursor": Decoder([plain], state, share=SHARE)}
    for codec in ("ZLIB", "ZSTD"):
        stored = len(data).to_bytes(4, "big") + compression.pack(codec, data)
        found[f"packed snapshot, {codec}"] = Decoder([stored], packed(codec))
    return found


def _of_files(folder: Path) -> dict[str, Decoder]:
    path = folder / "packed dump"
    dumps = [gzip.compress(one, mtime=0) for one in disk_decoders.dumps()]
    return {
        "packed dump of metadata": Decoder(
            dumps, disk_decoders.from_file(path, disk_decoders.everything_in_a_dump), share=0.2
        ),
    }
