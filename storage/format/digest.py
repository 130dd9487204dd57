"""The four digests of BookKeeper's entries, and the keys that it derives from a ledger's password.

A digest covers the entry's 32 header bytes and its payload, but not its own slot. The two CRCs are linear, which
:mod:`bookstand.storage.format.entry_batch` exploits through ``checksum`` and ``extend``.
"""

from __future__ import annotations

import struct
import zlib
from hashlib import sha1

import google_crc32c

from bookstand.errors import IncorrectParameterError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MASTER_KEY_BYTES = 20
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


class Digest:
    """Digest of one ledger's entries: ``size`` bytes between header and payload."""

    __slots__ = ("name", "size")

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size

    def of(self, header: bytes, payload: bytes) -> bytes:
        """Content of the digest slot."""
        raise TypeError("use one of the digests of this module")

    def of_all(self, headers: Iterable[bytes], payloads: Iterable[bytes]) -> Iterator[bytes]:
        return map(self.of, headers, payloads)


class CrcDigest(Digest):
    """A CRC stored as a big-endian integer in a slot that may be wider than the checksum.

    ``immutable_only``: ``checksum`` refuses bytearrays and other mutable buffers with TypeError.
    """

    __slots__ = ("_pack", "checksum", "extend", "immutable_only")

    def __init__(
        self,
        name: str,
        slot: struct.Struct,
        checksum: Callable[[bytes], int],
        extend: Callable[[int, bytes], int],
        immutable_only: bool,
    ) -> None:
        super().__init__(name, slot.size)
        self.immutable_only = immutable_only
        self._pack = slot.pack
        self.checksum = checksum
        self.extend = extend

    def of(self, header: bytes, payload: bytes) -> bytes:
        return self._pack(self.extend(self.checksum(header), payload))

    def of_all(self, headers: Iterable[bytes], payloads: Iterable[bytes]) -> Iterator[bytes]:
        # Without a Python call per entry.
        return map(self._pack, map(self.extend, map(self.checksum, headers), payloads))


class HmacDigest(Digest):
    """HMAC-SHA1 with a key derived from the ledger's password."""

    __slots__ = ("_key",)

    def __init__(self, password: bytes) -> None:
        super().__init__("hmac", 20)
        self._key = sha1(b"mac" + password).digest()

    def of(self, header: bytes, payload: bytes) -> bytes:
        import hmac

        return hmac.digest(self._key, header + payload, "sha1")


class DummyDigest(Digest):
    """No protection: changes of the payload go unnoticed."""

    __slots__ = ()

    def of(self, header: bytes, payload: bytes) -> bytes:
        return b""


def _extend_crc32(crc: int, data: bytes) -> int:
    return zlib.crc32(data, crc)


_CRC32 = CrcDigest("crc32", _U64, zlib.crc32, _extend_crc32, immutable_only=False)
_CRC32C = CrcDigest("crc32c", _U32, google_crc32c.value, google_crc32c.extend, immutable_only=True)
_DUMMY = DummyDigest("dummy", 0)

_ALIASES = {"mac": "hmac"}
DIGEST_NAMES = ("crc32", "crc32c", "hmac", "dummy")


def digest_name(name: object) -> str:
    """Canonical name of a digest; :class:`IncorrectParameterError` if it is unknown."""
    if isinstance(name, str):
        lowered = name.lower()
        lowered = _ALIASES.get(lowered, lowered)
        if lowered in DIGEST_NAMES:
            return lowered
    raise IncorrectParameterError(f"digest must be one of {', '.join(DIGEST_NAMES)}, not {name!r}")


def digest_for(name: str, password: bytes) -> Digest:
    """Digest with a name; only HMAC uses the password."""
    canonical = digest_name(name)
    if canonical == "crc32c":
        return _CRC32C
    if canonical == "crc32":
        return _CRC32
    return HmacDigest(password) if canonical == "hmac" else _DUMMY


def master_key(password: bytes) -> bytes:
    """Key by which the bookie authorizes writers and recovery of a ledger."""
    return sha1(b"ledger" + password).digest()
