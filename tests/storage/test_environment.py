"""Maps that grow, here and in other processes, and readers that come to nothing."""

from __future__ import annotations

import json
import os
import sys
import threading

import lmdb
import pytest

import bookstand
from bookstand import errors
from bookstand.storage.lmdb import environment
from bookstand.storage.storage import open_storage
from tests.kit import PATIENCE, Child, Program, data_file, eventually

MIB = 1 << 20
SMALL = """
import bookstand
from bookstand.storage.storage import open_storage
small = open_storage(path, map_size=1 << 20)
store = bookstand.open(path)
"""


@pytest.fixture
def store_path(memory_path):
    """What is looked at here are maps and slots, not disks."""
    return memory_path / "store"


@pytest.fixture
def small(store_path):
    """A store whose map has to grow all the time."""
    storage = open_storage(store_path, map_size=MIB)
    store = bookstand.open(store_path)
    assert store.storage is storage
    yield store
    report = store.verify()
    store.close()
    storage.close()
    assert report.ok, report.problems


def map_size(store):
    return store.storage._environment._env.info()["map_size"]


def data(ledger_id, entry_id, size=3000):
    return (b"%d:%d/" % (ledger_id, entry_id) * size)[:size]


# -- growth in this process ------------------------------------------------------------------------------------------


def test_the_map_grows(small):
    writer = small.create_ledger()
    before = map_size(small)
    for first in range(0, 4000, 100):
        writer.append_many(data(writer.id, i) for i in range(first, first + 100))
    assert map_size(small) > before
    assert [entry.data for entry in writer.read(0, 3999)] == [data(writer.id, i) for i in range(4000)]


def test_one_entry_larger_than_the_map(small):
    writer = small.create_ledger()
    assert writer.append(bytes(5 * MIB - 100)) == 0
    assert len(writer.read(0, 0)[0].data) == 5 * MIB - 100


def test_one_commit_larger_than_the_map(small):
    with small.transaction() as transaction:
        writers = [transaction.create_ledger() for _ in range(6)]
        for writer in writers:
            transaction.append(writer, bytes(4 * MIB))
    assert [len(writer.read(0, 0)[0].data) for writer in writers] == [4 * MIB] * 6


def test_nodes_and_metadata_grow_the_map(small):
    for number in range(40):
        small.nodes.put(f"/n/{number}", bytes(100_000))
    ledgers = [small.create_ledger(custom_metadata={"a": bytes(100_000)}).id for _ in range(40)]
    assert list(small.list_ledgers()) == ledgers
    assert len(small.nodes.children("/n")) == 40


@pytest.mark.long
def test_readers_iterate_while_the_map_grows(small):
    written = small.create_ledger()
    written.append_many(data(written.id, i, 200) for i in range(6000))
    written.close()
    stop = threading.Event()
    counts = [0] * 4
    failures = []

    def iterate(number):
        try:
            while not stop.is_set() or not counts[number]:
                for expected, entry in enumerate(small.open_ledger(written.id)):
                    assert entry.entry_id == expected
                    assert entry.data == data(written.id, expected, 200)
                assert expected == 5999
                counts[number] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=iterate, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    writer = small.create_ledger()
    before = map_size(small)
    for number in range(60):
        writer.append_many([data(writer.id, number, 100_000)] * 6)
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert failures == []
    assert all(counts)
    assert map_size(small) >= 8 * before


def test_growth_waits_for_nobodys_code(small):
    """An iterator that stands still between two entries is in nobody's way."""
    writer = small.create_ledger()
    writer.append_many(b"%d" % i for i in range(5000))
    iterator = iter(writer)
    assert next(iterator).entry_id == 0
    listing = small.list_ledgers()
    assert next(listing) == writer.id
    other = small.create_ledger()
    for _ in range(10):
        other.append_many([bytes(MIB)] * 2)
    assert sum(1 for _ in iterator) == 4999


