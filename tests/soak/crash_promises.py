"""Whether a store keeps what ``crash_work.py`` was promised: acknowledged within recovered within attempted."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import bookstand
from bookstand import errors
from bookstand.storage.format import ledger_metadata as metadata_format
from tests.soak.crash_work import JOINED, payload


class Promises:
    """What was told, sorted by what it is about."""

    def __init__(self, told: list[Any]) -> None:
        self.creating = 0
        self.created: dict[int, str] = {}
        self.attempted: dict[int, int] = {}
        self.added: dict[int, int] = {}
        self.forced: dict[int, int] = {}
        self.closing: set[int] = set()
        self.closed: dict[int, int] = {}
        self.deleting: set[int] = set()
        self.deleted: set[int] = set()
        self.again: set[int] = set()
        self.explicit: dict[int, int] = {}
        # By path the values it may have, the first of which is the last one that was promised.
        self.nodes: dict[str, list[str | None]] = {}
        self.joining: dict[int, list[list[int]]] = {}
        self.joined = 0
        self.backups: list[tuple[str, dict[str, int]]] = []
        for word, *rest in told:
            getattr(self, "hear_" + word.replace(" ", "_"))(*rest)

    def hear_creating(self) -> None:
        self.creating += 1

    def hear_created(self, ledger_id: int, kind: str) -> None:
        self.created[ledger_id] = kind

    def hear_adding(self, ledger_id: int, first: int, last: int) -> None:
        self.attempted[ledger_id] = last

    def hear_added(self, ledger_id: int, first: int, last: int) -> None:
        self.added[ledger_id] = max(last, self.added.get(ledger_id, -1))

    def hear_forced(self, ledger_id: int, last: int) -> None:
        self.forced[ledger_id] = last

    def hear_closing(self, ledger_id: int) -> None:
        self.closing.add(ledger_id)

    def hear_closed(self, ledger_id: int, lac: int) -> None:
        self.closed[ledger_id] = lac

    def hear_deleting(self, ledger_id: int) -> None:
        self.deleting.add(ledger_id)

    def hear_deleted(self, ledger_id: int) -> None:
        self.deleted.add(ledger_id)

    def hear_creating_again(self, ledger_id: int) -> None:
        for known in (self.attempted, self.added, self.explicit, self.closed):
            known.pop(ledger_id, None)
        self.closing.discard(ledger_id)
        self.deleted.discard(ledger_id)
        self.again.add(ledger_id)

    def hear_created_again(self, ledger_id: int) -> None:
        self.deleting.discard(ledger_id)

    def hear_explicit(self, ledger_id: int, lac: int) -> None:
        self.explicit[ledger_id] = lac

    def hear_putting(self, path: str, value: str | None) -> None:
        self.nodes.setdefault(path, [None]).append(value)

    def hear_put(self, path: str, value: str | None) -> None:
        self.nodes[path] = [value]

    def hear_joining(self, number: int, members: list[list[int]]) -> None:
        self.joining[number] = members
        for ledger_id, entry_id in members:
            self.attempted[ledger_id] = entry_id

    def hear_joined(self, number: int) -> None:
        self.joined = number
        for ledger_id, entry_id in self.joining[number]:
            self.added[ledger_id] = entry_id

    def hear_backed_up(self, name: str, ledgers: dict[str, int]) -> None:
        self.backups.append((name, ledgers))

    def promised_last(self, ledger_id: int) -> int:
        if self.created.get(ledger_id) == "deferred":
            return self.forced.get(ledger_id, -1)
        return self.added.get(ledger_id, -1)


def check(store: Any, told: list[Any]) -> None:
    """The check of the campaign."""
    promises = Promises(told)
    there = set(store.list_ledgers())
    missing = promises.created.keys() - promises.deleting - there
    assert not missing, f"ledgers {sorted(missing)} were created, and are gone"
    assert not promises.deleted & there, f"ledgers {sorted(promises.deleted & there)} were deleted, and are back"
    unknown = there - promises.created.keys()
    assert len(unknown) <= promises.creating, f"nobody created {sorted(unknown)}"
    last_entries = {}
    for ledger_id in sorted(there):
        last_entries[ledger_id] = _check_ledger(store, ledger_id, promises)
    _check_nodes(store, promises)
    _check_transactions(store, promises, last_entries)
    _recover_one(store, last_entries)
    for name, ledgers in promises.backups:
        _check_backup(os.path.join(os.path.dirname(store.path), name), ledgers)


def _check_ledger(store: Any, ledger_id: int, promises: Promises) -> int:
    """The id of its last entry; for one written out of order, of the last one before a gap."""
    promised, attempted = promises.promised_last(ledger_id), promises.attempted.get(ledger_id, -1)
    last, end = _stored(store, ledger_id)
    assert last >= promised, f"entries up to {promised} of ledger {ledger_id} were acknowledged, and it ends at {last}"
    assert end <= attempted, f"ledger {ledger_id} ends at {end}, and nobody wrote more than up to {attempted}"
    if promises.created.get(ledger_id) != "adv":
        assert end == last, f"ledger {ledger_id} has entries up to {end}, and no more than {last} without a gap"
    metadata = _parsed(store.storage.metadata(ledger_id)[0], ledger_id)
    lac = promises.closed.get(ledger_id)
    if lac is not None:
        assert metadata.state == "CLOSED", f"ledger {ledger_id} was closed, and is {metadata.state}"
        assert metadata.last_entry_id == lac, f"ledger {ledger_id} was closed at {lac}, not {metadata.last_entry_id}"
    elif metadata.state == "CLOSED":
        # The check itself may have closed it, at its end.
        assert ledger_id in promises.closing or metadata.last_entry_id == last, f"nobody closed ledger {ledger_id}"
    explicit = promises.explicit.get(ledger_id)
    if explicit is not None or ledger_id in promises.again:
        known = store.open_ledger(ledger_id, recovery=False).read_last_confirmed()
        assert explicit is None or known >= explicit, f"ledger {ledger_id}: explicit LAC {explicit} is {known} now"
        assert known <= end, f"ledger {ledger_id} ends at {end}, and its LAC is {known}"
    return last


@lru_cache(4096)
def _parsed(data: bytes, ledger_id: int) -> Any:
    """States have most of their metadata in common."""
    return metadata_format.parse(data, ledger_id)


def _stored(store: Any, ledger_id: int) -> tuple[int, int]:
    """The last entry before a gap, and the last one; each has to hold its own bytes. verify() sees to the rest."""
    state = store.storage.state(ledger_id)
    if state is None:
        return -1, -1
    last = end = -1
    for first, entries in store.storage.runs(ledger_id, state.last_entry):
        for entry_id, stored in enumerate(entries, first):
            assert stored.endswith(payload(ledger_id, entry_id)), f"wrong bytes in entry {ledger_id}:{entry_id}"
        end = first + len(entries) - 1
        if first == last + 1:
            last = end
    return last, end


def _recover_one(store: Any, last_entries: dict[int, int]) -> None:
    """What a program does after a crash: open a ledger with recovery, which closes it at its end, and read it."""
    if last_entries:
        ledger_id, last = max(last_entries.items())
        reader = store.open_ledger(ledger_id)
        entries = list(reader)
        assert reader.is_closed()
        assert reader.last_add_confirmed == len(entries) - 1
        assert all(entry.data == payload(ledger_id, entry.entry_id) for entry in entries)
        assert len(entries) - 1 <= last


def _entries(reader: Any, last: int) -> list[Any]:
    """From 0 on as far as there are any, one beyond the last that may be there."""
    entries: list[Any] = []
    while len(entries) <= last + 1:
        try:
            entries += reader.batch_read_unconfirmed(len(entries), last + 2 - len(entries), 0)
        except (errors.NoSuchEntryError, errors.NoSuchLedgerOnBookieError):
            break
    assert [entry.entry_id for entry in entries] == list(range(len(entries)))
    return entries


def _check_nodes(store: Any, promises: Promises) -> None:
    for path, values in promises.nodes.items():
        try:
            found = store.nodes.get(path)[0].decode()
        except errors.NoSuchNodeError:
            found = None
        assert found in values, f"node {path} is {found!r:.50}, not one of {values!r:.100}"


def _check_transactions(store: Any, promises: Promises, last_entries: dict[int, int]) -> None:
    try:
        number = int(store.nodes.get(JOINED)[0])
    except errors.NoSuchNodeError:
        number = 0
    assert number >= promises.joined, f"transaction {promises.joined} was confirmed, and {number} is the last one"
    assert number in {0, *promises.joining}, f"nobody began transaction {number}"
    for one, members in promises.joining.items():
        there = [last_entries[ledger_id] >= entry_id for ledger_id, entry_id in members if ledger_id in last_entries]
        # What comes behind a transaction in a ledger is there only if the transaction is.
        assert all(found == (one <= number) for found in there), (
            f"transaction {one} is there in part: {there}, {number}"
        )


def _check_backup(path: str, ledgers: dict[str, int]) -> None:
    assert os.path.isdir(path), f"the backup {path} is gone"
    with bookstand.open(path, create=False) as copy:
        assert copy.verify().ok, "the backup is damaged"
        for name, last in ledgers.items():
            entries = _entries(copy.open_ledger(int(name), recovery=False), last)
            assert len(entries) > last, f"ledger {name} of the backup ends at {len(entries) - 1}, not at {last}"
            assert all(entry.data == payload(int(name), entry.entry_id) for entry in entries)
