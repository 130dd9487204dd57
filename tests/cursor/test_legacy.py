"""Snapshots in Pulsar's form: the bytes of the page, of the original, of protobuf, and broken ones."""

from __future__ import annotations

import base64
import gzip
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from bookstand.cursor.format import position_info
from bookstand.cursor.state import bitmap_runs
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.errors import IncorrectParameterError, MalformedAckStateError
from bookstand.managed_ledger.records import CursorInfo
from bookstand.proto import ack_messages, ack_messages_vectorized, wire_format
from bookstand.proto import ml_data_formats_pb2 as formats
from bookstand.storage.format.position import LATEST, Position
from tests.cursor.oracle import plain

UNHURRIED = settings(deadline=None)  # the machine may be busy

RECORDED = Path(__file__).resolve().parent.parent / "data" / "cursor" / "position_info.jsonl.gz"
SAMPLES: list[dict[str, Any]] = [json.loads(line) for line in gzip.decompress(RECORDED.read_bytes()).splitlines()]
SMALL = [data for sample in SAMPLES if len(data := base64.b64decode(sample["b64"])) < 2000]

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.text(st.characters(codec="utf-8"), max_size=5)


def state(
    mark_delete: tuple[int, int],
    acked: dict[int, Any] | None = None,
    batches: dict[tuple[int, int], int] | None = None,
    properties: dict[str, int] | None = None,
) -> AckSnapshot:
    return AckSnapshot(
        Position(*mark_delete),
        {ledger: BitMap64(entries) for ledger, entries in (acked or {}).items()},
        {Position(*place): bits for place, bits in (batches or {}).items()},
        properties or {},
    )


def as_plain(found: AckSnapshot) -> dict[str, Any]:
    return {
        "mark_delete": tuple(found.mark_delete),
        "acked": {ledger: list(bitmap) for ledger, bitmap in found.acked.items()},
        "batches": {tuple(place): bits for place, bits in found.batches.items()},
        "properties": found.properties,
    }


# -- bytes -----------------------------------------------------------------------------------------------------------

GOLDEN_RANGES = bytes.fromhex("080310011a0c0a0408031002120408031004")
GOLDEN_LONGS = bytes.fromhex("08031001320408031018")


def test_golden_vectors() -> None:
    golden = state((3, 1), {3: [3, 4]})
    for data in (GOLDEN_RANGES, GOLDEN_LONGS, bytes.fromhex("080310013206080310181000")):
        assert position_info.read(data) == (golden, frozenset())
    assert position_info.write(golden) == (GOLDEN_RANGES, 0, 0)
    # Without the zero words that Pulsar may have at the end.
    assert position_info.write(golden, "long_arrays") == (GOLDEN_LONGS, 0, 0)


def test_words_may_be_packed() -> None:
    assert position_info.read(bytes.fromhex("0803100132050803120118")).state == state((3, 1), {3: [3, 4]})
    packed = bytes.fromhex("080310012a0d0a04080310021205ff01808001")
    assert position_info.read(packed).state.batches == {Position(3, 2): 0xFF | 0x4000 << 64}


def test_ranges_win_over_words() -> None:
    assert position_info.read(GOLDEN_LONGS + GOLDEN_RANGES[4:]).state == state((3, 1), {3: [3, 4]})
    words = bytes.fromhex("320408071018")
    assert position_info.read(GOLDEN_RANGES + words).state == state((3, 1), {3: [3, 4]})


def test_batches_have_the_bits_that_are_not_acknowledged() -> None:
    data = position_info.write(state((3, 1), batches={(3, 2): 0b101})).data
    assert data.hex() == "080310012a080a04080310021005"
    (one,) = formats.PositionInfo.FromString(data).batchedEntryDeletionIndexInfo
    assert list(one.deleteSet) == [5]


