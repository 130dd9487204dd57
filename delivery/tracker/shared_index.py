"""One index of delayed messages for all subscriptions of a topic, an extension that PIP-195 leaves open.

The index has its own cursor, the *builder*. It reads the topic once, as far as the most advanced subscription, and
tracks delayed messages in buckets. Due messages move from the index to a log in memory. Each subscription reads that
log at its own pace, so its progress is one number. It skips messages that it has acknowledged, and messages after its
read position: it will find those due when it reads them.

Progress is not stored, and correctness does not depend on the index: a subscription starts to read at its mark-delete
position, delivers due messages and adds delayed ones. This also covers subscriptions that are created late or
restarted, and messages that a damaged index lost. A subscription that lags so far that the log was truncated must go
back there too (:attr:`SubscriptionView.must_rewind`).

The builder's mark-delete position is the end of the sealed messages, or the lowest mark-delete position of the
subscriptions if that is higher. The builder reads again from there after a restart.

Lock order: the cursor of a subscription queries its view while it holds its own lock. Code that holds the lock of the
index or of its tracker must therefore not call a subscription's cursor; views do so before or after.
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
"""Name of the builder's cursor."""

# Maximum number of due messages retained for lagging subscriptions; each takes 24 bytes.
DUE_LOG_LIMIT = 1 << 20
_READ_BATCH = 1000
# Due messages leave the index in batches of this size, however few are requested.
_DUE_BATCH = 5000


