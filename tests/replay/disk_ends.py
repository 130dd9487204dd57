"""Where ledgers end that the disks have open.

Recovery closes them somewhere within bounds: not below the run in which every entry has as many copies as an
acknowledgment takes, not above the gapless run. Where it did is in the truth, and what is beyond did not exist for
whoever was asked then: topics are compared up to there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from bookstand.disk.bookies.ledger_end import LedgerEnd
from bookstand.disk.disks import DiskLedger, Disks, StoredEntry
from bookstand.disk.topics.topics import DiskTopic
from tests.replay.disk_recordings import Recording

AFTER_RESTART = ("ledgers-after-restart", "ledgers-after-restart-2")
CLOSED = "CLOSED"


class Bounds(NamedTuple):
    """Of a ledger's last entry, counted here from the copies on the disks."""

    lowest: int
    highest: int


def bounds(disks: Disks, ledger_id: int, ack_quorum: int) -> Bounds:
    copies = disks.catalog.copies(ledger_id)
    files = disks.catalog.files
    on = {
        (entry, files[file].bookie)
        for entry, file in zip(copies.entry_ids.tolist(), copies.files.tolist(), strict=True)
    }
    counts = Counter(entry for entry, _ in on)
    enough = gapless = 0
    while counts[gapless]:
        gapless += 1
    if len(disks.bookies) == 1:
        return Bounds(gapless - 1, gapless - 1)
    while counts[enough] >= max(ack_quorum, 1):
        enough += 1
    return Bounds(enough - 1, gapless - 1)


class Ends:
    """``of(ledger)``: where recovery closed a ledger that the disks have open; None for any other one."""

    def __init__(self, recording: Recording, disks: Disks) -> None:
        closed: dict[int, int] = {}
        for line in recording.truth("ledgers"):
            if line["metadata"]["state"] == CLOSED:
                closed[line["ledger_id"]] = line["metadata"]["last_entry"]
        for stem in reversed(AFTER_RESTART):
            for line in recording.truth(stem):
                if line["state"] == CLOSED:
                    closed.setdefault(line["ledger_id"], line["last_entry"])
        known = {} if disks.dump is None else disks.dump.ledgers
        still_open = {ledger_id for ledger_id, metadata in known.items() if metadata.state != CLOSED}
        self._ends = {ledger_id: end for ledger_id, end in closed.items() if ledger_id in still_open}

    def of(self, ledger_id: int) -> int | None:
        return self._ends.get(ledger_id)


class LedgerUpTo:
    """A ledger as if it ended earlier."""

    def __init__(self, ledger: DiskLedger, end: int) -> None:
        self._ledger = ledger
        self._end = end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    @cached_property
    def extent(self) -> LedgerEnd:
        extent = self._ledger.extent
        return extent._replace(last_entry=self._end, missing=extent.missing.upto(self._end))

    def entries(self, first: int = 0, last: int | None = None) -> Iterator[StoredEntry]:
        return self._ledger.entries(first, self._end if last is None else min(last, self._end))


class TopicUpTo(DiskTopic):
    """A topic whose ledgers, and those of its cursors and buckets, end where recovery closed them."""

    def __init__(self, topic: DiskTopic, ends: Ends, more: dict[int, int] | None = None) -> None:
        super().__init__(topic.disks, topic.name, topic.info)
        self.ends = ends
        self._more = more or {}

    def ledger(self, ledger_id: int) -> DiskLedger | None:
        ledger = super().ledger(ledger_id)
        end = self._more.get(ledger_id, self.ends.of(ledger_id))
        if ledger is None or end is None or end >= ledger.extent.last_entry:
            return ledger
        return LedgerUpTo(ledger, end)  # type: ignore[return-value]
