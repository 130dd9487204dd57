"""Log of negative acknowledgments, which restores them after a restart.

A metadata node stores the id of the log's ledger. Opening the log reads that ledger and starts a new one with the nacks
that have not been redelivered. One commit creates the new ledger, updates the node and deletes the old ledger, so that
a crash neither loses the log nor leaks a ledger. Compaction works the same way.

Redeliveries are recorded after they happened. A crash in between repeats them, but loses none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote_plus, unquote_plus

from bookstand.delivery.nacks.record import Nacks, Record, Redelivered, decode, encode_nacks, encode_redelivered
from bookstand.delivery.tracker.bucket.recovery import GONE
from bookstand.errors import (
    BookstandError,
    IncorrectParameterError,
    MalformedRecordError,
    MetadataSerializationError,
    NoSuchLedgerError,
    NoSuchNodeError,
    StoreDamagedError,
)
from bookstand.storage.commit.operations import MUST_NOT_EXIST
from bookstand.storage.format.digest import digest_for
from bookstand.storage.format.entry_codec import HEADER_BYTES
from bookstand.storage.logger import logger
from bookstand.storage.metadata_store import check_path

if TYPE_CHECKING:
    from typing import Protocol

    from bookstand.delivery.nacks.pending import NackTimes
    from bookstand.ledger.handles.reader import LedgerReader
    from bookstand.ledger.handles.writer import LedgerWriter
    from bookstand.ledger.transaction import Transaction
    from bookstand.proto.expansion import ExpansionLimits
    from bookstand.storage.commit.futures import Pending
    from bookstand.storage.format.ledger_metadata import LedgerMetadata
    from bookstand.storage.metadata_store import Nodes
    from bookstand.storage.storage import Storage

    class Store(Protocol):
        """Methods of a store that a log uses."""

        @property
        def nodes(self) -> Nodes: ...
        @property
        def storage(self) -> Storage: ...
        @property
        def expansion_limits(self) -> ExpansionLimits: ...
        def open_ledger(self, ledger_id: int, recovery: bool | None, password: bytes) -> LedgerReader: ...
        def list_ledgers(self) -> Iterator[int]: ...
        def ledger_metadata(self, ledger_id: int) -> LedgerMetadata: ...
        def transaction(self) -> Transaction: ...


ROOT = "/negative-acks"
COMPACT_BYTES = 1 << 20
"""A smaller ledger is not compacted."""

# Maximum size of an entry, even if the store allows larger ones.
_ENTRY_BYTES = 1 << 20
_DIGEST = "crc32c"
_PASSWORD = b""
_LABELS = {"application": b"bookstand", "component": b"negative-acks"}
_NAME_LABEL = "bookstand/name"


def node_of(name: str) -> str:
    """Path of the node that stores the id of a log's ledger, in decimal."""
    if not isinstance(name, str) or not name:
        raise IncorrectParameterError(f"name of negative acknowledgments must be a non-empty string, not {name!r}")
    return check_path(f"{ROOT}/{quote_plus(name)}")


def nack_name(topic: str, subscription: str) -> str:
    """Name of the log of a subscription. Both names may contain slashes."""
    return f"{quote_plus(topic)}/{quote_plus(subscription)}"


class NackLog:
    """Not thread-safe. Records are durable when the returned Pendings are done."""

    def __init__(self, store: Store, name: str, compact_bytes: int = COMPACT_BYTES) -> None:
        self._store = store
        self._name = name
        self._path = node_of(name)
        self._compact_bytes = compact_bytes
        self.damage: list[str] = []
        """Parts that could not be read. Messages that were recorded only there are redelivered immediately."""
        self._stored = _find_log(store, self._path, name)
        if self._stored.damage is not None:
            self._report(self._stored.damage)
        self._writer: LedgerWriter | None = None
        self._compaction_threshold = compact_bytes

    def read(self) -> Iterator[list[tuple[int, Record]]]:
        """Yield the records of each ledger with their entry ids, and fence the process that wrote them. Unreadable
        parts are skipped and listed in ``damage``."""
        for ledger_id in self._stored.ledgers:
            yield list(self._records(ledger_id))

    def _records(self, ledger_id: int) -> Iterator[tuple[int, Record]]:
        try:
            reader = self._store.open_ledger(ledger_id, True, _PASSWORD)
        except GONE as error:
            self._report(f"ledger {ledger_id} cannot be read: {error}")
            return
        for number, payload in self._payloads(reader):
            try:
                yield number, decode(payload, f"entry {ledger_id}:{number}", self._store.expansion_limits)
            except MalformedRecordError as error:
                self._report(str(error))

    def _payloads(self, reader: LedgerReader) -> Iterator[tuple[int, bytes]]:
        try:
            payloads = list(reader.payloads())
        except GONE:
            for number in range(reader.last_add_confirmed + 1):
                try:
                    yield number, reader.read(number, number)[0].data
                except GONE as error:
                    self._report(f"entry {reader.id}:{number} cannot be read: {error}")
        else:
            yield from enumerate(payloads)

    def _report(self, damage: str) -> None:
        self.damage.append(f"negative acknowledgments of {unquote_plus(self._name)}: {damage}")
        logger().warning("%s; messages recorded only there are redelivered immediately", self.damage[-1])

    @property
    def last(self) -> int:
        """Last entry pushed, durable or not."""
        assert self._writer is not None
        return self._writer.last_add_pushed

    def record_nacks(self, nacks: Iterable[Nacks]) -> list[Pending]:
        assert self._writer is not None
        return [self._writer.append_async(record) for record in encode_nacks(nacks, _entry_limit(self._writer))]

    def record_redelivered(self, until: int, last: int) -> Pending:
        """Record the redelivery of all nacks in entries up to ``last`` that were due by ``until``."""
        assert self._writer is not None
        return self._writer.append_async(encode_redelivered(Redelivered(until, last)))

    @property
    def needs_compaction(self) -> bool:
        """True if the ledger has grown so much that rewriting the remaining nacks is cheaper."""
        assert self._writer is not None
        return self._writer.length > self._compaction_threshold

    def start_ledger(self, remaining: Iterable[Nacks]) -> None:
        """Continue in a new ledger that starts with the remaining nacks."""
        with self._store.transaction() as transaction:
            self._stored.delete_ledgers_in(transaction)
            writer = transaction.create_ledger(
                digest=_DIGEST, password=_PASSWORD, custom_metadata={**_LABELS, _NAME_LABEL: self._name.encode()}
            )
            for record in encode_nacks(remaining, _entry_limit(writer)):
                transaction.append(writer, record)
            version = transaction.put_node(self._path, b"%d" % writer.id, self._stored.version)
        self._stored = _StoredLog(version.result(), [writer.id], None)
        self._writer = writer
        self._compaction_threshold = 2 * writer.length + self._compact_bytes

    def compact(self, remaining: Iterable[Nacks]) -> None:
        """Start a new ledger; after a failure, try again when the ledger has doubled."""
        assert self._writer is not None
        try:
            self.start_ledger(remaining)
        except BookstandError as error:
            self._compaction_threshold = 2 * self._writer.length
            logger().warning("negative acknowledgments %r were not compacted: %s", self._name, error)

    def close(self) -> None:
        """Close the ledger. If that fails, the next opening recovers it; acknowledged records are durable already."""
        if self._writer is None:
            return
        try:
            self._writer.close()
        except BookstandError as error:
            logger().info("the ledger of the negative acknowledgments %r could not be closed: %s", self._name, error)

    def delete(self) -> None:
        """Close and delete the log."""
        self.close()
        with self._store.transaction() as transaction:
            self._stored.delete_ledgers_in(transaction)
            transaction.delete_node(self._path, self._stored.version)