class SharedDelayedIndex(ProcessBound):
    """Thread-safe index of delayed messages that the subscriptions of a topic share."""

    def __init__(
        self,
        topic: ManagedLedger,
        config: DelayedDeliveryConfig | None = None,
        *,
        clock: Clock | None = None,
        timer: Timer | None = None,
        due_log_limit: int = DUE_LOG_LIMIT,
        cursor_config: CursorConfig | None = None,
    ) -> None:
        """``cursor_config`` configures the builder's cursor; ``due_log_limit`` limits the log of due messages."""
        self._topic = topic
        self.config = DelayedDeliveryConfig() if config is None else config
        self._lock = RLock()
        self._views: dict[str, SubscriptionView] = {}
        self._due_log = _DueLog()
        self._due_log_limit = check_millis("due_log_limit", due_log_limit, 0)
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
            logger().warning("topic %s: rebuilding the shared index from the topic: %s", topic.name, problem)
        self.tracker = BucketDelayedTracker(
            self._wake_all,
            _SharedIndexRegistry(self),
            self.config,
            rebuild=topic_rebuilder(topic),
            clock=self.clock,
            timer=timer,
        )

    @property
    def damage(self) -> list[str]:
        """Damage of the builder and of snapshots, all of it repaired by reading the topic again."""
        return [*self._damage, *self.tracker.problems]

    # -- subscriptions ------------------------------------------------------------------------------------------------

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
        """Return a new view for a subscription, which replaces its earlier view.

        ``read_position`` returns the entry that the subscription reads next, at first the one after its mark-delete
        position. Before it reads on from a lower position, the subscription needs a new view. ``tick`` defaults to
        the tick of the index.
        """
        tick = self.config.delayed_delivery_tick_time_millis if tick is None else tick
        view = SubscriptionView(self, name, wake, mark_delete, read_position, is_acked, acked_entries, tick)
        with self._lock:
            view.log_position = self._due_log.end
            self._views[name] = view
            self.change_tick()
        return view

    def change_config(self, config: DelayedDeliveryConfig) -> None:
        """Apply bucket sizes to later seals and merges, and the tick to later views; the rest is fixed while open."""
        with self._lock:
            self.config = config
            tick = self.tracker.config.delayed_delivery_tick_time_millis
            self.tracker.change_config(replace(config, delayed_delivery_tick_time_millis=tick))
            self.change_tick()

    def change_tick(self) -> None:
        """Derive the tick of the index from its views, after one of them changed.

        In strict mode the tick only limits how often dispatchers are woken, so the index uses the smallest. Otherwise
        messages leave the index when they are due for any view, so it uses the largest, and a view with a smaller tick
        retains them.
        """
        with self._lock:
            ticks = [view.tick for view in self._views.values()] or [self.config.delayed_delivery_tick_time_millis]
            tick = min(ticks) if self.config.is_delayed_delivery_deliver_at_time_strict else max(ticks)
            if tick != self.tracker.config.delayed_delivery_tick_time_millis:
                self.tracker.change_config(replace(self.tracker.config, delayed_delivery_tick_time_millis=tick))

    def _remove_view(self, view: SubscriptionView) -> None:
        with self._lock:
            if self._views.get(view.name) is view:
                del self._views[view.name]
                self._truncate_log()
                self.change_tick()

    def _wake_all(self) -> None:
        for view in list(self._views.values()):
            view.wake()

    def _horizon(self) -> Position:
        """Lowest mark-delete position of all views. Lock-free, because the tracker calls it with its lock held."""
        return min((view.last_mark_delete for view in list(self._views.values())), default=EARLIEST)

    # -- the builder --------------------------------------------------------------------------------------------------

    def catch_up(self, beyond: Position = LATEST) -> None:
        """Read the topic until the builder is past a position, or to the end, and track delayed messages."""
        with self._lock:
            while self._cursor.read_position <= beyond and (entries := self._read()):
                delayed = [(entry.position, time) for entry in entries if (time := deliver_at_of(entry)) is not None]
                if delayed:
                    self._track_new([position for position, _ in delayed], [time for _, time in delayed])
                self._advance_builder(self._sealed_end())

    def _read(self) -> list[TopicEntry]:
        """Read the next entries, skipping damage, which the subscriptions report when they read it."""
        while True:
            try:
                return self._cursor.read(_READ_BATCH)
            except UnreadableEntryError as error:
                logger().warning("index of delayed messages: skipping damaged entries: %s", error)
                self._cursor.seek(error.last.next)

    def _track_new(self, positions: Positions, times: Sequence[int] | Column) -> Mask:
        """Track new messages, and return the mask of those tracked now.

        Messages that are already tracked are not added again: if one is due, the tracker would drop it as delivered,
        but the subscriptions expect it from the log.
        """
        ledger_ids, entry_ids = columns_of(positions)
        tracked = self.tracker.contains_many(ledger_ids, entry_ids)
        new = np.flatnonzero(~tracked)
        if len(new):
            times = times_of(times, len(ledger_ids))
            added = self.tracker.add_many((ledger_ids[new], entry_ids[new]), times[new])
            tracked[new] = added
            for view in self._views.values():
                view.skip_early(ledger_ids[new][added], entry_ids[new][added])
        return tracked

    def _sealed_end(self) -> Position:
        """The last position that need not be read again after a restart."""
        ledger_id = self.tracker.sealed_up_to
        entries = None if ledger_id is None else self._topic.extent.entries(ledger_id)
        if ledger_id is None or entries is None:
            return EARLIEST
        return Position(ledger_id, entries - 1)

    def _advance_builder(self, position: Position) -> None:
        """Advance the builder. Unlike subscriptions it needs an existing entry, not a deleted or empty ledger."""
        last = self._topic.extent.last
        if last is not None and self._cursor.mark_delete_position < min(position, last):
            self._cursor.mark_delete(min(position, last))

    def trim(self) -> None:
        """Release the part of the topic that all subscriptions have passed, durably on return.

        Call it before ``trim_consumed``. Views release completed ledgers automatically, with a delay.
        """
        for view in list(self._views.values()):
            view.refresh_mark_delete()
        with self._lock:
            self._advance_builder(max(self._horizon(), self._sealed_end()))
            self._cursor.flush()

    # -- due messages -------------------------------------------------------------------------------------------------

    def _read_log(self, view: SubscriptionView, limit: int | None) -> Indexes:
        """Read due messages from the log; the result is empty only if none is due."""
        with self._lock:
            if view.log_position == self._due_log.end:
                self._log_due()
            due = self._due_log.columns(view.log_position, limit)
            view.log_position += due.size
            self._truncate_log()
            horizon = self._horizon()
            if horizon.ledger_id > self._cursor.mark_delete_position.ledger_id:
                self._advance_builder(horizon)
            return due

    def _log_due(self) -> None:
        due = self.tracker.take_due(_DUE_BATCH)
        if not due.size:
            return
        self._due_log.extend(due)
        # The tracker wakes only for newly due messages, so the other views must be woken for these.
        if len(self._views) > 1 and (self._alarm is None or not self._alarm.live):
            self._alarm = self.timer.arm(self.clock.now(), self._wake_lagging)

    def _wake_lagging(self, _: Alarm) -> None:
        with self._lock:
            self._alarm = None
            lagging = [view for view in self._views.values() if view.log_position < self._due_log.end]
        for view in lagging:
            view.wake()

    def _truncate_log(self) -> None:
        """Drop the prefix of the log that all views have read, or that exceeds the limit."""
        end = self._due_log.end
        read_by_all = min((view.log_position for view in self._views.values()), default=end)
        self._due_log.drop(max(read_by_all, end - self._due_log_limit))
        for view in self._views.values():
            if view.log_position < self._due_log.begin:
                view.log_position = self._due_log.begin
                view.must_rewind = True

    def _has_unread(self, view: SubscriptionView, position: tuple[int, int]) -> bool:
        unread = self._due_log.columns(view.log_position, None)
        return bool(((unread.ledger_ids == position[0]) & (unread.entry_ids == position[1])).any())

    # -- lifecycle ----------------------------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """Memory taken by the index and its views."""
        with self._lock:
            views = sum(view.memory_bytes for view in self._views.values())
            return self.tracker.memory_bytes + self._due_log.memory_bytes + views

    def close(self) -> None:
        """Close the index. Snapshots and the builder remain for the next index."""
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
            view.close_detached()
        self._views.clear()

    def _end_timer(self) -> None:
        if self._own_timer is not None:
            self._own_timer.close()


