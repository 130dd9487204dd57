"""Vectorized codec of many entries, equivalent to :mod:`bookstand.storage.format.entry_codec`.

A CRC is linear over GF(2): for messages of equal size, ``crc(a) ^ crc(b)`` depends only on ``a ^ b``, and is the XOR of
one table entry per piece of it, chosen by the number of bits after that piece. Within a batch only the low bits of a
few header fields vary, so numpy computes the headers' contribution to all checksums with a few look-ups per entry. If
all payloads have one size, their own checksums are XORed to it, and can be computed before the ids are known. Otherwise
one ``extend`` per payload completes each digest. Digests other than CRCs, and batches too small to amortize numpy, are
encoded entry by entry.

``tests/storage/test_batch.py`` verifies that both codecs are equivalent.
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

# Batch size from which numpy pays off, even if its code has been evicted from the processor's cache since the previous
# batch; and the maximum slice size that fits into that cache.
SMALLEST_BATCH = 128
LARGEST_SLICE = 2_000
# The tables for one payload size cost as much as several checksums of that size.
LARGEST_COMMON_SIZE = 4_096
# Bits per look-up: the ids of a slice mostly share all higher bits, and the table fits into the processor's cache.
_PIECE = 12
_MASK = (1 << _PIECE) - 1

_K, _H = ENTRY_KEY.size, layout.HEADER_BYTES


class PackedPayloads:
    """Payloads of one size, each preceded by space for its key, header and digest, with their checksums."""

    __slots__ = ("rows", "sums")

    def __init__(self, digest: CrcDigest, payloads: Sequence[bytes], size: int) -> None:
        import numpy as np

        count, head = len(payloads), _K + _H + digest.size
        self.rows = np.empty((count, head + size), np.uint8)
        # Called with the payloads as the only arguments, which saves a copy.
        partial(_layout(f"{head}x{size}s", count).pack_into, self.rows.data, 0)(*payloads)
        self.sums = _checksums(digest, payloads)


class PayloadSizes:
    """Sizes of a batch's payloads, mostly ``uniform``. ``columns`` are the packed slices, if :meth:`pack` succeeded."""

    __slots__ = ("columns", "each", "largest", "total", "uniform")

    def __init__(self, each: Sequence[int]) -> None:
        first, count = each[0] if each else 0, len(each)
        self.each = each
        self.columns: Sequence[PackedPayloads] = ()
        # Counting is ten times as fast as max and sum.
        self.uniform = each.count(first) == count
        self.largest = first if self.uniform else max(each)
        self.total = first * count if self.uniform else sum(each)

    def pack(self, digest: Digest, payloads: Sequence[bytes]) -> bool:
        """Pack the payloads before their ids are known; return False if that is not possible. All payloads must then be
        bytes: other types raise TypeError or struct.error."""
        if len(payloads) < SMALLEST_BATCH or not self.uniform or self.largest > LARGEST_COMMON_SIZE:
            return False
        if not isinstance(digest, CrcDigest) or not digest.immutable_only:
            return False
        # No payload needs a type check: packing accepts only bytes and bytearrays, and the checksum refuses bytearrays.
        # A subclass of bytes passes with the length that it reports.
        self.columns = [PackedPayloads(digest, part, self.largest) for part in _slices(payloads)]
        return True


