"""Markers, and the records of nodes before them."""

from __future__ import annotations

from typing import Any

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand import errors
from bookstand.cursor.errors import CursorDamagedError, ReservedPropertyError
from bookstand.cursor.format import record
from bookstand.cursor.format.checkpoint import (
    decode_marker,
    decode_nodes,
    encode_marker,
    node_loader,
    room_for_nodes,
    state_size,
)
from bookstand.cursor.format.page_index import PageIndex, PreparedIndex
from bookstand.proto import cursor_record_pb2, ml_data_formats_pb2
from bookstand.storage.format.position import Position
from tests.cursor.damage import damaged, sealed_again
from tests.cursor.test_index import filled

longs = st.integers(-(2**63), 2**63 - 1)
names = st.text(max_size=10).filter(lambda name: name not in record.RESERVED_NAMES)


def encode(prepared: PreparedIndex, cursor: str = "sub", **changes: Any) -> list[bytes]:
    arguments: dict[str, Any] = {
        "generation": 7,
        "mark_delete": Position(3, -1),
        "properties": {"a": 1, "b": -1},
        "time_ms": 1_700_000_000_000,
        "previous": 41,
        "page_entries": 2,
        **changes,
    }
    return encode_marker(cursor, prepared, **arguments)


@given(
    st.dictionaries(names, longs, max_size=4),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.none() | st.integers(0, 2**63 - 1),
    st.text(max_size=20),
)
def test_what_goes_in_comes_out(properties, ledger_id, entry_id, previous, cursor):
    prepared = filled(10).prepare(50)
    [stored] = encode(
        prepared, cursor, mark_delete=Position(ledger_id, entry_id), properties=properties, previous=previous
    )
    marker = decode_marker(cursor, 50, stored)
    assert marker.generation == 7
    assert marker.mark_delete == Position(ledger_id, entry_id)
    assert marker.properties == properties
    assert marker.previous == previous
    assert (marker.time_ms, marker.page_entries, marker.node_entries) == (1_700_000_000_000, 2, 0)
    assert marker.root == prepared.root
    assert marker.nodes == prepared.nodes[0] == decode_nodes(cursor, 50, stored)
    properties_size = len(record.encode_properties(properties))
    assert marker.state_size == 10 * 260 + len(marker.nodes[0]) + properties_size == state_size(prepared, properties)


def test_an_empty_state():
    prepared = PageIndex().prepare(0)
    [stored] = encode(prepared, properties={}, previous=None)
    marker = decode_marker("sub", 0, stored)
    assert (marker.nodes, marker.state_size, marker.properties, marker.previous) == ([], 0, {}, None)
    assert len(PageIndex.read(marker.root, node_loader("sub", lambda entry_id: stored))) == 0


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1_500, 5_000, 100_000])
def test_nodes_that_do_not_fit_stand_before_the_marker(limit):
    index = filled(20_000)
    properties = {"some": 2**40}
    prepared = index.prepare(1_000, room_for_nodes("sub", properties, limit))
    entries = encode(prepared, properties=properties)
    assert len(entries) > 1
    assert max(map(len, entries)) <= limit
    assert prepared.marker_entry_id == 1_000 + len(entries) - 1
    marker = decode_marker("sub", prepared.marker_entry_id, entries[-1])
    assert marker.node_entries == len(entries) - 1
    read = PageIndex.read(marker.root, node_loader("sub", lambda entry_id: entries[entry_id - 1_000]), cursor="sub")
    assert list(read.items()) == list(index.items())
    for entry in entries[:-1]:
        with pytest.raises(CursorDamagedError):
            decode_marker("sub", 0, entry)


def test_a_marker_that_is_too_large_without_nodes_is_refused():
    with pytest.raises(errors.EntryTooLargeError):
        room_for_nodes("sub", {"a" * 1_000: 1}, 1_000)


def test_names_of_our_own_are_refused():
    for name in ("lru-marker", "lru-entry"):
        with pytest.raises(ReservedPropertyError):
            encode(PageIndex().prepare(0), properties={name: 1})


def test_properties_of_more_than_64_bits_are_refused():
    for value in (2**63, -(2**63) - 1):
        with pytest.raises(errors.IncorrectParameterError):
            encode(PageIndex().prepare(0), properties={"a": value})


