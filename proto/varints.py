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


def split(data: Bytes) -> tuple[Offsets, Offsets]:
    """Start and length of every whole varint; what is left of a last one does not count."""
    stops = np.flatnonzero(data < _MORE)
    starts = np.empty_like(stops)
    if len(stops):
        starts[0] = 0
        starts[1:] = stops[:-1] + 1
    return starts, stops - starts + 1


def values(data: Bytes, starts: Offsets, lengths: Offsets) -> Numbers:
    """The numbers that stand there, none of which may be longer than :data:`LONGEST` bytes."""
    shape = starts.shape
    starts, lengths = starts.reshape(-1), lengths.reshape(-1)
    flat = (data[starts] & _LOW).astype(np.uint64)
    there = np.flatnonzero(lengths > 1)
    place = 1
    while len(there):
        flat[there] |= (data[starts[there] + place] & _LOW).astype(np.uint64) << np.uint64(7 * place)
        place += 1
        there = there[lengths[there] > place]
    return flat.reshape(shape)


def sizes(numbers: Numbers) -> Offsets:
    """How many bytes each takes."""
    result = np.ones(numbers.shape, dtype=np.int64)
    for place in range(1, LONGEST):
        longer = numbers >= np.uint64(1 << 7 * place)
        if not longer.any():
            break
        result += longer
    return result


def join(numbers: Numbers, lengths: Offsets | None = None) -> bytes:
    """All of them as varints, one behind the other; of a table, row by row. ``lengths`` are their sizes, if known."""
    flat = numbers.reshape(-1)
    lengths = sizes(flat) if lengths is None else lengths.reshape(-1)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    out = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    out[starts] = (flat & np.uint64(0x7F)).astype(np.uint8)
    there = np.flatnonzero(lengths > 1)
    place = 1
    while len(there):
        out[starts[there] + place - 1] |= _MORE
        out[starts[there] + place] = (flat[there] >> np.uint64(7 * place)).astype(np.uint8) & _LOW
        place += 1
        there = there[lengths[there] > place]
    return out.tobytes()
