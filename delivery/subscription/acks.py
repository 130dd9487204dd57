"""Acknowledging messages. It takes no lock of the subscription: it goes to the cursor, and settles what is out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from bookstand.cursor.cursor import Cursor
from bookstand.delivery.message.message_id import BatchMessageId, MessageId, position_of
from bookstand.delivery.message.received_message import ReceivedMember, ReceivedMessage
from bookstand.delivery.message.references import MessageRef, resolve_position
from bookstand.delivery.notifier import Notifier
from bookstand.delivery.subscription.mark_delete_watcher import MarkDeleteWatcher
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.delivery.subscription.stats import Counters
from bookstand.storage.commit.futures import Pending, completed
from bookstand.storage.format.position import Position

_POSITION_OF = attrgetter("position")
_INDEX_OF = attrgetter("batch_index")
_ID_OF = attrgetter("id")


class AckHandler:
    """Safe between threads."""

    def __init__(
        self, cursor: Cursor, where: MessageStates, passing: MarkDeleteWatcher, bell: Notifier, tally: Counters
    ) -> None:
        self._cursor = cursor
        self._where = where
        self._passing = passing
        self._bell = bell
        self._tally = tally
        self.is_awaited = False
        """Whether as many are out as may be, so that somebody waits for one of them to be settled."""

    def ack(self, message: MessageRef) -> Pending:
        if isinstance(message, ReceivedMember):
            pending = self._ack_members(message.position, [message])
        else:
            position = resolve_position(message)
            pending = self._cursor.ack(position)
            self.acknowledged(position)
        self._tally.acked += 1
        return pending

    def ack_many(self, messages: Iterable[MessageRef]) -> Pending:
        given = list(messages)
        pending = self.ack_uncounted(given)
        self._tally.acked += len(given)
        return pending

    def ack_uncounted(self, given: list[MessageRef] | list[ReceivedMessage]) -> Pending:
        """For what is acknowledged, and was not handled."""
        whole: list[Position] = []
        of_batches: dict[Position, list[ReceivedMember]] = {}
        kinds = set(map(type, given))
        if kinds == {ReceivedMessage}:
            whole = list(map(_POSITION_OF, given))
        elif kinds == {ReceivedMember}:
            for position, together in groupby(given, _POSITION_OF):
                of_batches.setdefault(position, []).extend(together)  # type: ignore[arg-type]
        else:
            for message in given:
                if isinstance(message, ReceivedMember):
                    of_batches.setdefault(message.position, []).append(message)
                else:
                    whole.append(resolve_position(message))
        pendings = [self._ack_members(position, members) for position, members in of_batches.items()]
        if whole:
            pendings.append(self._cursor.ack_entries(whole))
            if others := self._where.all_acknowledged(whole):
                self._passing.acknowledged(others)
            self.settled()
        # What was accepted later is written later, or together with the rest.
        for pending in reversed(pendings):
            if not pending.done() or pending.exception() is not None:
                return pending
        return completed()

    def _ack_members(self, position: Position, members: Sequence[ReceivedMember]) -> Pending:
        """Of one batch."""
        indexes = list(map(_INDEX_OF, members))
        size = members[0].batch_size
        if indexes == list(range(size)):
            pending = self._cursor.ack_many(position.ledger_id, [position.entry_id])
            self._where.batch_acknowledged(position)
        else:
            pending = self._cursor.ack_batch(position, indexes, size)
            self._where.members_acknowledged(position, list(map(_ID_OF, members)))
        self.settled()
        return pending

    def ack_cumulative(self, message: MessageRef) -> Pending:
        position = resolve_position(message)
        if position <= self._cursor.mark_delete_position:
            return completed()
        if isinstance(message, ReceivedMember):
            pending = self._cursor.mark_delete_batch(position, range(message.batch_index + 1), message.batch_size)
        else:
            pending = self._cursor.mark_delete(position)
        if isinstance(message, ReceivedMember):
            for index in range(message.batch_index + 1):
                self._where.out.settle(BatchMessageId(*position, index))
        self._tally.acked += len(self._where.out.settle_up_to(self._cursor.mark_delete_position))
        self.settled()
        return pending

    def acknowledged(self, message: MessageId) -> None:
        """The cursor knows it already."""
        if not self._where.acknowledged(message):
            self._passing.acknowledged([position_of(message)])
        self.settled()

    def settled(self) -> None:
        """Less is out than was."""
        if self.is_awaited:
            self._bell.ring()
        self._passing.look()
