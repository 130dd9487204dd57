"""Reads that wait for a ledger's last-add-confirmed to go beyond what the client knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bookstand.server.bookie.bookie import Bookie

# How often to look for what others than the server's clients have confirmed.
_LOOK_INTERVAL = 0.05

Ready = Callable[[bool], None]
"""Called once: True where the LAC has come, False where the time is over."""


class _Waiting:
    __slots__ = ("ledger_id", "previous_lac", "ready", "timer")

    def __init__(self, ledger_id: int, previous_lac: int, ready: Ready) -> None:
        self.ledger_id = ledger_id
        self.previous_lac = previous_lac
        self.ready = ready
        self.timer: asyncio.TimerHandle | None = None


class LongPolls:
    """Those of one bookie."""

    def __init__(self, bookie: Bookie, loop: asyncio.AbstractEventLoop) -> None:
        self._bookie = bookie
        self._loop = loop
        self._waiting: dict[int, list[_Waiting]] = {}
        self._look: asyncio.TimerHandle | None = None
        self._seen_commit = -1

    def wait(self, ledger_id: int, previous_lac: int, seconds: float, ready: Ready) -> Callable[[], None]:
        """Returns what ends the waiting without an answer."""
        waiting = _Waiting(ledger_id, previous_lac, ready)
        self._waiting.setdefault(ledger_id, []).append(waiting)
        waiting.timer = self._loop.call_later(seconds, self._end, waiting, False)
        if self._look is None:
            self._look = self._loop.call_later(_LOOK_INTERVAL, self._look_around)

        def stop() -> None:
            self._forget(waiting)

        return stop

    def confirmed(self, ledger_id: int, lac: int) -> None:
        """A ledger's LAC has come to be that."""
        for waiting in list(self._waiting.get(ledger_id, ())):
            if lac > waiting.previous_lac:
                self._end(waiting, True)

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
        for waiting in [one for several in self._waiting.values() for one in several]:
            self._forget(waiting)

    def _end(self, waiting: _Waiting, come: bool) -> None:
        if self._forget(waiting):
            waiting.ready(come)

    def _forget(self, waiting: _Waiting) -> bool:
        several = self._waiting.get(waiting.ledger_id, [])
        if waiting not in several:
            return False
        several.remove(waiting)
        if not several:
            del self._waiting[waiting.ledger_id]
        if waiting.timer is not None:
            waiting.timer.cancel()
        return True

    def _look_around(self) -> None:
        """Writers of the store, and other processes, tell nobody here."""
        self._look = None
        if not self._waiting:
            return
        self._look = self._loop.call_later(_LOOK_INTERVAL, self._look_around)
        commit = self._bookie.storage.last_commit
        if commit == self._seen_commit:
            return
        self._seen_commit = commit
        with self._bookie.view() as view:
            lacs = {ledger_id: view.ledger(ledger_id) for ledger_id in self._waiting}
        for ledger_id, ledger in lacs.items():
            if ledger is not None:
                self.confirmed(ledger_id, ledger.lac)
