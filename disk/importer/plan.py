"""Import plan: each ledger of bookies' disks in the form it will have in a store, and the nodes.

The plan does not depend on a store. The target of a ledger is computed on every request, so that a plan for many
ledgers only holds their ids in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bookstand.disk.metadata.dump import ledger_id_of, ledger_path
from bookstand.errors import IncorrectParameterError, MetadataSerializationError, NoSuchLedgerError
from bookstand.managed_ledger.records import _HEADER_MAGIC, encode_cursor_info
from bookstand.managed_ledger.topic_name import cursor_node_of
from bookstand.storage.commit.restore_operations import RestoreLedger
from bookstand.storage.format import ledger_state as state
from bookstand.storage.format.digest import digest_for, master_key
from bookstand.storage.format.entry_codec import HEADER_BYTES
from bookstand.storage.format.ledger_metadata import CLOSED, MADE_UP, NO_ENTRY, LedgerMetadata, serialize
from bookstand.storage.format.ledger_state import LedgerState
from bookstand.storage.format.schema import MAX_ENTRY_ID
from bookstand.storage.metadata_store import check_path

if TYPE_CHECKING:
    from bookstand.disk.bookies.copy_catalog import Catalog
    from bookstand.disk.disks import DiskLedger, Disks, StoredEntry

# Parents of the ledgers' nodes.
_LEDGER_FOLDER = re.compile(r"/ledgers(/[0-9]+)*")


class PlannedLedger(NamedTuple):
    """A ledger in the form it will have. The store chooses the incarnation in ``ledger_state``."""

    ledger: DiskLedger
    restored: RestoreLedger
    ledger_state: LedgerState
    upto: int
    """Last entry to import; entries before it may be missing."""
    stored_bytes: int

    @property
    def entries(self) -> int:
        return self.ledger_state.count

    def stored(self, first: int = 0, last: int = MAX_ENTRY_ID) -> Iterator[StoredEntry]:
        return self.ledger.entries(first, min(last, self.upto), beyond=True)


class Skipped(NamedTuple):
    """A ledger or a node that is not imported, and the reason."""

    what: str
    why: str
    entries: int = 0

    def __str__(self) -> str:
        counted = f" with {self.entries} entries" if self.entries else ""
        return f"{self.what}{counted}: {self.why}"


class PlannedNode(NamedTuple):
    path: str
    value: bytes
    rewritten: bool
    """True for a cursor's record that was compressed on the disks and is uncompressed here."""


