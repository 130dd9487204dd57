"""More of changes, transactions, verify() and several processes: where two of them meet."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import bookstand
from bookstand import errors
from tests import kit

damaged = pytest.mark.damaged
DIGESTS = ("crc32", "crc32c", "hmac", "dummy")


def build(path: Path, digest: str = "crc32c") -> list[int]:
    """Two closed ledgers of ten entries each, and a node."""
    with bookstand.open(path) as store:
        ids = []
        for _ in range(2):
            with store.create_ledger(digest=digest, password=b"pw") as writer:
                writer.append_many([b"payload %d" % number for number in range(10)])
                ids.append(writer.id)
        store.nodes.put("/node", b"value")
        return ids


def verified(path: Path) -> Any:
    with bookstand.open(path, create=False) as store:
        return store.verify()


def places(report: Any) -> list[tuple[int | None, int | None]]:
    return [(problem.ledger_id, problem.entry_id) for problem in report.problems]


# -- nodes, with the store closed and opened in between --------------------------------------------------------------

PATHS = ("/a", "/a/b", "/a/b/c", "/ab", "/a-", "/é")


class ReopenedNodes(RuleBasedStateMachine):
    """``store.nodes`` against a dictionary, also after the store was closed and opened again."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="bookstand-test-")
        self._model: dict[str, tuple[bytes, int]] = {}
        self._open()

    def _open(self) -> None:
        self._store = bookstand.open(self._folder.name, durability="none")

    def teardown(self) -> None:
        with self._folder, self._store:
            assert self._store.verify().ok

    @rule()
    def reopen(self) -> None:
        self._store.close()
        self._open()

    @rule(path=st.sampled_from(PATHS), value=st.binary(max_size=9), expected=st.none() | st.integers(-1, 3))
    def put(self, path: str, value: bytes, expected: int | None) -> None:
        version = self._model[path][1] if path in self._model else -1
        if expected in (None, version):
            assert self._store.nodes.put(path, value, expected) == version + 1
            self._model[path] = value, version + 1
        else:
            assert kit.code_of(lambda: self._store.nodes.put(path, value, expected)) == -17

    @rule(path=st.sampled_from(PATHS), expected=st.none() | st.integers(0, 3))
    def delete(self, path: str, expected: int | None) -> None:
        if path not in self._model:
            with pytest.raises(errors.NoSuchNodeError):
                self._store.nodes.delete(path, expected)
        elif expected in (None, self._model[path][1]):
            self._store.nodes.delete(path, expected)
            del self._model[path]
        else:
            assert kit.code_of(lambda: self._store.nodes.delete(path, expected)) == -17

    @invariant()
    def all_is_there(self) -> None:
        for path in PATHS:
            with pytest.raises(errors.NoSuchNodeError) if path not in self._model else contextlib.nullcontext():
                assert self._store.nodes.get(path) == self._model.get(path)


TestReopenedNodes = ReopenedNodes.TestCase
TestReopenedNodes.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


# -- a closed store beside an open one of the same path --------------------------------------------------------------


def test_a_transaction_of_a_closed_store_is_dropped(open_store: Callable[..., Any]) -> None:
    """Another client of the path keeps the files open: that must not let it through."""
    staying, closing = open_store(), open_store()
    with kit.refused(-19), closing.transaction() as transaction:
        transaction.put_node("/never", b"")
        closing.close()
    assert staying.nodes.children("/") == []


def test_nodes_of_a_closed_store(open_store: Callable[..., Any]) -> None:
    staying, closing = open_store(), open_store()
    staying.nodes.put("/a", b"1")
    nodes = closing.nodes
    closing.close()
    for call in (
        lambda: nodes.get("/a"),
        lambda: nodes.children("/"),
        lambda: nodes.put("/a", b"2"),
        lambda: nodes.delete("/a"),
    ):
        assert kit.code_of(call) == -19
    assert staying.nodes.get("/a") == (b"1", 0)


# -- transactions beside others --------------------------------------------------------------------------------------


def test_transactions_leave_a_thread_that_appends_alone(store: Any) -> None:
    writer, others = store.create_ledger(), store.create_ledger()
    stop = threading.Event()

    def append() -> int:
        count = 0
        while not stop.is_set() or count < 50:
            assert others.append(b"%d" % count) == count
            pending = others.append_async(b"%d" % (count + 1))
            assert pending.result(kit.PATIENCE) == count + 1
            count += 2
        return count

    def transact() -> int:
        try:
            done = 0
            for turn in range(60):
                with contextlib.suppress(KeyError, errors.MetadataVersionError), store.transaction() as transaction:
                    assert transaction.append(writer, b"%d" % done) == done
                    transaction.put_node("/turn", b"", done - 1 if turn % 3 else 1 << 40)
                    if turn % 3 == 2:
                        raise KeyError
                done += turn % 3 == 1
            return done
        finally:
            stop.set()

    done, count = kit.in_threads(2, lambda index: append() if index else transact())
    assert done == 20
    assert [entry.data for entry in writer.read(0, done - 1)] == [b"%d" % number for number in range(done)]
    assert writer.last_add_pushed == done - 1
    assert [entry.data for entry in others.read(0, count - 1)] == [b"%d" % number for number in range(count)]
    assert others.length == sum(len(b"%d" % number) for number in range(count))