GROW_UNTIL_REFUSED = """
import json, resource, sys
import bookstand
from bookstand.storage.storage import open_storage

storage = open_storage(sys.argv[1], map_size=1 << 20)
store = bookstand.open(sys.argv[1])
writer = store.create_ledger()
other = store.create_ledger()
other.append(b"before")
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20), resource.RLIM_INFINITY))
confirmed = -1
try:
    while True:
        confirmed = writer.append(bytes(1 << 20))
except bookstand.BookstandError as error:
    print(json.dumps([getattr(error, "code", None), type(error.__cause__).__name__, confirmed]), flush=True)
print(json.dumps([other.read(0, 0)[0].data.decode(), len(writer.read(0, 1))]), flush=True)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps([other.append(b"after"), store.create_ledger().append(bytes(5 << 20)[100:])]), flush=True)
store.close()
storage.close()
"""


def test_no_address_space_is_a_full_disk(store_path):
    """The map cannot grow any further: reads go on, and writes again once it can."""
    with Program(GROW_UNTIL_REFUSED, store_path) as program:
        status = program.finish()
    assert status == 0, (status, program.lines)
    refused, read, written = map(json.loads, program.lines)
    assert refused[:2] == [-6, "DiskFullError"]
    assert read == ["before", 2]
    assert written == [1, 0]
    with bookstand.open(store_path) as store:
        assert store.open_ledger(0).last_add_confirmed >= refused[2]
        assert store.verify().ok


@pytest.mark.parametrize("how", ["open", "reopen"])
def test_another_process_makes_the_file_larger_while_it_is_opened(store_path, monkeypatch, how):
    """LMDB sees the size of the file first, and begins its first transaction after that."""
    with bookstand.open(store_path) as store:
        store.create_ledger().append(b"a")
    real = environment.lmdb.open
    late = []

    def resized(*arguments, **options):
        if len(late) < 2:
            late.append(options["map_size"])
            raise lmdb.MapResizedError("the file has grown")
        return real(*arguments, **options)

    if how == "open":
        monkeypatch.setattr(environment.lmdb, "open", resized)
    with bookstand.open(store_path) as store:
        if how == "reopen":
            monkeypatch.setattr(environment.lmdb, "open", resized)
            store.storage._environment.reopen()
        assert store.open_ledger(0).read(0, 0)[0].data == b"a"
    assert len(late) == 2


GROWN_BY_ANOTHER = """
import json, resource, subprocess, sys
import bookstand
from bookstand.storage.storage import open_storage

OTHER = '''
import sys
import bookstand
with bookstand.open(sys.argv[1]) as store:
    writer = store.create_ledger()
    for _ in range(12):
        writer.append(bytes(4 << 20))
'''
storage = open_storage(sys.argv[1], map_size=1 << 20)
store = bookstand.open(sys.argv[1])
writer = store.create_ledger()
writer.append(b"before")
subprocess.run([sys.executable, "-c", OTHER, sys.argv[1]], check=True)
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), resource.RLIM_INFINITY))
for call in (lambda: writer.read(0, 0), lambda: store.create_ledger(), lambda: writer.read(0, 0)):
    try:
        print(json.dumps(repr(call())), flush=True)
    except bookstand.BookstandError as error:
        print(json.dumps(type(error).__name__), flush=True)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(json.dumps([store.create_ledger().append(b"after"), writer.read(0, 0)[0].data.decode()]), flush=True)
assert store.verify().ok
store.close()
storage.close()
"""


def test_no_address_space_for_what_another_process_has_grown(store_path):
    """LMDB gives up the old map before it tries the new one: the store goes on once there is room."""
    with Program(GROWN_BY_ANOTHER, store_path) as program:
        status = program.finish()
    assert status == 0, (status, program.lines)
    *refused, after = map(json.loads, program.lines)
    assert refused == ["StoreError"] * 3
    assert after == [0, "before"]


# -- growth in another process ---------------------------------------------------------------------------------------


def test_reads_adopt_the_size_of_another_process(small, child):
    writer = small.create_ledger()
    writer.append(b"a")
    process = child()
    reads = {
        "read": lambda: writer.read(0, 0)[0].data == b"a",
        "list": lambda: writer.id in list(small.list_ledgers()),
        "open": lambda: small.open_ledger(writer.id, recovery=False).read_unconfirmed(0, 0)[0].data == b"a",
        "node": lambda: small.nodes.get("/n")[0] == b"1",
        "last commit": lambda: small.storage.last_commit > 0,
        "verify": lambda: small.verify().ok,
        "metadata": lambda: small.ledger_metadata(writer.id).state == "OPEN",
    }
    process.run("store.nodes.put('/n', b'1')")
    process.run("mine = store.create_ledger()")
    megabytes = 2
    for name, call in reads.items():
        process.run(f"[mine.append(bytes(1 << 20)) for _ in range({megabytes})] and None")
        assert call(), name
        megabytes *= 2


