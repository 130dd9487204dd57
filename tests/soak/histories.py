"""Histories of several processes on one store, with faults, checked for an order that explains all they saw.

A round is some histories. Each has its own store and one to three generations of two to four processes that do what
their seeds say. A process may be killed at a point of a commit or at a random moment, stopped for a while, or meet
failing file operations. A generation ends when its processes end, or when all of them are killed at once; then the
power may be cut. What had no outcome by the end of a generation happened by then, or never happens.

How processes interleave is up to the machine, so a history that cannot be explained is kept in a file, and
``python -m tests.soak.histories FILE`` checks it again.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.kit import own_environment
from tests.soak import block_device, history_process, sequential
from tests.soak.block_device import CutDisk
from tests.soak.kinds import Done, Kind, KindUnavailableError
from tests.soak.sequential import Operation
from tests.soak.victims import shared_library
from tests.storage import shim

HISTORIES = 25
CUT_EACH = 25
"""One of so many histories is on a disk whose power is cut, where the machine has one (``block_device.py``)."""
FAULTS = [
    (shim.CHANGING, errno.ENOSPC),
    (shim.CHANGING, errno.EIO),
    # Done, and failed all the same.
    (shim.CHANGING, -errno.EIO),
    (shim.WRITES, shim.SHORT),
]
PATIENCE = 120
"""Seconds after which a process is taken to hang."""


def one_round(seed: int, histories: int = HISTORIES) -> Done:
    """In a process that may fork, for it has no threads and no store open."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.soak.histories", str(seed), str(histories)],
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        return Done(0, [f"the round ended with {ended.returncode}: {ended.stderr[-3000:]}"])
    return Done(*json.loads(ended.stdout))


def _environment() -> dict[str, str]:
    """With file operations that can be made to fail, where there is a C compiler."""
    try:
        return own_environment(LD_PRELOAD=shared_library())
    except KindUnavailableError:
        return own_environment()


def run(seed: int, histories: int) -> Done:
    load_all()
    problems = []
    seen = set()
    for number in range(histories):
        folder = Path(tempfile.mkdtemp(prefix="bookstand-history-", dir=_place()))
        rng = random.Random(f"{seed}/{number}")
        with _disk(folder, rng) if number % CUT_EACH == CUT_EACH - 1 else nullcontext() as disk:
            operations, found = record(folder, rng, disk)
        found += check(operations)
        # Times apart, two may be the same.
        seen.add(json.dumps([[o.process, o.name, o.arguments, o.outcome] for o in operations]))
        if found:
            kept = folder / "history.json"
            kept.write_text(_written(operations))
            problems += [f"history {number}, kept in {kept}: {problem}" for problem in found]
        else:
            shutil.rmtree(folder)
    return Done(len(seen), problems)


def load_all() -> None:
    """What is imported on first need is imported before the forks, so that processes meet instead of importing."""
    for name in _NEEDED:
        importlib.import_module(name)


_NEEDED = (
    "lmdb.verify",
    "numpy",
    "bookstand.ledger.handles.advanced_writer",
    "bookstand.ledger.handles.reader",
    "bookstand.ledger.handles.recovery",
    "bookstand.ledger.transaction",
    "bookstand.ledger.handles.writer",
    "bookstand.storage.format.entry_batch",
    "bookstand.storage.verify",
)


@contextmanager
def _disk(folder: Path, rng: random.Random) -> Iterator[CutDisk | None]:
    """A disk whose power can be cut; None where the machine has none."""
    usable = [system for system in block_device.FILE_SYSTEMS if block_device.missing(system) is None]
    if not usable:
        yield None
        return
    disk = CutDisk(rng.choice(usable), folder)
    try:
        yield disk
    finally:
        disk.close()


