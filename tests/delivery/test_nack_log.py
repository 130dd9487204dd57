"""Records of negative acknowledgments, and what a log of them adds up to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookstand.delivery.message.message_set import WIDTHS, RedeliveryCounts
from bookstand.delivery.nacks.log import node_of, replay
from bookstand.delivery.nacks.pending import NackTimes, PendingNacks
from bookstand.delivery.nacks.record import (
    _MAX_HEADER_BYTES,
    _MAX_RUN_BYTES,
    Nacks,
    Record,
    Redelivered,
    codes_in,
    decode,
    encode_nacks,
    encode_redelivered,
    nacks_of,
)
from bookstand.delivery.time_index.precision import PowerOfTwoPrecision
from bookstand.errors import IncorrectParameterError, MalformedRecordError

LARGEST = (1 << 63) - 1
TIMES = st.one_of(st.integers(-(1 << 63), LARGEST), st.integers(0, 100))
IDS = st.one_of(st.integers(0, LARGEST), st.integers(0, 40))


def ids_of(nacks: Nacks) -> list[int]:
    return [
        one
        for first, last in zip(nacks.firsts.tolist(), nacks.lasts.tolist(), strict=True)
        for one in range(first, last + 1)
    ]


def test_bytes():
    """The layout is kept: logs outlive the program that wrote them."""
    (record,) = encode_nacks([nacks_of(1000, 7, np.array([2, 3, 4, 300])), nacks_of(-1, 1 << 40, np.array([0]))], 1000)
    assert record.hex() == (
        "0a0c" "08e807" "1007" "1a05" "0202" "a70200"
        "0a16" "08ffffffffffffffffff01" "10808080808020" "1a02" "0000"
    )  # fmt: skip
    assert encode_redelivered(Redelivered(1000, 5)).hex() == "120508e8071005"


def test_bytes_of_messages_of_batches():
    (record,) = encode_nacks([nacks_of(1000, 7, np.array([0x23, 0x24]), width=4, count=300)], 1000)
    assert record.hex() == "0a0e" "08e807" "1007" "1a022301" "2004" "28ac02"  # fmt: skip


@given(
    st.dictionaries(
        st.tuples(TIMES, IDS, st.sampled_from((0, *WIDTHS)), st.integers(0, LARGEST)),
        st.sets(IDS, min_size=1, max_size=60),
        max_size=8,
    ),
    st.integers(0, 200),
)
@example({(0, 0, 0, 0): {*range(0, 60, 2), LARGEST}}, 0)
@example({(0, 0, 0, 0): {*range(0, 60, 2), LARGEST - 134}}, 0)
def test_there_and_back(groups, extra):
    nacks = [
        nacks_of(time, ledger, np.array(sorted(ids)), width, count)
        for (time, ledger, width, count), ids in groups.items()
    ]
    limit = _MAX_HEADER_BYTES + _MAX_RUN_BYTES + extra
    records = list(encode_nacks(nacks, limit))
    assert all(0 < len(record) <= limit for record in records)
    found: dict[tuple[int, int, int, int], set[int]] = {}
    for record in records:
        decoded = decode(record, "it")
        assert decoded.redelivered is None
        for one in decoded.nacks:
            ids = set(ids_of(one))
            assert codes_in(one).tolist() == sorted(ids)
            group = one.time, one.ledger_id, one.width, one.redeliveries
            assert not ids & found.get(group, set())
            found.setdefault(group, set()).update(ids)
    assert found == groups


@given(TIMES, st.integers(-1, LARGEST))
def test_given_there_and_back(until, last):
    assert decode(encode_redelivered(Redelivered(until, last)), "it") == Record([], Redelivered(until, last))


def test_runs_are_small():
    (record,) = encode_nacks([nacks_of(1000, 7, np.arange(1_000_000))], 1 << 20)
    assert len(record) < 20


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # a field without its length
        b"\x0a\x03\x08\x01\x10",  # ends inside a number
        b"\x0a\x02\x08\x01",  # no ledger
        b"\x0a\x04\x08\x01\x10\x01",  # no entries
        b"\x0a\x06\x08\x01\x10\x01\x1a\x00",  # none of them
        b"\x0a\x07\x08\x01\x10\x01\x1a\x01\x05",  # half a run
        b"\x0a\x08\x08\x01\x10\x01\x1a\x02\x05\x85",  # ends inside a run
        b"\x0a\x0a\x08\x01\x10\x01\x1a\x00\x1a\x02\x05\x00",  # two lists
        b"\x0a\x11\x08\x01\x10\x01\x1a\x0b\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a run of -1
        b"\x0a\x11\x08\x01\x10\x01\x1a\x0b\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00",  # from -1 on
        b"\x0a\x0a\x08\x01\x10\x01\x1a\x02\x05\x00\x20\x03",  # batch indexes of 3 bits
        b"\x0a\x13\x08\x01\x10\x01\x1a\x02\x05\x00\x28\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # a count of -1
        b"\x0a\x11\x08\x01\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x1a\x02\x05\x00",  # a ledger of -1
        b"\x0a\x0d\x08\x01\x10\x01\x1a\x07\x05\x80\x80\x80\x80\x80\x01",  # a run of 2^35
        b"\x12\x02\x08\x01",  # given, up to nowhere
        b"\xff\xff\xff",
    ],
)
def test_damaged_records(data):
    with pytest.raises(MalformedRecordError, match="entry 5:7"):
        decode(data, "entry 5:7")


@given(st.binary(max_size=60))
def test_no_bytes_are_a_surprise(data):
    try:
        record = decode(data, "it")
    except MalformedRecordError:
        return
    for nacks in record.nacks:
        assert (nacks.firsts >= 0).all()
        assert (nacks.lasts >= nacks.firsts).all()
        assert (nacks.firsts[1:] > nacks.lasts[:-1]).all()


def test_unknown_fields_are_passed_over():
    record = encode_redelivered(Redelivered(1, 2)) + b"\x9a\x3f\x02ab\x98\x3f\x05"
    assert decode(record, "it").redelivered == Redelivered(1, 2)


Entry = tuple[list[tuple[int, int]], tuple[int, int] | None]
LOGS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=3),
        st.one_of(st.none(), st.tuples(st.integers(0, 20), st.integers(-1, 10))),
    ),
    max_size=10,
)


def is_redelivered(log: list[Entry], number: int, time: int) -> bool:
    """Whether any round covers a nack of that entry."""
    return any(given and given[1] >= number and time <= given[0] for _, given in log)


def records_of(log: list[Entry]) -> list[tuple[int, Record]]:
    return [
        (
            number,
            Record([nacks_of(time, 1, np.array([one])) for time, one in nacks], given and Redelivered(*given)),
        )
        for number, (nacks, given) in enumerate(log)
    ]


def found_in(times: NackTimes) -> set[tuple[int, int]]:
    return {(nacks.time, one) for nacks in times.groups() for one in ids_of(nacks)}


@given(LOGS)
def test_what_is_outstanding(log):
    times = NackTimes(PowerOfTwoPrecision(0))
    replay(records_of(log), times)
    assert found_in(times) == {
        (time, one)
        for number, (nacks, _) in enumerate(log)
        for time, one in nacks
        if not is_redelivered(log, number, time)
    }


@given(LOGS)
def test_of_several_nacks_of_a_message_the_last_is_outstanding(log):
    """Also where the last was redelivered, and one that it replaced was not."""
    nacked = PendingNacks(PowerOfTwoPrecision(0), RedeliveryCounts())
    replay(records_of(log), nacked)
    last = {one: (number, time) for number, (nacks, _) in enumerate(log) for time, one in nacks}
    assert found_in(nacked) == {
        (time, one) for one, (number, time) in last.items() if not is_redelivered(log, number, time)
    }


def test_names():
    assert node_of("a/b c") == "/negative-acks/a%2Fb+c"
    for name in ("", None, 5, "x" * 600):
        with pytest.raises(IncorrectParameterError):
            node_of(name)
