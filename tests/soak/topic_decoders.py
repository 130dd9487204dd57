"""Decoders of what topics and cursors store, of messages, and of faults: the part of the table that is theirs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from pyroaring import BitMap64

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.format import ack_page, checkpoint, chunked_snapshot, index_node, position_info, record
from bookstand.cursor.format.ack_page import PageRef
from bookstand.cursor.format.page_index import PageIndex
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.errors import BookstandError
from bookstand.managed_ledger import records
from bookstand.managed_ledger.message import compression, format, metadata
from bookstand.proto import ack_messages, ack_messages_vectorized, wire_format
from bookstand.proto.expansion import ExpansionLimits
from bookstand.proto.schema_codec import MessageSchema
from bookstand.storage.format.position import Position
from bookstand.testing import Faults
from tests.soak.decoder import Decoder

CURSOR = "sub"
TOPIC_LEDGER = 7
LIMITS = ExpansionLimits(max_expanded_bytes=1 << 20)
CODECS = (None, *compression.NUMBERS)


def all_of_them(rng: random.Random, folder: Path) -> dict[str, Decoder]:
    return (
        _of_acks(rng)
        | _of_snapshots(rng)
        | _of_topics(rng)
        | _of_messages(rng)
        | _of_pages(rng)
        | _of_markers(rng)
        | _of_faults()
        | _of_whole_cursors(rng, folder)
    )


# -- acknowledgments in Pulsar's form --------------------------------------------------------------------------------


def _some_bits(rng: random.Random) -> int:
    return rng.getrandbits(rng.choice((1, 10, 64, 65, 200))) or 1


def _some_entries(rng: random.Random) -> BitMap64:
    return BitMap64(rng.sample(range(300), rng.randrange(1, 60)))


def _some_state(rng: random.Random) -> AckSnapshot:
    ledgers = range(3, 3 + rng.randrange(1, 5))
    return AckSnapshot(
        Position(3, rng.randrange(-1, 4)),
        {ledger: BitMap64(entry + 10 for entry in _some_entries(rng)) for ledger in ledgers},
        {Position(ledger, 500 + ledger): _some_bits(rng) for ledger in ledgers if rng.random() < 0.5},
        {f"name {number}": rng.randrange(-5, 1 << 40) for number in range(rng.randrange(3))},
    )


def _of_acks(rng: random.Random) -> dict[str, Decoder]:
    places = [(rng.randrange(99), rng.randrange(-1, 1 << 40)) for _ in range(4)]
    ranges = [(*one, *other) for one, other in pairwise(places)]
    batches = [ack_messages.write_batch(*place, _some_bits(rng)) for place in places]
    longs = [np.array([rng.getrandbits(64) for _ in range(rng.randrange(1, 9))], np.uint64) for _ in places]
    fields = [
        ack_messages_vectorized.write_longs([(ledger, words)], 6)
        for (ledger, _), words in zip(places, longs, strict=True)
    ]
    many = np.array([(number % 9, number, number % 9, number + 2) for number in range(40)], np.int64)
    theirs = partial(Decoder, refusals=wire_format.WireError, share=0.5)
    return {
        "position": theirs(
            [ack_messages.write_position(*one) for one in places],
            ack_messages.read_position,
            _unpacked(ack_messages.write_position),
        ),
        "range": theirs(
            [ack_messages.write_range(one) for one in ranges], ack_messages.read_range, ack_messages.write_range
        ),
        "batch set": theirs(batches, ack_messages.read_batch, _unpacked(ack_messages.write_batch)),
        "long array": theirs([_chunk_of(field) for field in fields], _longs, _written_longs),
        "many long arrays": theirs([b"".join(fields)], _many_longs),
        "many ranges": theirs([ack_messages_vectorized.write_ranges(many, 3)], _many_ranges),
    }


def _unpacked(write: Callable[..., bytes]) -> Callable[[Iterable[Any]], bytes]:
    return lambda values: write(*values)


def _chunk_of(field: bytes) -> bytes:
    ((_, _, chunk),) = wire_format.fields(field)
    return chunk


def _longs(data: bytes) -> tuple[int, list[int]]:
    """By both ways, which must agree."""
    plain = ack_messages.read_longs(data)
    ledger, words = ack_messages_vectorized.read_any_longs(data)
    if (ledger, words.tolist()) != plain:
        raise AssertionError(f"{plain} reads as {ledger}, {words.tolist()} where it is read with many")
    return plain


def _written_longs(value: tuple[int, list[int]]) -> bytes:
    return _chunk_of(ack_messages_vectorized.write_longs([(value[0], np.array(value[1], np.uint64))], 6))


def _many_longs(data: bytes) -> None:
    found, end = ack_messages_vectorized.read_longs(data, 0, 6)
    plain = [ack_messages.read_longs(chunk) for _, _, chunk in wire_format.fields(data[:end])]
    if [(ledger, words.tolist()) for ledger, words in found] != plain:
        raise AssertionError(f"{found} are read together, {plain} singly")
    list(wire_format.fields(data))


def _many_ranges(data: bytes) -> None:
    rows, end = ack_messages_vectorized.read_ranges(data, 0, 3)
    plain = [ack_messages.read_range(chunk) for _, _, chunk in wire_format.fields(data[:end])]
    if list(map(tuple, rows.tolist())) != plain:
        raise AssertionError(f"{rows.tolist()} are read together, {plain} singly")
    list(wire_format.fields(data))


def _of_snapshots(rng: random.Random) -> dict[str, Decoder]:
    states = [_some_state(rng) for _ in range(5)]
    entries = dict.fromkeys(range(3, 9), 400)
    forms: tuple[position_info.Form, ...] = ("ranges", "long_arrays")
    found = {
        f"snapshot in {form}": Decoder(
            [position_info.write(state, form).data for state in states],
            lambda data: position_info.read(data, entries).state,
            lambda state: position_info.write(state).data,
            share=1.5,
        )
        for form in forms
    }
    data = found["snapshot in ranges"].samples[0]
    for codec in compression.NUMBERS:
        packed = len(data).to_bytes(4, "big") + compression.pack(codec, data)
        found[f"snapshot, {codec}"] = Decoder(
            [packed], lambda data, codec=codec: chunked_snapshot.unpacked(data, codec, LIMITS.of(len(data))), share=0.3
        )
    parts = [data[:20], data[20:]]
    footer = b'{"numParts": 2, "length": %d}' % len(data)

    def in_parts(mutated: bytes) -> bytes:
        return chunked_snapshot.stored_at([b"before", *parts, mutated].__getitem__, 3).data

    found["footer of chunks"] = Decoder([footer, data], in_parts, share=0.5)
    return found


# -- records and messages --------------------------------------------------------------------------------------------


def _some_cursor_info(rng: random.Random) -> records.CursorInfo:
    return records.CursorInfo(
        rng.choice((-1, rng.randrange(1 << 40))),
        rng.choice((None, Position(5, -1))),
        tuple((5, 2 * number, 5, 2 * number + 1) for number in range(rng.randrange(20))),
        (("a name", rng.randrange(-9, 9)),),
        rng.choice((None, 1_700_000_000_000)),
        tuple((6, number, _some_bits(rng)) for number in range(rng.randrange(3))),
        (("a string", "of the cursor"),),
    )


def _some_ledger_info(rng: random.Random) -> records.ManagedLedgerInfo:
    ledgers = [
        records.LedgerInfo(number, rng.randrange(9), rng.randrange(1 << 40), 12345, rng.choice((None, b"\x08\x07")))
        for number in range(rng.randrange(9))
    ]
    return records.ManagedLedgerInfo(ledgers, rng.choice((None, Position(3, 4))), (("key", "value"),))


def _of_topics(rng: random.Random) -> dict[str, Decoder]:
    cursors = [_some_cursor_info(rng) for _ in range(4)]
    topics = [_some_ledger_info(rng) for _ in range(4)]
    found = {}
    for codec in CODECS:
        share = 0.6 if codec is None else 0.3
        found[f"record of a cursor, {codec}"] = Decoder(
            [records.encode_cursor_info(info, codec, 0) for info in cursors],
            records.decode_cursor_info,
            lambda info, codec=codec: records.encode_cursor_info(info, codec, 0),
            share=share,
        )
        found[f"record of a topic, {codec}"] = Decoder(
            [records.encode_ledger_info(info, codec, 0) for info in topics],
            records.decode_ledger_info,
            lambda info, codec=codec: records.encode_ledger_info(info, codec, 0),
            share=share,
        )
    return found


def _of_messages(rng: random.Random) -> dict[str, Decoder]:
    broker = metadata.BrokerEntryMetadata(broker_timestamp=12345, index=6)
    several = [format.single(rng.randbytes(9), properties={"key": "value"}) for _ in range(3)]
    found = {}
    for codec in compression.NUMBERS:
        more = {"publish_time": 12345, "compression": codec, "properties": {"key": "value"}}
        samples = [
            format.encode_message(rng.randbytes(40), deliver_at=67890, **more),
            format.encode_message(b"x" * 200, broker_metadata=broker, partition_key="key", **more),
            format.batch(several, broker_metadata=broker, **more),
        ]
        found[f"message, {codec}"] = Decoder(samples, _message, share=0.4)
        # Without the checksum that hides what lies below it.
        bare = [
            format.assemble((one := format.Message(sample)).metadata, one.stored_payload, checksum=False)
            for sample in samples
        ]
        found[f"message without checksum, {codec}"] = Decoder(bare, _message, share=0.4)
    checked = format.encode_message(rng.randbytes(60), publish_time=12345)
    magic = checked[:2]
    found["message under its checksum"] = Decoder(
        [checked[2:]], lambda data: format.Message(magic + data).check(), digested=True, share=0.5
    )
    tables: dict[str, tuple[MessageSchema, Callable[..., Any], bytes]] = {
        "metadata of a message": (metadata.MESSAGE_METADATA, metadata.MessageMetadata, _metadata_of(samples[0])),
        "metadata of a broker": (metadata.BROKER_ENTRY_METADATA, metadata.BrokerEntryMetadata, b"\x08\x05\x10\x06"),
        "metadata of one in a batch": (
            metadata.SINGLE_MESSAGE_METADATA,
            metadata.SingleMessageMetadata,
            metadata.SINGLE_MESSAGE_METADATA.write(several[0].metadata),
        ),
    }
    for name, (table, build, sample) in tables.items():
        found[name] = Decoder(
            [sample],
            lambda data, table=table, build=build: build(**table.read(data)),
            table.write,
            refusals=wire_format.WireError,
            share=0.5,
        )
    return found


def _metadata_of(sample: bytes) -> bytes:
    return metadata.MESSAGE_METADATA.write(format.Message(sample).metadata)


def _message(data: bytes) -> tuple[Any, ...]:
    one = format.Message(data)
    said = (one.broker_metadata, one.metadata, one.stored_payload, one.payload(LIMITS), list(one.messages(LIMITS)))
    one.check()
    return said


# -- records of a cursor's ledger ------------------------------------------------------------------------------------


def _sealed_again(body: bytes) -> bytes:
    return body + google_crc32c.value(body).to_bytes(record.CRC_BYTES, "little")


def _encoded_page(rng: random.Random, ledger_id: int = TOPIC_LEDGER, limit: int = 5000) -> ack_page.EncodedPage:
    batches = {400 + number: _some_bits(rng) for number in range(rng.randrange(1, 6))}
    return ack_page.encode_page(
        CURSOR, ledger_id, _some_entries(rng), batches, generation=4, mark_delete=Position(3, 5), limit=limit
    )


def _of_pages(rng: random.Random) -> dict[str, Decoder]:
    whole = _encoded_page(rng)
    divided = _encoded_page(rng, limit=240)
    ref, parts_ref = whole.ref(0), divided.ref(0)
    place = rng.randrange(len(divided.entries))
    end = record.tail(record.Identity(CURSOR, record.PAGE, 4, TOPIC_LEDGER, 0, 1))

    def decode_part(data: bytes) -> ack_page.Page:
        parts = [*divided.entries[:place], data, *divided.entries[place + 1 :]]
        return ack_page.decode_page(CURSOR, TOPIC_LEDGER, parts_ref, parts)

    def decode_resealed(data: bytes) -> ack_page.Page:
        stored = _sealed_again(data + end)
        seal = google_crc32c.value(stored[-record.CRC_BYTES :])
        return ack_page.decode_page(CURSOR, TOPIC_LEDGER, ref._replace(size=len(stored), crc=seal), [stored])

    return {
        "page": Decoder(
            whole.entries,
            lambda data: ack_page.decode_page(CURSOR, TOPIC_LEDGER, ref, [data]),
            digested=True,
            share=0.5,
        ),
        "part of a page": Decoder([divided.entries[place]], decode_part, digested=True, share=0.5),
        "page, sealed again": Decoder([whole.entries[0][: -len(end) - record.CRC_BYTES]], decode_resealed, share=1.5),
        "record of a cursor's ledger": Decoder(
            whole.entries, record.identify, digested=True, refusals=record.RecordError, share=0.3
        ),
        "record of a cursor's ledger, sealed again": Decoder(
            [whole.entries[0][: -record.CRC_BYTES]],
            lambda data: (record.identify(_sealed_again(data)), record.read_position(_sealed_again(data))),
            refusals=(record.RecordError, wire_format.WireError, UnicodeDecodeError),
            share=0.5,
        ),
    }


def _of_markers(rng: random.Random) -> dict[str, Decoder]:
    ledgers = sorted(rng.sample(range(1 << 20), 120))
    refs = [
        PageRef(number, 1, 4, rng.randrange(99), 0, rng.randrange(999), rng.getrandbits(32)) for number in range(120)
    ]
    prepared = PageIndex.build(zip(ledgers, refs, strict=True)).prepare(120)
    (stored,) = checkpoint.encode_marker(
        CURSOR,
        prepared,
        generation=4,
        mark_delete=Position(3, 5),
        properties={"a name": 5},
        time_ms=12345,
        previous=17,
        page_entries=120,
    )
    leaf = index_node.encode_leaf(ledgers[:50], refs[:50])
    inner = index_node.encode_inner(
        1, ledgers[:4], [index_node.NodeRef(number, number, rng.getrandbits(32)) for number in range(4)]
    )
    body = stored[: -record.CRC_BYTES]

    def in_index(root: bytes) -> list[tuple[int, PageRef]]:
        load = checkpoint.node_loader(CURSOR, {120: stored}.__getitem__)
        return list(PageIndex.read(root, load, cursor=CURSOR).items())

    return {
        "marker of a cursor": Decoder(
            [stored], lambda data: checkpoint.decode_marker(CURSOR, 120, data), digested=True, share=0.3
        ),
        "marker of a cursor, sealed again": Decoder([body], _whole_marker, share=1.5),
        "root of an index": Decoder([prepared.root], in_index, refusals=(BookstandError, KeyError), share=0.5),
        "leaf of an index": Decoder(
            [leaf], index_node.decode_leaf, lambda value: index_node.encode_leaf(*value), refusals=ValueError, share=0.6
        ),
        "inner node of an index": Decoder(
            [inner],
            lambda data: index_node.decode_inner(data, 1),
            lambda value: index_node.encode_inner(1, *value),
            refusals=ValueError,
            share=0.6,
        ),
    }


def _whole_marker(data: bytes) -> tuple[checkpoint.Marker, list[tuple[int, PageRef]]]:
    """The marker with its index, of which all nodes are in it."""
    stored = _sealed_again(data)
    found = checkpoint.decode_marker(CURSOR, 120, stored)

    def read(entry_id: int) -> bytes:
        if entry_id != 120:
            raise bookstand.errors.NoSuchEntryError(f"there is no entry {entry_id}")
        return stored

    return found, list(PageIndex.read(found.root, checkpoint.node_loader(CURSOR, read), cursor=CURSOR).items())


# -- faults ----------------------------------------------------------------------------------------------------------


def _of_faults() -> dict[str, Decoder]:
    faults = Faults(seed=-7)
    faults.fail("append", -6, ledger=4, entry=17, nth=3)
    faults.fail("read", -1, times=None, probability=0.5)
    faults.delay("append", 0.25)
    faults.flip(3, 4, 5)
    faults.crash("append.stored", nth=2)
    return {
        "faults": Decoder(
            [faults.replay.encode()],
            lambda data: Faults.parse(data.decode(errors="replace")),
            lambda found: found.replay.encode(),
            equal=lambda one, other: one.replay == other.replay,
        )
    }


# -- whole cursors ---------------------------------------------------------------------------------------------------


def _of_whole_cursors(rng: random.Random, folder: Path) -> dict[str, Decoder]:
    """What a cursor makes of a record or of a newest entry that somebody else has written."""
    found = {}
    for form, config in (
        ("pages", CursorConfig(flush_interval=1e9)),
        ("snapshots", CursorConfig(flush_interval=1e9, enable_lru_cache_max_unacked_ranges=False)),
    ):
        whole = folder / f"cursor in {form}"
        with bookstand.open(whole, durability="none") as store:
            topic = store.managed_ledger("topic", max_entries_per_ledger=20)
            entries = topic.append_entries([b"."] * 60)
            cursor = Cursor.open(topic, CURSOR, config)
            cursor.ack(rng.sample(entries[1:], 20))
            cursor.ack_batch(entries[0], [1, 2], 10)
            cursor.flush()
            truth = (cursor.acked_ranges(), cursor.partial_batches())
            record_path, topic_path = cursor._log.path, topic.path
            assert cursor._log.handle is not None
            stored = [one.data for one in cursor._log.handle.read_unconfirmed(0, cursor._log.next_entry - 1)]
            records_of = {path: store.nodes.get(path)[0] for path in (record_path, topic_path)}
        opened = _Opened(folder / f"opened in {form}", whole, config, truth)
        found[f"newest entry of a cursor in {form}"] = Decoder(stored, opened.with_newest, share=0.03)
        for path, kind in ((record_path, "cursor"), (topic_path, "topic")):
            found[f"stored record of a {kind} in {form}"] = Decoder(
                [records_of[path]], partial(opened.with_record, path), share=0.03
            )
    return found


class _Opened:
    """A topic with its cursor, of which one thing was replaced: used as far as it goes."""

    def __init__(self, folder: Path, whole: Path, config: CursorConfig, truth: Any) -> None:
        self._folder = folder
        self._whole = whole
        self._config = config
        self._truth = truth

    def with_record(self, path: str, data: bytes) -> None:
        self._use(lambda store: store.nodes.put(path, data))

    def with_newest(self, data: bytes) -> None:
        def replace(store: bookstand.Store) -> None:
            topic = store.managed_ledger("topic")
            cursor = Cursor.open(topic, CURSOR, self._config)
            entries = [one.data for one in store.open_ledger(cursor._log.info.cursor_ledger_id)]
            forged = store.create_ledger()
            forged.append_many([*entries, data])
            cursor._log.put(cursor._log.info._replace(cursor_ledger_id=forged.id))

        # A record that its checksum covers is the one that was written, or none; an older one has the same state.
        self._use(replace, self._truth if record.is_ours(data) else None)

    def _use(self, change: Callable[[bookstand.Store], object], truth: Any = None) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._whole, self._folder)
        with bookstand.open(self._folder, durability="none") as store:
            change(store)
        with bookstand.open(self._folder, durability="none") as store:
            topic = store.managed_ledger("topic", max_entries_per_ledger=20)
            cursor = Cursor.open(topic, CURSOR, self._config)
            if truth is not None and (cursor.acked_ranges(), cursor.partial_batches()) != truth:
                raise AssertionError(f"it has become {cursor.acked_ranges()}, {cursor.partial_batches()}")
            position = topic.append_entry(b"another")
            if cursor.is_acked(position):
                raise AssertionError(f"{position} is acknowledged, which nobody knew of")
            cursor.acked_ranges()
            cursor.partial_batches()
            cursor.read(5)
            cursor.ack(position).result(60)
            cursor.close()
