"""Markers of processes that have a store open: who died is known, and who lives is left alone."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress

import pytest

import bookstand
from bookstand import errors
from bookstand.storage.process import process_markers
from tests.kit import PATIENCE, ChildRefusedError, eventually, in_threads
from tests.page_damage import spoil_free_list
from tests.soak.interruption import Interruption


def markers(path, prefix="open-"):
    return sorted(file.name for file in path.iterdir() if file.name.startswith(prefix))


def test_a_marker_comes_and_goes(store_path):
    store = bookstand.open(store_path)
    (mine,) = markers(store_path)
    assert mine.startswith(f"open-{os.getpid()}-")
    second = bookstand.open(store_path)
    assert markers(store_path) == [mine]
    store.close()
    assert markers(store_path) == [mine]
    second.close()
    assert markers(store_path) == []


def test_a_reader_has_a_marker_of_its_own(store_path):
    bookstand.open(store_path).close()
    with bookstand.open(store_path, read_only=True):
        assert markers(store_path) == []
        assert len(markers(store_path, "read-")) == 1
    assert markers(store_path, "read-") == []


@pytest.mark.parametrize("options", ["", "read_only=True"])
def test_a_killed_process_leaves_its_marker_and_the_next_one_clears_it(store, store_path, child, options):
    store.close()
    prefix = "read-" if options else "open-"
    process = child(options)
    (left,) = markers(store_path, prefix)
    assert str(process.pid) in left
    process.kill()
    assert markers(store_path, prefix) == [left]
    with bookstand.open(store_path):
        assert left not in markers(store_path, prefix)
    assert markers(store_path) == markers(store_path, "read-") == []


def test_one_that_exits_without_closing_leaves_its_marker(store_path, child):
    process = child()
    process.run("store.create_ledger().append(b'a')")
    process.send("os._exit(0)")
    eventually(lambda: process._process.poll() is not None)
    assert len(markers(store_path)) == 1
    with bookstand.open(store_path) as store:
        assert store.verify().ok


def test_many_that_died(store_path, child):
    children = [child() for _ in range(4)] + [child("read_only=True") for _ in range(2)]
    for process in children:
        process.kill()
    assert len(markers(store_path)) == 4
    with bookstand.open(store_path):
        assert len(markers(store_path)) == 1
        assert markers(store_path, "read-") == []


def test_a_living_process_is_left_alone(open_store, store_path, child):
    process = child()
    theirs = markers(store_path)
    died = child()
    died.kill()
    store = open_store()
    assert set(theirs) < set(markers(store_path))
    # Its marker says that it lives; that of the dead one stays until somebody opens the store alone, or goes now.
    assert process.run("store.create_ledger().append(b'theirs')") == 0
    assert store.open_ledger(0).read(0, 0)[0].data == b"theirs"
    store.close()
    process.close()
    with bookstand.open(store_path):
        assert len(markers(store_path)) == 1


def test_a_read_only_opener_clears_nothing(store_path, child):
    child().kill()
    before = markers(store_path)
    with bookstand.open(store_path, read_only=True):
        assert markers(store_path) == before


def test_what_died_is_looked_at_by_the_next_even_if_one_is_alive(store_path, child, memory_path):
    """A dead writer's marker must not be forgotten because somebody else had the store open meanwhile."""
    alive = child()
    child().kill()
    second = child()
    second.run("store.close()")
    alive.run("store.close()")
    # Nobody has opened it alone since the kill: the one who does now looks at its structure.
    assert len(markers(store_path)) == 1
    copied = memory_path / "copied"
    shutil.copytree(store_path, copied)
    spoil_free_list(copied)
    with pytest.raises(errors.StoreDamagedError):
        bookstand.open(copied)
    with bookstand.open(store_path) as store:
        assert store.verify().ok
    assert markers(store_path) == []


