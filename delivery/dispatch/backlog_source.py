"""The third place that messages come from: the cursor, which reads on from where it stands.

What is delayed goes to the tracker instead, and what the tracker has is passed over without being read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import chain

from bookstand.cursor.cursor import Cursor
from bookstand.cursor.reader import EntryFilter
from bookstand.delivery.dispatch.batch_size_estimator import BatchSizeEstimator, take_prefix
from bookstand.delivery.message.batch_filter import BatchFilter
from bookstand.delivery.message.received_message import (
    DecodedEntries,
    Deliverable,
    ReceivedMessage,
    SingleMessageEntries,
    size_of_batch,
)
from bookstand.delivery.subscription.delayed_delivery import DelayedDelivery
from bookstand.delivery.subscription.expiry import ExpiringReader
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.errors import BookstandError
from bookstand.storage.format.position import EARLIEST, Position

# How many entries are read at once where some are delayed, and where all are.
_FEW, _MANY = 32, 1_000


class BacklogSource:
    """A :class:`~bookstand.delivery.dispatch.dispatcher.MessageSource`."""

    def __init__(
        self,
        cursor: Cursor,
        delayed: DelayedDelivery,
        where: MessageStates,
        living: ExpiringReader,
        portions: BatchFilter,
        sizes: BatchSizeEstimator,
    ) -> None:
        self._cursor = cursor
        self._delayed = delayed
        self._where = where
        self._living = living
        self._portions = portions
        self._sizes = sizes
        # Read already, and not handed out for want of a place.
        self._ahead: deque[ReceivedMessage] = deque()
        # Up to here what is delayed is tracked, although the cursor has not come to it.
        self._tracked_before = EARLIEST
        self._read_at_once = _FEW

    @property
    def has_some(self) -> bool:
        return bool(self._ahead) or self._cursor.has_more

    @property
    def position(self) -> Position:
        """Read position of the cursor."""
        return self._cursor.read_position

    def queue(self, last: Position, most: int) -> bool:
        """Move messages that were read ahead, and ``most`` or more unread ones up to ``last``, to the replay queue.
        Returns False if no unread entry up to ``last`` was found."""
        again = self._where.again
        again.add(entry.position for entry in self._ahead if self._is_still_to_come(entry))
        self._ahead.clear()
        if self._delayed.tracker.should_pause_all_deliveries():
            return False
        if self._delayed.takes_rewind():
            self._rewind()
        start = self._cursor.read_position
        try:
            count = max(self._sizes.entries_for(most), self._read_at_once)
            (fresh, plain), any_read = self._living.read(count, partial(self._wanted, True), last)
            if not plain:
                # Batches of which every member is somewhere else are not tracked anew.
                fresh = [entry for entry in fresh if not size_of_batch(entry) or self._portions.of([entry])]
                fresh = self._delayed.track(fresh)
        except BookstandError:
            self._cursor.seek(start)
            raise
        self._read_at_once = _FEW if fresh else _MANY
        again.add(entry.position for entry in fresh)
        return any_read

    def take(self, most: int) -> list[Deliverable] | None:
        while self._ahead:
            ahead = [self._ahead.popleft() for _ in range(take_prefix(self._ahead, most))]
            try:
                portions = self._portions.of(self._living.without_expired(list(filter(self._is_still_to_come, ahead))))
            except BookstandError:
                self._ahead.extendleft(reversed(ahead))
                raise
            if portions:
                return portions
        tracker = self._delayed.tracker
        if tracker.should_pause_all_deliveries():
            return []
        if self._delayed.takes_rewind():
            self._rewind()
        start = self._cursor.read_position
        again = start <= self._where.read_before
        wanted = partial(self._wanted, again) if again or tracker.count else None
        try:
            (fresh, plain), any_read = self._read(most, wanted)
            if not plain:
                if again:
                    # Batches of which every member is somewhere else are not tracked anew.
                    fresh = [entry for entry in fresh if not size_of_batch(entry) or self._portions.of([entry])]
                fresh = self._delayed.track(fresh)
            first = fresh[: most if plain else take_prefix(fresh, most)]
            portions = SingleMessageEntries(first) if plain else self._portions.of(first)
        except BookstandError:
            self._cursor.seek(start)
            raise
        self._ahead.extend(fresh[len(first) :])
        self._read_at_once = _FEW if fresh else _MANY
        # Of a batch all members may be somewhere else.
        return portions or (None if any_read else [])

    def _read(self, most: int, wanted: EntryFilter | None) -> tuple[DecodedEntries, bool]:
        """As many entries as may have so many messages, and whether there were any at all."""
        if self._sizes.are_known:
            return self._read_some(most, wanted)
        # The first may be a batch, and they all may be: then few of them are enough.
        first, any_read = self._living.read(1, wanted)
        self._sizes.learn(first)
        left = most - sum(size_of_batch(entry) or 1 for entry in first.entries)
        if left <= 0 or not any_read:
            return first, any_read
        try:
            rest, _ = self._read_some(left, wanted)
        except BookstandError:
            # The next call tells of it.
            return first, True
        return DecodedEntries(first.entries + rest.entries, first.plain and rest.plain), True

    def _read_some(self, most: int, wanted: EntryFilter | None) -> tuple[DecodedEntries, bool]:
        count = self._sizes.entries_for(most)
        # Where one is delayed, others are, and are tracked many at a time.
        read, any_read = self._living.read(count if wanted is None else max(count, self._read_at_once), wanted)
        self._sizes.learn(read)
        return read, any_read

    def _is_still_to_come(self, entry: ReceivedMessage) -> bool:
        """What was read may have been acknowledged since, or given back by somebody who remembers it from before."""
        return entry.position not in self._where and not self._cursor.is_acked(entry.position)

    def _wanted(self, again: bool, ledger_id: int, first: int, last: int) -> Iterable[int]:
        """Of a run of entries those that do not wait; where the cursor was before (``again``), those that are nowhere
        else besides."""
        entry_ids = self._delayed.untracked(ledger_id, first, last)
        if not again:
            return entry_ids
        return [one for one in entry_ids if Position(ledger_id, one) not in self._where]

    def _rewind(self) -> None:
        self._where.reach([self._cursor.read_position])
        self._ahead.clear()
        self._cursor.rewind()

    def track_unread(self) -> None:
        """What is delayed and was not read yet waits as well, unless it is somewhere else. When the cursor comes to it,
        it may be out already."""
        start = max(self._cursor.read_position, self._tracked_before)
        unread: list[ReceivedMessage] = []
        for entry in chain(self._living.unacked(self._delayed.untracked, start), [None]):
            if unread and (entry is None or len(unread) == _MANY):
                self._delayed.track(unread)
                self._tracked_before = unread[-1].position.next
                self._where.reach([self._tracked_before])
                unread = []
            if entry is not None and entry.position not in self._where:
                read = self._living.open(entry)
                if not size_of_batch(read) or self._portions.of([read]):
                    unread.append(read)

    def begin_anew(self) -> None:
        """The cursor stands somewhere else now."""
        self._ahead.clear()
        self._tracked_before = EARLIEST
