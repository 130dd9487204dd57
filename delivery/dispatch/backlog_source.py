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
        states: MessageStates,
        reader: ExpiringReader,
        batch_filter: BatchFilter,
        batch_sizes: BatchSizeEstimator,
    ) -> None:
        self._cursor = cursor
        self._delayed = delayed
        self._states = states
        self._reader = reader
        self._batch_filter = batch_filter
        self._batch_sizes = batch_sizes
        # Read already, and not handed out for want of a place.
        self._prefetched: deque[ReceivedMessage] = deque()
        # Up to here what is delayed is tracked, although the cursor has not come to it.
        self._indexed_before = EARLIEST
        self._read_size = _FEW

    @property
    def may_have_messages(self) -> bool:
        return bool(self._prefetched) or self._cursor.has_more

    @property
    def position(self) -> Position:
        """Read position of the cursor."""
        return self._cursor.read_position

    def queue(self, last: Position, limit: int) -> bool:
        """Move messages that were read ahead, and ``most`` or more unread ones up to ``last``, to the replay queue.
        Returns False if no unread entry up to ``last`` was found."""
        again = self._states.replay_queue
        again.add(entry.position for entry in self._prefetched if self._is_still_to_come(entry))
        self._prefetched.clear()
        if self._delayed.tracker.should_pause_all_deliveries():
            return False
        if self._delayed.consume_rewind_request():
            self._rewind()
        start = self._cursor.read_position
        try:
            count = max(self._batch_sizes.entries_for(limit), self._read_size)
            (fresh, plain), any_read = self._reader.read(count, partial(self._wanted, True), last)
            if not plain:
                # Batches of which every member is somewhere else are not tracked anew.
                fresh = [entry for entry in fresh if not size_of_batch(entry) or self._batch_filter.select([entry])]
                fresh = self._delayed.track(fresh)
        except BookstandError:
            self._cursor.seek(start)
            raise
        self._read_size = _FEW if fresh else _MANY
        again.add(entry.position for entry in fresh)
        return any_read

    def take(self, limit: int) -> list[Deliverable] | None:
        while self._prefetched:
            ahead = [self._prefetched.popleft() for _ in range(take_prefix(self._prefetched, limit))]
            try:
                deliverables = self._batch_filter.select(
                    self._reader.without_expired(list(filter(self._is_still_to_come, ahead)))
                )
            except BookstandError:
                self._prefetched.extendleft(reversed(ahead))
                raise
            if deliverables:
                return deliverables
        tracker = self._delayed.tracker
        if tracker.should_pause_all_deliveries():
            return []
        if self._delayed.consume_rewind_request():
            self._rewind()
        start = self._cursor.read_position
        again = start <= self._states.high_watermark
        wanted = partial(self._wanted, again) if again or tracker.count else None
        try:
            (fresh, plain), any_read = self._read(limit, wanted)
            if not plain:
                if again:
                    # Batches of which every member is somewhere else are not tracked anew.
                    fresh = [entry for entry in fresh if not size_of_batch(entry) or self._batch_filter.select([entry])]
                fresh = self._delayed.track(fresh)
            first = fresh[: limit if plain else take_prefix(fresh, limit)]
            deliverables = SingleMessageEntries(first) if plain else self._batch_filter.select(first)
        except BookstandError:
            self._cursor.seek(start)
            raise
        self._prefetched.extend(fresh[len(first) :])
        self._read_size = _FEW if fresh else _MANY
        # Of a batch all members may be somewhere else.
        return deliverables or (None if any_read else [])

    def _read(self, limit: int, wanted: EntryFilter | None) -> tuple[DecodedEntries, bool]:
        """As many entries as may have so many messages, and whether there were any at all."""
        if self._batch_sizes.are_known:
            return self._read_some(limit, wanted)
        # The first may be a batch, and they all may be: then few of them are enough.
        first, any_read = self._reader.read(1, wanted)
        self._batch_sizes.learn(first)
        left = limit - sum(size_of_batch(entry) or 1 for entry in first.entries)
        if left <= 0 or not any_read:
            return first, any_read
        try:
            rest, _ = self._read_some(left, wanted)
        except BookstandError:
            # The next call tells of it.
            return first, True
        return DecodedEntries(first.entries + rest.entries, first.plain and rest.plain), True

    def _read_some(self, limit: int, wanted: EntryFilter | None) -> tuple[DecodedEntries, bool]:
        count = self._batch_sizes.entries_for(limit)
        # Where one is delayed, others are, and are tracked many at a time.
        read, any_read = self._reader.read(count if wanted is None else max(count, self._read_size), wanted)
        self._batch_sizes.learn(read)
        return read, any_read

    def _is_still_to_come(self, entry: ReceivedMessage) -> bool:
        """What was read may have been acknowledged since, or given back by somebody who remembers it from before."""
        return entry.position not in self._states and not self._cursor.is_acked(entry.position)

    def _wanted(self, again: bool, ledger_id: int, first: int, last: int) -> Iterable[int]:
        """Of a run of entries those that do not wait; where the cursor was before (``again``), those that are nowhere
        else besides."""
        entry_ids = self._delayed.not_delayed(ledger_id, first, last)
        if not again:
            return entry_ids
        return [one for one in entry_ids if Position(ledger_id, one) not in self._states]

    def _rewind(self) -> None:
        self._states.extend_high_watermark([self._cursor.read_position])
        self._prefetched.clear()
        self._cursor.rewind()

    def index_unread(self) -> None:
        """What is delayed and was not read yet waits as well, unless it is somewhere else. When the cursor comes to it,
        it may be out already."""
        start = max(self._cursor.read_position, self._indexed_before)
        unread: list[ReceivedMessage] = []
        for entry in chain(self._reader.unacked(self._delayed.not_delayed, start), [None]):
            if unread and (entry is None or len(unread) == _MANY):
                self._delayed.track(unread)
                self._indexed_before = unread[-1].position.next
                self._states.extend_high_watermark([self._indexed_before])
                unread = []
            if entry is not None and entry.position not in self._states:
                read = self._reader.decode(entry)
                if not size_of_batch(read) or self._batch_filter.select([read]):
                    unread.append(read)

    def on_seek(self) -> None:
        """The cursor stands somewhere else now."""
        self._prefetched.clear()
        self._indexed_before = EARLIEST
