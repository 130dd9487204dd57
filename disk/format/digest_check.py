"""Verification of entry digests, by column and one by one.

Each verdict depends only on the entry and on the digest known for its ledger, never on adjacent entries, so a file can
be read in arbitrary parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bookstand.disk.format import crc_algebra
from bookstand.disk.format.entry_block import BAD, GOOD, LENGTH_BYTES, NO_DIGEST, UNCHECKED, Digests
from bookstand.disk.format.tolerant_file import TolerantFile
from bookstand.storage.format.digest import CrcDigest, Digest, HmacDigest, digest_for
from bookstand.storage.format.entry_codec import EXPLICIT_LAC, HEADER, HEADER_BYTES, encode_explicit_lac

_EXPLICIT_LAC = EXPLICIT_LAC.struct

# Length field of a record and header of its entry.
HEAD_BYTES = LENGTH_BYTES + HEADER_BYTES

# Limits that no ledger reaches: nine years at one entry per microsecond, two years at 1 GiB per second.
_MOST_ENTRIES = 1 << 48
_MOST_BYTES = 1 << 56
_LARGEST_DIGEST = 20

# A larger record is loaded only if its checksum is valid or another record follows it.
LARGE = 8 << 20
# A still larger record is loaded only if its checksum is valid. An HMAC requires the whole entry in memory.
LARGEST_HELD = 64 << 20
# Up to this size a checksum is computed in one call.
_SMALL = 1 << 16
_CRC_BYTES = 4
_OCTETS = [bytes([octet]) for octet in range(256)]
# Number of entries of one size from which building the tables for that size pays off.
_MANY = 128


def column(data: bytes, dtype: str, offsets: Any) -> Any:
    """Big-endian numbers, or byte strings, that begin at any offsets of ``data``."""
    width = np.dtype(dtype).itemsize
    return np.ndarray((max(len(data) - width + 1, 0),), dtype, data, strides=(1,))[offsets]


def headers(data: bytes, starts: Any) -> tuple[Any, Any]:
    """Headers of the entries at ``starts``, as a matrix of octets and as int64 fields."""
    octets = column(data, f"V{HEADER_BYTES}", starts).view(np.uint8).reshape(-1, HEADER_BYTES)
    return octets, octets.view(">i8").astype(np.int64)


def plausible_headers(fields: Any, sizes: Any) -> Any:
    """Mask of headers that an entry of that size may have: the LAC precedes it, the ledger's length includes it."""
    ledger_ids, entry_ids, lacs, lengths = fields.T
    return (
        (ledger_ids >= 0)
        & (entry_ids >= 0)
        & (entry_ids < _MOST_ENTRIES)
        & (lacs >= -1)
        & (lacs < entry_ids)
        & (lengths >= sizes - (HEADER_BYTES + _LARGEST_DIGEST))
        & (lengths >= 0)
        & (lengths < _MOST_BYTES)
    )


class CandidateEntries(NamedTuple):
    """Entries, or byte ranges that may be entries, as columns."""

    starts: Any
    sizes: Any
    # The first bytes, as wide as a header: as octets and as int64 fields.
    octets: Any
    fields: Any

    def end(self, row: int) -> int:
        return int(self.starts[row] + self.sizes[row])

    def of(self, which: Any) -> CandidateEntries:
        return CandidateEntries(self.starts[which], self.sizes[which], self.octets[which], self.fields[which])


