"""Conversion of a store's cursors to full snapshots, the form that every reader of Pulsar's cursors supports.

Pulsar does not support pages and markers: it reads each as a state without individual acknowledgments. It also ignores
sets of batch indexes in a cursor's record, and cannot read strings in a compressed record. A state in such a form is
written as one snapshot, in the record if it fits there, otherwise in a new ledger. The record is written uncompressed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import quote_plus

from bookstand.cursor.config import CursorConfig
from bookstand.cursor.format import position_info, snapshot_form
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.cursor.store import recovery
from bookstand.cursor.store.cursor_ledger import NO_LEDGER, extensions_of
from bookstand.disk.damage import Damage, Report
from bookstand.disk.stored_ledger import StoredLedger
from bookstand.disk.topics.cursors import of_record
from bookstand.managed_ledger.records import CursorInfo, ManagedLedgerInfo, encode_cursor_info
from bookstand.managed_ledger.topic_name import ROOT, ledger_labels, node_of
from bookstand.proto.expansion import ExpansionLimits
from bookstand.storage.format.digest import digest_for
from bookstand.storage.format.entry_codec import encode
from bookstand.storage.format.ledger_metadata import CLOSED, LedgerMetadata

if TYPE_CHECKING:
    from bookstand.disk.topics.topics import DiskTopic

# Pulsar's default limits for the state in a cursor's record.
_INLINE = CursorConfig(enable_lru_cache_max_unacked_ranges=False)
# Payload size that any bookie accepts.
_LARGEST_SNAPSHOT = (5 << 20) - 4096
_DIGEST = "crc32c"


class StoredTopic:
    """A topic of a store, with the interface that reading its cursors requires."""

    def __init__(
        self,
        name: str,
        info: ManagedLedgerInfo,
        ledger: Callable[[int], StoredLedger | None],
        report: Report,
        limits: ExpansionLimits,
    ) -> None:
        self.limits = limits
        self.name = name
        self.info = info
        self.ledger = ledger
        self._report = report
        self.entry_counts: dict[int, int] = {}
        for one in info.ledgers:
            stored = ledger(one.ledger_id)
            self.entry_counts[one.ledger_id] = one.entries if stored is None else stored.entry_count

    def ledgers(self) -> list[int]:
        return [one.ledger_id for one in self.info.ledgers]

    def report(self, what: str, ledger_id: int = -1, entry_id: int = -1) -> None:
        self._report(Damage(self.name, -1, what, ledger_id, entry_id))


class SnapshotLedger(NamedTuple):
    """A ledger that is not in the store: one entry with a cursor's state. Each call of ``make`` reads the state again,
    so that only one cursor's state is in memory."""

    id: int
    make: Callable[[], tuple[LedgerMetadata, bytes]]


class OldForm(NamedTuple):
    """A converted cursor. ``record`` is the value of its node; it no longer needs the ledgers in ``superseded``."""

    record: bytes
    ledger: SnapshotLedger | None
    superseded: frozenset[int]


def in_old_form(topic: StoredTopic, cursor: str, info: CursorInfo, new_ledger: Callable[[], int]) -> OldForm:
    """Convert a cursor. ``new_ledger`` returns an unused ledger id."""
    found = of_record(cast("DiskTopic", topic), cursor, info)
    state, how = found.state, found.source.how
    readable = how == recovery.SNAPSHOT or (how == recovery.RECORD and not state.batches)
    known = extensions_of(info)
    others = frozenset(one for one in (known.pending, *known.former) if one is not None)
    record = info._replace(unknown=known.unknown_fields)
    if readable and not found.skipped:
        return OldForm(encode_cursor_info(record), None, others)
    superseded = others if info.cursor_ledger_id < 0 else others | {info.cursor_ledger_id}
    # The conversion does not count as activity.
    now = info.last_active or 0
    if not state.batches and not snapshot_form.ranges_not_fitting_inline(state, _INLINE):
        record = snapshot_form.inline(record, state, now, _INLINE)._replace(cursor_ledger_id=NO_LEDGER)
        return OldForm(encode_cursor_info(record), None, superseded)
    ledger_id = new_ledger()

    def make() -> tuple[LedgerMetadata, bytes]:
        return _snapshot_ledger(ledger_id, topic, cursor, of_record(cast("DiskTopic", topic), cursor, info).state)

    record = snapshot_form.record_pointing_at_ledger(record, state.mark_delete, state.properties, now)
    record = record._replace(cursor_ledger_id=ledger_id)
    return OldForm(encode_cursor_info(record), SnapshotLedger(ledger_id, make), superseded)


def _snapshot_ledger(
    ledger_id: int, topic: StoredTopic, cursor: str, state: AckSnapshot
) -> tuple[LedgerMetadata, bytes]:
    data = _snapshot(topic, cursor, state)
    metadata = LedgerMetadata(
        ledger_id,
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        # The writer of the bookie replaces this name.
        ensembles=[(0, ["bookie"])],
        state=CLOSED,
        last_entry_id=0,
        length=len(data),
        digest_type=_DIGEST,
        password=b"",
        custom_metadata=ledger_labels(node_of(topic.name).removeprefix(f"{ROOT}/"), quote_plus(cursor)),
    )
    return metadata, encode(digest_for(_DIGEST, b""), ledger_id, 0, -1, len(data), data)


def _snapshot(topic: StoredTopic, cursor: str, state: AckSnapshot) -> bytes:
    """Encode the state as ranges, which every version reads, or as words, which are smaller. If neither fits into an
    entry, only the lowest positions are written."""
    written = position_info.write(state)
    if len(written.data) > _LARGEST_SNAPSHOT:
        written = position_info.write(state, "long_arrays")
    most = 1 << 24
    while len(written.data) > _LARGEST_SNAPSHOT and most:
        most //= 2
        written = position_info.write(state, "long_arrays", most, most)
    if written.ranges_left_out or written.batches_left_out:
        topic.report(
            f"cursor {cursor!r}: no entry has room for its state: {written.ranges_left_out} ranges and "
            f"{written.batches_left_out} batches are left out, and will be delivered again"
        )
    return written.data
