"""Digests and keys, against the vectors of the original."""

from __future__ import annotations

import hashlib
import hmac
import zlib

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand.errors import IncorrectParameterError
from bookstand.storage.format.digest import DIGEST_NAMES, Digest, digest_for, digest_name, master_key

HEADER = bytes.fromhex("00000000000000010000000000000000ffffffffffffffff0000000000000003")
GOLDEN = {
    "crc32c": "bd71cbed",
    "crc32": "000000006411737f",
    "hmac": "5dcc3f21ce9c8fc5816310729c0482daab0c3549",
    "dummy": "",
}


@pytest.mark.parametrize("name", DIGEST_NAMES)
def test_golden_vectors(name):
    digest = digest_for(name, b"password")
    assert digest.of(HEADER, b"foo").hex() == GOLDEN[name]
    assert digest.size == len(GOLDEN[name]) // 2
    assert digest.name == name


def test_golden_keys():
    assert master_key(b"password").hex() == "776734ff34b8278465ec6051092ee57a434bb849"
    assert master_key(b"").hex() == "850bf1071c5e3d8c24235676f8816ae0cbe2f14f"


def test_the_c_implementation_of_crc32c_is_there():
    assert google_crc32c.implementation == "c"


@given(header=st.binary(min_size=32, max_size=32), payload=st.binary(max_size=100), password=st.binary(max_size=40))
def test_against_other_implementations(header, payload, password):
    both = header + payload
    assert digest_for("crc32", password).of(header, payload) == zlib.crc32(both).to_bytes(8, "big")
    assert digest_for("crc32c", password).of(header, payload) == _crc32c(both).to_bytes(4, "big")
    key = hashlib.sha1(b"mac" + password).digest()
    assert digest_for("hmac", password).of(header, payload) == hmac.new(key, both, hashlib.sha1).digest()
    assert digest_for("dummy", password).of(header, payload) == b""
    assert master_key(password) == hashlib.sha1(b"ledger" + password).digest()


def _crc32c(data: bytes) -> int:
    """Bit by bit, as the definition says."""
    crc = 0xFFFF_FFFF
    for octet in data:
        crc ^= octet
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F6_3B78 if crc & 1 else 0)
    return crc ^ 0xFFFF_FFFF


def test_only_hmac_depends_on_the_password():
    for name in DIGEST_NAMES:
        same = digest_for(name, b"one").of(HEADER, b"foo") == digest_for(name, b"two").of(HEADER, b"foo")
        assert same == (name != "hmac")


@pytest.mark.parametrize(
    ("given_name", "canonical"),
    [("CRC32", "crc32"), ("crc32C", "crc32c"), ("HMAC", "hmac"), ("MAC", "hmac"), ("mac", "hmac"), ("Dummy", "dummy")],
)
def test_names_in_any_case(given_name, canonical):
    assert digest_name(given_name) == canonical
    assert digest_for(given_name, b"").name == canonical


@pytest.mark.parametrize("name", ["", "crc", "sha1", None, b"crc32", 3])
def test_unknown_names(name):
    with pytest.raises(IncorrectParameterError, match="crc32c"):
        digest_name(name)


def test_the_base_class_is_no_digest():
    with pytest.raises(TypeError):
        Digest("none", 0).of(b"", b"")