class SubscriptionView(ProcessBound):
    """A DelayedTracker for one subscription, created by :meth:`SharedDelayedIndex.view`.

    Not thread-safe: one dispatcher reads, adds the messages it read and pops due messages in turn. ``wake()`` is also
    called when another subscription finds messages due.

    Messages are due according to the view's own ``tick``. A message that left the index because it is due for a view
    with a larger tick is *early* for this view, which alone tracks it until it is due.
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
        # Messages in the index that this view must skip when they are due. The index's lock guards both sets.
        self._skipped_in_index = PositionSet()
        # Messages in the log that this view must skip: they were delivered, or became early, after it read the log.
        self._skipped_in_log = PositionSet()
        self.name = name
        self.wake = wake
        self.log_position = 0
        self.last_mark_delete = mark_delete()
        self.closed = False
        self.must_rewind = False
        """Set when the view lags behind the log: read again from mark-delete, after clearing this flag."""

    def refresh_mark_delete(self) -> None:
        """Cache the mark-delete position, because the index must not query a cursor."""
        self.last_mark_delete = self._mark_delete()

    # -- DelayedTracker -----------------------------------------------------------------------------------------------

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
        self.refresh_mark_delete()
        index = self._index
        with index._lock:
            index.catch_up(Position(*last))
            tracked = index._track_new((ledger_ids, entry_ids), times)
            if self.log_position < index._due_log.end:
                self._skipped_in_log.add_many(ledger_ids[~tracked], entry_ids[~tracked])
            due = (times < 0) | (times <= self._cutoff.time)
            # This view delivers messages that are due now; the other views will read them from the log.
            due_now = tracked & due
            early = ~tracked & ~due
            tracked &= ~due_now
            self._skipped_in_index.add_many(ledger_ids[due_now], entry_ids[due_now])
            self._skipped_in_index.discard_many(ledger_ids[tracked], entry_ids[tracked])
            if early.any():
                self._retain(Indexes(times[early], ledger_ids[early], entry_ids[early]))
                tracked |= early
        return tracked

    def _retain(self, early: Indexes) -> None:
        """Track early messages in this view; the caller holds the index's lock."""
        for time, ledger_id, entry_id in early.indexes:
            self._early.put((ledger_id, entry_id), time)
        in_index = self._index.tracker.contains_many(early.ledger_ids, early.entry_ids)
        self._skipped_in_index.add_many(early.ledger_ids[in_index], early.entry_ids[in_index])

    def skip_early(self, ledger_ids: Column, entry_ids: Column) -> None:
        """Skip early messages in the index, because this view tracks them; the caller holds the index's lock. When the
        tick of the index is reduced, it tracks messages again that had left it because of the larger tick."""
        if self._early.count:
            early = self._early.contains_many(ledger_ids, entry_ids)
            self._skipped_in_index.add_many(ledger_ids[early], entry_ids[early])

    def pop_due(self, limit: int | None = None) -> list[Position]:
        self._check_open()
        if limit is not None:
            check_millis("limit", limit, 0)
        self.refresh_mark_delete()
        found = self._deliverable(self._early.pop_due(limit))
        while limit is None or len(found) < limit:
            with self._index._lock:
                popped = self._index._read_log(self, None if limit is None else limit - len(found))
                if not popped.size:
                    # Messages to skip can only be in the log, which has been read to its end.
                    self._skipped_in_log.clear()
                    break
                # If a message was added to the index again, it follows its skipped occurrence in the log.
                for skipped in (self._skipped_in_log, self._skipped_in_index):
                    if skipped:
                        matches = skipped.contains_many(popped.ledger_ids, popped.entry_ids)
                        skipped.discard_many(popped.ledger_ids[matches], popped.entry_ids[matches])
                        popped = Indexes(*(column[~matches] for column in popped))
            early = popped.timestamps > self._cutoff.time
            if early.any():
                self._retain_deliverable(Indexes(*(column[early] for column in popped)))
                popped = Indexes(*(column[~early] for column in popped))
            found += self._deliverable(map(Position, popped.ledger_ids.tolist(), popped.entry_ids.tolist()))
        with self._index._lock:
            if self._skipped_in_index:
                self._skipped_in_index.discard_ledgers(0, self.last_mark_delete.ledger_id - 1)
        return sorted(found)

    def _retain_deliverable(self, early: Indexes) -> None:
        """Retain early messages that were read; unread ones will still be early when they are read."""
        positions = list(map(Position, early.ledger_ids.tolist(), early.entry_ids.tolist()))
        deliverable = set(self._deliverable(positions))
        rows = [row for row, position in enumerate(positions) if position in deliverable]
        with self._index._lock:
            self._retain(Indexes(*(column[rows] for column in early)))

    def _deliverable(self, positions: Iterable[Position]) -> list[Position]:
        """Messages to deliver: read before, and not acknowledged."""
        mark_delete, read_position, is_acked = self.last_mark_delete, self._read_position(), self._is_acked
        deliverable = [position for position in positions if mark_delete < position < read_position]
        return deliverable if is_acked is None else [position for position in deliverable if not is_acked(position)]

    def has_message_available(self) -> bool:
        """Return True if :meth:`pop_due` may return messages; False once it has returned none."""
        index = self._index
        if self._early.has_message_available() or self.log_position < index._due_log.end:
            return True
        return index.tracker.has_message_available()

    def should_pause_all_deliveries(self) -> bool:
        return False

    def contains_message(self, position: tuple[int, int]) -> bool:
        """Return True if the message is in the index or early; due messages may have left the index."""
        ledger_id, entry_id = check_position(position)
        if self._early.contains_message((ledger_id, entry_id)):
            return True
        if not self._index.tracker.contains_message((ledger_id, entry_id)):
            return False
        with self._index._lock:
            return not self._skipped_in_index.contains(ledger_id, entry_id)

    def contains_many(self, ledger_ids: Column, entry_ids: Column) -> Mask:
        ledger_ids, entry_ids = columns_of((as_ids("ledger ids", ledger_ids), entry_ids))
        contained = self._index.tracker.contains_many(ledger_ids, entry_ids)
        with self._index._lock:
            contained &= ~self._skipped_in_index.contains_many(ledger_ids, entry_ids)
        return contained | self._early.contains_many(ledger_ids, entry_ids) if self._early.count else contained

    def next_delivery(self) -> int | None:
        times = (self._early.next_delivery(), self._index.tracker.next_delivery())
        return min((time for time in times if time is not None), default=None)

    def peek(self, first: int | None = None, last: int | None = None, limit: int | None = None) -> Indexes:
        """Messages with times from ``first`` to ``last``, by time, ledger and entry."""
        self.refresh_mark_delete()
        found = self._index.tracker.peek(first, last)
        last_mark_delete, is_acked = self.last_mark_delete, self._is_acked
        with self._index._lock:
            selected = ~self._skipped_in_index.contains_many(found.ledger_ids, found.entry_ids)
        if self._early.count:
            selected = np.concatenate([selected, np.ones(self._early.count, dtype=np.bool_)])
            found = concatenate([found, self._early.peek()])
            selected &= (found.timestamps >= (-LARGEST if first is None else first)) & (
                found.timestamps <= (LARGEST if last is None else last)
            )
        for row, (_, ledger_id, entry_id) in enumerate(found.indexes):
            position = Position(ledger_id, entry_id)
            selected[row] &= position > last_mark_delete and not (is_acked is not None and is_acked(position))
        found = distinct(Indexes(*(column[selected] for column in found)))
        return found.part(0, found.size if limit is None else limit)

    def cancel(self, position: tuple[int, int]) -> bool:
        """Stop tracking a message for this subscription only."""
        ledger_id, entry_id = check_position(position)
        if self._early.cancel((ledger_id, entry_id)):
            return True
        with self._index._lock:
            if self._index.tracker.contains_message((ledger_id, entry_id)):
                return self._skipped_in_index.add(ledger_id, entry_id)
            if self._skipped_in_index.contains(ledger_id, entry_id):
                return False
            is_in_log = self._index._has_unread(self, (ledger_id, entry_id))
            return is_in_log and self._skipped_in_log.add(ledger_id, entry_id)

    @property
    def count(self) -> int:
        """Number of messages in the index, for any subscription, plus early ones of this view."""
        return self._index.tracker.count + self._early.count

    @property
    def delayed_count(self) -> int:
        """Number of messages that are delayed for this subscription, or due and not popped yet.

        Reads all pages of the subscription's acknowledgments.
        """
        self.refresh_mark_delete()
        acked = [(ledger_id, np.array(ids.to_array(), dtype=np.int64)) for ledger_id, ids in self._acked_entries()]
        tracker = self._index.tracker
        with self._index._lock:
            cancelled = self._skipped_in_index.columns()
            excluded = [(ledger_ids, entry_ids) for ledger_ids, entry_ids in [cancelled] if len(ledger_ids)]
            for ledger_id, entry_ids in acked:
                ledger_ids = np.full(len(entry_ids), ledger_id)
                counted = ~self._skipped_in_index.contains_many(ledger_ids, entry_ids)
                excluded.append((ledger_ids[counted], entry_ids[counted]))
            count = tracker.count_behind(self.last_mark_delete)
            for ledger_ids, entry_ids in excluded:
                behind = _is_after(self.last_mark_delete, ledger_ids, entry_ids)
                count -= int(np.count_nonzero(tracker.contains_many(ledger_ids[behind], entry_ids[behind])))
            if self._early.count:
                # Due by the tick of the index, but not by the subscription's.
                early = self._early.peek()
                count += int(np.count_nonzero(_is_after(self.last_mark_delete, early.ledger_ids, early.entry_ids)))
                for ledger_id, entry_ids in acked:
                    ledger_ids = np.full(len(entry_ids), ledger_id)
                    count -= int(np.count_nonzero(self._early.contains_many(ledger_ids, entry_ids)))
        return count

    def __len__(self) -> int:
        return self.count

    def clear(self) -> None:
        """Skip due messages that were not popped, and forget cancellations.

        The index keeps messages that are not due yet. To drop those, acknowledge them; to deliver them, read again from
        the mark-delete position.
        """
        self._early.clear()
        with self._index._lock:
            self.log_position = self._index._due_log.end
            self._skipped_in_index.clear()
            self._skipped_in_log.clear()
            self._index._truncate_log()

    @property
    def tick(self) -> int:
        """Tick of this subscription, in milliseconds."""
        return self._cutoff.tick

    def reset_tick(self, tick_time_millis: int) -> None:
        """Change the tick of this subscription alone."""
        self._cutoff.tick = check_millis("tick_time_millis", tick_time_millis, 1)
        self._early.reset_tick(tick_time_millis)
        self._index.change_tick()

    def change_config(self, config: DelayedDeliveryConfig) -> None:
        """Apply the tick; the index applies the other settings."""
        if config.delayed_delivery_tick_time_millis != self.tick:
            self.reset_tick(config.delayed_delivery_tick_time_millis)

    def close(self) -> None:
        """Detach the view from the index; no messages are retained for it."""
        self.close_detached()
        self._index._remove_view(self)

    def close_detached(self) -> None:
        """Close the view without detaching it, for an index that is itself closing."""
        self.closed = True
        self._early.close()

    @property
    def memory_bytes(self) -> int:
        """Memory taken beyond the index."""
        return self._skipped_in_index.memory_bytes + self._skipped_in_log.memory_bytes + self._early.memory_bytes

    def _check_open(self) -> None:
        if self.closed:
            raise TrackerClosedError("the tracker is closed")


