"""A name is durable once the folder that has it is synced: of new folders, data files, backups, exports and reports."""

from __future__ import annotations

import errno
import os

import pytest

import bookstand
from bookstand import errors
from bookstand.disk.exporter.run import export_topics
from bookstand.disk.metadata.dump_file import DumpNode, write_dump
from bookstand.storage import backup
from bookstand.storage.process import process_markers
from bookstand.tools.report import output
from bookstand.tools.report.page import BEGINNING


@pytest.fixture
def steps(monkeypatch):
    """Syncs and renames, in the order in which they happen."""
    found = []
    real = {name: getattr(os, name) for name in ("fsync", "rename", "replace", "mkdir")}

    def fsync(descriptor):
        found.append(("sync", os.readlink(f"/proc/self/fd/{getattr(descriptor, 'fileno', lambda: descriptor)()}")))
        real["fsync"](descriptor)

    def named(how):
        def call(source, target, **options):
            found.append(("name", str(target)))
            real[how](source, target, **options)

        return call

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", named("rename"))
    monkeypatch.setattr(os, "replace", named("replace"))
    return found


def place(steps, step):
    assert step in steps, (step, steps)
    return steps.index(step)


def parents_of(path):
    return [str(parent) for parent in path.parents if os.stat(parent).st_dev == os.stat(path).st_dev]


@pytest.mark.parametrize("made", [(), ("above",), ("above", "above/store")], ids=["nothing", "parent", "folder"])
def test_folders_that_a_killed_process_left_are_made_durable(tmp_path, steps, made):
    """Creating the data file syncs the names of all its parent folders first, whatever process made them."""
    for name in made:
        (tmp_path / name).mkdir()
    path = tmp_path / "above" / "store"
    with bookstand.open(path) as store:
        store.create_ledger().append(b"confirmed")
    named = place(steps, ("name", str(path / "data.mdb")))
    for parent in parents_of(path):
        assert place(steps, ("sync", parent)) < named
    assert ("sync", str(path)) in steps[named:]


@pytest.mark.parametrize("path", ["link/new/store", "link/../store"])
def test_folders_behind_symbolic_links_are_made_durable(tmp_path, steps, monkeypatch, path):
    (tmp_path / "disk" / "deep").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "disk" / "deep")
    monkeypatch.chdir(tmp_path / "here")
    with bookstand.open(path) as store:
        store.create_ledger().append(b"confirmed")
        store.backup(f"{path}.copy")
    for made in (path, f"{path}.copy"):
        real = (tmp_path / "here" / made).resolve()
        assert (real / "data.mdb").exists()
        assert {("sync", parent) for parent in parents_of(real)} <= set(steps)


def test_a_folder_above_that_may_not_be_read(tmp_path, monkeypatch):
    real = os.open

    def refuse(path, *arguments, **options):
        if str(path) == str(tmp_path.parent):
            raise PermissionError(errno.EACCES, "no")
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    with bookstand.open(tmp_path / "store") as store:
        assert store.create_ledger().append(b"a") == 0


def test_a_store_made_without_durability_is_durable_once_opened_with_it(tmp_path, steps):
    path = tmp_path / "above" / "store"
    with bookstand.open(path, durability="none") as store:
        store.create_ledger().append(b"a")
    with bookstand.open(path) as store:
        store.create_ledger().append(b"confirmed")
    named = place(steps, ("name", str(path / "data.mdb")))
    assert {("sync", parent) for parent in parents_of(path)} <= set(steps)
    assert ("sync", str(path)) in steps[named:]


@pytest.mark.parametrize("failure", [OSError(errno.EIO, "as the device says it"), KeyboardInterrupt()], ids=repr)
def test_nothing_is_committed_to_a_compacted_file_whose_name_is_not_durable(store, store_path, monkeypatch, failure):
    writer = store.create_ledger()
    writer.append(b"before")
    real = process_markers.sync_folder
    failing = [True]
    renamed = []

    def sync(folder):
        if failing and os.path.samefile(folder, store_path):
            raise failure
        real(folder)
        renamed.append(folder)

    monkeypatch.setattr(process_markers, "sync_folder", sync)
    with pytest.raises((errors.StoreError, KeyboardInterrupt)):
        store.compact()
    if isinstance(failure, OSError):
        with pytest.raises(errors.StoreError, match="the new data file's name cannot be synced"):
            store.nodes.put("/a", b"refused")
        # What is there can be read.
        assert store.open_ledger(writer.id, recovery=False).read_unconfirmed(0, 0)[0].data == b"before"
    failing.clear()
    assert not renamed
    store.nodes.put("/a", b"confirmed")
    assert renamed == [str(store_path)]
    store.nodes.put("/a", b"again")
    assert len(renamed) == 1
    assert store.verify().ok


def test_a_compaction_syncs_the_name_of_the_new_file(store, store_path, steps):
    store.create_ledger().append(b"a")
    del steps[:]
    store.compact()
    named = place(steps, ("name", str(store_path / "data.mdb")))
    assert ("sync", str(store_path)) in steps[named:]


@pytest.mark.parametrize("made", [True, False])
def test_a_backup_is_durable(store, tmp_path, steps, made):
    folder = tmp_path / "backup"
    if made:
        folder.mkdir()
    store.create_ledger().append(b"a")
    del steps[:]
    store.backup(folder)
    named = place(steps, ("name", str(folder / "data.mdb")))
    assert place(steps, ("sync", str(folder / backup._COPYING / "data.mdb"))) < named
    assert ("sync", str(folder)) in steps[named:]
    assert {("sync", parent) for parent in parents_of(folder)} <= set(steps)


def test_a_dump_is_durable(tmp_path, steps):
    write_dump(tmp_path / "dump.jsonl", [DumpNode("/a", b"1")])
    named = place(steps, ("name", str(tmp_path / "dump.jsonl")))
    assert steps[named - 1][0] == "sync"
    assert steps[named + 1 :] == [("sync", str(tmp_path))]


def test_a_report_is_durable(tmp_path, steps):
    output.write(tmp_path / "report.html", BEGINNING)
    named = place(steps, ("name", str(tmp_path / "report.html")))
    assert steps[named - 1][0] == "sync"
    assert steps[named + 1 :] == [("sync", str(tmp_path))]


def test_an_export_is_durable(store, tmp_path, steps):
    store.create_ledger().append_many([b"a", b"b"])
    folder = tmp_path / "above" / "export"
    del steps[:]
    export_topics(store, folder)
    last = max(number for number, (what, _) in enumerate(steps) if what == "name")
    assert ("sync", str(folder)) in steps[last:]
    assert {("sync", parent) for parent in parents_of(folder)} <= set(steps)
    staged = [path for what, path in steps[:last] if what == "sync"]
    for file in (folder / "bookie-0").rglob("*"):
        relative = str(file.relative_to(folder))
        assert any(path.endswith(relative) for path in staged), relative
