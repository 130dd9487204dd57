"""A commit that fails in the device is recognized by its own mark, whatever other processes have committed since."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import lmdb
import pytest

import bookstand
from bookstand import errors
from bookstand.storage.commit.commit_marks import WRITERS_LISTED
from tests.kit import PATIENCE, eventually, raw

OTHER = """
import sys
import bookstand
for _ in range(int(sys.argv[2])):
    with bookstand.open(sys.argv[1]) as store:
        writer = store.create_ledger(custom_metadata={"owner": b"other"})
        for number in range(5):
            writer.append(b"of the other, %d" % number)
        print(writer.id, flush=True)
"""


def others_commit(path, processes=1):
    """Let another process, opening the store so many times, create a ledger each time; return their ids."""
    done = subprocess.run(
        [sys.executable, "-c", OTHER, path, str(processes)], check=True, capture_output=True, text=True
    )
    return [int(line) for line in done.stdout.split()]


@pytest.fixture
def failing(store, store_path, monkeypatch):
    """Fail the next commit, after or without its effect, and let other processes commit before it is settled."""
    environment = store.storage._environment
    created = []

    def arm(takes_effect, processes=1):
        class Failing:
            def __init__(self, transaction):
                self._transaction = transaction

            def __getattr__(self, name):
                return getattr(self._transaction, name)

            def commit(self):
                if takes_effect:
                    self._transaction.commit()
                else:
                    self._transaction.abort()
                error = lmdb.Error("the device failed")
                error.code = errno.EIO
                raise error

        commit = environment.commit

        def commit_failing(transaction, number):
            environment.commit = commit
            Failing(transaction).commit()

        def settle_late():
            environment.resolve_outcome = settle
            created.extend(others_commit(store_path, processes) if processes else [])
            return settle()

        settle = environment.resolve_outcome
        monkeypatch.setattr(environment, "commit", commit_failing)
        monkeypatch.setattr(environment, "resolve_outcome", settle_late)
        return created

    return arm


def test_the_ledger_of_another_process_is_not_taken_for_ones_own(store, failing):
    store.create_ledger()
    created = failing(takes_effect=False)
    with pytest.raises(errors.BookstandError) as refused:
        store.create_ledger(custom_metadata={"owner": b"mine"})
    assert not isinstance(refused.value, errors.OutcomeUnknownError)
    assert [dict(store.ledger_metadata(one).custom_metadata) for one in created] == [{"owner": b"other"}]
    assert len(list(store.open_ledger(created[0]))) == 5
    # The store goes on.
    assert store.create_ledger().append(b"next") == 0


@pytest.mark.parametrize("processes", [0, 1, 3])
def test_a_commit_that_took_effect_is_confirmed(store, failing, processes):
    writer = store.create_ledger()
    writer.append(b"0")
    failing(takes_effect=True, processes=processes)
    assert writer.append(b"1") == 1
    assert [entry.data for entry in writer.read_unconfirmed(0, 1)] == [b"0", b"1"]


@pytest.mark.parametrize("processes", [0, 1, 3])
def test_a_commit_that_took_no_effect_is_refused(store, failing, processes):
    writer = store.create_ledger()
    writer.append(b"0")
    failing(takes_effect=False, processes=processes)
    with pytest.raises(errors.WriteError):
        writer.append(b"1")
    assert store.open_ledger(writer.id).last_add_confirmed == 0


@pytest.mark.parametrize("takes_effect", [True, False])
def test_the_outcome_is_unknown_after_more_writers_than_are_listed(store, failing, takes_effect):
    store.nodes.put("/a", b"0")
    failing(takes_effect, processes=WRITERS_LISTED)
    with pytest.raises(errors.OutcomeUnknownError, match="have committed before its outcome could be read"):
        store.nodes.put("/a", b"1")
    # Only that commit's outcome is unknown: it can be read, and the store goes on.
    value, version = store.nodes.get("/a")
    assert value == (b"1" if takes_effect else b"0")
    store.nodes.put("/a", b"2", version)
    assert store.verify().ok


@pytest.mark.parametrize(("processes", "takes_effect"), [(0, False), (0, True), (WRITERS_LISTED - 1, True), (5, False)])
def test_the_first_commit_of_a_writer_of_a_store_with_many_writers(store, store_path, failing, processes, takes_effect):
    """A list that was full before does not prove that other writers have committed since."""
    others_commit(store_path, WRITERS_LISTED + 1)
    failing(takes_effect, processes)
    if takes_effect:
        store.nodes.put("/a", b"1")
        assert store.nodes.get("/a")[0] == b"1"
    else:
        with pytest.raises(errors.WriteError):
            store.nodes.put("/a", b"1")
        with pytest.raises(errors.NoSuchNodeError):
            store.nodes.get("/a")


@pytest.mark.parametrize("change", ["append", "node"])
def test_a_mark_that_cannot_be_written_fails_its_commit_alone(store, monkeypatch, change):
    """Nothing was committed: there is no outcome to look for, and the store goes on."""
    writer = store.create_ledger()
    writer.append(b"0")
    environment = store.storage._environment

    def fail(*_):
        raise lmdb.CorruptedError("as LMDB finds it on a damaged page")

    with monkeypatch.context() as patch:
        patch.setattr(environment, "reopen", lambda: pytest.fail("reopened with a transaction open"))
        patch.setattr(type(environment._marks), "write", fail)
        with pytest.raises(errors.StoreDamagedError):
            writer.append(b"1") if change == "append" else store.nodes.put("/a", b"1")
    store.nodes.put("/a", b"2")
    assert store.create_ledger().append(b"next") == 0
    assert store.open_ledger(writer.id).last_add_confirmed == 0


def test_a_map_that_is_full_for_the_mark_grows(store, monkeypatch):
    writer = store.create_ledger()
    writer.append(b"0")
    environment = store.storage._environment
    write, before = type(environment._marks).write, environment._env.info()["map_size"]
    full = [lmdb.MapFullError("the map is full")] * 2

    def fail(*arguments):
        if full:
            raise full.pop()
        write(*arguments)

    monkeypatch.setattr(type(environment._marks), "write", fail)
    assert writer.append(b"1") == 1
    assert not full
    assert environment._env.info()["map_size"] > before
    assert len(writer.read(0, 1)) == 2


def test_only_the_last_writers_are_listed(store_path):
    for number in range(WRITERS_LISTED + 3):
        with bookstand.open(store_path) as store:
            store.nodes.put("/a", b"%d" % number)
            assert store.verify().ok
    with raw(store_path) as database:
        assert len(database(b"meta")[b"writers"]) == 4 + 4 + WRITERS_LISTED * 24


@pytest.mark.damaged
def test_a_damaged_list_of_writers_is_reported(store_path):
    with bookstand.open(store_path) as store:
        store.nodes.put("/a", b"0")
    with raw(store_path, write=True) as database:
        meta = database(b"meta")
        value = bytearray(meta[b"writers"])
        value[7] ^= 1
        meta[b"writers"] = bytes(value)
    with bookstand.open(store_path) as store:
        assert [problem.message for problem in store.verify().problems] == [
            "record 'writers' of meta is damaged: its checksum does not match"
        ]
        with pytest.raises(errors.StoreDamagedError, match="record 'writers' of meta is damaged"):
            store.nodes.put("/b", b"0")
        assert store.nodes.get("/a")[0] == b"0"


def test_the_store_is_reopened_under_the_lock_of_its_folder(store, store_path):
    """LMDB initializes its lock file while it opens: no other process may open the store meanwhile."""
    from bookstand.storage.lmdb import environment

    held = []
    real = environment.lmdb.open

    def look(*arguments, **options):
        with pytest.raises(BlockingIOError):
            probe(store_path)
        held.append(True)
        return real(*arguments, **options)

    def probe(path):
        import fcntl

        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)

    writer = store.create_ledger()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment.lmdb, "open", look)
        storage = store.storage
        storage._environment.reopen()
        # A failed attempt leaves it closed; the next use opens it.
        storage._environment._release()
        assert writer.append(b"0") == 0
        # A map that cannot be had is given back, and the file opened anew.
        with pytest.raises(errors.NotEnoughBookiesError):
            storage._environment.grow(1 << 62)
        store.compact()
    assert len(held) == 4
    probe(store_path)


@pytest.mark.parametrize("how", ["grow", "reopen"])
def test_a_commit_waits_for_the_folder_outside_the_gate(store, store_path, monkeypatch, how):
    """A reader that holds the folder's lock to open the environment waits until all have left the gate."""
    import fcntl
    import threading

    environment = store.storage._environment
    real, commit = getattr(environment, how), environment.commit
    readers = []

    def is_locked():
        descriptor = os.open(store_path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def late(*arguments):
        # As one that found the environment closed, and gets the lock only now.
        readers.append(threading.Thread(target=environment._open_again, daemon=True))
        readers[0].start()
        eventually(is_locked)
        real(*arguments)

    def fail(transaction, number):
        environment.commit = commit
        transaction.abort()
        if how == "grow":
            raise lmdb.MapFullError("the map is full")
        error = lmdb.Error("the device failed")
        error.code = errno.EIO
        raise error

    monkeypatch.setattr(environment, how, late)
    monkeypatch.setattr(environment, "commit", fail)
    answers = []

    def put():
        try:
            answers.append(store.nodes.put("/a", b"0"))
        except errors.WriteError as refused:
            answers.append(refused.code)

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert answers == [0 if how == "grow" else errors.WriteError.code]
    readers[0].join(PATIENCE)
    assert not readers[0].is_alive()
    assert store.create_ledger().append(b"next") == 0
