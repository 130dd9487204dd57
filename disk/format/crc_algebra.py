"""CRCs of many entries at once, and of any part of a file in bounded time.

Like :mod:`bookstand.storage.format.entry_batch`, this relies on CRCs being linear over GF(2). Numpy therefore computes
the contribution of many headers octet by octet, from tables. The checksum of a part of a file follows from the
checksums of two prefixes, and the checksum of many records follows from their digests, if these are valid.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from bookstand.disk.format.tolerant_file import TolerantFile
from bookstand.storage.format.digest import CrcDigest
from bookstand.storage.format.entry_codec import HEADER_BYTES

# Number of record sizes, and of sizes of combined runs, whose tables are cached.
_KEPT = 512
_CHUNK = 1 << 16


def of_headers(digest: CrcDigest, headers: Any) -> Any:
    """Checksums of the rows of an octet matrix with the width of a header."""
    sums = np.full(len(headers), digest.checksum(headers[0].tobytes()), np.uint32)
    for octet, changed in _changed(headers):
        sums ^= _octet_table(digest, HEADER_BYTES - 1 - octet).take(changed)
    return sums


def of_records(digest: CrcDigest, heads: Any, size: int) -> Any:
    """Checksums that records of ``size`` bytes have if the digests of their entries are valid.

    ``heads`` holds the first bytes of each record as a matrix of octets: a prefix of any width, the header, and the
    digest. The digest is the checksum of header and payload. The checksum of the record is therefore the digest, XORed
    with the effect of having more than the header before the payload.
    """
    first = heads[0].tobytes()
    end = len(first) - digest.size
    difference = digest.checksum(first) ^ digest.checksum(first[end - HEADER_BYTES : end])
    sum_of_first = int.from_bytes(first[end:]) ^ _behind_zeros(digest, difference, size - len(first))
    sums = np.full(len(heads), sum_of_first, np.uint32)
    for octet, changed in _changed(heads):
        sums ^= _record_table(digest, len(first), octet, size).take(changed)
    return sums


def _changed(octets: Any) -> Iterator[tuple[int, Any]]:
    """Yield the columns in which rows differ from the first row, XORed with it."""
    changed = octets ^ octets[0]
    for octet in np.flatnonzero(np.bitwise_or.reduce(changed)).tolist():
        yield octet, changed[:, octet]


@lru_cache(maxsize=_KEPT)
def _octet_table(digest: CrcDigest, behind: int) -> Any:
    """Effect of each octet value on a checksum, relative to zero, if ``behind`` bytes follow it."""
    zeros = bytes(behind)
    blank = digest.checksum(b"\0" + zeros)
    return np.array([digest.checksum(bytes([octet]) + zeros) ^ blank for octet in range(256)], np.uint32)


@lru_cache(maxsize=_KEPT)
def _record_table(digest: CrcDigest, width: int, octet: int, size: int) -> Any:
    """Effect of an octet of the first ``width`` bytes on the checksum of a record, as in ``of_records``."""
    behind = width - 1 - octet
    changes = _octet_table(digest, behind)
    if digest.size <= behind < digest.size + HEADER_BYTES:
        changes = changes ^ _octet_table(digest, behind - digest.size)
    changes = _before_zeros(digest, changes, size - width)
    if behind < digest.size:
        changes ^= np.arange(256, dtype=np.uint32) << np.uint32(8 * behind)
    return changes


def combine(digest: CrcDigest, sums: Any, size: int) -> int:
    """Checksum of consecutive pieces of equal size, from the checksum of each."""
    # The checksum of no bytes is 0, so leading zeros do not change the result.
    halves = (len(sums) - 1).bit_length()
    sums = np.concatenate((np.zeros((1 << halves) - len(sums), np.uint32), sums))
    for half in range(halves):
        sums = _before_zeros(digest, sums[::2], size << half) ^ sums[1::2]
    return int(sums[0])


def _before_zeros(digest: CrcDigest, differences: Any, zeros: int) -> Any:
    """Differences between checksums after ``zeros`` zero bytes, given the differences before them."""
    octets = differences.astype("<u4").view(np.uint8).reshape(-1, 4)
    lowest, low, high, highest = _zeros_tables(digest, zeros)
    changed = lowest.take(octets[:, 0])
    changed ^= low.take(octets[:, 1])
    changed ^= high.take(octets[:, 2])
    changed ^= highest.take(octets[:, 3])
    return changed


@lru_cache(maxsize=_KEPT)
def _zeros_tables(digest: CrcDigest, zeros: int) -> list[Any]:
    tables = []
    for octet in range(4):
        table = np.zeros(1, np.uint32)
        for bit in range(8 * octet, 8 * octet + 8):
            table = np.concatenate((table, table ^ np.uint32(_behind_zeros(digest, 1 << bit, zeros))))
        tables.append(table)
    return tables


def slice_crc(digest: CrcDigest, data: bytes, start: int, end: int) -> int:
    """Checksum of a part of ``data``, computed without copying all of it."""
    checksum = digest.checksum(b"")
    for at in range(start, end, _CHUNK):
        checksum = digest.extend(checksum, data[at : min(at + _CHUNK, end)])
    return checksum


class PartSums:
    """Checksums of parts of a file, from checksums of its prefixes at every STEP bytes, computed on demand."""

    STEP = 1 << 14

    def __init__(self, file: TolerantFile, digest: CrcDigest) -> None:
        self._file = file
        self._digest = digest
        self._sums = array("I", [digest.checksum(b"")])

    def extend(self, checksum: int, start: int, end: int) -> int:
        """Continue ``checksum`` over a part of the file."""
        return self._upto(end) ^ _behind_zeros(self._digest, checksum ^ self._upto(start), end - start)

    def _upto(self, offset: int) -> int:
        step, extend = self.STEP, self._digest.extend
        while len(self._sums) * step <= offset:
            known = (len(self._sums) - 1) * step
            data = self._file.read(known, 64 * step)
            for at in range(0, len(data) - step + 1, step):
                self._sums.append(extend(self._sums[-1], data[at : at + step]))
            if len(data) < step:
                break
        known = min(offset // step, len(self._sums) - 1)
        return extend(self._sums[known], self._file.read(known * step, offset - known * step))


def _behind_zeros(digest: CrcDigest, difference: int, zeros: int) -> int:
    """Difference between two checksums after ``zeros`` zero bytes, given the difference before them."""
    power = 0
    while zeros:
        if zeros & 1:
            difference = _applied(_zeros(digest, power), difference)
        zeros >>= 1
        power += 1
    return difference


@lru_cache(maxsize=128)
def _zeros(digest: CrcDigest, power: int) -> tuple[int, ...]:
    """Image of each bit of a difference after ``2 ** power`` zero bytes."""
    if power == 0:
        blank = digest.extend(0, b"\0")
        return tuple(digest.extend(1 << bit, b"\0") ^ blank for bit in range(32))
    half = _zeros(digest, power - 1)
    return tuple(_applied(half, image) for image in half)


def _applied(images: tuple[int, ...], difference: int) -> int:
    result = 0
    while difference:
        low = difference & -difference
        result ^= images[low.bit_length() - 1]
        difference ^= low
    return result
