"""Rows of a segment of which nearly all bytes have their fixed places: what Pulsar writes, as a rule.

::

    row           0a | length | 08 | time | 10 | ledger id | 18 | entry id          tags in hex, numbers as varints

Times of one segment have one width, and so have the ids of ledgers that follow one another; of both at most the lowest
four groups of seven bits differ. Then only entry ids have different widths, as the length of the row tells: all rows
have the same bytes at the same places, but for those of the numbers, and are gathered as such. Whatever is not so is
left to others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes

Octets = NDArray[np.uint8]
Offsets = NDArray[np.int64]
Halves = NDArray[np.uint32]

_ROW, _TIME, _LEDGER, _ENTRY = 0x0A, 0x08, 0x10, 0x18
# What is in front of the time, and a tag.
_HEAD, _TAG = 3, 1
_WORD, _HALF = 8, 4
_MORE, _PAYLOAD = 0x80808080, 0x7F7F7F7F
# By its width, the bytes of a varint.
_BYTES = np.array([(1 << 8 * width) - 1 for width in range(_HALF + 1)], dtype=np.uint32)


def decode(data: bytes) -> tuple[Indexes, Offsets] | None:
    """The indexes, and where the row of each ends; None if the rows are not alike."""
    widths = _widths_of_first(data)
    if widths is None:
        return None
    time_width, ledger_width = widths
    ledger = _HEAD + time_width + _TAG
    entry = ledger + ledger_width + _TAG
    # A byte in front, and a word has the lower half of the time in its upper one.
    table = _Table(b"\0" + data, 1 + entry + _HALF)
    octets = table.octets[1:]
    count = len(data)
    begins = octets[:count] == _ROW
    begins &= octets[2 : count + 2] == _TIME
    begins &= octets[ledger - _TAG : count + ledger - _TAG] == _LEDGER
    starts = begins.nonzero()[0]
    if not len(starts) or starts[0] or data[entry - _TAG] != _ENTRY:
        return None
    table.gather(starts)
    lengths = table.column(2, "u1").copy()
    ends = starts + 2
    ends += lengths
    if ends[-1] != count or np.count_nonzero(ends[:-1] != starts[1:]):
        return None
    known = bytes((0, 0xFF, 0, 0xFF, *_known(time_width), 0xFF, *_known(ledger_width), 0xFF))
    if not table.have_in_common(known):
        return None
    lengths -= np.uint8(entry - 2)
    # What would be less than nothing is much.
    if int(lengths.max()) > _HALF or not lengths.all():
        return None
    entries = table.column(1 + entry, "<u4").astype(np.uint32)
    kept = _BYTES.take(lengths)
    entries &= kept
    # All bytes but the last are followed by others.
    kept >>= np.uint32(8)
    kept ^= entries
    kept &= np.uint32(_MORE)
    if np.count_nonzero(kept):
        return None
    times, ledger_ids = table.numbers(1 + _HEAD, time_width), table.numbers(1 + ledger, ledger_width)
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


def _known(width: int) -> bytes:
    """Of a varint, what is the same in all rows: which bytes are followed by others, and all of the upper half."""
    return b"\x80" * min(width, _HALF) + b"\xff" * (width - _HALF)


class _Table:
    """Rows one below the other, as many bytes of each as are asked for, in words."""

    def __init__(self, data: bytes, width: int) -> None:
        self._width = -(-width // _WORD) * _WORD
        self._size = len(data)
        self.octets: Octets = np.frombuffer(data + bytes(self._width), dtype=np.uint8)
        self._rows = self.octets
        self._count = 0

    def gather(self, starts: Offsets) -> None:
        """Once: rows cost as much each however wide they are."""
        windows = np.ndarray(self._size, f"V{self._width}", self.octets.data, strides=(1,))
        self._rows = windows[starts].view(np.uint8)
        self._count = len(starts)

    def column(self, place: int, kind: str) -> NDArray[np.unsignedinteger]:
        return np.ndarray(self._count, kind, self._rows.data, place, (self._width,))

    def have_in_common(self, mask: bytes) -> bool:
        """Whether all rows have these bits as the first one has them."""
        for place in range(0, len(mask), _WORD):
            words = self.column(place, "<u8")
            differ = words ^ words[0]
            differ &= np.uint64(int.from_bytes(mask[place : place + _WORD], "little"))
            if np.count_nonzero(differ):
                return False
        return True

    def numbers(self, place: int, width: int) -> NDArray[np.int64]:
        """Varints of one width, of which nothing but the lower half of a word differs."""
        low = min(width, _HALF)
        if low == 1:
            return self.column(place, "u1").astype(np.int64)
        halves = self.column(place, "<u4").astype(np.uint32)
        halves &= _BYTES[low]
        found = _joined(halves).astype(np.int64)
        if width > low:
            high = self._rows[place + low : place + width].tolist()
            found += sum((octet & 0x7F) << 7 * (low + number) for number, octet in enumerate(high))
        return found


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
