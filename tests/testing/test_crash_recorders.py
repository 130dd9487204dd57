"""Both recorders: what they write down, replayed, gives the files; and they agree on the order of a commit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import bookstand
from bookstand.errors import IllegalOperationError, IncorrectParameterError, StoreError
from bookstand.storage.hooks import Hooks
from bookstand.testing.crash import recording as kinds
from bookstand.testing.crash import syscall_recorder
from bookstand.testing.crash.lab import CrashLab
from bookstand.testing.crash.python_recorder import PageRecorder
from tests.soak.crash_work import STEPS, Mixture

STORE = "store"


@pytest.fixture
def observing():
    reason = syscall_recorder.missing()
    if reason is not None:
        pytest.skip(reason)


def files_below(folder):
    """What is there, without ``lock.mdb``, which LMDB writes through a memory map."""
    found = {}
    for path in sorted(Path(folder).rglob("*")):
        if path.name != "lock.mdb":
            found[str(path.relative_to(folder))] = None if path.is_dir() else path.read_bytes()
    return found


def replayed(recording):
    return {path: content for path, content in recording.files().items() if not path.endswith("lock.mdb")}


def record_pages(workload, folder):
    with PageRecorder(str(folder), STORE) as recorder:
        workload(os.path.join(folder, STORE), recorder.acknowledge)
    return recorder.recording


@pytest.mark.parametrize("step", sorted(STEPS))
def test_replaying_recorded_pages_gives_the_files(tmp_path, step):
    recording = record_pages(Mixture(5, steps=3, only=step, witness=True), tmp_path)
    assert replayed(recording) == files_below(tmp_path)


@pytest.mark.parametrize("seed", range(100, 103))
def test_replaying_mixtures_gives_the_files(tmp_path, seed):
    recording = record_pages(Mixture(seed), tmp_path)
    assert replayed(recording) == files_below(tmp_path)


def own_files(path, acknowledge):
    os.mkdir(path)
    name = os.path.join(path, "own")
    with open(name, "wb") as file:
        file.write(b"a" * 9000)
    with open(name, "ab") as file:
        file.write(b"appended")
    descriptor = os.open(name, os.O_RDWR | os.O_DSYNC)
    os.pwrite(descriptor, b"synchronous", 4090)
    os.writev(descriptor, [b"one", b"two"])
    os.ftruncate(descriptor, 8000)
    os.fdatasync(descriptor)
    os.close(descriptor)
    os.truncate(name, 7000)
    os.posix_fallocate(other := os.open(os.path.join(path, "other"), os.O_RDWR | os.O_CREAT), 0, 5000)
    os.sendfile(other, source := os.open(name, os.O_RDONLY), 0, 3000)
    os.close(source)
    os.close(other)
    os.rename(os.path.join(path, "other"), os.path.join(path, "renamed"))
    os.mkdir(os.path.join(path, "folder"))
    os.rmdir(os.path.join(path, "folder"))
    with open(os.path.join(path, "gone"), "wb"):
        pass
    os.remove(os.path.join(path, "gone"))
    acknowledge("done")


def test_replaying_what_was_observed_gives_the_files(tmp_path, observing):
    recording = syscall_recorder.record(everything_below, str(tmp_path), STORE)
    assert recording.recorder == "observed"
    assert recording.acknowledged[-1] == "done"
    assert replayed(recording) == files_below(tmp_path)


def everything_below(path, acknowledge):
    for number, step in enumerate(sorted(STEPS)):
        folder = f"{path}-{step}"
        os.mkdir(folder)
        Mixture(number, steps=2, only=step, witness=True)(os.path.join(folder, STORE), acknowledge)
    own_files(path, acknowledge)


def test_replaying_own_files_seen_from_within(tmp_path):
    assert replayed(record_pages(own_files, tmp_path)) == files_below(tmp_path)


def lone_appends(path, acknowledge):
    with bookstand.open(path, witness=True) as store:
        writer = store.create_ledger()
        for _ in range(8):
            acknowledge(writer.append(b"entry" * 100))
        store.nodes.put("/path", b"value")
        acknowledge("node")


def commits(recording):
    """What happened to the data file and the witness, once the store was open."""
    told = [
        (one.kind, one.path, one.offset, len(one.data), one.synchronous)
        for one in recording.operations
        if one.kind == kinds.ACKNOWLEDGE or one.path.endswith(("data.mdb", "witness"))
    ]
    first = next(index for index, one in enumerate(told) if one[4])
    # The pages of the first commit are before its header.
    return told[first:]


def test_the_order_that_is_assumed_is_the_order_that_is_observed(tmp_path, observing):
    """LMDB's pages, fdatasync, header; then the witness; then the acknowledgment."""
    assumed = commits(record_pages(lone_appends, tmp_path))
    with CrashLab() as lab:
        observed = commits(lab.record(lone_appends, "observed"))
    assert assumed == observed
    header = [one for one in assumed if one[4]]
    assert len(header) == 10
    assert {one[3] for one in header} == {120}
    assert {one[2] for one in header} == {32, 4096 + 32}


