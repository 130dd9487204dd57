"""Traces that a failed commit leaves in the header pages: the next commit, of any process, removes them first.

LMDB reports a commit as failed if it could not wait for its header page; the disk may have that page nevertheless. The
next commit writes to the same data pages. If the power is cut then, the header page on the disk would lead to them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import struct

import pytest

import bookstand
from bookstand import errors
from bookstand.storage.lmdb import meta_page
from tests.kit import Program, data_file, eventually, raw
from tests.storage import shim

PAGE = 4096
START, END = 32, meta_page.META_BYTES

CONFIRMED = [b"of the failing process, %d" % number for number in range(4)]

FAILING = """
import sys
import bookstand
from tests.storage import shim

path, answer, second = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = bookstand.open(path)
writer = store.create_ledger()
for number in range(4):
    writer.append(b"of the failing process, %d" % number)
print("ready", flush=True)
sys.stdin.readline()
shim.arm(path + "/data.mdb", "dsync", 1, answer)
if second != 1:
    shim.then(second)
try:
    print("acknowledged", store.nodes.put("/failed", b""), flush=True)
except bookstand.BookstandError as error:
    print(type(error).__name__, flush=True)
shim.disarm()
sys.stdin.readline()
store.close()
"""


@pytest.fixture
def failing(shim_library, store_path):
    """Start a process whose next commit fails in its last write; ``second`` is the answer to the write after it, by
    which LMDB undoes the header page. It is killed at the end."""
    started = []

    def start(answer=-errno.EIO, second=1):
        program = Program(FAILING, store_path, str(answer), str(second), LD_PRELOAD=shim_library)
        started.append(program)
        program.__enter__()
        program.wait_for_lines(1)
        return program

    yield start
    for program in started:
        program.kill()
        program.__exit__(None, None, None)


def headers(path):
    content = data_file(path).read_bytes()[: 2 * PAGE]
    return [content[start + START : start + END] for start in (0, PAGE)]


def number_of(header):
    return struct.unpack_from("<Q", header, len(header) - 8)[0]


def as_written(headers, newest):
    """The header page as the commit after the newest one wrote it, which has failed: the undone one with its number."""
    undone, other = headers[(newest + 1) % 2], headers[newest % 2]
    # The last page in use, which is before the number, is that of the newest commit at least.
    return undone[:-16] + other[-16:-8] + struct.pack("<Q", newest + 1)


def release(path):
    """Let other processes lock the folder, on whichever descriptor this process has locked it."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(int(name)), os.stat(path)):
                fcntl.flock(int(name), fcntl.LOCK_UN)


def read(path):
    with bookstand.open(path) as store:
        report = store.verify()
        assert report.ok, report.problems
        ledgers = {number: [entry.data for entry in store.open_ledger(number)] for number in store.list_ledgers()}
        return ledgers, store.nodes.children("/")


class Disk:
    """What the disk has of a data file: all that was synced, and as the worst case the pages after the header pages as
    they are seen."""

    def __init__(self, path, stored):
        self.path = path
        self.headers = stored

    def sync(self):
        self.headers = headers(self.path)

    def write(self, target):
        target.mkdir()
        content = bytearray(data_file(self.path).read_bytes())
        for start, header in zip((0, PAGE), self.headers, strict=True):
            content[start + START : start + END] = header
        (target / "data.mdb").write_bytes(content)


@pytest.fixture
def disk(store_path, monkeypatch):
    """Follow the header pages on the disk: they change with what this process syncs itself."""

    def follow(stored):
        followed = Disk(store_path, stored)
        real = os.fdatasync

        def fdatasync(descriptor):
            real(descriptor)
            if os.fstat(descriptor).st_ino == data_file(store_path).stat().st_ino:
                followed.sync()

        monkeypatch.setattr(os, "fdatasync", fdatasync)
        return followed

    return follow


@pytest.fixture
def failed(store_path, failing):
    """Let a process's commit fail in its header page, which reaches the disk, and hold the folder's lock, so that it
    cannot open the store again. Gives the program and the header pages on the disk."""
    lock = os.open(store_path, os.O_RDONLY | os.O_DIRECTORY)

    def fail(**answers):
        program = failing(**answers)
        before = headers(store_path)
        fcntl.flock(lock, fcntl.LOCK_EX)
        program.tell("go")
        newest = max(map(number_of, before))
        written = newest + ("second" in answers)
        eventually(lambda: headers(store_path) != before and max(map(number_of, headers(store_path))) == written)
        stored = list(before)
        stored[(newest + 1) % 2] = as_written(headers(store_path), newest)
        return program, stored

    yield fail
    os.close(lock)


def test_a_power_cut_in_a_commit_beside_a_failed_one(store, store_path, failed, disk, tmp_path):
    """The other process commits before the failing one has opened the store again."""
    writer = store.create_ledger()
    writer.append(b"confirmed")
    _, stored = failed()
    followed = disk(stored)
    assert number_of(max(stored, key=number_of)) == store.storage.last_commit + 1
    writer.append_many([b"x" * 900] * 20)
    # All of its data pages reached the disk, its header page did not.
    followed.write(tmp_path / "cut")
    assert read(tmp_path / "cut") == ({0: [b"confirmed"], 1: CONFIRMED}, [])


