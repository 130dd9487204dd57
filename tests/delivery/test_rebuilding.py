"""When messages are due, read by protobuf and by ``Message``: the same, or the same complaint."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.delivery.tracker.bucket.rebuild import deliver_at_time
from bookstand.errors import MalformedMessageError
from bookstand.managed_ledger.message.format import Message, encode_message
from bookstand.managed_ledger.message.metadata import BrokerEntryMetadata
from bookstand.proto.pulsar_message_pb2 import MessageMetadata


def as_message(data: bytes) -> int | str | None:
    try:
        return Message(data).metadata.deliver_at_time
    except MalformedMessageError as error:
        return str(error)


def as_read(data: bytes) -> int | str | None:
    try:
        return deliver_at_time(data)
    except MalformedMessageError as error:
        return str(error)


TIMES = st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1))


@given(TIMES, st.booleans(), st.booleans())
def test_of_every_message(time: int | None, by_broker: bool, checksum: bool) -> None:
    broker = BrokerEntryMetadata(broker_timestamp=1) if by_broker else None
    data = encode_message(b"x", publish_time=1, deliver_at=time, properties={"a": "ü"}, broker_metadata=broker)
    if not checksum and not by_broker:
        data = data[6:]
    assert deliver_at_time(data) == time


@settings(deadline=None)
@given(TIMES, st.data())
def test_what_is_broken_is_broken_for_both(time: int | None, data: st.DataObject) -> None:
    whole = bytearray(encode_message(b"xyz", publish_time=1, deliver_at=time, properties={"a": "b"}))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    broken = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    assert as_read(broken) == as_message(broken)


@pytest.mark.parametrize("field", ["producer_name", "sequence_id", "publish_time"])
def test_a_message_that_lacks_a_field_is_no_message(field: str) -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, deliver_at_time=3)
    metadata.ClearField(field)
    body = metadata.SerializePartialToString()
    data = b"\x0e\x01" + bytes(4) + len(body).to_bytes(4) + body
    assert as_read(data) == as_message(data)
    with pytest.raises(MalformedMessageError):
        deliver_at_time(data)