def test_the_workloads_own_hooks_stay(tmp_path):
    class Own(Hooks):
        def __init__(self):
            self.points = []

        def point(self, name):
            self.points.append(name)

    hooks = Own()

    def workload(path, acknowledge):
        with bookstand.open(path, hooks=hooks) as store:
            acknowledge(store.create_ledger().append(b"x"))

    recording = record_pages(workload, tmp_path)
    assert hooks.points.count("commit.after_sync") == 2
    assert replayed(recording) == files_below(tmp_path)
    before = len(recording.operations)
    with bookstand.open(tmp_path / STORE, hooks=hooks) as store:
        store.nodes.put("/a", b"after the recording")
    assert len(recording.operations) == before
    assert hooks.points.count("commit.after_sync") == 3


def test_a_store_without_durability_is_recorded_without_syncs(tmp_path):
    def workload(path, acknowledge):
        with bookstand.open(path, durability="none") as store:
            writer = store.create_ledger()
            for n in range(3):
                acknowledge(writer.append(b"%d" % n))

    recording = record_pages(workload, tmp_path)
    assert kinds.SYNC not in {one.kind for one in recording.operations}
    assert not any(one.synchronous for one in recording.operations)


def test_files_elsewhere_are_no_concern(tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()

    def workload(path, acknowledge):
        with bookstand.open(outside) as store:
            acknowledge(store.create_ledger().append(b"x"))

    recording = record_pages(workload, inside)
    assert [one.kind for one in recording.operations] == [kinds.ACKNOWLEDGE]


def test_everything_is_as_before_after_a_recording(tmp_path):
    functions = {name: getattr(os, name) for name in dir(os)}

    def failing(path, acknowledge):
        bookstand.open(path).close()
        raise ValueError("the workload's own")

    with pytest.raises(ValueError, match="own"):
        record_pages(failing, tmp_path)
    assert {name: getattr(os, name) for name in dir(os)} == functions


def test_one_recording_at_a_time(tmp_path):
    with PageRecorder(str(tmp_path), STORE), pytest.raises(IllegalOperationError):
        PageRecorder(str(tmp_path), STORE).__enter__()


def broken(path, acknowledge):
    raise ValueError("the workload's own")


def test_a_workload_that_fails_while_observed(observing):
    with CrashLab() as lab, pytest.raises(StoreError, match="the workload's own"):
        lab.record(broken, "observed")


def test_a_workload_that_no_other_process_can_import(observing):
    with CrashLab() as lab, pytest.raises(IncorrectParameterError, match="function of a module"):
        lab.record(lambda path, acknowledge: None, "observed")


def test_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    if sys.platform.startswith("linux"):
        assert "compiler" in syscall_recorder.missing()
    with CrashLab() as lab, pytest.raises(IncorrectParameterError):
        lab.record(lone_appends, "observed")
    with CrashLab() as lab:
        assert lab.record(lone_appends).recorder == "pages"
