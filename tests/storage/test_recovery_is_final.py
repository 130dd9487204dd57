"""Recovery is final: what one opening after a power cut shows, every later one shows, whatever happens meanwhile.

States of the disk are those that power cuts leave of recorded workloads. Each is opened; opened by a process that is
killed, or whose device fails, at each of its operations; cut again at each operation of an opening; and opened beside
another process. Every later opening has to show what the first one has shown.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
from pathlib import Path

import google_crc32c
import pytest

import bookstand
from bookstand.storage.format import schema
from bookstand.testing.crash.lab import CrashLab
from tests.kit import Child, Program, raw
from tests.soak.crash_work import Mixture
from tests.storage import shim, trials
from tests.storage.test_outcome_unknown import each_case

SEEDS = (3, 11)
STATES = 2


def shown(store):
    """The number of the newest commit, and a digest of all records."""
    storage = store.storage
    environment = storage._environment
    digest = hashlib.sha256()
    with environment.read() as transaction:
        for name in sorted(environment.databases):
            for key, value in transaction.cursor(environment.databases[name]):
                digest.update(b"%d %d %s%s" % (len(key), len(value), bytes(key), bytes(value)))
    return [storage.last_commit, digest.hexdigest()]


def shown_by(path, **options):
    with bookstand.open(path, **options) as store:
        return shown(store)


@pytest.fixture(scope="module")
def cut_stores(tmp_path_factory):
    """Stores as power cuts leave them, most of them in the middle of a commit."""
    folder = tmp_path_factory.mktemp("cut")
    found = []
    with CrashLab(folder) as lab:
        for seed in SEEDS:
            recording = lab.record(Mixture(seed, steps=4, witness=False))
            states = [state for state in lab.states(recording) if state.acknowledged and state.case.dropped]
            for number, state in enumerate(random.Random(seed).sample(states, STATES)):
                place = folder / f"{seed}-{number}"
                found.append(Path(lab.write(recording, state.case, place)))
    return found


def copied(cut_store, to):
    shutil.copytree(cut_store, to)
    return to


@pytest.mark.parametrize("check", ["fast", "structure", "full"])
def test_every_opening_shows_the_same(cut_stores, tmp_path, check):
    for number, cut_store in enumerate(cut_stores):
        path = copied(cut_store, tmp_path / str(number))
        first = shown_by(path, read_only=True)
        assert [shown_by(path, check=check) for _ in range(2)] == [first] * 2
        assert shown_by(path, read_only=True) == first


class Opening:
    """A workload: a store of which all is on the disk is opened and closed."""

    def __init__(self, source):
        self.source = source

    def __call__(self, path, acknowledge):
        shutil.copytree(self.source, path)
        for name in os.listdir(path):
            sync(os.path.join(path, name))
        sync(path)
        sync(os.path.dirname(path))
        acknowledge("there")
        bookstand.open(path).close()


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def test_an_opening_that_is_cut_shows_the_same(cut_stores, tmp_path):
    tried = 0
    for number, cut_store in enumerate(cut_stores[:2]):
        first = shown_by(copied(cut_store, tmp_path / str(number)))
        with CrashLab(tmp_path) as lab:
            recording = lab.record(Opening(cut_store))
            for state in lab.states(recording):
                if state.acknowledged:
                    tried += 1
                    path = lab.write(recording, state.case, tmp_path / f"{number}-{tried}")
                    assert shown_by(path) == first, state.case
    assert tried > 6


OPENING = """
from tests.storage.test_recovery_is_final import shown_by

def work(path, arm):
    arm()
    first = told_by(lambda: bookstand.open(path).close())
    counted = shim.count()
    shim.disarm()
    return {"first": first, "counted": counted, "then": told_by(lambda: shown_by(path))}
"""


def test_an_opening_during_which_the_device_fails_shows_the_same(cut_stores, shim_library, memory_path):
    """Each operation of an opening fails once, those that only look included."""
    cut_store = cut_stores[0]
    first = shown_by(copied(cut_store, memory_path / "first"))
    base = memory_path / "cases"
    base.mkdir()
    cases = [["**", when, errno.EIO, 1] for when in range(1, 90, 7)]
    cases += [[shim.CHANGING, when, -errno.EIO, 1] for when in range(1, 4)]
    for number in range(len(cases)):
        copied(cut_store, base / str(number))
    failed = 0
    for _, case, told in each_case(shim_library, base, OPENING, cases):
        assert told["first"][0] != "leaked", (case, told)
        assert told["then"] == ["ok", first], (case, told)
        failed += told["first"][0] != "ok"
    assert failed > 4


KILLED = """
import os, sys
import bookstand
from tests.storage import shim
bookstand.open(sys.argv[2]).close()
for when in range(1, 1000):
    path = os.path.join(sys.argv[1], str(when))
    if not os.path.isdir(path):
        break
    child = os.fork()
    if not child:
        shim.arm(path, "*", when)
        bookstand.open(path).close()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_an_opening_that_is_killed_shows_the_same(cut_stores, shim_library, memory_path):
    cut_store = cut_stores[1]
    first = shown_by(copied(cut_store, memory_path / "first"))
    base = memory_path / "cases"
    base.mkdir()
    for when in range(1, 10):
        copied(cut_store, base / str(when))
    with Program(KILLED, base, copied(cut_store, memory_path / "other"), LD_PRELOAD=shim_library) as program:
        assert program.finish() == 0
    assert program.lines.count("-9") > 2, program.lines
    for when in range(1, 10):
        assert shown_by(base / str(when)) == first


