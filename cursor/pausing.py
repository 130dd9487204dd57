"""The limit of PIP-299: dispatching pauses while a cursor's state, as it was last written, is at it."""

from __future__ import annotations

from collections.abc import Callable

from bookstand.cursor.flushing import Flushing


class Pausing:
    """``limit`` is in bytes; below 1 there is none."""

    def __init__(self, flushing: Flushing, limit: int) -> None:
        self._flushing = flushing
        self._limit = limit
        # What dispatchers were told last.
        self._told = self.paused
        self.on_pause: list[Callable[[], object]] = []
        self.on_resume: list[Callable[[], object]] = []

    def change_limit(self, limit: int) -> None:
        """Replace the limit, and report a pause that begins or ends by it."""
        self._limit = limit
        self.tell()

    @property
    def paused(self) -> bool:
        """Whether the state is too large. In the old form also where its limits keep a part from being written."""
        return self._flushing.left_out or (self._limit >= 1 and self._flushing.state_size >= self._limit)

    def tell(self) -> None:
        """The state may have been written: call those who want to know, if it makes a difference."""
        paused = self.paused
        if paused != self._told:
            self._told = paused
            for callback in self.on_pause if paused else self.on_resume:
                callback()
