"""Pages: what was put in comes out, from no other bytes than those that were written."""

from __future__ import annotations

from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from bookstand import errors
from bookstand.cursor.errors import CursorDamagedError
from bookstand.cursor.format import record
from bookstand.cursor.format.ack_page import EncodedPage, PageRef, check_page, decode_page, encode_page
from bookstand.proto import cursor_record_pb2, ml_data_formats_pb2
from bookstand.storage.format.position import Position
from tests.cursor.damage import damaged, sealed_again

LIMIT = 5 << 20
MARK_DELETE = Position(3, -1)

ids = st.integers(0, 300) | st.integers(0, 2**63 - 1)
numbers = st.integers(0, 2**10 - 1) | st.integers(0, 2**64 - 1) | st.integers(0, 2**300)


def encode(acked: Any, partial: dict[int, int] | None = None, **changes: Any) -> EncodedPage:
    arguments: dict[str, Any] = {"generation": 7, "mark_delete": MARK_DELETE, "limit": LIMIT, **changes}
    cursor, ledger_id = arguments.pop("cursor", "sub"), arguments.pop("ledger_id", 5)
    return encode_page(cursor, ledger_id, BitMap64(acked), partial or {}, **arguments)


def both(ref: PageRef, entries: list[bytes], cursor: str = "sub", ledger_id: int = 5) -> Any:
    """What the decoder gives; the check has to agree with it on whether that is something at all."""
    try:
        check_page(cursor, ledger_id, ref, entries)
    except CursorDamagedError:
        with pytest.raises(CursorDamagedError):
            decode_page(cursor, ledger_id, ref, entries)
        raise
    return decode_page(cursor, ledger_id, ref, entries)


@given(st.sets(ids), st.dictionaries(ids, numbers, max_size=20), st.data())
def test_what_goes_in_comes_out(acked, partial, data):
    known = data.draw(st.sets(st.sampled_from(sorted(partial)))) if partial else set()
    sizes = {entry: partial[entry].bit_length() + data.draw(st.integers(1, 70)) for entry in known}
    encoded = encode(acked, partial, sizes=sizes)
    ref = encoded.ref(9)
    assert ref[:5] == (9, 1, 7, len(acked), len(partial))
    assert ref.size == len(encoded.entries[0])
    page = both(ref, encoded.entries)
    assert set(page.acked) == acked
    assert page.partial == partial
    assert page.sizes == sizes


