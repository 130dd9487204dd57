"""The ledger that negative acknowledgments are written to, so that a restart does not forget them.

A node names the ledger. Opening reads it, and goes on in a new one, which begins with what is still to be given out:
that the new one is made, the node points to it and the old one is deleted, is one commit. The same is done when much of
what the ledger says is over. So a crash leaves one whole log, and no ledger that nobody knows of.

What was given out is written down after it was: a crash in between has it given out again, and none is lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

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

    def read(self) -> list[Nacks]:
        """What is still to be given out, by the log of the one before us, who writes no more from now on."""
        if self._ledger_id is None:
            return []
        try:
            reader = self._store.open_ledger(self._ledger_id, True, _PASSWORD)
        except NoSuchLedgerError as error:
            raise StoreDamagedError(
                f"the negative acknowledgments {self._name!r} are in ledger {self._ledger_id}, which is missing"
            ) from error
        return outstanding(
            decode(payload, f"entry {self._ledger_id}:{number}") for number, payload in enumerate(reader.payloads())
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
        assert self._writer is not None
        try:
            self._writer.close()
        except BookstandError as error:
            logger().info("the ledger of the negative acknowledgments %r stays open: %s", self._name, error)


def forget(store: Store, name: str) -> None:
    """Delete what is kept under the name; nothing if nothing is."""
    path = node_of(name)
    ledger_id, version = _find(store, path)
    if ledger_id is not None:
        with store.transaction() as transaction:
            transaction.delete_ledger(ledger_id)
            transaction.delete_node(path, version)


def outstanding(records: Iterable[Record]) -> list[Nacks]:
    """What was recorded, and not given out since."""
    noted: list[tuple[int, Nacks]] = []
    given: list[Given] = []
    for number, record in enumerate(records):
        noted += [(number, nacks) for nacks in record.nacks]
        if record.given is not None:
            given.append(record.given)
    given.sort(key=lambda one: one.last)
    lasts = [one.last for one in given]
    # The latest time that was given out of everything up to one's ``last``, or further on.
    untils = list(accumulate((one.until for one in reversed(given)), max))[::-1]

    def is_given(number: int, nacks: Nacks) -> bool:
        first = bisect_left(lasts, number)
        return first < len(untils) and nacks.time <= untils[first]

    return [nacks for number, nacks in noted if not is_given(number, nacks)]


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