class EncodedEntries:
    """Entries ready to be stored: their number, the key of the first, and the size of the largest as stored.

    ``pairs()`` iterates over keys and stored bytes, and can be called repeatedly. Values are created on the fly, so few
    are in memory at a time.
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
    """Encode consecutive entries with the same last-add-confirmed. ``sizes`` are the payload sizes, if known."""
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


# State before a slice: ledger, first entry, last-add-confirmed, cumulative length.
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
    """Encode a slice; return its keys and stored bytes, and the state before the next slice."""
    import numpy as np

    ledger_id, first, last_add_confirmed, length_before = before
    count, size = len(payloads), sizes.largest
    head = _K + _H + digest.size
    if column is None and sizes.uniform and size <= LARGEST_COMMON_SIZE:
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
    # Copy the first header to all rows, then set the varying fields: numpy is three times as slow with scalar columns.
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
    """Verify consecutive entries as ``entry_codec.decode`` does; return their cumulative lengths and payloads."""
    if stored and isinstance(digest, CrcDigest):
        decode = _decode_slice if len(stored) >= SMALLEST_BATCH else _decode_few
        decoded = decode(digest, ledger_id, first_entry, stored)
        if decoded is not None:
            return decoded
        # An entry is invalid: decoding one by one finds it and raises the exact error.
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
    # An entry too short for its digest never compares equal.
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
    uniform = sizes.count(sizes[0]) == count and sizes[0] - start <= LARGEST_COMMON_SIZE
    sums = _digests(digest, together[:_H], columns, payloads, _checksums(digest, payloads) if uniform else None)
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
    """Checksums over header and payload of each entry.

    ``columns`` are the varying header fields, as (bytes of the header after the field, native int64 array), except the
    entry id, which counts up. ``own`` are the payloads' checksums, if all payloads have one size.
    """
    import numpy as np

    checksum = digest.checksum
    trailing = 0 if own is None else len(payloads[0])
    zeros = bytes(trailing)
    of_first = np.uint32(checksum(first_header + zeros) ^ checksum(zeros))
    sums = np.full(len(payloads), of_first) if own is None else own ^ of_first
    _, first_entry, _, _ = layout.HEADER.unpack(first_header)
    _add_count(digest, trailing + 16, first_entry, sums)
    for in_header, column in columns:
        _add_column(digest, trailing + in_header, column, sums)
    if own is not None:
        return sums
    return np.array(array("I", starmap(digest.extend, zip(sums.tolist(), payloads, strict=True))), np.uint32)


def _checksums(digest: CrcDigest, payloads: Sequence[bytes]) -> Any:
    import numpy as np

    # A fifth faster than `map`, which creates a tuple for each call: `zip` reuses its own.
    return np.asarray(array("I", starmap(digest.checksum, zip(payloads))))  # noqa: RUF058


def _add_count(digest: CrcDigest, trailing: int, first: int, sums: Any) -> None:
    """XOR to ``sums`` the effect of a field that counts up from ``first``."""
    table = _table(digest.checksum, trailing, 0)
    done = 0
    while done < len(sums):
        # While only the lowest piece varies, its table entries are used in their stored order.
        low = first + done & _MASK
        part = sums[done : done + len(table) - low]
        part ^= table[low : low + len(part)] ^ _effect(digest.checksum, trailing, first ^ first + done - low)
        done += len(part)


def _add_column(digest: CrcDigest, trailing: int, column: Any, sums: Any) -> None:
    """XOR to ``sums`` the effect of the differences between the int64 values of ``column`` and the first one."""
    import numpy as np

    delta = column ^ column[0]
    varying = int(np.bitwise_or.reduce(delta)) & 0xFFFF_FFFF_FFFF_FFFF
    bit = 0
    while varying:
        bits = varying & _MASK
        if bits:
            sums ^= _table(digest.checksum, trailing, bit).take(delta & bits)
        bit += _PIECE
        varying >>= _PIECE
        delta >>= _PIECE


@lru_cache(maxsize=256)
def _table(checksum: Callable[[bytes], int], trailing: int, bit: int) -> Any:
    """Effect of each value of the piece that starts at ``bit``."""
    import numpy as np

    table = np.zeros(1 << min(_PIECE, 64 - bit), np.uint32)
    half = 1
    while half < len(table):
        table[half : 2 * half] = table[:half] ^ _effect(checksum, trailing, half << bit)
        half *= 2
    return table


def _effect(checksum: Callable[[bytes], int], trailing: int, change: int) -> Any:
    """Effect on a checksum of flipping the bits of ``change`` in a field that ``trailing`` bytes follow."""
    import numpy as np

    zeros = bytes(trailing)
    return np.uint32(checksum(change.to_bytes(8) + zeros) ^ checksum(bytes(8) + zeros))


@lru_cache(maxsize=64)
def _layout(piece: str, count: int) -> Struct:
    """Layout of ``count`` pieces, which packs and splits buffers half again as fast as numpy's tolist."""
    return Struct(piece * count)
