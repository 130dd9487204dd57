"""Stored entries: the bytes of the original, and whatever is wrong with them found."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand.errors import DigestMismatchError
from bookstand.storage.format import entry_codec
from bookstand.storage.format.digest import DIGEST_NAMES, digest_for

HEADER = "00000000000000010000000000000000ffffffffffffffff0000000000000003"
SLOTS = {
    "crc32c": "bd71cbed",
    "crc32": "000000006411737f",
    "hmac": "5dcc3f21ce9c8fc5816310729c0482daab0c3549",
    "dummy": "",
}
IDS = st.integers(0, (1 << 63) - 1)
LACS = st.integers(-1, (1 << 63) - 1)
NAMES = st.sampled_from(DIGEST_NAMES)


@pytest.mark.parametrize("name", DIGEST_NAMES)
def test_golden_vectors(name):
    digest = digest_for(name, b"password")
    stored = entry_codec.encode(digest, 1, 0, -1, 3, b"foo")
    assert stored.hex() == HEADER + SLOTS[name] + b"foo".hex()
    assert entry_codec.decode(digest, 1, 0, stored) == (-1, 3, b"foo")
    assert entry_codec.decode_last_confirmed(digest, 1, stored) == (-1, 3)
    assert entry_codec.decode_header(stored) == (1, 0, -1, 3)


def test_golden_explicit_lac():
    body = entry_codec.encode_explicit_lac(digest_for("crc32c", b""), 1, 0)
    assert body == struct.pack(">qq", 1, 0) + bytes.fromhex("b64e4ca2")


@given(name=NAMES, ledger=IDS, entry_id=IDS, lac=LACS, length=IDS, payload=st.binary(max_size=300))
def test_roundtrip(name, ledger, entry_id, lac, length, payload):
    digest = digest_for(name, b"secret")
    stored = entry_codec.encode(digest, ledger, entry_id, lac, length, payload)
    assert len(stored) == 32 + digest.size + len(payload)
    assert stored[:32] == struct.pack(">qqqq", ledger, entry_id, lac, length)
    assert entry_codec.decode(digest, ledger, entry_id, stored) == (lac, length, payload)


@pytest.mark.parametrize("payload", [b"", b"a", b"some payload"])
@pytest.mark.parametrize("name", ["crc32", "crc32c", "hmac"])
def test_every_flipped_bit_is_found(name, payload):
    digest = digest_for(name, b"secret")
    stored = entry_codec.encode(digest, 5, 7, 6, 1234, payload)
    for bit in range(8 * len(stored)):
        flipped = bytearray(stored)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DigestMismatchError):
            entry_codec.decode(digest, 5, 7, bytes(flipped))
        with pytest.raises(DigestMismatchError):
            entry_codec.decode_last_confirmed(digest, 5, bytes(flipped))


def test_without_a_digest_the_ids_are_still_checked():
    digest = digest_for("dummy", b"")
    stored = entry_codec.encode(digest, 5, 7, 6, 1234, b"some payload")
    for bit in range(128):
        flipped = bytearray(stored)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DigestMismatchError):
            entry_codec.decode(digest, 5, 7, bytes(flipped))


@pytest.mark.parametrize("name", DIGEST_NAMES)
def test_every_cut_is_found(name):
    digest = digest_for(name, b"secret")
    stored = entry_codec.encode(digest, 5, 7, 6, 1234, b"some payload")
    for size in range(len(stored) if name != "dummy" else 32):
        with pytest.raises(DigestMismatchError):
            entry_codec.decode(digest, 5, 7, stored[:size])
    for size in range(32):
        with pytest.raises(DigestMismatchError):
            entry_codec.decode_header(stored[:size])


@pytest.mark.parametrize("name", DIGEST_NAMES)
def test_the_entry_of_another_place(name):
    """A right digest does not make up for the wrong ids; only the read of the LAC takes any entry of the ledger."""
    digest = digest_for(name, b"secret")
    stored = entry_codec.encode(digest, 5, 7, 6, 1234, b"payload")
    with pytest.raises(DigestMismatchError, match="5:8"):
        entry_codec.decode(digest, 5, 8, stored)
    with pytest.raises(DigestMismatchError, match="6:7"):
        entry_codec.decode(digest, 6, 7, stored)
    with pytest.raises(DigestMismatchError):
        entry_codec.decode_last_confirmed(digest, 6, stored)
    assert entry_codec.decode_last_confirmed(digest, 5, stored) == (6, 1234)


def test_the_wrong_digest():
    for written in DIGEST_NAMES[:3]:
        stored = entry_codec.encode(
            digest_for(written, b"secret"), 5, 7, 6, 1234, b"payload, long enough for every slot"
        )
        for read in DIGEST_NAMES[:3]:
            if read != written:
                with pytest.raises(DigestMismatchError, match=read):
                    entry_codec.decode(digest_for(read, b"secret"), 5, 7, stored)
    with pytest.raises(DigestMismatchError):
        entry_codec.decode(
            digest_for("hmac", b"another"), 5, 7, entry_codec.encode(digest_for("hmac", b"secret"), 5, 7, 6, 9, b"")
        )
