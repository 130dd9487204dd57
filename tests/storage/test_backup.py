"""Copies while writers go on, and space given back."""

from __future__ import annotations

import os
import threading

import pytest

import bookstand
from bookstand import errors
from tests.kit import PATIENCE, Child, Program, data_file, eventually, in_threads, refused


def size(path):
    return data_file(path).stat().st_size


def check_counters(path) -> int:
    """In every state that ever was, the two ledgers and the node have the same number."""
    with bookstand.open(path) as store:
        report = store.verify()
        assert report.ok, report.problems
        number = int(store.nodes.get("/number")[0])
        for ledger_id in (0, 1):
            found = [entry.data for entry in store.open_ledger(ledger_id)]
            assert found == [b"%d" % i for i in range(number + 1)], (ledger_id, number)
        return number


def count_up(store, stop, first=0, progress=None):
    """Transactions that append a number to both ledgers and write it to the node."""
    one, two = store.create_ledger(), store.create_ledger()
    number = first
    while not stop.is_set():
        with store.transaction() as transaction:
            transaction.append(one, b"%d" % number)
            transaction.append(two, b"%d" % number)
            transaction.put_node("/number", b"%d" % number)
        if progress is not None:
            progress.append(number)
        number += 1


# -- backup ----------------------------------------------------------------------------------------------------------


def test_backups_while_a_thread_writes(store, tmp_path):
    stop = threading.Event()
    progress: list[int] = []
    writing = threading.Thread(target=count_up, args=(store, stop, 0, progress))
    writing.start()
    try:
        numbers = []
        for index in range(6):
            before = eventually(lambda index=index: len(progress) > index * 5 and len(progress), "some transactions")
            store.backup(tmp_path / str(index))
            numbers.append((before, len(progress), tmp_path / str(index)))
    finally:
        stop.set()
        writing.join(PATIENCE)
    for before, after, path in numbers:
        # Of a moment between the call and its end.
        assert before <= check_counters(path) + 1 <= after + 1


def test_backups_while_another_process_writes(store, child, tmp_path):
    process = child()
    process.run("import threading\nfrom tests.storage.test_backup import count_up")
    process.run(
        "stop = threading.Event(); progress = []; "
        "writing = threading.Thread(target=count_up, args=(store, stop, 0, progress)); writing.start()"
    )
    for index in range(4):
        eventually(lambda index=index: process.run("len(progress)") > index * 5, "some transactions")
        store.backup(tmp_path / str(index))
    process.run("stop.set(); writing.join()")
    counted = process.run("len(progress)")
    numbers = [check_counters(tmp_path / str(index)) for index in range(4)]
    assert numbers == sorted(numbers)
    assert numbers[-1] < counted


def test_a_backup_has_what_is_queued(store, tmp_path):
    writer = store.create_ledger()
    pendings = [writer.append_async(b"%d" % number) for number in range(200)]
    store.backup(tmp_path / "backup")
    with bookstand.open(tmp_path / "backup") as backup:
        assert len(list(backup.open_ledger(writer.id))) == 200
    assert [pending.result(PATIENCE) for pending in pendings] == list(range(200))


def test_a_backup_is_a_store_of_its_own(store, tmp_path):
    writer = store.create_ledger(password=b"secret", custom_metadata={"a": b"b"}, digest="hmac")
    writer.append(b"a")
    adv = store.create_ledger_adv(77)
    adv.write_async(3, b"out of order")
    store.nodes.put("/n", b"1")
    store.backup(tmp_path / "backup")
    assert sorted(os.listdir(tmp_path / "backup")) == ["data.mdb"]
    with bookstand.open(tmp_path / "backup") as backup:
        assert list(backup.list_ledgers()) == [writer.id, 77]
        with refused(-102):
            backup.open_ledger(writer.id, password=b"wrong")
        assert [entry.data for entry in backup.open_ledger(writer.id, password=b"secret")] == [b"a"]
        assert backup.ledger_metadata(writer.id).custom_metadata == {"a": b"b"}
        assert backup.create_ledger().id == store.create_ledger().id
        backup.nodes.put("/n", b"2")
    # What happens to the backup does not concern the original.
    assert store.nodes.get("/n") == (b"1", 0)
    assert writer.append(b"not fenced") == 1


def test_where_a_backup_may_go(store, tmp_path, store_path):
    (tmp_path / "empty").mkdir()
    store.backup(tmp_path / "empty")
    for destination in (tmp_path / "empty", store_path):
        with pytest.raises(errors.IncorrectParameterError):
            store.backup(destination)
    (tmp_path / "file").write_bytes(b"")
    for destination in (tmp_path / "file", tmp_path / "missing" / "deeper"):
        with pytest.raises(errors.BookstandError):
            store.backup(destination)
    assert (tmp_path / "file").read_bytes() == b""
    store.backup(str(tmp_path / "as text"))


def test_several_backups_at_once(store, tmp_path):
    writer = store.create_ledger()
    writer.append_many([b"x" * 1000] * 3000)
    in_threads(4, lambda index: store.backup(tmp_path / str(index)))
    for index in range(4):
        with bookstand.open(tmp_path / str(index)) as backup:
            assert backup.open_ledger(writer.id).last_add_confirmed == 2999


BACK_UP = """
import sys, bookstand
store = bookstand.open(sys.argv[1])
print("ready", flush=True)
for number in range(1000):
    store.backup(sys.argv[2] + f"/{number}")
    print(number, flush=True)
"""


