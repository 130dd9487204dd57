"""Time up to which messages are due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookstand.delivery.tracker.protocol import LARGEST

if TYPE_CHECKING:
    from bookstand.storage.clock import Clock


class DueCutoff:
    """Clock of a tracker. Without ``strict``, messages are due up to one ``tick`` before their time."""

    def __init__(self, clock: Clock, tick: int, strict: bool) -> None:
        self._clock = clock
        self._strict = strict
        self.tick = tick

    @property
    def now(self) -> int:
        return self._clock.now()

    @property
    def time(self) -> int:
        """The latest time that is due now."""
        now = self._clock.now()
        return min(now if self._strict else now + self.tick, LARGEST)