def test_what_the_mark_delete_position_has_passed_does_not_count() -> None:
    info = formats.PositionInfo(ledgerId=5, entryId=10)
    for ledger, lower, upper in ((4, -1, 99), (5, -1, 10), (5, 5, 12), (5, 20, 21), (6, -1, 0)):
        one = info.individualDeletedMessages.add()
        one.lowerEndpoint.ledgerId = one.upperEndpoint.ledgerId = ledger
        one.lowerEndpoint.entryId, one.upperEndpoint.entryId = lower, upper
    for ledger, entry in ((4, 50), (5, 10), (5, 11), (6, 0)):
        position = formats.NestedPositionInfo(ledgerId=ledger, entryId=entry)
        info.batchedEntryDeletionIndexInfo.add(position=position, deleteSet=[1])
    found = position_info.read(info.SerializeToString()).state
    assert found == state((5, 10), {5: [11, 12, 21], 6: [0]}, {(5, 11): 1, (6, 0): 1})
    longs = formats.PositionInfo(ledgerId=5, entryId=10)
    longs.individualDeletedMessageRanges.add(key=4, values=[-1])
    longs.individualDeletedMessageRanges.add(key=5, values=[0b11 << 10])
    assert position_info.read(longs.SerializeToString()).state == state((5, 10), {5: [11]})


LEDGERS = {1: 100, 3: 50, 5: 200, 10: 2, 20: 10}


def crossing(*ranges: tuple[int, int, int, int]) -> bytes:
    data = bytearray(bytes.fromhex("08001000"))
    for one in ranges:
        wire_format.write_bytes_field(data, 3, ack_messages.write_range(one))
    return bytes(data)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([(1, 5, 1, 10)], {1: range(6, 11)}),
        ([(1, 10, 3, 0)], {1: range(11, 100), 3: [0]}),
        (
            [(1, 20, 10, 1), (20, 2, 20, 9)],
            {1: range(21, 100), 3: range(50), 5: range(200), 10: range(2), 20: range(3, 10)},
        ),
    ],
    ids=["case 17", "case 18", "case 19"],
)
def test_ranges_from_one_ledger_into_another_are_split(
    ranges: list[tuple[int, int, int, int]], expected: dict[int, Any]
) -> None:
    found = position_info.read(crossing(*ranges), LEDGERS)
    assert found == (state((0, 0), expected), frozenset())


def test_a_lower_ledger_that_nobody_knows_is_told() -> None:
    found = position_info.read(crossing((2, 7, 5, 1), (7, 0, 10, 0)), LEDGERS)
    assert found.unsplit == {2, 7}
    assert found.state == state((0, 0), {3: range(50), 5: range(2), 10: [0]})
    assert position_info.read(crossing((2, 7, 5, 1))).state == state((0, 0), {5: range(2)})
    assert position_info.read(crossing((9, 7, 5, 1)), LEDGERS) == (state((0, 0)), frozenset()), "the wrong way round"


def test_a_cursors_record_holds_the_same() -> None:
    info = CursorInfo(-1, Position(0, 0), ((1, 10, 3, 0),), (("a", 1),), None, ((0, 0, 1), (3, 1, 6)))
    assert info.mark_delete is not None
    found = position_info.from_parts(info.mark_delete, info.ranges, info.batches, dict(info.properties), LEDGERS)
    assert found.state == state((0, 0), {1: range(11, 100), 3: [0]}, {(3, 1): 6}, {"a": 1})


# -- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["ranges", "long_arrays"])
def test_the_limit_is_exact_and_the_lowest_are_kept(form: position_info.Form) -> None:
    odd = state((1, -1), {1: range(1, 16, 2), 2: [0, 5]}, {(1, 4): 1, (1, 2): 3, (2, 2): 7})
    assert len(position_info.read(position_info.write(odd, form, 10).data).state.acked[2]) == 2
    assert position_info.write(odd, form, 10, 3)[1:] == (0, 0)
    written = position_info.write(odd, form, 5, 2)
    assert written[1:] == (5, 1)
    found = position_info.read(written.data).state
    assert found == state((1, -1), {1: [1, 3, 5, 7, 9]}, {(1, 2): 3, (1, 4): 1})
    assert position_info.write(odd, form, 9)[1:] == (1, 0)
    assert position_info.read(position_info.write(odd, form, 9).data).state.acked[2] == BitMap64([0])
    nothing = position_info.write(odd, form, 0, 0)
    assert nothing == (bytes.fromhex("080110" + "ff" * 9 + "01"), 10, 3)
    assert list(odd.acked[1]) == list(range(1, 16, 2)), "the state itself is as it was"


