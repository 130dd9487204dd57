"""Records of topics and cursors, plain and compressed."""

from __future__ import annotations

import base64
import gzip
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.errors import IncorrectParameterError, MalformedRecordError, MissingExtraError
from bookstand.managed_ledger import records
from bookstand.managed_ledger.message import compression
from bookstand.managed_ledger.records import CursorInfo, LedgerInfo, ManagedLedgerInfo
from bookstand.proto import ml_data_formats_pb2 as formats
from bookstand.proto.expansion import ExpansionLimits
from bookstand.storage.format.position import Position

UNHURRIED = settings(deadline=None)  # the machine may be busy

RECORDED = Path(__file__).resolve().parent.parent / "data" / "cursor" / "metadata_records.jsonl.gz"
SAMPLES: list[dict[str, Any]] = [json.loads(line) for line in gzip.decompress(RECORDED.read_bytes()).splitlines()]

CODECS = [None, *compression.NUMBERS]
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
COUNT = st.integers(0, (1 << 63) - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple)
POSITION = st.tuples(INT64, INT64).map(lambda pair: Position(*pair))
OFFLOAD = formats.OffloadContext(uidMsb=1, complete=True, driverMetadata=formats.OffloadDriverMetadata(name="s3"))

LEDGERS = st.tuples(COUNT, COUNT, COUNT, COUNT, st.none() | st.just(OFFLOAD.SerializeToString()), PAIRS).map(
    lambda fields: LedgerInfo(*fields)
)
TOPICS = st.tuples(st.lists(LEDGERS, max_size=4), st.none() | POSITION, PAIRS).map(
    lambda fields: ManagedLedgerInfo(*fields)
)
RANGES = st.lists(st.tuples(INT64, INT64, INT64, INT64), max_size=3).map(tuple)
BATCHES = st.lists(st.tuples(INT64, INT64, st.integers(0, 1 << 130)), max_size=3).map(tuple)
CURSORS = st.tuples(
    INT64,
    st.none() | POSITION,
    RANGES,
    st.lists(st.tuples(TEXT, INT64), max_size=3).map(tuple),
    st.none() | COUNT,
    BATCHES,
    PAIRS,
).map(lambda fields: CursorInfo(*fields))


@UNHURRIED
@given(TOPICS, st.sampled_from(CODECS))
def test_a_topics_record_reads_back(info: ManagedLedgerInfo, codec: str | None) -> None:
    assert records.decode_ledger_info(records.encode_ledger_info(info, codec, 0)) == info
    theirs = formats.ManagedLedgerInfo.FromString(records.encode_ledger_info(info))
    assert [one.ledgerId for one in theirs.ledgerInfo] == [one.ledger_id for one in info.ledgers]
    assert [one.entries for one in theirs.ledgerInfo] == [one.entries for one in info.ledgers]
    assert [one.size for one in theirs.ledgerInfo] == [one.size for one in info.ledgers]
    assert [one.timestamp for one in theirs.ledgerInfo] == [one.timestamp for one in info.ledgers]
    for one, ours in zip(theirs.ledgerInfo, info.ledgers, strict=True):
        assert (one.offloadContext == OFFLOAD) == (ours.offload is not None)
        assert [(pair.key, pair.value) for pair in one.properties] == list(ours.properties)
    assert theirs.HasField("terminatedPosition") == (info.terminated is not None)
    assert [(pair.key, pair.value) for pair in theirs.properties] == list(info.properties)
    assert records.decode_ledger_info(theirs.SerializeToString()) == info


@UNHURRIED
@given(CURSORS, st.sampled_from(CODECS))
def test_a_cursors_record_reads_back(info: CursorInfo, codec: str | None) -> None:
    assert records.decode_cursor_info(records.encode_cursor_info(info, codec, 0)) == info
    theirs = formats.ManagedCursorInfo.FromString(records.encode_cursor_info(info))
    assert theirs.cursorsLedgerId == info.cursor_ledger_id
    if info.mark_delete is not None:
        assert (theirs.markDeleteLedgerId, theirs.markDeleteEntryId) == info.mark_delete
    assert records.decode_cursor_info(theirs.SerializeToString()) == info


