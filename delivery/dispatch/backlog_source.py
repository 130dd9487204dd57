"""New messages: unacknowledged entries from the cursor's read position on.

Delayed messages are added to the tracker instead. Entries that the tracker contains are not read again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain

from bookstand.cursor.cursor import Cursor
from bookstand.cursor.reader import EntryFilter
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

# Number of entries in one read while some messages are not delayed, and while all are.
_MIXED_READ_SIZE, _DELAYED_READ_SIZE = 32, 1_000


class BatchSizeEstimator:
    """Estimates how many entries contain a number of messages, from the last read. Not thread-safe."""

    def __init__(self) -> None:
        self._messages_per_entry = 0

    @property
    def has_estimate(self) -> bool:
        return self._messages_per_entry > 0

    def learn(self, read: DecodedEntries) -> None:
        entries = read.entries
        if entries:
            count = len(entries) if read.plain else sum(size_of_batch(entry) or 1 for entry in entries)
            self._messages_per_entry = count // len(entries)

    def entries_for(self, messages: int) -> int:
        return -(-messages // (self._messages_per_entry or 1))


def take_prefix(entries: Sequence[ReceivedMessage], messages: int) -> int:
    """Number of entries, from the first on, that contain at least ``messages`` messages; all if they contain fewer."""
    for count, entry in enumerate(entries):
        if messages <= 0:
            return count
        messages -= size_of_batch(entry) or 1
    return len(entries)


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
        # Messages that were read but exceeded the caller's limit.
        self._prefetched: deque[ReceivedMessage] = deque()
        # Delayed messages below this position are tracked, although the cursor may be below it.
        self._indexed_before = EARLIEST
        self._read_size = _MIXED_READ_SIZE

    @property
    def may_have_messages(self) -> bool:
        return bool(self._prefetched) or self._cursor.has_more

    @property
    def position(self) -> Position:
        return self._cursor.read_position

    def queue(self, last: Position, limit: int) -> bool:
        """Move prefetched messages, and ``limit`` or more unread ones up to ``last``, to the replay queue. Return False
        if no unread entry up to ``last`` was found."""
        replay_queue = self._states.replay_queue
        replay_queue.add(entry.position for entry in self._prefetched if self._is_undelivered(entry))
        self._prefetched.clear()
        if self._delayed.tracker.should_pause_all_deliveries():
            return False
        if self._delayed.consume_rewind_request():
            self._rewind()
        start = self._cursor.read_position
        try:
            count = max(self._batch_sizes.entries_for(limit), self._read_size)
            (fresh, plain), any_read = self._reader.read(count, partial(self._filter_run, True), last)
            if not plain:
                # A batch whose messages are all in other states is not tracked again.
                fresh = [entry for entry in fresh if not size_of_batch(entry) or self._batch_filter.select([entry])]
                fresh = self._delayed.track(fresh)
        except BookstandError:
            self._cursor.seek(start)
            raise
        self._read_size = _MIXED_READ_SIZE if fresh else _DELAYED_READ_SIZE
        replay_queue.add(entry.position for entry in fresh)
        return any_read

    def take(self, limit: int) -> list[Deliverable] | None:
        while self._prefetched:
            ahead = [self._prefetched.popleft() for _ in range(take_prefix(self._prefetched, limit))]
            try:
                deliverables = self._batch_filter.select(
                    self._reader.without_expired(list(filter(self._is_undelivered, ahead)))
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
        check_states = start <= self._states.high_watermark
        entry_filter = partial(self._filter_run, check_states) if check_states or tracker.count else None
        try:
            (fresh, plain), any_read = self._read(limit, entry_filter)
            if not plain:
                if check_states:
                    # A batch whose messages are all in other states is not tracked again.
                    fresh = [entry for entry in fresh if not size_of_batch(entry) or self._batch_filter.select([entry])]
                fresh = self._delayed.track(fresh)
            first = fresh[: limit if plain else take_prefix(fresh, limit)]
            deliverables = SingleMessageEntries(first) if plain else self._batch_filter.select(first)
        except BookstandError:
            self._cursor.seek(start)
            raise
        self._prefetched.extend(fresh[len(first) :])
        self._read_size = _MIXED_READ_SIZE if fresh else _DELAYED_READ_SIZE
        # Batches whose messages are all in other states leave nothing to deliver.
        return deliverables or (None if any_read else [])

    def _read(self, limit: int, entry_filter: EntryFilter | None) -> tuple[DecodedEntries, bool]:
        """Read entries with about ``limit`` messages. The second value is False if no entry was read."""
        if self._batch_sizes.has_estimate:
            return self._read_some(limit, entry_filter)
        # The first entry shows the size of batches; a few entries may be enough.
        first, any_read = self._reader.read(1, entry_filter)
        self._batch_sizes.learn(first)
        remaining = limit - sum(size_of_batch(entry) or 1 for entry in first.entries)
        if remaining <= 0 or not any_read:
            return first, any_read
        try:
            rest, _ = self._read_some(remaining, entry_filter)
        except BookstandError:
            # The next call raises the error again.
            return first, True
        return DecodedEntries(first.entries + rest.entries, first.plain and rest.plain), True

    def _read_some(self, limit: int, entry_filter: EntryFilter | None) -> tuple[DecodedEntries, bool]:
        count = self._batch_sizes.entries_for(limit)
        # Delayed messages usually occur together, and tracking many of them at once is faster.
        read, any_read = self._reader.read(count if entry_filter is None else max(count, self._read_size), entry_filter)
        self._batch_sizes.learn(read)
        return read, any_read

    def _is_undelivered(self, entry: ReceivedMessage) -> bool:
        """Return False if a prefetched message was acknowledged or redelivered in the meantime."""
        return entry.position not in self._states and not self._cursor.is_acked(entry.position)

    def _filter_run(self, check_states: bool, ledger_id: int, first: int, last: int) -> Iterable[int]:
        """Entry ids of a run that are not delayed and, with ``check_states``, in no other state."""
        entry_ids = self._delayed.not_delayed(ledger_id, first, last)
        if not check_states:
            return entry_ids
        return [one for one in entry_ids if Position(ledger_id, one) not in self._states]

    def _rewind(self) -> None:
        self._states.extend_high_watermark([self._cursor.read_position])
        self._prefetched.clear()
        self._cursor.rewind()

    def index_unread(self) -> None:
        """Track delayed messages above the read position. They may be dispatched before the cursor reaches them."""
        start = max(self._cursor.read_position, self._indexed_before)
        unread: list[ReceivedMessage] = []
        for entry in chain(self._reader.unacked(self._delayed.not_delayed, start), [None]):
            if unread and (entry is None or len(unread) == _DELAYED_READ_SIZE):
                self._delayed.track(unread)
                self._indexed_before = unread[-1].position.next
                self._states.extend_high_watermark([self._indexed_before])
                unread = []
            if entry is not None and entry.position not in self._states:
                read = self._reader.decode(entry)
                if not size_of_batch(read) or self._batch_filter.select([read]):
                    unread.append(read)

    def on_seek(self) -> None:
        """Forget positions that refer to the old read position."""
        self._prefetched.clear()
        self._indexed_before = EARLIEST
