"""Snapshots have Pulsar's bytes, whatever is in them, and give back what was put into them or say what is broken."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from bookstand.delivery.tracker.bucket.snapshot import codec
from bookstand.delivery.tracker.bucket.snapshot.codec import (
    SegmentMetadata,
    SnapshotDamagedError,
    SnapshotMetadata,
    SnapshotTooLargeError,
    cut,
    decode_metadata,
    decode_segment,
    decode_segments,
    encode_metadata,
    encode_segment,
    encode_segment_metadata,
    seal,
)
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.delivery.tracker.bucket.snapshot.java_hash_order import hash_map_order
from bookstand.delivery.tracker.bucket.snapshot.rows import sorted_rows
from bookstand.errors import BookstandError, EntryTooLargeError, IncorrectParameterError, StoreDamagedError
from bookstand.proto import delayed_bucket_metadata_pb2 as metadata_pb2
from bookstand.proto import delayed_bucket_segment_pb2 as segment_pb2
from bookstand.proto import wire_format

UNHURRIED = settings(deadline=None)  # the machine may be busy
ROOT = Path(__file__).resolve().parent.parent.parent
RECORDED = ROOT / "tests" / "data" / "bitmaps"

NOW = 1_700_000_000_000
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
EXTREMES = st.sampled_from(
    [0, 1, 127, 128, (1 << 14) - 1, 1 << 14, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, -1, -(1 << 63)]
)
NUMBERS = EXTREMES | INT64 | st.integers(0, 300)
ROWS = st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=40)

Row = tuple[int, int, int]


def indexes_of(rows: Sequence[Sequence[int]]) -> Indexes:
    """Rows of time, ledger, entry."""
    return Indexes.of(*zip(*rows, strict=True)) if rows else Indexes.of([], [], [])


def rows_of(indexes: Indexes) -> list[Row]:
    return [tuple(index) for index in indexes.indexes]  # type: ignore[misc]


def unsigned(number: int) -> int:
    return number % (1 << 64)


def message_of(rows: Sequence[Row]) -> segment_pb2.SnapshotSegment:
    message = segment_pb2.SnapshotSegment()
    for timestamp, ledger_id, entry_id in rows:
        message.indexes.add(timestamp=unsigned(timestamp), ledger_id=unsigned(ledger_id), entry_id=unsigned(entry_id))
    return message


# -- the golden vector -----------------------------------------------------------------------------------------------


def test_one_index_has_the_bytes_that_pulsar_writes() -> None:
    sealed = seal(indexes_of([(1000, 1, 2)]), 300_000, 5_000)
    assert [entry.hex() for entry in sealed.entries] == [
        "0a1e0a16080112123a300000010000000000000010000000020010e80718e807",
        "0a0708e80710011802",
    ]
    assert sealed.length == 41
    assert sealed.segment_count == 1
    assert rows_of(sealed.segment(1)) == [(1000, 1, 2)]


def test_nothing_makes_an_empty_entry() -> None:
    assert seal(indexes_of([]), 1000).entries == [b""]
    assert decode_metadata(b"") == ([], None)
    assert rows_of(decode_segment(b"")) == []


# -- cutting ---------------------------------------------------------------------------------------------------------

CUTS = {
    "case 11": ([100, 109, 110, 111, 120, 121], 10, -1, [2, 2, 2]),
    "case 12": ([100, 101, 102, 115], 10, 2, [2, 1, 1]),
    "case 13": ([5, 5, 5, 6], 1, -1, [3, 1]),
    "case 14": (range(1, 12_001), 1 << 40, 5_000, [5_000, 5_000, 2_000]),
    "a count of 0 is one of 1": ([1, 1, 2], 10, 0, [1, 1, 1]),
    "a count splits one time": ([7, 7, 7], 10, 2, [2, 1]),
    "a step of 0 leaves each alone": ([7, 7, 8], 0, -1, [1, 1, 1]),
    "the last time of a segment wraps": ([(1 << 63) - 2, (1 << 63) - 2, (1 << 63) - 1], 10, -1, [1, 1, 1]),
    "it does not where a step is one": ([(1 << 63) - 2, (1 << 63) - 2, (1 << 63) - 1], 1, -1, [2, 1]),
    "nothing": ([], 10, -1, []),
}


@pytest.mark.parametrize("case", CUTS)
def test_segments_are_cut(case: str) -> None:
    times, step, most, sizes = CUTS[case]
    assert np.diff(cut(np.array(times, dtype=np.int64), step, most), prepend=0).tolist() == sizes


def cut_plainly(times: Sequence[int], step: int, most: int) -> list[int]:
    ends: list[int] = []
    start = 0
    for at in range(1, len(times) + 1):
        upper = wire_format.int64(unsigned(times[start] + step - 1))
        if at == len(times) or times[at] > upper or (most != -1 and at - start >= most):
            ends.append(at)
            start = at
    return ends


@UNHURRIED
@given(
    st.lists(NUMBERS | st.integers(0, 50), max_size=60).map(sorted),
    st.integers(0, 100) | st.integers(0, 1 << 62),
    st.integers(-1, 8),
)
def test_cutting_is_what_pulsar_does_index_by_index(times: list[int], step: int, most: int) -> None:
    assert cut(np.array(times, dtype=np.int64), step, most) == cut_plainly(times, step, most)


def test_a_count_below_unlimited_is_refused() -> None:
    with pytest.raises(IncorrectParameterError, match="-2"):
        cut(np.array([1]), 10, -2)


# -- segments --------------------------------------------------------------------------------------------------------


@UNHURRIED
@given(ROWS)
def test_a_segment_is_written_as_protobuf_does(rows: list[Row]) -> None:
    data = encode_segment(indexes_of(rows))
    assert data == message_of(rows).SerializeToString()
    assert rows_of(decode_segment(data)) == rows


@UNHURRIED
@given(st.lists(ROWS, min_size=1, max_size=5))
def test_several_segments_are_read_as_each_of_them(segments: list[list[Row]]) -> None:
    entries = [encode_segment(indexes_of(rows)) for rows in segments]
    assert list(map(rows_of, decode_segments(entries, ["one"] * len(entries)))) == segments


def test_many_indexes_are_written_as_protobuf_does() -> None:
    """More than are coded at a time, with lengths that change on the way."""
    count = 40_000
    rows = [(NOW + number**3, number // 7, number * number) for number in range(count)]
    data = encode_segment(indexes_of(rows))
    assert data == message_of(rows).SerializeToString()
    assert rows_of(decode_segment(data)) == rows


@st.composite
def odd_segments(draw: st.DrawFn) -> bytes:
    """Segments in any shape that protobuf allows: fields in any order, given twice, unknown, with longer numbers."""
    out = bytearray()
    for _ in range(draw(st.integers(0, 4))):
        fields = [(number, wire_format.VARINT) for number in (1, 2, 3)]
        fields += draw(
            st.lists(st.tuples(st.integers(1, 5), st.sampled_from([wire_format.VARINT, wire_format.BYTES])), max_size=2)
        )
        fields = draw(st.permutations(fields))
        if draw(st.integers(0, 5)) == 0:
            fields.pop()
        index = bytearray()
        for number, kind in fields:
            if kind == wire_format.VARINT:
                wire_format.write_varint(index, wire_format.tag(number, kind))
                varint = bytearray()
                wire_format.write_varint(varint, draw(NUMBERS))
                if len(varint) < 9 and draw(st.booleans()):
                    varint[-1] |= 0x80
                    varint.append(0)
                index += varint
            else:
                wire_format.write_bytes_field(index, number, draw(st.binary(max_size=3)))
        if draw(st.integers(0, 5)) == 0:
            wire_format.write_bytes_field(out, 9, b"unknown")
        wire_format.write_bytes_field(out, 1, index)
    return bytes(out)


@UNHURRIED
@given(odd_segments())
def test_a_segment_in_any_shape_is_read_as_protobuf_does(data: bytes) -> None:
    try:
        message = segment_pb2.SnapshotSegment.FromString(data)
        whole = message.IsInitialized()
    except DecodeError:
        whole = False
    if not whole:
        with pytest.raises(SnapshotDamagedError, match="ledger 7, entry 3"):
            decode_segment(data, "ledger 7, entry 3")
        return
    expected = [tuple(map(wire_format.int64, (one.timestamp, one.ledger_id, one.entry_id))) for one in message.indexes]
    assert rows_of(decode_segment(data)) == expected


@pytest.mark.parametrize("missing", ["timestamp", "ledger_id", "entry_id"])
def test_an_index_that_lacks_a_field_is_damage(missing: str) -> None:
    message = message_of([(1, 2, 3), (4, 5, 6)])
    message.indexes[1].ClearField(missing)
    with pytest.raises(SnapshotDamagedError, match="required"):
        decode_segment(message.SerializePartialToString())


def test_a_segment_that_is_cut_short_is_damage_or_ends_before_an_index() -> None:
    rows = [(NOW + number, 300, number * 100) for number in range(30)]
    data = encode_segment(indexes_of(rows))
    ends = {len(encode_segment(indexes_of(rows[:count]))): count for count in range(31)}
    for size in range(len(data)):
        if size in ends:
            assert rows_of(decode_segment(data[:size])) == rows[: ends[size]]
        else:
            with pytest.raises(SnapshotDamagedError, match="ledger 7, entry 3"):
                decode_segment(data[:size], "ledger 7, entry 3")


def test_segments_that_only_together_are_whole_are_damage() -> None:
    data = encode_segment(indexes_of([(NOW, 1, 2), (NOW, 1, 3)]))
    with pytest.raises(SnapshotDamagedError, match="second"):
        decode_segments([data + data[:5], data[5:]], ["first", "second"][::-1])


@UNHURRIED
@given(ROWS.filter(bool), st.data())
def test_a_flipped_bit_never_gives_anything_but_indexes_or_our_error(rows: list[Row], data: st.DataObject) -> None:
    stored = bytearray(encode_segment(indexes_of(rows)))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = decode_segment(bytes(stored))
    except SnapshotDamagedError:
        return
    message = segment_pb2.SnapshotSegment.FromString(bytes(stored))
    assert found.size == len(message.indexes)


def test_every_flipped_bit_is_read_as_protobuf_does() -> None:
    stored = encode_segment(indexes_of([(300, 7, 5), (301, 200, 1)]))
    for place in range(8 * len(stored)):
        flipped = bytearray(stored)
        flipped[place // 8] ^= 1 << place % 8
        try:
            message = segment_pb2.SnapshotSegment.FromString(bytes(flipped))
            expected = [(one.timestamp, one.ledger_id, one.entry_id) for one in message.indexes]
        except DecodeError:
            expected = None
        if expected is None or not message.IsInitialized():
            with pytest.raises(SnapshotDamagedError):
                decode_segment(bytes(flipped))
        else:
            assert rows_of(decode_segment(bytes(flipped))) == expected


def test_a_number_of_eleven_bytes_is_damage() -> None:
    body = b"\x08" + b"\x80" * 10 + b"\x01" + b"\x10\x01\x18\x01"
    with pytest.raises(SnapshotDamagedError):
        decode_segment(bytes((0x0A, len(body))) + body)


# -- sealing ---------------------------------------------------------------------------------------------------------


def hash_map(lookups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Java's HashMap, bin by bin, without trees: filled, listed and cleared for each sequence of lookups."""
    bins: list[list[int]] = [[] for _ in range(16)]

    def place(ledger_id: int, size: int) -> int:
        low = (ledger_id ^ ledger_id >> 32) & 0xFFFFFFFF
        return (low ^ low >> 16) % size

    def doubled() -> list[list[int]]:
        wider: list[list[int]] = [[] for _ in range(2 * len(bins))]
        for one in bins:
            for ledger_id in one:
                wider[place(ledger_id, len(wider))].append(ledger_id)
        return wider

    listed = []
    for sequence in lookups:
        for ledger_id in sequence:
            if sum(map(len, bins)) > len(bins) * 3 // 4:
                bins = doubled()
            one = bins[place(ledger_id, len(bins))]
            if ledger_id not in one:
                one.insert(0, ledger_id)
                if len(one) >= 8 and len(bins) < 64:
                    bins = doubled()
        listed.append([ledger_id for one in bins for ledger_id in one])
        bins = [[] for _ in bins]
    return listed


