"""Sealed records: what was sealed comes back, and any change to it is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand.errors import StoreDamagedError
from bookstand.storage.format import sealed_record

BODIES = st.binary(max_size=200)
KEYS = st.binary(min_size=1, max_size=30)


@given(key=KEYS, body=BODIES)
def test_roundtrip(key, body):
    sealed = sealed_record.seal(key, body)
    assert len(sealed) == 4 + len(body)
    assert sealed_record.unseal(b"meta", key, sealed) == body


@given(key=KEYS, version=st.integers(-(1 << 63), (1 << 63) - 1), value=BODIES)
def test_versioned_roundtrip(key, version, value):
    assert sealed_record.unseal_versioned(b"nodes", key, sealed_record.seal_versioned(key, version, value)) == (
        value,
        version,
    )


@pytest.mark.parametrize("body", [b"", b"a", b"some body"])
def test_every_flipped_bit_is_found(body):
    sealed = sealed_record.seal(b"key", body)
    for bit in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreDamagedError):
            sealed_record.unseal(b"meta", b"key", bytes(flipped))


def test_every_cut_is_found():
    sealed = sealed_record.seal_versioned(b"key", 3, b"some value")
    for size in range(len(sealed)):
        with pytest.raises(StoreDamagedError):
            sealed_record.unseal_versioned(b"nodes", b"key", sealed[:size])
    # A right seal over too little.
    for size in range(8):
        with pytest.raises(StoreDamagedError, match="too short"):
            sealed_record.unseal_versioned(b"nodes", b"key", sealed_record.seal(b"key", bytes(size)))


def test_the_value_of_another_key():
    with pytest.raises(StoreDamagedError):
        sealed_record.unseal(b"meta", b"other", sealed_record.seal(b"key", b"body"))


@pytest.mark.parametrize(
    ("database", "key", "name"),
    [
        (b"nodes", "/ä/b".encode(), "node '/ä/b'"),
        (b"nodes", b"\xff", "node"),
        (b"ledgers", (77).to_bytes(8, "big"), "metadata of ledger 77"),
        (b"state", (77).to_bytes(8, "big"), "state of ledger 77"),
        (b"meta", b"store-id", "'store-id' of meta"),
    ],
)
def test_the_message_names_the_record(database, key, name):
    with pytest.raises(StoreDamagedError) as caught:
        sealed_record.unseal(database, key, b"xxxxyyyy")
    assert name in str(caught.value)
