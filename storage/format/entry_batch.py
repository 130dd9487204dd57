"""Many entries at once: the same bytes as :mod:`bookstand.storage.format.entry_codec`, made and checked by the column.

A CRC is linear over GF(2): for messages of equal size, ``crc(a) ^ crc(b)`` depends on nothing but ``a ^ b``, and is the
XOR of one table entry per piece of it, chosen by how many bits follow that piece. Within a batch only the low bits of a
few header fields vary, so numpy makes the headers' part of all checksums with a handful of look-ups an entry.
Where all payloads have one size, their own checksums are XORed to it, and may be made before ids are known; else one
``extend`` per payload finishes each digest. Digests that are no CRC, and batches too small to pay for numpy, go one by
one.

``tests/storage/test_batch.py`` holds both ways equal.
"""

from __future__ import annotations

from array import array
from functools import lru_cache, partial
from itertools import accumulate, chain, count, repeat, starmap, zip_longest
from operator import add, itemgetter
from struct import Struct

from bookstand.storage.format import entry_codec as layout
from bookstand.storage.format.digest import CrcDigest
from bookstand.storage.format.schema import ENTRY_KEY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, TypeVar

    from bookstand.storage.format.digest import Digest

    T = TypeVar("T")

# Where numpy pays for its fixed cost, also if other work between the batches has driven its code out of the processor's
# cache; and where a slice falls out of that.
SMALLEST_BATCH = 128
LARGEST_SLICE = 2_000
# The tables of one payload size cost some checksums of as many bytes.
LARGEST_COMMON_SIZE = 4_096
# Bits of a header field that are looked up at a time: the ids of a slice mostly share all others, and a table of them
# stays in the processor's cache.
_PIECE = 12
_MASK = (1 << _PIECE) - 1

_K, _H = ENTRY_KEY.size, layout.HEADER_BYTES


class PackedPayloads:
    """Payloads of one size, each behind room for its key, header and digest, and their own checksums."""

    __slots__ = ("rows", "sums")

    def __init__(self, digest: CrcDigest, payloads: Sequence[bytes], size: int) -> None:
        import numpy as np

        count, head = len(payloads), _K + _H + digest.size
        self.rows = np.empty((count, head + size), np.uint8)
        # Called with nothing but the payloads: they are copied once less.
        partial(_layout(f"{head}x{size}s", count).pack_into, self.rows.data, 0)(*payloads)
        self.sums = _checksums(digest, payloads)


class PayloadSizes:
    """Of the payloads of a batch, which are mostly ``alike``. ``columns``: what :meth:`pack` made of each slice."""

    __slots__ = ("alike", "columns", "each", "largest", "total")

    def __init__(self, each: Sequence[int]) -> None:
        first, count = each[0] if each else 0, len(each)
        self.each = each
        self.columns: Sequence[PackedPayloads] = ()
        # Counting is ten times as fast as max and sum.
        self.alike = each.count(first) == count
        self.largest = first if self.alike else max(each)
        self.total = first * count if self.alike else sum(each)

    def pack(self, digest: Digest, payloads: Sequence[bytes]) -> bool:
        """Do what can be done before ids are known, and say whether that was anything. Then all payloads are bytes:
        others are refused, with TypeError or struct.error."""
        if len(payloads) < SMALLEST_BATCH or not self.alike or self.largest > LARGEST_COMMON_SIZE:
            return False
        if not isinstance(digest, CrcDigest) or not digest.immutable_only:
            return False
        # Packing refuses all but bytes and bytearrays, and the checksum bytearrays: nobody needs to ask each for its
        # type. A subclass of bytes passes, and is taken at its word for its length.
        self.columns = [PackedPayloads(digest, part, self.largest) for part in _slices(payloads)]
        return True


class EncodedEntries:
    """Entries ready to be stored: how many, the key of the first, and the size of the largest as stored.

    ``pairs()`` gives the key and the bytes of one after the other, anew each time. What is made only there is let go
    before the next, so that few of them are in memory at a time.
    """

    __slots__ = ("count", "first_key", "largest", "pairs")

    def __init__(
        self, pairs: Callable[[], Iterator[tuple[bytes, bytes]]], first_key: bytes, count: int, largest: int
    ) -> None:
        self.pairs = pairs
        self.first_key = first_key
        self.count = count
        self.largest = largest


