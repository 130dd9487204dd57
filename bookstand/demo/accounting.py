"""What is known of every message outside of the process that may be killed, and what is wrong by it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from bookstand.demo.progress_pipe import (
    ACKNOWLEDGING,
    DELIVERED,
    DURABLE,
    NACKED,
    PUBLISHED,
    PUBLISHING,
    STATE,
    PipeMessage,
)


@dataclass
class Counts:
    published: int = 0
    delivered: int = 0
    redelivered: int = 0
    durable: int = 0
    """Acknowledged, and known to be so durably."""

    early: int = 0

    uncalled: int = 0
    """Delivered although it was out, or durably acknowledged, or was never published."""


class Accounting:
    """An array entry for each message; ``lives`` has the counts of each process, the last of which is the present."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.lives: list[Counts] = []
        self.delayed = 0
        self.published = 0
        """So many are durable: the first."""
        # Whether the store was given it, and when it is to be delivered; whether it was, whether somebody set about
        # acknowledging it, and whether that is durable as far as we were told.
        self._known = np.zeros(messages, bool)
        self._deliver_at = np.zeros(messages, np.int64)
        self._delivered = np.zeros(messages, bool)
        self._acknowledged = np.zeros(messages, bool)
        self._durable = np.zeros(messages, bool)
        # Whether it may be delivered, for the first time or again.
        self._may_come = np.zeros(messages, bool)

    def begin_life(self) -> None:
        """A process begins: all may come that was not durably acknowledged."""
        self.lives.append(Counts())
        self._may_come[:] = self._known & ~self._durable

    def note(self, told: PipeMessage) -> None:
        kind, first, numbers = told
        life = self.lives[-1]
        if kind == PUBLISHING:
            batch = slice(first, first + len(numbers))
            self._known[batch] = self._may_come[batch] = True
            self._deliver_at[batch] = numbers
        elif kind == PUBLISHED:
            life.published += first - self.published
            self.published = first
        elif kind == DELIVERED:
            self._note_delivered(life, first, numbers)
        elif kind == NACKED:
            self._may_come[numbers] = True
        elif kind == ACKNOWLEDGING:
            self._acknowledged[numbers] = True
        elif kind == DURABLE:
            life.durable += len(numbers)
            self._durable[numbers] = True
        elif kind == STATE:
            self.delayed = first

    def _note_delivered(self, life: Counts, time: int, numbers: np.ndarray) -> None:
        life.delivered += len(numbers)
        life.redelivered += int(np.count_nonzero(self._delivered[numbers]))
        life.early += int(np.count_nonzero(self._deliver_at[numbers] > time))
        # One that is twice among them may have come once.
        distinct, times = np.unique(numbers, return_counts=True)
        life.uncalled += int(np.count_nonzero(~self._may_come[distinct]) + np.sum(times - 1))
        self._may_come[numbers] = False
        self._delivered[numbers] = True

    @property
    def delivered(self) -> int:
        """Messages, each counted once."""
        return int(np.count_nonzero(self._delivered))

    @property
    def acknowledged(self) -> int:
        return int(np.count_nonzero(self._acknowledged))

    def total(self) -> Counts:
        return Counts(*(sum(column) for column in zip(*(vars(life).values() for life in self.lives), strict=True)))

    def lost(self, dead_letters: Collection[int]) -> int:
        """Messages that are durable, and that nobody acknowledged, though the subscription has none left."""
        ended = self._acknowledged & self._delivered
        ended[list(dead_letters)] = True
        return int(np.count_nonzero(~ended[: self.published]))
