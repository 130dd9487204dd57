"""Runs of messages that come in order, found by nothing but comparing neighbours.

Where rows have one ledger, times do not go back and entries go up, both ends tell the rest: a bucket that is the same
at both is the same between them, and entries that differ by as much as there are rows follow one another. So every
column is read once, and nothing is worked out for each row.
"""

from __future__ import annotations

import numpy as np

from bookstand.delivery.time_index.precision import PowerOfTwoPrecision
from bookstand.delivery.time_index.rows import Column, Run

_SAMPLE = 16
# Runs are looked at one by one here: shorter ones are found faster all at once.
_LONG = 512


def runs_in_order(precision: PowerOfTwoPrecision, times: Column, ledgers: Column, entries: Column) -> list[Run] | None:
    """None: they are not in order, or so short, or with such gaps, that there are better ways to find them; or there
    are ids below 0."""
    length = len(times)
    most = length // _LONG + 2
    if not 0 <= times.item(-1) - times.item(0) <= most * precision.step or _has_gaps(entries):
        return None
    breaks = np.not_equal(ledgers[1:], ledgers[:-1])
    other = np.less_equal(entries[1:], entries[:-1])
    breaks |= other
    np.less(times[1:], times[:-1], out=other)
    breaks |= other
    ends = breaks.nonzero()[0]
    if len(ends) >= most:
        return None
    ends += 1
    rows: list[Run] = []
    start = 0
    for end in (*ends.tolist(), length):
        while start < end:
            time, ledger, first = times.item(start), ledgers.item(start), entries.item(start)
            key, last = precision.bucket(time)
            stop = end if times.item(end - 1) <= last else start + int(times[start:end].searchsorted(last, "right"))
            if entries.item(stop - 1) - first != stop - 1 - start or ledger < 0 or first < 0 or len(rows) == most:
                return None
            rows.append((key, ledger, first, stop - start))
            start = stop
    return rows


def is_run(entries: Column) -> bool:
    """Whether they follow one another, and are ids."""
    count, first = len(entries), entries.item(0)
    if first < 0 or entries.item(-1) - first != count - 1:
        return False
    return bool(np.count_nonzero(entries[1:] > entries[:-1]) == count - 1)


def _has_gaps(entries: Column) -> bool:
    """Whether already the first ones do not follow one another."""
    last = min(_SAMPLE, len(entries)) - 1
    return bool(entries.item(last) - entries.item(0) != last)