class DigestChecker:
    def __init__(self, file: TolerantFile, digests: Digests) -> None:
        self._file = file
        self._digests = digests
        self._tried: Sequence[Digest] = (
            digest_for("crc32c", b""),
            digest_for("crc32", b""),
            *(digest_for("hmac", password) for password in digests.passwords),
        )
        self._sums: dict[CrcDigest, crc_algebra.PartSums] = {}

    def rows(self, data: bytes, entries: CandidateEntries) -> tuple[Any, Any]:
        """Verdicts and digest sizes of the entries in ``data``."""
        count = len(entries.starts)
        verdicts = np.full(count, BAD, np.uint8)
        digest_sizes = np.full(count, NO_DIGEST, np.int64)
        for digest, rows in self._by_digest(entries.fields[:, 0]):
            for tried in self._tried if digest is None else (digest,):
                if tried.size and len(rows):
                    right = _right(tried, data, entries if len(rows) == count else entries.of(rows))
                    found = rows[right]
                    verdicts[found] = GOOD
                    digest_sizes[found] = tried.size
                    rows = rows[~right]
            if len(rows) and (digest is None or not digest.size):
                unchecked = rows[plausible_headers(entries.fields[rows], entries.sizes[rows])]
                verdicts[unchecked] = UNCHECKED
                digest_sizes[unchecked] = NO_DIGEST if digest is None else digest.size
        return verdicts, digest_sizes

    def _by_digest(self, ledger_ids: Any) -> Iterator[tuple[Digest | None, Any]]:
        everything = np.arange(len(ledger_ids))
        if (ledger_ids == ledger_ids[0]).all():
            yield self._digests.of(int(ledger_ids[0])), everything
            return
        distinct, which = np.unique(ledger_ids, return_inverse=True)
        digests = [self._digests.of(ledger_id) for ledger_id in distinct.tolist()]
        number_of = {digest: number for number, digest in enumerate(dict.fromkeys(digests))}
        if len(number_of) == 1:
            yield digests[0], everything
            return
        numbers = np.array([number_of[digest] for digest in digests])[which]
        for digest, number in number_of.items():
            yield digest, everything[numbers == number]

    def is_good(self, offset: int, size: int) -> bool:
        """Return True if an entry of this size at ``offset`` has a valid digest. Memory use is bounded for any size."""
        header = self._file.read(offset, HEADER_BYTES)
        digest = self._digests.of(HEADER.unpack(header)[0])
        return any(
            self._is_right(tried, offset, size, header) for tried in (self._tried if digest is None else (digest,))
        )

    def may_begin(self, offset: int) -> bool:
        """Return True if the header at ``offset`` is plausible for an entry of some size."""
        header = self._file.read(offset, HEADER_BYTES)
        start = np.zeros(1, np.int64)
        return len(header) == HEADER_BYTES and bool(plausible_headers(headers(header, start)[1], start).all())

    def sizes(self, offset: int, limit: int) -> Iterator[int]:
        """Yield the sizes, ending by ``limit``, for which the entry at ``offset`` has a valid checksum, regardless of
        its length field. One size in 2 ** 32 matches by chance."""
        if not self.may_begin(offset):
            return
        header = self._file.read(offset, HEADER_BYTES)
        ledger_id, _, _, length = HEADER.unpack(header)
        digest = self._digests.of(ledger_id)
        for tried in self._tried if digest is None else (digest,):
            if isinstance(tried, CrcDigest):
                payload = offset + HEADER_BYTES + tried.size
                # The ledger's length includes the length of the entry.
                end = min(limit, payload + length, offset + LARGE)
                slot = int.from_bytes(self._file.read(payload - tried.size, tried.size))
                for at, checksum in self._checksums(tried, tried.checksum(header), payload, end):
                    if checksum == slot:
                        yield at - offset

    def _checksums(self, digest: CrcDigest, checksum: int, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield each offset from ``start`` to ``end`` with the checksum up to it."""
        if start <= end:
            yield start, checksum
        at = start
        while at < end:
            for octet in self._file.read(at, min(_SMALL, end - at)):
                at += 1
                checksum = digest.extend(checksum, _OCTETS[octet])
                yield at, checksum

    def explicit_lac(self, ledger_id: int, body: bytes) -> int | None:
        """Decode an explicit LAC; return None if its digest is wrong or cannot be checked."""
        if len(body) < _EXPLICIT_LAC.size:
            return None
        lac: int = _EXPLICIT_LAC.unpack_from(body)[1]
        known = self._digests.of(ledger_id)
        possible = (*self._tried, digest_for("dummy", b"")) if known is None else (known,)
        return lac if any(encode_explicit_lac(digest, ledger_id, lac) == body for digest in possible) else None

    def _is_right(self, digest: Digest, offset: int, size: int, header: bytes) -> bool:
        start = HEADER_BYTES + digest.size
        if size < start or not digest.size:
            return False
        if size <= _SMALL or (isinstance(digest, HmacDigest) and size <= LARGEST_HELD):
            stored = self._file.read(offset, size)
            return len(stored) == size and digest.of(header, stored[start:]) == stored[HEADER_BYTES:start]
        if not isinstance(digest, CrcDigest):
            return False
        if digest not in self._sums:
            self._sums[digest] = crc_algebra.PartSums(self._file, digest)
        slot = self._file.read(offset + HEADER_BYTES, digest.size)
        sum_of_header = digest.checksum(header)
        return self._sums[digest].extend(sum_of_header, offset + start, offset + size) == int.from_bytes(slot)


def _right(digest: Digest, data: bytes, entries: CandidateEntries) -> Any:
    """Mask of the entries whose stored digest is ``digest``."""
    behind = HEADER_BYTES + digest.size
    right = entries.sizes >= behind
    if not isinstance(digest, CrcDigest):
        for row in np.flatnonzero(right).tolist():
            start = int(entries.starts[row])
            stored = data[start : start + int(entries.sizes[row])]
            right[row] = digest.of(stored[:HEADER_BYTES], stored[behind:]) == stored[HEADER_BYTES:behind]
        return right
    if not right.all():
        entries = entries.of(right)
    if len(entries.starts) >= _MANY and _all_right(digest, data, entries):
        return right
    slots = column(data, f">u{digest.size}", entries.starts + HEADER_BYTES)
    fitting = slots <= 0xFFFF_FFFF
    if not fitting.all():
        right[right] = fitting
        entries, slots = entries.of(fitting), slots[fitting]
    if len(slots):
        right[right] = slots == _sums(digest, data, entries)
    return right


def _all_right(digest: CrcDigest, data: bytes, entries: CandidateEntries) -> bool:
    """Return True if consecutive entries of one size all have valid digests, by a single checksum.

    If each digest is valid, the checksum of each record follows from its first bytes, and so does the checksum of all
    records. This is as reliable as checking each digest: one wrong digest is always detected, several are missed with a
    probability of 2 ** -32.
    """
    first, size = int(entries.starts[0]), int(entries.sizes[0])
    stride = LENGTH_BYTES + size
    if (entries.sizes != size).any() or (np.diff(entries.starts) != stride).any():
        return False
    width = HEAD_BYTES + digest.size
    octets = column(data, f"V{width}", entries.starts - LENGTH_BYTES).view(np.uint8).reshape(-1, width)
    if octets[:, HEAD_BYTES:-_CRC_BYTES].any():
        return False
    begin = first - LENGTH_BYTES
    whole = crc_algebra.slice_crc(digest, data, begin, begin + stride * len(octets))
    return crc_algebra.combine(digest, crc_algebra.of_records(digest, octets, stride), stride) == whole


def _sums(digest: CrcDigest, data: bytes, entries: CandidateEntries) -> Any:
    extend = digest.extend
    heads = crc_algebra.of_headers(digest, entries.octets).tolist()
    starts = (entries.starts + (HEADER_BYTES + digest.size)).tolist()
    ends = (entries.starts + entries.sizes).tolist()
    # Each slice is freed before the next one is allocated, so that they reuse the same memory.
    return np.array([extend(h, data[s:e]) for h, s, e in zip(heads, starts, ends, strict=True)], np.uint32)