def test_a_second_process_shows_the_same(cut_stores, memory_path):
    """It opens the store beside the first one, which is killed then."""
    path = copied(cut_stores[0], memory_path / "store")
    first = shown_by(copied(cut_stores[0], memory_path / "first"))
    child = Child(path)
    try:
        child.run("store = bookstand.open(path)")
        child.run("from tests.storage.test_recovery_is_final import shown")
        assert child.run("shown(store)") == first
        with bookstand.open(path) as store:
            assert shown(store) == first
            child.kill()
            assert shown(store) == first
    finally:
        child.close()
    assert shown_by(path) == first


# -- crafted header pages and records ----------------------------------------------------------------------------------


def crafted_headers(seed, count):
    """Changes of both header pages: any of their bytes, and numbers at which arithmetic may fail."""
    rng = random.Random(seed)
    special = [0, 1, 2, 3, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 4095, 4096, 4097]
    damages = []
    for _ in range(count):
        damage = []
        for _ in range(rng.choice((1, 1, 2, 6))):
            page = rng.randrange(2) * trials.PAGE
            kind = rng.random()
            if kind < 0.4:
                value = rng.choice(special).to_bytes(8, "little")[: rng.choice((2, 4, 8))]
                damage.append(["write", page + rng.randrange(0, 152, 4), value.hex()])
            elif kind < 0.9:
                damage.append(["write", page + rng.randrange(152), rng.randbytes(rng.choice((1, 4, 16, 152))).hex()])
            else:
                damage.append(["cut", rng.choice((0, 1, 16, 151, 152, 4096, 4248, 8191, 8192, 12288))])
        damages.append(damage)
    return damages


@pytest.mark.slow
@pytest.mark.parametrize("check", ["fast", "full"])
def test_crafted_header_pages_are_damage(tmp_path, memory_path, check):
    pristine = tmp_path / "pristine"
    shape = trials.Shape.of(5)
    history = trials.make(pristine, shape)
    damages = crafted_headers(check, 16)
    results = trials.trials(pristine, damages, memory_path / "trials", shape, check=check)
    trials.check(results, damages, shape=shape, history=history)
    assert any(result["error"] for result in results)


RECORDS = [*schema.META_RECORDS, schema.META_WRITERS]


def crafted_bodies(rng):
    yield b""
    for size in (1, 3, 4, 5, 7, 8, 9, 16, 24, 28, 4 + 17 * 24, 2000):
        yield rng.choice((rng.randbytes(size), b"\xff" * size, bytes(size)))


@pytest.mark.damaged
@pytest.mark.parametrize("name", RECORDS)
def test_crafted_records_are_damage(memory_path, name):
    """Whatever the record holds, and whether or not its checksum is right."""
    path = memory_path / "store"
    with bookstand.open(path) as store:
        store.create_ledger().append(b"x")
        store.nodes.put("/a", b"0")
    with raw(path) as database:
        before = database(b"meta")[name]
    outcomes = set()
    for body in crafted_bodies(random.Random(name)):
        for value in (body, google_crc32c.value(name + body).to_bytes(4, "big") + body):
            with raw(path, write=True) as database:
                database(b"meta")[name] = value
            outcomes.add(outcome_of(path))
    with raw(path, write=True) as database:
        database(b"meta")[name] = before
    assert outcomes <= {"fine", "StoreDamagedError", "StoreFormatError"}
    assert "StoreDamagedError" in outcomes or name == schema.META_STORE_ID
    with bookstand.open(path) as store:
        assert store.nodes.get("/a") == (b"0", 0)


def outcome_of(path):
    """Open the store, use what reads its first records, and verify it; an error that is not ours is raised."""
    try:
        with bookstand.open(path, read_only=True) as store:
            store.verify()
            assert store.nodes.get("/a") == (b"0", 0)
            assert len(store.storage.store_id) >= 0
        with bookstand.open(path) as store:
            for call in (store.create_ledger, lambda: store.nodes.put("/b", b"")):
                call()
            store.nodes.delete("/b")
    except bookstand.BookstandError as error:
        return type(error).__name__
    return "fine"