def _is_after(position: Position, ledger_ids: Column, entry_ids: Column) -> Mask:
    ledger_id, entry_id = position
    mask: Mask = (ledger_ids > ledger_id) | ((ledger_ids == ledger_id) & (entry_ids > entry_id))
    return mask


class _DueLog:
    """Messages in the order in which they became due, numbered from the first one. Callers hold the index's lock."""

    def __init__(self) -> None:
        self._columns = array("q"), array("q"), array("q")
        # Number of the first row; rows before ``begin`` are dropped, but still occupy memory.
        self._base = 0
        self.begin = 0

    @property
    def end(self) -> int:
        return self._base + len(self._columns[0])

    def extend(self, due: Indexes) -> None:
        for column, added in zip(self._columns, due, strict=True):
            column.extend(added.tolist())

    def columns(self, start: int, limit: int | None) -> Indexes:
        """Copy up to ``limit`` rows from ``start``; None means all."""
        first = start - self._base
        part = slice(first, None if limit is None else first + limit)
        # Copy, because an array with exported views cannot grow.
        return Indexes(*(np.array(column[part], dtype=np.int64) for column in self._columns))

    def drop(self, before: int) -> None:
        self.begin = max(self.begin, before)
        dead = self.begin - self._base
        # Moving the remaining rows costs no more than the rows removed since.
        if 2 * dead >= len(self._columns[0]):
            for column in self._columns:
                del column[:dead]
            self._base = self.begin

    @property
    def memory_bytes(self) -> int:
        return sum(column.__sizeof__() for column in self._columns)


class _SharedIndexRegistry:
    """Registry of the shared index, whose buckets are in the builder's properties."""

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
        """Return all, because some subscription may not have acknowledged them."""
        return entry_ids
