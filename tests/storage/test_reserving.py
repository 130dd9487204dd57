"""Room ahead in the data file: little where the store is small, gone without harm, and never a reason for an error."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

import bookstand
from bookstand import errors
from bookstand.storage.lmdb import environment, preallocation
from bookstand.storage.lmdb.meta_page import META_PAGES, SMALLEST_PAGE
from bookstand.storage.lmdb.pages import PageReader
from bookstand.storage.process.data_files import structure_problem
from bookstand.storage.repair.repair import repair
from bookstand.testing.crash import syscall_recorder
from bookstand.testing.crash.lab import CrashLab
from tests.kit import Child, data_file, until_full

KIB, MIB = 1 << 10, 1 << 20
ENTRY = 4 * KIB

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="there is none on this system")

ANYWHERE = "import random; from bookstand.storage.lmdb import environment; environment.is_supported = lambda path: True"


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever file system the tests run on."""
    monkeypatch.setattr(environment, "is_supported", lambda path: True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB on a block device."""
    image, mount_point = tmp_path / "image", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    mount_point.mkdir()
    for command in (["mkfs.ext4", "-q", "-F", image], ["mount", "-o", "loop", image, mount_point]):
        try:
            done = subprocess.run(command, capture_output=True, check=False).returncode
        except OSError:
            done = 1
        if done:
            pytest.skip("a file system of its own needs root and mkfs.ext4")
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", "-l", mount_point], check=True)


def size(path: Path) -> int:
    return data_file(path).stat().st_size


def used(path: Path) -> int:
    """What the header tells of."""
    file = PageReader(str(data_file(path)))
    try:
        return (max(meta for meta in file.metas if meta).last_page + 1) * file.page_size
    finally:
        file.close()


def reserve(path: Path) -> int:
    return size(path) - used(path)


def most(path: Path) -> int:
    return min(used(path) // 2, preallocation.LARGEST)


def payload(number: int) -> bytes:
    return random.Random(number).randbytes(ENTRY)


def fill(writer, count: int) -> None:
    for _ in range(count):
        writer.append(payload(writer.last_add_confirmed + 1))


def check(path: Path, ledger_id: int, count: int) -> None:
    with bookstand.open(path, create=False, check="structure") as store:
        assert [entry.data for entry in store.open_ledger(ledger_id)] == [payload(number) for number in range(count)]
        assert store.verify().ok


# -- how much --------------------------------------------------------------------------------------------------------


def test_a_small_store_has_none(store, store_path):
    writer = store.create_ledger()
    while size(store_path) < 2 * preallocation.SMALLEST - 16 * ENTRY:
        fill(writer, 1)
        assert reserve(store_path) <= 0


@pytest.mark.long
def test_it_grows_with_the_store(store, store_path):
    writer = store.create_ledger()
    ahead = []
    while used(store_path) < 6 * MIB:
        fill(writer, 1)
        # It was measured by what was in use before the commit.
        assert reserve(store_path) <= most(store_path)
        ahead.append(reserve(store_path))
    first = next(index for index, one in enumerate(ahead) if one > 0)
    assert min(ahead[first:]) > 0
    assert ahead[first] < preallocation.LARGEST // 3
    assert max(ahead) > preallocation.LARGEST * 3 // 4


@pytest.mark.slow
def test_the_file_seldom_grows_and_has_its_blocks(store, store_path, monkeypatch):
    writer = store.create_ledger()
    fill(writer, 400)
    looks, lengthen = [], preallocation._extend_file
    monkeypatch.setattr(preallocation, "_extend_file", lambda *told: looks.append(told) or lengthen(*told))
    lengths = set()
    for _ in range(200):
        fill(writer, 1)
        lengths.add(size(store_path))
        assert data_file(store_path).stat().st_blocks * 512 >= size(store_path)
    assert 1 < len(lengths) <= 4
    assert len(looks) <= 4
    with data_file(store_path).open("rb") as file:
        file.seek(used(store_path))
        assert not any(file.read())


@pytest.mark.parametrize(("growth", "most_looks"), [(0, 10), (1, 40), (26, 250)])
def test_it_is_looked_after_no_more_often_than_it_may_be_used_up(tmp_path, growth, most_looks):
    file = tmp_path / "data"
    file.write_bytes(bytes(4 * MIB))
    reserve = preallocation.Preallocator(str(file), 4 * KIB)
    last_page, looks = MIB // KIB - 1, 0
    for commit in range(1, 400):
        if commit >= reserve.next_check:
            reserve.maybe_extend(commit, last_page)
            looks += 1
        last_page += growth
        assert file.stat().st_size > last_page * 4 * KIB
    assert 5 < looks <= most_looks


@pytest.mark.slow
def test_what_is_there_is_used_after_an_opening(open_store, store_path):
    store = open_store()
    fill(store.create_ledger(), 400)
    store.close()
    before = size(store_path)
    assert reserve(store_path) > most(store_path) // 2 + 20 * ENTRY
    fill(open_store().create_ledger(), 2)
    assert size(store_path) == before


def test_nothing_is_kept_where_nothing_is_synced(open_store, store_path):
    fill(open_store(durability="none").create_ledger(), 400)
    assert reserve(store_path) <= 0


@pytest.mark.slow
def test_nothing_is_kept_where_it_gains_nothing(open_store, store_path, monkeypatch):
    monkeypatch.setattr(environment, "is_supported", lambda path: False)
    fill(open_store().create_ledger(), 400)
    assert reserve(store_path) <= 0


def test_where_it_gains(disk, memory_path):
    assert preallocation.is_supported(str(disk))
    if memory_path.is_relative_to("/dev/shm"):
        assert not preallocation.is_supported(str(memory_path))


# -- disks without room ----------------------------------------------------------------------------------------------


def take_the_rest(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(16 * KIB))


def test_a_disk_that_fills_up(disk):
    """Nearly full, it is left to others; what was kept ahead is there for the commits that come."""
    path = disk / "store"
    with bookstand.open(path) as store:
        writer = store.create_ledger()
        fill(writer, 100)
        ahead = reserve(path)
        assert ahead > 0
        ballast = disk / "ballast"
        take_the_rest(ballast)
        fitted = 100 + len(until_full(lambda: writer.append(payload(writer.last_add_confirmed + 1))))
        # An entry takes two pages.
        assert (fitted - 100) * 2 * ENTRY > ahead // 2
        ballast.unlink()
    check(path, writer.id, fitted)


@pytest.mark.slow
def test_a_share_of_what_is_free(store, store_path, monkeypatch):
    looks = []

    def free_bytes(descriptor):
        looks.append(descriptor)
        return 60 * preallocation.LARGEST

    monkeypatch.setattr(preallocation, "_free_bytes", free_bytes)
    writer = store.create_ledger()
    while used(store_path) < 6 * MIB:
        fill(writer, 1)
        assert reserve(store_path) < preallocation.LARGEST
    # At the latest where what there was has been used up, and not before each commit.
    assert 2 < len(looks) < 30


@pytest.mark.long
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EOPNOTSUPP, errno.EINVAL])
@pytest.mark.parametrize("failing", ["posix_fallocate", "pwrite"])
def test_a_system_that_refuses(store, store_path, monkeypatch, failing, code):
    """What it took of the disk is given back, and nobody asks again."""
    asked = []
    real = getattr(os, failing)

    def refuse(descriptor, *arguments):
        if failing == "pwrite" and len(arguments[0]) < 4096:
            # A header page.
            return real(descriptor, *arguments)
        asked.append(size(store_path))
        if failing == "posix_fallocate":
            # As far as it got.
            start, length = arguments
            real(descriptor, start, length // 2)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, failing, refuse)
    writer = store.create_ledger()
    for _ in range(400):
        fill(writer, 1)
        assert reserve(store_path) <= 0
    assert len(asked) == 1


@pytest.mark.slow
def test_zeros_that_are_written_in_part(store, store_path, monkeypatch):
    real = os.pwrite

    def in_part(file, data, start):
        # Header pages are shorter.
        return real(file, data if len(data) < 4096 else data[: len(data) // 3], start)

    monkeypatch.setattr(os, "pwrite", in_part)
    writer = store.create_ledger()
    for _ in range(400):
        fill(writer, 1)
        assert reserve(store_path) <= 0


def test_an_interruption_lets_others_write(store, store_path, monkeypatch, child):
    """Ctrl-C in the middle of it."""
    fill(writer := store.create_ledger(), 100)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            fill(writer, 1000)
        # The exception holds on to where it was raised; the lock of writers is free all the same.
        child().run("store.nodes.put('/other', b'')")
        assert caught.value is not None
    store.nodes.put("/mine", b"")


# -- others who look at the file -------------------------------------------------------------------------------------


@pytest.mark.long
def test_several_processes(store_path):
    """Each keeps room for all, and none writes zeros over what another has committed."""
    with bookstand.open(store_path):
        pass
    children = [Child(store_path) for _ in range(3)]
    try:
        for process in children:
            process.run(ANYWHERE)
            process.run("store = bookstand.open(path)")
            process.run("writer = store.create_ledger()")
        for process in children:
            process.send("[writer.append(random.Random(n).randbytes(4096)) for n in range(500)] and None")
        for process in children:
            process.receive()
        assert 0 < reserve(store_path) <= preallocation.LARGEST
    finally:
        for process in children:
            process.close()
    for ledger_id in range(3):
        check(store_path, ledger_id, 500)


def test_nobody_commits_meanwhile(store, store_path, monkeypatch, child):
    """Another process could write its pages where the zeros go."""
    other, answered = child(), []
    allocate = os.posix_fallocate

    def hold(*arguments):
        other.send("store.nodes.put('/other', b'')")
        time.sleep(0.3)
        answered.append(not other._replies.empty())
        allocate(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", hold)
        writer = store.create_ledger()
        while not answered:
            fill(writer, 1)
    assert answered == [False]
    other.receive()


def test_a_backup_has_none(store, store_path, tmp_path):
    fill(store.create_ledger(), 400)
    assert reserve(store_path) > 0
    store.backup(tmp_path / "copy")
    assert reserve(tmp_path / "copy") == 0
    check(tmp_path / "copy", 0, 400)


@pytest.mark.slow
def test_compacting_gives_it_back(store, store_path):
    fill(store.create_ledger(), 400)
    before, ahead = size(store_path), reserve(store_path)
    assert ahead > 0
    assert store.compact() == before - size(store_path) >= ahead
    assert reserve(store_path) == 0


@pytest.mark.slow
def test_after_compacting_there_is_some_again(store, store_path):
    writer = store.create_ledger()
    fill(writer, 400)
    store.compact()
    fill(writer, 1)
    fill(writer, 1)
    assert reserve(store_path) > most(store_path) // 2


@pytest.mark.slow
def test_a_file_that_was_copied_without_it(store, store_path):
    """A reserve that was cut off is nothing that was lost."""
    writer = store.create_ledger()
    fill(writer, 400)
    store.close()
    os.truncate(data_file(store_path), used(store_path))
    check(store_path, writer.id, 400)
    with data_file(store_path).open("r+b") as file:
        file.truncate(used(store_path) - 1)
    with pytest.raises(errors.StoreDamagedError):
        bookstand.open(store_path, read_only=True)
    with data_file(store_path).open("r+b") as file:
        file.truncate(used(store_path))


def test_repair_around_it(store, store_path, tmp_path):
    """Every page of the file is looked at where pages are lost, and zeros are nothing."""
    fill(store.create_ledger(), 400)
    store.close()
    assert reserve(store_path) > 0
    image = bytearray(data_file(store_path).read_bytes())
    # Both headers: the trees are looked for on all pages.
    image[: META_PAGES * SMALLEST_PAGE] = bytes(META_PAGES * SMALLEST_PAGE)
    (damaged := tmp_path / "damaged").mkdir()
    (damaged / "data.mdb").write_bytes(image)
    report = repair(damaged, tmp_path / "new")
    assert [loss.what for loss in report.losses] == ["store"]
    check(tmp_path / "new", 0, 400)


# -- crashes ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("after", range(0, 60, 7))
def test_a_killed_process(store_path, after):
    process = Child(store_path)
    try:
        process.run(ANYWHERE)
        process.run("store = bookstand.open(path)")
        process.run("writer = store.create_ledger()")
        process.run("[writer.append(random.Random(n).randbytes(4096)) for n in range(200)] and None")
        # In the middle of the appends that follow.
        process.send("[print(writer.append(random.Random(200 + n).randbytes(4096)), flush=True) for n in range(300)]")
        for _ in range(after):
            confirmed = process.receive_raw()
    finally:
        process.kill()
        process.close()
    assert reserve(store_path) > 0
    assert structure_problem(str(store_path)) is None
    with bookstand.open(store_path, create=False) as store:
        found = [entry.data for entry in store.open_ledger(0)]
        assert len(found) > (confirmed if after else 199)
        assert found == [payload(number) for number in range(len(found))]
        assert store.verify().ok


def growing(path, acknowledge):
    """Commits before, in and behind what is kept ahead, and some of them larger than it."""
    with (
        mock.patch.object(environment, "is_supported", return_value=True),
        mock.patch.object(preallocation, "SMALLEST", 8 * KIB),
        bookstand.open(path) as store,
    ):
        writer = store.create_ledger()
        for number in range(6):
            acknowledge(writer.append(bytes([number + 1]) * (30_000 if number == 3 else 9000)))


def keeps(store, acknowledged):
    for entry_id in acknowledged:
        (found,) = store.open_ledger(0, recovery=False).read_unconfirmed(entry_id, entry_id)
        assert set(found.data) == {entry_id + 1}


@pytest.mark.long
@pytest.mark.parametrize("recorder", ["pages", "observed"])
def test_power_cuts(recorder):
    """Also those that leave the zeros in part, and a length without them."""
    if recorder == "observed" and (reason := syscall_recorder.missing()) is not None:
        pytest.skip(reason)
    with CrashLab() as lab:
        recording = lab.record(growing, recorder)
        lengthened = [one for one in recording.operations if one.kind == "truncate" and one.path.endswith("data.mdb")]
        assert len(lengthened) >= 2
        assert lab.explore(recording, keeps).states > 400


@pytest.mark.slow
def test_both_recorders_see_the_same():
    if (reason := syscall_recorder.missing()) is not None:
        pytest.skip(reason)

    def told(recorder):
        with CrashLab() as lab:
            return [
                (one.kind, one.offset, len(one.data), one.synchronous)
                for one in lab.record(growing, recorder).operations
                if one.path.endswith("data.mdb")
            ]

    assert told("pages") == told("observed")
