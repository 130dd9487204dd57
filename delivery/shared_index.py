"""One index of delayed messages for all subscriptions of a topic, which PIP-195 leaves open.

A cursor of the index's own, the *builder*, reads the topic once, as far as the foremost subscription has, and tracks in
buckets what is delayed. What becomes due leaves the index, into a log in memory, and every subscription takes it from
there at its own pace: its whole progress is a number. It drops what it has acknowledged, and what it has not read as
far as: that it meets when it does, finds it due, and delivers it.

Nobody's progress has to be written, and nothing rests on what the index holds: a subscription begins to read at its
mark-delete position, and whatever it meets there that the index does not have is delivered if it is due and tracked
if it is not. So does one that joins late, that begins again after a restart, or that finds what an index lost which was
damaged. One that lags so far behind that the log is not kept for it has to go back there as well
(:attr:`SubscriptionView.must_rewind`).

The builder's mark-delete position is the end of what is sealed, or what all subscriptions have passed if that is more.
What is behind it, it reads again after a restart.

Locks: a subscription's cursor asks a view what to skip with its own lock held, so that whoever holds a lock of the
index or of its tracker asks no subscription's cursor anything. A view does that beforehand, or afterwards.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np

from bookstand.cursor.cursor import Cursor
from bookstand.cursor.recovery import LOST
from bookstand.delivery.bucket_home import Change
from bookstand.delivery.bucket_tracker import BucketDelayedTracker
from bookstand.delivery.config import DelayedDeliveryConfig
from bookstand.delivery.indexes import Indexes
from bookstand.delivery.presence import Presence
from bookstand.delivery.rebuilding import delay_of, reader_of
from bookstand.delivery.timer import Alarm, timer_for
from bookstand.delivery.tracker import (
    Column,
    Mask,
    Positions,
    TrackerClosedError,
    as_ids,
    check_millis,
    check_position,
    check_time,
    columns_of,
    times_of,
)
from bookstand.errors import MalformedError
from bookstand.ledger.managed import ManagedLedger
from bookstand.storage.clock import SystemClock
from bookstand.storage.log import logger
from bookstand.storage.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from bookstand.cursor.config import CursorConfig
    from bookstand.delivery.timer import Timer
    from bookstand.ledger.client import Client
    from bookstand.storage.clock import Clock

BUILDER = "bookstand.delayed-index"
"""The builder's name among the cursors of the topic."""

# How many due positions are kept for subscriptions that have not taken them, at 16 bytes each.
MOST_KEPT = 1 << 20
_READ_AT_ONCE = 1000
# What is due leaves the index so many at a time, whoever asks for however few.
_MOVED_AT_ONCE = 5000


