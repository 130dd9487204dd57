"""Read-ahead for sequential readers.

A read has a fixed cost, and checks cost less per entry in a large read. The buffer needs no invalidation, because
entries never change.
"""

from __future__ import annotations

from collections.abc import Iterator

from bookstand.managed_ledger.managed_ledger import ManagedLedger
from bookstand.managed_ledger.topic_entries import EntryRun
from bookstand.storage.format.position import EARLIEST

# The receiver queue size of a Pulsar consumer. Fewer if entries are large, so that they stay in the processor's cache.
_MAX_ENTRIES = 1_000
_MAX_BYTES = 1 << 20


class ReadAhead:
    """Read-ahead buffer for one reader; thread-safe."""

    def __init__(self, topic: ManagedLedger) -> None:
        self._topic = topic
        self._buffered: EntryRun | None = None
        # Position that a sequential reader is expected to ask for next, and the size of its read-ahead window.
        self._expected: tuple[int, int] = EARLIEST
        self._count = 0
        # Approximate size of an entry.
        self._entry_bytes = 1

    def read_run(self, ledger_id: int, first: int, last: int, end: int) -> Iterator[EntryRun]:
        """Yield the entries of a ledger from ``first`` to ``last`` in runs, and read ahead up to ``end``. The window
        doubles with each sequential read."""
        # Entry hooks must observe exactly the entries that the reader asks for, so they disable read-ahead.
        is_sequential = (ledger_id, first) == self._expected and self._topic.client.storage.entry_hooks is None
        self._expected = ledger_id, last + 1
        buffered = self._buffered
        offset = -1 if buffered is None or buffered.ledger_id != ledger_id else first - buffered.first
        if buffered is not None and 0 <= offset < len(buffered.data):
            self._topic.client.check_usable()
            start, stop = offset, last - buffered.first + 1
            if stop >= len(buffered.data):
                self._buffered = None
            run = EntryRun(ledger_id, first, buffered.data[start:stop])
            yield run
            first += len(run.data)
        if first > last:
            return
        count = last - first + 1
        limit = min(_MAX_ENTRIES, _MAX_BYTES // self._entry_bytes)
        self._count = max(count, min(2 * max(self._count, count), limit)) if is_sequential else count
        for run in self._topic.read_run(ledger_id, first, min(max(last, first + self._count - 1), end)):
            count = last - run.first + 1
            self._entry_bytes = len(run.data[-1]) or 1
            if count < len(run.data):
                self._buffered = run
                run = EntryRun(ledger_id, run.first, run.data[:count])
            yield run
            if count <= len(run.data):
                return
