"""How a store comes into being, and what is looked at before LMDB sees a file."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import time
from pathlib import Path

import pytest

import bookstand
from bookstand import errors
from tests.kit import PATIENCE, Child, Program, data_file, own_environment
from tests.storage import trials

# -- creation --------------------------------------------------------------------------------------------------------


def test_the_files_of_a_store(store, store_path):
    writer = store.create_ledger()
    writer.append(b"a")
    names = sorted(path.name for path in store_path.iterdir())
    assert names[:2] == ["data.mdb", "lock.mdb"]
    assert [name.startswith(f"open-{os.getpid()}-") for name in names[2:]] == [True]
    store.close()
    assert sorted(path.name for path in store_path.iterdir()) == ["data.mdb", "lock.mdb"]


def test_the_lock_file_has_its_blocks(store, store_path):
    """LMDB maps it: a hole there that the disk has no room for would end the process."""
    status = (store_path / "lock.mdb").stat()
    assert status.st_size >= 32 << 10
    assert status.st_blocks * 512 >= status.st_size
    readers = [store.storage._environment.begin_read() for _ in range(500)]
    assert (store_path / "lock.mdb").stat().st_size == status.st_size
    for reader in readers:
        store.storage._environment.end_read(reader)


@pytest.mark.parametrize("leftover", ["creating-1234", "creating-copy", "creating-1234-lock"])
@pytest.mark.parametrize("kind", ["empty", "garbage", "half a store", "folder"])
def test_leftovers_of_a_creation(store_path, tmp_path, leftover, kind):
    store_path.mkdir()
    left = store_path / leftover
    if kind == "folder":
        left.mkdir()
        (left / "data.mdb").write_bytes(b"part of a copy")
    elif kind == "half a store":
        with bookstand.open(tmp_path / "another"):
            pass
        left.write_bytes(data_file(tmp_path / "another").read_bytes()[:8192])
    else:
        left.write_bytes(b"" if kind == "empty" else os.urandom(10_000))
    with bookstand.open(store_path) as store:
        store.create_ledger().append(b"a")
        assert store.verify().ok
    assert sorted(path.name for path in store_path.iterdir()) == ["data.mdb", "lock.mdb"]


@pytest.mark.parametrize("leftover", ["creating-1234", "creating-copy"])
def test_leftovers_in_a_store(store_path, leftover):
    """Of a compaction that was killed, say."""
    with bookstand.open(store_path) as store:
        store.create_ledger().append(b"a")
    (store_path / leftover).mkdir()
    (store_path / leftover / "data.mdb").write_bytes(bytes(100_000))
    with bookstand.open(store_path) as store:
        assert store.open_ledger(0).read(0, 0)[0].data == b"a"
    assert sorted(path.name for path in store_path.iterdir()) == ["data.mdb", "lock.mdb"]


def test_nothing_is_made_without_create(tmp_path):
    with pytest.raises(errors.StoreNotFoundError):
        bookstand.open(tmp_path / "a" / "b", create=False)
    with pytest.raises(errors.StoreNotFoundError):
        bookstand.open(tmp_path / "a" / "b", read_only=True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(errors.StoreNotFoundError):
        bookstand.open(tmp_path / "empty", create=False)
    assert list((tmp_path / "empty").iterdir()) == []


CREATE_AND_WRITE = """
import sys, bookstand
print("ready", flush=True)
sys.stdin.readline()
store = bookstand.open(sys.argv[1])
writer = store.create_ledger()
while True:
    print(writer.id, writer.append(b"x"), flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment_of_the_first_opening(memory_path):
    rng = random.Random(5)
    for number in range(15):
        path = memory_path / str(number)
        with Program(CREATE_AND_WRITE, path) as program:
            program.wait_for_lines(1)
            program.tell("go")
            time.sleep(rng.random() * 0.03)
            told = program.kill()[1:]
        with bookstand.open(path) as store:
            if told:
                ledger_id, last = map(int, told[-1].split())
                assert store.open_ledger(ledger_id).last_add_confirmed >= last
            assert store.verify().ok
            store.create_ledger().append(b"a")


def test_two_processes_create_the_same_path_at_once(memory_path):
    """Whoever comes second finds what the first one made, also where the folders above are missing."""
    children = [Child(memory_path) for _ in range(3)]
    try:
        for number in range(25):
            path = memory_path / "deeper" / str(number) / "store"
            for child in children:
                child.send(f"store = bookstand.open({str(path)!r})")
            for child in children:
                child.receive()
            for child in children:
                child.send("writer = store.create_ledger(); writer.append(b'x')")
            for child in children:
                child.receive()
            ledgers = [child.run("list(store.list_ledgers())") for child in children]
            assert ledgers == [[0, 1, 2]] * 3
            assert len({child.run("store.storage.store_id.hex()") for child in children}) == 1
            for child in children:
                child.run("store.close()")
    finally:
        for child in children:
            child.close()


def test_opening_through_other_names_of_the_folder(tmp_path, store, store_path):
    """One environment a process, whatever the path is called: LMDB must not open a file twice."""
    (tmp_path / "link").symlink_to(store_path)
    for name in (tmp_path / "link", str(store_path) + "/", store_path / ".." / store_path.name):
        with bookstand.open(name) as other:
            assert other.storage is store.storage
            assert other.nodes.put("/a", b"") >= 0


NOBODY = """
import os, sys
import bookstand, bookstand.storage.verify, lmdb.verify, numpy, shutil, subprocess, encodings.idna
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
for path, options in ((sys.argv[1] + "/new", {}), (sys.argv[2], {}), (sys.argv[2], {"read_only": True})):
    try:
        bookstand.open(path, **options).close()
        print("opened")
    except bookstand.BookstandError as error:
        print(type(error).__name__)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="changing the user needs root")
@pytest.mark.parametrize("kind", ["folder", "files", "lock file"])
def test_no_permission(kind):
    """Not allowed is an error of ours, whichever file it is that may not be touched."""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        base.chmod(0o755)
        (base / "locked").mkdir()
        with bookstand.open(base / "store") as store:
            store.create_ledger().append(b"a")
        (base / "store").chmod({"folder": 0o700, "files": 0o755, "lock file": 0o777}[kind])
        if kind == "lock file":
            (base / "store" / "data.mdb").chmod(0o666)
            (base / "store" / "lock.mdb").chmod(0o600)
        with Program(NOBODY, base / "locked", base / "store") as program:
            assert program.finish() == 0
        assert program.lines == ["StoreAccessError"] * 3


# -- before LMDB sees it ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("pristine") / "store"
    trials.make(path)
    return path


@pytest.fixture(scope="module")
def unclean(tmp_path_factory, pristine) -> Path:
    """The same left by a process that was killed."""
    path = tmp_path_factory.mktemp("unclean") / "store"
    shutil.copytree(pristine, path)
    with Program(
        "import sys, bookstand; bookstand.open(sys.argv[1]); print('x', flush=True); sys.stdin.read()", path
    ) as p:
        p.wait_for_lines(1)
        p.kill()
    return path


def pages(path: Path) -> int:
    return data_file(path).stat().st_size // trials.PAGE


@pytest.mark.long
def test_an_undamaged_store_passes_every_check(pristine, unclean, memory_path):
    for number, start in enumerate((pristine, unclean)):
        for check in ("fast", "full", "subprocess"):
            (result,) = trials.trials(start, [[]], memory_path / f"{number}-{check}", check=check, then_write=True)
            assert result["right"] == sum(trials.LEDGERS.values()), result
            assert (result["opened"], result["problems"], result["written"]) == (True, 0, True), result


@pytest.mark.long
@pytest.mark.parametrize("state", ["pristine", "unclean"])
def test_cut_at_every_page_and_at_odd_sizes(request, memory_path, state):
    start = request.getfixturevalue(state)
    size = data_file(start).stat().st_size
    cuts = {page * trials.PAGE for page in range(pages(start))}
    rng = random.Random(3)
    cuts |= {0, 1, 15, 16, 100, 151, 152, 4095, 4097, 8191, 8193, size - 1, size - 4095}
    cuts |= {rng.randrange(size) for _ in range(20)}
    damages = [[["cut", cut]] for cut in sorted(cuts)]
    results = trials.check(trials.trials(start, damages, memory_path / state), damages)
    for (edit,), result in zip(damages, results, strict=True):
        # Less than all of it is refused; only free pages may be missing at the end.
        if result["opened"]:
            assert result["lost"] == 0, (edit, result)
        else:
            assert result["error"] == "StoreDamagedError", (edit, result)


def header_damages() -> list[trials.Damage]:
    """Each word of both header pages set to what would make LMDB stumble, and whole pages."""
    damages: list[trials.Damage] = []
    for page in (0, 1):
        for word in range(16, 152, 4):
            for value in ("00000000", "ffffffff", "00001000"):
                damages.append([["write", page * trials.PAGE + word, value]])
    damages += [
        [["write", 0, "00" * 8192]],
        [["write", 0, "ff" * 8192]],
        [["write", 0, b"bookstand".hex() * 800]],
        [["copy", 0, 1]],
        [["copy", 1, 0]],
        [["copy", 5, 0], ["copy", 6, 1]],
    ]
    return damages


@pytest.mark.long
def test_header_pages_of_all_kinds(pristine, memory_path):
    damages = header_damages()
    trials.check(trials.trials(pristine, damages, memory_path / "fast", check="fast"), damages)
    some = damages[::9] + damages[-6:]
    trials.check(trials.trials(pristine, some, memory_path / "full", check="full"), some)


@pytest.mark.slow
def test_header_pages_with_a_witness(pristine, memory_path):
    """The older of the two headers is a whole store, one commit back: damage that makes LMDB take it is noticed."""
    damages = header_damages()[::4]
    results = trials.trials(pristine, damages, memory_path / "trials", witness=True)
    trials.check(results, damages, witness=True)
    assert any(result["error"] == "StoreDamagedError" for result in results)


def some_damage(rng: random.Random, last_page: int) -> trials.Damage:
    page = rng.randrange(2, last_page)
    kind = rng.randrange(6)
    if kind == 0:
        return [["write", rng.randrange(2 * trials.PAGE, last_page * trials.PAGE), f"{1 << rng.randrange(8):02x}"]]
    if kind == 1:
        return [["write", page * trials.PAGE, rng.randbytes(trials.PAGE).hex()]]
    if kind == 2:
        return [["write", page * trials.PAGE, "00" * trials.PAGE]]
    if kind == 3:
        return [["copy", rng.randrange(0, last_page), page]]
    if kind == 4:
        return [["write", page * trials.PAGE + rng.randrange(16), rng.randbytes(4).hex()]]
    other = rng.randrange(2, last_page)
    return [["copy", page, other], ["write", other * trials.PAGE, other.to_bytes(8, "little").hex()]]


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_an_unclean_store_with_damaged_pages(unclean, memory_path, seed):
    """After a kill the structure is looked at; what gets past that is met by digests and seals."""
    rng = random.Random(seed)
    damages = [some_damage(rng, pages(unclean)) for _ in range(60)]
    results = trials.check(trials.trials(unclean, damages, memory_path / "trials", check="fast"), damages)
    assert sum(not result["opened"] for result in results) > 15


@pytest.mark.slow
def test_full_check_of_a_clean_store_with_damaged_pages(pristine, memory_path):
    rng = random.Random(3)
    damages = [some_damage(rng, pages(pristine)) for _ in range(80)]
    results = trials.check(trials.trials(pristine, damages, memory_path / "trials", check="full"), damages)
    for result in results:
        # Whatever a full check lets through is whole.
        assert not result["opened"] or (result["lost"] == 0 and result["problems"] == 0)


@pytest.mark.slow
def test_a_check_in_another_process_before_anything_is_written(pristine, memory_path):
    """``check="subprocess"`` is for files that are not trusted: they may be written to afterwards."""
    rng = random.Random(4)
    damages = [some_damage(rng, pages(pristine)) for _ in range(8)]
    damages += [[["cut", data_file(pristine).stat().st_size - trials.PAGE]], [["write", 0, "ff" * 8192]]]
    results = trials.check(
        trials.trials(pristine, damages, memory_path / "trials", check="subprocess", then_write=True), damages
    )
    for result in results:
        assert not result["opened"] or (result["lost"] == 0 and result["written"])


@pytest.mark.slow
@pytest.mark.parametrize("check", ["fast", "full"])
def test_the_end_of_a_large_entry_cut_off(pristine, memory_path, check):
    """The pages of a large entry at the very end of the file: a structure check that misses the cut would let LMDB
    read beyond the end, which is SIGBUS."""
    size = data_file(pristine).stat().st_size
    damages = [[["cut", size - pages_cut * trials.PAGE]] for pages_cut in range(1, 9)]
    trials.check(trials.trials(pristine, damages, memory_path / check, check=check, then_write=True), damages)


@pytest.mark.slow
def test_an_unclean_store_is_refused_where_a_clean_one_opens(pristine, unclean, memory_path):
    """The structure is looked at after a kill, and only then: that costs time in proportion to the file."""
    damage = [[["write", 3 * trials.PAGE, "ff" * trials.PAGE]]]
    (result,) = trials.trials(unclean, damage, memory_path / "unclean", check="fast")
    assert (result["opened"], result["error"]) == (False, "StoreDamagedError")
    (result,) = trials.trials(pristine, damage, memory_path / "full", check="full")
    assert (result["opened"], result["error"]) == (False, "StoreDamagedError")


def test_the_message_tells_what_is_damaged(pristine, tmp_path):
    path = tmp_path / "store"
    shutil.copytree(pristine, path)
    trials.edit(str(data_file(path)), [["write", 3 * trials.PAGE, "ff" * trials.PAGE]])
    for check in ("full", "subprocess"):
        with pytest.raises(errors.StoreDamagedError) as caught:
            bookstand.open(path, check=check)
        assert str(path) in str(caught.value)


def test_a_probe_as_a_program(pristine, tmp_path):
    """What ``check="subprocess"`` runs can be run by hand."""
    import subprocess
    import sys

    def probe(path):
        return subprocess.run(
            [sys.executable, "-m", "bookstand.storage.process.probe", str(path)],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=own_environment(),
        )

    assert probe(pristine).returncode == 0
    path = tmp_path / "store"
    shutil.copytree(pristine, path)
    trials.edit(str(data_file(path)), [["write", 3 * trials.PAGE, "ff" * trials.PAGE]])
    done = probe(path)
    assert done.returncode == 1
    assert "damaged" in done.stdout + done.stderr
    assert json.dumps(done.stdout)
