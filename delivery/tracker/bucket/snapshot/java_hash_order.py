"""Order in which Java's HashMap lists ledger ids, which is the order of bitmaps in a snapshot's metadata.

Pulsar fills one map per segment by ``computeIfAbsent``, once for every index in the segment's order, and clears it
after the segment. To produce equal bytes, the table of the map is simulated:

- It has 16 bins when a snapshot begins; clearing preserves its size.
- Id ``i`` has the 32-bit hash ``h = i ^ i >>> 32`` and is in bin ``h ^ h >>> 16`` modulo the size.
- A new id is inserted at the front of its bin. Doubling preserves the order within bins.
- Each lookup first doubles the table if it holds more than three quarters of its size. A table of fewer than 64 bins
  also doubles when an id is added to a bin of seven.

So ids are listed by bin and, within a bin, newest first. In larger tables the map turns a bin of eight into a tree with
another order, which is not simulated: it requires eight ids that are equal modulo 64, and no reader depends on the
order.
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
    """Order of pairs of segment and ledger id: indexes of the pairs, by segment and then in the order of the map.

    ``firsts`` is the first row of each pair among all indexes, ``ends`` the end of each segment.
    """
    by_first = np.argsort(firsts)
    segments, bins = segments[by_first], _spread(ledger_ids[by_first])
    counts = np.bincount(segments, minlength=len(ends))
    # The last new id of a segment is looked up, and may double the table, before it is counted.
    counted = counts.copy()
    lasts = np.cumsum(counts) - 1
    nonempty = counts > 0
    counted[nonempty] -= firsts[by_first][lasts[nonempty]] == ends[nonempty] - 1
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
    sizes = np.full(len(counts), _FIRST_SIZE)
    size = _FIRST_SIZE
    while (too_small := counted > size // 4 * 3).any():
        size *= 2
        sizes[too_small] = size
    if len(segments) and np.bincount(segments * _FIRST_SIZE + bins % _FIRST_SIZE).max() >= _CROWDED:
        _widen_for_crowds(sizes, bins, counts, counted)
    return np.maximum.accumulate(sizes)


def _widen_for_crowds(sizes: Numbers, bins: Numbers, counts: Numbers, counted: Numbers) -> None:
    """Apply the doublings caused by crowded bins. Iterates over ids while the table is small."""
    size = _FIRST_SIZE
    at = 0
    for segment, (count, final_count) in enumerate(zip(counts.tolist(), counted.tolist(), strict=True)):
        ids = bins[at : at + count].tolist()
        at += count
        for number, one in enumerate(ids):
            if size >= _SIZE_WITH_TREES:
                break
            if number > size // 4 * 3:
                size *= 2
            if sum((one ^ other) % size == 0 for other in ids[:number]) >= _CROWDED - 1:
                size *= 2
        while final_count > size // 4 * 3:
            size *= 2
        sizes[segment] = max(sizes[segment], size)
        size = int(sizes[segment])
