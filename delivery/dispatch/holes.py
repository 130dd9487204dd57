"""Acknowledgment holes: dispatch while the cursor's state is at its size limit (``cursor/dispatch_pause.py``).

Holes are dispatched in the order of their positions. During a pause, due messages and unread messages up to the highest
acknowledged position therefore join the redeliveries in the replay queue, and the lowest admitted messages are taken
from there. The others remain in the queue until the pause ends.
"""

from __future__ import annotations

from bookstand.cursor.dispatch_pause import Admission
from bookstand.delivery.dispatch.backlog_source import BacklogSource
from bookstand.delivery.dispatch.delayed_source import DelayedSource
from bookstand.delivery.dispatch.redelivery_source import RedeliverySource
from bookstand.delivery.message.received_message import Deliverable, ids_of, message_count
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.errors import BookstandError


class Holes:
    """Not thread-safe; callers hold the subscription's lock."""

    def __init__(self, again: RedeliverySource, due: DelayedSource, new: BacklogSource, states: MessageStates) -> None:
        self._again = again
        self._due = due
        self._new = new
        self._states = states

    def collect(self, room: int, admission: Admission) -> tuple[list[Deliverable], bool]:
        """Select about ``room`` messages. The second value is True if another call may find more."""
        taken = self._states.dispatching
        taken.clear()
        if self._due.queue():
            # The lowest position is not known until all due messages are in the queue.
            return [], True
        found = self._again.take(room, admission, self._new.position.previous)
        count = message_count(found)
        if count >= room:
            return found, False
        taken.update(message for item in found for message in ids_of(item))
        try:
            some_read = self._new.queue(admission.last, room - count)
            # Messages above the read position follow when no unread message is below them.
            upto = self._new.position.previous if some_read else None
            found += self._again.take(room - count, admission, upto)
        except BookstandError:
            # Dispatch the messages found so far; the next call raises the error again.
            if not found:
                raise
            return found, False
        return found, some_read and not found
