"""A file system without a free block: writes are refused with a clear error, reads go on, nothing confirmed is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand import errors
from tests.kit import Child, Program, eventually, fill, outcome, refused, until_full

PAGE = 4096


def leave(disk: Path, free: int) -> Path:
    """Fill the file system up to about so many free bytes."""
    ballast = disk / f"ballast-{len(list(disk.glob('ballast-*')))}"
    with ballast.open("wb", buffering=0) as stream:
        while True:
            status = os.statvfs(disk)
            rest = status.f_bavail * status.f_frsize - free
            if rest <= 0:
                return ballast
            try:
                stream.write(bytes(min(rest, 1 << 20)))
            except OSError:
                return ballast


def drop_ballast(disk: Path) -> None:
    for ballast in disk.glob("ballast-*"):
        ballast.unlink()


def is_disk_full(error: BaseException) -> bool:
    return isinstance(error, errors.DiskFullError) or isinstance(error.__cause__, errors.DiskFullError)


def attempt(call) -> tuple[Any, Any]:
    """(what it gave, None), or (None, the error of ours)."""
    try:
        return call(), None
    except errors.BookstandError as error:
        return None, error


def check_entries(store, ledger_id: int, confirmed: int, password: bytes = b"") -> None:
    """All of ``fill``'s entries that were confirmed are there."""
    reader = store.open_ledger(ledger_id, password=password)
    assert reader.last_add_confirmed >= confirmed - 1
    for entry in reader.read(0, confirmed - 1) if confirmed else ():
        assert entry.data == bytes([entry.entry_id % 251]) * 3000


def works_again(store) -> None:
    def create():
        created, error = attempt(store.create_ledger)
        assert error is None or (error.code == -6 and is_disk_full(error)), repr(error)
        return created

    writer = eventually(create, "a store that takes writes again")
    assert writer.append(b"again") == 0
    writer.close()


# -- appends and creations -------------------------------------------------------------------------------------------


def test_everything_that_takes_space_is_refused(small_disk):
    leave(small_disk, 1 << 20)
    with bookstand.open(small_disk / "store") as store:
        writer, other, adv = store.create_ledger(), store.create_ledger(), store.create_ledger_adv()
        other.append(b"early")
        adv.write(0, b"early")
        store.nodes.put("/n", b"early")
        confirmed = fill(writer)
        for what, call in {
            "append": lambda: other.append(bytes(9000)),
            "adv": lambda: adv.write(1, bytes(9000)),
            "create": store.create_ledger,
            "create adv": lambda: store.create_ledger_adv(77),
            "put": lambda: store.nodes.put("/n", bytes(9000)),
        }.items():
            with refused(-6) as caught:
                for _ in range(200):
                    call()
            assert is_disk_full(caught.value), what
            assert "space" in str(caught.value)
        # Reads go on, through old handles and new ones, with and without a look at the whole store.
        assert other.read(0, 0)[0].data == adv.read(0, 0)[0].data == b"early"
        assert store.nodes.get("/n") == (b"early", 0)
        assert store.open_ledger(writer.id, recovery=False).read_unconfirmed(0, 0)
        assert 77 not in list(store.list_ledgers())
        assert store.verify().ok
        drop_ballast(small_disk)
        works_again(store)
        check_entries(store, writer.id, confirmed)
        assert store.verify().ok


@pytest.mark.parametrize("how", ["append_async", "append_many", "deferred"])
def test_many_at_once(small_disk, how):
    """What was confirmed of a window is there, what was not says -6, or -11 where the handle had closed by then."""
    leave(small_disk, 700 << 10)
    with bookstand.open(small_disk / "store") as store:
        writer = store.create_ledger(deferred_sync=how == "deferred")
        confirmed = 0
        codes = set()
        if how == "append_many":
            with refused(-6) as caught:
                for first in range(0, 2000, 20):
                    writer.append_many(bytes([i % 251]) * 3000 for i in range(first, first + 20))
                    confirmed = first + 20
            assert is_disk_full(caught.value)
        else:
            pendings = [writer.append_async(bytes([i % 251]) * 3000) for i in range(600)]
            outcomes = [outcome(pending) for pending in pendings]
            answered = [number for number, one in enumerate(outcomes) if one == ("ok", number)]
            assert answered == list(range(len(answered)))
            codes = set(outcomes[len(answered) :])
            if how == "deferred":
                # Answered early is not promised; a force is.
                with refused(-6, -11):
                    writer.force()
            else:
                confirmed = len(answered)
                assert codes <= {-6, -11}
                assert -6 in codes
        drop_ballast(small_disk)
        works_again(store)
        check_entries(store, writer.id, confirmed)
        assert store.verify().ok


