"""Entries and files of disks that expand beyond the limits: damage that names them, and no obstacle to the others."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import pytest

import bookstand
from bookstand import ExpansionLimits
from bookstand.disk.damage import Damage
from bookstand.disk.disks import Disks
from bookstand.disk.exporter.run import export_topics
from bookstand.disk.format import entry_log
from bookstand.disk.format.index_file import IndexFile
from bookstand.disk.store_source import StoreSource
from bookstand.disk.topics.messages import DiskMessage, joined
from bookstand.disk.topics.topics import topic
from bookstand.errors import ExpansionError
from bookstand.managed_ledger.message.format import batch_alike, encode_message
from bookstand.proto.expansion import DEFAULT, MESSAGE_BYTES
from bookstand.storage.format.position import Position
from tests.delivery.test_expanding_entries import expanding

TOPIC = "persistent://public/default/t"
SMALL = ExpansionLimits(max_expanded_bytes=11 * MESSAGE_BYTES - 1)


def test_an_entry_beyond_the_limits_is_damage_and_the_others_are_read(store_path: Path) -> None:
    with bookstand.open(store_path) as store:
        published = store.topic(TOPIC)
        published.publish(b"a")
        bomb = published.ledger.append_entry(expanding("ZSTD", 80_000))
        published.publish_batch([b"b", b"c"])
        for limits, refused in ((DEFAULT, {bomb}), (ExpansionLimits(1 << 40, 1 << 40), set())):
            source = StoreSource(store.storage, (), limits)
            found = topic(source, TOPIC)  # type: ignore[arg-type]
            messages = list(found.messages())
            values = [sum(1 for _ in message.values()) for message in messages]
            assert values == ([1, 0, 2] if refused else [1, 80_000, 2])
            assert {Position(one.ledger_id, one.entry_id) for one in source.damage} == refused
            for one in source.damage:
                assert "the batch of 80000 messages expands to" in one.what
                assert "raise max_expansion_ratio (1000) to" in one.what


def test_limits_of_opened_disks_apply_to_their_entries(store_path: Path, tmp_path: Path) -> None:
    with bookstand.open(store_path) as store:
        published = store.topic(TOPIC)
        published.publish(b"a")
        published.ledger.append_entry(expanding("ZSTD", 80_000))
        report = export_topics(store, tmp_path / "exported")
    for limits, count in ((DEFAULT, 0), (ExpansionLimits(1 << 40, 1 << 40), 80_000)):
        with Disks.open([report.bookie.parent], report.metadata, limits=limits) as disks:
            messages = list(topic(disks, TOPIC).messages())
            assert [sum(1 for _ in message.values()) for message in messages] == [1, count]


def test_what_was_put_together_from_chunks_is_within_the_limits_as_well() -> None:
    whole = encode_message(
        bytes(11 * MESSAGE_BYTES), publish_time=1, compression="ZSTD", uuid="u", num_chunks_from_msg=2
    )
    cut = len(whole) - 5
    rest = encode_message(whole[cut:], publish_time=1, uuid="u", num_chunks_from_msg=2, chunk_id=1)
    damage: list[Damage] = []
    for limits, size in ((DEFAULT, 11 * MESSAGE_BYTES), (SMALL, 0)):
        parts = [
            DiskMessage("t", Position(3, at), data, _ignore, limits) for at, data in enumerate((whole[:cut], rest))
        ]
        (message,) = joined(parts, damage.append)
        message.message._report = damage.append
        assert sum(len(value.payload) for value in message.message.values()) == size
    assert [one for one in damage if "max_expanded_bytes" in one.what]


def _ignore(_: Damage) -> None:
    pass


def test_many_small_chunks_that_wait_count_more_than_their_bytes() -> None:
    damage: list[Damage] = []
    count = 400
    parts = [
        DiskMessage(
            "t",
            Position(3, number),
            encode_message(b".", publish_time=1, uuid=str(number), num_chunks_from_msg=2),
            damage.append,
        )
        for number in range(count)
    ]
    room = 100 * (MESSAGE_BYTES + len(parts[0].data) + 10)
    assert list(joined(parts, damage.append, room)) == []
    given_up = [one for one in damage if "bytes of chunks wait for others" in one.what]
    assert count - 110 < len(given_up) < count - 90


def sparse(path: Path, head: bytes, size: int) -> Path:
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def test_an_index_file_that_is_one_hole_takes_no_memory(tmp_path: Path) -> None:
    path = sparse(tmp_path / "7.idx", bytes(1024) + struct.pack(">3q", 5, 6, 7), 1 << 40)
    index = IndexFile(path, 7, b"", False, None)
    assert index.locations(0, 2).tolist() == [5, 6, 7]
    tracemalloc.start()
    try:
        with pytest.raises(ExpansionError, match=r"7\.idx: an index of 137438953344 entries expands to .* max_expan"):
            index.locations()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    path.write_bytes(bytes(1024) + struct.pack(">3q", 5, 6, 7))
    assert index.locations().tolist() == [5, 6, 7]
    assert index.locations(1).tolist() == [6, 7]


def test_a_ledgers_map_in_a_hole_is_damage(tmp_path: Path) -> None:
    rows = 60_000_000
    header = entry_log.header(1024, rows)
    record = struct.pack(">iqqi", 20 + 16 * rows, -1, -2, rows)
    path = sparse(tmp_path / "0.log", header + record, 1 << 31)
    damage: list[Damage] = []
    tracemalloc.start()
    try:
        assert entry_log.read_ledgers_map(path, damage.append) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert "the ledgers map expands to" in damage[0].what
    ledgers = {number: 100 + number for number in range(50_000)}
    body = b"".join(struct.pack(">i", len(one)) + one for one in entry_log.map_records(ledgers))
    path.write_bytes(entry_log.header(1024, len(ledgers)) + body)
    assert entry_log.read_ledgers_map(path, _ignore) == ledgers


def test_a_batch_within_the_limits_is_read(store_path: Path) -> None:
    damage: list[Damage] = []
    for count in (10, 11):
        data = batch_alike([b""] * count, publish_time=1)
        message = DiskMessage("t", Position(3, count), data, damage.append, SMALL)
        assert sum(1 for _ in message.values()) == (count if count == 10 else 0)
    assert [one.entry_id for one in damage] == [11]
