"""Block codec: sorted runs of numbers in the fewest bytes.

A run is a start and an exclusive end. Numbers are relative to the first one, which the caller stores. Each block has
the smallest of three forms::

    +------+------------------------------------------------------------------------------+
    | form |                                                                              |
    +------+------------------------------------------------------------------------------+
    |  0   | column of distances; every run is one number                                 |
    |  1   | column of distances, column of lengths                                       |
    |  2   | cut count u32, one place u32 per cut, one length u64 per cut, bits to end    |
    +------+------------------------------------------------------------------------------+

    distance: from the last number of the previous run; 1 for the first run
    column:   width byte, count u32, wide count u32, `count` numbers of `width` bytes, `wide count` numbers of 8;
              a number too large for its width is stored as 0 and appended to the wide numbers, in order
    bits:     a 1 for every number; gaps wider than 64 are cut to 64 zeros; each cut has a place, the bit that follows
              it, and a length, the number of zeros removed

All numbers are little-endian. Decoding takes a constant number of numpy calls.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]

_DISTANCES = 0
_LENGTHS = 1
_BITS = 2

_COLUMN = struct.Struct("<BII")
_CUTS = struct.Struct("<BI")
_WIDTHS = (1, 2, 4, 8)
_DTYPES = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<i8"}
_WIDEST_GAP = 64
_CUT_BYTES = 12
_SAMPLE_STEP = 16


def encode(starts: Column, ends: Column | None) -> bytes:
    """Encode at least one run. Without ``ends`` every run is one number, and runs may be adjacent."""
    distances = np.empty(len(starts), dtype=np.int64)
    distances[0] = 1
    np.subtract(starts[1:], starts[:-1] if ends is None else ends[:-1] - 1, out=distances[1:])
    columns = [distances]
    total = len(starts)
    if ends is not None:
        lengths = ends - starts
        total = int(lengths.sum())
        if total > len(starts):
            columns.append(lengths)
    widths = [_best_width(column) for column in columns]
    packed = _encode_bits(distances, columns[1:], total, 8 * sum(size for _, size in widths))
    if packed is not None:
        return packed
    form = _DISTANCES if len(columns) == 1 else _LENGTHS
    parts = (_encode_column(column, width, size) for column, (width, size) in zip(columns, widths, strict=True))
    return bytes([form]) + b"".join(parts)


def decode(data: bytes) -> tuple[Column, Column]:
    """Return starts and ends."""
    if data[0] == _BITS:
        return _decode_bits(data)
    distances, at = _decode_column(data, 1)
    if data[0] == _DISTANCES:
        starts = np.cumsum(distances)
        starts -= 1
        return starts, starts + 1
    lengths, _ = _decode_column(data, at)
    steps = distances
    steps[1:] += lengths[:-1] - 1
    starts = np.cumsum(steps)
    starts -= 1
    return starts, starts + lengths


def _best_width(numbers: Column) -> tuple[int, int]:
    """Width in bytes that needs the least space, and that space."""
    greatest = int(numbers.max())
    best = (8, 8 * len(numbers))
    for width in _WIDTHS[:-1]:
        if greatest >> 8 * width == 0:
            return min(best, (width, width * len(numbers)), key=lambda choice: choice[1])
        wide = int(np.count_nonzero(numbers >> 8 * width))
        best = min(best, (width, width * len(numbers) + 8 * wide), key=lambda choice: choice[1])
    return best


def _encode_column(numbers: Column, width: int, size: int) -> bytes:
    wide = numbers[:0]
    if size > width * len(numbers):
        too_wide = numbers >> 8 * width != 0
        wide = numbers[too_wide]
        numbers = np.where(too_wide, 0, numbers)
    head = _COLUMN.pack(width, len(numbers), len(wide))
    return head + numbers.astype(_DTYPES[width]).tobytes() + wide.astype("<i8").tobytes()


def _decode_column(data: bytes, at: int) -> tuple[Column, int]:
    width, count, wide_count = _COLUMN.unpack_from(data, at)
    at += _COLUMN.size
    numbers = np.frombuffer(data, _DTYPES[width], count, at).astype(np.int64)
    at += width * count
    if wide_count:
        numbers[numbers == 0] = np.frombuffer(data, "<i8", wide_count, at)
    return numbers, at + 8 * wide_count


def _encode_bits(distances: Column, lengths: list[Column], total: int, budget: int) -> bytes | None:
    """Return the bit form, or None if it takes ``budget`` bits or more. ``lengths`` is empty if every length is 1."""
    # A sample rejects most of the blocks that are far too sparse for bits.
    if _SAMPLE_STEP * int(np.minimum(distances[::_SAMPLE_STEP], _WIDEST_GAP + 1).sum()) > 2 * budget:
        return None
    steps = np.minimum(distances, _WIDEST_GAP + 1)
    window = int(steps.sum()) + total - len(distances)
    if window >= budget:
        return None
    wide = np.flatnonzero(distances > _WIDEST_GAP + 1)
    if window + 8 * (_CUTS.size + _CUT_BYTES * len(wide)) >= budget:
        return None
    cuts = distances[wide] - (_WIDEST_GAP + 1)
    for column in lengths:
        steps[1:] += column[:-1] - 1
    starts = np.cumsum(steps) - 1
    bits = np.zeros(window, dtype=np.uint8)
    bits[starts] = 1
    for column in lengths:
        # Mark the edges of the runs; the bits are their running parity.
        ends = starts + column
        bits[ends[:-1]] = 1
        np.bitwise_xor.accumulate(bits, out=bits)
    packed = np.packbits(bits, bitorder="little")
    return (
        _CUTS.pack(_BITS, len(wide))
        + starts[wide].astype("<u4").tobytes()
        + cuts.astype("<i8").tobytes()
        + packed.tobytes()
    )


def _decode_bits(data: bytes) -> tuple[Column, Column]:
    _, count = _CUTS.unpack_from(data)
    at = _CUTS.size
    places = np.frombuffer(data, "<u4", count, at)
    cuts = np.frombuffer(data, "<i8", count, at + 4 * count)
    bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=at + _CUT_BYTES * count), bitorder="little")
    edges = np.flatnonzero(np.diff(bits, prepend=0, append=0))
    starts, ends = edges[::2].astype(np.int64), edges[1::2].astype(np.int64)
    if count:
        shift = np.concatenate(([0], np.cumsum(cuts)))[places.searchsorted(starts, side="right")]
        starts += shift
        ends += shift
    return starts, ends
