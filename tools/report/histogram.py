"""Counts of values in as many bins as a chart has columns. No I/O.

Memory depends on the size of the chart, not of the input. Results depend on the input alone: neither on its order nor
on how it is split into calls.
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
"""Bin widths in ms, as on clocks. Above one day, widths double. Each width divides the next one, so bins begin at full
hours, and a coarser count is the sum of finer ones."""


def steps() -> Iterator[int]:
    yield from _STEPS
    step = _DAY
    while True:
        step *= 2
        yield step


def step_for(first: int, last: int, bins: int) -> int:
    """Smallest width for which the times from ``first`` through ``last`` need at most ``bins`` bins."""
    return next(step for step in steps() if last // step - first // step < bins)


class Histogram(NamedTuple):
    """Times in ms since 1970 by bin: ``counts[n]`` is for ``first + n * step`` up to, but excluding, the next bin."""

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
    """Incremental histogram of times; bins are widened when their number no longer suffices."""

    def __init__(self, bins: int) -> None:
        self._bins = bins
        self._step = 1
        # Keyed by bin number, counted from 1970.
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
        """Return the histogram without empty bins at either end; None if nothing was counted."""
        if not self._counts:
            return None
        first, last = min(self._counts), max(self._counts)
        counts = np.zeros(last - first + 1, np.int64)
        for number, count in self._counts.items():
            counts[number - first] = count
        return Histogram(first * self._step, self._step, counts)


class CoverageStrip(NamedTuple):
    """Coverage of a line by bin: the number of covered positions, and of runs that begin in the bin. Bin n is from
    ``edges[n]`` up to, but excluding, ``edges[n + 1]``."""

    edges: Counts
    covered: Counts
    runs: Counts


class CoverageBins:
    """Runs of positions on a line, counted in bins whose widths differ by at most one."""

    def __init__(self, total: int, bins: int) -> None:
        bins = min(bins, total)
        # Python integers, because the product may exceed int64.
        self._edges = np.array([total * number // max(bins, 1) for number in range(bins + 1)], np.int64)
        self._covered = np.zeros(bins, np.int64)
        self._runs = np.zeros(bins, np.int64)
        # Bins between the first and the last one of a run are covered completely. This is a difference array: +1 where
        # such bins begin, -1 after them.
        self._whole = np.zeros(bins + 1, np.int64)

    def add(self, firsts: Counts, ends: Counts, count: bool = True) -> None:
        """Add the runs from each first position up to, but excluding, its end. Runs are not empty and do not overlap.
        ``count``: also count them as runs."""
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