def sealed_plainly(rows: Sequence[Row], step: int, most: int) -> list[bytes]:
    rows = sorted(rows)
    ends = cut_plainly([row[0] for row in rows], step, most)
    segments = [rows[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    metadata = bytearray()
    orders = hash_map([[ledger_id for _, ledger_id, entry_id in one if entry_id < 1 << 32] for one in segments])
    for segment, order in zip(segments, orders, strict=True):
        body = bytearray()
        for ledger_id in order:
            bitmap = BitMap([row[2] for row in segment if row[1] == ledger_id and row[2] < 1 << 32])
            bitmap.run_optimize()
            pair = bytearray()
            wire_format.write_varint_field(pair, 1, ledger_id)
            wire_format.write_bytes_field(pair, 2, bitmap.serialize())
            wire_format.write_bytes_field(body, 1, pair)
        wire_format.write_varint_field(body, 2, segment[-1][0])
        wire_format.write_varint_field(body, 3, segment[0][0])
        for ledger_id in sorted({row[1] for row in segment if row[2] >= 1 << 32}):
            high = BitMap64([row[2] for row in segment if row[1] == ledger_id and row[2] >= 1 << 32])
            high.run_optimize()
            pair = bytearray()
            wire_format.write_varint_field(pair, 1, ledger_id)
            wire_format.write_bytes_field(pair, 2, high.serialize())
            wire_format.write_bytes_field(body, 1000, pair)
        wire_format.write_bytes_field(metadata, 1, body)
    return [bytes(metadata), *(message_of(one).SerializeToString() for one in segments)]


LEDGER_IDS = st.integers(0, 40) | st.integers(0, 12).map(lambda n: 16 * n) | st.integers(0, (1 << 63) - 1)
ENTRY_IDS = st.integers(0, 60) | st.integers(65_530, 65_540) | st.integers(0, (1 << 32) - 1)
TIMES = st.integers(0, 30) | st.integers(NOW, NOW + 2_000) | st.integers(0, (1 << 63) - 1)
SEALABLE = st.lists(st.tuples(TIMES, LEDGER_IDS, ENTRY_IDS), max_size=120)


@UNHURRIED
@given(SEALABLE, st.sampled_from([0, 1, 10, 500, 300_000]), st.sampled_from([-1, 1, 7, 50]))
def test_sealing_is_what_pulsar_does(rows: list[Row], step: int, most: int) -> None:
    assert seal(indexes_of(rows), step, most).entries == sealed_plainly(rows, step, most)


@UNHURRIED
@given(
    st.lists(st.tuples(TIMES, LEDGER_IDS, ENTRY_IDS | st.integers((1 << 32) - 2, (1 << 63) - 1)), max_size=40),
    st.sampled_from([10, 300_000]),
)
def test_entry_ids_of_64_bits_have_bitmaps_of_their_own(rows: list[Row], step: int) -> None:
    sealed = seal(indexes_of(rows), step)
    assert sealed.entries == sealed_plainly(rows, step, -1)
    found = SnapshotMetadata(decode_metadata(sealed.entries[0]).metadata_list).bitmaps()
    assert {(ledger, entry) for ledger, bitmap in found.items() for entry in bitmap} == {row[1:] for row in rows}


def test_crowds_of_ledgers_and_of_entries_are_sealed_as_pulsar_does() -> None:
    """Long lists, runs, whole bitmaps; more ledgers than the first table holds, in later segments as well."""
    rows = [(NOW + entry % 9, 5, entry) for entry in range(6_000)]
    rows += [(NOW + 100 + entry % 9, 5, entry * 3 % 65_536) for entry in range(6_000)]
    rows += [(NOW + 200 + ledger % 7, ledger * 11, ledger % 3) for ledger in range(400)]
    rows += [(NOW + 300 + ledger % 7, ledger, 70_000 * (ledger % 3)) for ledger in range(40)]
    assert seal(indexes_of(rows[::-1]), 50).entries == sealed_plainly(rows, 50, -1)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 4095, 4096, 4097, 8192])
