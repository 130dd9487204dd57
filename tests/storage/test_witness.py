"""The small file beside the store that remembers the newest commit."""

from __future__ import annotations

import os
import shutil
import struct

import pytest

import bookstand
from bookstand import errors
from bookstand.storage.process.witness import Witness
from tests.kit import data_file


def fill(store, count):
    writer = store.create_ledger()
    for number in range(count):
        writer.append(b"%d" % number)
    return writer.id


@pytest.fixture
def rolled_back(store_path, tmp_path):
    """A store whose data file was put back to an earlier state."""
    with bookstand.open(store_path, witness=True) as store:
        fill(store, 3)
    shutil.copy(data_file(store_path), tmp_path / "earlier")
    with bookstand.open(store_path, witness=True) as store:
        fill(store, 1)
    os.unlink(store_path / "lock.mdb")
    shutil.copy(tmp_path / "earlier", data_file(store_path))
    return store_path


@pytest.mark.damaged
def test_a_rollback_is_noticed(rolled_back, open_store):
    for options in ({}, {"check": "full"}, {"read_only": True}):
        with pytest.raises(errors.StoreRolledBackError, match="witness"):
            bookstand.open(rolled_back, witness=True, **options)
    assert issubclass(errors.StoreRolledBackError, errors.StoreDamagedError)


def test_without_the_witness_it_is_not(rolled_back):
    """Which the documentation says: the file is a perfect store."""
    with bookstand.open(rolled_back, check="full") as store:
        assert list(store.list_ledgers()) == [0]
        assert store.verify().ok


def test_a_rollback_by_a_single_commit(store_path, tmp_path):
    store = bookstand.open(store_path, witness=True)
    writer = store.create_ledger()
    writer.append(b"a")
    shutil.copy(data_file(store_path), tmp_path / "earlier")
    writer.append(b"b")
    store.close()
    os.unlink(store_path / "lock.mdb")
    shutil.copy(tmp_path / "earlier", data_file(store_path))
    with pytest.raises(errors.StoreRolledBackError):
        bookstand.open(store_path, witness=True)


def test_both_files_rolled_back_are_a_restored_backup(store_path, tmp_path):
    with bookstand.open(store_path, witness=True) as store:
        fill(store, 3)
    shutil.copytree(store_path, tmp_path / "earlier")
    with bookstand.open(store_path, witness=True) as store:
        fill(store, 1)
    shutil.rmtree(store_path)
    shutil.copytree(tmp_path / "earlier", store_path)
    with bookstand.open(store_path, witness=True) as store:
        assert store.verify().ok


def test_compaction_is_no_rollback(store_path):
    """The new file counts its commits from the beginning."""
    with bookstand.open(store_path, witness=True) as store:
        for _ in range(5):
            store.delete_ledger(fill(store, 20))
        kept = fill(store, 5)
        before = store.storage.last_commit
        store.compact()
        assert store.storage.last_commit < before
    for _ in range(2):
        with bookstand.open(store_path, witness=True) as store:
            assert store.open_ledger(kept).last_add_confirmed == 4
            fill(store, 1)


def test_a_rollback_after_a_compaction(store_path, tmp_path):
    with bookstand.open(store_path, witness=True) as store:
        fill(store, 5)
        store.compact()
        fill(store, 1)
    shutil.copy(data_file(store_path), tmp_path / "earlier")
    with bookstand.open(store_path, witness=True) as store:
        fill(store, 1)
    os.unlink(store_path / "lock.mdb")
    shutil.copy(tmp_path / "earlier", data_file(store_path))
    with pytest.raises(errors.StoreRolledBackError):
        bookstand.open(store_path, witness=True)


def test_the_witness_may_come_later_and_rest(store_path):
    with bookstand.open(store_path) as store:
        fill(store, 3)
    assert not (store_path / "witness").exists()
    with bookstand.open(store_path, witness=True) as store:
        fill(store, 1)
    with bookstand.open(store_path) as store:
        fill(store, 5)
    with bookstand.open(store_path, witness=True) as store:
        fill(store, 1)
        assert store.verify().ok


def test_commits_of_other_processes(store_path, child, tmp_path):
    one, two = child("witness=True"), child("witness=True")
    for number in range(10):
        for process in (one, two):
            process.run(f"store.nodes.put('/a', b'{number}')")
    one.kill()
    two.close()
    shutil.copy(data_file(store_path), tmp_path / "earlier")
    with bookstand.open(store_path, witness=True) as store:
        fill(store, 1)
    shutil.copy(tmp_path / "earlier", data_file(store_path))
    (store_path / "lock.mdb").unlink()
    with pytest.raises(errors.StoreRolledBackError):
        bookstand.open(store_path, witness=True)


def test_a_second_client_must_not_ask_for_what_the_first_did_not(open_store):
    store = open_store()
    with pytest.raises(errors.StoreInUseError):
        open_store(witness=True)
    store.create_ledger()


# -- the file --------------------------------------------------------------------------------------------------------


def test_the_number_never_goes_back(tmp_path):
    witness = Witness(str(tmp_path))
    for number in (1, 2, 3, 10, 9, 4, 11, 11):
        witness.record_commit(number)
    witness.check(lambda: 11)
    witness.check(lambda: 12)
    with pytest.raises(errors.StoreRolledBackError):
        witness.check(lambda: 10)
    witness.close()
    again = Witness(str(tmp_path))
    with pytest.raises(errors.StoreRolledBackError):
        again.check(lambda: 10)
    again.restart()
    again.check(lambda: 0)
    again.close()


def test_a_torn_write_loses_one_slot(tmp_path):
    """The slot of the newest commit torn: the other one still tells of the commit before it."""
    for cut in range(12):
        folder = tmp_path / str(cut)
        folder.mkdir()
        witness = Witness(str(folder))
        for number in range(1, 8):
            witness.record_commit(number)
        slot = 8 + 12 * (7 & 1)
        old = (folder / "witness").read_bytes()
        new = struct.pack(">Q", 9) + os.urandom(4)
        (folder / "witness").write_bytes(old[:slot] + new[:cut] + old[slot + cut :][: 32 - slot - cut])
        witness.check(lambda: 7)
        with pytest.raises(errors.StoreRolledBackError):
            witness.check(lambda: 5)
        witness.close()


@pytest.mark.parametrize("content", [b"x", b"garbage of thirty-two bytes, all.", b"bkstwit1", bytes(32)])
def test_what_is_no_witness(tmp_path, store_path, content):
    with bookstand.open(store_path) as store:
        fill(store, 1)
    (store_path / "witness").write_bytes(content)
    with pytest.raises(errors.StoreDamagedError, match="witness"):
        bookstand.open(store_path, witness=True)
    # Without it the store opens.
    with bookstand.open(store_path) as store:
        assert store.verify().ok


def test_an_empty_witness_is_a_new_one(store_path):
    """A crash may leave it so when it has just been made."""
    with bookstand.open(store_path) as store:
        fill(store, 1)
    (store_path / "witness").touch()
    with bookstand.open(store_path, witness=True) as store:
        fill(store, 1)
    assert (store_path / "witness").stat().st_size == 32


def test_nothing_leaks_where_opening_is_refused(rolled_back):
    def open_files():
        return len(os.listdir("/proc/self/fd"))

    before = open_files()
    for _ in range(5):
        with pytest.raises(errors.StoreRolledBackError):
            bookstand.open(rolled_back, witness=True)
    assert open_files() == before
