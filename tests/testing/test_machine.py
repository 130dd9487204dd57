"""The rule-based machine on other ways to open a store, and on stores that are broken on purpose."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import bookstand
from bookstand.testing import Faults, LedgerMachine, VirtualClock

FEW = settings(
    max_examples=8,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
UNTIL_FOUND = settings(FEW, max_examples=400, phases=[Phase.generate], report_multiple_bugs=False)


class InMemory(LedgerMachine):
    """On a file system that need not wait for a disk, where there is one."""

    def make_folder(self) -> Path:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        return Path(tempfile.mkdtemp(prefix="bookstand-machine-", dir=memory))


class WithOptions(InMemory):
    """Another protocol and other limits change no answer."""

    def open_store(self, path: Path) -> bookstand.Store:
        return bookstand.open(path, witness=True, explicit_lac_interval=0.001, max_entry_bytes=5100)


class WithFaults(InMemory):
    """Delays change no answer."""

    def open_store(self, path: Path) -> bookstand.Store:
        if not hasattr(self, "faults"):
            self.faults = Faults(seed=7, clock=VirtualClock(auto=True))
            for operation in ("append", "commit", "read"):
                self.faults.delay(operation, (0.001, 1), probability=0.3)
        return bookstand.open(path, hooks=self.faults, clock=self.faults.clock)


TestWithOptions = WithOptions.TestCase
TestWithOptions.settings = FEW
TestWithFaults = WithFaults.TestCase
TestWithFaults.settings = FEW


# -- planted bugs ----------------------------------------------------------------------------------------------------


class DeletesNothing(InMemory):
    def open_store(self, path: Path) -> Any:
        store = bookstand.open(path)
        store.delete_ledger = lambda ledger_id, missing_ok=False: None
        return store


class ForgetsTheLastOfMany(InMemory):
    """The ids are right, and one of the entries has not been sent."""

    def open_store(self, path: Path) -> Any:
        store = bookstand.open(path)
        create = store.create_ledger

        def create_ledger(**options: Any) -> Any:
            writer = create(**options)
            append_many = writer.append_many

            def forgetful(payloads: list[bytes]) -> range:
                sent = append_many(payloads[:2])
                return range(sent.start, sent.start + len(payloads))

            writer.append_many = forgetful
            return writer

        store.create_ledger = create_ledger
        return store


class RecoversOneTooFew(InMemory):
    """A recovery that takes the last-add-confirmed for the end of the ledger."""

    def open_store(self, path: Path) -> Any:
        store = bookstand.open(path)
        open_ledger = store.open_ledger

        def close_early(ledger_id: int, recovery: bool = True, **options: Any) -> Any:
            metadata = store.ledger_metadata(ledger_id)
            reader = open_ledger(ledger_id, recovery=False, **options)
            if recovery and metadata.state == "OPEN" and reader.last_add_confirmed >= 0:
                store.write_ledger_metadata(
                    metadata.replace(state="CLOSED", last_entry_id=reader.last_add_confirmed, length=reader.length)
                )
            return open_ledger(ledger_id, recovery=recovery, **options)

        store.open_ledger = close_early
        return store


class ForgetsInACrash(InMemory):
    """A disk that has kept nothing since the store was opened."""

    def open_store(self, path: Path) -> Any:
        store = bookstand.open(path)
        if not (path / "old").exists():
            shutil.copy(path / "data.mdb", path / "old")
        return store

    def crash_store(self) -> None:
        super().crash_store()
        shutil.copy(self.path / "old", self.path / "data.mdb")


@pytest.mark.parametrize("broken", [DeletesNothing, ForgetsTheLastOfMany, RecoversOneTooFew, ForgetsInACrash])
def test_a_planted_bug_is_found(broken: type[LedgerMachine]) -> None:
    with pytest.raises((AssertionError, bookstand.BookstandError)):
        run_state_machine_as_test(broken, settings=UNTIL_FOUND)


def test_a_run_leaves_nothing_behind(tmp_path: Path) -> None:
    class InMyFolder(LedgerMachine):
        def make_folder(self) -> Path:
            folder = tmp_path / "run"
            folder.mkdir()
            return folder

    run_state_machine_as_test(InMyFolder, settings=settings(FEW, max_examples=2))
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_opened_is_what_is_told() -> None:
    class Refuses(InMemory):
        def open_store(self, path: Path) -> Any:
            raise OSError("no such disk")

    with pytest.raises(OSError, match="no such disk"):
        run_state_machine_as_test(Refuses, settings=UNTIL_FOUND)