class SharedDelayedIndex:
    """All methods may be called from any thread."""

    def __init__(
        self,
        topic: ManagedLedger,
        config: DelayedDeliveryConfig | None = None,
        *,
        clock: Clock | None = None,
        timer: Timer | None = None,
        most_kept: int = MOST_KEPT,
        cursor_config: CursorConfig | None = None,
    ) -> None:
        """``cursor_config`` is the builder's."""
        self._topic = topic
        self._lock = RLock()
        self._views: dict[str, SubscriptionView] = {}
        self._due = _DueLog()
        self._most_kept = check_millis("most_kept", most_kept, 0)
        self._clock = SystemClock() if clock is None else clock
        self._own_timer = timer_for(self._clock) if timer is None else None
        timer = self._own_timer if timer is None else timer
        assert timer is not None
        self._timer = timer
        self._alarm: Alarm | None = None
        self._damage: list[str] = []
        try:
            self._cursor = Cursor.open(topic, BUILDER, cursor_config)
        except (*LOST, MalformedError) as error:
            self._damage.append(str(error))
            Cursor.discard(topic, BUILDER)
            self._cursor = Cursor.open(topic, BUILDER, cursor_config)
        self._damage += self._cursor.recovered_from.damage
        for problem in self._damage:
            logger().warning("topic %s: the shared index is rebuilt from the topic: %s", topic.name, problem)
        self.tracker = BucketDelayedTracker(
            self._wake_all, _SharedHome(self), config, rebuild=reader_of(topic), clock=self._clock, timer=timer
        )

    @property
    def damage(self) -> list[str]:
        """Damage of the builder and of snapshots; the topic is read again for what they should have held."""
        return [*self._damage, *self.tracker.problems]

    # -- subscriptions -----------------------------------------------------------------------------------------------

    def view(
        self,
        name: str,
        wake: Callable[[], object],
        *,
        mark_delete: Callable[[], Position],
        read_position: Callable[[], Position],
        is_acked: Callable[[Position], bool] | None = None,
    ) -> SubscriptionView:
        """What a subscription has of it, from now on, in the place of a view that it had.

        ``read_position`` is the next entry that it will read: at first the one behind its mark-delete position. Who
        moves that position back asks for a new view before it reads on.
        """
        view = SubscriptionView(self, name, wake, mark_delete, read_position, is_acked)
        with self._lock:
            view.taken = self._due.end
            self._views[name] = view
        return view

    def _leave(self, view: SubscriptionView) -> None:
        with self._lock:
            if self._views.get(view.name) is view:
                del self._views[view.name]
                self._drop_taken()

    def _wake_all(self) -> None:
        for view in list(self._views.values()):
            view.wake()

    def _horizon(self) -> Position:
        """Nobody delivers what is up to here any more. Takes no lock, for the tracker asks with its own."""
        return min((view.passed for view in list(self._views.values())), default=EARLIEST)

    # -- building ----------------------------------------------------------------------------------------------------

    def catch_up(self, beyond: Position = LATEST) -> None:
        """Read the topic until the builder is beyond a position, or as far as it goes; and track what is delayed."""
        with self._lock:
            while self._cursor.read_position <= beyond and (entries := self._cursor.read(_READ_AT_ONCE)):
                delayed = [(entry.position, time) for entry in entries if (time := delay_of(entry)) is not None]
                if delayed:
                    self._track_new([position for position, _ in delayed], [time for _, time in delayed])
                self._move_builder(self._sealed())

    def _track_new(self, positions: Positions, times: Sequence[int] | Column) -> Mask:
        """Which of them are tracked by now. What is tracked already stays so although it be due: to the tracker, adding
        it again would say that it is delivered, and it is awaited from the log."""
        ledger_ids, entry_ids = columns_of(positions)
        tracked = self.tracker.contains_many(ledger_ids, entry_ids)
        new = np.flatnonzero(~tracked)
        if len(new):
            times = times_of(times, len(ledger_ids))
            tracked[new] = self.tracker.add_many((ledger_ids[new], entry_ids[new]), times[new])
        return tracked

    def _sealed(self) -> Position:
        """What is up to here needs not be read again after a restart."""
        ledger_id = self.tracker.sealed_up_to
        entries = None if ledger_id is None else self._topic.extent.entries(ledger_id)
        if ledger_id is None or entries is None:
            return EARLIEST
        return Position(ledger_id, entries - 1)

    def _move_builder(self, position: Position) -> None:
        """A subscription may stand in a ledger that is gone, or was empty; the builder stands by an entry."""
        last = self._topic.extent.last
        if last is not None and self._cursor.mark_delete_position < min(position, last):
            self._cursor.mark_delete(min(position, last))

    def trim(self) -> None:
        """Hold nothing of the topic back that all subscriptions have passed; durably on return. To be called before
        ``trim_consumed``. Views do it by themselves, ledger by ledger and later."""
        for view in list(self._views.values()):
            view.look_at_mark_delete()
        with self._lock:
            self._move_builder(max(self._horizon(), self._sealed()))
            self._cursor.flush()

    # -- what is due -------------------------------------------------------------------------------------------------

    def _take(self, view: SubscriptionView, most: int | None) -> tuple[Column, Column]:
        """Some of what is due and was not taken by the view; nothing only if there is nothing."""
        with self._lock:
            if view.taken == self._due.end:
                self._move_due()
            taken = self._due.columns(view.taken, most)
            view.taken += len(taken[0])
            self._drop_taken()
            horizon = self._horizon()
            if horizon.ledger_id > self._cursor.mark_delete_position.ledger_id:
                self._move_builder(horizon)
            return taken

    def _move_due(self) -> None:
        """What is due leaves the index."""
        ledger_ids, entry_ids = self.tracker.take_due(_MOVED_AT_ONCE)
        if not len(ledger_ids):
            return
        self._due.extend(ledger_ids, entry_ids)
        # The tracker wakes for what becomes due. Of this it knows no more, and of the subscriptions one.
        if len(self._views) > 1 and (self._alarm is None or not self._alarm.live):
            self._alarm = self._timer.arm(self._clock.now(), self._wake_waiting)

    def _wake_waiting(self, _: Alarm) -> None:
        with self._lock:
            self._alarm = None
            waiting = [view for view in self._views.values() if view.taken < self._due.end]
        for view in waiting:
            view.wake()

    def _drop_taken(self) -> None:
        """Forget what all have taken, and of the rest what is too much."""
        end = self._due.end
        taken = min((view.taken for view in self._views.values()), default=end)
        self._due.drop(max(taken, end - self._most_kept))
        for view in self._views.values():
            if view.taken < self._due.begin:
                view.taken = self._due.begin
                view.must_rewind = True

    def _has_untaken(self, view: SubscriptionView, position: tuple[int, int]) -> bool:
        ledger_ids, entry_ids = self._due.columns(view.taken, None)
        return bool(((ledger_ids == position[0]) & (entry_ids == position[1])).any())

    # -- life --------------------------------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """What it takes in memory for all subscriptions together."""
        with self._lock:
            views = sum(view.memory_bytes for view in self._views.values())
            return self.tracker.memory_bytes + self._due.memory_bytes + views

    def close(self) -> None:
        """Snapshots and the builder stay. Who goes on with another index begins at its mark-delete position."""
        with self._lock:
            self._stop()
            self._cursor.close()
        self._end_timer()

    def delete(self) -> None:
        """All snapshots, and then the builder."""
        with self._lock:
            self.tracker.clear()
            self._stop()
            self._cursor.delete()
        self._end_timer()

    def _stop(self) -> None:
        self.tracker.close()
        if self._alarm is not None:
            self._alarm.cancel()
        for view in self._views.values():
            view.closed = True
        self._views.clear()

    def _end_timer(self) -> None:
        if self._own_timer is not None:
            self._own_timer.close()


