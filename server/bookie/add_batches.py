"""Batches of adds: single adds, collected by ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from bookstand.storage.served.replica_operations import LEAST_ENTRY_BYTES, AddToReplica, highest_lac

Answer = Callable[[int], bytes]
"""Builds the responses to a batch of adds, all with the same code."""


# Measured memory of an add besides its frame.
_ADD_BYTES = 300


class Adds(NamedTuple):
    """Adds of one ledger with one outcome. ``size``: total bytes of their frames."""

    ledger_id: int
    master_key: bytes
    recovery: bool
    entry_ids: Sequence[int]
    stored: Sequence[bytes]
    lac: int
    answer: Answer
    size: int

    @property
    def held_bytes(self) -> int:
        """Memory that the adds occupy until they are answered."""
        return self.size + _ADD_BYTES * len(self.entry_ids)

    def of(self, bookie: int) -> AddToReplica:
        return AddToReplica(
            bookie,
            self.ledger_id,
            self.master_key,
            self.recovery,
            self.entry_ids,
            self.stored,
            self.lac,
        )


class AddCollector:
    """Collects single adds until :meth:`take` returns them as batches."""

    def __init__(self) -> None:
        self._by_ledger: dict[tuple[int, bytes, bool], list[tuple[int, bytes, Answer]]] = {}

    def add(
        self, ledger_id: int, master_key: bytes, recovery: bool, entry_id: int, stored: bytes, answer: Answer
    ) -> None:
        gathered = self._by_ledger.setdefault((ledger_id, master_key, recovery), [])
        gathered.append((entry_id, stored, answer))

    def take(self) -> list[Adds]:
        by_ledger, self._by_ledger = self._by_ledger, {}
        return [_together(*key, *zip(*adds, strict=True)) for key, adds in by_ledger.items()]


def _together(
    ledger_id: int,
    master_key: bytes,
    recovery: bool,
    entry_ids: Sequence[int],
    stored: Sequence[bytes],
    answers: Sequence[Answer],
) -> Adds:
    first, count = entry_ids[0], len(entry_ids)
    following = range(first, first + count)
    if tuple(following) == entry_ids:
        entry_ids = following
    answer = answers[0] if count == 1 else partial(_answer_each, answers)
    size = sum(map(len, stored)) + 2 * LEAST_ENTRY_BYTES * count
    return Adds(ledger_id, master_key, recovery, entry_ids, stored, highest_lac(stored), answer, size)


def _answer_each(answers: Sequence[Answer], code: int) -> bytes:
    return b"".join([answer(code) for answer in answers])