def test_a_copied_folder(store, store_path, tmp_path):
    """The copy of a store in use has a marker nobody holds: it is looked at, and opens."""
    store.create_ledger().append(b"a")
    copied = tmp_path / "copied"
    shutil.copytree(store_path, copied)
    assert len(markers(copied)) == 1
    with bookstand.open(copied) as other:
        assert other.open_ledger(0).read(0, 0)[0].data == b"a"
        assert other.verify().ok
        assert len(markers(copied)) == 1
    assert len(markers(store_path)) == 1


def test_the_folder_lock_lets_one_in_at_a_time(tmp_path):
    inside = []
    most = []

    def enter(_):
        for _ in range(20):
            with process_markers.FolderLock(str(tmp_path)):
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=enter, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert max(most) == 1
    assert len(most) == 80


def test_a_survey(tmp_path):
    folder = str(tmp_path)
    mine = process_markers.ProcessMarker(folder)
    reading = process_markers.ProcessMarker(folder, read_only=True)
    for owner in (mine, reading):
        owner.enter()
    (tmp_path / "open-1-dead").touch()
    (tmp_path / "read-1-dead").touch()
    (tmp_path / "unrelated").touch()
    survey = process_markers.OpenProcesses(folder)
    assert (survey.writers, survey.readers) == (1, 1)
    assert survey.died_writing == [str(tmp_path / "open-1-dead")]
    assert survey.died_reading == [str(tmp_path / "read-1-dead")]
    survey = process_markers.OpenProcesses(folder, besides=mine)
    assert (survey.writers, survey.readers) == (0, 1)
    reading.remove()
    mine.remove()
    survey = process_markers.OpenProcesses(folder)
    assert (survey.writers, survey.readers) == (0, 0)


def test_sync_folder(tmp_path):
    process_markers.sync_folder(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        process_markers.sync_folder(str(tmp_path / "missing"))


def test_compaction_is_put_off_while_another_process_reads(open_store, child):
    store = open_store()
    doomed = store.create_ledger()
    doomed.append_many([bytes(1000)] * 2000)
    store.delete_ledger(doomed.id)
    reader = child("read_only=True")
    assert store.compact() == 0
    reader.kill()
    assert store.compact() > 1_000_000


def test_a_refused_child_says_why(open_store, child):
    open_store().close()
    process = child("read_only=True")
    with pytest.raises(ChildRefusedError) as caught:
        process.run("store.create_ledger()")
    assert caught.value.name == "WriteOnReadOnlyError"


def test_the_folder_removed_under_an_open_store(store_path):
    """Closing what is gone is no error, and a new store may take its place."""
    store = bookstand.open(store_path)
    store.nodes.put("/n", b"1")
    shutil.rmtree(store_path)
    store.close()
    with bookstand.open(store_path) as store:
        assert store.nodes.put("/n", b"1") == 0


@pytest.mark.parametrize("got", [True, False], ids=["got", "waits"])
def test_an_interruption_does_not_keep_the_lock_of_a_folder(tmp_path, monkeypatch, got):
    """Ctrl-C while the lock is waited for, or right after: nobody would release it."""
    before = len(os.listdir("/proc/self/fd"))
    real = process_markers.fcntl.flock

    def interrupted(file, how):
        if got or how == process_markers.fcntl.LOCK_UN:
            real(file, how)
        if how != process_markers.fcntl.LOCK_UN:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(process_markers.fcntl, "flock", interrupted)
        with pytest.raises(KeyboardInterrupt), process_markers.FolderLock(str(tmp_path)):
            raise AssertionError("interrupted before")
    assert len(os.listdir("/proc/self/fd")) == before
    with process_markers.FolderLock(str(tmp_path)):
        pass


def test_an_interrupted_reopening_keeps_neither_the_folder_nor_the_gate(store_path):
    with bookstand.open(store_path) as store:
        reopen = store.storage._environment.reopen
        with Interruption(0) as counting:
            reopen()
        for number in range(1, counting.instructions, counting.instructions // 60 + 1):
            with suppress(KeyboardInterrupt), Interruption(number):
                reopen()
            in_threads(1, lambda _: reopen())
            with process_markers.FolderLock(str(store_path)):
                pass
        assert store.create_ledger().append(b"a") == 0
