"""Many entries at once: the same bytes as :mod:`bookstand.storage.entry`, made and checked by the column.

A CRC is linear over GF(2): for headers of equal size, ``crc(h) == crc(h0) ^ T(h ^ h0)``, and ``T`` is the XOR of one
table per byte position. Within a batch only the low bytes of a few header fields vary, so numpy makes all header
checksums with a handful of look-ups an entry; one ``extend`` call per payload then finishes each digest. The tables
come from the checksum function itself. Digests that are no CRC, and batches too small to pay for numpy, go one by one.

``tests/storage/test_batch.py`` holds both ways equal.
"""

from __future__ import annotations

from itertools import accumulate, repeat
from operator import add, itemgetter

from bookstand.errors import DigestMismatchError
from bookstand.storage import entry as layout
from bookstand.storage.digest import CrcDigest
from bookstand.storage.keys import ENTRY_KEY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from bookstand.storage.digest import Digest

# Where numpy starts to pay for its fixed cost, and where a slice falls out of the processor's cache.
SMALLEST_BATCH = 200
LARGEST_SLICE = 2_000

_H = layout.HEADER_BYTES

# (checksum function, byte position) -> 256 deltas; filled on first use, small: at most 32 positions of two CRCs.
_deltas: dict[tuple[Any, int], Any] = {}


def encode_entries(
    digest: Digest,
    ledger_id: int,
    first_entry: int,
    last_add_confirmed: int,
    length_before: int,
    payloads: Sequence[bytes],
) -> tuple[Sequence[bytes], Sequence[bytes]]:
    """Keys and stored bytes of consecutive entries that all carry the same last-add-confirmed."""
    if len(payloads) < SMALLEST_BATCH or not isinstance(digest, CrcDigest):
        lengths = accumulate(map(len, payloads), initial=length_before)
        next(lengths)
        keys = [ENTRY_KEY.pack(ledger_id, entry_id) for entry_id in range(first_entry, first_entry + len(payloads))]
        stored = [
            layout.encode(digest, ledger_id, entry_id, last_add_confirmed, length, payload)
            for entry_id, (length, payload) in enumerate(zip(lengths, payloads, strict=True), first_entry)
        ]
        return keys, stored
    all_keys: list[bytes] = []
    all_stored: list[bytes] = []
    for start in range(0, len(payloads), LARGEST_SLICE):
        part = payloads[start : start + LARGEST_SLICE]
        keys, stored, length_before = _encode_slice(
            digest, ledger_id, first_entry + start, last_add_confirmed, length_before, part
        )
        all_keys += keys
        all_stored += stored
    return all_keys, all_stored


def _encode_slice(
    digest: CrcDigest, ledger_id: int, first: int, lac: int, length_before: int, payloads: Sequence[bytes]
) -> tuple[list[bytes], list[bytes], int]:
    import numpy as np

    count = len(payloads)
    rows = np.empty(count, [("header", ">i8", 4), ("digest", _digest_type(digest))])
    header = rows["header"]
    header[:, 0] = ledger_id
    header[:, 1] = np.arange(first, first + count)
    header[:, 2] = lac
    header[:, 3] = length_before + np.cumsum(list(map(len, payloads)))
    rows["digest"] = list(map(digest.extend, _header_checksums(digest, header), payloads))
    prefixes = rows.view(f"V{rows.itemsize}").tolist()
    keys = np.ascontiguousarray(header[:, :2]).view("V16").ravel().tolist()
    return keys, list(map(add, prefixes, payloads)), int(header[-1, 3])


def decode_entries(
    digest: Digest, ledger_id: int, first_entry: int, stored: Sequence[bytes]
) -> tuple[Sequence[int], Sequence[bytes]]:
    """Cumulative lengths and payloads of consecutive entries, each of them verified as ``entry.decode`` does."""
    start = _H + digest.size
    if isinstance(digest, CrcDigest) and len(stored) >= SMALLEST_BATCH:
        import numpy as np

        if min(map(len, stored)) >= start:
            prefixes = np.frombuffer(
                b"".join(map(itemgetter(slice(start)), stored)),
                [("header", ">i8", 4), ("digest", _digest_type(digest))],
            )
            header = prefixes["header"]
            payloads = list(map(itemgetter(slice(start, None)), stored))
            expected = list(map(digest.extend, _header_checksums(digest, header), payloads))
            in_order = header[:, 1] == np.arange(first_entry, first_entry + len(stored))
            if (header[:, 0] == ledger_id).all() and in_order.all() and prefixes["digest"].tolist() == expected:
                return header[:, 3].tolist(), payloads
        # Something is wrong with one of them: the plain way finds which, and says what.
    decoded = [layout.decode(digest, ledger_id, entry_id, entry) for entry_id, entry in enumerate(stored, first_entry)]
    if decoded:
        _, lengths, plain_payloads = zip(*decoded, strict=True)
        return lengths, plain_payloads
    return (), ()


def first_damaged(digest: Digest, ledger_id: int, entries: Iterable[tuple[int, bytes]]) -> DigestMismatchError | None:
    """The first of (entry id, stored bytes) that does not verify."""
    for entry_id, stored in entries:
        try:
            layout.decode(digest, ledger_id, entry_id, stored)
        except DigestMismatchError as damage:
            return damage
    return None


def _digest_type(digest: CrcDigest) -> str:
    return f">u{digest.size}"


def _header_checksums(digest: CrcDigest, header: Any) -> Iterable[int]:
    """Checksums of the rows of ``header``, an array of four big-endian int64 a row."""
    import numpy as np

    count = len(header)
    base = digest.checksum(header[0].tobytes())
    sums = np.full(count, base, np.uint32)
    varies = False
    for field in range(4):
        column = header[:, field].astype(np.int64)
        delta = column ^ column[0]
        bits = int(np.bitwise_or.reduce(delta)) & 0xFFFF_FFFF_FFFF_FFFF
        if not bits:
            continue
        varies = True
        octets = delta.view(np.uint8).reshape(count, 8) if delta.dtype.isnative else None
        assert octets is not None
        for octet in range(8):
            if (bits >> (8 * octet)) & 0xFF:
                position = field * 8 + 7 - octet
                sums ^= _table(digest, position).take(octets[:, _NATIVE[octet]])
    return sums.tolist() if varies else repeat(base, count)


def _native_octets() -> tuple[int, ...]:
    import sys

    return tuple(range(8)) if sys.byteorder == "little" else tuple(range(7, -1, -1))


# Index of the n-th least significant octet of an int64 in memory.
_NATIVE = _native_octets()


def _table(digest: CrcDigest, position: int) -> Any:
    import numpy as np

    table = _deltas.get((digest.checksum, position))
    if table is None:
        blank = bytearray(_H)
        zero = digest.checksum(bytes(blank))
        values = []
        for octet in range(256):
            blank[position] = octet
            values.append(digest.checksum(bytes(blank)) ^ zero)
        table = _deltas[digest.checksum, position] = np.array(values, np.uint32)
    return table