def record(folder: Path, rng: random.Random, disk: CutDisk | None = None) -> tuple[list[Operation], list[str]]:
    """Run the generations of a history; return the operations that the processes noted, and what was wrong besides."""
    store = str((folder if disk is None else disk.path) / "store")
    generations = rng.choice((1, 1, 2, 3)) if disk is None else rng.randrange(2, 5)
    notes: list[str] = []
    ends: list[int] = []
    problems: list[str] = []
    for _ in range(generations):
        generation = _Generation(folder, store, rng, first=len(notes))
        problems += generation.run(cut_short=disk is not None or rng.random() < 0.3)
        notes += generation.notes
        ends += [time.monotonic_ns()] * len(generation.notes)
        if disk is not None:
            disk.cut(rng.choice(("none", "all", "writes", "sectors")), rng.getrandbits(32))

    def observe() -> None:
        (folder / "verified").write_text(json.dumps(history_process.observe(store, notes[-1])))

    notes.append(str(folder / "notes-observer"))
    ends.append(time.monotonic_ns())
    complaint = Child(observe, folder / "observer-died").wait()
    if complaint:
        problems.append(f"the observer ended with {complaint}")
    else:
        problems += json.loads((folder / "verified").read_text())
    return read_notes(notes, ends), problems


class _Generation:
    """Processes that use the store at the same time. ``first``: the number of the first one."""

    def __init__(self, folder: Path, store: str, rng: random.Random, first: int) -> None:
        self._folder = folder
        self._store = store
        self._rng = rng
        self._numbers = range(first, first + rng.randrange(2, 5))
        self.notes = [str(folder / f"notes-{number}") for number in self._numbers]

    def run(self, cut_short: bool) -> list[str]:
        """Run all processes; return what was wrong with them. ``cut_short``: kill them all at a random moment."""
        rng = self._rng
        operations = rng.randrange(8, 25)
        # Half of the generations lose a process: at a point of a commit, or at a random moment.
        dies = rng.choice(self._numbers) if rng.random() < 0.5 else None
        point = rng.randrange(1, 60) if rng.random() < 0.6 else 0
        ready, start = os.pipe(), os.pipe()
        children = {}
        for number, notes in zip(self._numbers, self.notes, strict=True):
            work = self._work(number, notes, operations, point if number == dies else 0, ready, start)
            children[number] = Child(work, self._folder / f"died-{number}")
        os.close(ready[1])
        for _ in children:
            # One may have died before it was ready.
            os.read(ready[0], 1)
        for descriptor in (ready[0], *start):
            os.close(descriptor)
        if rng.random() < 0.3:
            self._stop_for_a_while(children[rng.choice(self._numbers)])
        if dies is not None and not point:
            time.sleep(rng.random() * 0.05)
            children[dies].kill()
        killed = {dies}
        if cut_short:
            time.sleep(rng.random() * 0.1)
            killed |= children.keys()
            for child in children.values():
                child.kill()
        problems = []
        for number, child in children.items():
            complaint = child.wait()
            if complaint and not (number in killed and complaint == f"signal {signal.SIGKILL}"):
                problems.append(f"process {number} ended with {complaint}")
        return problems

    def _work(
        self, number: int, notes: str, operations: int, dies_at: int, ready: tuple[int, int], start: tuple[int, int]
    ) -> Callable[[], None]:
        seed = self._rng.randrange(1 << 30)
        fault = self._fault()

        def do_it() -> None:
            process = history_process.Process(number, self._store, notes, seed, dies_at)
            if fault is not None:
                shim.arm(self._store, *fault)
            os.write(ready[1], b"x")
            os.close(ready[1])
            os.close(start[1])
            # Ends when the last of those who could write to it has closed it.
            os.read(start[0], 1)
            process.run(operations)

        return do_it

    def _fault(self) -> tuple[str, int, int, int] | None:
        """The file operations that fail for one process in four: see ``shim.arm``."""
        if not shim.is_loaded() or self._rng.random() >= 0.25:
            return None
        operations, answer = self._rng.choice(FAULTS)
        return operations, self._rng.randrange(1, 80), answer, self._rng.choice((1, 1, 5, -1))

    def _stop_for_a_while(self, child: Child) -> None:
        """Wherever it is, also in the middle of a commit that the others wait for."""
        time.sleep(self._rng.random() * 0.03)
        child.signal(signal.SIGSTOP)
        time.sleep(self._rng.random() * 0.1)
        child.signal(signal.SIGCONT)


