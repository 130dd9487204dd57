"""Requests of many small operations take memory in proportion to their frame."""

from __future__ import annotations

import tracemalloc

import pytest

from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.jute import JuteError
from bookstand.server.zookeeper.protocol.protocol import MAX_FRAME, Op


def test_a_multi_of_as_many_operations_as_a_frame_has_room_for_takes_some_mebibytes() -> None:
    one = records.MULTI_HEADER.encode(records.MultiHeader(Op.DELETE, False, -1))
    one += records.REQUESTS[Op.DELETE].encode(records.Delete("/", -1))
    count = (MAX_FRAME - 100) // len(one)
    body = one * count + records.MULTI_HEADER.encode(records.MultiHeader(-1, True, -1))
    tracemalloc.start()
    try:
        assert len(records.read_multi(body, 0, records.IN_MULTI)) == count
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [1 << 20, (1 << 31) - 1, -2])
def test_a_list_cannot_have_more_elements_than_bytes(count: int) -> None:
    body = records.STRING.encode("/a") + (count & 0xFFFFFFFF).to_bytes(4, "big") + bytes(1000)
    with pytest.raises(JuteError, match=f"{count} elements"):
        records.REQUESTS[Op.SET_ACL].decode(body)