class Plan:
    """Ledgers and nodes to import. ``ledgers``: only these, with or without metadata, and no nodes. ``unlisted``: also
    all ledgers without metadata."""

    def __init__(self, disks: Disks, ledgers: Iterable[int] | None, unlisted: bool) -> None:
        self.disks = disks
        self._with_nodes = ledgers is None
        found = disks.ledger_ids
        if ledgers is None:
            self.ledger_ids = found
            self._unlisted = unlisted or disks.dump is None
        else:
            self.ledger_ids = sorted(set(ledgers))
            self._unlisted = True
            for unknown in sorted(set(ledgers).difference(found)):
                raise NoSuchLedgerError(f"ledger {unknown} is neither on the disks nor in the metadata")

    # -- ledgers -----------------------------------------------------------------------------------------------------

    def target(self, ledger_id: int) -> PlannedLedger | Skipped:
        ledger = self.disks.ledger(ledger_id)
        metadata = ledger.metadata
        if metadata is None and not self._unlisted:
            return self._left_out(ledger, self._why_unlisted(ledger_id))
        if metadata is None and ledger.digest_name is None:
            return self._left_out(ledger, "nothing tells which digest its entries have")
        try:
            if metadata is None:
                metadata = self._make_up(ledger)
            elif metadata.digest_type is None and metadata.format_version != 1:
                metadata = self._with_digest(ledger, metadata)
            serialized = serialize(_timed(metadata))
        except (MetadataSerializationError, IncorrectParameterError) as error:
            return self._left_out(ledger, str(error))
        # A ledger that is not closed is imported completely, so that recovery finds its end.
        upto = metadata.last_entry_id if metadata.state == CLOSED else MAX_ENTRY_ID
        found = _measure(self.disks.catalog, ledger, upto)
        explicit_lac = self.disks.catalog.explicit_lacs.get(ledger_id, NO_ENTRY)
        if metadata.state == CLOSED and ledger.extent.missing:
            # All entries of a closed ledger were confirmed: a missing one was lost, and not merely never written.
            explicit_lac = max(explicit_lac, metadata.last_entry_id)
        restored = RestoreLedger(
            ledger_id,
            serialized,
            master_key=ledger.master_key,
            digest=ledger.digest_name or "",
            fenced=ledger.fenced,
            explicit_lac=explicit_lac,
            in_order=found.in_order,
        )
        ledger_state = found.ledger_state
        restored.update_state(ledger_state)
        return PlannedLedger(ledger, restored, ledger_state, upto, found.stored_bytes)

    def _left_out(self, ledger: DiskLedger, why: str) -> Skipped:
        entries = sum(int(copies.firsts().sum()) for copies in self.disks.catalog.blocks(ledger.id))
        return Skipped(f"ledger {ledger.id}", why, entries)

    def _why_unlisted(self, ledger_id: int) -> str:
        dump = self.disks.dump
        if dump is not None and ledger_path(ledger_id) in dump.nodes:
            return "the metadata cannot be read"
        return "not in the metadata, so deleted and not collected yet"

    def _make_up(self, ledger: DiskLedger) -> LedgerMetadata:
        """Create metadata for a ledger that has lost it, closed at its end on the disks."""
        extent = ledger.extent
        password = self._password_of(ledger)
        return LedgerMetadata(
            ledger.id,
            ensemble_size=1,
            write_quorum_size=1,
            ack_quorum_size=1,
            ensembles=[(0, [self._holder(ledger)])],
            state=CLOSED,
            last_entry_id=extent.last_entry,
            length=extent.length,
            # Format 1 has neither password nor digest, so a client can open the ledger with the right password.
            format_version=1 if password is None else 3,
            digest_type=None if password is None else ledger.digest_name,
            password=password,
            custom_metadata={} if password is None else {MADE_UP: b"closed at the end of what was found"},
        )

    def _with_digest(self, ledger: DiskLedger, metadata: LedgerMetadata) -> LedgerMetadata:
        """Add the digest, which old metadata may lack and the current format requires."""
        password = self._password_of(ledger)
        if password is None or ledger.digest_name is None:
            return metadata.replace(format_version=1, custom_metadata={})
        return metadata.replace(digest_type=ledger.digest_name, password=password)

    def _password_of(self, ledger: DiskLedger) -> bytes | None:
        """Return the matching password; None if no candidate fits, the empty one if they cannot be checked."""
        key = ledger.master_key
        if key is not None:
            return next((word for word in self.disks._passwords if master_key(word) == key), None)
        if ledger.digest_name != "hmac":
            return b""
        for entry in ledger.entries(beyond=True):
            header, payload = entry.stored[:HEADER_BYTES], entry.payload
            slot = entry.stored[HEADER_BYTES : len(entry.stored) - len(payload)]
            for word in self.disks._passwords:
                if digest_for("hmac", word).of(header, payload) == slot:
                    return word
            return None
        return b""

    def _holder(self, ledger: DiskLedger) -> str:
        """Return the name of a bookie with entries of the ledger, in a form that is valid in metadata."""
        catalog = self.disks.catalog
        number = 0
        for copies in catalog.blocks(ledger.id, rows=1):
            number = catalog.files[int(copies.files[0])].bookie
            break
        name = self.disks.bookies[number].name
        return name if re.fullmatch(r"[A-Za-z0-9.:_-]+", name) and name.lower() != "readonly" else f"bookie-{number}"

    # -- nodes -------------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[PlannedNode | Skipped]:
        """Yield all nodes except ledgers' nodes, by path. A compressed cursor's record that contains strings is written
        uncompressed: Pulsar 4.2.4 cannot load it otherwise."""
        dump = self.disks.dump
        if dump is None or not self._with_nodes:
            return
        for path in sorted(dump.nodes):
            if ledger_id_of(path) is not None or (_LEDGER_FOLDER.fullmatch(path) and not dump.nodes[path].value):
                continue
            try:
                check_path(path)
            except IncorrectParameterError as error:
                yield Skipped(f"node {path}", str(error))
                continue
            plain = self._plain_cursors.get(path)
            yield PlannedNode(path, dump.nodes[path].value if plain is None else plain, plain is not None)

    @cached_property
    def _plain_cursors(self) -> dict[str, bytes]:
        dump = self.disks.dump
        found: dict[str, bytes] = {}
        if dump is None:
            return found
        for topic in (*dump.topics, *dump.unreadable_topics):
            for cursor in dump.cursors(topic):
                path = cursor_node_of(topic, cursor)
                node = dump.nodes.get(path)
                if node is not None and node.value.startswith(_HEADER_MAGIC):
                    info = dump.cursor_info(topic, cursor)
                    if info.cursor_properties:
                        found[path] = encode_cursor_info(info)
        return found


class _Measured(NamedTuple):
    ledger_state: LedgerState
    stored_bytes: int
    in_order: bool


def _measure(catalog: Catalog, ledger: DiskLedger, upto: int) -> _Measured:
    """Compute the state that a store will have for the ledger after importing its entries up to ``upto``."""
    known = LedgerState(0, None)
    stored_bytes = length = 0
    name = ledger.digest_name
    in_order = name is not None
    before_payload = HEADER_BYTES + (0 if name is None else digest_for(name, b"").size)
    for copies in catalog.blocks(ledger.id, 0, upto):
        best = copies.rows(copies.firsts())
        if not len(best):
            continue
        opens = np.flatnonzero(np.diff(best.entry_ids, prepend=best.entry_ids[0]) != 1)
        closes = np.append(opens[1:], len(best))
        lac, largest = int(best.lacs.max()), int(best.sizes.max())
        for first, count in zip(best.entry_ids[opens].tolist(), (closes - opens).tolist(), strict=True):
            state.record_added(known, first, count, largest, lac)
        stored_bytes += int(best.sizes.sum(dtype=np.int64))
        payloads = best.sizes.astype(np.int64) - before_payload
        in_order &= bool((best.lengths - payloads >= np.concatenate(([length], best.lengths[:-1]))).all())
        length = int(best.lengths[-1])
    return _Measured(known, stored_bytes, in_order)


def _timed(metadata: LedgerMetadata) -> LedgerMetadata:
    """Store the creation time, which only the metadata service had so far, in the metadata itself."""
    if metadata.stores_ctime or metadata.ctime < 0 or metadata.format_version == 1:
        return metadata
    return metadata.replace(stores_ctime=True)
