"""SIGKILL before each single file operation of a store's life: a whole store or none, and nothing confirmed lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import bookstand
from tests.kit import Program
from tests.soak import kills

# Forks a child for each point; the child does the work, tells through a pipe what was confirmed, and meets its end.
EACH_POINT = """
import json, os, shutil, sys
import bookstand
from tests.storage import shim

base, start, first, step = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def work(path, tell):
{work}

point = first
while True:
    path = os.path.join(base, str(point))
    if start:
        shutil.copytree(start, path)
    inlet, outlet = os.pipe()
    child = os.fork()
    if not child:
        os.close(inlet)
        shim.arm(path, "*", point)
        work(path, lambda *told: os.write(outlet, json.dumps(told).encode() + b"\\n"))
        os._exit(0)
    os.close(outlet)
    with open(inlet, "rb") as stream:
        told = [json.loads(line) for line in stream]
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps([point, status, told]), flush=True)
    if status != -9:
        break
    point += step
"""


def each_point(shim_library, base: Path, work: str, start: str = "", first: int = 1, step: int = 1):
    base.mkdir(exist_ok=True)
    indented = "\n".join("    " + line for line in work.strip().splitlines())
    source = EACH_POINT.replace("{work}", indented)
    with Program(source, base, start, first, step, LD_PRELOAD=shim_library) as program:
        assert program.finish() == 0, program.lines
    *killed, last = [json.loads(line) for line in program.lines]
    assert {status for _, status, _ in killed} <= {-9}
    assert last[1] == 0, last
    return [(base / str(point), told) for point, _, told in [*killed, last]]


CREATE = """
store = bookstand.open(path)
tell("opened")
store.close()
"""


def test_creation(shim_library, memory_path, counts):
    points = each_point(shim_library, memory_path / "points", CREATE)
    assert len(points) > 15
    counts.add("kills", len(points) - 1)
    for path, _ in points:
        with bookstand.open(path) as store:
            assert store.create_ledger().append(b"a") == 0
            assert store.verify().ok
        assert sorted(file.name for file in path.iterdir()) == ["data.mdb", "lock.mdb"]


def test_creation_without_durability(shim_library, memory_path, counts):
    points = each_point(shim_library, memory_path / "points", 'bookstand.open(path, durability="none").close()')
    counts.add("kills", len(points) - 1)
    for path, _ in points:
        with bookstand.open(path) as store:
            assert store.verify().ok


LIFE = """
import struct
store = bookstand.open(path, witness=True)
writer = store.create_ledger()
tell("ledger", writer.id)
for number in range(2):
    tell("appended", writer.append(b"%d" % number))
tell("many", len(writer.append_many([b"m"] * 5)))
with store.transaction() as transaction:
    other = transaction.create_ledger()
    transaction.append(writer, b"t")
    transaction.append(other, b"o")
    transaction.put_node("/n", b"%d" % other.id)
tell("transaction", other.id)
writer.close()
tell("closed")
reader = store.open_ledger(other.id)
tell("recovered", reader.last_add_confirmed)
store.delete_ledger(other.id)
tell("deleted", other.id)
store.backup(path + "/../backup-of-" + path.rpartition("/")[2])
tell("backup")
store.compact()
tell("compacted")
store.nodes.put("/n", b"last")
tell("last")
store.close()
tell("done")
"""
PAYLOADS = [b"0", b"1", *[b"m"] * 5, b"t"]


def check_life(path: Path, told: list[list], witness: bool = True) -> None:
    said = {one[0]: one[1:] for one in told}
    with bookstand.open(path, witness=witness) as store:
        report = store.verify()
        assert report.ok, (path, report.problems)
        ledgers = list(store.list_ledgers())
        writer_id = said["ledger"][0] if "ledger" in said else ledgers[0] if ledgers else None
        if "ledger" in said:
            assert writer_id in ledgers, (path, told)
        if writer_id is None:
            return
        reader = store.open_ledger(writer_id)
        found = [entry.data for entry in reader]
        assert found == PAYLOADS[: len(found)]
        least = 8 if "transaction" in said else 7 if "many" in said else sum(one[0] == "appended" for one in told)
        assert len(found) >= least, (path, told)
        # All of the transaction, or none of it.
        happened = len(found) == 8
        node = None
        if happened:
            node, _ = store.nodes.get("/n")
        else:
            assert store.nodes.children("/") == [], (path, told)
            assert ledgers == [writer_id], (path, told)
        if happened and node != b"last":
            other = int(node)
            if "deleted" in said:
                assert other not in ledgers
            elif other in ledgers:
                assert [entry.data for entry in store.open_ledger(other)] == [b"o"]
            else:
                assert "recovered" in said
        if "last" in said:
            assert node == b"last"
        # It can be written to.
        assert store.create_ledger().append(b"x") == 0
        assert store.verify().ok
    assert {file.name for file in path.iterdir()} <= {"data.mdb", "lock.mdb", "witness"}, list(path.iterdir())


@pytest.mark.long
def test_a_whole_life(shim_library, memory_path, counts):
    """Creating, appending, a transaction, closing, recovery, deletion, backup, compaction and the end."""
    points = each_point(shim_library, memory_path / "points", LIFE, first=25)
    assert len(points) > 60
    assert points[-1][1][-1] == ["done"]
    counts.add("kills", len(points) - 1)
    for path, told in points:
        check_life(path, told)
        backup = path.parent / f"backup-of-{path.name}"
        if ["backup"] in told:
            check_life(backup, told[: told.index(["backup"])], witness=False)
        elif backup.exists() and any(backup.iterdir()):
            # One that did not come to its end is no store, or a whole one.
            with bookstand.open(backup) as store:
                assert store.verify().ok


AGAIN = """
store = bookstand.open(path, witness=True)
reader = store.open_ledger(0)
tell("recovered", reader.last_add_confirmed)
writer = store.create_ledger()
tell("appended", writer.id, writer.append(b"again"))
store.close()
"""


@pytest.mark.slow
def test_opening_again_what_was_killed(shim_library, memory_path, counts):
    """A second kill while the store is opened and recovered after the first one."""
    source = """
import os, bookstand, sys
store = bookstand.open(sys.argv[1], witness=True)
writer = store.create_ledger()
for number in range(50):
    writer.append(b"%d" % number)
pendings = [writer.append_async(b"%d" % number) for number in range(50, 60)]
print("ready", flush=True)
sys.stdin.read()
"""
    start = memory_path / "start"
    with Program(source, start) as program:
        program.wait_for_lines(1)
        program.kill()
    assert [file.name for file in start.iterdir() if file.name.startswith("open-")]
    points = each_point(shim_library, memory_path / "points", AGAIN, start=str(start))
    assert len(points) > 10
    counts.add("kills", len(points) - 1)
    shutil.rmtree(start)
    for path, told in points:
        with bookstand.open(path, witness=True) as store:
            found = [entry.data for entry in store.open_ledger(0)]
            assert found == [b"%d" % number for number in range(len(found))]
            assert len(found) >= 50
            for what, *rest in told:
                if what == "recovered":
                    assert rest == [len(found) - 1]
                else:
                    assert store.open_ledger(rest[0]).read(rest[1], rest[1])[0].data == b"again"
            assert store.verify().ok


# -- while another process has the store open ------------------------------------------------------------------------

ROUNDS = range(12)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_surviving_process_writes_on(shim_library, counts):
    """Before each operation of commits, openings, growth of the map, compaction and backup."""
    cases, problems = counts.run("kills", kills.KIND, ROUNDS)
    assert cases >= 400
    assert not problems, "\n".join(problems)
