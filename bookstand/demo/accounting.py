"""Accounting of every message in the parent process, from which lost and unexpected messages are derived."""

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
    """Acknowledgments that are durable."""

    early: int = 0

    unexpected: int = 0
    """Deliveries of messages that were in flight, durably acknowledged or never published."""


class Accounting:
    """State of each message in arrays, and the counts of each child process in ``runs``."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.runs: list[Counts] = []
        self.delayed = 0
        self.published = 0
        """Number of durable messages; they are the first ones."""
        self._submitted = np.zeros(messages, bool)
        self._deliver_at = np.zeros(messages, np.int64)
        self._delivered = np.zeros(messages, bool)
        self._acknowledged = np.zeros(messages, bool)
        self._durable = np.zeros(messages, bool)
        # Not in flight and not durably acknowledged, so that a delivery or redelivery is expected.
        self._deliverable = np.zeros(messages, bool)

    def begin_run(self) -> None:
        """Start counting for a new child process, which may redeliver messages not durably acknowledged."""
        self.runs.append(Counts())
        self._deliverable[:] = self._submitted & ~self._durable

    def record(self, message: PipeMessage) -> None:
        kind, first, numbers = message
        run = self.runs[-1]
        if kind == PUBLISHING:
            batch = slice(first, first + len(numbers))
            self._submitted[batch] = self._deliverable[batch] = True
            self._deliver_at[batch] = numbers
        elif kind == PUBLISHED:
            run.published += first - self.published
            self.published = first
        elif kind == DELIVERED:
            self._record_delivered(run, first, numbers)
        elif kind == NACKED:
            self._deliverable[numbers] = True
        elif kind == ACKNOWLEDGING:
            self._acknowledged[numbers] = True
        elif kind == DURABLE:
            run.durable += len(numbers)
            self._durable[numbers] = True
        elif kind == STATE:
            self.delayed = first

    def _record_delivered(self, run: Counts, time: int, numbers: np.ndarray) -> None:
        run.delivered += len(numbers)
        run.redelivered += int(np.count_nonzero(self._delivered[numbers]))
        run.early += int(np.count_nonzero(self._deliver_at[numbers] > time))
        # Each further occurrence of a number in the same batch is unexpected.
        distinct, times = np.unique(numbers, return_counts=True)
        run.unexpected += int(np.count_nonzero(~self._deliverable[distinct]) + np.sum(times - 1))
        self._deliverable[numbers] = False
        self._delivered[numbers] = True

    @property
    def delivered(self) -> int:
        """Number of distinct messages delivered."""
        return int(np.count_nonzero(self._delivered))

    @property
    def acknowledged(self) -> int:
        return int(np.count_nonzero(self._acknowledged))

    def total(self) -> Counts:
        return Counts(*(sum(column) for column in zip(*(vars(run).values() for run in self.runs), strict=True)))

    def lost(self, dead_letters: Collection[int]) -> int:
        """Number of durable messages that were neither acknowledged nor dead-lettered by the end."""
        completed = self._acknowledged & self._delivered
        completed[list(dead_letters)] = True
        return int(np.count_nonzero(~completed[: self.published]))
