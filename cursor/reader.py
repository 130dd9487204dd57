"""Where whoever delivers a topic's messages stands, and what comes next: entries that are not acknowledged.

The position is one of a cursor's in memory, and is not stored: after a restart reading begins behind the mark-delete
position again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING

from bookstand.cursor.read_ahead import ReadAhead
from bookstand.cursor.state.cursor_state import CursorState
from bookstand.cursor.store.page_loader import PageLoader
from bookstand.errors import BookstandError
from bookstand.managed_ledger.managed_ledger import ManagedLedger, UnreadableEntryError
from bookstand.managed_ledger.topic_entries import EntryRun, TopicEntry
from bookstand.storage.format.position import EARLIEST, Position

if TYPE_CHECKING:
    from bookstand.managed_ledger.managed_ledger import OnUnreadable

# How many entries are looked at at once for those that are wanted.
_LARGEST_WINDOW = 1 << 14
_READ_AT_ONCE = 1_000

EntryFilter = Callable[[int, int, int], Iterable[int]]
"""Of a ledger's entries from one to another, the last one included, those that are wanted, ascending."""

_ReadRun = Callable[[int, int, int, int], Iterator[EntryRun]]
"""Reads a ledger's entries from one to another; up to a third they may be read along."""


class CursorReader:
    """``lock`` is the state's, and guards the position as well; the position is never before the first entry behind the
    mark-delete position."""

    def __init__(self, topic: ManagedLedger, live: CursorState, bringing: PageLoader, lock: Lock) -> None:
        self._topic = topic
        self._live = live
        self._bringing = bringing
        self._lock = lock
        self._ahead = ReadAhead(topic)
        self._position = self.next_from(live.mark_delete)
        # How often somebody has sent it elsewhere.
        self._departures = 0

    # -- the position ------------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """The next entry that is looked at."""
        with self._lock:
            return self._position

    def next_from(self, position: Position) -> Position:
        """The next entry to deliver, or the place that it will have."""
        extent = self._topic.extent
        following = extent.following(position)
        if following is not None:
            return following
        last = extent.ledger_ids[-1:]
        return Position(last[0], 0) if last and last[0] > position.ledger_id else position.next

    def advance(self) -> None:
        """The mark-delete position may have passed by; the lock is held."""
        if self._position <= self._live.mark_delete:
            self._position = self.next_from(self._live.mark_delete)

    def begin(self) -> None:
        """From the first entry that is not acknowledged; the lock is held."""
        self._go_to(self.next_from(self._live.mark_delete))

    def seek(self, position: Position) -> None:
        with self._lock:
            self._go_to(max(position, self.next_from(self._live.mark_delete)))

    def _go_to(self, position: Position) -> None:
        self._position = position
        self._departures += 1

    # -- entries -----------------------------------------------------------------------------------------------------

    def read_runs(self, count: int, wanted: EntryFilter | None, upto: Position | None = None) -> list[EntryRun]:
        """Up to ``count`` entries from the position on, which moves behind them, but no further than ``upto``."""
        left = count
        found: list[EntryRun] = []
        while left > 0:
            with self._lock:
                start, departures = self._position, self._departures
            try:
                runs, end = self._read_in_ledger(start, left, wanted, self._ahead.read_run, upto)
            except BookstandError:
                if not found:
                    raise
                # The position is behind these already; the next call tells of what is damaged.
                break
            if end is None:
                break
            found += runs
            left -= sum([len(run.data) for run in runs])
            with self._lock:
                # Acknowledgments may have moved it meanwhile, to within what was read here: that is not read again. Who
                # sent it elsewhere is to find it there.
                if self._departures == departures:
                    self._position = max(self._position, end)
        return found

    def unacked(
        self, wanted: EntryFilter | None, start: Position | None, on_unreadable: OnUnreadable | None
    ) -> Iterator[TopicEntry]:
        """All entries, from ``start`` on, that are not acknowledged when the iteration reaches them. The read position
        does not matter. Damaged entries are treated as by :meth:`ManagedLedger.read_run`."""

        def read_run(ledger_id: int, first: int, last: int, _end: int) -> Iterator[EntryRun]:
            return self._topic.read_run(ledger_id, first, last, on_unreadable)

        at: Position | None = max(self._live.mark_delete.next, start or EARLIEST)
        while at is not None:
            runs, at = self._read_in_ledger(at, _READ_AT_ONCE, wanted, read_run)
            for run in runs:
                yield from run.entries()

    def _read_in_ledger(
        self, start: Position, count: int, wanted: EntryFilter | None, read_run: _ReadRun, upto: Position | None = None
    ) -> tuple[list[EntryRun], Position | None]:
        """Up to ``count`` entries of the first ledger that has any from ``start`` on, and where to go on; None at the
        topic's end, and behind ``upto``."""
        extent = self._topic.extent
        following = extent.following(start.previous)
        if following is None or (upto is not None and following > upto):
            return [], None
        ledger_id, first = following
        last = (extent.entries(ledger_id) or 0) - 1
        if upto is not None and ledger_id == upto.ledger_id:
            last = min(last, upto.entry_id)
        runs, end = self._wanted_runs(ledger_id, first, last, count, wanted)
        found: list[EntryRun] = []
        try:
            for run in runs:
                for part in read_run(ledger_id, *run, last):
                    found.append(part)
        except UnreadableEntryError as error:
            if not found:
                raise
            return found, error.position
        return found, Position(ledger_id, end + 1)

    def _wanted_runs(
        self, ledger_id: int, first: int, last: int, count: int, wanted: EntryFilter | None
    ) -> tuple[list[tuple[int, int]], int]:
        """Runs of entries to deliver, ``count`` of them at most, and the last entry that was looked at.

        ``wanted`` is asked without the lock: what it asks in turn is its own business."""
        runs: list[tuple[int, int]] = []
        left, at, window = count, first, count
        while left and at <= last:
            run = self._bringing.ask(partial(self._live.open_run, ledger_id, at, last))
            if run is None:
                return runs, last
            start, end = run[0], min(run[1], run[0] + window - 1)
            if wanted is None:
                found = [(start, end)] if end - start < left else [(start, start + left - 1)]
                taken = min(end - start + 1, left)
            else:
                entry_ids = list(islice(wanted(ledger_id, start, end), left))
                found, taken = _runs(entry_ids), len(entry_ids)
                if taken == left:
                    end = entry_ids[-1]
                # Where most are passed over, look at more at once.
                window = min(2 * window, _LARGEST_WINDOW)
            runs += found
            left -= taken
            at = (end if wanted is not None else found[-1][1]) + 1
        return runs, min(at - 1, last) if not left else last

    @property
    def has_more(self) -> bool:
        """Whether there is an entry at the position or behind it."""
        return self._topic.extent.following(self.position.previous) is not None


def predicate_from_skip(skip: Callable[[Position], bool], ledger_id: int, first: int, last: int) -> Iterator[int]:
    """With the first argument given, a :data:`EntryFilter` by one position at a time."""
    return (entry_id for entry_id in range(first, last + 1) if not skip(Position(ledger_id, entry_id)))


def _runs(entry_ids: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each unbroken run of ascending entries."""
    runs: list[tuple[int, int]] = []
    for entry_id in entry_ids:
        if runs and runs[-1][1] == entry_id - 1:
            runs[-1] = runs[-1][0], entry_id
        else:
            runs.append((entry_id, entry_id))
    return runs
