"""A device that fails under a commit: what was confirmed is there afterwards, and the error says what is known.

Every file operation of a commit fails once or for good, before or after it was done, with each of the errors that
devices give. Whatever happens, a later look finds all that was confirmed, no hole, and nothing that was never sent.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

import bookstand
from tests.kit import Program

# Forks a child for each case, which tells what was confirmed and what it was told.
EACH_CASE = """
import errno, json, os, signal, sys, threading
import bookstand, bookstand.storage.verify
from bookstand import errors
from tests.storage import shim

base, cases = sys.argv[1], json.loads(sys.argv[2])

def told_by(call):
    try:
        return ["ok", call()]
    except bookstand.BookstandError as error:
        return [type(error).__name__, getattr(error, "code", None)]
    except BaseException as error:
        return ["leaked", repr(error)]

{work}

for number, (operations, when, answer, times) in enumerate(cases):
    path = os.path.join(base, str(number))
    inlet, outlet = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(20)
        told = work(path, lambda: shim.arm(path, operations, when, answer, times))
        os.write(outlet, json.dumps(told).encode())
        os._exit(0)
    os.close(outlet)
    with open(inlet, "rb") as stream:
        told = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([status, json.loads(told) if told else None]), flush=True)
"""

FLUSHES_AND_WRITES = "write,writev,pwrite,pwrite64,pwritev,pwritev64,fsync,fdatasync,ftruncate,ftruncate64"
ONCE, FOR_EVER = 1, -1
CASES = [
    [FLUSHES_AND_WRITES, when, sign * error, times]
    for when in range(1, 7)
    for error in (errno.EIO, errno.ENOSPC)
    for sign in (1, -1)
    for times in (ONCE, FOR_EVER)
]


def each_case(shim_library: Path, base: Path, work: str, cases: list[list[Any]]) -> list[tuple[Path, list[Any], Any]]:
    source = EACH_CASE.replace("{work}", work)
    with Program(source, base, json.dumps(cases), LD_PRELOAD=shim_library) as program:
        assert program.finish() == 0, program.lines[-3:]
    told = [json.loads(line) for line in program.lines]
    assert len(told) == len(cases)
    bad = [(case, one) for case, one in zip(cases, told, strict=True) if one[0] != 0]
    assert not bad, f"{len(bad)} of {len(cases)} ended by themselves: {bad[:4]}"
    return [(base / str(i), case, one[1]) for i, (case, one) in enumerate(zip(cases, told, strict=True))]


APPENDS = """
def work(path, arm):
    store = bookstand.open(path)
    writer, other = store.create_ledger(), store.create_ledger()
    confirmed = [writer.append(b"0")]
    other.append(b"other")
    arm()
    answers = []
    for number in range(1, 5):
        answers.append(told_by(lambda: writer.append(b"%d" % number)))
        if answers[-1][0] == "ok":
            confirmed.append(answers[-1][1])
    reads = [told_by(lambda: other.read(0, 0)[0].data.decode()), told_by(lambda: len(writer.read_unconfirmed(0, 0)))]
    shim.disarm()
    # The device works again: the store goes on, or says that it has to be opened again, which is possible.
    later = told_by(lambda: store.create_ledger().append(b"later"))
    closed = told_by(store.close)
    again = told_by(lambda: bookstand.open(path).create_ledger().append(b"again"))
    return {"confirmed": confirmed, "answers": answers, "reads": reads, "later": later, "closed": closed,
            "again": again, "ledger": writer.id}
