"""The ledger that negative acknowledgments are written to, so that a restart does not forget them.

A node names the ledger. Opening reads it, and goes on in a new one, which begins with what is still to be given out:
that the new one is made, the node points to it and the old one is deleted, is one commit. The same is done when much of
what the ledger says is over. So a crash leaves one whole log, and no ledger that nobody knows of.

What was given out is written down after it was: a crash in between has it given out again, and none is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote_plus, unquote_plus

from bookstand.delivery.nacks.record import Nacks, Record, Redelivered, decode, encode_given, encode_nacks
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
        """What a log needs of a store."""

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
"""A ledger smaller than this is not worth being replaced."""

# What one entry holds at most, however large the store lets it be.
_ENTRY_BYTES = 1 << 20
_DIGEST = "crc32c"
_PASSWORD = b""
_LABELS = {"application": b"bookstand", "component": b"negative-acks"}
_NAME_LABEL = "bookstand/name"


def node_of(name: str) -> str:
    """The node that names a log's ledger, in decimal."""
    if not isinstance(name, str) or not name:
        raise IncorrectParameterError(f"negative acknowledgments are kept under a name, not {name!r}")
    return check_path(f"{ROOT}/{quote_plus(name)}")


def nack_name(topic: str, subscription: str) -> str:
    """What those of a subscription are kept under; names may have slashes."""
    return f"{quote_plus(topic)}/{quote_plus(subscription)}"


class NackLog:
    """Not safe between threads: its owner has a lock. What the Pendings stand for is durable once they are done."""

    def __init__(self, store: Store, name: str, compact_bytes: int = COMPACT_BYTES) -> None:
        self._store = store
        self._name = name
        self._path = node_of(name)
        self._compact_bytes = compact_bytes
        self.damage: list[str] = []
        """Parts that could not be read. Messages that were only noted there are redelivered at once."""
        self._stored = _find(store, self._path, name)
        if self._stored.damage is not None:
            self._report(self._stored.damage)
        self._writer: LedgerWriter | None = None
        self._full = compact_bytes

    def read(self) -> Iterator[list[tuple[int, Record]]]:
        """Yield the records of each ledger, with their entry ids. The process that wrote them is fenced. Parts that
        cannot be read are skipped, and listed in ``damage``."""
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
        logger().warning("%s; messages that were noted there alone are redelivered at once", self.damage[-1])

    # -- what happens --------------------------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """The newest entry, whether it is durable yet or not."""
        assert self._writer is not None
        return self._writer.last_add_pushed

    def note(self, nacks: Iterable[Nacks]) -> list[Pending]:
        assert self._writer is not None
        return [self._writer.append_async(record) for record in encode_nacks(nacks, _entry_limit(self._writer))]

    def given(self, until: int, last: int) -> Pending:
        """Everything that is due up to ``until`` was given out, as far as it stands in entries up to ``last``."""
        assert self._writer is not None
        return self._writer.append_async(encode_given(Redelivered(until, last)))

    @property
    def is_full(self) -> bool:
        """Whether the ledger has grown so much since it was begun that writing what is left of it anew costs less."""
        assert self._writer is not None
        return self._writer.length > self._full

    def begin(self, left: Iterable[Nacks]) -> None:
        """Go on in a new ledger, which begins with what is ``left``."""
        with self._store.transaction() as transaction:
            self._stored.delete_ledgers_in(transaction)
            writer = transaction.create_ledger(
                digest=_DIGEST, password=_PASSWORD, custom_metadata={**_LABELS, _NAME_LABEL: self._name.encode()}
            )
            for record in encode_nacks(left, _entry_limit(writer)):
                transaction.append(writer, record)
            version = transaction.put_node(self._path, b"%d" % writer.id, self._stored.version)
        self._stored = _Stored(version.result(), [writer.id], None)
        self._writer = writer
        self._full = 2 * writer.length + self._compact_bytes

    def compact(self, left: Iterable[Nacks]) -> None:
        """The same where it may wait: what cannot be written now is tried when as much again has been written."""
        assert self._writer is not None
        try:
            self.begin(left)
        except BookstandError as error:
            self._full = 2 * self._writer.length
            logger().warning("negative acknowledgments %r go on in their old ledger: %s", self._name, error)

    def close(self) -> None:
        """Everything that was answered is durable already: where the ledger cannot be closed, opening recovers it."""
        if self._writer is None:
            return
        try:
            self._writer.close()
        except BookstandError as error:
            logger().info("the ledger of the negative acknowledgments %r stays open: %s", self._name, error)

    def delete(self) -> None:
        """Delete the log, which records nothing any more."""
        self.close()
        with self._store.transaction() as transaction:
            self._stored.delete_ledgers_in(transaction)
            transaction.delete_node(self._path, self._stored.version)


def exists(store: Store, name: str) -> bool:
    """Return True if there is a log under the name, readable or not."""
    return _find(store, node_of(name), name).version != MUST_NOT_EXIST


def forget(store: Store, name: str) -> None:
    """Delete the log under the name, readable or not; do nothing if there is none."""
    path = node_of(name)
    stored = _find(store, path, name)
    if stored.version != MUST_NOT_EXIST:
        with store.transaction() as transaction:
            stored.delete_ledgers_in(transaction)
            transaction.delete_node(path, stored.version)


def replay(records: Iterable[tuple[int, Record]], times: NackTimes) -> None:
    """Add to ``times`` what records of a log say was nacked, in their order, without what was redelivered since."""
    numbered = list(records)
    # A round is recorded behind nacks that came while it went on, and covers only those up to its ``last``.
    rounds = sorted((record.given for _, record in numbered if record.given is not None), key=lambda one: one.last)
    at = 0
    for number, record in numbered:
        at = _redeliver(rounds, at, number, times)
        for nacks in record.nacks:
            times.restore(nacks)
    _redeliver(rounds, at, None, times)


def _redeliver(rounds: list[Redelivered], at: int, before: int | None, times: NackTimes) -> int:
    """Apply the rounds from ``at`` on that cover no entry from ``before`` on; returns the number of the next."""
    while at < len(rounds) and (before is None or rounds[at].last < before):
        times.remove(times.pop(rounds[at].until))
        at += 1
    return at


class _Stored(NamedTuple):
    """Version of a log's node, and its ledgers. The version is MUST_NOT_EXIST if there is no node, and None if the node
    is damaged; the ledgers are then those with the log's name in their labels."""

    version: int | None
    ledgers: list[int]
    damage: str | None

    def delete_ledgers_in(self, transaction: Transaction) -> None:
        for ledger_id in self.ledgers:
            transaction.delete_ledger(ledger_id)


def _find(store: Store, path: str, name: str) -> _Stored:
    try:
        value, version = store.nodes.get(path)
        if not value.isdigit() or len(value) > 19:
            raise MalformedRecordError(f"node {path} names no ledger")
    except NoSuchNodeError:
        return _Stored(MUST_NOT_EXIST, [], None)
    except (StoreDamagedError, MalformedRecordError) as error:
        return _Stored(None, _labelled(store, name), f"{error}; the labels of the ledgers are used instead")
    ledgers = [int(value)] if store.storage.has_ledger(int(value)) else []
    damage = None if ledgers else f"the negative acknowledgments {name!r} are in ledger {int(value)}, which is missing"
    return _Stored(version, ledgers, damage)


def _labelled(store: Store, name: str) -> list[int]:
    """Ledgers of a log by their labels."""
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
