"""Stores opened for reading only: of a living writer, of a medium that cannot be written to."""

from __future__ import annotations

import shutil
import subprocess
import threading

import pytest

import bookstand
from bookstand import errors
from tests.kit import PATIENCE, data_file, eventually, refused, run_python


@pytest.fixture
def live(open_store, child):
    """A store that another process writes to, opened here for reading only."""
    writer = child()
    writer.run("ledger = store.create_ledger()")
    assert writer.run("ledger.append(b'0')") == 0
    return open_store(read_only=True), writer


def test_it_sees_the_commits_of_the_writer(live):
    store, writer = live
    reader = store.open_ledger(0, recovery=False)
    assert reader.read_unconfirmed(0, 0)[0].data == b"0"
    for number in range(1, 20):
        assert writer.run(f"ledger.append(b'{number}')") == number
        assert reader.read_unconfirmed(number, number)[0].data == b"%d" % number
        assert reader.read_last_confirmed() == number - 1
    assert writer.run("store.nodes.put('/n', b'1')") == 0
    assert store.nodes.get("/n") == (b"1", 0)
    assert writer.run("store.create_ledger().id") == 1
    assert list(store.list_ledgers()) == [0, 1]
    writer.run("ledger.close()")
    assert reader.is_closed()
    assert store.open_ledger(0).last_add_confirmed == 19
    writer.run("store.delete_ledger(0)")
    with refused(-25):
        store.open_ledger(0)
    assert store.verify().ok


def test_it_waits_and_follows(live):
    store, writer = live
    reader = store.open_ledger(0, recovery=False)
    seen = []
    following = threading.Thread(target=lambda: seen.extend(entry.data for entry in reader.follow(PATIENCE)))
    following.start()
    for number in range(1, 30):
        writer.run(f"ledger.append(b'{number}')")
    assert store.open_ledger(0, recovery=False).wait_entry(20, PATIENCE)[1].data == b"20"
    writer.run("ledger.close()")
    following.join(PATIENCE)
    assert seen == [b"%d" % number for number in range(30)]


def test_it_sees_a_map_that_grows(live):
    store, writer = live
    writer.run("[ledger.append(bytes(1 << 20)) for _ in range(20)] and None")
    assert len(store.open_ledger(0, recovery=False).read_unconfirmed(1, 20)) == 20


def test_the_writer_dies_and_another_comes(live, child):
    store, writer = live
    writer.kill()
    assert store.open_ledger(0, recovery=False).read_unconfirmed(0, 0)[0].data == b"0"
    second = child()
    assert second.run("store.open_ledger(0).last_add_confirmed") == 0
    assert store.is_closed(0)
    assert store.open_ledger(0).last_add_confirmed == 0


def test_writes_are_refused(live):
    store, writer = live
    for what, call in {
        "create": store.create_ledger,
        "create adv": lambda: store.create_ledger_adv(5),
        "delete": lambda: store.delete_ledger(0),
        "recovery": lambda: store.open_ledger(0, recovery=True),
        "metadata": lambda: store.write_ledger_metadata(store.ledger_metadata(0)),
        "put": lambda: store.nodes.put("/n", b"1"),
        "delete node": lambda: store.nodes.delete("/n"),
        "transaction": lambda: store.transaction().__enter__().put_node("/n", b"1"),
        "compact": store.compact,
    }.items():
        with refused(-104) as caught:
            call()
        assert caught.type is errors.WriteOnReadOnlyError, what
    assert writer.run("ledger.append(b'goes on')") == 1


def test_a_closed_ledger_needs_no_recovery(store_path):
    with bookstand.open(store_path) as store:
        writer = store.create_ledger()
        writer.append(b"a")
        writer.close()
    with bookstand.open(store_path, read_only=True) as store:
        assert [entry.data for entry in store.open_ledger(writer.id)] == [b"a"]
        with pytest.raises(errors.StoreInUseError):
            bookstand.open(store_path)
        with bookstand.open(store_path, read_only=True) as again:
            assert again.verify().ok
    # With a writer in the process, reading only is a promise of the client's own.
    with bookstand.open(store_path) as store, bookstand.open(store_path, read_only=True) as reading:
        with refused(-104):
            reading.nodes.put("/n", b"1")
        assert store.nodes.put("/n", b"1") == 0
        assert reading.nodes.get("/n") == (b"1", 0)


