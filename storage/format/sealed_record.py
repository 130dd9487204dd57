"""Sealed records: small values with a CRC32C over their key and body.

LMDB does not checksum its pages, so a flipped bit in a value would go unnoticed. Entries carry their own digests;
everything else in the store is sealed here.
"""

from __future__ import annotations

import google_crc32c

from bookstand.errors import StoreDamagedError
from bookstand.proto.struct_layout import Layout
from bookstand.storage.format.schema import META_CHANGE_FEED, META_ZNODE, copy_name

SEALED = Layout("a sealed record", ("CRC32C", "I", "of the key and the body"), ("body", "the rest", ""))
VERSIONED = Layout("the body of a record that has a version", ("version", "q", ""), ("value", "the rest", ""))
_CRC = SEALED.struct
VERSION = VERSIONED.struct
CRC_BYTES = _CRC.size


def seal(key: bytes, body: bytes) -> bytes:
    return _CRC.pack(google_crc32c.value(key + body)) + body


def unseal(database: bytes, key: bytes, sealed: bytes) -> bytes:
    """Return the body; raise :class:`StoreDamagedError` with the name of a damaged record."""
    body = sealed[_CRC.size :]
    if len(sealed) < _CRC.size or _CRC.unpack_from(sealed)[0] != google_crc32c.value(key + body):
        raise StoreDamagedError(f"{describe(database, key)} is damaged: its checksum does not match")
    return body


def body_of(sealed: bytes) -> bytes:
    """Body of a record, without verification."""
    return sealed[_CRC.size :]


def is_sealed(key: bytes, sealed: bytes) -> bool:
    """Return True if the checksum matches the key and the body."""
    return len(sealed) >= _CRC.size and checksum_of(sealed) == google_crc32c.value(key + body_of(sealed))


def checksum_of(sealed: bytes | None) -> int:
    """Checksum of a record as a number; 0 for None."""
    return 0 if sealed is None else int.from_bytes(sealed[: _CRC.size], "big")


def encode_checksum_xor(key: bytes, total: int) -> bytes:
    return seal(key, _CRC.pack(total))


def unseal_sum(database: bytes, key: bytes, sealed: bytes | None) -> int:
    if sealed is None:
        raise StoreDamagedError(f"{describe(database, key)} is missing")
    body = unseal(database, key, sealed)
    if len(body) != _CRC.size:
        raise StoreDamagedError(f"{describe(database, key)} is damaged: {body.hex()} is not an XOR of checksums")
    return int.from_bytes(body, "big")


def seal_versioned(key: bytes, version: int, value: bytes) -> bytes:
    return seal(key, VERSION.pack(version) + value)


def unseal_versioned(database: bytes, key: bytes, sealed: bytes) -> tuple[bytes, int]:
    """Return (value, version)."""
    body = unseal(database, key, sealed)
    if len(body) < VERSION.size:
        raise StoreDamagedError(f"{describe(database, key)} is damaged: it is too short for its version")
    return body[VERSION.size :], VERSION.unpack_from(body)[0]


def describe(database: bytes, key: bytes) -> str:
    """Name of a record, for error messages."""
    if database == b"nodes":
        return f"node {key.decode('utf-8', 'replace')!r}"
    if database in (b"ledgers", b"state"):
        what = "metadata" if database == b"ledgers" else "state"
        return f"{what} of ledger {int.from_bytes(key, 'big')}"
    if database == b"meta" and key.startswith(META_ZNODE):
        return f"metadata of znode {'/' + key[1:].decode('utf-8', 'replace')!r}"
    if database == b"meta" and key.startswith(META_CHANGE_FEED + b"-"):
        return f"record of change {int.from_bytes(key[len(META_CHANGE_FEED) + 1 :], 'big')}"
    if database == b"copies":
        return copy_name(key)
    return f"record {key.decode('ascii', 'replace')!r} of {database.decode()}"