def test_a_transaction_of_a_store_with_hooks(open_store: Callable[..., Any]) -> None:
    faults = kit.Faults()
    store = open_store(hooks=faults)
    writer, deferred = store.create_ledger(), store.create_ledger(deferred_sync=True)
    with store.transaction() as transaction:
        for number in range(3):
            assert transaction.append(writer, b"%d" % number) == number
            assert transaction.append(deferred, b"%d" % number) == number
        transaction.put_node("/a", b"", -1)
    with kit.refused(-17), store.transaction() as transaction:
        transaction.append(writer, b"never")
        transaction.append(deferred, b"never")
        transaction.put_node("/a", b"", -1)
    assert writer.append(b"after") == deferred.append(b"after") == 3
    deferred.force()
    for handle in (writer, deferred):
        assert [entry.data for entry in handle.read(0, 3)] == [b"0", b"1", b"2", b"after"]
        assert handle.length == 8


_TURNS = """
import itertools, sys
import bookstand
store = bookstand.open(sys.argv[1])
run = sys.argv[2]
first, second = store.create_ledger(), store.create_ledger(deferred_sync=True)
print(first.id, second.id, flush=True)
for turn in itertools.count():
    with store.transaction() as transaction:
        transaction.append(first, b"%d" % turn)
        transaction.append(second, b"%d" % turn * 3000)
        transaction.put_node("/" + run, b"%d" % turn, turn - 1)
    print(turn, flush=True)
"""


def test_ten_kills_leave_whole_transactions(memory_path: Path) -> None:
    path = memory_path / "store"
    for run, lines in enumerate((2, 3, 5, 8, 11, 17, 23, 31, 40, 55)):
        with kit.Program(_TURNS, path, run) as program:
            program.wait_for_lines(lines)
            told = program.kill()
        first, second = map(int, told[0].split())
        with bookstand.open(path, create=False) as store:
            report = store.verify()
            assert report.ok, report.problems
            with store.open_ledger(first) as one, store.open_ledger(second) as two:
                found = [int(payload) for payload in one.payloads()]
                assert found == list(range(len(found)))
                # The one under way when it was killed is there or not.
                assert len(found) - (len(told) - 1) in (0, 1)
                assert list(two.payloads()) == [b"%d" % turn * 3000 for turn in found]
            assert store.nodes.get(f"/{run}") == (b"%d" % found[-1], found[-1])


# -- verify ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest", DIGESTS)
@pytest.mark.parametrize("size", [0, 1, 31, 35, 41])
@damaged
def test_an_entry_cut_short(store_path: Path, digest: str, size: int) -> None:
    if digest == "dummy" and size >= 32:
        pytest.skip("without a digest a shorter payload is a payload")
    one, _ = build(store_path, digest)
    kit.change_entry(store_path, one, 4, lambda stored: stored[:size])
    assert places(verified(store_path)) == [(one, 4)]


@pytest.mark.parametrize("digest", DIGESTS)
@damaged
def test_two_entries_swapped(store_path: Path, digest: str) -> None:
    one, _ = build(store_path, digest)
    stored = kit.stored_entries(store_path, one)
    kit.change_entry(store_path, one, 3, lambda _: stored[6])
    kit.change_entry(store_path, one, 6, lambda _: stored[3])
    assert places(verified(store_path)) == [(one, 3), (one, 6)]


@pytest.mark.parametrize("name", [b"ledgers", b"state", b"nodes"])
@pytest.mark.parametrize("size", [0, 3, 4, 11])
@damaged
def test_a_record_cut_short(store_path: Path, name: bytes, size: int) -> None:
    one, _ = build(store_path)
    key = b"/node" if name == b"nodes" else one.to_bytes(8, "big")
    with kit.raw(store_path, write=True) as database:
        records = database(name)
        records[key] = records[key][:size]
    ledger_id = None if name == b"nodes" else one
    assert {problem.ledger_id for problem in verified(store_path).problems} == {ledger_id}


@damaged
def test_a_missing_last_entry_is_named(store_path: Path) -> None:
    one, _ = build(store_path)
    kit.change_entry(store_path, one, 9, lambda _: None)
    assert (one, 9) in places(verified(store_path))


