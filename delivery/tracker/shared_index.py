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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
from pyroaring import BitMap64

from bookstand.cursor.cursor import Cursor
from bookstand.cursor.store.recovery import PAGE_LOST_ERRORS
from bookstand.delivery.config import DelayedDeliveryConfig
from bookstand.delivery.message.position_set import PositionSet
from bookstand.delivery.timer import Alarm, timer_for
from bookstand.delivery.tracker.bucket.rebuild import deliver_at_of, topic_rebuilder
from bookstand.delivery.tracker.bucket.registry import Change
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes, concatenate, distinct
from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker
from bookstand.delivery.tracker.due_cutoff import DueCutoff
from bookstand.delivery.tracker.in_memory import InMemoryDelayedTracker
from bookstand.delivery.tracker.protocol import (
    LARGEST,
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
from bookstand.managed_ledger.managed_ledger import ManagedLedger, UnreadableEntryError
from bookstand.managed_ledger.topic_entries import TopicEntry
from bookstand.storage.clock import SystemClock
from bookstand.storage.format.position import EARLIEST, LATEST, Position
from bookstand.storage.logger import logger
from bookstand.storage.process.fork_guard import ProcessBound

if TYPE_CHECKING:
    from bookstand.cursor.config import CursorConfig
    from bookstand.delivery.timer import Timer
    from bookstand.ledger.client import Client
    from bookstand.storage.clock import Clock

BUILDER = "bookstand.delayed-index"
"""The builder's name among the cursors of the topic."""

# Maximum number of due messages retained for subscriptions that lag, at 24 bytes each.
MOST_KEPT = 1 << 20
_READ_AT_ONCE = 1000
# What is due leaves the index so many at a time, whoever asks for however few.
_MOVED_AT_ONCE = 5000


class SharedDelayedIndex(ProcessBound):
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
        self.config = DelayedDeliveryConfig() if config is None else config
        self._lock = RLock()
        self._views: dict[str, SubscriptionView] = {}
        self._due = _DueLog()
        self._most_kept = check_millis("most_kept", most_kept, 0)
        self.clock = SystemClock() if clock is None else clock
        self._own_timer = timer_for(self.clock) if timer is None else None
        timer = self._own_timer if timer is None else timer
        assert timer is not None
        self.timer = timer
        self._alarm: Alarm | None = None
        self._damage: list[str] = []
        try:
            self._cursor = Cursor.open(topic, BUILDER, cursor_config)
        except (*PAGE_LOST_ERRORS, MalformedError) as error:
            self._damage.append(str(error))
            Cursor.discard(topic, BUILDER)
            self._cursor = Cursor.open(topic, BUILDER, cursor_config)
        self._damage += self._cursor.recovered_from.damage
        for problem in self._damage:
            logger().warning("topic %s: the shared index is rebuilt from the topic: %s", topic.name, problem)
        self.tracker = BucketDelayedTracker(
            self._wake_all,
            _SharedHome(self),
            self.config,
            rebuild=topic_rebuilder(topic),
            clock=self.clock,
            timer=timer,
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
        acked_entries: Callable[[], Iterable[tuple[int, BitMap64]]] = tuple,
        tick: int | None = None,
    ) -> SubscriptionView:
        """The view of a subscription; it replaces an earlier view of that subscription.

        ``read_position`` returns the entry that the subscription reads next: at first the one behind its mark-delete
        position. A subscription that moves its read position back needs a new view before it reads on. ``tick`` is the
        subscription's own, None that of the index.
        """
        tick = self.config.delayed_delivery_tick_time_millis if tick is None else tick
        view = SubscriptionView(self, name, wake, mark_delete, read_position, is_acked, acked_entries, tick)
        with self._lock:
            view.taken = self._due.end
            self._views[name] = view
            self.change_tick()
        return view

    def change_config(self, config: DelayedDeliveryConfig) -> None:
        """Use other sizes for the buckets that are sealed or merged from now on, and another tick for views that are
        opened from now on. The other settings are fixed while the index is open."""
        with self._lock:
            self.config = config
            tick = self.tracker.config.delayed_delivery_tick_time_millis
            self.tracker.change_config(replace(config, delayed_delivery_tick_time_millis=tick))
            self.change_tick()

    def change_tick(self) -> None:
        """Derive the tick of the index from those of its views, after one of them changed.

        Not strict, messages leave the index as soon as they are due for one view, so it is the largest tick; a view
        with a smaller one retains them until they are due for it. Strict, the tick only limits how often dispatchers
        are woken, so it is the smallest.
        """
        with self._lock:
            ticks = [view.tick for view in self._views.values()] or [self.config.delayed_delivery_tick_time_millis]
            tick = min(ticks) if self.config.is_delayed_delivery_deliver_at_time_strict else max(ticks)
            if tick != self.tracker.config.delayed_delivery_tick_time_millis:
                self.tracker.change_config(replace(self.tracker.config, delayed_delivery_tick_time_millis=tick))

    def _leave(self, view: SubscriptionView) -> None:
        with self._lock:
            if self._views.get(view.name) is view:
                del self._views[view.name]
                self._drop_taken()
                self.change_tick()

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
            while self._cursor.read_position <= beyond and (entries := self._read()):
                delayed = [(entry.position, time) for entry in entries if (time := deliver_at_of(entry)) is not None]
                if delayed:
                    self._track_new([position for position, _ in delayed], [time for _, time in delayed])
                self._move_builder(self._sealed())

    def _read(self) -> list[TopicEntry]:
        """The next entries, without damaged ones: these the subscriptions report when they read them."""
        while True:
            try:
                return self._cursor.read(_READ_AT_ONCE)
            except UnreadableEntryError as error:
                logger().warning("the index of delayed messages passes over damage: %s", error)
                self._cursor.seek(error.last.next)

    def _track_new(self, positions: Positions, times: Sequence[int] | Column) -> Mask:
        """Which of them are tracked by now. What is tracked already stays so although it be due: to the tracker, adding
        it again would say that it is delivered, and it is awaited from the log."""
        ledger_ids, entry_ids = columns_of(positions)
        tracked = self.tracker.contains_many(ledger_ids, entry_ids)
        new = np.flatnonzero(~tracked)
        if len(new):
            times = times_of(times, len(ledger_ids))
            added = self.tracker.add_many((ledger_ids[new], entry_ids[new]), times[new])
            tracked[new] = added
            for view in self._views.values():
                view.retain_early(ledger_ids[new][added], entry_ids[new][added])
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

    def _take(self, view: SubscriptionView, most: int | None) -> Indexes:
        """Some of what is due and was not taken by the view; nothing only if there is nothing."""
        with self._lock:
            if view.taken == self._due.end:
                self._move_due()
            taken = self._due.columns(view.taken, most)
            view.taken += taken.size
            self._drop_taken()
            horizon = self._horizon()
            if horizon.ledger_id > self._cursor.mark_delete_position.ledger_id:
                self._move_builder(horizon)
            return taken

    def _move_due(self) -> None:
        """What is due leaves the index."""
        due = self.tracker.take_due(_MOVED_AT_ONCE)
        if not due.size:
            return
        self._due.extend(due)
        # The tracker wakes for what becomes due. Of this it knows no more, and of the subscriptions one.
        if len(self._views) > 1 and (self._alarm is None or not self._alarm.live):
            self._alarm = self.timer.arm(self.clock.now(), self._wake_waiting)

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
        untaken = self._due.columns(view.taken, None)
        return bool(((untaken.ledger_ids == position[0]) & (untaken.entry_ids == position[1])).any())

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
        """Delete all snapshots and the builder, in one commit."""
        with self._lock:
            self._stop()
            self._cursor.delete()
        self._end_timer()

    def _stop(self) -> None:
        self.tracker.close()
        if self._alarm is not None:
            self._alarm.cancel()
        for view in self._views.values():
            view.end()
        self._views.clear()

    def _end_timer(self) -> None:
        if self._own_timer is not None:
            self._own_timer.close()


class SubscriptionView(ProcessBound):
    """A subscription's :class:`~bookstand.delivery.tracker.protocol.DelayedTracker`. Use
    :meth:`SharedDelayedIndex.view`.

    One thread at a time, as a dispatcher is: reading, adding what was read and taking what is due follow one another.
    ``wake()`` is called also for what another subscription found due.

    A message is due here by the view's own ``tick``. What has left the index because it is due for a view with a larger
    tick is *early* here: it is tracked by the view alone until it is due.
    """

    def __init__(
        self,
        index: SharedDelayedIndex,
        name: str,
        wake: Callable[[], object],
        mark_delete: Callable[[], Position],
        read_position: Callable[[], Position],
        is_acked: Callable[[Position], bool] | None,
        acked_entries: Callable[[], Iterable[tuple[int, BitMap64]]],
        tick: int,
    ) -> None:
        self._index = index
        self._mark_delete = mark_delete
        self._read_position = read_position
        self._is_acked = is_acked
        self._acked_entries = acked_entries
        strict = index.config.is_delayed_delivery_deliver_at_time_strict
        self._cutoff = DueCutoff(index.clock, check_millis("tick_time_millis", tick, 1), strict)
        self._early = InMemoryDelayedTracker(
            wake, tick_time_millis=tick, strict=strict, clock=index.clock, timer=index.timer
        )
        # Both are guarded by the index's lock. What is in the index, and is not given out here when it is due.
        self._cancelled = PositionSet()
        # Messages that may be in the log and were delivered, or are early, since it was read.
        self._met = PositionSet()
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
            due = (times < 0) | (times <= self._cutoff.time)
            # What is due by now is delivered at once, here; the others take it from the log.
            at_once = tracked & due
            early = ~tracked & ~due
            tracked &= ~at_once
            self._cancelled.add_many(ledger_ids[at_once], entry_ids[at_once])
            self._cancelled.discard_many(ledger_ids[tracked], entry_ids[tracked])
            if early.any():
                self._retain(Indexes(times[early], ledger_ids[early], entry_ids[early]))
                tracked |= early
        return tracked

    def _retain(self, early: Indexes) -> None:
        """Track messages that have left the index and are not due here; the index's lock is held."""
        for time, ledger_id, entry_id in early.indexes:
            self._early.put((ledger_id, entry_id), time)
        again = self._index.tracker.contains_many(early.ledger_ids, early.entry_ids)
        self._cancelled.add_many(early.ledger_ids[again], early.entry_ids[again])

    def retain_early(self, ledger_ids: Column, entry_ids: Column) -> None:
        """Deliver messages from here alone that are early here and that the index tracks from now on; the index's lock
        is held. With a smaller tick it tracks messages again that it does not have because of a larger one."""
        if self._early.count:
            early = self._early.contains_many(ledger_ids, entry_ids)
            self._cancelled.add_many(ledger_ids[early], entry_ids[early])

    def pop_due(self, limit: int | None = None) -> list[Position]:
        self._check_open()
        if limit is not None:
            check_millis("limit", limit, 0)
        self.look_at_mark_delete()
        found = self._wanted(self._early.pop_due(limit))
        while limit is None or len(found) < limit:
            with self._index._lock:
                taken = self._index._take(self, None if limit is None else limit - len(found))
                if not taken.size:
                    # Whatever was met in the log is not there any more.
                    self._met.clear()
                    break
                # Messages that the index has again follow in the log after those that were met in it.
                for unwanted in (self._met, self._cancelled):
                    if unwanted:
                        dropped = unwanted.contains_many(taken.ledger_ids, taken.entry_ids)
                        unwanted.discard_many(taken.ledger_ids[dropped], taken.entry_ids[dropped])
                        taken = Indexes(*(column[~dropped] for column in taken))
            early = taken.timestamps > self._cutoff.time
            if early.any():
                self._retain_wanted(Indexes(*(column[early] for column in taken)))
                taken = Indexes(*(column[~early] for column in taken))
            found += self._wanted(map(Position, taken.ledger_ids.tolist(), taken.entry_ids.tolist()))
        with self._index._lock:
            if self._cancelled:
                self._cancelled.discard_ledgers(0, self.passed.ledger_id - 1)
        return sorted(found)

    def _retain_wanted(self, early: Indexes) -> None:
        """Do it for messages that were read; the others are still early when they are read."""
        positions = list(map(Position, early.ledger_ids.tolist(), early.entry_ids.tolist()))
        wanted = set(self._wanted(positions))
        rows = [row for row, position in enumerate(positions) if position in wanted]
        with self._index._lock:
            self._retain(Indexes(*(column[rows] for column in early)))

    def _wanted(self, positions: Iterable[Position]) -> list[Position]:
        """Those of the due that are to be delivered from here: read before, and not acknowledged."""
        mark_delete, read_position, is_acked = self.passed, self._read_position(), self._is_acked
        wanted = [position for position in positions if mark_delete < position < read_position]
        return wanted if is_acked is None else [position for position in wanted if not is_acked(position)]

    def has_message_available(self) -> bool:
        """Also where :meth:`pop_due` gives nothing, and then not any more."""
        index = self._index
        if self._early.has_message_available() or self.taken < index._due.end:
            return True
        return index.tracker.has_message_available()

    def should_pause_all_deliveries(self) -> bool:
        return False

    def contains_message(self, position: tuple[int, int]) -> bool:
        """True if the message is in the index, or early here. What is due may have left the index before it was taken
        here."""
        ledger_id, entry_id = check_position(position)
        if self._early.contains_message((ledger_id, entry_id)):
            return True
        if not self._index.tracker.contains_message((ledger_id, entry_id)):
            return False
        with self._index._lock:
            return not self._cancelled.contains(ledger_id, entry_id)

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        ledger_ids, entry_ids = columns_of((as_ids("ledger ids", ledger_ids), entry_ids))
        contained = self._index.tracker.contains_many(ledger_ids, entry_ids)
        with self._index._lock:
            contained &= ~self._cancelled.contains_many(ledger_ids, entry_ids)
        return contained | self._early.contains_many(ledger_ids, entry_ids) if self._early.count else contained

    def next_delivery(self) -> int | None:
        times = (self._early.next_delivery(), self._index.tracker.next_delivery())
        return min((time for time in times if time is not None), default=None)

    def peek(self, first: int | None = None, last: int | None = None, limit: int | None = None) -> Indexes:
        """What waits for times from the first to the last, in the order of time, ledger and entry."""
        self.look_at_mark_delete()
        found = self._index.tracker.peek(first, last)
        passed, is_acked = self.passed, self._is_acked
        with self._index._lock:
            kept = ~self._cancelled.contains_many(found.ledger_ids, found.entry_ids)
        if self._early.count:
            kept = np.concatenate([kept, np.ones(self._early.count, dtype=np.bool_)])
            found = concatenate([found, self._early.peek()])
            kept &= (found.timestamps >= (-LARGEST if first is None else first)) & (
                found.timestamps <= (LARGEST if last is None else last)
            )
        for row, (_, ledger_id, entry_id) in enumerate(found.indexes):
            position = Position(ledger_id, entry_id)
            kept[row] &= position > passed and not (is_acked is not None and is_acked(position))
        found = distinct(Indexes(*(column[kept] for column in found)))
        return found.part(0, found.size if limit is None else limit)

    def cancel(self, position: tuple[int, int]) -> bool:
        """For this subscription alone: the others have it delivered."""
        ledger_id, entry_id = check_position(position)
        if self._early.cancel((ledger_id, entry_id)):
            return True
        with self._index._lock:
            if self._index.tracker.contains_message((ledger_id, entry_id)):
                return self._cancelled.add(ledger_id, entry_id)
            if self._cancelled.contains(ledger_id, entry_id):
                return False
            return self._index._has_untaken(self, (ledger_id, entry_id)) and self._met.add(ledger_id, entry_id)

    @property
    def count(self) -> int:
        """Number of messages in the index, for any subscription, and of messages that are early here."""
        return self._index.tracker.count + self._early.count

    @property
    def delayed_count(self) -> int:
        """Number of messages that are delayed for this subscription, or due and not taken out of the index yet. The
        pages of everything that the subscription has acknowledged are read for it."""
        self.look_at_mark_delete()
        acked = [(ledger_id, np.array(ids.to_array(), dtype=np.int64)) for ledger_id, ids in self._acked_entries()]
        tracker = self._index.tracker
        with self._index._lock:
            cancelled = self._cancelled.columns()
            excluded = [(ledger_ids, entry_ids) for ledger_ids, entry_ids in [cancelled] if len(ledger_ids)]
            for ledger_id, entry_ids in acked:
                ledger_ids = np.full(len(entry_ids), ledger_id)
                others = ~self._cancelled.contains_many(ledger_ids, entry_ids)
                excluded.append((ledger_ids[others], entry_ids[others]))
            count = tracker.count_behind(self.passed)
            for ledger_ids, entry_ids in excluded:
                behind = (ledger_ids > self.passed.ledger_id) | (
                    (ledger_ids == self.passed.ledger_id) & (entry_ids > self.passed.entry_id)
                )
                count -= int(np.count_nonzero(tracker.contains_many(ledger_ids[behind], entry_ids[behind])))
            if self._early.count:
                # Due by the index's tick, and not yet by the subscription's own.
                early = self._early.peek()
                behind = (early.ledger_ids > self.passed.ledger_id) | (
                    (early.ledger_ids == self.passed.ledger_id) & (early.entry_ids > self.passed.entry_id)
                )
                count += int(np.count_nonzero(behind))
                for ledger_id, entry_ids in acked:
                    ledger_ids = np.full(len(entry_ids), ledger_id)
                    count -= int(np.count_nonzero(self._early.contains_many(ledger_ids, entry_ids)))
        return count

    def __len__(self) -> int:
        return self.count

    def clear(self) -> None:
        """Forget what is due and was not taken, and what was cancelled. The index has still what is not due: who does
        not want that acknowledges it; and who does reads again from its mark-delete position."""
        self._early.clear()
        with self._index._lock:
            self.taken = self._index._due.end
            self._cancelled.clear()
            self._met.clear()
            self._index._drop_taken()

    @property
    def tick(self) -> int:
        """The subscription's own, in milliseconds."""
        return self._cutoff.tick

    def reset_tick(self, tick_time_millis: int) -> None:
        """Change the tick of this subscription alone."""
        self._cutoff.tick = check_millis("tick_time_millis", tick_time_millis, 1)
        self._early.reset_tick(tick_time_millis)
        self._index.change_tick()

    def change_config(self, config: DelayedDeliveryConfig) -> None:
        """Use another tick; what else can be changed, the index has."""
        if config.delayed_delivery_tick_time_millis != self.tick:
            self.reset_tick(config.delayed_delivery_tick_time_millis)

    def close(self) -> None:
        """The subscription takes nothing any more, and nothing is kept for it."""
        self.end()
        self._index._leave(self)

    def end(self) -> None:
        """For the index, which forgets its views when it is closed."""
        self.closed = True
        self._early.close()

    @property
    def memory_bytes(self) -> int:
        """What it takes beyond the index."""
        return self._cancelled.memory_bytes + self._met.memory_bytes + self._early.memory_bytes

    def _check_open(self) -> None:
        if self.closed:
            raise TrackerClosedError("the tracker was closed")


class _DueLog:
    """Messages in the order in which they became due, numbered from the first that there ever was. Not thread-safe: the
    caller holds the index's lock."""

    def __init__(self) -> None:
        self._columns = array("q"), array("q"), array("q")
        # The number of the first row; those before ``begin`` are forgotten, and removed some time.
        self._base = 0
        self.begin = 0

    @property
    def end(self) -> int:
        """The number of the next one to come."""
        return self._base + len(self._columns[0])

    def extend(self, due: Indexes) -> None:
        for column, added in zip(self._columns, due, strict=True):
            column.extend(added.tolist())

    def columns(self, start: int, most: int | None) -> Indexes:
        """The rows from a number on."""
        first = start - self._base
        part = slice(first, None if most is None else first + most)
        # Copies, for an array that is looked at cannot grow.
        return Indexes(*(np.array(column[part], dtype=np.int64) for column in self._columns))

    def drop(self, before: int) -> None:
        """Forget those before a number."""
        self.begin = max(self.begin, before)
        dead = self.begin - self._base
        # Moving the rest costs no more than what was removed.
        if 2 * dead >= len(self._columns[0]):
            for column in self._columns:
                del column[:dead]
            self._base = self.begin

    @property
    def memory_bytes(self) -> int:
        return sum(column.__sizeof__() for column in self._columns)


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

    def unacknowledged(self, ledger_id: int, entry_ids: BitMap64) -> BitMap64:
        """All: the index is for whichever subscription has not acknowledged them."""
        return entry_ids
