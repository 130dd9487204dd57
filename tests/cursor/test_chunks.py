"""Snapshots in chunks, and packed ones."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.cursor.format.chunked_snapshot import CODEC_PROPERTY, Footer, footer_of, stored_at, unpacked
from bookstand.errors import MalformedAckStateError
from bookstand.managed_ledger.message import compression

UNHURRIED = settings(deadline=None)  # the machine may be busy

CHUNK = 16


def chunked(data: bytes) -> list[bytes]:
    """As written by others: a whole number of chunks leaves an empty last one."""
    parts = 1 + len(data) // CHUNK
    footer = json.dumps({"numParts": parts, "length": len(data)}).encode()
    return [data[at * CHUNK : (at + 1) * CHUNK] for at in range(parts)] + [footer]


@UNHURRIED
@given(st.binary(max_size=100), st.lists(st.binary(max_size=5), max_size=3))
def test_chunks_are_joined(data: bytes, before: list[bytes]) -> None:
    entries = before + chunked(data)
    last = len(entries) - 1
    assert stored_at(entries.__getitem__, last)[:3] == (data, len(before), last)


def test_an_exact_multiple_has_an_empty_last_chunk() -> None:
    entries = chunked(bytes(2 * CHUNK))
    assert [len(entry) for entry in entries[:-1]] == [CHUNK, CHUNK, 0]
    assert stored_at(entries.__getitem__, 3).data == bytes(2 * CHUNK)


def test_an_entry_of_its_own() -> None:
    assert footer_of(b"\x08\x03\x10\x01") is None
    assert footer_of(b"") is None
    assert stored_at([b"", b"\x08\x03\x10\x01"].__getitem__, 1)[:3] == (b"\x08\x03\x10\x01", 1, 1)
    assert footer_of(b'{"numParts":2,"length":7}') == Footer(2, 7)


BROKEN = [
    b"{{",
    b"{",
    b"{}",
    b'{"numParts":0,"length":7}',
    b'{"numParts":-1,"length":7}',
    b'{"numParts":true,"length":7}',
    b'{"numParts":2,"length":-1}',
    b'{"numParts":2,"length":1e3}',
    b'{"numParts":"2","length":7}',
    b'{"numParts":2,"length":99999999999}',
    b'{"numParts":2}',
    b'{"numParts":2,"length":7}\xff',
    b'{"numParts":' + b"9" * 5000 + b',"length":7}',
    b'{"numParts":' + b"[" * 100_000,
]


@pytest.mark.parametrize("entry", BROKEN, ids=lambda entry: entry[:20].decode("latin-1"))
def test_a_broken_footer(entry: bytes) -> None:
    with pytest.raises(MalformedAckStateError, match="footer"):
        footer_of(entry)


def test_parts_that_do_not_fit_the_footer() -> None:
    entries = chunked(bytes(40))
    with pytest.raises(MalformedAckStateError, match="but 2 entries precede it"):
        stored_at(entries[1:].__getitem__, len(entries) - 2)
    for wrong in (b"", bytes(CHUNK + 1)):
        with pytest.raises(MalformedAckStateError, match="wrong size"):
            stored_at([wrong, *entries[1:]].__getitem__, len(entries) - 1)


@pytest.mark.parametrize("codec", compression.NUMBERS)
def test_packed_snapshots(codec: str) -> None:
    data = b"some state" * 20
    packed = struct.pack(">I", len(data)) + compression.pack(codec, data)
    assert unpacked(packed, codec) == data
    entries = chunked(packed)
    assert stored_at(entries.__getitem__, len(entries) - 1, codec).data == data
    with pytest.raises(MalformedAckStateError):
        unpacked(struct.pack(">I", len(data) + 1) + packed[4:], codec)
    with pytest.raises(MalformedAckStateError, match=r"may expand|should have"):
        unpacked(struct.pack(">I", (1 << 32) - 1) + packed[4:], codec)
    with pytest.raises(MalformedAckStateError, match="within its size"):
        unpacked(b"\0\0", codec)


def test_the_codecs_name() -> None:
    assert CODEC_PROPERTY == "pulsar/cursor-compressionType"
    assert unpacked(b"as it is", None) == b"as it is"
    with pytest.raises(MalformedAckStateError, match="unknown codec"):
        unpacked(b"\0\0\0\0", "BROTLI")
