"""A power cut on a real file system: one that forgets everything that was not synced.

A file system that is full is in ``test_disk_full.py``, one that cannot be written to in ``test_read_only*.py``.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

import bookstand
from bookstand import errors
from tests.kit import Program
from tests.storage import forgetful


class Disk:
    """The file system, served by a process of its own."""

    def __init__(self, mount_point: Path) -> None:
        self.path = mount_point
        serve = "import sys; from tests.storage import forgetful; forgetful.serve(sys.argv[1])"
        self._server = Program(serve, mount_point)
        self._server.wait_for_lines(1)

    def cut_power(self) -> None:
        """Nobody may have a file open there: a cut ends all processes, too."""
        said = len(self._server.lines)
        self._server.tell("cut")
        self._server.wait_for_lines(said + 1)

    def close(self) -> None:
        self._server.finish()


@pytest.fixture
def disk(tmp_path):
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    try:
        device = forgetful.mount(str(mount_point))
    except OSError as error:
        pytest.skip(f"a file system of our own cannot be mounted here: {error}")
    forgetful.unmount(str(mount_point), device)
    mounted = Disk(mount_point)
    yield mounted
    mounted.close()


def write(file: Path, data: bytes, sync: bool) -> None:
    with file.open("wb") as stream:
        stream.write(data)
        stream.flush()
        if sync:
            os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def test_it_forgets_what_was_not_synced(disk):
    write(disk.path / "kept", b"kept", True)
    write(disk.path / "empty", b"not synced itself", False)
    sync_folder(disk.path)
    write(disk.path / "kept", b"overwritten", False)
    write(disk.path / "nameless", b"synced, but without its name", True)
    assert len(list(disk.path.iterdir())) == 3
    disk.cut_power()
    assert {file.name: file.read_bytes() for file in disk.path.iterdir()} == {"kept": b"kept", "empty": b""}


WRITER = """
import os, sys
import bookstand

path, options = sys.argv[1], eval(sys.argv[2])

def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

store = bookstand.open(path, **options)
tell("opened")
number = 0
while True:
    writer = store.create_ledger()
    tell("ledger", writer.id)
    for _ in range(6):
        tell("acked", writer.id, writer.append(b"%d:%d" % (writer.id, writer.last_add_pushed + 1)))
    pendings = [writer.append_async(b"%d:%d" % (writer.id, 6 + i)) for i in range(20)]
    for pending in pendings:
        tell("acked", writer.id, pending.result())
    number = int(store.nodes.get("/number")[0]) if "number" in store.nodes.children("/") else 0
    with store.transaction() as together:
        together.append(writer, b"%d:26" % writer.id)
        together.put_node("/number", b"%d" % (number + 1))
    tell("number", number + 1)
    tell("acked", writer.id, 26)
    writer.close()
    tell("closed", writer.id)
"""


def write_until_the_power_is_cut(disk, seed, options):
    """What it was promised, in lines."""
    chance = random.Random(seed)
    with Program(WRITER, disk.path / "store", options) as program:
        program.wait_for_lines(1 + chance.randrange(60))
        time.sleep(chance.random() * 0.01)
        told = program.kill()
    disk.cut_power()
    return [line.split() for line in told]


def missing(store, told):
    """What was promised, and is not there."""
    lost = []
    ledgers = set(store.list_ledgers())
    node = int(store.nodes.get("/number")[0]) if "number" in store.nodes.children("/") else 0
    for words in told:
        what, number = words[0], int(words[1]) if len(words) > 1 else 0
        if what == "number":
            kept = node >= number
        elif what == "opened":
            kept = True
        else:
            kept = number in ledgers and (what != "closed" or store.is_closed(number))
        if kept and what == "acked":
            entry = int(words[2])
            reader = store.open_ledger(number)
            kept = reader.last_add_confirmed >= entry
            kept = kept and reader.read(entry, entry)[0].data == b"%d:%d" % (number, entry)
        if not kept:
            lost.append(words)
    return lost


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"witness": True}])
def test_what_was_promised_outlives_power_cuts(disk, options):
    """One cut after the other, each into what the ones before have left."""
    told = []
    for seed in range(12):
        told += write_until_the_power_is_cut(disk, seed, options)
        with bookstand.open(disk.path / "store", create=False, **options) as store:
            assert store.verify().ok
            assert missing(store, told) == []
    assert len(told) > 200


def test_without_durability_promises_are_lost(disk):
    """The test above is worth nothing if it cannot fail."""
    told = write_until_the_power_is_cut(disk, 1, {"durability": "none"})
    try:
        with bookstand.open(disk.path / "store", create=False) as store:
            assert missing(store, told)
    except errors.StoreError:
        pass


@pytest.mark.parametrize("name", ["one", "one/two/three"])
def test_a_store_is_there_as_soon_as_it_was_opened(disk, name):
    """With all the folders that were made for it."""
    source = """
import sys
import bookstand
store = bookstand.open(sys.argv[1])
print("opened", flush=True)
sys.stdin.read()
"""
    with Program(source, disk.path / name) as program:
        program.wait_for_lines(1)
        program.kill()
    disk.cut_power()
    with bookstand.open(disk.path / name, create=False) as store:
        assert store.create_ledger().append(b"a") == 0


def test_compaction_and_backup(disk):
    """Both are synced before they are told of: the new file, its name and its folder's."""
    program = """
import sys
import bookstand
store = bookstand.open(sys.argv[1])
kept, doomed = store.create_ledger(), store.create_ledger()
kept.append_many([b"kept"] * 200)
doomed.append_many([bytes(3000)] * 50)
store.delete_ledger(doomed.id)
store.backup(sys.argv[1] + "-backup")
assert store.compact() > 0
kept.append(b"after it")
print("done", flush=True)
sys.stdin.read()
"""
    with Program(program, disk.path / "store") as running:
        running.wait_for_lines(1)
        running.kill()
    disk.cut_power()
    for name, count in (("store", 201), ("store-backup", 200)):
        with bookstand.open(disk.path / name, create=False) as store:
            assert store.verify().ok
            assert store.open_ledger(0).last_add_confirmed == count - 1