def test_a_transaction_leaves_nothing(small_disk):
    with bookstand.open(small_disk / "store") as store:
        writer = store.create_ledger()
        writer.append(b"before")
        store.nodes.put("/n", b"before")
        leave(small_disk, 64 << 10)
        for _ in range(3):
            ledgers = list(store.list_ledgers())
            with refused(-6) as caught, store.transaction() as transaction:
                created = transaction.create_ledger()
                transaction.append(created, bytes(200_000))
                transaction.append(writer, bytes(200_000))
                transaction.put_node("/n", b"inside")
            assert is_disk_full(caught.value)
            assert list(store.list_ledgers()) == ledgers
            assert store.nodes.get("/n") == (b"before", 0)
            assert writer.last_add_confirmed == writer.last_add_pushed == 0
            with refused(-11, -25, -6):
                created.append(b"x")
        drop_ballast(small_disk)
        works_again(store)
        # The writer is none the worse for it.
        assert writer.append(b"after") == 1
        assert [entry.data for entry in writer.read(0, 1)] == [b"before", b"after"]
        assert store.verify().ok


def test_a_full_disk_fails_the_handle_as_a_lost_bookie_does(small_disk):
    """The failed add closes its handle, as far as there is room to write that down; other handles go on once there is
    space."""
    with bookstand.open(small_disk / "store") as store:
        writer, other = store.create_ledger(), store.create_ledger()
        leave(small_disk, 0)
        until_full(lambda: writer.append(bytes(9000)))
        with refused(-11, -6):
            writer.append(b"a")
        drop_ballast(small_disk)
        works_again(store)
        assert other.append(b"a") == 0


def test_space_comes_back_from_the_store_itself(small_disk):
    """Deleting is possible on a disk without room for entries, and what it frees is used again."""
    reserve = small_disk / "reserve"
    reserve.write_bytes(bytes(96 << 10))
    with bookstand.open(small_disk / "store") as store:
        doomed = store.create_ledger()
        kept = store.create_ledger()
        kept.append(b"kept")
        confirmed = fill(doomed)
        assert confirmed > 100
        with refused(-6):
            for _ in range(100):
                store.create_ledger()
        # Taking entries out needs a few pages of its own before it gives any back.
        reserve.unlink()
        store.delete_ledger(doomed.id)
        store.compact()
        works_again(store)
        assert kept.append(bytes(3000)) == 1
        assert kept.read(0, 0)[0].data == b"kept"
        assert store.verify().ok


def test_full_and_freed_several_times(small_disk):
    leave(small_disk, 1 << 20)
    promises = []
    with bookstand.open(small_disk / "store") as store:
        for _ in range(4):
            writer = store.create_ledger()
            promises.append((writer.id, fill(writer)))
            with refused(-6):
                store.create_ledger()
            drop_ballast(small_disk)
            works_again(store)
            store.delete_ledger(promises[0][0])
            store.compact()
            promises.pop(0) if len(promises) > 1 else promises.clear()
            for ledger_id, confirmed in promises:
                check_entries(store, ledger_id, confirmed)
            leave(small_disk, 600 << 10)
        assert store.verify().ok


# -- opening ---------------------------------------------------------------------------------------------------------


