"""Conversion of bitmaps from and to runs and 64-bit words, vectorized with numpy.

A bitmap may hold billions of entries in few bytes. Memory use is therefore bounded by the size of a window and of the
output, not by the cardinality of the bitmap.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from bookstand.errors import IncorrectParameterError

Ids = NDArray[np.int64]
Words = NDArray[np.uint64]

# Runs up to this width are cheaper to add as entries, if there are more than _MIN_VECTORIZED runs.
_NARROW = 32
_MIN_VECTORIZED = 16
_WINDOW = 1 << 22
_WORD = 64

MAX_IN_WORDS = (1 << 31) - 1
"""Highest entry that can be encoded as words, whose size grows with it. Pulsar has the same limit."""


def add_runs(bitmap: BitMap64, firsts: Ids, lasts: Ids) -> None:
    """Add the runs, given by their first and last entries."""
    if len(firsts) > _MIN_VECTORIZED:
        widths = lasts - firsts + 1
        narrow = widths <= _NARROW
        _add_narrow(bitmap, firsts[narrow], widths[narrow])
        firsts, lasts = firsts[~narrow], lasts[~narrow]
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        bitmap.add_range(first, last + 1)


def _add_narrow(bitmap: BitMap64, firsts: Ids, widths: Ids) -> None:
    step = _WINDOW // _NARROW
    for at in range(0, len(firsts), step):
        width = widths[at : at + step]
        ends = np.cumsum(width)
        # The offset of each entry in its run, plus the first entry of the run.
        ids = np.arange(int(ends[-1])) + np.repeat(firsts[at : at + step] - (ends - width), width)
        _add(bitmap, ids)


def add_words(bitmap: BitMap64, words: Words) -> None:
    """Add entry n for each bit n % 64 of word n / 64 that is set."""
    step = _WINDOW // _WORD
    for at in range(0, len(words), step):
        bits = np.unpackbits(words[at : at + step].astype("<u8").view(np.uint8), bitorder="little")
        _add(bitmap, np.flatnonzero(bits) + at * _WORD)


def _add(bitmap: BitMap64, ids: Ids) -> None:
    if len(ids):
        # pyroaring has a bulk path for array.array, but iterates over a numpy array.
        bitmap |= BitMap64(array("Q", ids.astype(np.uint64).tobytes()))


def runs(bitmap: BitMap64) -> tuple[Ids, Ids]:
    """Return the first and last entries of all runs of consecutive entries, in ascending order."""
    firsts: list[Ids] = []
    lasts: list[Ids] = []
    at = bitmap.min() if bitmap else None
    while at is not None:
        stop = at + _WINDOW
        if bitmap.range_cardinality(at, stop) == _WINDOW:
            end = end_of_run(bitmap, at)
            firsts.append(np.array([at]))
            lasts.append(np.array([end]))
            at = _next(bitmap, end + 1)
            continue
        ids = _ids(bitmap, at, stop)
        breaks = np.flatnonzero(np.diff(ids) > 1)
        firsts.append(ids[np.concatenate(([0], breaks + 1))])
        lasts.append(ids[np.concatenate((breaks, [len(ids) - 1]))])
        at = _next(bitmap, stop)
    if not firsts:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    first, last = np.concatenate(firsts), np.concatenate(lasts)
    # Merge runs that a window boundary has split.
    whole = first[1:] != last[:-1] + 1
    return first[np.concatenate(([True], whole))], last[np.concatenate((whole, [True]))]


def end_of_run(bitmap: BitMap64, entry: int) -> int:
    """Return the last entry of the run that contains ``entry``, by binary search."""
    low, high = entry, bitmap.max()
    while low < high:
        middle = (low + high + 1) // 2
        if bitmap.range_cardinality(entry, middle + 1) == middle + 1 - entry:
            low = middle
        else:
            high = middle - 1
    return low


def before_run(bitmap: BitMap64, entry: int) -> int:
    """Return the entry before the run that contains ``entry``."""
    low, high = bitmap.min(), entry
    while low < high:
        middle = (low + high) // 2
        if bitmap.range_cardinality(middle, entry + 1) == entry + 1 - middle:
            high = middle
        else:
            low = middle + 1
    return low - 1


def words(bitmap: BitMap64) -> Words:
    """Return the words up to the last nonzero one."""
    if not bitmap:
        return np.empty(0, dtype=np.uint64)
    if bitmap.max() > MAX_IN_WORDS:
        raise IncorrectParameterError(f"entry {bitmap.max()} cannot be encoded as words, whose limit is {MAX_IN_WORDS}")
    result = np.zeros(bitmap.max() // _WORD + 1, dtype=np.uint64)
    for start, stop in _windows(bitmap):
        bits = np.zeros(min(stop, len(result) * _WORD) - start, dtype=np.uint8)
        bits[_ids(bitmap, start, stop) - start] = 1
        at = start // _WORD
        part = np.packbits(bits, bitorder="little").view("<u8")
        result[at : at + len(part)] = part
    return result


def _windows(bitmap: BitMap64) -> Iterator[tuple[int, int]]:
    """Yield the windows that are not empty."""
    start = bitmap.min() if bitmap else None
    while start is not None:
        start -= start % _WINDOW
        yield start, start + _WINDOW
        start = _next(bitmap, start + _WINDOW)


def _next(bitmap: BitMap64, at: int) -> int | None:
    """Return the first entry from ``at`` on; None at the end."""
    if at > bitmap.max():
        return None
    found: int = bitmap.next_set_bit(at)
    return found


def _ids(bitmap: BitMap64, start: int, stop: int) -> Ids:
    if bitmap.min() < start or bitmap.max() >= stop:
        bitmap = bitmap & BitMap64(range(start, stop))
    return np.frombuffer(bitmap.to_array(), dtype=np.uint64).astype(np.int64)
