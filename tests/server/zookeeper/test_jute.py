"""Every record is written as it is read, also those that the originals have sent; what is none is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.jute import BUFFER, INT, LONG, STRING, JuteError, vector
from bookstand.server.zookeeper.protocol.protocol import Op
from tests.replay.wire_frames import lines

RECORDED = Path(__file__).resolve().parent.parent.parent / "data" / "wire"

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
strings = st.none() | st.text(max_size=20)
buffers = st.none() | st.binary(max_size=40)
acls = st.none() | st.lists(st.builds(records.Acl, int32, strings, strings), max_size=3)
stats = st.builds(records.Stat, *[int64] * 4, *[int32] * 3, int64, int32, int32, int64)
many_strings = st.none() | st.lists(strings, max_size=4)
watch = st.builds(records.PathAndWatch, strings, st.booleans())
number = st.builds(records.PathAndNumber, strings, int32)

REQUESTS: dict[Op, st.SearchStrategy[Any]] = {
    Op.CREATE: st.builds(records.Create, strings, buffers, acls, int32),
    Op.CREATE_TTL: st.builds(records.CreateTtl, strings, buffers, acls, int32, int64),
    Op.DELETE: st.builds(records.Delete, strings, int32),
    Op.EXISTS: watch,
    Op.GET_CHILDREN2: watch,
    Op.SET_DATA: st.builds(records.SetData, strings, buffers, int32),
    Op.GET_ACL: strings,
    Op.SET_ACL: st.builds(records.SetAcl, strings, acls, int32),
    Op.CHECK: st.builds(records.Check, strings, int32),
    Op.AUTH: st.builds(records.Auth, int32, strings, buffers),
    Op.SET_WATCHES: st.builds(records.SetWatches, int64, *[many_strings] * 3),
    Op.SET_WATCHES2: st.builds(records.SetWatches2, int64, *[many_strings] * 5),
    Op.ADD_WATCH: number,
    Op.REMOVE_WATCHES: number,
}
RESULTS: dict[Op, st.SearchStrategy[Any]] = {
    Op.CREATE: strings,
    Op.CREATE2: st.tuples(strings, stats),
    Op.EXISTS: stats,
    Op.GET_DATA: st.tuples(buffers, stats),
    Op.GET_CHILDREN: many_strings,
    Op.GET_CHILDREN2: st.tuples(many_strings, stats),
    Op.GET_ACL: st.tuples(acls, stats),
}
both = [(records.REQUESTS[op], value) for op, value in REQUESTS.items()]
both += [(records.RESULTS[op], value) for op, value in RESULTS.items()]


@given(st.data())
def test_what_is_written_is_read(data: st.DataObject) -> None:
    codec, values = data.draw(st.sampled_from(both))
    value = data.draw(values)
    encoded = codec.encode(value)
    found, end = codec.read(b"xx" + encoded, 2)
    assert found == value
    assert end == 2 + len(encoded)


@given(st.data())
def test_no_part_of_a_record_passes_for_it(data: st.DataObject) -> None:
    codec, values = data.draw(st.sampled_from(both))
    encoded = codec.encode(data.draw(values))
    for end in range(len(encoded)):
        with pytest.raises(JuteError):
            codec.decode(encoded[:end])


@given(st.data(), st.binary(max_size=60))
def test_garbage_is_a_record_or_refused(data: st.DataObject, garbage: bytes) -> None:
    codec = data.draw(st.sampled_from([*records.REQUESTS.values(), *records.RESULTS.values()]))
    try:
        codec.decode(garbage)
    except JuteError:
        pass


@pytest.mark.parametrize(
    ("codec", "octets"),
    [
        (INT, b"\0\0\0"),
        (LONG, b"\0\0\0\0"),
        (BUFFER, b"\0\0\0\4abc"),
        (BUFFER, b"\xff\xff\xff\xfeab"),
        (STRING, b"\0\0\0\1\xff"),
        (vector(STRING), b"\x7f\xff\xff\xff"),
        (vector(STRING), b"\xff\xff\xff\xfe"),
    ],
)
def test_malformed(codec: Any, octets: bytes) -> None:
    with pytest.raises(JuteError):
        codec.decode(octets)


operations = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([Op.CREATE, Op.CREATE2, Op.CREATE_CONTAINER]), REQUESTS[Op.CREATE]),
        st.tuples(st.just(Op.DELETE), REQUESTS[Op.DELETE]),
        st.tuples(st.just(Op.SET_DATA), REQUESTS[Op.SET_DATA]),
        st.tuples(st.just(Op.CHECK), REQUESTS[Op.CHECK]),
    ),
    max_size=5,
)


@given(operations)
def test_a_multi_is_read_as_it_is_written(rows: list[tuple[Op, Any]]) -> None:
    from tests.server.zookeeper.kit import multi_body

    assert records.read_multi(b"x" + multi_body(rows), 1, records.IN_MULTI) == rows


def test_a_multi_has_only_what_belongs_in_it() -> None:
    from tests.server.zookeeper.kit import multi_body

    body = multi_body([(Op.GET_DATA, records.PathAndWatch("/", False))])
    assert records.read_multi(body, 0, records.IN_MULTI_READ)
    with pytest.raises(JuteError):
        records.read_multi(body, 0, records.IN_MULTI)


@pytest.mark.parametrize("name", ["bk", "pulsar"])
def test_recorded_requests_are_written_again(name: str) -> None:
    """What the original clients sent, octet for octet."""
    seen: set[int] = set()
    greeted: set[tuple[str, int]] = set()
    for line in lines(RECORDED / f"{name}.jsonl.gz", "zk"):
        if line.event != "sent":
            continue
        if line.place not in greeted:
            greeted.add(line.place)
            request, end = records.CONNECT_REQUEST.read(line.octets, 0)
            assert records.CONNECT_REQUEST.encode(request) == line.octets[:end]
            continue
        header = records.REQUEST_HEADER.decode(line.octets)
        codec = records.REQUESTS.get(header.type)
        if codec is not None:
            seen.add(header.type)
            value, end = codec.read(line.octets, records.HEADER_BYTES)
            assert end == len(line.octets)
            assert codec.encode(value) == line.octets[records.HEADER_BYTES :]
    assert len(seen) >= 7
