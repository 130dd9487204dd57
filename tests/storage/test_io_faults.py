"""Every file call of commits, opening, growth, closing, compaction and backup fails in all ways."""

from __future__ import annotations

import errno

import pytest

import bookstand
from tests.kit import Program
from tests.soak import io_faults, lives
from tests.soak.victims import Case, Victims
from tests.storage import shim

ROUNDS = range(14)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_promise_is_broken(shim_library, counts):
    cases, problems = counts.run("io_faults", io_faults.KIND, ROUNDS)
    assert cases >= 2000
    assert not problems, "\n".join(problems)


@pytest.mark.slow
def test_every_life_meets_faults(shim_library):
    """In calls that change files and in those that only look at them; what is promised without a fault is kept."""
    with Victims() as victims:
        for number, name in enumerate(lives.LIVES):
            for operations in (shim.CHANGING, shim.LOOKING):
                outcome = victims.run(Case(name, number, operations))
                assert outcome.seen > 3, name
                assert not outcome.problems


@pytest.mark.parametrize("answer", [errno.EIO, errno.ENOSPC, shim.SHORT, -errno.EIO])
def test_what_the_shim_does_to_a_write(shim_library, memory_path, answer):
    """Undone, in part, or done: the program hears of an error, or of half."""
    program = f"""
import os, sys
from tests.storage import shim
file = os.open(sys.argv[1] + "/file", os.O_WRONLY | os.O_CREAT)
shim.arm(sys.argv[1], shim.WRITES, 2, {answer})
os.write(file, b"")
try:
    print(os.write(file, bytes(10)))
except OSError as error:
    print(-error.errno)
print(os.fstat(file).st_size)
"""
    with Program(program, memory_path, LD_PRELOAD=shim_library) as running:
        assert running.finish() == 0
    size = {shim.SHORT: 5, -errno.EIO: 10}.get(answer, 0)
    told = 5 if answer == shim.SHORT else -abs(answer)
    assert [int(line) for line in running.lines] == [told, size]


# -- single faults ---------------------------------------------------------------------------------------------------

FAULT = """
import errno, os, sys
import bookstand
from bookstand import errors
from tests.storage import shim

path = sys.argv[1]

def tell(call):
    try:
        print("ok", call(), flush=True)
    except bookstand.BookstandError as error:
        print(type(error).__name__, error, flush=True)
    finally:
        shim.disarm()
"""


def with_fault(shim_library, path, source):
    """The words that the program told first of each call."""
    with Program(FAULT + source, path, LD_PRELOAD=shim_library) as program:
        assert program.finish() == 0, program.lines
    return [line.split()[0] for line in program.lines]


def test_a_close_whose_commit_fails_is_not_confirmed(shim_library, memory_path):
    """It changes nothing but metadata: that the ledger's state is as it was shows nothing."""
    source = """
store = bookstand.open(path)
writer = store.create_ledger()
writer.append(b"0")
shim.arm(path, "fdatasync", 1, errno.EIO)
tell(writer.close)
"""
    (answer,) = with_fault(shim_library, memory_path / "store", source)
    with bookstand.open(memory_path / "store") as store:
        assert store.is_closed(0) == (answer == "ok")


def test_a_store_that_cannot_be_looked_at_is_not_made_anew(shim_library, memory_path):
    with bookstand.open(memory_path / "store") as store:
        store.create_ledger().append(b"0")
    source = 'shim.arm(path + "/data.mdb", shim.LOOKING, 1, errno.EIO)\ntell(lambda: bookstand.open(path).close())\n'
    assert with_fault(shim_library, memory_path / "store", source) == ["StoreError"]
    with bookstand.open(memory_path / "store") as store:
        assert list(store.list_ledgers()) == [0]


@pytest.mark.parametrize("when", [1, 2])
def test_a_witness_that_was_written_in_part(shim_library, memory_path, when):
    """Whatever became of it, the store can be opened with a witness afterwards."""
    source = f"""
shim.arm(path + "/witness", shim.WRITES, {when}, shim.SHORT)
tell(lambda: bookstand.open(path, witness=True).close())
"""
    with_fault(shim_library, memory_path / "store", source)
    with bookstand.open(memory_path / "store", witness=True) as store:
        assert store.create_ledger().append(b"0") == 0


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_opening_fails_after_the_environment_was_opened(shim_library, memory_path, number):
    """Nothing of the attempt is in the way of the next one in the same process: here a marker cannot be removed."""
    path = memory_path / "store"
    with Program(
        "import bookstand, sys, os; s = bookstand.open(sys.argv[1]); s.create_ledger(); os._exit(0)", path
    ) as it:
        it.finish()
    source = f"""
shim.arm(path + "/open-", "unlink", 1, {number})
tell(lambda: bookstand.open(path).close())
tell(lambda: bookstand.open(path).close())
print(*os.listdir(path), sep="\\n")
"""
    _, second, *left = with_fault(shim_library, path, source)
    assert second == "ok"
    assert sorted(left) == ["data.mdb", "lock.mdb"]


def test_closing_a_folder_fails(shim_library, memory_path):
    """The lock of the folder is let go of by closing it."""
    with bookstand.open(memory_path / "store"):
        pass
    source = """
for when in range(1, 9):
    shim.arm(path, "close", when, errno.EIO)
    tell(lambda: bookstand.open(path).close())
    print("again")
    tell(lambda: bookstand.open(path).close())
"""
    told = with_fault(shim_library, memory_path / "store", source)
    assert [told[i + 1] for i, word in enumerate(told) if word == "again"] == ["ok"] * 8