@pytest.mark.slow
def test_a_commit_that_was_reported_as_failed_never_shows(store, store_path, failed):
    """LMDB could not even undo its header page: it has a number above that of the newest commit."""
    store.create_ledger()
    program, _ = failed(second=errno.EIO)
    release(store_path)
    program.wait_for_lines(2)
    assert program.lines[1] == "WriteError"
    program.kill()
    store.close()
    assert read(store_path) == ({0: [], 1: CONFIRMED}, [])


def test_a_header_page_of_a_killed_process_is_written_again(store, store_path, failing, disk, tmp_path):
    """It is in the system's cache only, which takes it for written, as the device has failed."""
    writer = store.create_ledger()
    writer.append(b"confirmed")
    program = failing(second=shim.KILL)
    before = headers(store_path)
    program.tell("go")
    assert program.finish() == -signal.SIGKILL
    assert headers(store_path) != before
    followed = disk(before)
    writes = []
    real = os.pwrite

    def pwrite(descriptor, data, offset):
        if os.fstat(descriptor).st_ino == data_file(store_path).stat().st_ino:
            writes.append((offset, bytes(data)))
        return real(descriptor, data, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        newest = max(headers(store_path), key=number_of)
        writer.append(b"next")
    # LMDB's own sync, before the header page of this commit, writes the page to the disk.
    assert (number_of(newest) % 2 * PAGE + START, newest) in writes
    followed.sync()
    followed.write(tmp_path / "cut")
    assert read(tmp_path / "cut") == ({0: [b"confirmed", b"next"], 1: CONFIRMED}, ["failed"])


def test_repaired_header_pages_that_cannot_be_synced_fail_the_commit(store, store_path, failed, monkeypatch):
    writer = store.create_ledger()
    writer.append(b"confirmed")
    failed()
    real = os.fdatasync

    def fail(descriptor):
        raise OSError(errno.EIO, "the device failed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(errors.WriteError, match="cannot write the meta pages"):
            store.nodes.put("/a", b"0")
    assert real is os.fdatasync
    store.nodes.put("/a", b"1")
    assert store.nodes.get("/a") == (b"1", 0)
    assert writer.append(b"next") == 1


def test_a_lost_header_page_is_damage(store, store_path):
    """LMDB goes by the number in its lock file, and does not look at that of the header page."""
    store.nodes.put("/a", b"0")
    newest = store.storage.last_commit
    with open(data_file(store_path), "r+b") as file:
        file.seek(newest % 2 * PAGE + END - 8)
        file.write(struct.pack("<Q", newest - 2))
    with pytest.raises(errors.StoreDamagedError, match=f"meta page of commit {newest}, the newest one, has the number"):
        store.nodes.put("/a", b"1")
    with open(data_file(store_path), "r+b") as file:
        file.seek(newest % 2 * PAGE + END - 8)
        file.write(struct.pack("<Q", newest))
    store.nodes.put("/a", b"1")


def test_marks_of_others_are_read_after_a_compaction(store, store_path):
    """The new file counts its commits from the beginning: a number that this process knows may come again."""
    for number in range(10):
        store.nodes.put("/a", b"%d" % number)
    known = store.storage.last_commit
    store.compact()
    with Program(OTHER, store_path, known) as program:
        program.wait_for_lines(1)
        assert store.storage.last_commit == known
        store.nodes.put("/a", b"after")
    store.close()
    with raw(store_path) as database:
        # A checksum of the record, one of a header page, and the marks of this process and of the other one.
        assert len(database(b"meta")[b"writers"]) == 4 + 4 + 2 * 24


OTHER = """
import sys
import bookstand
with bookstand.open(sys.argv[1]) as store:
    while store.storage.last_commit < int(sys.argv[2]):
        store.nodes.put("/b", b"%d" % store.storage.last_commit)
    print("ready", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def operations(monkeypatch):
    """The writes and syncs of this process that are not LMDB's."""
    found = []
    for name in ("pwrite", "fdatasync"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *arguments, n=name, r=real: (found.append(n), r(*arguments))[1])
    return found


def test_a_commit_after_one_of_the_same_process_writes_no_header_page(store, operations):
    store.nodes.put("/a", b"0")
    operations.clear()
    for number in range(5):
        store.nodes.put("/a", b"%d" % number)
    assert operations == []


def test_a_commit_after_one_of_another_process_does_not_sync_once_more(store, child, operations):
    process = child()
    store.nodes.put("/a", b"0")
    for number in range(3):
        process.run(f"store.nodes.put('/b', b'{number}')")
        operations.clear()
        store.nodes.put("/a", b"%d" % number)
        assert operations == ["pwrite"]


def test_the_first_commit_after_a_compaction_syncs_once_more(store, operations):
    store.nodes.put("/a", b"0")
    store.compact()
    operations.clear()
    store.nodes.put("/a", b"1")
    assert operations == ["pwrite", "pwrite", "fdatasync"]
    operations.clear()
    store.nodes.put("/a", b"2")
    assert operations == []


def test_a_store_without_durability_writes_no_header_pages(store_path, operations):
    with bookstand.open(store_path, durability="none") as store:
        store.nodes.put("/a", b"0")
        store.compact()
        operations.clear()
        store.nodes.put("/a", b"1")
        assert operations == []
    with bookstand.open(store_path) as store:
        store.nodes.put("/a", b"2")
        assert operations == ["pwrite", "pwrite", "fdatasync"]
        assert store.verify().ok
