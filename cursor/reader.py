"""Read position of a cursor, and reading of unacknowledged entries.

The read position is not stored: after a restart it is the first entry after the mark-delete position.
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

# Entries that a predicate is called with at a time.
_MAX_WINDOW = 1 << 14
_READ_BATCH = 1_000

EntryFilter = Callable[[int, int, int], Iterable[int]]
"""(ledger id, first entry, last entry) -> the entries to read, ascending."""

_ReadRun = Callable[[int, int, int, int], Iterator[EntryRun]]
"""(ledger id, first entry, last entry, last entry for read-ahead) -> the entries from first to last."""


class CursorReader:
    """Reads entries from the read position on, which is never before the first entry after the mark-delete position.

    ``lock`` is the cursor's; it also guards the read position.
    """

    def __init__(self, topic: ManagedLedger, state: CursorState, loader: PageLoader, lock: Lock) -> None:
        self._topic = topic
        self._state = state
        self._loader = loader
        self._lock = lock
        self._read_ahead = ReadAhead(topic)
        self._position = self.next_position(state.mark_delete)
        self._seek_count = 0

    # -- the position ------------------------------------------------------------------------------------------------

    @property
    def position(self) -> Position:
        """Position of the next entry to read."""
        with self._lock:
            return self._position

    def next_position(self, position: Position) -> Position:
        """Return the first entry after ``position``, or the position that the next entry of the topic will have."""
        extent = self._topic.extent
        following = extent.following(position)
        if following is not None:
            return following
        last = extent.ledger_ids[-1:]
        return Position(last[0], 0) if last and last[0] > position.ledger_id else position.next

    def advance(self) -> None:
        """Keep the read position after the mark-delete position. Callers hold the lock."""
        if self._position <= self._state.mark_delete:
            self._position = self.next_position(self._state.mark_delete)

    def rewind(self) -> None:
        """Move to the first unacknowledged entry. Callers hold the lock."""
        self._set_position(self.next_position(self._state.mark_delete))

    def seek(self, position: Position) -> None:
        with self._lock:
            self._set_position(max(position, self.next_position(self._state.mark_delete)))

    def _set_position(self, position: Position) -> None:
        self._position = position
        self._seek_count += 1

    # -- entries -----------------------------------------------------------------------------------------------------

    def read_runs(self, count: int, predicate: EntryFilter | None, upto: Position | None = None) -> list[EntryRun]:
        """Read up to ``count`` entries, none after ``upto``, and advance the read position."""
        remaining = count
        found: list[EntryRun] = []
        while remaining > 0:
            with self._lock:
                start, seek_count = self._position, self._seek_count
            try:
                runs, end = self._read_in_ledger(start, remaining, predicate, self._read_ahead.read_run, upto)
            except BookstandError:
                if not found:
                    raise
                # The read position is already after these entries; the next call reports the damage.
                break
            if end is None:
                break
            found += runs
            remaining -= sum([len(run.data) for run in runs])
            with self._lock:
                # Acknowledgments may have advanced the position meanwhile: never move it back. A concurrent seek wins.
                if self._seek_count == seek_count:
                    self._position = max(self._position, end)
        return found

    def unacked(
        self, predicate: EntryFilter | None, start: Position | None, on_unreadable: OnUnreadable | None
    ) -> Iterator[TopicEntry]:
        """Iterate over the entries from ``start`` on that are unacknowledged when the iteration reaches them. Neither
        uses nor changes the read position."""

        def read_run(ledger_id: int, first: int, last: int, _end: int) -> Iterator[EntryRun]:
            return self._topic.read_run(ledger_id, first, last, on_unreadable)

        at: Position | None = max(self._state.mark_delete.next, start or EARLIEST)
        while at is not None:
            runs, at = self._read_in_ledger(at, _READ_BATCH, predicate, read_run)
            for run in runs:
                yield from run.entries()

    def _read_in_ledger(
        self,
        start: Position,
        count: int,
        predicate: EntryFilter | None,
        read_run: _ReadRun,
        upto: Position | None = None,
    ) -> tuple[list[EntryRun], Position | None]:
        """Read up to ``count`` entries of the first ledger that has entries from ``start`` on. Returns them and the
        position to continue at, or None for the position at the topic's end or after ``upto``."""
        extent = self._topic.extent
        following = extent.following(start.previous)
        if following is None or (upto is not None and following > upto):
            return [], None
        ledger_id, first = following
        last = (extent.entries(ledger_id) or 0) - 1
        if upto is not None and ledger_id == upto.ledger_id:
            last = min(last, upto.entry_id)
        runs, end = self._matching_runs(ledger_id, first, last, count, predicate)
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

    def _matching_runs(
        self, ledger_id: int, first: int, last: int, count: int, predicate: EntryFilter | None
    ) -> tuple[list[tuple[int, int]], int]:
        """Find up to ``count`` unacknowledged entries that the predicate selects. Returns their runs and the last
        examined entry. The predicate is called without the lock, because it may query the cursor."""
        runs: list[tuple[int, int]] = []
        remaining, at, window = count, first, count
        while remaining and at <= last:
            run = self._loader.query(partial(self._state.unacked_run, ledger_id, at, last))
            if run is None:
                return runs, last
            start, end = run[0], min(run[1], run[0] + window - 1)
            if predicate is None:
                found = [(start, end)] if end - start < remaining else [(start, start + remaining - 1)]
                selected = min(end - start + 1, remaining)
            else:
                entry_ids = list(islice(predicate(ledger_id, start, end), remaining))
                found, selected = _runs(entry_ids), len(entry_ids)
                if selected == remaining:
                    end = entry_ids[-1]
                # Examine more entries at a time while the predicate rejects most of them.
                window = min(2 * window, _MAX_WINDOW)
            runs += found
            remaining -= selected
            at = (end if predicate is not None else found[-1][1]) + 1
        return runs, min(at - 1, last) if not remaining else last

    @property
    def has_more(self) -> bool:
        return self._topic.extent.following(self.position.previous) is not None


def predicate_from_skip(skip: Callable[[Position], bool], ledger_id: int, first: int, last: int) -> Iterator[int]:
    """Adapt ``skip`` to an :data:`EntryFilter`, when it is bound as the first argument."""
    return (entry_id for entry_id in range(first, last + 1) if not skip(Position(ledger_id, entry_id)))


def _runs(entry_ids: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for entry_id in entry_ids:
        if runs and runs[-1][1] == entry_id - 1:
            runs[-1] = runs[-1][0], entry_id
        else:
            runs.append((entry_id, entry_id))
    return runs