def test_reopening_and_recovery(small_disk):
    """What cannot be closed for lack of space is still read, and closed when there is some."""
    leave(small_disk, 1 << 20)
    with bookstand.open(small_disk / "store") as store:
        writer = store.create_ledger()
        confirmed = fill(writer)
    leave(small_disk, 0)
    with bookstand.open(small_disk / "store") as store:
        reader = store.open_ledger(writer.id, recovery=False)
        assert len(reader.read_unconfirmed(0, confirmed - 1)) == confirmed
        _, error = attempt(lambda: check_entries(store, writer.id, confirmed))
        assert error is None or is_disk_full(error) or is_disk_full(error.__cause__ or error), repr(error)
        assert store.verify().ok
        drop_ballast(small_disk)
        eventually(lambda: _recovers(store, writer.id), "a recovery once there is space")
        check_entries(store, writer.id, confirmed)


def _recovers(store, ledger_id: int) -> bool:
    _, error = attempt(lambda: store.open_ledger(ledger_id))
    assert error is None or error.code in (-6, -10), repr(error)
    return error is None


OPEN = """
import json, sys
import bookstand
from bookstand import errors
path, options = sys.argv[1], json.loads(sys.argv[2])
try:
    with bookstand.open(path, **options) as store:
        answer = ["opened", store.verify().ok, sum(1 for _ in store.list_ledgers())]
except bookstand.BookstandError as error:
    full = isinstance(error, errors.DiskFullError) or isinstance(error.__cause__, errors.DiskFullError)
    answer = [type(error).__name__, full, str(error)]
print(json.dumps(answer))
"""


def open_apart(path: Path, **options):
    """In a process of its own: a hole where the disk has no room for it would end it with SIGBUS."""
    with Program(OPEN, path, json.dumps(options)) as program:
        status = program.finish()
    assert status == 0, f"ended with {status}: {path} {options}"
    return json.loads(program.lines[-1])


@pytest.mark.parametrize("pages", [0, 1, 2, 4, 6, 7, 8, 9, 10, 12, 14, 16, 20])
def test_creation_with_so_many_free_pages(small_disk, pages):
    leave(small_disk, pages * PAGE)
    answer = open_apart(small_disk / "store", witness=True)
    if answer[0] != "opened":
        assert answer[1], answer
        assert "space" in answer[2] or "full" in answer[2].lower()
    # Nothing is in the way of a second attempt.
    drop_ballast(small_disk)
    assert open_apart(small_disk / "store", witness=True) == ["opened", True, 0]


@pytest.mark.parametrize("missing", ["nothing", "lock.mdb"])
@pytest.mark.parametrize("options", [{}, {"read_only": True}, {"check": "full"}, {"witness": True}])
def test_opening_on_a_full_disk(small_disk, missing, options):
    """Also where the lock file is gone, as in a store that was copied without it."""
    with bookstand.open(small_disk / "store") as store:
        store.create_ledger().append(b"a")
    if missing != "nothing":
        (small_disk / "store" / missing).unlink()
    leave(small_disk, 0)
    answer = open_apart(small_disk / "store", **options)
    assert answer[0] == "opened" or answer[1], answer
    if options.get("read_only") or (missing == "nothing" and options != {"witness": True}):
        assert answer == ["opened", True, 1]
    drop_ballast(small_disk)
    assert open_apart(small_disk / "store", **options) == ["opened", True, 1]


def test_a_reader_without_a_lock_file_keeps_writers_out(small_disk):
    """It has no slot in LMDB's table of readers, so that a writer would reuse the pages that it reads."""
    path = small_disk / "store"
    with bookstand.open(path) as store:
        writer = store.create_ledger()
        writer.append(b"a")
    (path / "lock.mdb").unlink()
    leave(small_disk, 0)
    with Child(path) as process:
        process.run("store = bookstand.open(path, read_only=True)")
        drop_ballast(small_disk)
        with pytest.raises(errors.StoreInUseError, match="close the store in that process first"):
            bookstand.open(path)
        # Others may read, with a lock file or without.
        with bookstand.open(path, read_only=True) as store:
            assert store.open_ledger(writer.id, recovery=False).read_unconfirmed(0, 0)[0].data == b"a"
        assert process.run("store.open_ledger(0, recovery=False).read_unconfirmed(0, 0)[0].data.decode()") == "a"
        process.kill()
    # The marker of a dead reader keeps no writer out.
    with bookstand.open(path) as store:
        assert store.create_ledger().append(b"b") == 0