def test_a_new_topic_has_nothing() -> None:
    assert records.encode_ledger_info(ManagedLedgerInfo()) == b""
    one, other = ManagedLedgerInfo(), ManagedLedgerInfo()
    one.ledgers.append(LedgerInfo(1))
    assert other.ledgers == []


def test_a_ledger_that_is_written_to_has_a_time_and_no_counts() -> None:
    assert records.encode_ledger_info(ManagedLedgerInfo([LedgerInfo(3)])).hex() == "0a0408032000"
    assert records.encode_ledger_info(ManagedLedgerInfo([LedgerInfo(3, 1, 2, 4)])).hex() == "0a080803100118022004"


def test_golden_cursor_records() -> None:
    outside = bytes.fromhex("0805100318" + "ff" * 9 + "01")
    assert records.decode_cursor_info(outside) == CursorInfo(5, Position(3, -1))
    assert records.encode_cursor_info(CursorInfo(5, Position(3, -1))) == outside
    inline = bytes.fromhex("08" + "ff" * 9 + "01" + "10031801" + "220c0a0408031002120408031004")
    assert records.decode_cursor_info(inline) == CursorInfo(-1, Position(3, 1), ((3, 2, 3, 4),))


def test_unknown_fields_are_kept() -> None:
    ledger = b"\x08\x03\x20\x00" + b"\xa2\x06\x02hi"
    data = b"\x0a" + bytes([len(ledger)]) + ledger + b"\xa0\x06\x07"
    info = records.decode_ledger_info(data)
    assert info.unknown == b"\xa0\x06\x07"
    assert info.ledgers[0].unknown == b"\xa2\x06\x02hi"
    assert records.encode_ledger_info(info) == data
    cursor = b"\x08\x03" + b"\xa2\x06\x02hi"
    assert records.encode_cursor_info(records.decode_cursor_info(cursor)) == cursor


# -- compressed ------------------------------------------------------------------------------------------------------


def test_the_header() -> None:
    info = ManagedLedgerInfo([LedgerInfo(number, 1, 1, 1) for number in range(100)])
    plain = records.encode_ledger_info(info)
    stored = records.encode_ledger_info(info, "ZLIB", 0)
    assert stored[:6].hex() == "477800000005"
    header = formats.ManagedLedgerInfoMetadata.FromString(stored[6:11])
    assert (header.compressionType, header.uncompressedSize) == (formats.ZLIB, len(plain))
    assert zlib.decompress(stored[11:]) == plain


@pytest.mark.parametrize("codec", compression.NUMBERS)
def test_the_threshold(codec: str) -> None:
    info = CursorInfo(-1, cursor_properties=(("key", "v" * 1000),))
    plain = records.encode_cursor_info(info)
    assert records.encode_cursor_info(info, codec) == plain
    assert records.encode_cursor_info(info, codec, len(plain)) == plain
    stored = records.encode_cursor_info(info, codec, len(plain) - 1)
    assert (stored == plain) == (codec == "NONE")
    assert records.decode_cursor_info(stored) == info


def test_recorded_streams_have_no_end() -> None:
    """Which is why a strict decompressor refuses them."""
    sample = next(sample for sample in SAMPLES if sample["codec"] == "ZLIB")
    data = base64.b64decode(sample["b64"])
    with pytest.raises(zlib.error):
        zlib.decompress(data[6 + int.from_bytes(data[2:6], "big") :])
    assert records.decode_ledger_info(data).ledgers


def test_what_the_original_cannot_read_back_is_read() -> None:
    lost = [sample for sample in SAMPLES if not sample["original_reads_it"]]
    assert len(lost) == 24
    for sample in lost:
        found = records.decode_cursor_info(base64.b64decode(sample["b64"]))
        assert [list(pair) for pair in found.cursor_properties] == sample["truth"]["cursor_properties"]


