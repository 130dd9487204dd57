"""Compression codecs of payloads and records, with Pulsar's names and numbers.

The stored metadata has the uncompressed size. It is charged to the entry's expansion limit before decompression, and
bounds the output.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from types import ModuleType

from bookstand.errors import IncorrectParameterError, MalformedError, MissingExtraError
from bookstand.proto.expansion import DEFAULT, Expansion

NUMBERS = {"NONE": 0, "LZ4": 1, "ZLIB": 2, "ZSTD": 3, "SNAPPY": 4}
NAMES = {number: name for name, number in NUMBERS.items()}


def pack(codec: str, data: bytes) -> bytes:
    if codec not in _PACK:
        raise IncorrectParameterError(f"codec must be one of {', '.join(NUMBERS)}, not {codec!r}")
    return _PACK[codec](data)


def unpack(codec: str, data: bytes, size: int, expansion: Expansion | None = None) -> bytes:
    """Decompress ``data`` to exactly ``size`` bytes. With codec ``NONE`` the size is ignored. ``expansion`` is the
    entry's; if None, the default limits apply to ``data`` alone."""
    if codec == "NONE":
        return data
    if size < 0:
        raise MalformedError(f"the unpacked size of {codec} data must not be negative, it is {size}")
    (expansion or DEFAULT.of(len(data))).take(size, f"{codec} data")
    if not size and not data:
        return b""
    unpacked = _UNPACK[codec](data, size)
    if len(unpacked) != size:
        raise MalformedError(f"{codec} data unpacks to {len(unpacked)} bytes, it should be {size}")
    return unpacked


def _cramjam() -> ModuleType:
    try:
        import cramjam
    except ImportError:
        raise MissingExtraError("LZ4, ZSTD and SNAPPY need the extra bookstand[codecs] (cramjam)") from None
    return cramjam


def _into(codec: str, unpack_into: Callable[[bytes, bytearray], int], data: bytes, size: int) -> bytes:
    out = bytearray(size)
    try:
        written = unpack_into(data, out)
    except _cramjam().DecompressionError as error:
        raise MalformedError(f"{codec} data cannot be unpacked to {size} bytes: {error}") from None
    del out[written:]
    return bytes(out)


def _unpack_lz4(data: bytes, size: int) -> bytes:
    unpack_into = _cramjam().lz4.decompress_block_into
    # Without output_len, cramjam may interpret the first bytes as the size.
    return _into("LZ4", lambda packed, out: int(unpack_into(packed, out, output_len=size)), data, size)


def _unpack_zstd(data: bytes, size: int) -> bytes:
    return _into("ZSTD", _cramjam().zstd.decompress_into, data, size)


def _unpack_snappy(data: bytes, size: int) -> bytes:
    return _into("SNAPPY", _cramjam().snappy.decompress_raw_into, data, size)


def _unpack_zlib(data: bytes, size: int) -> bytes:
    # Pulsar's streams end without a final block and a checksum, which only a streaming decompressor accepts. The end
    # of the data is therefore determined by the size alone.
    if not size:
        return b""
    try:
        return zlib.decompressobj().decompress(data, size)
    except zlib.error as error:
        raise MalformedError(f"ZLIB data cannot be unpacked: {error}") from None


_PACK: dict[str, Callable[[bytes], bytes]] = {
    "NONE": bytes,
    "LZ4": lambda data: bytes(_cramjam().lz4.compress_block(data, store_size=False)),
    "ZLIB": zlib.compress,
    "ZSTD": lambda data: bytes(_cramjam().zstd.compress(data)),
    "SNAPPY": lambda data: bytes(_cramjam().snappy.compress_raw(data)),
}
_UNPACK: dict[str, Callable[[bytes, int], bytes]] = {
    "LZ4": _unpack_lz4,
    "ZLIB": _unpack_zlib,
    "ZSTD": _unpack_zstd,
    "SNAPPY": _unpack_snappy,
}
