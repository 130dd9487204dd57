"""Vectorized varint codec with numpy, equivalent to ``read_varint`` and ``write_varint`` of ``wire_format``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LONGEST = 10

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.uint64]
Offsets = NDArray[np.int64]

_LOW = np.uint8(0x7F)
_CONTINUATION_BIT = np.uint8(0x80)
_WORD = 8
# For each length in bytes, the mask of the payload bits (the low seven bits of each byte).
_PAYLOADS = np.array([0x7F7F7F7F7F7F7F7F >> 8 * (_WORD - length) for length in range(_WORD + 1)], dtype=np.uint64)
# Steps that merge groups of 7, 14 and 28 bits: mask of the lower groups, mask of the upper groups, right shift.
_MERGE_STEPS = [
    (np.uint64(lower), np.uint64(lower << 7 * shift + shift), np.uint64(shift))
    for lower, shift in ((0x007F007F007F007F, 1), (0x00003FFF00003FFF, 2), (0x000000000FFFFFFF, 4))
]
# Up to this length, decoding byte by byte is faster.
_MAX_BYTEWISE = 2


def end_offsets(data: Bytes) -> Offsets:
    """Return the offset of the last byte of every complete varint."""
    return np.flatnonzero(data < _CONTINUATION_BIT)


def split(data: Bytes) -> tuple[Offsets, Offsets]:
    """Return start and length of every complete varint, ignoring a truncated one at the end."""
    stops = end_offsets(data)
    starts = np.empty_like(stops)
    if len(stops):
        starts[0] = 0
        starts[1:] = stops[:-1] + 1
    return starts, stops - starts + 1


def decode_all(data: Bytes, starts: Offsets, lengths: Offsets) -> Numbers:
    """Decode varints at the given offsets, none of which may exceed :data:`LONGEST` bytes."""
    shape = starts.shape
    starts, lengths = starts.reshape(-1), lengths.reshape(-1)
    if len(lengths) and _MAX_BYTEWISE < lengths.max() <= _WORD:
        return _decode_words(data, starts, lengths).reshape(shape)
    flat = (data[starts] & _LOW).astype(np.uint64)
    remaining = np.flatnonzero(lengths > 1)
    index = 1
    while len(remaining):
        flat[remaining] |= (data[starts[remaining] + index] & _LOW).astype(np.uint64) << np.uint64(7 * index)
        index += 1
        remaining = remaining[lengths[remaining] > index]
    return flat.reshape(shape)


def _decode_words(data: Bytes, starts: Offsets, lengths: Offsets) -> Numbers:
    """Decode varints of up to 8 bytes: load each as one 64-bit word, and squeeze out the continuation bits."""
    padded = np.zeros(len(data) + _WORD, dtype=np.uint8)
    padded[: len(data)] = data
    words = np.ndarray(len(data) + 1, "<u8", padded.data, strides=(1,))
    numbers: Numbers = words[starts].astype(np.uint64, copy=False)
    numbers &= _PAYLOADS[lengths]
    for lower, upper, shift in _MERGE_STEPS:
        shifted = numbers & upper
        shifted >>= shift
        numbers &= lower
        numbers |= shifted
    return numbers


def encoded_sizes(numbers: Numbers) -> Offsets:
    """Return the encoded size of each number in bytes."""
    result = np.ones(numbers.shape, dtype=np.int64)
    for index in range(1, LONGEST):
        longer = numbers >= np.uint64(1 << 7 * index)
        if not longer.any():
            break
        result += longer
    return result


def encode_all(numbers: Numbers, lengths: Offsets | None = None) -> bytes:
    """Encode all numbers, of a table row by row. ``lengths`` are their encoded sizes, if already known."""
    flat = numbers.reshape(-1)
    lengths = encoded_sizes(flat) if lengths is None else lengths.reshape(-1)
    stops = np.cumsum(lengths)
    starts = stops - lengths
    out = np.empty(int(stops[-1]) if len(stops) else 0, dtype=np.uint8)
    out[starts] = (flat & np.uint64(0x7F)).astype(np.uint8)
    remaining = np.flatnonzero(lengths > 1)
    index = 1
    while len(remaining):
        out[starts[remaining] + index - 1] |= _CONTINUATION_BIT
        out[starts[remaining] + index] = (flat[remaining] >> np.uint64(7 * index)).astype(np.uint8) & _LOW
        index += 1
        remaining = remaining[lengths[remaining] > index]
    return out.tobytes()