def test_writes_adopt_the_size_of_another_process(small, child):
    process = child()
    process.run("mine = store.create_ledger()")
    for megabytes in (2, 4, 8, 16):
        process.run(f"[mine.append(bytes(1 << 20)) for _ in range({megabytes})] and None")
        writer = small.create_ledger()
        assert writer.append(b"a") == 0


def test_a_backup_adopts_the_size_of_another_process(small, child, tmp_path):
    process = child()
    process.run("mine = store.create_ledger()")
    process.run("[mine.append(bytes(1 << 20)) for _ in range(8)] and None")
    small.backup(tmp_path / "backup")
    with bookstand.open(tmp_path / "backup") as backup:
        assert len(backup.open_ledger(0).read(0, 7)) == 8
        assert backup.verify().ok


def test_a_compaction_adopts_the_size_of_another_process(small, child):
    process = child()
    process.run("mine = store.create_ledger()")
    process.run("[mine.append(bytes(1 << 20)) for _ in range(8)] and None")
    process.run("store.delete_ledger(mine.id)")
    process.run("store.close()")
    # The data file may be replaced only where nobody else has it open, and the child has closed it.
    assert small.compact() > 6 * MIB


GROW_TOGETHER = (
    SMALL
    + """
stop = threading.Event()
failures = []
rounds = [0] * 5

def guarded(work, number):
    def run():
        try:
            while not stop.is_set():
                work()
                rounds[number] += 1
        except BaseException as error:
            failures.append(repr(error))
    return run

def read():
    store.nodes.get("/n")
    for ledger in list(store.list_ledgers())[-3:]:
        reader = store.open_ledger(ledger, recovery=False)
        if reader.last_add_confirmed >= 0:
            reader.read(0, reader.last_add_confirmed)

def write():
    store.nodes.put("/n", b"x" * 100)

def append():
    writer = store.create_ledger()
    writer.append_many([b"y" * 150_000] * 8)

store.nodes.put("/n", b"")
works = [read, read, read, write, append]
threads = [threading.Thread(target=guarded(work, number)) for number, work in enumerate(works)]
for thread in threads:
    thread.start()
"""
)


@pytest.mark.slow
def test_processes_and_threads_that_all_grow_the_map(store_path):
    """Whoever comes second to a map that has become larger adopts it, among reads and commits of its own process."""
    bookstand.open(store_path).close()
    children = [Child(store_path) for _ in range(2)]
    try:
        for process in children:
            process.send(GROW_TOGETHER)
        for process in children:
            process.receive()
        eventually(
            lambda: (
                data_file(store_path).stat().st_size > 60 * MIB
                or any(process.run("len(failures)") for process in children)
            ),
            "the growth",
        )
        for process in children:
            process.run("stop.set()")
        for process in children:
            process.run("[thread.join(30) for thread in threads] and None")
            assert process.run("failures") == []
            assert process.run("[thread.is_alive() for thread in threads]") == [False] * 5
            assert all(process.run("rounds"))
    finally:
        for process in children:
            process.close()
    with bookstand.open(store_path) as store:
        assert store.verify().ok


# -- readers ---------------------------------------------------------------------------------------------------------


def test_slots_of_killed_readers_are_used_again(store, child):
    """More readers than there are slots, all of them dead."""
    store.nodes.put("/n", b"1")
    for _ in range(3):
        process = child()
        process.run("held = [store.storage._environment.begin_read() for _ in range(400)]")
        process.kill()
    assert store.nodes.get("/n") == (b"1", 0)
    readers = [store.storage._environment.begin_read() for _ in range(450)]
    for reader in readers:
        store.storage._environment.end_read(reader)
    store.nodes.put("/n", b"2")


