"""What the store remembers of a ledger: its bytes, and what operations do to it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand.errors import StoreDamagedError, UnauthorizedAccessError
from bookstand.storage.format import ledger_state, sealed_record
from bookstand.storage.format.ledger_state import LedgerState

U64 = st.integers(0, (1 << 64) - 1)
ID = st.integers(-1, (1 << 63) - 1)


@st.composite
def states(draw):
    made = LedgerState(draw(U64), draw(st.none() | st.binary(min_size=20, max_size=20)))
    made.fenced = draw(st.booleans())
    made.in_order = draw(st.booleans())
    for name in ("count", "largest"):
        setattr(made, name, draw(U64))
    for name in ("last_entry", "unbroken", "lac", "explicit_lac"):
        setattr(made, name, draw(ID))
    made.deleted_at = draw(U64)
    return made


def fields(some):
    return {name: getattr(some, name) for name in LedgerState.__slots__}


@given(states())
def test_roundtrip(made):
    packed = made.pack()
    assert len(packed) == 92
    assert fields(ledger_state.unpack(3, packed)) == fields(made)
    assert ledger_state.unpack(3, packed).pack() == packed


@given(states())
def test_a_copy_is_another(made):
    before = made.pack()
    copied = made.copy()
    assert fields(copied) == fields(made)
    ledger_state.record_added(copied, made.last_entry + 1 if made.last_entry < 1 << 62 else 0, 1, 1, 0)
    copied.fenced = not copied.fenced
    assert made.pack() == before


def test_every_flipped_bit_and_cut_is_found():
    made = LedgerState(5, bytes(range(20)))
    ledger_state.record_added(made, 0, 2, 4, -1)
    key = (9).to_bytes(8, "big")
    sealed = sealed_record.seal(key, made.pack())
    for bit in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreDamagedError, match="ledger 9"):
            ledger_state.unpack(9, sealed_record.unseal(b"state", key, bytes(flipped)))
    for size in (*range(92), 93):
        with pytest.raises(StoreDamagedError, match="ledger 9"):
            ledger_state.unpack(9, made.pack()[:size].ljust(size, b"\0"))


def test_adding_in_order():
    made = LedgerState(1, None)
    assert not made.heard_of
    ledger_state.record_added(made, 0, 1, 5, -1)
    ledger_state.record_added(made, 1, 3, 7, 0)
    assert (made.count, made.last_entry, made.lac, made.largest, made.in_order) == (4, 3, 0, 7, True)
    assert made.heard_of
    assert [made.must_exist(entry_id) for entry_id in (-1, 0, 3, 4)] == [False, True, True, False]


def test_adding_out_of_order():
    made = LedgerState(1, None)
    ledger_state.record_added(made, 0, 1, 1, -1)
    ledger_state.record_added(made, 2, 1, 1, 0)
    assert (made.count, made.last_entry, made.lac, made.in_order) == (2, 2, 0, False)
    # Entry 1 may never have been added; entry 0 was confirmed.
    assert [made.must_exist(entry_id) for entry_id in (0, 1, 2)] == [True, False, False]
    ledger_state.record_added(made, 1, 1, 1, 0)
    assert (made.count, made.last_entry, made.unbroken) == (3, 2, 1)
    assert not made.must_exist(2)
    made.explicit_lac = 2
    assert made.must_exist(2)


def test_adding_what_is_there_teaches_its_lac_only():
    made = LedgerState(1, None)
    ledger_state.record_added(made, 0, 1, 1, -1)
    before = fields(made)
    ledger_state.record_added(made, 0, 0, 0, 0)
    assert fields(made) == before | {"lac": 0}


def test_what_makes_a_ledger_heard_of():
    for change in ({"fenced": True}, {"explicit_lac": 0}, {"last_entry": 0}):
        made = LedgerState(1, b"k" * 20)
        for name, value in change.items():
            setattr(made, name, value)
        assert made.heard_of


def test_the_first_key_is_the_key():
    made = LedgerState(1, None)
    ledger_state.authorize(made, 4, b"a" * 20)
    assert made.master_key == b"a" * 20
    ledger_state.authorize(made, 4, b"a" * 20)
    with pytest.raises(UnauthorizedAccessError, match="ledger 4"):
        ledger_state.authorize(made, 4, b"b" * 20)
    assert made.master_key == b"a" * 20
