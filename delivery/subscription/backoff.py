"""Delays before redeliveries, which grow with the number of redeliveries."""

from __future__ import annotations

from math import floor, inf
from typing import Protocol

from bookstand.errors import IncorrectParameterError

LONGEST = (1 << 63) - 1


class RedeliveryBackoff(Protocol):
    """Computes the delay of each redelivery, in place of a fixed delay."""

    def next(self, redelivery_count: int) -> int:
        """Return the delay in milliseconds before the next redelivery."""


class MultiplierRedeliveryBackoff:
    """Exponential backoff from ``min`` to ``max`` milliseconds, by ``multiplier`` for each redelivery."""

    __slots__ = ("max", "min", "multiplier")

    def __init__(self, min: int = 1000, max: int = 60_000, multiplier: float = 2.0) -> None:
        if not _is_millis(min):
            raise IncorrectParameterError(f"min must be a non-negative integer (milliseconds), not {min!r}")
        if not _is_millis(max) or max < min:
            raise IncorrectParameterError(f"max must be an integer (milliseconds) of at least min, {min}, not {max!r}")
        if isinstance(multiplier, bool) or not isinstance(multiplier, int | float) or not 1 < multiplier < inf:
            raise IncorrectParameterError(f"multiplier must be a number above 1, not {multiplier!r}")
        self.min = min
        self.max = max
        self.multiplier = multiplier

    def next(self, redelivery_count: int) -> int:
        """Return the delay in milliseconds before the next redelivery."""
        if redelivery_count <= 0 or not self.min:
            return self.min
        try:
            # Rounded down, as in Pulsar.
            longer = floor(self.min * float(self.multiplier) ** redelivery_count)
        except OverflowError:
            return self.max
        return min(longer, self.max)

    def __repr__(self) -> str:
        return f"MultiplierRedeliveryBackoff(min={self.min}, max={self.max}, multiplier={self.multiplier})"


def _is_millis(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LONGEST
