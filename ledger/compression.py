"""The codecs under which payloads and records are stored, by Pulsar's names and numbers.

A stored payload says how large it is unpacked. That size is the output's bound, so that a small input cannot unpack
to much, and the caller bounds the size itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from types import ModuleType

from bookstand.errors import IncorrectParameterError, MalformedError, MissingExtraError

NUMBERS = {"NONE": 0, "LZ4": 1, "ZLIB": 2, "ZSTD": 3, "SNAPPY": 4}
NAMES = {number: name for name, number in NUMBERS.items()}

MAX_UNPACKED = 128 << 20


def pack(codec: str, data: bytes) -> bytes:
    if codec not in _PACK:
        raise IncorrectParameterError(f"there is no codec {codec!r}, but {', '.join(NUMBERS)}")
    return _PACK[codec](data)


def unpack(codec: str, data: bytes, size: int, max_size: int = MAX_UNPACKED) -> bytes:
    """``data`` unpacked, which must give ``size`` bytes. Under ``NONE`` the size is not looked at."""
    if codec == "NONE":
        return data
    if not 0 <= size <= max_size:
        raise MalformedError(f"{codec} data says that it unpacks to {size} bytes, {max_size} are allowed")
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
    return bytes(out[:written])


def _unpack_lz4(data: bytes, size: int) -> bytes:
    unpack_into = _cramjam().lz4.decompress_block_into
    # Without the size cramjam may take the first bytes for it.
    return _into("LZ4", lambda packed, out: int(unpack_into(packed, out, output_len=size)), data, size)


def _unpack_zstd(data: bytes, size: int) -> bytes:
    return _into("ZSTD", _cramjam().zstd.decompress_into, data, size)


def _unpack_snappy(data: bytes, size: int) -> bytes:
    return _into("SNAPPY", _cramjam().snappy.decompress_raw_into, data, size)


def _unpack_zlib(data: bytes, size: int) -> bytes:
    # Pulsar's streams have neither a last block nor a checksum, which only a streaming decompressor takes. For want
    # of an end nothing tells what follows from the stream; the size does.
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
