"""bookstand behind the same interface as the baselines."""

from __future__ import annotations

from collections import deque
from itertools import chain, islice, repeat
from pathlib import Path

import bookstand

WINDOW = 2_000


class Many:
    """`append_many`, with one call and one commit per batch."""

    def __init__(self, directory: Path) -> None:
        self._store = bookstand.open(directory / "store")
        self._writer = self._store.create_ledger()

    def stored(self, payloads: list[bytes]) -> list[bytes]:
        return payloads

    def append_batches(self, payloads: list[bytes], batches: int) -> None:
        append_many = self._writer.append_many
        for _ in range(batches):
            append_many(payloads)

    def append_one(self, value: bytes) -> None:
        self._writer.append(value)

    def count(self) -> int:
        return self._writer.last_add_confirmed + 1

    def close(self) -> None:
        self._store.close()


class Handles(Many):
    """`append_async` with one handle per append, up to WINDOW outstanding appends, and a wait for every handle."""

    def append_batches(self, payloads: list[bytes], batches: int) -> None:
        submit = self._writer.append_async
        stream = chain.from_iterable(repeat(payloads, batches))
        window = deque(map(submit, islice(stream, WINDOW)))
        push, oldest = window.append, window.popleft
        for payload in stream:
            oldest().result()
            push(submit(payload))
        for pending in window:
            pending.result()
