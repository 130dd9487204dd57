"""How coarse a time may be: the bucket, a number of milliseconds again, that a timestamp goes to.

``PowerOfTwoPrecision`` is the same for every timestamp, and may round up; :func:`relative` is the coarser the longer
there is to wait, and always rounds down. Both have the same three methods.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from bookstand.errors import IncorrectParameterError
from bookstand.storage.clock import SystemClock

if TYPE_CHECKING:
    from bookstand.storage.clock import Clock

Times = NDArray[np.int64]

MIN_TIME = -(1 << 63)
MAX_TIME = (1 << 63) - 1
MAX_BITS = 62


class Precision(Protocol):
    def key(self, timestamp: int) -> int:
        """The bucket of a timestamp that is added now."""

    def keys(self, timestamps: Times) -> Times:
        """The same for a column."""

    def possible_keys(self, timestamp: int) -> list[int]:
        """Every bucket that the timestamp can have been put into, whenever that was."""


class PowerOfTwoPrecision:
    """Timestamps rounded down, or up, to a multiple of ``2**bits``.

    Up from beyond the last multiple there is none, and the last millisecond of all stands for it.
    """

    def __init__(self, bits: int = 0, round_up: bool = False) -> None:
        if isinstance(bits, bool) or not isinstance(bits, int) or not 0 <= bits <= MAX_BITS:
            raise IncorrectParameterError(f"the precision is 0 to {MAX_BITS} low bits, not {bits!r}")
        self._mask = -1 << bits
        self.step = 1 << bits
        self._up = self.step - 1 if round_up else 0

    def key(self, timestamp: int) -> int:
        if self._up and timestamp > MAX_TIME - self._up:
            return MAX_TIME
        return (timestamp + self._up) & self._mask

    def keys(self, timestamps: Times) -> Times:
        if self.step == 1:
            return timestamps
        if not self._up:
            return timestamps & self._mask
        rounded: Times = (np.minimum(timestamps, MAX_TIME - self._up) + self._up) & self._mask
        rounded[timestamps > MAX_TIME - self._up] = MAX_TIME
        return rounded

    def possible_keys(self, timestamp: int) -> list[int]:
        return [self.key(timestamp)]

    def bucket(self, timestamp: int) -> tuple[int, int]:
        """The bucket of a timestamp, and the last one that goes to it."""
        key = self.key(timestamp)
        return key, key if self._up else key + self.step - 1


class _Relative:
    def __init__(self, fraction: float, finest: int, coarsest: int, clock: Clock) -> None:
        if not 0 < fraction < 1:
            raise IncorrectParameterError(f"the precision is a fraction between 0 and 1, not {fraction!r}")
        if not 1 <= finest <= coarsest <= 1 << 40:
            raise IncorrectParameterError(
                f"buckets have from 1 to {1 << 40} ms, and the finest no more than the coarsest,"
                f" unlike {finest!r} and {coarsest!r}"
            )
        self._fraction = fraction
        self._clock = clock
        # Powers of two, so that a coarser bucket begins where a finer one does.
        self._steps = [1 << n for n in range(coarsest.bit_length()) if finest <= 1 << n <= coarsest]
        # From how many remaining milliseconds on each step is a small enough part of them.
        self._from = [math.ceil(step / fraction) for step in self._steps]
        self._masks = np.array([-1, *(-step for step in self._steps)], dtype=np.int64)

    def key(self, timestamp: int) -> int:
        remaining = timestamp - self._clock.now()
        key = timestamp
        for step, least in zip(self._steps, self._from, strict=True):
            if remaining < least:
                break
            key = timestamp & -step
        return key

    def keys(self, timestamps: Times) -> Times:
        if not self._steps:
            return timestamps
        now = self._clock.now()
        # Compared with points in time, not subtracted: a difference of two times may not be one.
        points = [now + least for least in self._from if now + least <= MAX_TIME]
        masks: Times = self._masks[np.searchsorted(np.array(points, dtype=np.int64), timestamps, side="right")]
        return timestamps & masks

    def possible_keys(self, timestamp: int) -> list[int]:
        return sorted({timestamp, *(timestamp & -step for step in self._steps)})


def relative(fraction: float, *, finest: int = 16, coarsest: int = 60_000, clock: Clock | None = None) -> Precision:
    """Early by less than ``fraction`` of what remains when the timestamp is added, and never late.

    Buckets have a power of two of milliseconds. Those below ``finest`` would save little, and times that would go to
    one stay exact: at 1 % delays below 1.6 s. None is longer than ``coarsest``: a minute by default, which 1 % reaches
    at a delay of an hour. Timestamps that have passed stay exact.
    """
    return _Relative(fraction, finest, coarsest, SystemClock() if clock is None else clock)
