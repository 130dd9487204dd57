"""Fast path for segments whose rows have nearly all bytes at fixed offsets, as Pulsar usually writes them.

::

    row           0a | length | 08 | time | 10 | ledger id | 18 | entry id          tags in hex, numbers as varints

The times of a segment have one width, and so do nearby ledger ids; of both, only the lowest four 7-bit groups differ.
Only the width of entry ids varies, and the length of the row gives it. So each byte has the same offset in all rows,
and the rows are gathered into a table. Other layouts are left to the general decoder.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes

Octets = NDArray[np.uint8]
Offsets = NDArray[np.int64]
Halves = NDArray[np.uint32]

_ROW, _TIME, _LEDGER, _ENTRY = 0x0A, 0x08, 0x10, 0x18
# Bytes before the time, and bytes of a tag.
_HEAD, _TAG = 3, 1
_WORD, _HALF = 8, 4
_MORE, _PAYLOAD = 0x80808080, 0x7F7F7F7F
# Mask of the bytes of a varint, by its width.
_BYTES = np.array([(1 << 8 * width) - 1 for width in range(_HALF + 1)], dtype=np.uint32)


def decode(data: bytes) -> tuple[Indexes, Offsets] | None:
    """Return the indexes and the end of each row; None if the rows are not uniform."""
    widths = _widths_of_first(data)
    if widths is None:
        return None
    time_width, ledger_width = widths
    ledger = _HEAD + time_width + _TAG
    entry = ledger + ledger_width + _TAG
    # The byte in front aligns the lower half of the time with the upper half of a word.
    table = _Table(b"\0" + data, 1 + entry + _HALF)
    octets = table.octets[1:]
    count = len(data)
    is_start = octets[:count] == _ROW
    is_start &= octets[2 : count + 2] == _TIME
    is_start &= octets[ledger - _TAG : count + ledger - _TAG] == _LEDGER
    starts = is_start.nonzero()[0]
    if not len(starts) or starts[0] or data[entry - _TAG] != _ENTRY:
        return None
    table.gather(starts)
    lengths = table.column(2, "u1").copy()
    ends = starts + 2
    ends += lengths
    if ends[-1] != count or np.count_nonzero(ends[:-1] != starts[1:]):
        return None
    shared = bytes((0, 0xFF, 0, 0xFF, *_shared_mask(time_width), 0xFF, *_shared_mask(ledger_width), 0xFF))
    if not table.share_bits(shared):
        return None
    lengths -= np.uint8(entry - 2)
    # Negative lengths wrap around to large unsigned ones.
    if int(lengths.max()) > _HALF or not lengths.all():
        return None
    entries = table.column(1 + entry, "<u4").astype(np.uint32)
    mask = _BYTES.take(lengths)
    entries &= mask
    # All bytes of a varint but the last have the continuation bit.
    mask >>= np.uint32(8)
    mask ^= entries
    mask &= np.uint32(_MORE)
    if np.count_nonzero(mask):
        return None
    times, ledger_ids = table.numbers(1 + _HEAD, time_width), table.numbers(1 + ledger, ledger_width)
    return Indexes(times, ledger_ids, _join_groups(entries).astype(np.int64)), ends


def _widths_of_first(data: bytes) -> tuple[int, int] | None:
    """Widths of time and ledger id in the first row; None if one does not fit a word with its tag."""
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


def _shared_mask(width: int) -> bytes:
    """Mask of the bits of a varint that all rows share: continuation bits, and the complete upper half."""
    return b"\x80" * min(width, _HALF) + b"\xff" * (width - _HALF)


class _Table:
    """Table of rows: the first bytes of each row, padded to words."""

    def __init__(self, data: bytes, width: int) -> None:
        self._width = -(-width // _WORD) * _WORD
        self._size = len(data)
        self.octets: Octets = np.frombuffer(data + bytes(self._width), dtype=np.uint8)
        self._rows = self.octets
        self._count = 0

    def gather(self, starts: Offsets) -> None:
        """Gather the rows. Call it once; its cost does not depend on the width."""
        windows = np.ndarray(self._size, f"V{self._width}", self.octets.data, strides=(1,))
        self._rows = windows[starts].view(np.uint8)
        self._count = len(starts)

    def column(self, place: int, kind: str) -> NDArray[np.unsignedinteger]:
        return np.ndarray(self._count, kind, self._rows.data, place, (self._width,))

    def share_bits(self, mask: bytes) -> bool:
        """Return True if all rows share these bits with the first row."""
        for place in range(0, len(mask), _WORD):
            words = self.column(place, "<u8")
            differ = words ^ words[0]
            differ &= np.uint64(int.from_bytes(mask[place : place + _WORD], "little"))
            if np.count_nonzero(differ):
                return False
        return True

    def numbers(self, place: int, width: int) -> NDArray[np.int64]:
        """Decode varints of one width that differ only in the lower half of a word."""
        low = min(width, _HALF)
        if low == 1:
            return self.column(place, "u1").astype(np.int64)
        halves = self.column(place, "<u4").astype(np.uint32)
        halves &= _BYTES[low]
        found = _join_groups(halves).astype(np.int64)
        if width > low:
            high = self._rows[place + low : place + width].tolist()
            found += sum((octet & 0x7F) << 7 * (low + number) for number, octet in enumerate(high))
        return found


def _join_groups(halves: Halves) -> Halves:
    """Join groups of seven bits, one per byte."""
    shifted = halves & np.uint32(0x7F007F00)
    shifted >>= np.uint32(1)
    halves &= np.uint32(0x007F007F)
    halves |= shifted
    np.bitwise_and(halves, np.uint32(0x3FFF0000), out=shifted)
    shifted >>= np.uint32(2)
    halves &= np.uint32(0x00003FFF)
    halves |= shifted
    return halves