@pytest.mark.parametrize("step", [1, 2])
def test_the_smaller_form_of_a_bitmap_is_taken(size: int, step: int) -> None:
    """Three ids in a row take as much listed as in a run, and are listed; above 4096 they are bits."""
    for first in (0, 65_536 - size):
        rows = [(NOW, 7, first + step * number) for number in range(size)]
        assert seal(indexes_of(rows), 10).entries == sealed_plainly(rows, 10, -1)


def test_a_ledger_counts_from_its_first_index_on_whatever_entry_that_is() -> None:
    """Both ledgers are in one bin, where the newest is first."""
    rows = [(NOW, 16, 9), (NOW + 1, 32, 5), (NOW + 2, 16, 1)]
    sealed = seal(indexes_of(rows), 10)
    assert sealed.entries == sealed_plainly(rows, 10, -1)
    assert sealed.entries[0].index(b"\x08\x20\x12") < sealed.entries[0].index(b"\x08\x10\x12")


def test_a_position_that_is_there_several_times_is_once_in_the_bitmap() -> None:
    rows = [(NOW, 1, 1), (NOW, 1, 1), (NOW + 1, 1, 1)]
    sealed = seal(indexes_of(rows), 10)
    assert rows_of(sealed.segment(1)) == rows
    assert SnapshotMetadata(decode_metadata(sealed.entries[0]).metadata_list).bitmaps() == {1: BitMap64([1])}


