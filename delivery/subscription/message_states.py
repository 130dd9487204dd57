"""States of the unacknowledged messages of a subscription, in memory.

A message is in one state at most: unacknowledged (delivered to a consumer), being dispatched, in the replay queue,
negatively acknowledged, or delayed, which the tracker records. The cursor reads every other message. The messages of a
batch have separate states.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bookstand.delivery.message.message_id import BatchMessageId, MessageId
from bookstand.delivery.message.message_set import RedeliveryCounts
from bookstand.delivery.nacks.pending import PendingNacks
from bookstand.delivery.subscription.replay_queue import ReplayQueue
from bookstand.delivery.subscription.unacked import UnackedMessages
from bookstand.delivery.time_index.precision import PowerOfTwoPrecision, Precision
from bookstand.storage.format.position import EARLIEST, Position


class MessageStates:
    """Not thread-safe, except for removals from ``unacked``; callers hold the subscription's lock."""

    def __init__(self, nack_precision: Precision | None = None) -> None:
        self.unacked = UnackedMessages()
        self.forget_undelivered(nack_precision)
        self.high_watermark = EARLIEST
        """Highest position at which a message can be in one of these states. Above it the cursor needs no lookup.
        The cursor may be below it after a restart or a reset, or where delayed messages were indexed ahead of it."""

    def __contains__(self, message: MessageId) -> bool:
        """Return True if the message is in one of these states; the tracker is not consulted."""
        return (
            message in self.unacked
            or message in self.replay_queue
            or message in self.nacked
            or message in self.dispatching
        )

    def has_any_of(self, position: Position, members: Sequence[BatchMessageId]) -> bool:
        """Return True if any of these messages of one batch is in one of these states."""
        return (
            self.unacked.has_any_of(position, members)
            or self.replay_queue.has_any(members)
            or self.nacked.has_any_of(position)
            or (bool(self.dispatching) and not self.dispatching.isdisjoint(members))
        )

    def extend_high_watermark(self, positions: Iterable[Position]) -> None:
        self.high_watermark = max([self.high_watermark, *positions])

    def forget_undelivered(self, nack_precision: Precision | None = None) -> None:
        """Drop all states except that of unacknowledged messages."""
        self.replay_queue = ReplayQueue()
        self.redelivery_counts = RedeliveryCounts()
        self.nacked = PendingNacks(nack_precision or PowerOfTwoPrecision(), self.redelivery_counts)
        self.dispatching: set[MessageId] = set()

    def clear(self) -> None:
        """Drop all states except negative acknowledgments."""
        self.unacked.clear()
        self.replay_queue.clear()
        self.redelivery_counts.clear()