def encode_entries(
    digest: Digest,
    ledger_id: int,
    first_entry: int,
    last_add_confirmed: int,
    length_before: int,
    payloads: Sequence[bytes],
    sizes: PayloadSizes | None = None,
) -> EncodedEntries:
    """Consecutive entries that all carry the same last-add-confirmed. ``sizes``: those of the payloads, if known."""
    count = len(payloads)
    if sizes is None:
        sizes = PayloadSizes(list(map(len, payloads)))
    before = ledger_id, first_entry, last_add_confirmed, length_before
    if count < SMALLEST_BATCH or not isinstance(digest, CrcDigest):
        pairs = _encode_few(digest, before, payloads)
    elif count <= LARGEST_SLICE:
        pairs, _ = _encode_slice(digest, before, payloads, sizes, *sizes.columns)
    else:
        pairs = _encode_slices(digest, before, payloads, sizes)
    first_key = ENTRY_KEY.pack(ledger_id, first_entry)
    return EncodedEntries(pairs, first_key, count, _H + digest.size + sizes.largest)


# What precedes a slice: ledger, first entry, last-add-confirmed, length before it.
_Before = tuple[int, int, int, int]


def _encode_few(
    digest: Digest, before: _Before, payloads: Sequence[bytes]
) -> Callable[[], Iterator[tuple[bytes, bytes]]]:
    ledger_id, first, last_add_confirmed, length = before
    lengths = accumulate(map(len, payloads), initial=length)
    next(lengths)
    headers = list(map(layout.HEADER.pack, repeat(ledger_id), count(first), repeat(last_add_confirmed), lengths))
    heads = map(add, headers, digest.of_all(headers, payloads))
    # A header begins with the key.
    entry_keys = map(itemgetter(slice(ENTRY_KEY.size)), headers)
    pairs = list(zip(entry_keys, map(add, heads, payloads), strict=True))
    return pairs.__iter__


def _encode_slices(
    digest: CrcDigest, before: _Before, payloads: Sequence[bytes], sizes: PayloadSizes
) -> Callable[[], Iterator[tuple[bytes, bytes]]]:
    slices = []
    for part, each, column in zip_longest(_slices(payloads), _slices(sizes.each), sizes.columns):
        pairs, before = _encode_slice(digest, before, part, PayloadSizes(each), column)
        slices.append(pairs)
    return lambda: chain.from_iterable(pairs() for pairs in slices)


def _slices(batch: Sequence[T]) -> list[Sequence[T]]:
    if len(batch) <= LARGEST_SLICE:
        return [batch]
    return [batch[start : start + LARGEST_SLICE] for start in range(0, len(batch), LARGEST_SLICE)]


def _encode_slice(
    digest: CrcDigest,
    before: _Before,
    payloads: Sequence[bytes],
    sizes: PayloadSizes,
    column: PackedPayloads | None = None,
) -> tuple[Callable[[], Iterator[tuple[bytes, bytes]]], _Before]:
    """Keys and stored bytes, and what precedes the next slice."""
    import numpy as np

    ledger_id, first, last_add_confirmed, length_before = before
    count, size = len(payloads), sizes.largest
    head = _K + _H + digest.size
    if column is None and sizes.alike and size <= LARGEST_COMMON_SIZE:
        column = PackedPayloads(digest, payloads, size)
    if column is not None:
        rows = column.rows
        lengths = np.arange(1, count + 1) * size + length_before
    else:
        rows = np.empty((count, head), np.uint8)
        lengths = np.array(sizes.each, np.int64)
        lengths[0] += length_before
        np.cumsum(lengths, out=lengths)
    ids = np.arange(count) + first
    first_header = layout.HEADER.pack(ledger_id, first, last_add_confirmed, int(lengths[0]))
    headers = rows[:, : _K + _H]
    # Copied as a whole, and then what differs: numpy is thrice as slow with a number for a column.
    headers.view(f"V{_K + _H}")[:] = np.frombuffer(first_header[:_K] + first_header, f"V{_K + _H}")
    fields = headers.view(">i8")
    fields[:, 1] = fields[:, 3] = ids
    fields[:, 5] = lengths
    sums = _digests(digest, first_header, ((0, lengths),), payloads, column.sums if column else None)
    rows[:, _K + _H : head].view(f">u{digest.size}")[:, 0] = sums
    pairs: Callable[[], Iterator[tuple[bytes, bytes]]]
    if column is not None:
        pairs = partial(Struct(f"{_K}s{rows.shape[1] - _K}s").iter_unpack, rows.data)
    else:
        cut = _layout(f"{_K}s{head - _K}s", count).unpack(rows.data)
        pairs = partial(_joined, cut[::2], cut[1::2], payloads)
    return pairs, (ledger_id, first + count, last_add_confirmed, int(lengths[-1]))