def exists(store: Store, name: str) -> bool:
    """Return True if a log of this name exists, readable or not."""
    return _find_log(store, node_of(name), name).version != MUST_NOT_EXIST


def delete(store: Store, name: str) -> None:
    """Delete the log of this name, readable or not, if it exists."""
    path = node_of(name)
    stored = _find_log(store, path, name)
    if stored.version != MUST_NOT_EXIST:
        with store.transaction() as transaction:
            stored.delete_ledgers_in(transaction)
            transaction.delete_node(path, stored.version)


def replay(records: Iterable[tuple[int, Record]], times: NackTimes) -> None:
    """Add the nacks of a log's records to ``times``, without those redelivered since."""
    numbered = list(records)
    # A redelivery may be recorded after later nacks; it covers only entries up to its ``last``.
    rounds = sorted(
        (record.redelivered for _, record in numbered if record.redelivered is not None), key=lambda one: one.last
    )
    at = 0
    for number, record in numbered:
        at = _redeliver(rounds, at, number, times)
        for nacks in record.nacks:
            times.restore(nacks)
    _redeliver(rounds, at, None, times)


def _redeliver(rounds: list[Redelivered], at: int, before: int | None, times: NackTimes) -> int:
    """Apply redeliveries from ``at`` on that cover only entries before ``before``; return the index of the next one."""
    while at < len(rounds) and (before is None or rounds[at].last < before):
        times.remove(times.pop(rounds[at].until))
        at += 1
    return at


class _StoredLog(NamedTuple):
    """Version of a log's node, and its ledgers. The version is MUST_NOT_EXIST if the node does not exist, and None if
    it is damaged. In that case the ledgers were found by their labels."""

    version: int | None
    ledgers: list[int]
    damage: str | None

    def delete_ledgers_in(self, transaction: Transaction) -> None:
        for ledger_id in self.ledgers:
            transaction.delete_ledger(ledger_id)


def _find_log(store: Store, path: str, name: str) -> _StoredLog:
    try:
        value, version = store.nodes.get(path)
        if not value.isdigit() or len(value) > 19:
            raise MalformedRecordError(f"node {path} does not contain a ledger id")
    except NoSuchNodeError:
        return _StoredLog(MUST_NOT_EXIST, [], None)
    except (StoreDamagedError, MalformedRecordError) as error:
        return _StoredLog(None, _find_by_label(store, name), f"{error}; the ledgers were found by their labels")
    ledgers = [int(value)] if store.storage.has_ledger(int(value)) else []
    damage = None if ledgers else f"the negative acknowledgments {name!r} are in ledger {int(value)}, which is missing"
    return _StoredLog(version, ledgers, damage)


def _find_by_label(store: Store, name: str) -> list[int]:
    found = []
    for ledger_id in store.list_ledgers():
        try:
            labels = store.ledger_metadata(ledger_id).custom_metadata
        except (NoSuchLedgerError, StoreDamagedError, MetadataSerializationError):
            continue
        if labels.get("component") == _LABELS["component"] and labels.get(_NAME_LABEL) == name.encode():
            found.append(ledger_id)
    return found


def _entry_limit(writer: LedgerWriter) -> int:
    return min(_ENTRY_BYTES, writer.client.max_entry_bytes - HEADER_BYTES - digest_for(_DIGEST, _PASSWORD).size)
