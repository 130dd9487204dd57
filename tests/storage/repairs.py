"""Stores that are damaged and repaired: what has to be in the new one, and in the list of what is lost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb

import bookstand
from bookstand.errors import BookstandError
from bookstand.ledger.handles.handle import EntryLostError
from bookstand.storage.repair.repair import UNFINISHED, RepairReport, repair
from tests.kit import PATIENCE, own_environment
from tests.soak import damaged_files
from tests.storage import trials
from tests.storage.trials import Damage, Shape


class Store:
    """A store, what it was at earlier moments, and copies of it to be damaged."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self.folder = folder
        self.shape = shape
        self.path = folder / "pristine"
        earlier: list[bytes] = []
        self.history = trials.make(self.path, shape, earlier)
        self.image = (self.path / "data.mdb").read_bytes()
        self.target = damaged_files.Target(self.image, earlier)
        self._number = 0

    def copy(self) -> tuple[Path, Path]:
        """And where to repair it to."""
        self._number += 1
        copy = self.folder / f"copy-{self._number}"
        shutil.copytree(self.path, copy)
        return copy, self.folder / f"new-{self._number}"

    def damaged(self, damage: Damage) -> tuple[Path, Path]:
        copy, new = self.copy()
        trials.edit(str(copy / "data.mdb"), damage)
        return copy, new


def repaired(damaged: Path, new: Path) -> RepairReport:
    """It is, and the damaged store is not changed by it."""
    before = {path.name: path.read_bytes() for path in damaged.iterdir()}
    report = repair(damaged, new)
    assert {path.name: path.read_bytes() for path in damaged.iterdir()} == before
    assert not (new / UNFINISHED).exists()
    return report


LOST, ABSENT = object(), object()


def entry_of(reader: Any, entry_id: int) -> object:
    """Its payload; or whether it is told to be lost, or never to have been written."""
    try:
        (entry,) = reader.read_unconfirmed(entry_id, entry_id)
    except EntryLostError:
        return LOST
    except BookstandError:
        return ABSENT
    return bytes(entry.data)


def check(store: Store, report: RepairReport, new: Path) -> int:
    """Everything is as it was, or it is in the list; returns how many entries and nodes are there."""
    shape = store.shape
    is_lost = report.entry_is_lost()
    general = [loss for loss in report.losses if loss.what == "store"]
    there = 0
    with bookstand.open(new, create=False) as found:
        if report.whole:
            # A rollback of all that had changed, which nothing in the file can show.
            told = trials.read(found, shape)
            assert told["whole"] or trials.rolled_back(told, shape, store.history)
            return shape.entries + shape.nodes if told["whole"] else 0
        listed = set(found.list_ledgers())
        for ledger_id, count in enumerate(shape.ledgers):
            of_it = [loss for loss in report.losses if loss.ledger_id == ledger_id]
            if ledger_id not in listed:
                assert general or of_it, f"ledger {ledger_id} is gone"
                continue
            reader = found.open_ledger(ledger_id, recovery=False)
            for entry_id in range(count):
                named = is_lost(ledger_id, entry_id)
                found_there = entry_of(reader, entry_id)
                if found_there is ABSENT:
                    assert general or of_it, f"{ledger_id}:{entry_id} reads as never written"
                else:
                    assert found_there in (LOST, shape.payload(ledger_id, entry_id))
                    there += found_there is not LOST
                assert named == (found_there is LOST), f"{ledger_id}:{entry_id}"
        unsure = [loss for loss in report.losses if loss.node is not None]
        for number in range(shape.nodes):
            path, value = shape.node(number)
            if found.nodes._storage.node(path) is None:
                assert general or unsure, f"node {path} is gone"
            else:
                assert found.nodes.get(path) == (value, 0)
                there += 1
        for problem in found.verify().problems:
            assert is_lost(problem.ledger_id, problem.entry_id), problem
        # It can be written to.
        with found.create_ledger() as writer:
            assert writer.id not in listed
            writer.append(b"new")
    return there


READ = """
import json, sys
import lmdb
environment = lmdb.open(sys.argv[1], max_dbs=5, readonly=True, lock=False, lib_version=0)
for name in ("entries", "nodes", "ledgers"):
    try:
        database = environment.open_db(name.encode(), create=False)
    except lmdb.Error:
        continue
    for key in json.loads(sys.argv[2])[name]:
        # Told before it is read: what is not answered has ended the process.
        print("?", name, key, flush=True)
        try:
            with environment.begin(db=database) as transaction:
                found = transaction.get(bytes.fromhex(key))
        except lmdb.Error:
            found = None
        print("=", name, key, "" if found is None else bytes(found).hex(), flush=True)
"""


def readable_by_lmdb(damaged: Path, pristine: dict[str, dict[str, str]]) -> Iterator[tuple[str, str]]:
    """Keys under which LMDB still finds what was there; what ends it is left out, and the rest read by another."""
    waiting = {name: list(records) for name, records in pristine.items()}
    while any(waiting.values()):
        done = subprocess.run(
            [sys.executable, "-c", READ, str(damaged), json.dumps(waiting)],
            capture_output=True,
            text=True,
            env=own_environment(PYTHONFAULTHANDLER=""),
            timeout=PATIENCE,
        )
        asked = None
        for line in done.stdout.splitlines():
            kind, name, key, *value = line.split(" ")
            asked = (name, key) if kind == "?" else None
            if kind == "?":
                waiting[name].remove(key)
            elif value and value[0] == pristine[name][key]:
                yield name, key
        if asked is None:
            return


def contents(path: Path) -> dict[str, dict[str, str]]:
    environment = lmdb.open(str(path), max_dbs=5, readonly=True, lock=False, lib_version=0)
    found = {}
    for name in ("entries", "nodes", "ledgers"):
        with environment.begin(db=environment.open_db(name.encode(), create=False)) as transaction:
            found[name] = {bytes(key).hex(): bytes(value).hex() for key, value in transaction.cursor()}
    environment.close()
    return found