def test_the_limit_counts_ranges_in_words_too() -> None:
    """Case 30: three ranges of fifty, and room for a hundred ranges."""
    whole = state((1, 0), {ledger: range(50) for ledger in (2, 3, 4)})
    written = position_info.write(whole, "long_arrays", 100)
    assert position_info.read(written.data).state == whole


def test_words_are_for_low_entries() -> None:
    with pytest.raises(IncorrectParameterError, match="cannot be encoded as words"):
        position_info.write(state((1, 0), {1: [1 << 31]}), "long_arrays")
    with pytest.raises(IncorrectParameterError, match="form must be"):
        position_info.write(state((1, 0)), "bits")  # type: ignore[arg-type]


def test_the_highest_entries_there_can_be() -> None:
    top = (1 << 63) - 1
    high = state((1, 0), {1: [1 << 40, top], top: [top]})
    assert position_info.read(position_info.write(high).data).state == high
    for mark_delete in (LATEST, Position(1, top)):
        ranges = [(1, -1, 1, 5), (1, top - 1, 1, top), (top, -1, top, 3), (top, top, top, top)]
        found = position_info.from_parts(mark_delete, ranges, (), {})
        assert found.state == state(mark_delete, {} if mark_delete == LATEST else {top: range(4)})


# -- against protobuf ------------------------------------------------------------------------------------------------

LEDGER = st.integers(-1, 6)
ENTRY = st.integers(-1, 150)
POSITIONS = st.builds(formats.NestedPositionInfo, ledgerId=LEDGER, entryId=ENTRY)
WORDS = st.lists(INT64 | st.just(0), max_size=3)


@st.composite
def snapshots(draw: st.DrawFn) -> Any:
    same = draw(st.booleans())
    info = formats.PositionInfo(ledgerId=draw(LEDGER), entryId=draw(ENTRY))
    for _ in range(draw(st.integers(0, 8))):
        lower, upper = draw(POSITIONS), draw(POSITIONS)
        if same:
            upper.ledgerId = lower.ledgerId
        info.individualDeletedMessages.add(lowerEndpoint=lower, upperEndpoint=upper)
    for name, value in draw(st.dictionaries(NAMES, INT64, max_size=3)).items():
        info.properties.add(name=name, value=value)
    for _ in range(draw(st.integers(0, 3))):
        info.batchedEntryDeletionIndexInfo.add(position=draw(POSITIONS), deleteSet=draw(WORDS))
    for _ in range(draw(st.integers(0, 3))):
        info.individualDeletedMessageRanges.add(key=draw(LEDGER), values=draw(WORDS))
    return info


COUNTS = st.dictionaries(st.integers(0, 6), st.integers(0, 160), max_size=6)


@pytest.mark.slow
@UNHURRIED
@given(snapshots(), COUNTS)
def test_it_reads_as_protobuf_does(info: Any, ledgers: dict[int, int]) -> None:
    data = info.SerializeToString()
    assert as_plain(position_info.read(data, ledgers).state) == plain(data, ledgers)


@UNHURRIED
@given(snapshots(), st.randoms(use_true_random=False), COUNTS)
def test_fields_may_come_in_any_order_and_among_unknown_ones(info: Any, chance: Any, ledgers: dict[int, int]) -> None:
    parts = [b"\xa2\x06\x02hi", b"\xa0\x06\x81\x00", b"\xa5\x06four", b"\xa1\x06eight..."]
    for key, number, chunk in wire_format.fields(info.SerializeToString()):
        out = bytearray()
        if key & 7 == wire_format.BYTES:
            wire_format.write_bytes_field(out, key >> 3, chunk)
        else:
            wire_format.write_varint_field(out, key >> 3, number)
        parts.append(bytes(out))
    chance.shuffle(parts)
    data = b"".join(parts)
    assert as_plain(position_info.read(data, ledgers).state) == plain(data, ledgers)


