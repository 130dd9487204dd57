"""CRCs of many entries at once, and of any part of a file in bounded time.

All builds on what :mod:`bookstand.storage.format.entry_batch` builds on: a CRC is linear over GF(2). So the headers'
part of many checksums is made by numpy, octet by octet, from tables; the checksum of a part of a file follows from
those of two beginnings of it; and that of many records follows from their digests, if these are right.
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

# Tables are kept for so many sizes of records, and of the runs of them that are put together.
_KEPT = 512
_CHUNK = 1 << 16


def of_headers(digest: CrcDigest, headers: Any) -> Any:
    """The checksums of the rows of a matrix of octets, as wide as a header."""
    sums = np.full(len(headers), digest.checksum(headers[0].tobytes()), np.uint32)
    for octet, changed in _changed(headers):
        sums ^= _octet_table(digest, HEADER_BYTES - 1 - octet).take(changed)
    return sums


def of_records(digest: CrcDigest, heads: Any, size: int) -> Any:
    """The checksums of records of ``size`` bytes, as they must be if the digests of the entries are right.

    ``heads`` are their first bytes as a matrix of octets: something of any width, header, and digest. As the digest is
    the checksum of header and payload, that of the whole record is the digest, and what it makes of a difference that
    what lies before the payload is not the header alone.
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
    """The columns in which not all rows are like the first, as differences to that."""
    changed = octets ^ octets[0]
    for octet in np.flatnonzero(np.bitwise_or.reduce(changed)).tolist():
        yield octet, changed[:, octet]


@lru_cache(maxsize=_KEPT)
def _octet_table(digest: CrcDigest, behind: int) -> Any:
    """What an octet that is not zero does to the checksum when ``behind`` bytes follow it."""
    zeros = bytes(behind)
    blank = digest.checksum(b"\0" + zeros)
    return np.array([digest.checksum(bytes([octet]) + zeros) ^ blank for octet in range(256)], np.uint32)


@lru_cache(maxsize=_KEPT)
def _record_table(digest: CrcDigest, width: int, octet: int, size: int) -> Any:
    """What an octet of the first ``width`` bytes does to the checksum of a record, as in ``of_records``."""
    behind = width - 1 - octet
    changes = _octet_table(digest, behind)
    if digest.size <= behind < digest.size + HEADER_BYTES:
        changes = changes ^ _octet_table(digest, behind - digest.size)
    changes = _before_zeros(digest, changes, size - width)
    if behind < digest.size:
        changes ^= np.arange(256, dtype=np.uint32) << np.uint32(8 * behind)
    return changes


def combine(digest: CrcDigest, sums: Any, size: int) -> int:
    """The checksum of pieces of one size that lie behind one another, from the checksum of each."""
    # Nothing has the checksum 0, and may stand before the first.
    halves = (len(sums) - 1).bit_length()
    sums = np.concatenate((np.zeros((1 << halves) - len(sums), np.uint32), sums))
    for half in range(halves):
        sums = _before_zeros(digest, sums[::2], size << half) ^ sums[1::2]
    return int(sums[0])


def _before_zeros(digest: CrcDigest, differences: Any, zeros: int) -> Any:
    """By how much checksums differ once so many zero bytes followed, if they differed by so much before."""
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
    """The checksum of a part of what is in memory, without a copy of all of it."""
    checksum = digest.checksum(b"")
    for at in range(start, end, _CHUNK):
        checksum = digest.extend(checksum, data[at : min(at + _CHUNK, end)])
    return checksum


class PartSums:
    """Checksums of parts of a file, from those of its beginnings, one for each STEP, made as far as they are needed."""

    STEP = 1 << 14

    def __init__(self, file: TolerantFile, digest: CrcDigest) -> None:
        self._file = file
        self._digest = digest
        self._sums = array("I", [digest.checksum(b"")])

    def extend(self, checksum: int, start: int, end: int) -> int:
        """``checksum`` continued over a part of the file."""
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
    """By how much two checksums differ once so many zero bytes followed, if they differed by ``difference``."""
    power = 0
    while zeros:
        if zeros & 1:
            difference = _applied(_zeros(digest, power), difference)
        zeros >>= 1
        power += 1
    return difference


@lru_cache(maxsize=128)
def _zeros(digest: CrcDigest, power: int) -> tuple[int, ...]:
    """What becomes of each bit of a difference when ``2 ** power`` zero bytes follow."""
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
