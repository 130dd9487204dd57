"""Entries that are read along with those that were asked for, because who reads on wants them next.

Each reading has a price of its own, and its checks cost less for many entries than for few. What is kept here is no
state: it lies behind the reader's position as it lies in the topic, where an entry never changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from bookstand.managed_ledger.managed_ledger import ManagedLedger
from bookstand.managed_ledger.topic_entries import EntryRun
from bookstand.storage.format.position import EARLIEST

# As many as a consumer of Pulsar's fetches ahead. Fewer where they are large, so that they stay in the processor's
# cache until they are asked for.
_MOST = 1_000
_MOST_BYTES = 1 << 20


class ReadAhead:
    """Safe between threads, but meant for one that reads."""

    def __init__(self, topic: ManagedLedger) -> None:
        self._topic = topic
        self._kept: EntryRun | None = None
        # Where who reads on goes on, and how many entries are read for him then.
        self._following: tuple[int, int] = EARLIEST
        self._count = 0
        # About how large an entry is.
        self._entry_bytes = 1

    def read_run(self, ledger_id: int, first: int, last: int, end: int) -> Iterator[EntryRun]:
        """Entries of one ledger, some at a time, as the topic gives them; up to ``end`` they may be read along. Whoever
        goes on in a ledger where he was before has twice as many read each time."""
        # Hooks are to see the entries that somebody asked for, and when.
        goes_on = (ledger_id, first) == self._following and self._topic.client.storage.entry_hooks is None
        self._following = ledger_id, last + 1
        kept = self._kept
        if kept is not None and kept.ledger_id == ledger_id and 0 <= first - kept.first < len(kept.data):
            self._topic.client.check_usable()
            start, stop = first - kept.first, last - kept.first + 1
            if stop >= len(kept.data):
                self._kept = None
            run = EntryRun(ledger_id, first, kept.data[start:stop])
            yield run
            first += len(run.data)
        if first > last:
            return
        count = last - first + 1
        most = min(_MOST, _MOST_BYTES // self._entry_bytes)
        self._count = max(count, min(2 * max(self._count, count), most)) if goes_on else count
        for run in self._topic.read_run(ledger_id, first, min(max(last, first + self._count - 1), end)):
            count = last - run.first + 1
            self._entry_bytes = len(run.data[-1]) or 1
            if count < len(run.data):
                self._kept = run
                run = EntryRun(ledger_id, run.first, run.data[:count])
            yield run
            if count <= len(run.data):
                return