"""

REFUSALS = {"WriteError", "NotEnoughBookiesError", "OutcomeUnknownError", "StoreDamagedError", "LedgerClosedError"}


@pytest.mark.slow
def test_appends(shim_library, memory_path):
    failed = 0
    for path, case, told in each_case(shim_library, memory_path, APPENDS, CASES):
        about = (case, told)
        for answer in told["answers"]:
            assert answer[0] == "ok" or answer[0] in REFUSALS, about
        failed += any(answer[0] != "ok" for answer in told["answers"])
        # Reads go on, unless the store says that it has to be opened again.
        unusable = told["later"][0] == "OutcomeUnknownError"
        assert unusable or told["reads"] == [["ok", "other"], ["ok", 1]], about
        assert unusable or told["later"] == ["ok", 0], about
        assert told["closed"][0] in {"ok", "OutcomeUnknownError"}, about
        assert told["again"] == ["ok", 0], about
        with bookstand.open(path) as store:
            report = store.verify()
            assert report.ok, (about, report.problems)
            found = [entry.data for entry in store.open_ledger(told["ledger"])]
            assert len(found) >= len(told["confirmed"]), about
            assert found == [b"%d" % number for number in range(len(found))], about
            assert told["confirmed"] == list(range(len(told["confirmed"]))), about
    assert failed > len(CASES) // 2


IN_ALL_WAYS = """
def work(path, arm):
    store = bookstand.open(path, witness=True)
    plain, adv, many = store.create_ledger(), store.create_ledger_adv(), store.create_ledger()
    for handle in (plain, many):
        handle.append(b"first")
    adv.write(0, b"first")
    store.nodes.put("/n", b"first")
    confirmed = {}
    arm()
    pendings = [plain.append_async(b"%d" % number) for number in range(1, 30)]
    adds = [adv.write_async(number, b"%d" % number) for number in (3, 1, 2)]
    answers = {}
    for name, group in (("plain", pendings), ("adv", adds)):
        answers[name] = [told_by(pending.result) for pending in group]
    answers["many"] = [told_by(lambda: list(many.append_many([b"m"] * 50)))]
    answers["node"] = [told_by(lambda: store.nodes.put("/n", b"second"))]

    def together():
        with store.transaction() as transaction:
            created = transaction.create_ledger()
            transaction.append(created, b"t")
            transaction.put_node("/t", b"%d" % created.id)
        return created.id

    answers["transaction"] = [told_by(together)]
    shim.disarm()
    answers["close"] = [told_by(plain.close), told_by(store.close)]
    return {"ledgers": [plain.id, adv.id, many.id], "answers": answers}
"""


@pytest.mark.slow
def test_in_all_ways(shim_library, memory_path):
    for path, case, told in each_case(shim_library, memory_path, IN_ALL_WAYS, CASES):
        about = (case, told)
        answers = told["answers"]
        leaked = [one for group in answers.values() for one in group if one[0] == "leaked"]
        assert not leaked, about
        plain, adv, many = told["ledgers"]
        with bookstand.open(path, witness=True) as store:
            report = store.verify()
            assert report.ok, (about, report.problems)
            found = [entry.data for entry in store.open_ledger(plain)]
            assert found == [b"first", *(b"%d" % number for number in range(1, len(found)))], about
            assert len(found) > max([0, *(one[1] for one in answers["plain"] if one[0] == "ok")]), about
            found = [entry.data for entry in store.open_ledger(adv)]
            assert found == [b"first", *(b"%d" % number for number in range(1, len(found)))], about
            assert len(found) > max([0, *(one[1] for one in answers["adv"] if one[0] == "ok")]), about
            found = [entry.data for entry in store.open_ledger(many)]
            assert found in ([b"first"], [b"first"] + [b"m"] * 50), about
            if answers["many"][0][0] == "ok":
                assert len(found) == 51, about
            value, version = store.nodes.get("/n")
            assert (value, version) in ((b"first", 0), (b"second", 1)), about
            if answers["node"][0][0] == "ok":
                assert version == 1, about
            names = store.nodes.children("/")
            if answers["transaction"][0][0] == "ok":
                assert "t" in names, about
            if "t" in names:
                created = int(store.nodes.get("/t")[0])
                assert [entry.data for entry in store.open_ledger(created)] == [b"t"], about


CREATION = """
def work(path, arm):
    arm()
    first = told_by(lambda: bookstand.open(path).close())
    shim.disarm()
    return {"first": first, "second": told_by(lambda: bookstand.open(path).close())}
