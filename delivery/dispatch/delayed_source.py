"""Due messages: delayed messages whose delivery time has passed."""

from __future__ import annotations

from bookstand.delivery.dispatch.backlog_source import BatchSizeEstimator
from bookstand.delivery.message.batch_filter import BatchFilter
from bookstand.delivery.message.received_message import Deliverable, message_count
from bookstand.delivery.subscription.delayed_delivery import DelayedDelivery
from bookstand.delivery.subscription.expiry import ExpiringReader
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.errors import BookstandError

# Number of due messages that one call of queue() moves.
_QUEUE_BATCH = 10_000


class DelayedSource:
    """A :class:`~bookstand.delivery.dispatch.dispatcher.MessageSource`."""

    def __init__(
        self,
        delayed: DelayedDelivery,
        states: MessageStates,
        reader: ExpiringReader,
        batch_filter: BatchFilter,
        batch_sizes: BatchSizeEstimator,
    ) -> None:
        self._delayed = delayed
        self._states = states
        self._reader = reader
        self._batch_filter = batch_filter
        self._batch_sizes = batch_sizes

    @property
    def may_have_messages(self) -> bool:
        return self._delayed.tracker.has_message_available()

    def take(self, limit: int) -> list[Deliverable]:
        found: list[Deliverable] = []
        # Usually nothing is due, and this check is cheaper than a read.
        if not self.may_have_messages:
            return found
        states, batch_sizes = self._states, self._batch_sizes
        count = 0
        while count < limit and (positions := self._delayed.tracker.pop_due(batch_sizes.entries_for(limit - count))):
            states.extend_high_watermark(positions)
            pending = [position for position in positions if position not in states]
            try:
                entries = self._reader.read_positions(pending)
                entries.sort(key=lambda entry: (entry.deliver_at or 0, entry.position))
                some = self._batch_filter.select(entries)
            except BookstandError:
                states.replay_queue.add(pending)
                if not found:
                    raise
                break
            found += some
            count += message_count(some)
        return found

    def queue(self) -> bool:
        """Move some of the due messages to the replay queue. Return False if none is due."""
        states = self._states
        if not self.may_have_messages or not (positions := self._delayed.tracker.pop_due(_QUEUE_BATCH)):
            return False
        states.extend_high_watermark(positions)
        states.replay_queue.add([position for position in positions if position not in states])
        return True
