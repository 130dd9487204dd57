"""Rows of which nearly all bytes have their places: they are read as any others, and what is not so is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookstand.delivery.tracker.bucket.snapshot import codec, uniform_rows
from bookstand.delivery.tracker.bucket.snapshot.codec import encode_segment
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes

NOW = 1_700_000_000_000
Row = tuple[int, int, int]

lowest = st.sampled_from([0, 1, 127, 128, 1 << 14, 1 << 28, NOW, (1 << 49) - 1, 1 << 49, (1 << 63) - (1 << 17)])
near = st.one_of(st.integers(0, 3), st.integers(0, 1 << 16))
entry_ids = st.one_of(near, st.sampled_from([(1 << 28) - 1, 1 << 28, (1 << 63) - 1]))


@st.composite
def segments(draw: st.DrawFn) -> list[Row]:
    """Times and ledgers that are near to one another."""
    first, ledger = draw(lowest), draw(lowest)
    return draw(st.lists(st.tuples(near.map(first.__add__), near.map(ledger.__add__), entry_ids), min_size=1))


def encoded(rows: list[Row]) -> bytes:
    return encode_segment(Indexes.of(*np.array(rows, dtype=np.int64).T))


def told(decoded: tuple[Indexes, np.ndarray] | None) -> tuple[list[Row], list[int]] | None:
    return None if decoded is None else (list(map(tuple, decoded[0].indexes)), decoded[1].tolist())


@given(segments())
@example([(NOW + one, 300, one) for one in range(0, 1 << 22, 1 << 14)])
def test_what_is_read_is_what_was_written(rows: list[Row]) -> None:
    found = told(uniform_rows.decode(encoded(rows)))
    if found is not None:
        assert found == told(codec._decode_rows(encoded(rows)))
        assert found[0] == rows


@pytest.mark.parametrize("ledger_id", [0, 127, 128, 16_384, 1 << 21, 1 << 27, (1 << 33) + 5])
def test_what_pulsar_writes_is_alike(ledger_id: int) -> None:
    rows = [(NOW + 1_000 * number, ledger_id, 37 * number % 50_000) for number in range(300)]
    assert told(uniform_rows.decode(encoded(rows))) == told(codec._decode_rows(encoded(rows)))
    assert uniform_rows.decode(encoded(rows)) is not None


@pytest.mark.parametrize(
    "rows",
    [
        [(NOW, 127, 1), (NOW, 128, 1)],
        [((1 << 41) - 1, 5, 1), (1 << 41, 5, 1)],
        [(127, 5, 1), (128, 5, 1)],
        [(NOW, 5, 1), (NOW, 5, 1 << 28)],
        [(1 << 49, 5, 1)],
        [(-1, 5, 1)],
    ],
)
def test_what_is_not_alike_is_left_alone(rows: list[Row]) -> None:
    assert uniform_rows.decode(encoded(rows)) is None


def test_every_flipped_bit_is_read_as_any_row_or_not_at_all() -> None:
    stored = encoded([(NOW, 300, 5), (NOW + 1, 301, 200), (NOW + 40_000, 300, 70_000)])
    alike = 0
    for place in range(8 * len(stored)):
        flipped = bytearray(stored)
        flipped[place // 8] ^= 1 << place % 8
        found = told(uniform_rows.decode(bytes(flipped)))
        if found is not None:
            alike += 1
            assert found == told(codec._decode_rows(bytes(flipped)))
    # Those of the numbers that may differ: four groups of a time, an entry id, and of a ledger both.
    assert alike > 100


@pytest.mark.parametrize("size", range(32))
def test_what_is_cut_short_is_left_alone_unless_it_ends_with_a_row(size: int) -> None:
    data = encoded([(NOW, 300, 5), (NOW + 1, 301, 200)])
    assert len(data) == 29
    whole = {14: 1, 29: 2}
    found = uniform_rows.decode(data[:size])
    assert (found is not None) is (size in whole or size > 29)
    assert found is None or found[0].size == whole[min(size, 29)]


def test_bytes_of_all_kinds_are_left_alone() -> None:
    chance = np.random.default_rng(7)
    for size in range(200):
        assert uniform_rows.decode(chance.bytes(size)) is None
        assert uniform_rows.decode(b"\x0a\x06\x08" + bytes(size)) is None
