"""Whose turn it is, where several have something to give and the first of them is always to come first, but for this:
nobody is passed over for ever."""

from __future__ import annotations

from collections.abc import Sequence

MOST_PASSED_OVER = 8
"""So often in a row somebody who has something is passed over at most."""


class Turns:
    def __init__(self, count: int) -> None:
        self._natural = list(range(count))
        self._passed = [0] * count
        # Where all but the first are out of patience at once, the last of them waits for the others.
        self._patience = MOST_PASSED_OVER - (count - 2)

    def order(self) -> Sequence[int]:
        if max(self._passed) < self._patience:
            return self._natural
        return sorted(self._natural, key=lambda one: (self._passed[one] < self._patience, -self._passed[one], one))

    def had(self, one: int) -> None:
        """It had its turn, or has nothing to give."""
        self._passed[one] = 0

    def passed_over(self, one: int) -> None:
        self._passed[one] += 1
