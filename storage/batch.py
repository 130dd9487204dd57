"""Many entries at once: the same bytes as :mod:`bookstand.storage.entry`, made and checked by the column.

A CRC is linear over GF(2): for messages of equal size, ``crc(a) ^ crc(b)`` depends on nothing but ``a ^ b``, and is the
XOR of one table entry per octet of it, chosen by how many bytes follow that octet. Within a batch only the low octets
of a few header fields vary, so numpy makes the headers' part of all checksums with a handful of look-ups an entry.
Where all payloads have one size, their own checksums are XORed to it; else one ``extend`` per payload finishes each
digest. Digests that are no CRC, and batches too small to pay for numpy, go one by one.

``tests/storage/test_batch.py`` holds both ways equal.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from itertools import accumulate, count, repeat
from operator import add, itemgetter
from struct import Struct

from bookstand.storage import entry as layout
from bookstand.storage.digest import CrcDigest
from bookstand.storage.keys import ENTRY_KEY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from bookstand.storage.digest import Digest

# Where numpy pays for its fixed cost, also if other work between the batches has driven its code out of the processor's
# cache; and where a slice falls out of that.
SMALLEST_BATCH = 128
LARGEST_SLICE = 2_000
# The tables of one payload size cost some checksums of as many bytes.
LARGEST_COMMON_SIZE = 4_096

_H = layout.HEADER_BYTES


class Encoded:
    """Entries ready to be stored: their keys, the bytes to store, and the size of the largest of these."""

    __slots__ = ("keys", "largest", "stored")

    def __init__(self, keys: Sequence[bytes], stored: Sequence[bytes], largest: int) -> None:
        self.keys = keys
        self.stored = stored
        self.largest = largest

    def __len__(self) -> int:
        return len(self.keys)


def encode_entries(
    digest: Digest,
    ledger_id: int,
    first_entry: int,
    last_add_confirmed: int,
    length_before: int,
    payloads: Sequence[bytes],
    sizes: Sequence[int] | None = None,
) -> Encoded:
    """Consecutive entries that all carry the same last-add-confirmed. ``sizes``: those of the payloads, if known."""
    if len(payloads) == 1:
        length = length_before + len(payloads[0])
        stored_entry = layout.encode(digest, ledger_id, first_entry, last_add_confirmed, length, payloads[0])
        return Encoded((ENTRY_KEY.pack(ledger_id, first_entry),), (stored_entry,), len(stored_entry))
    if sizes is None:
        sizes = list(map(len, payloads))
    largest = _H + digest.size + largest_of(sizes)
    before = ledger_id, first_entry, last_add_confirmed, length_before
    if len(payloads) < SMALLEST_BATCH or not isinstance(digest, CrcDigest):
        return Encoded(*_encode_few(digest, before, payloads, sizes), largest)
    if len(payloads) <= LARGEST_SLICE:
        return Encoded(*_encode_slice(digest, before, payloads, sizes)[:2], largest)
    all_keys: list[bytes] = []
    all_stored: list[bytes] = []
    for start in range(0, len(payloads), LARGEST_SLICE):
        end = start + LARGEST_SLICE
        keys_part, stored_part, before = _encode_slice(digest, before, payloads[start:end], sizes[start:end])
        all_keys += keys_part
        all_stored += stored_part
    return Encoded(all_keys, all_stored, largest)


# What precedes a slice: ledger, first entry, last-add-confirmed, length before it.
_Before = tuple[int, int, int, int]


def _encode_few(
    digest: Digest, before: _Before, payloads: Sequence[bytes], sizes: Sequence[int]
) -> tuple[Sequence[bytes], Sequence[bytes]]:
    ledger_id, first, last_add_confirmed, length = before
    lengths = accumulate(sizes, initial=length)
    next(lengths)
    headers = list(map(layout.HEADER.pack, repeat(ledger_id), count(first), repeat(last_add_confirmed), lengths))
    heads = map(add, headers, digest.of_all(headers, payloads))
    # A header begins with the key.
    return list(map(itemgetter(slice(ENTRY_KEY.size)), headers)), list(map(add, heads, payloads))


def _encode_slice(
    digest: CrcDigest, before: _Before, payloads: Sequence[bytes], sizes: Sequence[int]
) -> tuple[Sequence[bytes], Sequence[bytes], _Before]:
    """Keys and stored bytes, and what precedes the next slice."""
    import numpy as np

    ledger_id, first, last_add_confirmed, length_before = before
    count = len(payloads)
    start = _H + digest.size
    alike = sizes[0] <= LARGEST_COMMON_SIZE and sizes.count(sizes[0]) == count
    rows = np.empty((count, start + sizes[0] if alike else start), np.uint8)
    if alike:
        lengths = np.arange(1, count + 1) * sizes[0] + length_before
    else:
        lengths = np.array(sizes, np.int64)
        lengths[0] += length_before
        np.cumsum(lengths, out=lengths)
    header = rows[:, :_H].view(">i8")
    header[:, 0] = ledger_id
    header[:, 1] = ids = np.arange(count) + first
    header[:, 2] = last_add_confirmed
    header[:, 3] = lengths
    columns = ((16, ids), (0, lengths))
    sums = _digests(digest, header[0].tobytes(), columns, payloads, sizes)
    rows[:, _H:start].view(f">u{digest.size}")[:, 0] = sums
    stored: Sequence[bytes]
    if alike:
        # The payloads become a column beside the headers, and all is cut apart at once.
        rows[:, start:] = np.frombuffer(b"".join(payloads), np.uint8).reshape(count, sizes[0])
        stored = _cutter(f"{rows.shape[1]}s", count)(rows.data)
    else:
        stored = list(map(add, _cutter(f"{start}s", count)(rows.data), payloads))
    keys = _cutter(f"{ENTRY_KEY.size}s", count)(header[:, :2].tobytes())
    return keys, stored, (ledger_id, first + count, last_add_confirmed, int(lengths[-1]))


def largest_of(sizes: Sequence[int]) -> int:
    # Sizes are mostly equal, and counting is ten times as fast as max.
    return sizes[0] if sizes.count(sizes[0]) == len(sizes) else max(sizes)


def decode_entries(
    digest: Digest, ledger_id: int, first_entry: int, stored: Sequence[bytes]
) -> tuple[Sequence[int], Sequence[bytes]]:
    """Cumulative lengths and payloads of consecutive entries, each of them verified as ``entry.decode`` does."""
    if stored and isinstance(digest, CrcDigest):
        decode = _decode_slice if len(stored) >= SMALLEST_BATCH else _decode_few
        decoded = decode(digest, ledger_id, first_entry, stored)
        if decoded is not None:
            return decoded
        # Something is wrong with one of them: the plain way finds which, and says what.
    plain = [layout.decode(digest, ledger_id, entry_id, entry) for entry_id, entry in enumerate(stored, first_entry)]
    if plain:
        _, lengths, payloads = zip(*plain, strict=True)
        return lengths, payloads
    return (), ()


def _decode_few(
    digest: CrcDigest, ledger_id: int, first: int, stored: Sequence[bytes]
) -> tuple[Sequence[int], Sequence[bytes]] | None:
    start = _H + digest.size
    headers = list(map(itemgetter(slice(_H)), stored))
    payloads = list(map(itemgetter(slice(start, None)), stored))
    # What is too short for its digest has another one.
    if list(digest.of_all(headers, payloads)) != list(map(itemgetter(slice(_H, start)), stored)):
        return None
    ledgers, entry_ids, _, lengths = zip(*layout.HEADER.iter_unpack(b"".join(headers)), strict=True)
    if entry_ids != tuple(range(first, first + len(stored))) or ledgers.count(ledger_id) != len(stored):
        return None
    return lengths, payloads


def _decode_slice(
    digest: CrcDigest, ledger_id: int, first: int, stored: Sequence[bytes]
) -> tuple[Sequence[int], Sequence[bytes]] | None:
    import numpy as np

    count = len(stored)
    start = _H + digest.size
    sizes = list(map(len, stored))
    payloads: Sequence[bytes]
    if sizes.count(sizes[0]) == count and sizes[0] >= start:
        together = b"".join(stored)
        octets = np.frombuffer(together, np.uint8).reshape(count, sizes[0])[:, :start]
        payloads = _cutter(f"{start}x{sizes[0] - start}s", count)(together)
    elif min(sizes) >= start:
        together = b"".join(map(itemgetter(slice(start)), stored))
        octets = np.frombuffer(together, np.uint8).reshape(count, start)
        payloads = list(map(itemgetter(slice(start, None)), stored))
    else:
        return None
    header = octets[:, :_H].copy().view(">i8").astype(np.int64)
    found = octets[:, _H:].copy().view(f">u{digest.size}").ravel()
    if (header[:, 0] != ledger_id).any() or (header[:, 1] - first != np.arange(count)).any():
        return None
    columns = [(24 - 8 * field, header[:, field].copy()) for field in (1, 2, 3)]
    sums = _digests(digest, together[:_H], columns, payloads, sizes)
    if (found != sums).any():
        return None
    return header[:, 3].tolist(), payloads


def _digests(
    digest: CrcDigest,
    first_header: bytes,
    columns: Iterable[tuple[int, Any]],
    payloads: Sequence[bytes],
    sizes: Sequence[int],
) -> Any:
    """The checksums of header and payload of each entry.

    ``columns`` are the header fields that vary, as (bytes of the header that follow the field, native int64 array).
    ``sizes`` are equal where the payloads' sizes are.
    """
    import numpy as np

    checksum = digest.checksum
    size = len(payloads[0])
    if size <= LARGEST_COMMON_SIZE and sizes.count(sizes[0]) == len(sizes):
        zeros = bytes(size)
        sums = np.array(array("I", list(map(checksum, payloads))), np.uint32)
        sums ^= np.uint32(checksum(first_header + zeros) ^ checksum(zeros))
        for behind, column in columns:
            _add_column(digest, size + behind, column, sums)
        return sums
    heads = np.full(len(payloads), checksum(first_header), np.uint32)
    for behind, column in columns:
        _add_column(digest, behind, column, heads)
    return np.array(array("I", list(map(digest.extend, heads.tolist(), payloads))), np.uint32)


def _add_column(digest: CrcDigest, behind: int, column: Any, sums: Any) -> None:
    """XOR to ``sums`` what it changes that the int64 values of ``column`` are not all like the first."""
    import numpy as np

    delta = column ^ column[0]
    bits = int(np.bitwise_or.reduce(delta)) & 0xFFFF_FFFF_FFFF_FFFF
    octets = delta.astype("<i8", copy=False).view(np.uint8).reshape(len(delta), 8)
    for octet in range(8):
        if bits >> (8 * octet) & 0xFF:
            sums ^= _table(digest.checksum, behind + octet).take(octets[:, octet])


@lru_cache(maxsize=1024)
def _table(checksum: Callable[[bytes], int], behind: int) -> Any:
    """What an octet does to a checksum when ``behind`` bytes follow it: 256 deltas."""
    import numpy as np

    zeros = bytes(behind)
    blank = checksum(b"\0" + zeros)
    table = np.zeros(1, np.uint32)
    for bit in range(8):
        delta = np.uint32(checksum(bytes([1 << bit]) + zeros) ^ blank)
        table = np.concatenate([table, table ^ delta])
    return table


@lru_cache(maxsize=64)
def _cutter(piece: str, count: int) -> Callable[[Any], tuple[Any, ...]]:
    """Cuts a buffer into ``count`` pieces: by half faster than numpy's tolist."""
    return Struct(piece * count).unpack