def test_more_living_readers_than_there_are_slots(store, child):
    store.nodes.put("/n", b"1")
    process = child()
    process.run("held = [store.storage._environment.begin_read() for _ in range(500)]")
    environment = store.storage._environment
    mine = []
    try:
        with pytest.raises(errors.StoreError, match="slots"):
            mine.extend(environment.begin_read() for _ in range(20))
    finally:
        for reader in mine:
            environment.end_read(reader)
    process.run("while held: store.storage._environment.end_read(held.pop())")
    assert store.nodes.get("/n") == (b"1", 0)


def rewrite(store, times, size=4000):
    for number in range(times):
        store.nodes.put("/rewritten", bytes([number % 251]) * size)


def grows_by(store, times):
    """A look that is under way keeps pages for as long as its thread has to wait; the next one keeps others."""
    before = file_size(store)
    rewrite(store, times)
    return file_size(store) - before


def file_size(store):
    return os.stat(os.path.join(store.path, "data.mdb")).st_size


def test_a_killed_reader_does_not_let_the_file_grow(store, child):
    """The pages that it looked at are used again, though the store stays open all the time."""
    rewrite(store, 50)
    process = child()
    process.run("held = store.storage._environment.begin_read()")
    process.kill()
    before = file_size(store)
    rewrite(store, 3000)
    assert file_size(store) < before + 4 * MIB


@pytest.mark.parametrize("kind", ["entries", "payloads", "list", "follow", "unconfirmed"])
def test_a_slow_iterator_does_not_let_the_file_grow(store, kind):
    writer = store.create_ledger()
    writer.append_many([b"x" * 100] * 5000)
    writer.append(b"tells of those before it")
    for _ in range(10):
        store.create_ledger()
    if kind == "entries":
        iterator = iter(writer)
    elif kind == "payloads":
        iterator = writer.payloads()
    elif kind == "list":
        iterator = store.list_ledgers()
    elif kind == "follow":
        iterator = store.open_ledger(writer.id, recovery=False).follow(1)
    else:
        iterator = iter(writer.read_unconfirmed(0, 4999))
    next(iterator)
    rewrite(store, 20)
    before = file_size(store)
    for _ in range(8):
        rewrite(store, 150)
        scratch = store.create_ledger()
        scratch.append_many([bytes(1000)] * 100)
        store.delete_ledger(scratch.id)
        store.storage.collect(scratch.id)
        next(iterator)
    assert file_size(store) < before + 3 * MIB


def test_a_stuck_wait_does_not_let_the_file_grow(store):
    writer = store.create_ledger()
    writer.append(b"a")
    reader = store.open_ledger(writer.id, recovery=False)
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(reader.wait_entry(5, PATIENCE)))
    waiting.start()
    assert any(grows_by(store, 200) == 0 for _ in range(50)), "pages are kept for the one who waits"
    writer.append_many([b"b"] * 6)
    writer.append(b"c")
    waiting.join(PATIENCE)
    assert answers[0][1].data == b"b"


# -- closing ---------------------------------------------------------------------------------------------------------


def test_threads_that_read_while_the_store_is_closed(store_path):
    """Each gets its answer, or hears that the store is closed; nothing reads through a map that is gone."""
    for _ in range(15):
        store = bookstand.open(store_path)
        store.nodes.put("/n", b"1")
        started = threading.Barrier(5)
        others = []

        def read(store=store, started=started, others=others):
            started.wait(PATIENCE)
            try:
                while True:
                    assert store.nodes.get("/n")[0] == b"1"
            except errors.ClientClosedError:
                pass
            except BaseException as error:
                others.append(error)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait(PATIENCE)
        store.close()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert others == []


def test_readers_do_not_notice_a_compaction(store):
    """Compaction replaces the environment, and with it the handles of the sub-databases, between two transactions."""
    writer = store.create_ledger()
    writer.append(b"x")
    store.nodes.put("/a/b", b"1")
    reader = store.open_ledger(writer.id, recovery=False)
    stop = threading.Event()
    failures = []

    def read(call):
        while not stop.is_set():
            try:
                call()
            except Exception as error:
                failures.append(error)
                return

    calls = [
        lambda: list(store.list_ledgers()),
        lambda: store.nodes.children("/"),
        lambda: store.nodes.get("/a/b"),
        lambda: reader.read_unconfirmed(0, 0),
        store.verify,
    ]
    threads = [threading.Thread(target=read, args=(call,)) for call in calls]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for _ in range(40):
            store.compact()
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