def test_killed_in_the_middle(store_path, memory_path):
    """A backup that has its name is whole; one that was killed is not taken for a store that is."""
    with bookstand.open(store_path) as store:
        writer = store.create_ledger()
        writer.append_many([b"x" * 1000] * 5000)
    with Program(BACK_UP, store_path, memory_path) as program:
        done = len(program.wait_for_lines(6)) - 1
        program.kill()
        done = len(program.lines) - 1
    for number in range(done):
        with bookstand.open(memory_path / str(number), check="full") as backup:
            assert backup.open_ledger(writer.id).last_add_confirmed == 4999
    unfinished = memory_path / str(done)
    if unfinished.exists() and (unfinished / "data.mdb").exists():
        with bookstand.open(unfinished, check="full") as backup:
            assert backup.open_ledger(writer.id).last_add_confirmed == 4999


# -- compaction ------------------------------------------------------------------------------------------------------


def deleted_ledgers(store, count=5):
    for _ in range(count):
        writer = store.create_ledger()
        writer.append_many([bytes(1000)] * 1000)
        store.delete_ledger(writer.id)


def test_compaction_gives_space_back(store, store_path):
    kept = store.create_ledger()
    kept.append_many([b"%d" % number for number in range(500)])
    deleted_ledgers(store)
    before = size(store_path)
    assert before > 5_000_000
    freed = store.compact()
    # Taking the entries out comes first, and takes some space of its own.
    assert freed >= before - size(store_path)
    assert size(store_path) < 500_000
    # Handles made before go on.
    assert kept.append(b"500") == 500
    assert [entry.data for entry in kept.read(0, 500)] == [b"%d" % number for number in range(501)]
    assert store.compact() < 100_000


def test_nothing_is_lost_with_handles_of_all_kinds(store):
    writer, adv, closed = store.create_ledger(), store.create_ledger_adv(), store.create_ledger()
    writer.append(b"a")
    adv.write(0, b"a")
    adv.write_async(2, b"waits for 1")
    closed.append(b"a")
    closed.close()
    reader, iterator = store.open_ledger(closed.id), iter(store.open_ledger(writer.id, recovery=False).follow(PATIENCE))
    store.nodes.put("/n", b"1")
    pendings = [writer.append_async(b"queued") for _ in range(20)]
    deleted_ledgers(store, 2)
    store.compact()
    assert [pending.result(PATIENCE) for pending in pendings] == list(range(1, 21))
    assert adv.write(1, b"b") == 1
    assert adv.last_add_confirmed == 2
    assert reader.read(0, 0)[0].data == b"a"
    assert next(iterator).data == b"a"
    assert store.nodes.get("/n") == (b"1", 0)
    assert store.nodes.put("/n", b"2", expected_version=0) == 1
    assert store.create_ledger().id > closed.id


def test_compaction_while_threads_write_and_read(store, store_path):
    stop = threading.Event()
    progress: list[int] = []
    failures = []

    def read():
        try:
            while not stop.is_set():
                if progress:
                    reader = store.open_ledger(0, recovery=False)
                    assert reader.read(0, 0)[0].data == b"0" if reader.last_add_confirmed >= 0 else True
                    sum(1 for _ in reader)
        except BaseException as error:
            failures.append(error)

    def write():
        try:
            count_up(store, stop, 0, progress)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for work in (write, read, read)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        eventually(lambda: len(progress) > 5 or failures, "some transactions")
        deleted_ledgers(store, 1)
        store.compact()
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert failures == []
    confirmed = progress[-1]
    store.close()
    assert check_counters(store_path) == confirmed


@pytest.mark.parametrize("options", ["", "read_only=True"])
def test_with_another_process_open(store, store_path, child, options):
    """No error, nothing lost; the pages are used again, and given back when the store is had alone."""
    kept = store.create_ledger()
    kept.append(b"kept")
    process = child(options)
    deleted_ledgers(store)
    before = size(store_path)
    assert store.compact() == 0
    assert size(store_path) >= before
    assert (
        process.run(f"store.open_ledger({kept.id}, recovery=False).read_unconfirmed(0, 0)[0].data.decode()") == "kept"
    )
    again = store.create_ledger()
    again.append_many([bytes(1000)] * 4000)
    assert size(store_path) < before + 1_000_000
    if not options:
        assert process.run("store.create_ledger().append(b'theirs')") == 0
    process.run("store.close()")
    store.delete_ledger(again.id)
    assert store.compact() > 3_000_000
    assert kept.read(0, 0)[0].data == b"kept"


def test_a_process_that_opens_meanwhile(store_path, memory_path):
    """Opening waits for the compaction, or puts it off: nobody goes on with a file that is no more."""
    path = memory_path / "store"
    with bookstand.open(path) as store:
        kept = store.create_ledger()
        kept.append(b"kept")
        with Child(path) as process:
            stop = threading.Event()
            failures = []

            def compact():
                try:
                    while not stop.is_set():
                        deleted_ledgers(store, 1)
                        store.compact()
                except BaseException as error:
                    failures.append(error)

            compacting = threading.Thread(target=compact)
            compacting.start()
            try:
                for number in range(30):
                    process.run("store = bookstand.open(path)")
                    assert process.run(f"store.nodes.put('/theirs/{number}', b'x')") == 0
                    process.run("store.close()")
            finally:
                stop.set()
                compacting.join(PATIENCE)
        assert failures == []
        assert sorted(store.nodes.children("/theirs"), key=int) == [str(number) for number in range(30)]
        assert kept.read(0, 0)[0].data == b"kept"
        assert store.verify().ok


def test_what_deleted_ledgers_left_is_gone(store, store_path):
    writer = store.create_ledger()
    writer.append(b"a")
    store.delete_ledger(writer.id)
    # Open handles read until then.
    assert writer.read(0, 0)[0].data == b"a"
    store.compact()
    with refused(-7, -13, -25):
        writer.read(0, 0)
    with refused(-101, -25):
        writer.append(b"b")
    assert store.storage.state(writer.id) is None
