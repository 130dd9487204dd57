"""Rows of a segment of which nearly all bytes have their fixed places: what Pulsar writes, as a rule.

::

    row           0a | length | 08 | time | 10 | ledger id | 18 | entry id          tags in hex, numbers as varints

Times of one segment have one width, and so have the ids of ledgers that follow one another; of both at most the lowest
four groups of seven bits differ. Then only entry ids have different widths, as the length of the row tells: a row is a
few words at known places. Whatever is not so is left to others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bookstand.delivery.indexes import Indexes

Octets = NDArray[np.uint8]
Offsets = NDArray[np.int64]
Words = NDArray[np.uint64]
Halves = NDArray[np.uint32]

_ROW, _TIME, _LEDGER, _ENTRY = 0x0A, 0x08, 0x10, 0x18
# What is in front of the time, and a tag.
_HEAD, _TAG = 3, 1
_WORD, _HALF = 8, 4
_MORE, _PAYLOAD = 0x80808080, 0x7F7F7F7F
# By its width, a varint's bits and which of its bytes are followed by others.
_PAYLOADS = np.array([_PAYLOAD >> 8 * (_HALF - width) for width in range(_HALF + 1)], dtype=np.uint32)
_CONTINUED = np.array([0, *(_MORE >> 8 * (_HALF + 1 - width) for width in range(1, _HALF + 1))], dtype=np.uint32)
_LASTS = np.array([_MORE >> 8 * (_HALF - width) for width in range(_HALF + 1)], dtype=np.uint32)


def decode(data: bytes) -> tuple[Indexes, Offsets] | None:
    """The indexes, and where the row of each ends; None if the rows are not alike."""
    widths = _widths_of_first(data)
    if widths is None:
        return None
    time_width, ledger_width = widths
    ledger = _HEAD + time_width + _TAG
    entry = ledger + ledger_width + _TAG
    padded = np.frombuffer(data + bytes(entry + _WORD), dtype=np.uint8)
    count = len(data)
    begins = padded[:count] == _ROW
    begins &= padded[2 : count + 2] == _TIME
    begins &= padded[ledger - _TAG : count + ledger - _TAG] == _LEDGER
    starts = np.flatnonzero(begins)
    lengths = padded[starts + 1]
    ends = starts + 2
    ends += lengths
    if not len(starts) or starts[0] or ends[-1] != count or (ends[:-1] != starts[1:]).any():
        return None
    times = _fixed(padded, starts + _HEAD, time_width, _LEDGER)
    ledger_ids = _fixed(padded, starts + ledger, ledger_width, _ENTRY)
    if times is None or ledger_ids is None:
        return None
    lengths -= np.uint8(entry - 2)
    # What would be less than nothing is much.
    if int(lengths.max()) > _HALF or not lengths.all():
        return None
    entries = _words(padded, starts + entry).astype(np.uint32)
    if ((entries & _LASTS[lengths]) != _CONTINUED[lengths]).any():
        return None
    entries &= _PAYLOADS[lengths]
    return Indexes(times, ledger_ids, _joined(entries).astype(np.int64)), ends


def _widths_of_first(data: bytes) -> tuple[int, int] | None:
    """How many bytes time and ledger id have in the first row; with the tag behind, each is less than a word."""
    at = _HEAD
    widths = []
    for _ in range(2):
        start = at
        while at < len(data) and data[at] & 0x80:
            at += 1
        width = at + 1 - start
        if width >= _WORD:
            return None
        widths.append(width)
        at += 1 + _TAG
    return (widths[0], widths[1]) if at < len(data) else None


def _fixed(data: Octets, starts: Offsets, width: int, tag: int) -> NDArray[np.int64] | None:
    """Numbers of one width, each with this tag behind it; of the first the lower half of a word may differ."""
    words = _words(data, starts)
    low = min(width, _HALF)
    first = int(words[0]) & (1 << 8 * (width + 1)) - 1
    high = first >> 8 * low
    if first >> 8 * width != tag:
        return None
    # What is the same in all rows, and of the rest which bytes are followed by others.
    known = (1 << 8 * (width + 1)) - (1 << 8 * low) | int(_LASTS[low])
    if ((words & np.uint64(known)) != np.uint64(first & known)).any():
        return None
    halves = words.astype(np.uint32)
    halves &= _PAYLOADS[low]
    found = _joined(halves).astype(np.int64)
    if width > low:
        found += sum((high >> 8 * place & 0x7F) << 7 * (low + place) for place in range(width - low))
    return found


def _words(data: Octets, starts: Offsets) -> Words:
    found: Words = np.ndarray(len(data) - _WORD + 1, "<u8", data.data, strides=(1,))[starts]
    return found.astype(np.uint64, copy=False)


def _joined(halves: Halves) -> Halves:
    """Groups of seven bits, one in each byte, moved together."""
    moved = halves & np.uint32(0x7F007F00)
    moved >>= np.uint32(1)
    halves &= np.uint32(0x007F007F)
    halves |= moved
    np.bitwise_and(halves, np.uint32(0x3FFF0000), out=moved)
    moved >>= np.uint32(2)
    halves &= np.uint32(0x00003FFF)
    halves |= moved
    return halves
