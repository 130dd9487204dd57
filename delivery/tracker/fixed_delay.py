"""Detection of a fixed delay: if all messages have the same delay, none read later can be due earlier."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class FixedDelay:
    """Detector that requires ``lookahead`` tracked messages; 0 or less disables it."""

    __slots__ = ("_highest", "_is_consistent", "_lookahead")

    def __init__(self, lookahead: int) -> None:
        self._lookahead = lookahead
        self.reset()

    def change_lookahead(self, lookahead: int) -> None:
        self._lookahead = lookahead

    def reset(self) -> None:
        """Restart the detection, because no message is tracked."""
        self._is_consistent = True
        self._highest = 0

    def rule_out(self) -> None:
        """Record a message that was due when it was added."""
        self._is_consistent = False

    def observe(self, deliver_at: int, tick: int) -> None:
        if deliver_at < self._highest - tick:
            self._is_consistent = False
        elif deliver_at > self._highest:
            self._highest = deliver_at

    def observe_many(self, deliver_at: NDArray[np.int64], tick: int) -> None:
        if not self._is_consistent or not len(deliver_at):
            return
        highest = np.maximum(np.maximum.accumulate(deliver_at), self._highest)
        # Times are not negative here, so the difference cannot overflow.
        self._is_consistent = bool((deliver_at >= highest - tick).all())
        self._highest = int(highest[-1])

    def is_fixed(self, tracked: int) -> bool:
        return self._lookahead > 0 and self._is_consistent and tracked >= self._lookahead