@damaged
def test_an_entry_behind_the_last_one_is_reported(store_path: Path) -> None:
    one, _ = build(store_path)
    with kit.raw(store_path, write=True) as database:
        entries = database(b"entries")
        entries[kit.entry_key(one, 10)] = entries[kit.entry_key(one, 3)]
    assert {problem.ledger_id for problem in verified(store_path).problems} == {one}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (b"nodes", b"/\xff"),
        (b"ledgers", b"abc"),
        (b"state", b"abc"),
        (b"entries", b"abc"),
        (b"entries", kit.entry_key(0, 3) + b"x"),
        (b"entries", b"\xff" * 16),
    ],
)
@damaged
def test_a_key_that_can_be_none_is_reported(store_path: Path, name: bytes, key: bytes) -> None:
    """A flipped bit in a key makes it another one; verify() goes on, and says so."""
    build(store_path)
    with kit.raw(store_path, write=True) as database:
        database(name)[key] = b"whatever"
    report = verified(store_path)
    assert not report.ok
    assert report.entries >= 20


@pytest.mark.parametrize("read", [lambda reader: list(reader), lambda reader: reader.read(0, 9)])
@damaged
def test_reading_without_the_state_is_damage_not_absence(store_path: Path, read: Callable[[Any], Any]) -> None:
    one, _ = build(store_path)
    with kit.raw(store_path, write=True) as database:
        del database(b"state")[one.to_bytes(8, "big")]
    with bookstand.open(store_path) as store, pytest.raises(errors.StoreDamagedError):
        read(store.open_ledger(one, password=b"pw"))


def test_lengths_of_writes_that_overtake_each_other(open_store: Callable[..., Any]) -> None:
    """An Adv entry counts its length when it is submitted, which need not be in the order in which it is stored."""
    faults = kit.Faults()
    store = open_store(hooks=faults)
    writer = store.create_ledger_adv()
    faults.hold("add")
    later = writer.write_async(1, b"submitted first")
    faults.wait_held(1)
    faults.hold("none")
    assert writer.write(0, b"stored first") == 0
    faults.release()
    assert later.result(kit.PATIENCE) == 1
    report = store.verify()
    assert report.ok, report.problems


_WRITE = """
plain = store.create_ledger()
adv = store.create_ledger_adv(5_000, digest="hmac", password=b"pw")
stop = threading.Event()

def write():
    number = 0
    while not stop.is_set():
        plain.append(b"theirs")
        adv.write_async(3 * number, b"gaps" * number)
        short = store.create_ledger(digest="hmac", password=b"%d" % number)
        short.append_many([b"short"] * 20)
        store.delete_ledger(short.id)
        if number % 3 == 0:
            store.storage.collect_deleted(1 << 62)
        number += 1
    rounds.append(number)

rounds = []
thread = threading.Thread(target=write)
thread.start()
"""


def test_verify_beside_a_writing_thread_and_a_writing_process(
    open_store: Callable[..., Any], child: Callable[..., kit.Child]
) -> None:
    store, other = open_store(), child()
    other.run(_WRITE)
    stop = threading.Event()

    def write() -> None:
        ours = store.create_ledger()
        while not stop.is_set():
            ours.append(b"ours")
            ours.append_many([b"ours too"] * 30)

    def look() -> None:
        try:
            for _ in range(30):
                report = store.verify()
                assert report.ok, report.problems
        finally:
            stop.set()

    try:
        kit.in_threads(2, lambda index: write() if index else look())
    finally:
        other.run("stop.set()")
        other.run("thread.join()")
    assert other.run("len(rounds)") == 1


# -- processes -------------------------------------------------------------------------------------------------------


def test_explicit_lac_reaches_another_process(store: Any, child: Callable[..., kit.Child]) -> None:
    other = child("explicit_lac_interval=0.02")
    other.run("writer = store.create_ledger()\nwriter.append(b'0')\nwriter.append(b'1')")
    reader = store.open_ledger(other.run("writer.id"), recovery=False)
    kit.eventually(lambda: reader.read_explicit_last_confirmed() == 1, "the explicit LAC")
    assert [entry.data for entry in reader.read(0, 1)] == [b"0", b"1"]
    lac, entry = reader.wait_entry(1, kit.PATIENCE)
    assert (lac, entry and entry.data) == (1, b"1")


@pytest.mark.parametrize("created_again", [True, False])
def test_the_explicit_lac_of_an_old_writer_is_not_the_new_ledgers(
    store: Any, child: Callable[..., kit.Child], created_again: bool
) -> None:
    other = child()
    old = store.create_ledger_adv(7)
    for entry_id in range(3):
        old.write(entry_id, b"old")
    other.run("store.delete_ledger(7)\nstore.storage.collect_deleted(1 << 62)")
    if created_again:
        other.run("writer = store.create_ledger_adv(7)")
    # What the background does, twice because the LAC must have stood still in between.
    for _ in range(2):
        with contextlib.suppress(bookstand.BookstandError):
            old.send_explicit_lac()
    state = store.storage.state(7)
    if not created_again:
        assert state is None
        return
    assert state.explicit_lac == -1
    assert store.open_ledger(7, recovery=False).read_last_confirmed() == -1
    assert other.run("writer.write(0, b'new')") == 0
    with store.open_ledger(7) as reader:
        assert [entry.data for entry in reader] == [b"new"]