BROKEN = {
    "ends within the header": b"\x47\x78\x00",
    "header should have 9 bytes": b"\x47\x78\x00\x00\x00\x09\x08",
    "the required field size is missing": b"\x47\x78\x00\x00\x00\x02\x08\x01",
    "codec 9": b"\x47\x78\x00\x00\x00\x04\x08\x09\x10\x00",
    "must not be negative, it is -1": b"\x47\x78\x00\x00\x00\x0d\x08\x01\x10" + b"\xff" * 9 + b"\x01",
    "LZ4 data expands to 2147483647 bytes": b"\x47\x78\x00\x00\x00\x08\x08\x01\x10\xff\xff\xff\xff\x07",
    "ZLIB data unpacks to 0 bytes": b"\x47\x78\x00\x00\x00\x04\x08\x02\x10\x05",
    "the required field cursor_ledger_id is missing": b"",
    "not UTF-8": b"\x08\x01\x42\x05\x0a\x01\xff\x12\x00",
    "has no ledger or no entry": b"\x08\x01\x22\x04\x0a\x00\x12\x00",
    "has 9 bytes": b"\x08\x01\x22\x09",
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_named(what: str) -> None:
    with pytest.raises(MalformedRecordError) as raised:
        records.decode_cursor_info(BROKEN[what], "node /a")
    assert what in str(raised.value)
    assert str(raised.value).startswith("node /a cannot be read: ")


@UNHURRIED
@given(st.sampled_from(SAMPLES), st.data())
def test_mutated_records_raise_only_our_errors(sample: dict[str, Any], draw: st.DataObject) -> None:
    mutated = bytearray(base64.b64decode(sample["b64"]))
    for _ in range(draw.draw(st.integers(1, 4))):
        mutated[draw.draw(st.integers(0, len(mutated) - 1))] = draw.draw(st.integers(0, 255))
    cut = draw.draw(st.integers(0, len(mutated)))
    for data in (bytes(mutated), bytes(mutated[:cut]), bytes(mutated) + b"more"):
        for decode in (records.decode_ledger_info, records.decode_cursor_info):
            try:
                decode(data, limits=ExpansionLimits(max_expanded_bytes=1 << 20))
            except MalformedRecordError:
                pass


@pytest.mark.parametrize("what", ["properties of a ledger", "words of a batch"])
def test_elements_within_elements_are_charged(what: str) -> None:
    """A few stored bytes, and a few elements of the record itself."""
    limits = ExpansionLimits(max_expanded_bytes=1 << 20)
    if what == "properties of a ledger":
        info = ManagedLedgerInfo([LedgerInfo(1, properties=(("", ""),) * 4_097)])
        stored, decode = records.encode_ledger_info(info, "ZSTD", 0), records.decode_ledger_info
    else:
        batches = ((1, 5, int.from_bytes(b"\1\0\0\0\0\0\0\0" * 50_000, "little")),) * 2
        cursor = CursorInfo(5, batches=batches)
        stored, decode = records.encode_cursor_info(cursor, "ZSTD", 0), records.decode_cursor_info
    assert len(stored) < 1_000
    with pytest.raises(MalformedRecordError, match="max_expanded_bytes"):
        decode(stored, limits=limits)
    assert decode(stored) is not None


def test_wrong_arguments_and_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    info = ManagedLedgerInfo([LedgerInfo(number) for number in range(100)])
    with pytest.raises(IncorrectParameterError, match="codec must be one of"):
        records.encode_ledger_info(info, "BROTLI")
    stored = records.encode_ledger_info(info, "LZ4", 0)
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(MissingExtraError, match=r"bookstand\[codecs\]"):
        records.decode_ledger_info(stored)
    assert records.decode_ledger_info(records.encode_ledger_info(info, "ZLIB", 0)) == info
