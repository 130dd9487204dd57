"""Columns: numbers of every width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand.cursor.format.packed_column import ColumnError, pick, read_column, write_column
from bookstand.proto import wire_format

widths = st.sampled_from([0, 1, 2, 3, 4, 5, 8])


@st.composite
def columns(draw: st.DrawFn) -> list[int]:
    most = (1 << 8 * draw(widths)) - 1
    base = draw(st.integers(0, 2**64 - 1 - most))
    numbers = draw(st.lists(st.integers(0, most), min_size=1, max_size=70))
    return [base + number for number in numbers]


@given(columns(), st.binary(max_size=5), st.binary(max_size=5))
def test_what_goes_in_comes_out(numbers, before, behind):
    out = bytearray(before)
    write_column(out, numbers)
    end = len(out)
    data = bytes(out) + behind
    assert read_column(data, len(before), len(numbers)) == (numbers, end)
    for row, number in enumerate(numbers):
        assert pick(data, len(before), len(numbers), row) == (number, end)


@pytest.mark.parametrize("span", [1, 2**8 - 1, 2**8, 2**16 - 1, 2**16, 2**24 - 1, 2**24, 2**32 - 1, 2**32, 2**63])
def test_no_more_bytes_than_needed(span):
    out = bytearray()
    write_column(out, [5, 5 + span])
    width = -(-span.bit_length() // 8)
    assert len(out) == 2 + 2 * (width if width <= 4 else 8)


def test_equal_numbers_take_no_room():
    out = bytearray()
    write_column(out, [7] * 1_000)
    assert bytes(out) == b"\x00\x07"


@pytest.mark.parametrize("width", [1, 8])
def test_what_takes_more_than_64_bits_is_refused(width):
    data = bytearray([width])
    wire_format.write_varint(data, 2**64 - 2)
    data += bytes(width) + b"\x02" + bytes(width - 1)
    assert pick(bytes(data), 0, 2, 0)[0] == 2**64 - 2
    with pytest.raises(ColumnError, match="does not fit into 64 bits"):
        pick(bytes(data), 0, 2, 1)
    with pytest.raises(ColumnError, match="does not fit into 64 bits"):
        read_column(bytes(data), 0, 2)


@given(st.binary(max_size=60), st.integers(1, 70))
def test_other_bytes_are_decoded_or_refused(data, count):
    try:
        numbers, end = read_column(data, 0, count)
    except ValueError:
        return
    assert len(numbers) == count
    assert end <= len(data)