class SubscriptionView:
    """A subscription's :class:`~bookstand.delivery.tracker.DelayedTracker`. Use :meth:`SharedDelayedIndex.view`.

    One thread at a time, as a dispatcher is: reading, adding what was read and taking what is due are one after the
    other. ``wake()`` is called also for what another subscription found due.
    """

    def __init__(
        self,
        index: SharedDelayedIndex,
        name: str,
        wake: Callable[[], object],
        mark_delete: Callable[[], Position],
        read_position: Callable[[], Position],
        is_acked: Callable[[Position], bool] | None,
    ) -> None:
        self._index = index
        self._mark_delete = mark_delete
        self._read_position = read_position
        self._is_acked = is_acked
        # Both are guarded by the index's lock. What is in the index, and is not given out here when it is due.
        self._cancelled = Presence()
        # What may be in the log and was delivered when it was read.
        self._met = Presence()
        self.name = name
        self.wake = wake
        self.taken = 0
        self.passed = mark_delete()
        self.closed = False
        self.must_rewind = False
        """Whether it fell behind, and is to read again from its mark-delete position; whoever does clears it first."""

    def look_at_mark_delete(self) -> None:
        """For the index, which does not ask a cursor itself. As long as there is this view, it only moves on."""
        self.passed = self._mark_delete()

    # -- the tracker -------------------------------------------------------------------------------------------------

    def add(self, position: tuple[int, int], deliver_at: int) -> bool:
        check_time(deliver_at)
        return bool(self.add_many([check_position(position)], deliver_at)[0])

    def add_many(self, positions: Positions, deliver_at: int | Sequence[int] | Column) -> Mask:
        self._check_open()
        ledger_ids, entry_ids = columns_of(positions)
        times = times_of(deliver_at, len(ledger_ids))
        if not len(times):
            return np.empty(0, dtype=np.bool_)
        last = max(zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True))
        self.look_at_mark_delete()
        index = self._index
        with index._lock:
            index.catch_up(Position(*last))
            tracked = index._track_new((ledger_ids, entry_ids), times)
            if self.taken < index._due.end:
                self._met.add_many(ledger_ids[~tracked], entry_ids[~tracked])
            # What is due by now is delivered at once, here; the others take it from the log.
            at_once = tracked & index.tracker.are_due(times)
            tracked &= ~at_once
            self._cancelled.add_many(ledger_ids[at_once], entry_ids[at_once])
            self._cancelled.discard_many(ledger_ids[tracked], entry_ids[tracked])
        return tracked

    def pop_due(self, limit: int | None = None) -> list[Position]:
        self._check_open()
        if limit is not None:
            check_millis("limit", limit, 0)
        self.look_at_mark_delete()
        found: list[Position] = []
        while limit is None or len(found) < limit:
            with self._index._lock:
                ledger_ids, entry_ids = self._index._take(self, None if limit is None else limit - len(found))
                if not len(ledger_ids):
                    # Whatever was met in the log is not there any more.
                    self._met.clear()
                    break
                for unwanted in (self._cancelled, self._met):
                    if unwanted:
                        dropped = unwanted.contains_many(ledger_ids, entry_ids)
                        unwanted.discard_many(ledger_ids[dropped], entry_ids[dropped])
                        ledger_ids, entry_ids = ledger_ids[~dropped], entry_ids[~dropped]
            found += self._wanted(ledger_ids, entry_ids)
        with self._index._lock:
            if self._cancelled:
                self._cancelled.discard_ledgers(0, self.passed.ledger_id - 1)
        return sorted(found)

    def _wanted(self, ledger_ids: Column, entry_ids: Column) -> list[Position]:
        """Those of the due that are to be delivered from here: read before, and not acknowledged."""
        mark_delete, read_position, is_acked = self.passed, self._read_position(), self._is_acked
        positions = map(Position, ledger_ids.tolist(), entry_ids.tolist())
        wanted = [position for position in positions if mark_delete < position < read_position]
        return wanted if is_acked is None else [position for position in wanted if not is_acked(position)]

    def has_message_available(self) -> bool:
        """Also where :meth:`pop_due` gives nothing, and then not any more."""
        return self.taken < self._index._due.end or self._index.tracker.has_message_available()

    def should_pause_all_deliveries(self) -> bool:
        return False

    def contains_message(self, position: tuple[int, int]) -> bool:
        """Whether the index has it; what is due may have left it before it was given out here."""
        ledger_id, entry_id = check_position(position)
        if not self._index.tracker.contains_message((ledger_id, entry_id)):
            return False
        with self._index._lock:
            return not self._cancelled.contains(ledger_id, entry_id)

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        ledger_ids, entry_ids = columns_of((as_ids("ledger ids", ledger_ids), entry_ids))
        contained = self._index.tracker.contains_many(ledger_ids, entry_ids)
        with self._index._lock:
            return contained & ~self._cancelled.contains_many(ledger_ids, entry_ids)

    def next_delivery(self) -> int | None:
        return self._index.tracker.next_delivery()

    def peek(self, first: int | None = None, last: int | None = None, limit: int | None = None) -> Indexes:
        """What waits for times from the first to the last, in the order of time, ledger and entry."""
        self.look_at_mark_delete()
        found = self._index.tracker.peek(first, last)
        passed, is_acked = self.passed, self._is_acked
        with self._index._lock:
            kept = ~self._cancelled.contains_many(found.ledger_ids, found.entry_ids)
        for row, (_, ledger_id, entry_id) in enumerate(found.indexes):
            position = Position(ledger_id, entry_id)
            kept[row] &= position > passed and not (is_acked is not None and is_acked(position))
        found = Indexes(*(column[kept] for column in found))
        return found.part(0, found.size if limit is None else limit)

    def cancel(self, position: tuple[int, int]) -> bool:
        """For this subscription alone: the others have it delivered."""
        ledger_id, entry_id = check_position(position)
        with self._index._lock:
            if self._index.tracker.contains_message((ledger_id, entry_id)):
                return self._cancelled.add(ledger_id, entry_id)
            if self._cancelled.contains(ledger_id, entry_id):
                return False
            return self._index._has_untaken(self, (ledger_id, entry_id)) and self._met.add(ledger_id, entry_id)

    @property
    def count(self) -> int:
        """How many the index has, for whomever."""
        return self._index.tracker.count

    def __len__(self) -> int:
        return self.count

    def clear(self) -> None:
        """Forget what is due and was not taken, and what was cancelled. The index has still what is not due: who does
        not want that acknowledges it; and who does reads again from its mark-delete position."""
        with self._index._lock:
            self.taken = self._index._due.end
            self._cancelled.clear()
            self._met.clear()
            self._index._drop_taken()

    def reset_tick(self, tick_time_millis: int) -> None:
        """For all subscriptions."""
        self._index.tracker.reset_tick(tick_time_millis)

    def close(self) -> None:
        """The subscription takes nothing any more, and nothing is kept for it."""
        self.closed = True
        self._index._leave(self)

    @property
    def memory_bytes(self) -> int:
        """What it takes beyond the index."""
        return self._cancelled.memory_bytes + self._met.memory_bytes

    def _check_open(self) -> None:
        if self.closed:
            raise TrackerClosedError("the tracker was closed")