"""


@pytest.mark.slow
def test_creation(shim_library, memory_path):
    """A creation that failed, whatever failed in it, is followed by one that works."""
    cases = [["*", when, error, ONCE] for when in range(1, 28) for error in (errno.EIO, -errno.EIO, errno.ENOSPC)]
    for path, case, told in each_case(shim_library, memory_path, CREATION, cases):
        assert told["first"][0] != "leaked", (case, told)
        assert told["second"] == ["ok", None], (case, told)
        with bookstand.open(path) as store:
            assert store.verify().ok


UPKEEP = """
def work(path, arm):
    store = bookstand.open(path)
    kept, doomed = store.create_ledger(), store.create_ledger()
    kept.append_many([b"kept"] * 300)
    doomed.append_many([bytes(2000)] * 100)
    store.delete_ledger(doomed.id)
    arm()
    compacted = told_by(store.compact)
    shim.disarm()
    after = told_by(lambda: len(kept.read(0, 299)))
    written = told_by(lambda: store.create_ledger().append(b"x"))
    closed = told_by(store.close)
    return {"compacted": compacted, "after": after, "written": written, "closed": closed}
"""


@pytest.mark.long
def test_compaction(shim_library, memory_path):
    """A compaction that fails loses nothing, and the store goes on, or says that it has to be opened again."""
    cases = [["*", when, error, ONCE] for when in range(1, 22) for error in (errno.EIO, errno.ENOSPC)]
    for path, case, told in each_case(shim_library, memory_path, UPKEEP, cases):
        about = (case, told)
        assert "leaked" not in [one[0] for one in told.values()], about
        if told["written"][0] != "OutcomeUnknownError":
            assert told["after"] == ["ok", 300], about
            assert told["written"] == ["ok", 0], about
        with bookstand.open(path) as store:
            assert len(list(store.open_ledger(0))) == 300, about
            report = store.verify()
            assert report.ok, (about, report.problems)
        leftovers = {file.name for file in path.iterdir()} - {"data.mdb", "lock.mdb"}
        assert not leftovers, (about, leftovers)


BACKUP = """
def work(path, arm):
    store = bookstand.open(path + "-source")
    writer = store.create_ledger()
    writer.append_many([b"kept"] * 300)
    arm()
    first = told_by(lambda: store.backup(path))
    shim.disarm()
    second = told_by(lambda: store.backup(path)) if first[0] != "ok" else first
    answer = {"first": first, "second": second, "written": told_by(lambda: writer.append(b"x"))}
    store.close()
    return answer
"""


@pytest.mark.long
def test_backup(shim_library, memory_path):
    cases = [["*", when, error, ONCE] for when in range(1, 14) for error in (errno.EIO, errno.ENOSPC)]
    for path, case, told in each_case(shim_library, memory_path, BACKUP, cases):
        about = (case, told)
        assert told["first"][0] != "leaked", about
        assert told["written"] == ["ok", 300], about
        if told["second"] == ["ok", None]:
            with bookstand.open(path) as store:
                assert len(list(store.open_ledger(0))) == 300
                assert store.verify().ok
        else:
            # A failed one may leave a whole copy that was not synced: the folder is refused as not empty.
            assert told["second"][0] == "IncorrectParameterError", about


WITNESS = """
def work(path, arm):
    store = bookstand.open(path, witness=True)
    writer = store.create_ledger()
    writer.append(b"0")
    witness = path + "/witness"
    shim.arm(witness, "*", 1, errno.EIO)
    answers = [told_by(lambda: writer.append(b"1"))]
    shim.disarm()
    answers.append(told_by(lambda: store.create_ledger().append(b"x")))
    store.close()
    return {"answers": answers, "ledger": writer.id}
