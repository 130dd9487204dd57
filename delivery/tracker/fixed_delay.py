"""Whether all messages come with the same delay, so that none further on can be due before those that wait."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class FixedDelay:
    """``lookahead``: how many must wait before it is believed; 0 or less: never."""

    __slots__ = ("_highest", "_lookahead", "holds")

    def __init__(self, lookahead: int) -> None:
        self._lookahead = lookahead
        self.reset()

    def change_lookahead(self, lookahead: int) -> None:
        """Believe it from this many messages on."""
        self._lookahead = lookahead

    def reset(self) -> None:
        """Nothing waits: it begins anew."""
        self.holds = True
        self._highest = 0

    def broken(self) -> None:
        """A message was due at once."""
        self.holds = False

    def see(self, deliver_at: int, tick: int) -> None:
        if deliver_at < self._highest - tick:
            self.holds = False
        elif deliver_at > self._highest:
            self._highest = deliver_at

    def see_many(self, deliver_at: NDArray[np.int64], tick: int) -> None:
        if not self.holds or not len(deliver_at):
            return
        highest = np.maximum(np.maximum.accumulate(deliver_at), self._highest)
        # Times are at least 0 here and a tick is less than they can be: nothing overflows.
        self.holds = bool((deliver_at >= highest - tick).all())
        self._highest = int(highest[-1])

    def believed(self, waiting: int) -> bool:
        return self._lookahead > 0 and self.holds and waiting >= self._lookahead
