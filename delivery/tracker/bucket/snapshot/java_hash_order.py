"""The order in which Java's HashMap lists ledger ids, which is that of the bitmaps in a snapshot's metadata.

Pulsar fills one map per segment by ``computeIfAbsent``, once for every index in the segment's order, and clears it
after the segment. For equal bytes the map's table has to be known:

- It has 16 bins when a snapshot is begun; clearing keeps its size.
- Id ``i`` has the hash ``h = i ^ i >>> 32``, of which 32 bits count, and stands in bin ``h ^ h >>> 16`` modulo the
  size.
- A new id goes to the front of its bin. Doubling keeps the order within bins.
- Each lookup first doubles the table if it holds more than three quarters of its size; and a table of less than 64 bins
  doubles when an id comes to seven others in its bin.

So ids are listed by bin and, within a bin, the newest first. In larger tables the map turns a bin of eight into a tree
and lists it in another order, which this does not follow: that takes eight ids that are equal modulo 64, and no reader
depends on the order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bookstand.delivery.tracker.bucket.snapshot.rows import sorted_rows

Numbers = NDArray[np.int64]

_FIRST_SIZE = 16
_SIZE_WITH_TREES = 64
_CROWDED = 8


def hash_map_order(segments: Numbers, ledger_ids: Numbers, firsts: Numbers, ends: Numbers) -> Numbers:
    """The order of pairs of segment and ledger id, as their numbers: segments ascend, the ids are as the map has them.

    ``firsts`` tells where among all indexes each pair comes first, ``ends`` where each segment ends.
    """
    by_first = np.argsort(firsts)
    segments, bins = segments[by_first], _spread(ledger_ids[by_first])
    counts = np.bincount(segments, minlength=len(ends))
    # What comes last in a segment is looked up, and doubles the table, before it is counted.
    counted = counts.copy()
    lasts = np.cumsum(counts) - 1
    there = counts > 0
    counted[there] -= firsts[by_first][lasts[there]] == ends[there] - 1
    sizes = _sizes(segments, bins, counts, counted)
    bins &= sizes[segments] - 1
    newest_first = np.arange(len(by_first))[::-1]
    *_, order = sorted_rows(segments, bins, newest_first)
    ordered: Numbers = by_first[len(by_first) - 1 - order]
    return ordered


def _spread(ledger_ids: Numbers) -> Numbers:
    unsigned = ledger_ids.view(np.uint64)
    low = (unsigned ^ unsigned >> np.uint64(32)) & np.uint64(0xFFFFFFFF)
    return (low ^ low >> np.uint64(16)).view(np.int64)


def _sizes(segments: Numbers, bins: Numbers, counts: Numbers, counted: Numbers) -> Numbers:
    """The table's size at the end of each segment."""
    sizes = np.full(len(counts), _FIRST_SIZE)
    size = _FIRST_SIZE
    while (short := counted > size // 4 * 3).any():
        size *= 2
        sizes[short] = size
    if len(segments) and np.bincount(segments * _FIRST_SIZE + bins % _FIRST_SIZE).max() >= _CROWDED:
        _widen_for_crowds(sizes, bins, counts, counted)
    return np.maximum.accumulate(sizes)


def _widen_for_crowds(sizes: Numbers, bins: Numbers, counts: Numbers, counted: Numbers) -> None:
    """What crowded bins add to the sizes; id by id, as long as the table is small."""
    size = _FIRST_SIZE
    at = 0
    for segment, (count, last) in enumerate(zip(counts.tolist(), counted.tolist(), strict=True)):
        ids = bins[at : at + count].tolist()
        at += count
        for number, one in enumerate(ids):
            if size >= _SIZE_WITH_TREES:
                break
            if number > size // 4 * 3:
                size *= 2
            if sum((one ^ other) % size == 0 for other in ids[:number]) >= _CROWDED - 1:
                size *= 2
        while last > size // 4 * 3:
            size *= 2
        sizes[segment] = max(sizes[segment], size)
        size = int(sizes[segment])
