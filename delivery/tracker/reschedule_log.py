"""Log of rescheduled messages: a ledger that a cursor property names.

    property    #pulsar.internal.delayed.rescheduled = <ledger id>
    entry       a snapshot segment (``snapshot/codec.py``): messages and their new times

Later entries override earlier ones. The ledger is rewritten with the messages that are still delayed when a tracker
first writes to it, and when most of it is obsolete; it is deleted with its last message. Each of these is one commit
with the property. Acknowledgments are flushed first: a crash that lost the acknowledgment of a message, but not the
removal of its time, would deliver the message at its original time, which may be earlier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from bookstand.cursor.store.property_ledgers import DELAYED_PREFIX
from bookstand.delivery.tracker.bucket.registry import BucketRegistry
from bookstand.delivery.tracker.bucket.snapshot.codec import decode_segments, encode_segment
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes, Numbers
from bookstand.errors import MalformedRecordError
from bookstand.ledger.handles.writer import LedgerWriter
from bookstand.managed_ledger.topic_name import (
    RESCHEDULED,
    RESCHEDULED_CURSOR_LABEL,
    RESCHEDULED_LABEL,
    RESCHEDULED_TOPIC_LABEL,
)

if TYPE_CHECKING:
    from bookstand.ledger.transaction import Transaction

PROPERTY = f"{DELAYED_PREFIX}rescheduled"
_LABELS = {"application": b"bookstand", "component": RESCHEDULED, RESCHEDULED_LABEL: PROPERTY.encode()}
# Up to this many obsolete messages do not justify a rewrite.
_MIN_OBSOLETE = 1000
_ENTRY_BATCH = 5000

Position = tuple[int, int]


class RescheduleLog:
    """New times of all rescheduled messages that are still delayed. Not thread-safe: callers hold a lock."""

    def __init__(self, registry: BucketRegistry) -> None:
        self._registry = registry
        self._writer: LedgerWriter | None = None
        self._stored = 0
        self.times: dict[Position, int] = {}

    def load(self) -> None:
        """Read the stored times; raise if they cannot be read."""
        stored = self._registry.properties().get(PROPERTY)
        if stored is None:
            return
        if not stored.isascii() or not stored.isdecimal() or int(stored) >= 1 << 63:
            raise MalformedRecordError(f"property {PROPERTY} must be a ledger id, not {stored!r}")
        ledger_id = int(stored)
        reader = self._registry.client.open(ledger_id, not self._registry.client.read_only, b"", None)
        for first in range(0, reader.last_add_confirmed + 1, _ENTRY_BATCH):
            last = min(first + _ENTRY_BATCH - 1, reader.last_add_confirmed)
            entries = [entry.data for entry in reader.read(first, last)]
            names = [f"rescheduled messages in ledger {ledger_id}, entry {number}" for number in range(first, last + 1)]
            for indexes in decode_segments(entries, names):
                self.times.update(((index.ledger_id, index.entry_id), index.timestamp) for index in indexes.indexes)

    def append(self, times: Mapping[Position, int]) -> None:
        """Store new times of messages; durable on return, or unchanged on error."""
        if self._writer is None or self._writer.is_closed() or self._stored > 2 * len(self.times) + _MIN_OBSOLETE:
            self._rewrite({**self.times, **times})
        else:
            self._writer.append(_entry(times))
            self._stored += len(times)
        self.times.update(times)

    def _rewrite(self, times: Mapping[Position, int]) -> None:
        created: list[LedgerWriter] = []

        def change(transaction: Transaction, properties: dict[str, str]) -> None:
            self.delete_in(transaction, properties)
            writer = transaction.create_ledger(
                password=b"",
                custom_metadata={
                    **_LABELS,
                    RESCHEDULED_TOPIC_LABEL: self._registry.topic.encode(),
                    RESCHEDULED_CURSOR_LABEL: self._registry.cursor.encode(),
                },
            )
            positions = list(times)
            for first in range(0, len(positions), _ENTRY_BATCH):
                batch = positions[first : first + _ENTRY_BATCH]
                transaction.append(writer, _entry({position: times[position] for position in batch}))
            properties[PROPERTY] = str(writer.id)
            created[:] = [writer]

        self._registry.write_acknowledged()
        self._registry.change(change)
        (self._writer,) = created
        self._stored = len(times)

    def override(self, times: Numbers, ledger_ids: Numbers, entry_ids: Numbers) -> Numbers:
        """Return the times, with those of rescheduled messages replaced."""
        if not self.times:
            return times
        replaced = times.copy()
        for row, position in enumerate(zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True)):
            if position in self.times:
                replaced[row] = self.times[position]
        return replaced

    @property
    def is_stored(self) -> bool:
        return PROPERTY in self._registry.properties()

    def remove(self, positions: Iterable[Position]) -> None:
        """Remove messages that are no longer delayed; delete the ledger with the last one."""
        for position in positions:
            self.times.pop(position, None)
        if not self.times and self.is_stored:
            self._registry.write_acknowledged()
            self._registry.change(self.delete_in)
            self._writer = None

    def reset(self) -> None:
        """Discard the state in memory, after :meth:`delete_in` or on close."""
        self.times.clear()
        self._writer = None

    def delete_in(self, transaction: Transaction, properties: dict[str, str]) -> None:
        stored = properties.pop(PROPERTY, "")
        if stored.isdecimal() and self._registry.client.storage.has_ledger(int(stored)):
            transaction.delete_ledger(int(stored))


def _entry(times: Mapping[Position, int]) -> bytes:
    rows = sorted((time, *position) for position, time in times.items())
    return encode_segment(Indexes.of(*zip(*rows, strict=True)))
