"""Data that the strategies draw, and execution of the operations among them.

:func:`perform` runs operations on a store and acknowledges the result of each. :func:`check_survivors` checks that a
store that was reopened after a crash still has them. Together they are a crash test of any sequence::

    every_crash(
        lambda path, acknowledge: perform(operations, path, acknowledge),
        lambda store, acknowledged: check_survivors(store, operations, acknowledged),
    )
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import bookstand
from bookstand.errors import NoSuchEntryError, NoSuchLedgerError, NoSuchLedgerOnBookieError, NoSuchNodeError
from bookstand.storage.format.position import Position


class Individual(NamedTuple):
    """Acknowledgment of one entry."""

    position: Position


class Cumulative(NamedTuple):
    """Acknowledgment of an entry and all entries before it."""

    position: Position


class BatchIndexes(NamedTuple):
    """Acknowledgment of some messages in a batch entry."""

    position: Position
    indexes: tuple[int, ...]
    batch_size: int


Acknowledgment = Individual | Cumulative | BatchIndexes


class Delayed(NamedTuple):
    """Message with a delivery time, ``deliver_at``, in milliseconds since the epoch."""

    position: Position
    deliver_at: int


# -- operations on ledgers -------------------------------------------------------------------------------------------


class Create(NamedTuple):
    """Create a ledger. ``ledger`` is its number in the sequence: 0, 1, … in the order of creation."""

    ledger: int
    digest: str = "crc32c"
    password: bytes = b""
    deferred: bool = False


class Append(NamedTuple):
    """Append to a ledger: ``how`` is one call per entry (``"one"``, ``"async"``) or one for all (``"many"``)."""

    ledger: int
    payloads: tuple[bytes, ...]
    how: str = "one"


class Force(NamedTuple):
    """Force a ledger's acknowledged entries."""

    ledger: int


class Close(NamedTuple):
    """Close a ledger by its writer."""

    ledger: int


class Recover(NamedTuple):
    """Recover a ledger from another handle, which fences its writer."""

    ledger: int


class Delete(NamedTuple):
    """Delete a ledger."""

    ledger: int


class PutNode(NamedTuple):
    """Write a node."""

    path: str
    value: bytes


class DeleteNode(NamedTuple):
    """Delete a node."""

    path: str


class Compact(NamedTuple):
    """Compact the store."""


class Reopen(NamedTuple):
    """Close and reopen the store; ledgers that are being written stay open, but lose their writers."""


Operation = Create | Append | Force | Close | Recover | Delete | PutNode | DeleteNode | Compact | Reopen


@dataclass
class Expected:
    """Expected contents of a store after some operations, with which survivors are compared."""

    @dataclass
    class Ledger:
        password: bytes
        deferred: bool
        entries: list[bytes] = field(default_factory=list)
        promised: int = 0
        """Number of entries that must survive."""
        closed: bool = False

    ledgers: dict[int, Ledger] = field(default_factory=dict)
    nodes: dict[str, bytes] = field(default_factory=dict)

    def apply(self, operation: Operation) -> None:
        match operation:
            case Create(ledger, _, password, deferred):
                self.ledgers[ledger] = Expected.Ledger(password, deferred)
            case Append(ledger, payloads, _):
                found = self.ledgers[ledger]
                found.entries += payloads
                if not found.deferred:
                    found.promised = len(found.entries)
            case Force(ledger):
                self.ledgers[ledger].promised = len(self.ledgers[ledger].entries)
            case Close(ledger):
                # A deferred ledger ends at its last forced entry.
                self.ledgers[ledger].closed = True
                del self.ledgers[ledger].entries[self.ledgers[ledger].promised :]
            case Recover(ledger):
                self.ledgers[ledger].closed = True
                self.ledgers[ledger].promised = len(self.ledgers[ledger].entries)
            case Delete(ledger):
                del self.ledgers[ledger]
            case PutNode(path, value):
                self.nodes[path] = value
            case DeleteNode(path):
                del self.nodes[path]
            case Reopen():
                for found in self.ledgers.values():
                    found.promised = len(found.entries)


