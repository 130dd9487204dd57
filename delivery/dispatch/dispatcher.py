"""Putting together what goes out next, of what comes from several places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookstand.delivery.dispatch.starvation_guard import StarvationGuard
from bookstand.delivery.message.received_message import Deliverable, ids_of, messages_in
from bookstand.delivery.subscription.message_states import MessageStates
from bookstand.errors import BookstandError


class MessageSource(Protocol):
    """A place that messages come from. Its owner has a lock."""

    @property
    def has_some(self) -> bool:
        """Whether there may be some, as far as can be told without looking."""

    def take(self, most: int) -> list[Deliverable] | None:
        """So many messages at most, or a few more of the last one's batch. None: what was found is not to go out now,
        and there may be more."""


class Dispatcher:
    """Not thread-safe: callers hold the subscription's lock. The sources take turns (``turns.py``)."""

    def __init__(self, sources: Sequence[MessageSource], where: MessageStates, first_stays: bool) -> None:
        self._sources = sources
        self._where = where
        self._turns = StarvationGuard(len(sources), first_stays)

    def gather(self, room: int) -> tuple[list[Deliverable], bool]:
        """What they give, about so many messages; and whether looking further may find more."""
        sources = self._sources
        taken = self._where.taken
        portions: list[Deliverable] = []
        taken.clear()
        noted = count = 0
        left_out: list[int] = []
        unfinished = False
        failure: BookstandError | None = None
        for place in self._turns.order():
            if count >= room:
                left_out.append(place)
                continue
            if noted < len(portions):
                taken.update(message for portion in portions[noted:] for message in ids_of(portion))
                noted = len(portions)
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
                portions = portions + found if portions else found
                count += messages_in(found)
            self._turns.had(place)
        for place in left_out:
            if sources[place].has_some:
                self._turns.passed_over(place)
        if failure is not None and not portions and not unfinished:
            raise failure
        return portions, unfinished
