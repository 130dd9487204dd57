"""Acknowledgment of messages: in the cursor first, then in the subscription's in-memory state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

from bookstand.cursor.cursor import Cursor
from bookstand.delivery.message.message_id import BatchMessageId
from bookstand.delivery.message.received_message import MessageRef, ReceivedMember, ReceivedMessage, resolve_position
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
    """Thread-safe. Takes the subscription's lock only to cancel delayed messages, and once for each passed ledger."""

    def __init__(
        self, cursor: Cursor, states: MessageStates, watcher: MarkDeleteWatcher, notifier: Notifier, counters: Counters
    ) -> None:
        self._cursor = cursor
        self._states = states
        self._watcher = watcher
        self._notifier = notifier
        self._counters = counters
        self.is_dispatch_blocked = False
        """True if dispatch is waiting for acknowledgments, at the limit of messages in flight or during a pause."""

    def ack(self, message: MessageRef) -> Pending:
        if isinstance(message, ReceivedMember):
            pending = self._ack_members(message.position, [message])
        else:
            position = resolve_position(message)
            pending = self._cursor.ack(position)
            if not self._states.unacked.remove(position):
                self._watcher.cancel_delayed([position])
            self.on_settled()
        self._counters.acked += 1
        return pending

    def ack_many(self, messages: Iterable[MessageRef]) -> Pending:
        chosen = list(messages)
        pending = self.ack_silently(chosen)
        self._counters.acked += len(chosen)
        return pending

    def ack_silently(self, messages: list[MessageRef] | list[ReceivedMessage]) -> Pending:
        """Acknowledge expired, dead-lettered or skipped messages, which do not count as ``acked``."""
        whole: list[Position] = []
        of_batches: dict[Position, list[ReceivedMember]] = {}
        kinds = set(map(type, messages))
        if kinds == {ReceivedMessage}:
            whole = list(map(_POSITION_OF, messages))
        elif kinds == {ReceivedMember}:
            for position, together in groupby(messages, _POSITION_OF):
                of_batches.setdefault(position, []).extend(together)  # type: ignore[arg-type]
        else:
            for message in messages:
                if isinstance(message, ReceivedMember):
                    of_batches.setdefault(message.position, []).append(message)
                else:
                    whole.append(resolve_position(message))
        pendings = [self._ack_members(position, members) for position, members in of_batches.items()]
        if whole:
            pendings.append(self._cursor.ack_entries(whole))
            if others := self._states.unacked.remove_entries(whole):
                self._watcher.cancel_delayed(others)
            self.on_settled()
        # Acknowledgments become durable in order, so the last one that is not done decides.
        for pending in reversed(pendings):
            if not pending.done() or pending.exception() is not None:
                return pending
        return completed()

    def _ack_members(self, position: Position, members: Sequence[ReceivedMember]) -> Pending:
        indexes = list(map(_INDEX_OF, members))
        size = members[0].batch_size
        if indexes == list(range(size)):
            pending = self._cursor.ack_many(position.ledger_id, [position.entry_id])
            self._states.unacked.remove(position)
        else:
            pending = self._cursor.ack_batch(position, indexes, size)
            self._states.unacked.remove_members(position, list(map(_ID_OF, members)))
        self.on_settled()
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
                self._states.unacked.remove(BatchMessageId(*position, index))
        self._counters.acked += len(self._states.unacked.remove_up_to(self._cursor.mark_delete_position))
        self.on_settled()
        return pending

    def on_settled(self) -> None:
        """Wake receivers that wait for acknowledgments, and clean up passed ledgers."""
        if self.is_dispatch_blocked:
            self._notifier.notify()
        self._watcher.check()
