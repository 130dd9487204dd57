"""Selection of the messages to be dispatched next, from several sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookstand.delivery.message.received_message import Deliverable, ids_of, message_count
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.errors import BookstandError

MAX_SKIPS = 8
"""Maximum number of times in a row that a source with messages is skipped."""


class StarvationGuard:
    """Order of the sources: earlier ones have precedence, but none is skipped for long.

    With ``first_precedes`` the first source is never skipped; only the others take turns.
    """

    def __init__(self, count: int, first_precedes: bool = False) -> None:
        self._default_order = list(range(count))
        self._skips = [0] * count
        # If all but the first reach the limit in the same round, the last of them waits for the others.
        self._skip_limit = MAX_SKIPS - (count - 2)
        self._first_precedes = first_precedes

    def order(self) -> Sequence[int]:
        if max(self._skips) < self._skip_limit:
            return self._default_order
        return sorted(self._default_order, key=self._precedence)

    def _precedence(self, index: int) -> tuple[bool, bool, int, int]:
        skips = self._skips[index]
        return index > 0 and self._first_precedes, skips < self._skip_limit, -skips, index

    def served(self, index: int) -> None:
        """Record that a source was served or had no messages."""
        self._skips[index] = 0

    def skipped(self, index: int) -> None:
        self._skips[index] += 1


class MessageSource(Protocol):
    """A source of messages. Not thread-safe; callers hold the subscription's lock."""

    @property
    def may_have_messages(self) -> bool:
        """False if the source certainly has no messages. Performs no read."""

    def take(self, limit: int) -> list[Deliverable] | None:
        """Remove and return up to ``limit`` messages, or more if the last entry is a batch. None: the messages found
        are not deliverable now, and there may be others."""


class Dispatcher:
    """Not thread-safe; callers hold the subscription's lock."""

    def __init__(self, sources: Sequence[MessageSource], states: MessageStates, first_precedes: bool) -> None:
        self._sources = sources
        self._states = states
        self._starvation_guard = StarvationGuard(len(sources), first_precedes)

    def collect(self, room: int) -> tuple[list[Deliverable], bool]:
        """Collect about ``room`` messages. The second value is True if another call may find more."""
        sources = self._sources
        taken = self._states.dispatching
        deliverables: list[Deliverable] = []
        taken.clear()
        noted = count = 0
        skipped: list[int] = []
        unfinished = False
        failure: BookstandError | None = None
        for index in self._starvation_guard.order():
            if count >= room:
                skipped.append(index)
                continue
            if noted < len(deliverables):
                taken.update(message for item in deliverables[noted:] for message in ids_of(item))
                noted = len(deliverables)
            try:
                found = sources[index].take(room - count)
            except BookstandError as error:
                # Deliver the messages of the other sources; the next call raises the error again.
                failure = failure or error
                continue
            if found is None:
                unfinished = True
            else:
                # Preserves the type of a single source's list.
                deliverables = deliverables + found if deliverables else found
                count += message_count(found)
            self._starvation_guard.served(index)
        for index in skipped:
            if sources[index].may_have_messages:
                self._starvation_guard.skipped(index)
        if failure is not None and not deliverables and not unfinished:
            raise failure
        return deliverables, unfinished