@UNHURRIED
@given(st.sampled_from(SMALL), st.data())
@example(GOLDEN_RANGES, None)
def test_mutated_snapshots_read_as_protobuf_does_or_raise_our_error(data: bytes, draw: Any) -> None:
    variants = [data]
    if draw is not None:
        mutated = bytearray(data)
        for _ in range(draw.draw(st.integers(1, 3))):
            mutated[draw.draw(st.integers(0, len(mutated) - 1))] = draw.draw(st.integers(0, 255))
        cut = draw.draw(st.integers(0, len(mutated)))
        variants += [bytes(mutated), bytes(mutated[:cut]), bytes(mutated) + b"more"]
    for one in variants:
        try:
            found = position_info.read(one).state
        except MalformedAckStateError:
            continue
        try:
            expected = plain(one) if sum(map(len, found.acked.values())) < 100_000 else as_plain(found)
        except DecodeError:
            # The runtime refuses tags of more than five bytes, which we read.
            continue
        assert as_plain(found) == expected


STATES = st.builds(
    state,
    st.tuples(st.integers(0, 3), st.integers(-1, 20)),
    st.dictionaries(st.integers(4, 9), st.sets(st.integers(0, 300), min_size=1), max_size=4),
    st.dictionaries(st.tuples(st.integers(4, 9), st.integers(0, 300)), st.integers(0, 1 << 100), max_size=4),
    st.dictionaries(NAMES, INT64, max_size=3),
)


@pytest.mark.slow
@UNHURRIED
@given(STATES, st.sampled_from(["ranges", "long_arrays"]))
def test_what_is_written_reads_back_here_and_there(given_state: AckSnapshot, form: position_info.Form) -> None:
    data = position_info.write(given_state, form).data
    assert position_info.read(data).state == given_state
    assert plain(data) == as_plain(given_state)
    assert formats.PositionInfo.FromString(data).SerializeToString() == data


@pytest.mark.slow
@UNHURRIED
@given(STATES, st.integers(0, 12), st.sampled_from(["ranges", "long_arrays"]))
def test_the_limit_keeps_a_prefix(given_state: AckSnapshot, limit: int, form: position_info.Form) -> None:
    everything = [tuple(one) for one in rows(given_state)]
    written = position_info.write(given_state, form, limit)
    found = [tuple(one) for one in rows(position_info.read(written.data).state)]
    assert found == everything[:limit]
    assert written.ranges_left_out == len(everything) - len(found)


def rows(one: AckSnapshot) -> list[list[int]]:
    data = position_info.write(one).data
    return [
        [r.lowerEndpoint.ledgerId, r.lowerEndpoint.entryId, r.upperEndpoint.ledgerId, r.upperEndpoint.entryId]
        for r in formats.PositionInfo.FromString(data).individualDeletedMessages
    ]


# -- many ------------------------------------------------------------------------------------------------------------


def alternating(count: int) -> Any:
    ranges = np.empty((count, 4), dtype=np.int64)
    ranges[:, 0] = ranges[:, 2] = np.arange(count) // 50_000 + 20_000
    ranges[:, 1] = np.arange(count) % 50_000 * 2 - 1
    ranges[:, 3] = ranges[:, 1] + 1
    return ranges


def test_many_ranges_are_fast() -> None:
    """Five million take some seconds; a tenth of them has a tenth of a generous minute."""
    data = bytes.fromhex("08031001") + ack_messages_vectorized.write_ranges(alternating(500_000), 3)
    began = time.process_time()
    found = position_info.read(data).state
    assert sum(map(len, found.acked.values())) == 500_000
    assert position_info.write(found).data == data
    again = position_info.write(found, "long_arrays").data
    assert position_info.read(again).state == found
    assert time.process_time() - began < 6


def test_odd_shapes_among_many_do_not_slow_it_down() -> None:
    odd = bytearray()
    for number in range(20_000):
        one = ack_messages.write_range((7, number * 2, 7, number * 2 + 1))
        wire_format.write_bytes_field(odd, 3, one + (b"\xa0\x06\x01" if number % 2 else b""))
    began = time.process_time()
    found = position_info.read(bytes.fromhex("08031001") + bytes(odd)).state
    assert len(found.acked[7]) == 20_000
    assert time.process_time() - began < 5


