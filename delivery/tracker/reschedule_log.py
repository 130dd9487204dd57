"""Messages that are to be delivered at another time than they say: in a ledger that a cursor's property names.

    property    #pulsar.internal.delayed.rescheduled = <ledger id>
    entry       a segment as in a snapshot (``snapshot.py``): messages, and the times they were given

A later entry tells more than an earlier one. The ledger is written anew, with those that wait still, when a tracker
begins to write to it and when most of it is of messages that are gone; with the last of them the ledger goes. Each of
that is one commit with the property. What messages are gone by is durable before: one whose acknowledgment is lost in a
crash would come at its own time, which may be earlier.
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
# So many entries of messages that are gone are not worth a new ledger.
_FEW = 1000
_AT_ONCE = 5000

Position = tuple[int, int]


class RescheduleLog:
    """Not safe between threads: its owner has a lock. ``times`` is what the ledger says of messages that wait."""

    def __init__(self, home: BucketRegistry) -> None:
        self._home = home
        self._writer: LedgerWriter | None = None
        self._stored = 0
        self.times: dict[Position, int] = {}

    def load(self) -> None:
        """Read what is stored; raises where it cannot be read."""
        stored = self._home.properties().get(PROPERTY)
        if stored is None:
            return
        if not stored.isascii() or not stored.isdecimal() or int(stored) >= 1 << 63:
            raise MalformedRecordError(f"property {PROPERTY} is a ledger's id, not {stored!r}")
        ledger_id = int(stored)
        reader = self._home.client.open(ledger_id, not self._home.client.read_only, b"", None)
        for first in range(0, reader.last_add_confirmed + 1, _AT_ONCE):
            last = min(first + _AT_ONCE - 1, reader.last_add_confirmed)
            entries = [entry.data for entry in reader.read(first, last)]
            names = [f"rescheduled messages in ledger {ledger_id}, entry {number}" for number in range(first, last + 1)]
            for indexes in decode_segments(entries, names):
                self.times.update(((index.ledger_id, index.entry_id), index.timestamp) for index in indexes.indexes)

    def note(self, times: Mapping[Position, int]) -> None:
        """Messages are delivered at other times from now on; durable on return, or as it was."""
        if self._writer is None or self._writer.is_closed() or self._stored > 2 * len(self.times) + _FEW:
            self._write_anew({**self.times, **times})
        else:
            self._writer.append(_entry(times))
            self._stored += len(times)
        self.times.update(times)

    def _write_anew(self, times: Mapping[Position, int]) -> None:
        created: list[LedgerWriter] = []

        def change(transaction: Transaction, properties: dict[str, str]) -> None:
            self.delete_in(transaction, properties)
            writer = transaction.create_ledger(
                password=b"",
                custom_metadata={
                    **_LABELS,
                    RESCHEDULED_TOPIC_LABEL: self._home.topic.encode(),
                    RESCHEDULED_CURSOR_LABEL: self._home.cursor.encode(),
                },
            )
            positions = list(times)
            for first in range(0, len(positions), _AT_ONCE):
                some = positions[first : first + _AT_ONCE]
                transaction.append(writer, _entry({position: times[position] for position in some}))
            properties[PROPERTY] = str(writer.id)
            created[:] = [writer]

        self._home.write_acknowledged()
        self._home.change(change)
        (self._writer,) = created
        self._stored = len(times)

    def instead_of(self, times: Numbers, ledger_ids: Numbers, entry_ids: Numbers) -> Numbers:
        """The times, with those that some of the messages were given."""
        if not self.times:
            return times
        given = times.copy()
        for row, position in enumerate(zip(ledger_ids.tolist(), entry_ids.tolist(), strict=True)):
            if position in self.times:
                given[row] = self.times[position]
        return given

    @property
    def is_stored(self) -> bool:
        return PROPERTY in self._home.properties()

    def settled(self, positions: Iterable[Position]) -> None:
        """These wait no more."""
        for position in positions:
            self.times.pop(position, None)
        if not self.times and self.is_stored:
            self._home.write_acknowledged()
            self._home.change(self.delete_in)
            self._writer = None

    def forget(self) -> None:
        """For after :meth:`delete_in`, or to begin anew."""
        self.times.clear()
        self._writer = None

    def delete_in(self, transaction: Transaction, properties: dict[str, str]) -> None:
        """Delete everything when the transaction ends."""
        stored = properties.pop(PROPERTY, "")
        if stored.isdecimal() and self._home.client.storage.has_ledger(int(stored)):
            transaction.delete_ledger(int(stored))


def _entry(times: Mapping[Position, int]) -> bytes:
    """In the order of segments: of time, ledger and entry."""
    rows = sorted((time, *position) for position, time in times.items())
    return encode_segment(Indexes.of(*zip(*rows, strict=True)))
