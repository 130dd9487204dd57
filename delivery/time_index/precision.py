"""Precision of delivery times: rounding of a timestamp to its bucket, which is a timestamp in milliseconds.

``PowerOfTwoPrecision`` rounds every timestamp alike, down or up. :func:`relative` rounds down, more coarsely for longer
delays.
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
        """Return the bucket of a timestamp that is added now."""

    def keys(self, timestamps: Times) -> Times:
        """Return the bucket of each timestamp."""

    def possible_keys(self, timestamp: int) -> list[int]:
        """Return every bucket that the timestamp may have been put into, at any time."""


class PowerOfTwoPrecision:
    """Timestamps rounded down, or up, to a multiple of ``2**bits``.

    Timestamps above the largest multiple round up to the largest timestamp.
    """

    def __init__(self, bits: int = 0, round_up: bool = False) -> None:
        if isinstance(bits, bool) or not isinstance(bits, int) or not 0 <= bits <= MAX_BITS:
            raise IncorrectParameterError(f"precision must be 0 to {MAX_BITS} low bits, not {bits!r}")
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
        """Return the bucket of a timestamp, and the largest timestamp in that bucket."""
        key = self.key(timestamp)
        return key, key if self._up else key + self.step - 1


class _Relative:
    def __init__(self, fraction: float, finest: int, coarsest: int, clock: Clock) -> None:
        if not 0 < fraction < 1:
            raise IncorrectParameterError(f"precision must be a fraction between 0 and 1, not {fraction!r}")
        if not 1 <= finest <= coarsest <= 1 << 40:
            raise IncorrectParameterError(
                f"finest and coarsest must be from 1 to {1 << 40} ms, finest not above coarsest,"
                f" not {finest!r} and {coarsest!r}"
            )
        self._fraction = fraction
        self._clock = clock
        # Powers of two, so that buckets of different widths are aligned.
        self._steps = [1 << n for n in range(coarsest.bit_length()) if finest <= 1 << n <= coarsest]
        # Minimum remaining milliseconds for each step to be within the fraction.
        self._min_remaining = [math.ceil(step / fraction) for step in self._steps]
        self._masks = np.array([-1, *(-step for step in self._steps)], dtype=np.int64)

    def key(self, timestamp: int) -> int:
        remaining = timestamp - self._clock.now()
        key = timestamp
        for step, minimum in zip(self._steps, self._min_remaining, strict=True):
            if remaining < minimum:
                break
            key = timestamp & -step
        return key

    def keys(self, timestamps: Times) -> Times:
        if not self._steps:
            return timestamps
        now = self._clock.now()
        # Compare points in time: the difference of two times may overflow.
        points = [now + minimum for minimum in self._min_remaining if now + minimum <= MAX_TIME]
        masks: Times = self._masks[np.searchsorted(np.array(points, dtype=np.int64), timestamps, side="right")]
        return timestamps & masks

    def possible_keys(self, timestamp: int) -> list[int]:
        return sorted({timestamp, *(timestamp & -step for step in self._steps)})


def relative(fraction: float, *, finest: int = 16, coarsest: int = 60_000, clock: Clock | None = None) -> Precision:
    """Round down by less than ``fraction`` of the remaining delay at the time of the addition.

    Bucket widths are powers of two from ``finest`` to ``coarsest`` milliseconds. Delays too short for ``finest`` stay
    exact: below 1.6 s at 1 %. At 1 % the default ``coarsest``, a minute, applies to delays over an hour. Timestamps in
    the past stay exact.
    """
    return _Relative(fraction, finest, coarsest, SystemClock() if clock is None else clock)
