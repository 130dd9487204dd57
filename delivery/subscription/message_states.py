"""In-memory states of the unacknowledged messages of a subscription.

A message is in one state at most: in flight, being dispatched, in the replay queue, negatively acknowledged, or delayed
(recorded by the tracker). Messages in no state are delivered when the cursor reads them. The messages of a batch have
separate states.
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
        """Messages in one of these states are at or below this position, so the cursor needs no lookup above it. It can
        lie above the read position after a restart or a rewind, or when delayed messages were indexed ahead of the
        cursor."""

    def __contains__(self, message: MessageId) -> bool:
        """Return True if the message is in one of these states, other than delayed."""
        return (
            message in self.unacked
            or message in self.replay_queue
            or message in self.nacked
            or message in self.dispatching
        )

    def has_any_of(self, position: Position, members: Sequence[BatchMessageId]) -> bool:
        """Like ``in``, for any of these messages of one batch."""
        return (
            self.unacked.has_any_of(position, members)
            or self.replay_queue.has_any(members)
            or self.nacked.has_any_of(position)
            or (bool(self.dispatching) and not self.dispatching.isdisjoint(members))
        )

    def extend_high_watermark(self, positions: Iterable[Position]) -> None:
        self.high_watermark = max([self.high_watermark, *positions])

    def forget_undelivered(self, nack_precision: Precision | None = None) -> None:
        """Keep only the messages in flight."""
        self.replay_queue = ReplayQueue()
        self.redelivery_counts = RedeliveryCounts()
        self.nacked = PendingNacks(nack_precision or PowerOfTwoPrecision(), self.redelivery_counts)
        self.dispatching: set[MessageId] = set()

    def clear(self) -> None:
        """Drop all states except negative acknowledgments."""
        self.unacked.clear()
        self.replay_queue.clear()
        self.redelivery_counts.clear()
