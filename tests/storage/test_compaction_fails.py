"""A compaction that fails at its last steps: nothing confirmed afterwards is lost, and rollbacks are still noticed."""

from __future__ import annotations

import errno
import os

import pytest

import bookstand
from bookstand import errors
from bookstand.storage.process import data_files, process_markers
from bookstand.storage.process.witness import Witness


def failing(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_the_folder_cannot_be_synced(store_path, monkeypatch):
    """The new file has its name already: whoever goes on with the old one writes to a file that is no more."""
    store = bookstand.open(store_path)
    writer = store.create_ledger()
    writer.append(b"0")
    with monkeypatch.context() as patch:
        patch.setattr(process_markers, "sync_folder", failing)
        with pytest.raises(errors.BookstandError):
            store.compact()
    assert writer.append(b"1") == 1
    created = store.create_ledger()
    store.close()
    with bookstand.open(store_path) as store:
        assert list(store.list_ledgers()) == [writer.id, created.id]
        assert [entry.data for entry in store.open_ledger(writer.id)] == [b"0", b"1"]
        assert store.verify().ok


@pytest.mark.parametrize("in_use", [True, False])
def test_the_witness_outlives_a_failed_compaction(store_path, monkeypatch, in_use):
    with bookstand.open(store_path, witness=True) as store:
        store.create_ledger().append(b"0")
        witnessed = store.storage.last_commit
    with bookstand.open(store_path, witness=in_use) as store:
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(data_files, "sync_file", failing)
            with pytest.raises(errors.BookstandError):
                store.compact()
        assert len(os.listdir("/proc/self/fd")) == before
    witness = Witness(str(store_path))
    try:
        with pytest.raises(errors.StoreRolledBackError):
            witness.check(lambda: witnessed - 1)
    finally:
        witness.close()
    with bookstand.open(store_path, witness=True) as store:
        assert store.verify().ok