def perform(
    operations: Sequence[Operation],
    path: str | os.PathLike[str],
    acknowledge: Callable[[Any], object] = lambda value: None,
    open_store: Callable[[Any], Any] = bookstand.open,
) -> None:
    """Run the operations on the store at ``path``; after each, acknowledge its ledger's id, or None."""
    store = open_store(path)
    writers: dict[int, Any] = {}
    ids: dict[int, int] = {}
    passwords: dict[int, bytes] = {}
    try:
        for operation in operations:
            match operation:
                case Create(ledger, digest, password, deferred):
                    writers[ledger] = store.create_ledger(digest=digest, password=password, deferred_sync=deferred)
                    ids[ledger], passwords[ledger] = writers[ledger].id, password
                case Append(ledger, payloads, "one"):
                    for payload in payloads:
                        writers[ledger].append(payload)
                case Append(ledger, payloads, "async"):
                    for pending in [writers[ledger].append_async(payload) for payload in payloads]:
                        pending.result()
                case Append(ledger, payloads, _):
                    writers[ledger].append_many(payloads)
                case Force(ledger):
                    writers[ledger].force()
                case Close(ledger):
                    writers[ledger].close()
                case Recover(ledger):
                    store.open_ledger(ids[ledger], recovery=True, password=passwords[ledger])
                case Delete(ledger):
                    store.delete_ledger(ids[ledger])
                case PutNode(path_, value):
                    store.nodes.put(path_, value)
                case DeleteNode(path_):
                    store.nodes.delete(path_)
                case Compact():
                    store.compact()
                case Reopen():
                    store.close()
                    store = open_store(path)
            acknowledge(ids.get(getattr(operation, "ledger", -1)))
    finally:
        store.close()


def check_survivors(store: Any, operations: Sequence[Operation], acknowledged: Sequence[int | None]) -> None:
    """Assert that the store has the effects of the first ``len(acknowledged)`` operations. The next operation was in
    progress, and may have taken effect completely, partly or not at all."""
    done = operations[: len(acknowledged)]
    ids = {op.ledger: ledger_id for op, ledger_id in zip(done, acknowledged, strict=True) if isinstance(op, Create)}
    before, after = Expected(), Expected()
    for operation in done:
        before.apply(operation)
        after.apply(operation)
    under_way = operations[len(acknowledged)] if len(acknowledged) < len(operations) else None
    if under_way is not None:
        after.apply(under_way)
    for number, promised in before.ledgers.items():
        ledger_id = ids[number]
        assert ledger_id is not None
        try:
            found = _entries(store, ledger_id, promised.password)
        except NoSuchLedgerError:
            assert number not in after.ledgers, f"ledger {ledger_id} is gone"
            continue
        possible = promised.entries
        if isinstance(under_way, Append) and under_way.ledger == number:
            possible = possible + list(under_way.payloads)
        assert found == possible[: len(found)], f"ledger {ledger_id} has other entries than it was given"
        assert len(found) >= promised.promised, (
            f"ledger {ledger_id} has {len(found)} entries, and {promised.promised} were promised"
        )
        closed = store.is_closed(ledger_id)
        assert closed or not promised.closed, f"ledger {ledger_id} was closed, and is open"
        assert not closed or number not in after.ledgers or after.ledgers[number].closed, (
            f"ledger {ledger_id} is closed"
        )
    for number in ids.keys() - before.ledgers.keys():
        assert ids[number] not in set(store.list_ledgers()), f"ledger {ids[number]} was deleted, and is there"
    for path in before.nodes.keys() | after.nodes.keys():
        try:
            value = store.nodes.get(path)[0]
        except NoSuchNodeError:
            value = None
        assert value in (before.nodes.get(path), after.nodes.get(path)), f"node {path} has the value {value!r}"


def _entries(store: Any, ledger_id: int, password: bytes) -> list[bytes]:
    """Return the stored entries, confirmed or not, without changing the ledger."""
    reader = store.open_ledger(ledger_id, recovery=False, password=password)
    if reader.is_closed():
        return [entry.data for entry in reader]
    entries: list[bytes] = []
    while True:
        try:
            entries += [entry.data for entry in reader.read_unconfirmed(len(entries), len(entries))]
        except (NoSuchEntryError, NoSuchLedgerOnBookieError):
            return entries