"""


def test_a_witness_that_cannot_be_written(shim_library, memory_path):
    """The commit is on disk, its witness is not: that is an unknown outcome, which closing the handle decides."""
    ((path, _, told),) = each_case(shim_library, memory_path, WITNESS, [["*", 1, errno.EIO, ONCE]])
    assert told["answers"] == [["OutcomeUnknownError", None], ["ok", 0]]
    with bookstand.open(path, witness=True) as store:
        found = [entry.data for entry in store.open_ledger(told["ledger"])]
        assert found in ([b"0"], [b"0", b"1"])
        assert store.verify().ok


READERS_MEANWHILE = """
def work(path, arm):
    store = bookstand.open(path)
    writer, kept = store.create_ledger(), store.create_ledger()
    writer.append(b"0")
    kept.append_many([b"%d" % i for i in range(3000)])
    stop = threading.Event()
    failures, rounds = [], [0, 0]

    def read(number):
        try:
            while not stop.is_set():
                assert [entry.data for entry in kept] == [b"%d" % i for i in range(3000)]
                rounds[number] += 1
        except BaseException as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    codes = []
    for number in range(12):
        arm()
        codes.append(told_by(store.create_ledger)[0])
        shim.disarm()
    stop.set()
    for thread in threads:
        thread.join(30)
    later = told_by(lambda: store.create_ledger().append(b"x"))
    store.close()
    return {"failures": failures, "rounds": rounds, "codes": sorted(set(codes)), "later": later}
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", [1, 2, 3, 4])
def test_readers_while_the_store_opens_its_file_again(shim_library, memory_path, when):
    """Nobody reads through a map that was just closed."""
    cases = [[FLUSHES_AND_WRITES, when, errno.EIO, ONCE]]
    ((_, _, told),) = each_case(shim_library, memory_path, READERS_MEANWHILE, cases)
    assert told["failures"] == [], told
    assert told["later"] == ["ok", 0], told


GIVEN_UP = """
import errno, fcntl, os, sys, threading
import bookstand
from bookstand.storage.lmdb.environment import LmdbEnvironment
from tests.kit import eventually
from tests.storage import shim

path = sys.argv[1]
store = bookstand.open(path)
store.nodes.put("/a", b"confirmed")
answers = {}

def begin(name, call):
    def run():
        try:
            answers[name] = repr(call())
        except BaseException as error:
            answers[name] = type(error).__name__
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread

def waits_for_the_folder(threads):
    lines = [line.split() for line in open("/proc/locks")]
    return sum(line[1] == "->" and line[5] == str(os.getpid()) for line in lines) == threads

shim.arm(path + "/data.mdb", "dsync", 1, errno.EIO)
"""

SEEN_BEFORE_IT_IS_REOPENED = """
# Another process opens the store, say: the one whose commit has failed waits for it.
folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
fcntl.flock(folder, fcntl.LOCK_EX)
writing = begin("write", lambda: store.nodes.put("/a", b"refused"))
eventually(lambda: waits_for_the_folder(1))
reading = begin("read", lambda: store.nodes.get("/a"))
eventually(lambda: not reading.is_alive() or waits_for_the_folder(2))
fcntl.flock(folder, fcntl.LOCK_UN)
for thread in (writing, reading):
    thread.join(60)
print(answers["write"])
print(answers["read"])
print(store.nodes.put("/b", b"later"), store.verify().ok)
"""


def test_readers_wait_until_a_store_whose_commit_failed_is_reopened(shim_library, memory_path):
    """LMDB has given up on the environment: that is no damage."""
    with Program(GIVEN_UP + SEEN_BEFORE_IT_IS_REOPENED, memory_path / "store", LD_PRELOAD=shim_library) as program:
        assert program.finish() == 0
    assert program.lines == ["WriteError", "(b'confirmed', 0)", "0 True"]


INTERRUPTED_BEFORE_IT_IS_REOPENED = """
real = LmdbEnvironment.reopen

def interrupted(self):
    LmdbEnvironment.reopen = real
    raise KeyboardInterrupt

LmdbEnvironment.reopen = interrupted
try:
    store.nodes.put("/a", b"unknown") if sys.argv[2] == "node" else store.create_ledger().append(b"unknown")
except KeyboardInterrupt:
    print("interrupted")
print(store.nodes.get("/a") in ((b"confirmed", 0), (b"unknown", 1)))
print(store.nodes.put("/b", b"later"), store.create_ledger().append(b"later"), store.verify().ok)
store.close()
"""


@pytest.mark.parametrize("change", ["node", "entry"])
def test_a_store_goes_on_after_an_interrupted_call_whose_commit_failed(shim_library, memory_path, change):
    source = (
        GIVEN_UP.replace('"dsync", 1', f'"dsync", {1 if change == "node" else 2}') + INTERRUPTED_BEFORE_IT_IS_REOPENED
    )
    with Program(source, memory_path / "store", change, LD_PRELOAD=shim_library) as program:
        assert program.finish() == 0
    assert program.lines == ["interrupted", "True", "0 0 True"]
