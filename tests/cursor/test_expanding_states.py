"""Records of cursors and negative acknowledgments that a few bytes make large: rejected before they take memory."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand.cursor.format import chunked_snapshot, position_info
from bookstand.cursor.format.packed_column import write_column
from bookstand.cursor.format.partial_batches import decode_batches, encode_batches
from bookstand.cursor.state.ledger_acks import bits_of, indexes_of
from bookstand.delivery.nacks import record as nack_record
from bookstand.delivery.nacks.record import Nacks
from bookstand.errors import (
    ExpansionError,
    IncorrectParameterError,
    MalformedAckStateError,
    MalformedRecordError,
)
from bookstand.managed_ledger import records
from bookstand.managed_ledger.message import compression
from bookstand.proto import ack_messages, wire_format
from bookstand.proto.expansion import DEFAULT, FREE_BYTES, MAX_BATCH_MESSAGES, ExpansionLimits
from bookstand.storage.format.position import Position


@contextmanager
def at_most(mebibytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < mebibytes << 20
    finally:
        tracemalloc.stop()


def packed(codec: str, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + compression.pack(codec, data)


# -- snapshots and records ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_a_packed_snapshot_cannot_take_more_than_the_limits(codec: str) -> None:
    stored = struct.pack(">I", 1 << 31) + compression.pack(codec, bytes(1000))
    limits = ExpansionLimits(1 << 30, 1 << 20)
    with (
        at_most(1),
        pytest.raises(MalformedAckStateError, match=r"expands to 2147483648 bytes or more, .* max_expanded_bytes"),
    ):
        chunked_snapshot.unpacked(stored, codec, limits.of(len(stored)))


PARTS = {
    "ranges": bytes.fromhex("1a0c0a040807100112040807 1003".replace(" ", "")),
    "ranges of an unusual shape": bytes.fromhex("1a0c12040807100 30a0408071001".replace(" ", "")),
    "properties": bytes.fromhex("22040a001000"),
    "batches": bytes.fromhex("2a060a0408071001"),
    "words": bytes.fromhex("320608071001") + b"\x10\x01",
}


@pytest.mark.parametrize("part", PARTS)
def test_what_a_snapshot_unpacks_to_is_charged_for_all_that_is_in_it(part: str) -> None:
    data = bytes.fromhex("08031001") + PARTS[part] * ((FREE_BYTES - 100) // len(PARTS[part]))
    stored = packed("ZSTD", data)
    assert len(stored) < FREE_BYTES // 1000
    expansion = DEFAULT.of(len(stored))
    plain = chunked_snapshot.unpacked(stored, "ZSTD", expansion)
    assert plain == data
    with at_most(32), pytest.raises(MalformedAckStateError, match=r"the state of a cursor expands to .* max_expan"):
        position_info.read(plain, None, expansion)


@pytest.mark.slow
def test_a_record_of_a_topic_cannot_unpack_to_millions_of_ledgers() -> None:
    ledger = bytes.fromhex("0a020800")
    header = records._HEADER.write(records._Header(compression.NUMBERS["ZSTD"], len(ledger) * 200_000))
    stored = b"\x47\x78" + struct.pack(">I", len(header)) + header + compression.pack("ZSTD", ledger * 200_000)
    with pytest.raises(MalformedRecordError, match=r"node /a cannot be read: a record of .* elements expands"):
        records.decode_ledger_info(stored, "node /a")
    # As many as a topic has, at Pulsar's threshold and above it.
    info = records.ManagedLedgerInfo([records.LedgerInfo(number, 50_000, 1 << 30, 12345) for number in range(10_000)])
    for codec in compression.NUMBERS:
        assert records.decode_ledger_info(records.encode_ledger_info(info, codec)).ledgers == info.ledgers


def test_ranges_in_a_record_are_within_the_limits_or_rejected() -> None:
    wide = position_info.from_parts(Position(3, 1), [(4, -1, 4, (1 << 33) - 1)], [], {})
    assert len(wide.state.acked[4]) == 1 << 33
    with at_most(1), pytest.raises(MalformedAckStateError, match=r"blocks of entries expands to .* max_expan"):
        position_info.from_parts(Position(3, 1), [(4, 0, 4, 1 << 62)], [], {})
    with pytest.raises(MalformedAckStateError, match="max_expanded_bytes"):
        position_info.from_parts(Position(3, 1), [(4, -1, 4, 1 << 33)], [], {}, limits=ExpansionLimits(1 << 20))


# -- sets of batch indexes ---------------------------------------------------------------------------------------------


@given(st.integers(0, 1 << 300))
def test_indexes_and_words_of_a_set(bits: int) -> None:
    assert indexes_of(bits) == [index for index in range(bits.bit_length()) if bits >> index & 1]
    assert ack_messages.words_of(bits) == [bits >> at & (1 << 64) - 1 for at in range(0, bits.bit_length(), 64)]


def test_sets_of_millions_of_bits_take_linear_time() -> None:
    bits = 1 << (MAX_BATCH_MESSAGES - 1) | 1
    began = time.process_time()
    assert indexes_of(bits) == [0, MAX_BATCH_MESSAGES - 1]
    chunk = ack_messages.write_batch(3, 4, bits)
    assert ack_messages.read_batch(chunk) == (3, 4, bits)
    # Shifting the number for each bit would take an hour.
    assert time.process_time() - began < 20


def test_a_batch_has_a_limited_number_of_messages() -> None:
    with pytest.raises(wire_format.WireError, match=f"has {MAX_BATCH_MESSAGES + 64} bits; a batch has at most"):
        ack_messages.read_batch(ack_messages.write_batch(3, 4, 1 << MAX_BATCH_MESSAGES))
    with at_most(1), pytest.raises(IncorrectParameterError, match="batch_size must be an integer from 1 to"):
        bits_of([0], 1 << 40)


def test_many_equal_sets_take_bytes_and_a_few_cannot_stand_for_many() -> None:
    count = 2 * FREE_BYTES // 256
    partial = dict.fromkeys(range(7, 7 + count), 0b101)
    data = encode_batches(partial, {})
    assert decode_batches(data, count) == (partial, {})
    out = bytearray(b"\x07")
    for numbers in ([1], [0]):
        write_column(out, numbers)
    out.append(0)
    write_column(out, [5])
    assert decode_batches(bytes(out), 1 << 10)[0] == dict.fromkeys(range(7, 7 + (1 << 10)), 5)
    with (
        at_most(1),
        pytest.raises(ExpansionError, match=f"a page with {1 << 40} partially acknowledged batches expands"),
    ):
        decode_batches(bytes(out), 1 << 40)


# -- negative acknowledgments ------------------------------------------------------------------------------------------


def test_a_run_cannot_stand_for_billions_of_negative_acknowledgments() -> None:
    body = bytearray()
    for field, number in ((1, 12345), (2, 5)):
        wire_format.write_varint_field(body, field, number)
    run = bytearray()
    wire_format.write_varint(run, 0)
    wire_format.write_varint(run, (1 << 31) - 1)
    wire_format.write_bytes_field(body, 3, run)
    record = bytearray()
    wire_format.write_bytes_field(record, 1, body)
    with (
        at_most(1),
        pytest.raises(MalformedRecordError, match=r"entry 7:0 .* of 2147483648 negative acknowledgments expan"),
    ):
        nack_record.decode(bytes(record), "entry 7:0")


def runs_of(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    firsts, lasts, at = [], [], 0
    for distance, follow in pairs:
        firsts.append(at + distance)
        lasts.append(firsts[-1] + follow)
        at = lasts[-1] + 2
    return np.array(firsts, dtype=np.int64), np.array(lasts, dtype=np.int64)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 20_000_000)), min_size=1, max_size=6))
def test_however_many_are_nacked_together_each_record_is_within_the_limits(pairs: list[tuple[int, int]]) -> None:
    firsts, lasts = runs_of(pairs)
    seen: list[tuple[int, int]] = []
    for record in nack_record.encode_nacks([Nacks(12345, 5, firsts, lasts)], 1 << 20):
        (one,) = nack_record.decode(record, "a record").nacks
        for first, last in zip(one.firsts.tolist(), one.lasts.tolist(), strict=True):
            if seen and seen[-1][1] + 1 == first:
                seen[-1] = seen[-1][0], last
            else:
                seen.append((first, last))
    assert seen == list(zip(firsts.tolist(), lasts.tolist(), strict=True))