@pytest.mark.parametrize("column", [1, 2])
def test_negative_ids_are_refused(column: int) -> None:
    row = [NOW, 1, 1]
    row[column] = -1
    with pytest.raises(IncorrectParameterError, match="-1"):
        seal(indexes_of([row]), 10)


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(IncorrectParameterError, match="one length"):
        Indexes.of([1, 2], [1], [1])


@pytest.mark.parametrize("column", [[1.5], ["1"], [None], [1 << 63], [1 << 70], np.array([1 << 63], dtype=np.uint64)])
def test_what_is_no_number_of_64_bits_is_refused(column: Any) -> None:
    for place in range(3):
        columns: list[Any] = [[1], [1], [1]]
        columns[place] = column
        with pytest.raises(IncorrectParameterError, match="int64"):
            Indexes.of(*columns)


def test_columns_are_taken_as_they_come() -> None:
    found = Indexes.of(range(2), np.array([1, 2], dtype=np.uint8), np.arange(4)[::2])
    assert rows_of(found) == [(0, 1, 0), (1, 2, 2)]
    assert all(column.dtype == np.int64 and column.flags.c_contiguous for column in found)
    assert decode_segments([], []) == []


@UNHURRIED
@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 3)), max_size=50))
@example([(-(1 << 63), 0, 0), (-(1 << 63), -(1 << 63), 0)])
@example([(0, 1 << 62, 0), (0, 0, 0)])
@example([((1 << 63) - 1, 0, 0), (-(1 << 63), 1, 0)])
def test_rows_are_sorted_however_far_apart_they_are(rows: list[Row]) -> None:
    columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)] or [np.empty(0, dtype=np.int64)]
    assert list(zip(*(column.tolist() for column in sorted_rows(*columns)), strict=True)) == sorted(rows)