def test_index_nodes_are_read_from_markers_of_many_flushes():
    index, entries = filled(3_000), {}
    for flush in range(30):
        index.set(flush * 400, index.get(0)._replace(generation=flush))
        prepared = index.prepare(len(entries), 3_000)
        entries.update(enumerate(encode(prepared, generation=flush), prepared.entry_id))
        index.commit()
    marker = decode_marker("sub", prepared.marker_entry_id, entries[prepared.marker_entry_id])
    assert list(PageIndex.read(marker.root, node_loader("sub", entries.__getitem__)).items()) == list(index.items())
    with pytest.raises(CursorDamagedError, match="other"):
        PageIndex.read(marker.root, node_loader("other", entries.__getitem__))


# -- what others read ------------------------------------------------------------------------------------------------


def test_the_bytes_are_those_of_protobuf():
    prepared = filled(200).prepare(0)
    [stored] = encode(prepared)
    message = cursor_record_pb2.CursorRecord(
        ledgerId=3,
        entryId=-1,
        properties=[
            cursor_record_pb2.LongProperty(name=name, value=value)
            for name, value in (("lru-marker", 1), ("a", 1), ("b", -1))
        ],
        timeMs=1_700_000_000_000,
        previousMarker=41,
        pageEntries=2,
        stateSize=state_size(prepared, {"a": 1, "b": -1}),
        root=prepared.root,
        node=prepared.nodes[0],
        cursor="sub",
        kind=record.MARKER,
        generation=7,
        userLedger=0,
        part=0,
        parts=1,
        crc=google_crc32c.value(stored[:-4]),
    )
    assert message.SerializeToString(deterministic=True) == stored


def test_an_old_reader_finds_position_and_properties():
    *others, marker = encode(filled(2_000).prepare(0, 2_000))
    position = ml_data_formats_pb2.PositionInfo.FromString(marker)
    assert (position.ledgerId, position.entryId) == (3, -1)
    assert {one.name: one.value for one in position.properties} == {"lru-marker": 1, "a": 1, "b": -1}
    for other in others:
        position = ml_data_formats_pb2.PositionInfo.FromString(other)
        assert (position.ledgerId, position.entryId) == (3, -1)
        assert {one.name: one.value for one in position.properties} == {"lru-entry": 1}
        assert not position.individualDeletedMessages
        assert not position.individualDeletedMessageRanges


# -- damage ----------------------------------------------------------------------------------------------------------

NODES, MARKER = encode(filled(100).prepare(0, 800))


@settings(deadline=None)
@given(damaged(MARKER) | st.binary(max_size=100))
def test_no_other_marker_is_accepted(stored):
    if stored == MARKER:
        return
    for decode in (decode_marker, decode_nodes):
        with pytest.raises(CursorDamagedError, match="'sub': entry 9 "):
            decode("sub", 9, stored)


@given(damaged(NODES))
def test_no_other_record_of_nodes_is_accepted(stored):
    if stored == NODES:
        return
    with pytest.raises(CursorDamagedError, match="'sub': entry 9 "):
        decode_nodes("sub", 9, stored)


@given(damaged(MARKER) | st.binary(min_size=4, max_size=100))
def test_what_claims_to_be_a_marker_is_decoded_or_refused(stored):
    stored = sealed_again(stored)
    try:
        marker = decode_marker("sub", 9, stored)
        PageIndex.read(marker.root, node_loader("sub", lambda entry_id: stored))
    except CursorDamagedError:
        pass


def test_records_of_others_are_refused():
    with pytest.raises(CursorDamagedError, match="cursor 'other'"):
        decode_marker("sub", 0, encode(filled(3).prepare(0), "other")[0])
    with pytest.raises(CursorDamagedError, match="record of index nodes"):
        decode_marker("sub", 0, NODES)
    legacy = ml_data_formats_pb2.PositionInfo(ledgerId=1, entryId=1).SerializeToString()
    for stored in (legacy, b"", b"abc", sealed_again(MARKER[-44:]), sealed_again(bytes(48)), sealed_again(bytes(200))):
        with pytest.raises(CursorDamagedError):
            decode_marker("sub", 0, stored)


def test_a_slot_that_is_not_there():
    with pytest.raises(CursorDamagedError, match="entry 3 "):
        node_loader("sub", lambda entry_id: MARKER)(3, 1_000)
