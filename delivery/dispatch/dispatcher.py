"""Putting together what goes out next, of what comes from several places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookstand.delivery.dispatch.starvation_guard import StarvationGuard
from bookstand.delivery.message.received_message import Deliverable, ids_of, message_count
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.errors import BookstandError


class MessageSource(Protocol):
    """A place that messages come from. Its owner has a lock."""

    @property
    def may_have_messages(self) -> bool:
        """Whether there may be some, as far as can be told without looking."""

    def take(self, limit: int) -> list[Deliverable] | None:
        """So many messages at most, or a few more of the last one's batch. None: what was found is not to go out now,
        and there may be more."""


class Dispatcher:
    """Not thread-safe: callers hold the subscription's lock. The sources take turns (``turns.py``)."""

    def __init__(self, sources: Sequence[MessageSource], states: MessageStates, first_stays: bool) -> None:
        self._sources = sources
        self._states = states
        self._turns = StarvationGuard(len(sources), first_stays)

    def collect(self, room: int) -> tuple[list[Deliverable], bool]:
        """What they give, about so many messages; and whether looking further may find more."""
        sources = self._sources
        taken = self._states.dispatching
        deliverables: list[Deliverable] = []
        taken.clear()
        noted = count = 0
        left_out: list[int] = []
        unfinished = False
        failure: BookstandError | None = None
        for place in self._turns.order():
            if count >= room:
                left_out.append(place)
                continue
            if noted < len(deliverables):
                taken.update(message for deliverable in deliverables[noted:] for message in ids_of(deliverable))
                noted = len(deliverables)
            try:
                found = sources[place].take(room - count)
            except BookstandError as error:
                # What the others have goes out; of what cannot be read the next call tells.
                failure = failure or error
                continue
            if found is None:
                unfinished = True
            else:
                # What one place alone gives stays as it is.
                deliverables = deliverables + found if deliverables else found
                count += message_count(found)
            self._turns.served(place)
        for place in left_out:
            if sources[place].may_have_messages:
                self._turns.skipped(place)
        if failure is not None and not deliverables and not unfinished:
            raise failure
        return deliverables, unfinished