# -- the order of ledgers --------------------------------------------------------------------------------------------


def orders() -> list[dict[str, Any]]:
    """What HashMap of Java 17 listed after each sequence of lookups, when it was cleared in between."""
    text = gzip.decompress((RECORDED / "hash_map.jsonl.gz").read_bytes())
    return [json.loads(line) for line in text.splitlines()]


def test_ledgers_are_in_the_order_of_javas_hash_map() -> None:
    samples = orders()
    assert len(samples) > 50
    for sample in samples:
        pairs: list[Row] = []
        at = 0
        for number, lookups in enumerate(sample["lookups"]):
            firsts: dict[int, int] = {}
            for place, ledger_id in enumerate(lookups, at):
                firsts.setdefault(ledger_id, place)
            pairs += sorted((number, ledger_id, place) for ledger_id, place in firsts.items())
            at += len(lookups)
        segments, ledger_ids, first_places = (np.array(column) for column in zip(*pairs, strict=True))
        ends = np.cumsum([len(lookups) for lookups in sample["lookups"]])
        order = hash_map_order(segments, ledger_ids, first_places, ends)
        found: list[list[int]] = [[] for _ in sample["lookups"]]
        for place in order.tolist():
            found[pairs[place][0]].append(pairs[place][1])
        assert found == sample["listed"] == hash_map(sample["lookups"])


# -- metadata --------------------------------------------------------------------------------------------------------

MAPS = st.dictionaries(NUMBERS, st.binary(max_size=20), max_size=4)
SEGMENTS = st.lists(st.builds(SegmentMetadata, MAPS, NUMBERS, NUMBERS, MAPS), max_size=5)


