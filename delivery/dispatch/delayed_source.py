"""The second place that messages come from: delayed ones whose time has come, which the tracker knows."""

from __future__ import annotations

from bookstand.delivery.dispatch.batch_size_estimator import BatchSizeEstimator
from bookstand.delivery.message.batch_filter import BatchFilter
from bookstand.delivery.message.received_message import Deliverable, messages_in
from bookstand.delivery.subscription.delayed_delivery import DelayedDelivery
from bookstand.delivery.subscription.expiry import ExpiringReader
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.errors import BookstandError

# Number of due messages that one call of queue() moves.
_MANY = 10_000


class DelayedSource:
    """A :class:`~bookstand.delivery.dispatch.dispatcher.MessageSource`."""

    def __init__(
        self,
        delayed: DelayedDelivery,
        where: MessageStates,
        living: ExpiringReader,
        portions: BatchFilter,
        sizes: BatchSizeEstimator,
    ) -> None:
        self._delayed = delayed
        self._where = where
        self._living = living
        self._portions = portions
        self._sizes = sizes

    @property
    def has_some(self) -> bool:
        return self._delayed.tracker.has_message_available()

    def take(self, most: int) -> list[Deliverable]:
        found: list[Deliverable] = []
        # Mostly nothing is due, and asking costs less than looking.
        if not self.has_some:
            return found
        where, sizes = self._where, self._sizes
        count = 0
        while count < most and (positions := self._delayed.tracker.pop_due(sizes.entries_for(most - count))):
            where.reach(positions)
            wanted = [position for position in positions if position not in where]
            try:
                entries = self._living.at(wanted)
                entries.sort(key=lambda entry: (entry.deliver_at or 0, entry.position))
                some = self._portions.of(entries)
            except BookstandError:
                where.again.add(wanted)
                if not found:
                    raise
                break
            found += some
            count += messages_in(some)
        return found

    def queue(self) -> bool:
        """Move some of the due messages to the replay queue. Returns False if none is due."""
        where = self._where
        if not self.has_some or not (positions := self._delayed.tracker.pop_due(_MANY)):
            return False
        where.reach(positions)
        where.again.add([position for position in positions if position not in where])
        return True
