"""Encoding of the ids of a ledger's entries on a bookie: BookKeeper's AvailabilityOfEntriesOfLedger.

::

    0         4        8                       64
    +---------+--------+-----------------------+---------------------------------------
    | version | groups | zeros                 | groups of 24 bytes
    +---------+--------+-----------------------+---------------------------------------
      int32 0   int32                            int64 first start | int64 last start | int32 size | int32 period

A group is a number of equally long sequences of entries whose starts are ``period`` apart; 0 for a single sequence.
A sequence whose distance exceeds the range of ``period`` is a group with one sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct

_HEADER = Struct(">ii56x")
_GROUP = Struct(">qqii")
assert (_HEADER.size, _GROUP.size) == (64, 24)
_LONGEST_PERIOD = (1 << 31) - 1


def encode(entry_ids: Iterable[int]) -> bytes:
    """Encode ascending entry ids. Negative ids are omitted, as by BookKeeper."""
    groups = list(_groups(_sequences(entry_ids)))
    return _HEADER.pack(0, len(groups)) + b"".join([_GROUP.pack(*group) for group in groups])


def _sequences(entry_ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield (start, size) of each sequence of consecutive ids."""
    start = size = 0
    for entry_id in entry_ids:
        if entry_id < 0:
            continue
        if size and entry_id == start + size:
            size += 1
            continue
        if size:
            yield start, size
        start, size = entry_id, 1
    if size:
        yield start, size


def _groups(sequences: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int, int]]:
    first = last = size = period = 0
    for start, length in sequences:
        if size == length and period in (0, start - last) and start - last <= _LONGEST_PERIOD:
            period = start - last
        else:
            if size:
                yield first, last, size, period
            first, size, period = start, length, 0
        last = start
    if size:
        yield first, last, size, period