@UNHURRIED
@given(SEGMENTS)
def test_metadata_is_written_and_read_as_protobuf_does(segments: list[SegmentMetadata]) -> None:
    (data,) = encode_metadata([encode_segment_metadata(one) for one in segments])
    message = metadata_pb2.SnapshotMetadata.FromString(data)
    for one, read in zip(segments, message.metadata_list, strict=True):
        assert read.max_schedule_timestamp == unsigned(one.max_schedule_timestamp)
        assert read.min_schedule_timestamp == unsigned(one.min_schedule_timestamp)
        for ours, theirs in (
            (one.delayed_index_bit_map, read.delayed_index_bit_map),
            (one.delayed_index_bit_map_64, read.delayed_index_bit_map_64),
        ):
            assert {unsigned(ledger): bitmap for ledger, bitmap in ours.items()} == dict(theirs)
    assert decode_metadata(data) == decode_metadata(message.SerializeToString()) == (segments, None)


def test_a_reader_that_knows_pulsars_fields_only_passes_over_ours() -> None:
    """The schema of the original is ours without the fields from 1000 up."""
    sealed = seal(indexes_of([(NOW, 1, 1), (NOW, 1, 1 << 40), (NOW, 2, 1 << 40)]), 10, entry_limit=1_000)
    (segment,) = (chunk for _, _, chunk in wire_format.fields(sealed.entries[0]))
    known = {key >> 3 for key, _, _ in wire_format.fields(segment) if key >> 3 < 1000}
    assert known == {1, 2, 3}
    (segment_read,) = decode_metadata(sealed.entries[0]).metadata_list
    assert list(segment_read.delayed_index_bit_map) == [1]
    assert sorted(segment_read.delayed_index_bit_map_64) == [1, 2]


@pytest.mark.parametrize("field", [1, 2, 3, 1000])
def test_the_fields_are_those_of_the_proposal(field: int) -> None:
    fields = metadata_pb2.SnapshotSegmentMetadata.DESCRIPTOR.fields_by_number
    named = {
        1: "delayed_index_bit_map",
        2: "max_schedule_timestamp",
        3: "min_schedule_timestamp",
        1000: "delayed_index_bit_map_64",
    }
    assert fields[field].name == named[field]
    assert metadata_pb2.DESCRIPTOR.package == segment_pb2.DESCRIPTOR.package == "bookstand.delayed"


@pytest.mark.parametrize("missing", ["max_schedule_timestamp", "min_schedule_timestamp"])
def test_metadata_that_lacks_a_field_is_damage(missing: str) -> None:
    message = metadata_pb2.SnapshotMetadata()
    message.metadata_list.add(max_schedule_timestamp=1, min_schedule_timestamp=1).ClearField(missing)
    with pytest.raises(SnapshotDamagedError, match="ledger 7, entry 0"):
        decode_metadata(message.SerializePartialToString(), "ledger 7, entry 0")


def test_damaged_metadata_gives_our_error_or_other_metadata() -> None:
    entry = seal(indexes_of([(NOW + number, number % 3, number * number) for number in range(60)]), 20).entries[0]
    refused = 0
    for size in range(1, len(entry)):
        for damaged in (entry[:size], entry[: size - 1] + bytes((entry[size - 1] ^ 0x88,)) + entry[size:]):
            try:
                segments = decode_metadata(damaged, "ledger 7, entry 0").metadata_list
                SnapshotMetadata(segments, "ledger 7, entry 0").bitmaps()
            except SnapshotDamagedError as error:
                refused += "ledger 7, entry 0" in str(error)
    assert refused > len(entry)


BITMAP = BitMap([1, 5, 70_000])
WRONG_BITMAPS = {
    "empty": b"",
    "of 64 bits": BitMap64([1, 5]).serialize(),
    "of 64 bits, high": BitMap64([1 << 40]).serialize(),
    "of 64 bits, empty": BitMap64().serialize(),
    "cut short": BITMAP.serialize()[:-1],
    "too long": BITMAP.serialize() + b"\0",
    "of another kind": b"roaring?",
    "empty, and more": BitMap().serialize() + b"\0",
}


@pytest.mark.parametrize("what", WRONG_BITMAPS)
def test_a_wrong_bitmap_is_damage_that_says_where(what: str) -> None:
    segments = [SegmentMetadata({3: BITMAP.serialize()}, 1, 1), SegmentMetadata({8: WRONG_BITMAPS[what]}, 1, 1)]
    metadata = SnapshotMetadata(segments, "ledger 7, entry 0")
    with pytest.raises(SnapshotDamagedError, match="ledger 7, entry 0: segment 2, bitmap of ledger 8: ") as caught:
        metadata.bitmaps()
    assert isinstance(caught.value, StoreDamagedError)
    with pytest.raises(SnapshotDamagedError, match="ledger 8"):
        SnapshotMetadata([SegmentMetadata({}, 1, 1, {8: BITMAP.serialize()})]).bitmaps()


