"""Detection of runs in ordered messages by comparing neighbors.

If rows have one ledger, ascending entries and times that do not decrease, their first and last row are enough: a bucket
that is equal at both ends is equal in between, and entries whose difference matches the number of rows are consecutive.
Each column is therefore read once, without computing a bucket per row.
"""

from __future__ import annotations

import numpy as np

from bookstand.delivery.time_index.precision import PowerOfTwoPrecision
from bookstand.delivery.time_index.rows import Column, Run

_SAMPLE = 16
# The loop handles runs one by one, which is slower than vectorized code for shorter runs.
_MIN_MEAN_RUN = 512


def runs_in_order(precision: PowerOfTwoPrecision, times: Column, ledgers: Column, entries: Column) -> list[Run] | None:
    """Return the runs; None if the rows are unordered, have gaps or negative ids, or their runs are too short."""
    length = len(times)
    max_runs = length // _MIN_MEAN_RUN + 2
    if not 0 <= times.item(-1) - times.item(0) <= max_runs * precision.step or _has_gaps(entries):
        return None
    breaks = np.not_equal(ledgers[1:], ledgers[:-1])
    other = np.less_equal(entries[1:], entries[:-1])
    breaks |= other
    np.less(times[1:], times[:-1], out=other)
    breaks |= other
    ends = breaks.nonzero()[0]
    if len(ends) >= max_runs:
        return None
    ends += 1
    rows: list[Run] = []
    start = 0
    for end in (*ends.tolist(), length):
        while start < end:
            time, ledger, first = times.item(start), ledgers.item(start), entries.item(start)
            key, last = precision.bucket(time)
            stop = end if times.item(end - 1) <= last else start + int(times[start:end].searchsorted(last, "right"))
            if entries.item(stop - 1) - first != stop - 1 - start or ledger < 0 or first < 0 or len(rows) == max_runs:
                return None
            rows.append((key, ledger, first, stop - start))
            start = stop
    return rows


def is_run(entries: Column) -> bool:
    """Return True if the entries are consecutive, valid ids."""
    count, first = len(entries), entries.item(0)
    if first < 0 or entries.item(-1) - first != count - 1:
        return False
    return bool(np.count_nonzero(entries[1:] > entries[:-1]) == count - 1)


def _has_gaps(entries: Column) -> bool:
    last = min(_SAMPLE, len(entries)) - 1
    return bool(entries.item(last) - entries.item(0) != last)
