"""The reader of our own and protobuf's agree on every request, and so do the answers."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.proto import bookie_protocol_pb2 as messages
from bookstand.server.bookie.protocol import codes, v3
from bookstand.server.bookie.protocol.v2 import MalformedRequestError
from tests.server.bookie import kit

int64s = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([0, 1, 127, 128, 16383, 16384, -1]))
txns = st.one_of(st.integers(0, (1 << 64) - 1), st.sampled_from([0, 127, 128, (1 << 63)]))


def parsed(frame: bytes) -> Any:
    """What protobuf makes of a frame; None if it is no request."""
    try:
        request = messages.Request.FromString(frame)
    except DecodeError:
        return None
    return request if request.IsInitialized() else None


def check(frame: bytes) -> int:
    """Both readers agree; returns how many requests of a usual form were recognised."""
    add, read = v3.match_add(frame), v3.match_read(frame)
    request = parsed(frame)
    if request is None:
        with pytest.raises(MalformedRequestError):
            v3.read_request(frame)
    else:
        assert v3.read_request(frame) == request
    if add is not None:
        told = request.addRequest
        assert request.header.operation == messages.ADD_ENTRY
        assert request.header.version == messages.VERSION_THREE
        assert not request.header.HasField("priority")
        assert not told.HasField("flag")
        assert not told.HasField("writeFlags")
        assert (add.ledger_id, add.entry_id) == (told.ledgerId, told.entryId)
        assert (frame[add.key], frame[add.body]) == (told.masterKey, told.body)
        assert frame[add.header] == v3.header_of(request)
        assert (frame[add.ledger], frame[add.entry]) == (v3.varint(told.ledgerId), v3.varint(told.entryId))
        assert frame[add.txn] == v3.varint(request.header.txnId)
    if read is not None:
        asked = request.readRequest
        assert request.header.operation == messages.READ_ENTRY
        assert (read.ledger_id, read.entry_id) == (asked.ledgerId, asked.entryId)
        assert {field.name for field, _ in asked.ListFields()} <= {"ledgerId", "entryId"}
        assert read.header == v3.header_of(request)
    return (add is not None) + (read is not None)


@given(txns, int64s, int64s, st.binary(max_size=300))
def test_adds_are_read_as_protobuf_does(txn: int, ledger: int, entry: int, payload: bytes) -> None:
    body = ledger.to_bytes(8, "big", signed=True) + entry.to_bytes(8, "big", signed=True) + payload
    assert check(kit.v3_add(body, txn)[4:]) == 1


@given(txns, int64s, int64s)
def test_reads_are_read_as_protobuf_does(txn: int, ledger: int, entry: int) -> None:
    assert check(kit.v3_read(ledger, entry, txn)[4:]) == 1


@pytest.mark.parametrize(
    "frame",
    [
        kit.v3_add(kit.stored(1, 2), flag=messages.AddRequest.RECOVERY_ADD),
        kit.v3_add(kit.stored(1, 2), writeFlags=1),
        kit.v3_fence(1),
        kit.v3_long_poll(1, 3, 100),
        kit.v3_request(messages.ADD_ENTRY, 1, "addRequest", 100, ledgerId=1, entryId=2, masterKey=b"k", body=b"b"),
        kit.v3_request(messages.READ_LAC, 1, "readLacRequest", ledgerId=1),
    ],
)
def test_other_forms_are_left_to_protobuf(frame: bytes) -> None:
    assert check(frame[4:]) == 0


def test_an_add_that_calls_itself_another_entry_is_looked_at_closely() -> None:
    request = kit.v3_request(
        messages.ADD_ENTRY, 1, "addRequest", ledgerId=1, entryId=3, masterKey=kit.KEY, body=kit.stored(1, 2)
    )
    assert v3.match_add(request[4:]) is None


SEEDS = [
    kit.v3_add(kit.stored(5, 300), 70_000)[4:],
    kit.v3_add(kit.stored(1 << 40, 2, b""), 1, flag=1)[4:],
    kit.v3_read(5, 1 << 33, 12)[4:],
    kit.v3_long_poll(5, 2, 100)[4:],
]


@given(st.sampled_from(SEEDS), st.data())
@settings(max_examples=500)
def test_changed_requests_are_read_as_protobuf_does(frame: bytes, data: st.DataObject) -> None:
    octets = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(octets) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                octets[place] = data.draw(st.integers(0, 255))
            case 1:
                del octets[place]
            case _:
                octets.insert(place, data.draw(st.integers(0, 255)))
        if not octets:
            return
    check(bytes(octets))


def test_many_changed_requests_are_read_as_protobuf_does() -> None:
    chance = random.Random(7)
    recognised = 0
    for _ in range(20_000):
        octets = bytearray(chance.choice(SEEDS))
        octets[chance.randrange(min(60, len(octets)))] = chance.choice(
            [0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)]
        )
        recognised += check(bytes(octets))
    assert recognised > 1000


@given(txns, int64s, int64s, st.sampled_from(list(codes.STATUS)))
def test_answers_to_adds_are_protobufs(txn: int, ledger: int, entry: int, code: int) -> None:
    request = parsed(kit.v3_add(kit.stored(1, 1), txn)[4:])
    answer = v3.answer_add(v3.header_of(request), code, v3.varint(ledger), v3.varint(entry))
    told = messages.Response.FromString(answer[4:])
    assert answer[4:] == told.SerializeToString()
    assert (told.header.txnId, told.header.operation) == (txn, messages.ADD_ENTRY)
    assert told.status == told.addResponse.status == codes.STATUS[code]
    assert (told.addResponse.ledgerId, told.addResponse.entryId) == (ledger, entry)


@given(txns, int64s, int64s, st.none() | st.binary(max_size=200), st.none() | int64s, st.none() | int64s)
def test_answers_to_reads_are_protobufs(
    txn: int, ledger: int, entry: int, body: bytes | None, lac: int | None, when: int | None
) -> None:
    request = parsed(kit.v3_read(1, 1, txn)[4:])
    answer = v3.answer_read(v3.header_of(request), codes.OK, ledger, entry, body, lac, when)
    assert len(answer) == 4 + int.from_bytes(answer[:4], "big")
    told = messages.Response.FromString(answer[4:])
    assert answer[4:] == told.SerializeToString()
    read = told.readResponse
    assert (read.ledgerId, read.entryId) == (ledger, entry)
    assert (read.body if read.HasField("body") else None) == body
    assert (read.maxLAC if read.HasField("maxLAC") else None) == lac
    assert (read.lacUpdateTimestamp if read.HasField("lacUpdateTimestamp") else None) == when
