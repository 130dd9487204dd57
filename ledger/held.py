"""A lock that is held for a block, or only for its beginning."""

from __future__ import annotations

from threading import RLock


class Held:
    __slots__ = ("_held", "_lock")

    def __init__(self, lock: RLock) -> None:
        self._lock = lock
        self._held = False

    def __enter__(self) -> Held:
        self._lock.acquire()
        self._held = True
        return self

    def let_go(self) -> None:
        if self._held:
            self._held = False
            self._lock.release()

    def __exit__(self, *_: object) -> None:
        self.let_go()
