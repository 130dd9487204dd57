"""What the strategies draw, as plain data, and a way to run it: positions, acknowledgments, delayed messages, and
sequences of operations on ledgers.

:func:`perform` runs a sequence on a store and acknowledges what each operation promised; :func:`check_survivors` says
whether a store that was opened after a crash has all of it. Together they are a crash test of any sequence::

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
    """One entry is acknowledged."""

    position: Position


class Cumulative(NamedTuple):
    """The entry and all before it are acknowledged."""

    position: Position


class BatchIndexes(NamedTuple):
    """Some of the messages that one entry holds are acknowledged."""

    position: Position
    indexes: tuple[int, ...]
    batch_size: int


Acknowledgment = Individual | Cumulative | BatchIndexes


class Delayed(NamedTuple):
    """A message that is not to be delivered before ``deliver_at``, in milliseconds since the epoch."""

    position: Position
    deliver_at: int


# -- operations on ledgers -------------------------------------------------------------------------------------------


class Create(NamedTuple):
    """``ledger`` is what the sequence calls it from now on: 0, 1, … in the order of creation."""

    ledger: int
    digest: str = "crc32c"
    password: bytes = b""
    deferred: bool = False


class Append(NamedTuple):
    """``how``: ``"one"`` after the other, ``"async"`` and then waited for, or ``"many"`` in one call."""

    ledger: int
    payloads: tuple[bytes, ...]
    how: str = "one"


class Force(NamedTuple):
    """What is acknowledged of a ledger is forced."""

    ledger: int


class Close(NamedTuple):
    """A ledger's writer closes it."""

    ledger: int


class Recover(NamedTuple):
    """Somebody opens the ledger with recovery, which ends its writer."""

    ledger: int


class Delete(NamedTuple):
    """A ledger is deleted."""

    ledger: int


class PutNode(NamedTuple):
    """A node is written."""

    path: str
    value: bytes


class DeleteNode(NamedTuple):
    """A node is deleted."""

    path: str


class Compact(NamedTuple):
    """The store is compacted."""


class Reopen(NamedTuple):
    """The store is closed and opened; ledgers that are being written stay open, and lose their writers."""


Operation = Create | Append | Force | Close | Recover | Delete | PutNode | DeleteNode | Compact | Reopen


@dataclass
class Expected:
    """What a store has after some operations: the reference that survivors are compared with."""

    @dataclass
    class Ledger:
        password: bytes
        deferred: bool
        entries: list[bytes] = field(default_factory=list)
        promised: int = 0
        """So many entries have to survive."""
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
                # The end of a deferred ledger is what was forced.
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
    """Run the operations on the store at ``path``, and acknowledge the ledger's id, or None, after each of them."""
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
    """Whether the store has what the first ``len(acknowledged)`` operations promised. The operation after them was
    under way, and may have happened, or a part of it."""
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
    """What is there, confirmed or not, without changing anything."""
    reader = store.open_ledger(ledger_id, recovery=False, password=password)
    if reader.is_closed():
        return [entry.data for entry in reader]
    entries: list[bytes] = []
    while True:
        try:
            entries += [entry.data for entry in reader.read_unconfirmed(len(entries), len(entries))]
        except (NoSuchEntryError, NoSuchLedgerOnBookieError):
            return entries