def test_bitmaps_are_those_from_a_segment_on() -> None:
    segments = [
        SegmentMetadata({3: BitMap([1]).serialize()}, 1, 1),
        SegmentMetadata({3: BitMap([2, 9]).serialize(), 4: BitMap().serialize()}, 2, 2),
        SegmentMetadata({3: BitMap([3]).serialize(), 5: BitMap([(1 << 32) - 1]).serialize()}, 3, 3),
    ]
    metadata = SnapshotMetadata(segments)
    assert metadata.bitmaps() == {3: BitMap64([1, 2, 3, 9]), 4: BitMap64(), 5: BitMap64([(1 << 32) - 1])}
    assert metadata.bitmaps(3) == {3: BitMap64([3]), 5: BitMap64([(1 << 32) - 1])}
    assert metadata.bitmaps(4) == {}


# -- more than an entry holds ----------------------------------------------------------------------------------------


def many(count: int) -> Indexes:
    return indexes_of([(NOW + number * 7919 % 100_000, number % 9, number) for number in range(count)])


def test_what_fits_has_the_bytes_that_it_has_without_a_limit() -> None:
    sealed = seal(many(3_000), 1_000, 100)
    limit = max(map(len, sealed.entries))
    assert seal(many(3_000), 1_000, 100, limit).entries == sealed.entries


def test_metadata_goes_on_behind_the_segments_where_an_entry_is_too_small() -> None:
    whole = seal(many(3_000), 1_000, 100)
    limit = len(whole.entries[0]) // 5
    sealed = seal(many(3_000), 1_000, 100, limit)
    count = whole.segment_count
    assert sealed.segment_count == count
    assert sealed.entries[1 : count + 1] == whole.entries[1:]
    assert max(map(len, sealed.entries)) <= limit
    first, *others = (decode_metadata(sealed.entries[number]) for number in (0, *range(count + 1, len(sealed.entries))))
    assert first.segment_count == count
    assert len(others) >= 4
    assert all(other.segment_count is None for other in others)
    parts = [*first.metadata_list, *(segment for other in others for segment in other.metadata_list)]
    assert parts == decode_metadata(whole.entries[0]).metadata_list
    # Who knows Pulsar's fields only reads the first ones.
    assert first.metadata_list == parts[: len(first.metadata_list)] != []


def test_no_entry_is_larger_than_the_limit() -> None:
    for limit in range(600, 640):
        assert max(map(len, seal(many(400), 1_000, 10, limit).entries)) <= limit


def test_a_segment_that_no_entry_holds_is_cut_by_count() -> None:
    limit = 3_000
    sealed = seal(many(3_000), 1 << 40, -1, limit)
    assert max(map(len, sealed.entries)) <= limit
    assert sealed.segment_count > 3_000 * 10 // limit
    assert rows_of(sealed.indexes) == sorted(rows_of(many(3_000)))
    read = decode_segments(sealed.entries[1 : sealed.segment_count + 1], [""] * sealed.segment_count)
    assert [row for segment in read for row in rows_of(segment)] == rows_of(sealed.indexes)


def test_the_largest_index_takes_no_more_than_is_reckoned_with() -> None:
    """A ledger of its own and numbers of the greatest length, in both maps."""
    top = (1 << 63) - 1
    for entry_id in (top, (1 << 32) - 1):
        for limit in (300, 1_000, 5_000):
            rows = [((1 << 62) + number, top - 3 * number, entry_id) for number in range(400)]
            sealed = seal(indexes_of(rows), 1 << 40, -1, limit)
            assert max(map(len, sealed.entries)) <= limit


def test_metadata_of_one_segment_that_no_entry_holds_is_refused() -> None:
    field = encode_segment_metadata(SegmentMetadata({1: bytes(500)}, 1, 1))
    with pytest.raises(SnapshotTooLargeError, match=r"segment 2 takes 5\d\d bytes and an entry 400") as caught:
        encode_metadata([field[:100], field], 400)
    assert isinstance(caught.value, EntryTooLargeError)


def test_what_is_raised_is_ours() -> None:
    for name in re.findall(r"class (\w+Error)\(", Path(codec.__file__).read_text()):
        assert issubclass(getattr(codec, name), BookstandError)
