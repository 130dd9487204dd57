"""Where the messages of a subscription are that are not acknowledged. Plain state, no I/O.

A message is in one place at a time: it is *out*, or on its way there (*taken*); or it waits to come *again*, or until
its negative acknowledgment is over (*nacked*); or it waits for its time, which the tracker knows. The cursor comes to
all others. Of a batch each member is somewhere.
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
    """Its owner has a lock for all but what is acknowledged."""

    def __init__(self, nack_precision: Precision | None = None) -> None:
        self.out = UnackedMessages()
        self.again = ReplayQueue()
        self.given_back = RedeliveryCounts()
        self.nacked = PendingNacks(nack_precision or PowerOfTwoPrecision(), self.given_back)
        self.taken: set[MessageId] = set()
        self.read_before = EARLIEST
        """Up to here the cursor may come to messages that are somewhere already: it was here before, in this life or
        another, or what is delayed was tracked before it came."""

    def __contains__(self, message: MessageId) -> bool:
        """Whether it is in one of these places."""
        return message in self.out or message in self.again or message in self.nacked or message in self.taken

    def has_any_of(self, position: Position, members: Sequence[BatchMessageId]) -> bool:
        """Whether any member of that batch is in one of these places; mostly none is."""
        return (
            self.out.has_any_of(position, members)
            or self.again.has_any(members)
            or self.nacked.has_any_of(position)
            or (bool(self.taken) and not self.taken.isdisjoint(members))
        )

    def reach(self, positions: Iterable[Position]) -> None:
        """Messages may be somewhere up to the last of these."""
        self.read_before = max([self.read_before, *positions])

    def acknowledged(self, message: MessageId) -> bool:
        """Return whether it was out."""
        return self.out.settle(message)

    def all_acknowledged(self, positions: Iterable[Position]) -> list[Position]:
        """Settle many entries; return those that were not in flight."""
        return self.out.settle_all(positions)

    def members_acknowledged(self, position: Position, members: Sequence[BatchMessageId]) -> None:
        """Some of a batch."""
        self.out.settle_members(position, members)

    def batch_acknowledged(self, position: Position) -> None:
        """All of a batch."""
        self.out.settle(position)

    def forget_up_to(self, passed: Position) -> None:
        """Forget the counts of ledgers that are acknowledged as a whole."""
        self.given_back.discard_before(passed.ledger_id)

    def begin_anew(self, nack_precision: Precision | None = None) -> None:
        """Forget all but what is in flight."""
        self.again = ReplayQueue()
        self.given_back = RedeliveryCounts()
        self.nacked = PendingNacks(nack_precision or PowerOfTwoPrecision(), self.given_back)
        self.taken = set()

    def clear(self) -> None:
        """Nothing is out, nor to come again; what was negatively acknowledged waits on."""
        self.out.clear()
        self.again.clear()
        self.given_back.clear()