def test_deleting_from_a_store_that_is_opened_on_a_full_disk(small_disk):
    """Deleting takes pages that are free in the file, or room that was kept ahead in it."""
    with bookstand.open(small_disk / "store") as store:
        doomed, kept = store.create_ledger(), store.create_ledger()
        kept.append(b"kept")
        fill(doomed)
    leave(small_disk, 0)
    with bookstand.open(small_disk / "store") as store:
        store.delete_ledger(doomed.id)
        assert list(store.list_ledgers()) == [kept.id]
        assert store.open_ledger(kept.id, recovery=False).read_unconfirmed(0, 0)[0].data == b"kept"
        assert store.verify().ok


def test_after_a_kill_on_a_full_disk(small_disk):
    with Child(small_disk / "store") as process:
        process.run("store = bookstand.open(path)")
        process.run("writer = store.create_ledger()")
        process.run("writer.append_many([b'x' * 100] * 100) and None")
        leave(small_disk, 0)
        process.kill()
    answer = open_apart(small_disk / "store", check="full")
    assert answer == ["opened", True, 1]


# -- others ----------------------------------------------------------------------------------------------------------


def test_two_processes_on_a_full_disk(small_disk):
    leave(small_disk, 1 << 20)
    with bookstand.open(small_disk / "store") as store, Child(small_disk / "store") as process:
        process.run("store = bookstand.open(path)")
        process.run("writer = store.create_ledger()")
        assert process.run("writer.append(b'early')") == 0
        confirmed = fill(store.create_ledger())
        leave(small_disk, 0)
        assert process.code_of("[writer.append(bytes(9000)) for _ in range(50)]") == -6
        assert process.run("store.open_ledger(0, recovery=False).read_unconfirmed(0, 0)[0].data.decode()") == "early"
        drop_ballast(small_disk)
        eventually(lambda: process.code_of("store.create_ledger().append(bytes(9000))") is None, "the other process")
        works_again(store)
        check_entries(store, 1, confirmed)
        process.run("store.close()")


def test_a_backup_onto_a_full_disk(small_disk, store):
    writer = store.create_ledger()
    writer.append_many([bytes(1000)] * 500)
    leave(small_disk, 100 << 10)
    with pytest.raises(errors.BookstandError) as caught:
        store.backup(small_disk / "backup")
    assert is_disk_full(caught.value), repr(caught.value)
    assert writer.append(b"goes on") == 500
    drop_ballast(small_disk)
    # Nothing of the failed one is left to be taken for a store, or in the way of the next.
    store.backup(small_disk / "backup")
    with bookstand.open(small_disk / "backup") as backup:
        assert backup.open_ledger(writer.id).last_add_confirmed == 500


def test_a_compaction_without_room_for_the_copy(small_disk):
    with bookstand.open(small_disk / "store") as store:
        kept, doomed = store.create_ledger(), store.create_ledger()
        kept.append_many([bytes(1000)] * 300)
        doomed.append_many([bytes(1000)] * 700)
        store.delete_ledger(doomed.id)
        leave(small_disk, 64 << 10)
        _, error = attempt(store.compact)
        assert error is None or is_disk_full(error), repr(error)
        assert len(kept.read(0, 299)) == 300
        assert store.verify().ok
        works_again(store)
        assert not [name for name in os.listdir(small_disk / "store") if name.startswith("creating-")]
        drop_ballast(small_disk)
        store.compact()
        assert len(kept.read(0, 299)) == 300


def test_a_witness_without_room(small_disk):
    """Its file is as large as it will ever be, so that a full disk shows before a commit, not after it."""
    leave(small_disk, 1 << 20)
    with bookstand.open(small_disk / "store", witness=True) as store:
        writer = store.create_ledger()
        confirmed = fill(writer)
        leave(small_disk, 0)
        with refused(-6):
            for _ in range(50):
                store.create_ledger()
        drop_ballast(small_disk)
        works_again(store)
        check_entries(store, writer.id, confirmed)