def test_a_small_snapshot_cannot_take_all_memory() -> None:
    top = (1 << 63) - 1
    with pytest.raises(MalformedAckStateError, match="blocks of entries"):
        position_info.read(crossing((1, -1, 1, top)))
    with pytest.raises(MalformedAckStateError, match="blocks of entries"):
        position_info.read(crossing(*[(ledger, -1, ledger, 1 << 32) for ledger in range(1, 20)]))
    # Some billions in one go are no trouble.
    wide = position_info.read(crossing((1, 0, 1, 1 << 33))).state
    assert len(wide.acked[1]) == 1 << 33
    assert position_info.read(position_info.write(wide).data).state == wide


@UNHURRIED
@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 100)), max_size=60))
def test_runs(pairs: list[tuple[int, int]]) -> None:
    expected = {entry for first, more in pairs for entry in range(first, first + more + 1)}
    bitmap = BitMap64()
    firsts = np.array([first for first, _ in pairs], dtype=np.int64)
    lasts = firsts + np.array([more for _, more in pairs], dtype=np.int64)
    bitmap_runs.add_runs(bitmap, firsts, lasts)
    assert set(bitmap) == expected
    found_firsts, found_lasts = bitmap_runs.runs(bitmap)
    found = [entry for f, e in zip(found_firsts, found_lasts, strict=True) for entry in range(int(f), int(e) + 1)]
    assert found == sorted(expected)
    assert all(found_firsts[1:] > found_lasts[:-1] + 1)


@pytest.mark.parametrize("edge", [1 << 22, 1 << 32])
def test_runs_and_words_over_the_edge_of_a_window(edge: int) -> None:
    bitmap = BitMap64([5, edge - 2, edge - 1, edge, edge + 1, edge + 70])
    firsts, lasts = bitmap_runs.runs(bitmap)
    assert firsts.tolist() == [5, edge - 2, edge + 70]
    assert lasts.tolist() == [5, edge + 1, edge + 70]
    if edge < bitmap_runs.MAX_IN_WORDS:
        again = BitMap64()
        bitmap_runs.add_words(again, bitmap_runs.words(bitmap))
        assert again == bitmap


# -- broken ----------------------------------------------------------------------------------------------------------

BROKEN = {
    "no mark-delete position": b"",
    "no mark-delete position ": b"\x08\x03",
    "field number 0": GOLDEN_RANGES + b"\x02",
    "field number 536870912": GOLDEN_RANGES + b"\x80\x80\x80\x80\x10\x05",
    "unknown type 3": b"{{",
    "needs 12 bytes": GOLDEN_RANGES[:-1],
    "longer than ten bytes": b"\x08" + b"\xff" * 10 + b"\x01",
    "the message ends inside the varint": b"\x08\x03\x10",
    "no lower or no upper end": b"\x08\x03\x10\x01\x1a\x00",
    "a position has no ledger or no entry": b"\x08\x03\x10\x01\x1a\x04\x0a\x00\x12\x00",
    "a batch set has no position": b"\x08\x03\x10\x01\x2a\x00",
    "a bit set has no ledger": b"\x08\x03\x10\x01\x32\x02\x10\x01",
    "the required field value is missing": b"\x08\x03\x10\x01\x22\x02\x0a\x00",
    "not UTF-8": b"\x08\x03\x10\x01\x22\x05\x0a\x01\xff\x10\x00",
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_named(what: str) -> None:
    with pytest.raises(MalformedAckStateError) as raised:
        position_info.read(BROKEN[what])
    assert what.strip() in str(raised.value)


@UNHURRIED
@given(st.binary(max_size=40))
def test_any_bytes_raise_only_our_error(data: bytes) -> None:
    for one in (data, GOLDEN_RANGES + data, GOLDEN_LONGS + data):
        try:
            position_info.read(one)
        except MalformedAckStateError:
            pass
