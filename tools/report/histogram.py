"""Many of something, counted into as many bins as a picture has columns. No I/O.

What goes in is as large as it likes; what is kept is as large as the picture. What comes out depends on what went in
alone, and not on its order, nor on how it was divided.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_STEPS = (
    *(1, 2, 10, 20, 100, 200, _SECOND, 5 * _SECOND, 15 * _SECOND, 30 * _SECOND),
    *(_MINUTE, 5 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE, _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY),
)
"""Widths of bins in ms: people know them from clocks, each fits a whole number of times into the next one, and days
are followed by twice as many each time. So bins begin at full hours, and a coarser count is the sum of finer ones."""


def steps() -> Iterator[int]:
    yield from _STEPS
    step = _DAY
    while True:
        step *= 2
        yield step


def step_for(first: int, last: int, bins: int) -> int:
    """The smallest width with which everything from first to last, both included, is in so many bins at most."""
    return next(step for step in steps() if last // step - first // step < bins)


class Histogram(NamedTuple):
    """``counts[n]`` is the number of times from ``first + n * step`` to less than one step later; in ms since 1970."""

    first: int
    step: int
    counts: Counts

    @property
    def end(self) -> int:
        return self.first + self.step * len(self.counts)

    @property
    def total(self) -> int:
        return int(self.counts.sum())


class TimeHistogram:
    """Counts times as they come, in bins that become wider when they no longer reach."""

    def __init__(self, bins: int) -> None:
        self._bins = bins
        self._step = 1
        # By the number of the bin, counted from 1970.
        self._counts: dict[int, int] = {}
        self._first = self._last = 0

    def add(self, times: NDArray[np.int64]) -> None:
        if not len(times):
            return
        low, high = int(times.min()), int(times.max())
        self._first = min(self._first, low) if self._counts else low
        self._last = max(self._last, high) if self._counts else high
        self._widen(step_for(self._first, self._last, self._bins))
        numbers, counts = np.unique(times // self._step, return_counts=True)
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._counts[number] = self._counts.get(number, 0) + count

    def _widen(self, step: int) -> None:
        if step == self._step:
            return
        together = step // self._step
        finer, self._counts, self._step = self._counts, {}, step
        for number, count in finer.items():
            number //= together
            self._counts[number] = self._counts.get(number, 0) + count

    def result(self) -> Histogram | None:
        """Without empty bins at either end; None: nothing was counted."""
        if not self._counts:
            return None
        first, last = min(self._counts), max(self._counts)
        counts = np.zeros(last - first + 1, np.int64)
        for number, count in self._counts.items():
            counts[number - first] = count
        return Histogram(first * self._step, self._step, counts)


class CoverageStrip(NamedTuple):
    """A line of ``total`` places in bins, the n-th of which is from ``edges[n]`` to less than ``edges[n + 1]``:
    how many places of it are covered, and how many runs begin in it."""

    edges: Counts
    covered: Counts
    runs: Counts


class CoverageBins:
    """Runs of places on a line, counted into bins of the same width, give or take one."""

    def __init__(self, total: int, bins: int) -> None:
        bins = min(bins, total)
        # By Python's numbers, for the product may be larger than a machine's.
        self._edges = np.array([total * number // max(bins, 1) for number in range(bins + 1)], np.int64)
        self._covered = np.zeros(bins, np.int64)
        self._runs = np.zeros(bins, np.int64)
        # Between the bins in which a run begins and ends it covers all of them: +1 where that begins, -1 behind it.
        self._whole = np.zeros(bins + 1, np.int64)

    def add(self, firsts: Counts, ends: Counts, count: bool = True) -> None:
        """From each first place to the one before its end; no run is empty, and no two touch the same place. ``count``:
        whether they count as runs."""
        begin = np.searchsorted(self._edges, firsts, "right") - 1
        last = np.searchsorted(self._edges, ends - 1, "right") - 1
        within = begin == last
        np.add.at(self._covered, begin[within], (ends - firsts)[within])
        across = ~within
        np.add.at(self._covered, begin[across], self._edges[begin[across] + 1] - firsts[across])
        np.add.at(self._covered, last[across], ends[across] - self._edges[last[across]])
        np.add.at(self._whole, begin[across] + 1, 1)
        np.add.at(self._whole, last[across], -1)
        if count:
            np.add.at(self._runs, begin, 1)

    def result(self) -> CoverageStrip:
        whole = np.cumsum(self._whole[:-1])
        return CoverageStrip(self._edges, self._covered + whole * np.diff(self._edges), self._runs)