@given(st.sets(st.integers(0, 3_000)), st.dictionaries(ids, numbers, max_size=20), st.integers(140, 400))
def test_a_page_is_cut_into_parts_that_fit(acked, partial, limit):
    whole = encode(acked, partial)
    encoded = encode(acked, partial, limit=limit)
    assert max(map(len, encoded.entries)) <= limit
    assert len(encoded.entries) >= -(-len(whole.entries[0]) // limit)
    page = both(encoded.ref(0), encoded.entries)
    assert (set(page.acked), page.partial) == (acked, partial)


def test_a_page_as_large_as_the_limit_is_one_entry():
    encoded = encode(range(0, 3_000, 3))
    size = len(encoded.entries[0])
    # What is kept free for lengths need not be used.
    assert len(encode(range(0, 3_000, 3), limit=size + 14).entries) == 1
    assert len(encode(range(0, 3_000, 3), limit=size - 1).entries) == 2


def test_a_limit_below_the_frame_is_refused():
    with pytest.raises(errors.EntryTooLargeError):
        encode(range(10), limit=60)


def test_millions_of_acknowledgments():
    acked = BitMap64(range(0, 1 << 24, 3))
    encoded = encode(acked, limit=1 << 20)
    assert len(encoded.entries) == 3
    assert both(encoded.ref(0), encoded.entries).acked == acked


def test_indexes_outside_their_batch_are_refused():
    for partial, sizes in (({1: 8}, {1: 3}), ({1: -1}, {}), ({1: 1}, {1: -4})):
        with pytest.raises(errors.IncorrectParameterError):
            encode([], partial, sizes=sizes)


# -- what others read ------------------------------------------------------------------------------------------------


def test_the_bytes_are_those_of_protobuf():
    acked, partial = BitMap64([1, 2, 3, 900]), {4: 0b101, 70: 1 << 90}
    [entry] = encode(acked, partial, cursor="sübscription", ledger_id=2**40, generation=2**33).entries
    read = cursor_record_pb2.CursorRecord.FromString(entry)
    message = cursor_record_pb2.CursorRecord(
        ledgerId=3,
        entryId=-1,
        properties=[cursor_record_pb2.LongProperty(name="lru-entry", value=1)],
        bitmap=acked.serialize(),
        batches=read.batches,
        acked=4,
        partial=2,
        cursor="sübscription",
        kind=record.PAGE,
        generation=2**33,
        userLedger=2**40,
        part=0,
        parts=1,
        crc=google_crc32c.value(entry[:-4]),
    )
    assert message.SerializeToString(deterministic=True) == entry
    assert BitMap64.deserialize(read.bitmap) == acked


def test_an_old_reader_finds_the_mark_delete_position_and_no_acknowledgments():
    for entry in encode(range(0, 9_000, 2), {1: 1}, limit=400).entries:
        position = ml_data_formats_pb2.PositionInfo.FromString(entry)
        assert (position.ledgerId, position.entryId) == MARK_DELETE
        assert [(one.name, one.value) for one in position.properties] == [("lru-entry", 1)]
        assert not position.individualDeletedMessages
        assert not position.individualDeletedMessageRanges
        assert not position.batchedEntryDeletionIndexInfo
        assert record.is_ours(entry)


def test_states_in_the_old_form_are_not_ours():
    position = ml_data_formats_pb2.PositionInfo(ledgerId=3, entryId=1)
    position.properties.add(name="lru", value=1)
    position.individualDeletedMessageRanges.add(key=3, values=[24])
    assert not record.is_ours(position.SerializeToString())
    assert not record.is_ours(b"")
    assert not record.is_ours(b"{{")


def test_one_sign_tells_that_a_record_is_ours():
    stored = encode(range(100)).entries[0]
    assert record.is_ours(stored.replace(b"lru-entry", b"lru-entrx"))
    assert record.is_ours(stored.replace(b"lru-entry", b"lru-entr\xff"))
    assert record.is_ours(stored[:40])


@given(damaged(encode(range(100)).entries[0]))
def test_a_damaged_page_is_not_taken_for_a_state(stored):
    try:
        position = ml_data_formats_pb2.PositionInfo.FromString(stored)
    except Exception:  # protobuf's class for it depends on its version
        return
    # Cut before its property, a page is a mark-delete position; with that alone nothing is taken for acknowledged.
    if not record.is_ours(stored):
        assert not position.individualDeletedMessages
        assert not position.individualDeletedMessageRanges


# -- damage ----------------------------------------------------------------------------------------------------------

ONE = encode(range(0, 300, 3), {1: 5, 4: 1 << 80})
MANY = encode(range(0, 3_000, 3), {1: 5, 4: 1 << 80}, limit=200)


@given(damaged(ONE.entries[0]))
def test_no_other_bytes_are_accepted(stored):
    if stored == ONE.entries[0]:
        return
    for bytes_ in (stored, sealed_again(stored)):
        if bytes_ != ONE.entries[0]:
            with pytest.raises(CursorDamagedError):
                both(ONE.ref(4), [bytes_])


@given(damaged(ONE.entries[0]))
def test_what_claims_to_be_the_page_is_decoded_or_refused(stored):
    """Even if the reference had the damaged page's checksum."""
    stored = sealed_again(stored)
    crc = google_crc32c.value(stored[-4:])
    try:
        decode_page("sub", 5, ONE.ref(4)._replace(crc=crc, size=len(stored)), [stored])
    except CursorDamagedError:
        pass


@given(st.data())
def test_no_other_parts_are_accepted(data):
    entries = list(MANY.entries)
    at, other = data.draw(st.integers(0, len(entries) - 1)), data.draw(st.integers(0, len(entries) - 1))
    change = data.draw(st.sampled_from(["lose", "swap", "double", "damage"]))
    if change == "lose":
        del entries[at]
    elif change == "swap":
        entries[at], entries[other] = entries[other], entries[at]
    elif change == "double":
        entries.insert(other, entries[at])
    else:
        entries[at] = data.draw(damaged(entries[at]))
    if entries == MANY.entries:
        return
    with pytest.raises(CursorDamagedError):
        both(MANY.ref(0), entries)


@pytest.mark.parametrize(
    "changes",
    [
        {"cursor": "other"},
        {"cursor": "a sub"},
        {"ledger_id": 6},
        {"generation": 6},
        {"mark_delete": Position(3, 0)},
        {"limit": 200},
        {"acked": range(1, 301, 3)},
        {"partial": {1: 4}},
    ],
    ids=str,
)
def test_another_page_is_not_taken_for_this_one(changes):
    other = encode(**{"acked": range(0, 300, 3), "partial": {1: 5}, **changes})
    wanted = encode(range(0, 300, 3), {1: 5})
    with pytest.raises(CursorDamagedError) as caught:
        both(wanted.ref(17), other.entries)
    assert "'sub'" in str(caught.value)
    assert "ledger 5," in str(caught.value)
    assert "entry 17:" in str(caught.value)
    for identity in ("cursor", "ledger_id", "generation"):
        if identity in changes:
            assert str(changes[identity]) in str(caught.value)


def test_an_error_names_the_part_that_is_damaged():
    entries = list(MANY.entries)
    entries[2] = entries[2][:-1]
    with pytest.raises(CursorDamagedError, match="entry 12:"):
        both(MANY.ref(10), entries)


@pytest.mark.parametrize("field", ["acked", "partial", "size", "crc", "parts", "generation"])
def test_the_reference_has_to_fit(field):
    ref = ONE.ref(4)
    with pytest.raises(CursorDamagedError):
        decode_page("sub", 5, ref._replace(**{field: getattr(ref, field) + 1}), ONE.entries)


def test_damage_is_one_of_the_store():
    assert issubclass(CursorDamagedError, errors.StoreDamagedError)