def _joined(keys: Sequence[bytes], heads: Sequence[bytes], payloads: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(keys, map(add, heads, payloads), strict=True)


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
        payloads = _layout(f"{start}x{sizes[0] - start}s", count).unpack(together)
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
    columns = [(8, header[:, 2].copy()), (0, header[:, 3].copy())]
    alike = sizes.count(sizes[0]) == count and sizes[0] - start <= LARGEST_COMMON_SIZE
    sums = _digests(digest, together[:_H], columns, payloads, _checksums(digest, payloads) if alike else None)
    if (found != sums).any():
        return None
    return header[:, 3].tolist(), payloads


def _digests(
    digest: CrcDigest,
    first_header: bytes,
    columns: Iterable[tuple[int, Any]],
    payloads: Sequence[bytes],
    own: Any | None,
) -> Any:
    """The checksums of header and payload of each entry.

    ``columns`` are the header fields that vary, as (bytes of the header that follow the field, native int64 array). The
    entry id, which counts up, is none of them. ``own``: the payloads' own checksums, where they all have one size.
    """
    import numpy as np

    checksum = digest.checksum
    behind = 0 if own is None else len(payloads[0])
    zeros = bytes(behind)
    of_first = np.uint32(checksum(first_header + zeros) ^ checksum(zeros))
    sums = np.full(len(payloads), of_first) if own is None else own ^ of_first
    _, first_entry, _, _ = layout.HEADER.unpack(first_header)
    _add_count(digest, behind + 16, first_entry, sums)
    for in_header, column in columns:
        _add_column(digest, behind + in_header, column, sums)
    if own is not None:
        return sums
    return np.array(array("I", starmap(digest.extend, zip(sums.tolist(), payloads, strict=True))), np.uint32)


def _checksums(digest: CrcDigest, payloads: Sequence[bytes]) -> Any:
    """Each payload's own."""
    import numpy as np

    # By a fifth faster than `map`, which makes a tuple for each call: `zip` uses its own again.
    return np.asarray(array("I", starmap(digest.checksum, zip(payloads))))  # noqa: RUF058


def _add_count(digest: CrcDigest, behind: int, first: int, sums: Any) -> None:
    """XOR to ``sums`` what it changes that a field counts up from ``first``."""
    table = _table(digest.checksum, behind, 0)
    done = 0
    while done < len(sums):
        # As long as only the lowest piece varies, what the table says of it is wanted in its own order.
        low = first + done & _MASK
        part = sums[done : done + len(table) - low]
        part ^= table[low : low + len(part)] ^ _effect(digest.checksum, behind, first ^ first + done - low)
        done += len(part)


def _add_column(digest: CrcDigest, behind: int, column: Any, sums: Any) -> None:
    """XOR to ``sums`` what it changes that the int64 values of ``column`` are not all like the first."""
    import numpy as np

    delta = column ^ column[0]
    varying = int(np.bitwise_or.reduce(delta)) & 0xFFFF_FFFF_FFFF_FFFF
    place = 0
    while varying:
        bits = varying & _MASK
        if bits:
            sums ^= _table(digest.checksum, behind, place).take(delta & bits)
        place += _PIECE
        varying >>= _PIECE
        delta >>= _PIECE


@lru_cache(maxsize=256)
def _table(checksum: Callable[[bytes], int], behind: int, place: int) -> Any:
    """The effect of each value of the piece from bit ``place`` on."""
    import numpy as np

    table = np.zeros(1 << min(_PIECE, 64 - place), np.uint32)
    half = 1
    while half < len(table):
        table[half : 2 * half] = table[:half] ^ _effect(checksum, behind, half << place)
        half *= 2
    return table


def _effect(checksum: Callable[[bytes], int], behind: int, change: int) -> Any:
    """What it does to a checksum when the bits of ``change`` flip in a field that ``behind`` bytes follow."""
    import numpy as np

    zeros = bytes(behind)
    return np.uint32(checksum(change.to_bytes(8) + zeros) ^ checksum(bytes(8) + zeros))


@lru_cache(maxsize=64)
def _layout(piece: str, count: int) -> Struct:
    """The layout of ``count`` pieces: packs and cuts buffers by half faster than numpy's tolist."""
    return Struct(piece * count)
