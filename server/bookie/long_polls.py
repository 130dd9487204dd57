"""Long polls: reads that wait for a ledger's last-add-confirmed (LAC) to advance."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import islice

from bookstand.errors import StoreDamagedError
from bookstand.server.bookie.bookie import Bookie
from bookstand.storage.format.schema import MAX_ENTRY_ID
from bookstand.storage.served.replica_reader import ReplicaReader

# Interval (s) of polling for LACs that other writers than the server's clients have confirmed.
_LOOK_INTERVAL = 0.05
LEDGERS_AT_ONCE = 1_000
"""Number of ledgers read in one turn of the loop, so that other connections are not delayed."""
READS_AT_ONCE = 1_000
"""Number of reads answered in one turn of the loop."""
# The heap is rebuilt when its stale LACs exceed the live ones by this number.
_STALE_LACS = 16

Ready = Callable[[bool], None]
"""Called once: True if the LAC has advanced, False on timeout."""


class _Waiting:
    __slots__ = ("ledger_id", "previous_lac", "ready", "timer")

    def __init__(self, ledger_id: int, previous_lac: int, ready: Ready) -> None:
        self.ledger_id = ledger_id
        self.previous_lac = previous_lac
        self.ready = ready
        self.timer: asyncio.TimerHandle | None = None

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class _Ledger:
    """Waiting reads of one ledger, by the LAC that their clients know. Adding and removing a read takes constant time
    apart from the heap; a new LAC touches only the reads that it completes."""

    def __init__(self) -> None:
        self._by_lac: dict[int, dict[_Waiting, None]] = {}
        # A heap. LACs without a waiting read are removed lazily.
        self._lacs: list[int] = []

    def add(self, waiting: _Waiting) -> None:
        group = self._by_lac.get(waiting.previous_lac)
        if group is None:
            group = self._by_lac[waiting.previous_lac] = {}
            heappush(self._lacs, waiting.previous_lac)
        group[waiting] = None

    def remove(self, waiting: _Waiting) -> bool:
        """Remove a read; False if it was not waiting."""
        group = self._by_lac.get(waiting.previous_lac)
        if group is None or waiting not in group:
            return False
        del group[waiting]
        if not group:
            del self._by_lac[waiting.previous_lac]
            if len(self._lacs) > 2 * len(self._by_lac) + _STALE_LACS:
                self._lacs = sorted(self._by_lac)
        return True

    def take_below(self, lac: int) -> list[_Waiting]:
        """Remove and return the reads that a new LAC completes."""
        found: list[_Waiting] = []
        while self._lacs and self._lacs[0] < lac:
            found += self._by_lac.pop(heappop(self._lacs), ())
        return found

    def all(self) -> list[_Waiting]:
        return [waiting for group in self._by_lac.values() for waiting in group]

    def __bool__(self) -> bool:
        return bool(self._by_lac)


class LongPolls:
    """The waiting reads of one bookie."""

    def __init__(self, bookie: Bookie, loop: asyncio.AbstractEventLoop) -> None:
        self._bookie = bookie
        self._loop = loop
        self._ledgers: dict[int, _Ledger] = {}
        self._look: asyncio.TimerHandle | None = None
        self._seen_commit = -1
        # Ledgers whose LAC has not been read since that commit.
        self._unseen: list[int] = []

    def wait(self, ledger_id: int, previous_lac: int, seconds: float, ready: Ready) -> Callable[[], object]:
        """Register a waiting read. Return a function that cancels it without a response."""
        waiting = _Waiting(ledger_id, previous_lac, ready)
        self._ledgers.setdefault(ledger_id, _Ledger()).add(waiting)
        waiting.timer = self._loop.call_later(seconds, self._time_out, waiting)
        if self._look is None:
            self._look = self._loop.call_later(_LOOK_INTERVAL, self._look_around)
        return partial(self._forget, waiting)

    def confirmed(self, ledger_id: int, lac: int) -> None:
        """Complete the waiting reads whose clients know a lower LAC."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return
        ended = ledger.take_below(lac)
        if not ledger:
            del self._ledgers[ledger_id]
        for waiting in ended:
            waiting.stop_timer()
        self._end_some(iter(ended))

    def _end_some(self, ended: Iterator[_Waiting]) -> None:
        """Answer some of the reads, and the rest in later turns of the loop, to not delay other connections."""
        some = list(islice(ended, READS_AT_ONCE))
        if len(some) == READS_AT_ONCE:
            self._loop.call_soon(self._end_some, ended)
        for waiting in some:
            waiting.ready(True)

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
        for waiting in [one for ledger in self._ledgers.values() for one in ledger.all()]:
            self._forget(waiting)

    def _time_out(self, waiting: _Waiting) -> None:
        if self._forget(waiting):
            waiting.ready(False)

    def _forget(self, waiting: _Waiting) -> bool:
        """Remove a read and stop its timer; False if it was not waiting."""
        ledger = self._ledgers.get(waiting.ledger_id)
        if ledger is None or not ledger.remove(waiting):
            return False
        if not ledger:
            del self._ledgers[waiting.ledger_id]
        waiting.stop_timer()
        return True

    def _look_around(self) -> None:
        """Poll for LACs confirmed by other writers of the store, in this process and in others."""
        self._look = None
        if not self._ledgers:
            self._unseen.clear()
            return
        self._look = self._loop.call_later(_LOOK_INTERVAL, self._look_around)
        if not self._unseen:
            commit = self._bookie.storage.last_commit
            if commit == self._seen_commit:
                return
            self._seen_commit = commit
            self._unseen = list(self._ledgers)
        some = self._unseen[-LEDGERS_AT_ONCE:]
        del self._unseen[-LEDGERS_AT_ONCE:]
        with self._bookie.view() as view:
            lacs = {ledger_id: _lac_of(view, ledger_id) for ledger_id in some if ledger_id in self._ledgers}
        for ledger_id, lac in lacs.items():
            self.confirmed(ledger_id, lac)


def _lac_of(view: ReplicaReader, ledger_id: int) -> int:
    """LAC of a ledger; MAX_ENTRY_ID for a damaged one, so that its waiting reads end and report the damage."""
    try:
        ledger = view.ledger(ledger_id)
    except StoreDamagedError:
        return MAX_ENTRY_ID
    return -1 if ledger is None else ledger.lac