class _DueLog:
    """Positions in the order in which they became due, numbered from the first that there ever was. Not safe between
    threads: its owner has a lock."""

    def __init__(self) -> None:
        self._ledger_ids, self._entry_ids = array("q"), array("q")
        # The number of the first in the arrays; those before ``begin`` are forgotten, and removed some time.
        self._base = 0
        self.begin = 0

    @property
    def end(self) -> int:
        """The number of the next one to come."""
        return self._base + len(self._ledger_ids)

    def extend(self, ledger_ids: Column, entry_ids: Column) -> None:
        self._ledger_ids.extend(ledger_ids.tolist())
        self._entry_ids.extend(entry_ids.tolist())

    def columns(self, start: int, most: int | None) -> tuple[Column, Column]:
        """Ledger ids and entry ids from a number on."""
        first = start - self._base
        part = slice(first, None if most is None else first + most)
        # Copies, for an array that is looked at cannot grow.
        return np.array(self._ledger_ids[part], dtype=np.int64), np.array(self._entry_ids[part], dtype=np.int64)

    def drop(self, before: int) -> None:
        """Forget those before a number."""
        self.begin = max(self.begin, before)
        dead = self.begin - self._base
        # Moving the rest costs no more than what was removed.
        if 2 * dead >= len(self._ledger_ids):
            del self._ledger_ids[:dead], self._entry_ids[:dead]
            self._base = self.begin

    @property
    def memory_bytes(self) -> int:
        return self._ledger_ids.__sizeof__() + self._entry_ids.__sizeof__()


class _SharedHome:
    """Buckets are in the builder's properties; what nobody needs is what every subscription has passed."""

    def __init__(self, index: SharedDelayedIndex) -> None:
        self._index = index
        self._cursor = index._cursor
        self.topic = self._cursor.topic.name
        self.cursor = self._cursor.name
        self.client: Client = self._cursor.topic.client

    def properties(self) -> Mapping[str, str]:
        return self._cursor.cursor_properties

    def change(self, change: Change) -> None:
        self._cursor.change_properties(change)

    def write_acknowledged(self) -> None:
        self._cursor.flush()

    def mark_delete(self) -> Position:
        return self._index._horizon()
