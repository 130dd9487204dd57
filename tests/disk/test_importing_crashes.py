"""Imports that are cut off at any moment, and run again: the store is in the end as after a single run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.disk.disks import Disks
from bookstand.disk.importer.run import IMPORT_NODE, ImportReport, import_disks
from bookstand.disk.metadata.dump import MetadataDump
from bookstand.managed_ledger.message.format import encode_message
from bookstand.managed_ledger.records import CursorInfo, encode_cursor_info
from bookstand.managed_ledger.topic_name import cursor_node_of
from bookstand.storage.format.ledger_state import LedgerState
from bookstand.storage.format.position import Position
from bookstand.store import Store
from bookstand.testing import every_crash
from tests.disk.cluster import TOPIC, Cluster

# Less than the larger ledgers have, more than the smaller ones.
COMMIT_BYTES = 600


def messages(count: int) -> list[bytes]:
    return [encode_message(b"message %d" % number, publish_time=1) for number in range(count)]


def cluster(folder: Path) -> Cluster:
    """A closed ledger of several commits, small ones, and an open and a closed one that have lost entries."""
    made = Cluster(folder)
    made.topic({3: messages(20), 4: messages(1), 6: []})
    made.ledger(7, [b"open %d" % number for number in range(15)], closed=False, without=[12])
    made.ledger(9, [b"lost %d" % number for number in range(12)], without=[5, 11])
    info = CursorInfo(-1, Position(3, 4), cursor_properties=(("owner", "me" * 40),))
    made.node(cursor_node_of(TOPIC, "sub"), encode_cursor_info(info, "ZLIB", threshold=10))
    for number in range(12):
        made.node(f"/admin/policies/{number}", b"{}" * 100)
    return made


def contents(store: Store) -> dict[str, Any]:
    """All that an import makes."""
    storage = store.storage
    found: dict[str, Any] = {path: store.nodes.get(path) for path in storage.node_paths("/")}
    for ledger_id in store.list_ledgers():
        state = storage.state(ledger_id)
        numbers = [getattr(state, name) for name in LedgerState.__slots__ if name != "incarnation"]
        found[f"ledger {ledger_id}"] = (storage.metadata(ledger_id), numbers, list(storage.runs(ledger_id, 1 << 40)))
    return found


class Case:
    def __init__(self, folder: Path) -> None:
        made = cluster(folder)
        made.open().close()  # which writes them
        self._folder = folder
        self._dump = MetadataDump(made.nodes, lambda damage: None)
        with bookstand.temporary() as store:
            self.report = self.run(store)
            self.expected = contents(store)
            self.next_ledger = store.create_ledger().id

    def run(self, store: Store, **options: Any) -> ImportReport:
        with Disks.open([self._folder], self._dump) as disks:
            return import_disks(disks, store, commit_bytes=COMMIT_BYTES, **options)

    def workload(self, path: str, acknowledge: Callable[[Any], None]) -> None:
        with bookstand.open(path) as store:
            self.run(store, progress=lambda done, total: acknowledge((done, total)))
            acknowledge("done")

    def check(self, store: Store, acknowledged: list[Any]) -> None:
        before = contents(store)
        unfinished = before.pop(IMPORT_NODE, None)
        # Whatever is there is whole.
        assert before.items() <= self.expected.items()
        if unfinished is None:
            assert before in ({}, self.expected)
            assert before or not list(store.storage.ledgers_with_entries())
        if "done" in acknowledged:
            assert before == self.expected
            assert unfinished is None
        elif acknowledged:
            assert unfinished is not None or before == self.expected
        report = self.run(store)
        assert contents(store) == self.expected
        assert report.resumed == (unfinished is not None)
        assert report.entries + report.entries_there == self.report.entries
        assert report.ledgers + report.ledgers_there == self.report.ledgers
        assert report.nodes + report.nodes_there == self.report.nodes
        assert report.notes == self.report.notes
        commit = store.storage.last_commit
        assert not self.run(store).changed
        assert store.storage.last_commit == commit


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    return Case(tmp_path_factory.mktemp("case"))


def test_a_single_run(case: Case) -> None:
    missing = {ledger_id: list(ranges) for ledger_id, ranges in case.report.missing.items()}
    assert missing == {7: [(12, 12)], 9: [(5, 5), (11, 11)]}
    assert case.next_ledger == 10
    assert len(case.report.rewritten) == 1


def test_power_cuts(case: Case) -> None:
    # There are lost entries, of which a store that verifies itself complains.
    explored = every_crash(case.workload, case.check, limit=60, own_checks=False)
    assert explored.states == 60


def test_the_store_crashes_at_each_commit(case: Case) -> None:
    explored = every_crash(case.workload, case.check, limit=40, mode="simulated", own_checks=False)
    # Three points for each commit, and more than ten commits.
    assert explored.states >= 35


def test_killed_processes(case: Case) -> None:
    assert every_crash(case.workload, case.check, limit=12, mode="kill", own_checks=False).states == 12