def test_a_read_only_process_beside_a_writer(store: Any, child: Callable[..., kit.Child]) -> None:
    writer = store.create_ledger()
    writer.append(b"0")
    store.nodes.put("/a", b"1")
    other = child("read_only=True")
    other.run(f"reader = store.open_ledger({writer.id}, recovery=False)")
    for number in range(1, 20):
        writer.append(b"%d" % number)
        assert other.run(f"reader.read_unconfirmed({number}, {number})[0].data.decode()") == str(number)
        assert other.run("reader.read_last_confirmed()") == number - 1
    assert other.run("store.nodes.get('/a')[0].decode()") == "1"
    for refused in (
        "store.create_ledger()",
        "store.nodes.put('/a', b'')",
        f"store.delete_ledger({writer.id})",
        "store.transaction()",
        f"store.open_ledger({writer.id}, recovery=True)",
    ):
        assert other.code_of(refused) == -104, refused
    assert other.run("store.verify().ok") is True
    assert writer.append(b"on") == 20


def test_a_process_opens_a_path_with_one_durability(store: Any, store_path: Path) -> None:
    with pytest.raises(errors.StoreInUseError):
        bookstand.open(store_path, durability="none")
    with bookstand.open(store_path, read_only=True) as looking:
        assert kit.code_of(looking.create_ledger) == -104
    assert store.create_ledger().append(b"on") == 0


def test_metadata_of_two_processes(store: Any, child: Callable[..., kit.Child]) -> None:
    other = child()
    ledger_id = store.create_ledger(custom_metadata={"who": b"ours"}).id
    for turn in range(10):
        metadata = store.ledger_metadata(ledger_id)
        assert other.run(f"store.ledger_metadata({ledger_id}).version") == metadata.version == 2 * turn
        changed = metadata.replace(custom_metadata={"who": b"%d" % turn})
        assert store.write_ledger_metadata(changed, metadata.version) == 2 * turn + 1
        assert other.run(f"store.ledger_metadata({ledger_id}).custom_metadata['who'].decode()") == str(turn)
        other.run(f"metadata = store.ledger_metadata({ledger_id})")
        assert other.run("store.write_ledger_metadata(metadata, metadata.version)") == 2 * turn + 2
        assert kit.code_of(lambda changed=changed, at=2 * turn + 1: store.write_ledger_metadata(changed, at)) == -17


# -- memory ----------------------------------------------------------------------------------------------------------

_BUILD = """
import sys
import bookstand
with bookstand.open(sys.argv[1], durability="none") as store:
    # Never forced: every entry carries LAC -1, and recovery has to read all of them.
    writer = store.create_ledger(deferred_sync=True)
    for _ in range(18):
        writer.append_many([b"x" * 8_300] * 1_000)
    print(writer.id)
"""

_MEASURE = """
import sys, threading
import bookstand

def private():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon:"))

def sample():
    global peak
    while not stop.wait(0.002):
        peak = max(peak, private())

stop = threading.Event()
with bookstand.open(sys.argv[1], durability="none") as store:
    reader = store.open_ledger(int(sys.argv[2])) if sys.argv[3] in ("iterate", "payloads") else None
    start = peak = private()
    sampler = threading.Thread(target=sample)
    sampler.start()
    if sys.argv[3] == "verify":
        count = store.verify().entries
    elif sys.argv[3] == "recover":
        count = store.open_ledger(int(sys.argv[2])).last_add_confirmed + 1
    else:
        count = 0
        for _ in reader if sys.argv[3] == "iterate" else reader.payloads():
            count += 1
            if count % 500 == 0:
                peak = max(peak, private())
    stop.set()
    sampler.join()
print(count, peak - start)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_entries_that_just_fill_a_slice_need_little_memory(memory_path: Path) -> None:
    """Equal entries of the size at which a slice holds the most bytes."""
    done = kit.run_python(_BUILD, memory_path / "store")
    assert done.returncode == 0, done.stderr
    took = {}
    for what in ("verify", "recover", "iterate", "payloads"):
        measured = kit.run_python(_MEASURE, memory_path / "store", int(done.stdout), what)
        assert measured.returncode == 0, (what, measured.stderr)
        count, grown = map(int, measured.stdout.split())
        assert count == 18_000, what
        took[what] = grown >> 20
    assert max(took.values()) <= 64, took
