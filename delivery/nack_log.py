"""The ledger that negative acknowledgments are written to, so that a restart does not forget them.

A node names the ledger. Opening reads it, and goes on in a new one, which begins with what is still to be given out:
that the new one is made, the node points to it and the old one is deleted, is one commit. The same is done when much of
what the ledger says is over. So a crash leaves one whole log, and no ledger that nobody knows of.

What was given out is written down after it was: a crash in between has it given out again, and none is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote_plus, unquote_plus

from bookstand.delivery.bucket_recovery import GONE
from bookstand.delivery.nack_record import Given, Nacks, Record, decode, encode_given, encode_nacks
from bookstand.errors import (
    BookstandError,
    IncorrectParameterError,
    MalformedRecordError,
    NoSuchLedgerError,
    NoSuchNodeError,
    StoreDamagedError,
)
from bookstand.storage.digest import digest_for
from bookstand.storage.entry import HEADER_BYTES
from bookstand.storage.log import logger
from bookstand.storage.nodes import check_path

if TYPE_CHECKING:
    from typing import Protocol

    from bookstand.delivery.nacked import NackTimes
    from bookstand.ledger.reader import LedgerReader
    from bookstand.ledger.transaction import Transaction
    from bookstand.ledger.writer import LedgerWriter
    from bookstand.storage.nodes import Nodes
    from bookstand.storage.pending import Pending

    class Store(Protocol):
        """What a log needs of a store."""

        @property
        def nodes(self) -> Nodes: ...
        def open_ledger(self, ledger_id: int, recovery: bool | None, password: bytes) -> LedgerReader: ...
        def transaction(self) -> Transaction: ...


ROOT = "/negative-acks"
COMPACT_BYTES = 1 << 20
"""A ledger smaller than this is not worth being replaced."""

# What one entry holds at most, however large the store lets it be.
_ENTRY_BYTES = 1 << 20
_DIGEST = "crc32c"
_PASSWORD = b""
_LABELS = {"application": b"bookstand", "component": b"negative-acks"}


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
        self._ledger_id, self._version = _find(store, self._path)
        self._writer: LedgerWriter | None = None
        self._full = compact_bytes
        self.problems: list[str] = []
        """What was wrong with the log when it was read."""

    def read(self) -> list[tuple[int, Record]]:
        """Records of the log so far, with their entry ids. The process that wrote it is fenced. Damaged entries are
        skipped, and listed in ``problems``."""
        if self._ledger_id is None:
            return []
        try:
            reader = self._store.open_ledger(self._ledger_id, True, _PASSWORD)
        except NoSuchLedgerError as error:
            raise StoreDamagedError(
                f"the negative acknowledgments {self._name!r} are in ledger {self._ledger_id}, which is missing"
            ) from error
        found: list[tuple[int, Record]] = []
        for number, payload in self._payloads(reader):
            try:
                found.append((number, decode(payload, f"entry {self._ledger_id}:{number}")))
            except MalformedRecordError as error:
                self._report(error)
        return found

    def _payloads(self, reader: LedgerReader) -> Iterator[tuple[int, bytes]]:
        try:
            payloads = list(reader.payloads())
        except GONE:
            for number in range(reader.last_add_confirmed + 1):
                try:
                    yield number, reader.read(number, number)[0].data
                except GONE as error:
                    self._report(error)
        else:
            yield from enumerate(payloads)

    def _report(self, error: BookstandError) -> None:
        self.problems.append(str(error))
        logger().warning(
            "negative acknowledgments of %s: a damaged record is skipped, its messages are redelivered at once: %s",
            unquote_plus(self._name),
            error,
        )

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
        return self._writer.append_async(encode_given(Given(until, last)))

    @property
    def is_full(self) -> bool:
        """Whether the ledger has grown so much since it was begun that writing what is left of it anew costs less."""
        assert self._writer is not None
        return self._writer.length > self._full

    def begin(self, left: Iterable[Nacks]) -> None:
        """Go on in a new ledger, which begins with what is ``left``."""
        with self._store.transaction() as transaction:
            writer = transaction.create_ledger(
                digest=_DIGEST,
                password=_PASSWORD,
                custom_metadata={"application": b"bookstand", "component": b"negative-acks"},
            )
            for record in encode_nacks(left, _entry_limit(writer)):
                transaction.append(writer, record)
            version = transaction.put_node(self._path, b"%d" % writer.id, self._version)
            if self._ledger_id is not None:
                transaction.delete_ledger(self._ledger_id)
        self._ledger_id, self._version, self._writer = writer.id, version.result(), writer
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
            if self._ledger_id is not None:
                transaction.delete_ledger(self._ledger_id)
            transaction.delete_node(self._path, self._version)


def exists(store: Store, name: str) -> bool:
    """Whether there is a log under the name."""
    try:
        store.nodes.get(node_of(name))
    except NoSuchNodeError:
        return False
    return True


def forget(store: Store, name: str) -> None:
    """Delete the log under the name, readable or not; do nothing if there is none."""
    path = node_of(name)
    try:
        ledger_id, version = _find(store, path)
    except MalformedRecordError:
        store.nodes.delete(path)
        return
    if ledger_id is None:
        return
    try:
        with store.transaction() as transaction:
            transaction.delete_ledger(ledger_id)
            transaction.delete_node(path, version)
    except NoSuchLedgerError:
        store.nodes.delete(path)


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


def _redeliver(rounds: list[Given], at: int, before: int | None, times: NackTimes) -> int:
    """Apply the rounds from ``at`` on that cover no entry from ``before`` on; returns the number of the next."""
    while at < len(rounds) and (before is None or rounds[at].last < before):
        times.remove(times.pop(rounds[at].until))
        at += 1
    return at


def _find(store: Store, path: str) -> tuple[int | None, int]:
    try:
        value, version = store.nodes.get(path)
    except NoSuchNodeError:
        return None, -1
    if not value.isdigit() or len(value) > 19:
        raise MalformedRecordError(f"node {path} names no ledger")
    return int(value), version


def _entry_limit(writer: LedgerWriter) -> int:
    return min(_ENTRY_BYTES, writer.client.max_entry_bytes - HEADER_BYTES - digest_for(_DIGEST, _PASSWORD).size)
