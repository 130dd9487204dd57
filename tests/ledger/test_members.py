"""The messages of a batch: the quick ways to write and to cut them give what the plain ways give."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookstand.errors import IncorrectParameterError, MalformedMessageError
from bookstand.managed_ledger.message.batch_members import BatchMember, decode_members, encode_batch, metadata_of
from bookstand.managed_ledger.message.format import Message, batch, batch_alike, single
from bookstand.managed_ledger.message.length_prefixed import U32
from bookstand.managed_ledger.message.metadata import SINGLE_MESSAGE_METADATA, SingleMessageMetadata
from bookstand.proto.pulsar_message_pb2 import SingleMessageMetadata as Theirs

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
UINT64 = st.integers(0, (1 << 64) - 1) | st.integers(0, 300)
# The last of them end with what looks like a sequence id, and is the end of a chunk.
CHUNKS = st.binary(max_size=6) | st.sampled_from([b"\x40\x05", b"\x40\x80\x01", b"\x18\x00\x40\x00", b"\x40" * 4])
METADATA = st.builds(
    SingleMessageMetadata,
    payload_size=st.just(0),
    properties=st.lists(st.tuples(TEXT, TEXT), max_size=2).map(tuple),
    partition_key=st.none() | TEXT | st.just("@\x05"),
    event_time=st.none() | UINT64,
    ordering_key=st.none() | CHUNKS,
    sequence_id=st.none() | UINT64,
    null_value=st.none() | st.booleans(),
    unknown=st.just(b""),
)


def body_of(parts: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(U32.pack(len(stored)) + stored + payload for stored, payload in parts)


def plainly(body: bytes, count: int) -> list[BatchMember]:
    """As protobuf reads them; an error of whatever kind where it cannot."""
    found = []
    at = 0
    for _ in range(count):
        start = at + U32.size
        at = start + U32.unpack_from(body, at)[0]
        if at > len(body):
            raise ValueError("the metadata is cut off")
        size = Theirs.FromString(body[start:at]).payload_size
        if not 0 <= size <= len(body) - at:
            raise ValueError("the payload is cut off")
        found.append(
            BatchMember(SingleMessageMetadata(**SINGLE_MESSAGE_METADATA.read(body, start, at)), body[at : at + size])
        )
        at += size
    return found


def cut(body: bytes, count: int) -> list[BatchMember]:
    return [BatchMember(metadata_of(stored), payload) for stored, payload in decode_members(body, count)]


def assert_cut_as_protobuf_does(body: bytes, count: int) -> None:
    try:
        expected = plainly(body, count)
    except Exception:
        with pytest.raises(MalformedMessageError):
            cut(body, count)
    else:
        assert cut(body, count) == expected


@given(st.lists(st.tuples(METADATA, st.binary(max_size=5)), max_size=8))
def test_what_was_joined_is_cut_again(messages: list[tuple[SingleMessageMetadata, bytes]]) -> None:
    singles = [BatchMember(own._replace(payload_size=len(payload)), payload) for own, payload in messages]
    body, count = encode_batch(singles, 7)
    numbered = [
        one
        if one.metadata.sequence_id is not None
        else one._replace(metadata=one.metadata._replace(sequence_id=7 + at))
        for at, one in enumerate(singles)
    ]
    assert cut(body, count) == numbered


@given(st.lists(st.tuples(METADATA, st.binary(max_size=5)), min_size=1, max_size=4), st.data())
def test_what_is_damaged_is_cut_as_protobuf_does(
    messages: list[tuple[SingleMessageMetadata, bytes]], data: st.DataObject
) -> None:
    parts = [
        (SINGLE_MESSAGE_METADATA.write(own._replace(payload_size=len(payload))), payload) for own, payload in messages
    ]
    body = bytearray(body_of(parts))
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(body[: data.draw(st.integers(0, len(body)) | st.just(len(body)))])
    assert_cut_as_protobuf_does(damaged, len(parts))


@given(
    st.integers(1, 40),
    st.binary(max_size=3),
    METADATA.map(lambda own: own._replace(sequence_id=None)),
    st.sampled_from([0, 100, 120, 127, 128, 16_370, (1 << 63) - 5, (1 << 64) - 20]) | st.none(),
    st.data(),
)
def test_many_alike_of_which_some_are_damaged_are_cut_as_protobuf_does(
    count: int, payload: bytes, own: SingleMessageMetadata, first: int | None, data: st.DataObject
) -> None:
    own = own._replace(payload_size=len(payload))
    parts = [
        (SINGLE_MESSAGE_METADATA.write(own._replace(sequence_id=None if first is None else first + number)), payload)
        for number in range(count)
    ]
    body = bytearray(body_of(parts))
    for _ in range(data.draw(st.integers(0, 2))):
        body[data.draw(st.integers(0, len(body) - 1))] ^= data.draw(st.integers(1, 255) | st.just(0x80))
    assert_cut_as_protobuf_does(bytes(body[: data.draw(st.integers(0, len(body)) | st.just(len(body)))]), count)


@pytest.mark.parametrize("first", [5, 120, 126, 300])
def test_every_bit_of_many_alike(first: int) -> None:
    own = SingleMessageMetadata(payload_size=2, partition_key="k")
    body = body_of([(SINGLE_MESSAGE_METADATA.write(own._replace(sequence_id=first + n)), b"ab") for n in range(16)])
    for bit in range(8 * len(body)):
        damaged = bytearray(body)
        damaged[bit // 8] ^= 1 << bit % 8
        assert_cut_as_protobuf_does(bytes(damaged), 16)


@given(
    st.lists(st.binary(max_size=3), min_size=1, max_size=140),
    st.dictionaries(TEXT, TEXT, max_size=2),
    st.sampled_from([{}, {"partition_key": "k"}, {"event_time": 9}, {"partition_key": "", "event_time": 0}]),
    st.sampled_from([0, 1, 120, 1 << 40]),
    st.sampled_from(["NONE", "ZLIB"]),
)
@example([b""], {}, {}, 0, "NONE")
def test_alike_ones_are_written_as_each_by_itself(
    payloads: list[bytes], properties: dict[str, str], own: dict[str, Any], first: int, codec: str
) -> None:
    of_all: dict[str, Any] = {"publish_time": 7, "deliver_at": 9, "sequence_id": first, "compression": codec}
    expected = batch((single(payload, properties=properties, **own) for payload in payloads), **of_all)
    assert batch_alike(payloads, member_properties=properties, **own, **of_all) == expected
    assert [one.payload for one in Message(expected).messages()] == payloads


def test_what_cannot_be_written() -> None:
    with pytest.raises(IncorrectParameterError, match="at least one"):
        batch_alike([], publish_time=1)
    wrong: list[dict[str, Any]] = [{"partition_key": 5}, {"event_time": "soon"}, {"member_properties": {"a": 1}}]
    for values in wrong:
        with pytest.raises(IncorrectParameterError, match="cannot be written"):
            batch_alike([b"x"], publish_time=1, **values)


def test_what_precedes_a_broken_one_can_be_had() -> None:
    good = SINGLE_MESSAGE_METADATA.write(SingleMessageMetadata(payload_size=2))
    found = decode_members(body_of([(good, b"ok"), (b"\x0a", b"")]), 2)
    assert next(found) == (good, b"ok")
    with pytest.raises(MalformedMessageError, match="message 1 of the batch cannot be read"):
        next(found)


def test_what_is_long_is_not_remembered() -> None:
    def kept_of_batches(key: str) -> int:
        tracemalloc.start()
        try:
            for number in range(40):
                body = batch_alike([b""] * 50, partition_key=f"{key}{number:02}" * 5_000, publish_time=1)
                assert len(list(Message(body).messages())) == 50
            del body
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    kept_of_batches("a")
    assert kept_of_batches("b") < 200_000
