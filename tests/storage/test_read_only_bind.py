"""A living store seen through a read-only bind mount, where a reader cannot tell the writer which pages it reads."""

from __future__ import annotations

import subprocess

import pytest

import bookstand
from tests.kit import Program

READ = """
import sys
import bookstand
try:
    store = bookstand.open(sys.argv[1], read_only=True)
except bookstand.BookstandError as error:
    print("refused", flush=True)
    sys.exit()
environment = store.storage._environment
transaction = environment.begin_read()
entries = environment.databases[b"entries"]
cursor = transaction.cursor(entries)
before = hash(tuple(cursor.iternext()))
print("reading", flush=True)
sys.stdin.readline()
assert hash(tuple(transaction.cursor(entries).iternext())) == before
environment.end_read(transaction)
print("read", flush=True)
"""


@pytest.fixture
def seen_read_only(store_path, tmp_path):
    """Another name of the folder of the test's store, under which it cannot be written to."""
    view = tmp_path / "view"
    view.mkdir()
    store_path.mkdir()
    if subprocess.run(["mount", "--bind", str(store_path), str(view)], capture_output=True, check=False).returncode:
        pytest.skip("mounting a folder under another name needs root")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(view)], check=True)
        yield view
    finally:
        subprocess.run(["umount", "-l", str(view)], check=True)


def churn(store, rounds):
    for _ in range(rounds):
        writer = store.create_ledger()
        writer.append_many(b"%d:%d" % (writer.id, number) * 50 for number in range(300))
        store.delete_ledger(writer.id)
        store.storage.collect(writer.id)


def test_the_pages_of_a_reader_are_kept_or_it_is_refused(seen_read_only, store_path):
    """A reader holds a snapshot while the writer frees and reuses pages: no page of it may change under it."""
    with bookstand.open(store_path) as store:
        kept = store.create_ledger()
        kept.append_many(b"%d:%d" % (kept.id, number) * 50 for number in range(5000))
        with Program(READ, seen_read_only) as program:
            if program.wait_for_lines(1) == ["reading"]:
                store.delete_ledger(kept.id)
                store.storage.collect(kept.id)
                churn(store, 40)
                program.tell("go on")
                assert program.wait_for_lines(2)[1] == "read"
            assert program.finish() == 0
        assert store.verify().ok


def test_alone_it_is_read(seen_read_only, store_path):
    """Without a writer, reading through the mount works, with and without a lock file."""
    with bookstand.open(store_path) as store:
        writer = store.create_ledger()
        writer.append(b"a")
        writer.close()
    for _ in range(2):
        with bookstand.open(seen_read_only, read_only=True) as store:
            assert [entry.data for entry in store.open_ledger(writer.id)] == [b"a"]
            assert store.verify().ok
        (store_path / "lock.mdb").unlink(missing_ok=True)