def test_what_was_killed_is_opened_for_reading(store_path, child):
    process = child()
    process.run("ledger = store.create_ledger()")
    process.run("ledger.append(b'a')")
    process.kill()
    for check in ("fast", "full", "subprocess"):
        with bookstand.open(store_path, read_only=True, check=check) as store:
            assert store.open_ledger(0, recovery=False).read_unconfirmed(0, 0)[0].data == b"a"
    with bookstand.open(store_path) as store:
        assert store.verify().ok


def test_damage_is_met_before_reading(store_path, child):
    process = child()
    process.run("ledger = store.create_ledger()")
    process.run("ledger.append_many([b'x' * 100] * 1000) and None")
    process.kill()
    with data_file(store_path).open("r+b") as stream:
        # Some of these pages are in use.
        stream.seek(4 * 4096)
        stream.write(b"\xff" * 6 * 4096)
    with pytest.raises(errors.StoreDamagedError):
        bookstand.open(store_path, read_only=True)


# -- a medium that cannot be written to ------------------------------------------------------------------------------


@pytest.fixture
def read_only_disk(small_disk):
    """Written once, and then mounted read-only; gives the path of the store on it."""
    path = small_disk / "store"
    with bookstand.open(path) as store:
        writer = store.create_ledger()
        writer.append_many([b"%d" % number for number in range(100)])
        writer.close()
        store.create_ledger().append(b"open")
        store.nodes.put("/n", b"1")

    def remount(options="ro"):
        subprocess.run(["mount", "-o", f"remount,{options}", str(small_disk)], check=True)

    return path, remount


@pytest.mark.parametrize("lock_file", ["there", "missing"])
@pytest.mark.parametrize("check", ["fast", "full", "subprocess"])
def test_a_read_only_mount(read_only_disk, lock_file, check):
    path, remount = read_only_disk
    if lock_file == "missing":
        (path / "lock.mdb").unlink()
    remount()
    with bookstand.open(path, read_only=True, check=check) as store:
        assert [entry.data for entry in store.open_ledger(0)] == [b"%d" % number for number in range(100)]
        assert store.open_ledger(1, recovery=False).read_unconfirmed(0, 0)[0].data == b"open"
        assert store.nodes.get("/n") == (b"1", 0)
        assert store.verify().ok
        with refused(-104):
            store.create_ledger()


def test_a_read_only_mount_is_not_opened_for_writing(read_only_disk):
    path, remount = read_only_disk
    remount()
    with pytest.raises(errors.StoreAccessError, match=r"[Rr]ead-only"):
        bookstand.open(path)
    with pytest.raises(errors.StoreAccessError):
        bookstand.open(path.parent / "new")
    remount("rw")
    with bookstand.open(path) as store:
        assert store.nodes.put("/n", b"2") == 1


def test_a_backup_of_a_read_only_mount(read_only_disk, tmp_path):
    path, remount = read_only_disk
    remount()
    with bookstand.open(path, read_only=True) as store:
        store.backup(tmp_path / "backup")
    with bookstand.open(tmp_path / "backup") as store:
        assert store.open_ledger(1).last_add_confirmed == 0
        assert store.verify().ok


def test_a_mount_that_becomes_read_only(read_only_disk):
    """As a file system does that has met an error: writes are refused with a clear error, reads go on."""
    path, remount = read_only_disk
    source = """
import subprocess, sys
import bookstand
path, mount_point = sys.argv[1:]
store = bookstand.open(path)
print(store.nodes.put("/n", b"2"))
"""
    assert run_python(source, path, path.parent).returncode == 0
    remount()
    with bookstand.open(path, read_only=True) as store:
        assert store.nodes.get("/n")[0] == b"2"
    remount("rw")
    with bookstand.open(path) as store:
        assert store.verify().ok


def test_a_copy_without_its_lock_file(store_path, tmp_path):
    with bookstand.open(store_path) as store:
        store.create_ledger().append(b"a")
    (tmp_path / "copy").mkdir()
    shutil.copy(data_file(store_path), tmp_path / "copy" / "data.mdb")
    with bookstand.open(tmp_path / "copy", read_only=True) as store:
        assert store.open_ledger(0, recovery=False).read_unconfirmed(0, 0)[0].data == b"a"
    eventually(lambda: (tmp_path / "copy" / "data.mdb").exists())