class Child:
    """A fork that does one thing."""

    def __init__(self, work: Callable[[], None], complaints: Path) -> None:
        self._complaints = complaints
        self._pid = os.fork()
        if not self._pid:
            status = 1
            # Who hangs is ended by a signal, also where nobody waits any more.
            signal.alarm(PATIENCE)
            try:
                work()
                status = 0
            except BaseException:
                complaints.write_text(traceback.format_exc())
            finally:
                os._exit(status)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def wait(self) -> str:
        """How it ended, empty if in good order."""
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        if status < 0:
            return f"signal {-status}"
        return self._complaints.read_text() if status else ""


def read_notes(files: list[str], ends: list[int]) -> list[Operation]:
    """The operations of all processes, the observer's last. ``ends``: by when each process had ended. An operation
    without an outcome happened by then, or not at all."""
    operations = []
    for number, (name, process_end) in enumerate(zip(files, ends, strict=True)):
        process: dict[int, Operation] = {}
        if not os.path.exists(name):
            # It died before it had opened the store.
            continue
        for line in Path(name).read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue
            match json.loads(line):
                case ["begin", operation, what, arguments, begun]:
                    process[operation] = Operation(number, what, arguments, begun, process_end)
                case ["end", _, ["unknown"], _]:
                    pass
                case ["end", operation, ["refused"], ended]:
                    _refused(process, operation, ended)
                case ["end", operation, outcome, ended]:
                    process[operation].outcome = _flat(process[operation].name, outcome)
                    process[operation].end = ended
        operations += process.values()
    return with_ledgers(operations)


def _refused(process: dict[int, Operation], number: int, ended: int) -> None:
    """Note that an operation failed because of the device. Operations of one commit did not happen then; of others a
    part may have happened."""
    operation = process[number]
    if operation.name in sequential.APPENDS:
        operation.outcome = ["error", sequential.REFUSED]
        operation.end = ended
    elif operation.name in ("put", "delete_node", "transaction", "read", "get", "is_closed"):
        del process[number]


def _flat(name: str, outcome: list[Any]) -> list[Any]:
    """Several values of a success stand beside each other."""
    return ["ok", *outcome[1]] if outcome[0] == "ok" and name in ("recover", "get") else outcome


def with_ledgers(operations: list[Operation]) -> list[Operation]:
    """Name the ledger of each creation.

    A process that was killed did not report the ledger that it created: any of those creations may be the one of a
    ledger without a creation.
    """
    told = []
    silent = []
    for operation in operations:
        if operation.name == "create":
            if operation.outcome is None:
                silent.append(operation)
                continue
            operation.arguments["ledger"] = operation.outcome[1]
        told.append(operation)
    known = {name for operation in told for name in _created(operation)}
    used = {name for operation in told for name in sequential.objects_of(operation) if name.startswith("ledger")}
    for name in sorted(used - known)[: len(silent)]:
        for creation in silent:
            told.append(replace(creation, arguments={**creation.arguments, "ledger": int(name.split()[1])}))
    return told


def _created(operation: Operation) -> list[str]:
    if operation.name in ("create", "create_adv"):
        return sequential.objects_of(operation)
    parts = operation.arguments.get("parts", [])
    return [f"ledger {part['ledger']}" for part in parts if part["kind"] == "create"]


def check(operations: list[Operation]) -> list[str]:
    return sequential.check(operations)


def _place() -> str | None:
    """In memory where that is possible: what processes see of each other does not depend on the disk."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


KIND = Kind(one_round)


def look_again(file: str) -> list[str]:
    return check([Operation(**operation) for operation in json.loads(Path(file).read_text())])


def main(arguments: list[str]) -> None:
    match arguments:
        case ["record", folder, seed]:
            load_all()
            operations, problems = record(Path(folder), random.Random(seed))
            assert not problems, problems
            print(_written(operations))
        case [seed, count]:
            print(json.dumps(run(int(seed), int(count))))
        case [file]:
            print("\n".join(look_again(file)) or "there is an order that explains it")


def _written(operations: list[Operation]) -> str:
    return json.dumps([vars(operation) for operation in operations])


if __name__ == "__main__":
    main(sys.argv[1:])
