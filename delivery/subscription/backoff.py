"""How long a message that keeps failing is kept back, the longer the more often it was given out."""

from __future__ import annotations

from math import floor, inf
from typing import Protocol

from bookstand.errors import IncorrectParameterError

LONGEST = (1 << 63) - 1


class RedeliveryBackoff(Protocol):
    """What decides the delay in place of a fixed one."""

    def next(self, redelivery_count: int) -> int:
        """Milliseconds to wait after the message was delivered again so many times."""


class MultiplierRedeliveryBackoff:
    """``min`` milliseconds at first, ``multiplier`` times as many each time, ``max`` at most."""

    __slots__ = ("max", "min", "multiplier")

    def __init__(self, min: int = 1000, max: int = 60_000, multiplier: float = 2.0) -> None:
        if not _is_millis(min):
            raise IncorrectParameterError(f"the shortest delay is a number of milliseconds from 0 up, not {min!r}")
        if not _is_millis(max) or max < min:
            raise IncorrectParameterError(f"the longest delay is at least the shortest, {min}, not {max!r}")
        if isinstance(multiplier, bool) or not isinstance(multiplier, int | float) or not 1 < multiplier < inf:
            raise IncorrectParameterError(f"the multiplier is a number above 1, not {multiplier!r}")
        self.min = min
        self.max = max
        self.multiplier = multiplier

    def next(self, redelivery_count: int) -> int:
        """Milliseconds to wait after the message was delivered again so many times."""
        if redelivery_count <= 0 or not self.min:
            return self.min
        try:
            # Down to the whole millisecond, as the original counts.
            longer = floor(self.min * float(self.multiplier) ** redelivery_count)
        except OverflowError:
            return self.max
        return min(longer, self.max)

    def __repr__(self) -> str:
        return f"MultiplierRedeliveryBackoff(min={self.min}, max={self.max}, multiplier={self.multiplier})"


def _is_millis(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LONGEST
