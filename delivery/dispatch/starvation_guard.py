"""Turns of sources that compete for room: the first source has precedence, but none is passed over for long."""

from __future__ import annotations

from collections.abc import Sequence

MAX_SKIPS = 8
"""The number of times in a row that a source with messages is passed over at most."""


class StarvationGuard:
    """``first_stays``: the first source always has precedence; only the others take turns."""

    def __init__(self, count: int, first_stays: bool = False) -> None:
        self._natural = list(range(count))
        self._passed = [0] * count
        # If all but the first run out of patience at once, the last of them waits for the others.
        self._patience = MAX_SKIPS - (count - 2)
        self._first_stays = first_stays

    def order(self) -> Sequence[int]:
        if max(self._passed) < self._patience:
            return self._natural
        return sorted(self._natural, key=self._precedence)

    def _precedence(self, place: int) -> tuple[bool, bool, int, int]:
        passed = self._passed[place]
        return place > 0 and self._first_stays, passed < self._patience, -passed, place

    def served(self, place: int) -> None:
        """Note that a source had its turn, or has no messages."""
        self._passed[place] = 0

    def skipped(self, place: int) -> None:
        self._passed[place] += 1
