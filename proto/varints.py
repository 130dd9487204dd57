"""Varints by the million, through numpy: the same bytes as ``wire.read_varint`` and ``wire.write_varint``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LONGEST = 10

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.uint64]
Offsets = NDArray[np.int64]

_LOW = np.uint8(0x7F)
_MORE = np.uint8(0x80)
# The bits of so many bytes, and of each its low seven ones.
_WORD = 8
_PAYLOADS = np.array([0x7F7F7F7F7F7F7F7F >> 8 * (_WORD - length) for length in range(_WORD + 1)], dtype=np.uint64)
# Bits that stay, and bits that move down by so many places, so that groups of 7, 14 and 28 bits come together.
_JOINTS = [
    (np.uint64(stay), np.uint64(stay << 7 * places + places), np.uint64(places))
    for stay, places in ((0x007F007F007F007F, 1), (0x00003FFF00003FFF, 2), (0x000000000FFFFFFF, 4))
]
# Up to so many bytes are put together faster one by one.
_SHORT = 2


def end_offsets(data: Bytes) -> Offsets:
    """Where the last byte of every whole varint is."""
    return np.flatnonzero(data < _MORE)


def split(data: Bytes) -> tuple[Offsets, Offsets]:
    """Start and length of every whole varint; what is left of a last one does not count."""
    stops = end_offsets(data)
    starts = np.empty_like(stops)
    if len(stops):
        starts[0] = 0
        starts[1:] = stops[:-1] + 1
    return starts, stops - starts + 1


def decode_all(data: Bytes, starts: Offsets, lengths: Offsets) -> Numbers:
    """The numbers that stand there, none of which may be longer than :data:`LONGEST` bytes."""
    shape = starts.shape
    starts, lengths = starts.reshape(-1), lengths.reshape(-1)
    if len(lengths) and _SHORT < lengths.max() <= _WORD:
        return _words(data, starts, lengths).reshape(shape)
    flat = (data[starts] & _LOW).astype(np.uint64)
    there = np.flatnonzero(lengths > 1)
    place = 1
    while len(there):
        flat[there] |= (data[starts[there] + place] & _LOW).astype(np.uint64) << np.uint64(7 * place)
        place += 1
        there = there[lengths[there] > place]
    return flat.reshape(shape)


def _words(data: Bytes, starts: Offsets, lengths: Offsets) -> Numbers:
    """The same where none is longer than a word: each is read as one, and the bits between its groups left out."""
    padded = np.zeros(len(data) + _WORD, dtype=np.uint8)
    padded[: len(data)] = data
    words = np.ndarray(len(data) + 1, "<u8", padded.data, strides=(1,))
    found: Numbers = words[starts].astype(np.uint64, copy=False)
    found &= _PAYLOADS[lengths]
    for stay, move, places in _JOINTS:
        moved = found & move
        moved >>= places
        found &= stay
        found |= moved
    return found


def encoded_sizes(numbers: Numbers) -> Offsets:
    """How many bytes each takes."""
    result = np.ones(numbers.shape, dtype=np.int64)
    for place in range(1, LONGEST):
        longer = numbers >= np.uint64(1 << 7 * place)
        if not longer.any():
            break
        result += longer
    return result


def encode_all(numbers: Numbers, lengths: Offsets | None = None) -> bytes:
    """All of them as varints, one behind the other; of a table, row by row. ``lengths`` are their sizes, if known."""
    flat = numbers.reshape(-1)
    lengths = encoded_sizes(flat) if lengths is None else lengths.reshape(-1)
    stops = np.cumsum(lengths)
    starts = stops - lengths
    out = np.empty(int(stops[-1]) if len(stops) else 0, dtype=np.uint8)
    out[starts] = (flat & np.uint64(0x7F)).astype(np.uint8)
    there = np.flatnonzero(lengths > 1)
    place = 1
    while len(there):
        out[starts[there] + place - 1] |= _MORE
        out[starts[there] + place] = (flat[there] >> np.uint64(7 * place)).astype(np.uint8) & _LOW
        place += 1
        there = there[lengths[there] > place]
    return out.tobytes()
