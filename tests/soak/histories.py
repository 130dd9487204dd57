"""Histories of several processes on one store, some of which die, checked for an order that explains all they saw.

A round is some histories. Each has its own store, and two to four processes that do what their seeds say; how they
come between each other is up to the machine, so a history that cannot be explained is kept in a file, and
``python -m tests.soak.histories FILE`` looks at it again.
"""

from __future__ import annotations

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kit import own_environment
from tests.soak import history_process, sequential
from tests.soak.kinds import Done, Kind
from tests.soak.sequential import Operation

HISTORIES = 25
PATIENCE = 120
"""Seconds after which a process is taken to hang."""


def one_round(seed: int, histories: int = HISTORIES) -> Done:
    """In a process that may fork, for it has no threads and no store open."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.soak.histories", str(seed), str(histories)],
        env=own_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        return Done(0, [f"the round ended with {ended.returncode}: {ended.stderr[-3000:]}"])
    return Done(*json.loads(ended.stdout))


def run(seed: int, histories: int) -> Done:
    load_all()
    problems = []
    seen = set()
    for number in range(histories):
        folder = Path(tempfile.mkdtemp(prefix="bookstand-history-", dir=_place()))
        operations, found = record(folder, random.Random(f"{seed}/{number}"))
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
    "bookstand.ledger.adv",
    "bookstand.ledger.reader",
    "bookstand.ledger.recovery",
    "bookstand.ledger.transaction",
    "bookstand.ledger.writer",
    "bookstand.storage.batch",
    "bookstand.storage.verify",
)


def record(folder: Path, rng: random.Random) -> tuple[list[Operation], list[str]]:
    """Let the processes of a history run, and return what they noted, and what was wrong besides."""
    processes = rng.randrange(2, 5)
    operations = rng.randrange(8, 25)
    store = str(folder / "store")
    notes = [str(folder / f"notes-{number}") for number in range(processes + 1)]
    problems = []

    ready, start = os.pipe(), os.pipe()

    def work(number: int, seed: int, dies_at: int) -> Callable[[], None]:
        def do_it() -> None:
            process = history_process.Process(number, store, notes[number], seed, dies_at)
            os.write(ready[1], b"x")
            os.close(ready[1])
            os.close(start[1])
            # Ends when the last of those who could write to it has closed it.
            os.read(start[0], 1)
            process.run(operations)

        return do_it

    # Half of the histories lose a process: at a point of a commit, or whenever it happens to be.
    dies = rng.randrange(processes) if rng.random() < 0.5 else None
    point = rng.randrange(1, 60) if rng.random() < 0.6 else 0
    children = [
        Child(work(number, rng.randrange(1 << 30), point if number == dies else 0), folder / f"died-{number}")
        for number in range(processes)
    ]
    os.close(ready[1])
    for _ in children:
        # One may have died before it was ready.
        os.read(ready[0], 1)
    for descriptor in (ready[0], *start):
        os.close(descriptor)
    if dies is not None and not point:
        time.sleep(rng.random() * 0.05)
        children[dies].kill()
    for number, child in enumerate(children):
        complaint = child.wait()
        if complaint and not (number == dies and complaint == f"signal {signal.SIGKILL}"):
            problems.append(f"process {number} ended with {complaint}")

    def observe() -> None:
        (folder / "verified").write_text(json.dumps(history_process.observe(store, notes[-1])))

    complaint = Child(observe, folder / "observer-died").wait()
    if complaint:
        problems.append(f"the observer ended with {complaint}")
    else:
        problems += json.loads((folder / "verified").read_text())
    return read_notes(notes), problems


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
        os.kill(self._pid, signal.SIGKILL)

    def wait(self) -> str:
        """How it ended, empty if in good order."""
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        if status < 0:
            return f"signal {-status}"
        return self._complaints.read_text() if status else ""


def read_notes(files: list[str]) -> list[Operation]:
    """The operations of all processes, the observer's last."""
    operations = []
    for number, name in enumerate(files):
        process: dict[int, Operation] = {}
        if not os.path.exists(name):
            # It died before it had opened the store.
            continue
        for line in Path(name).read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue
            match json.loads(line):
                case ["begin", operation, what, arguments, begun]:
                    process[operation] = Operation(number, what, arguments, begun)
                case ["end", operation, outcome, ended]:
                    process[operation].outcome = _flat(process[operation].name, outcome)
                    process[operation].end = ended
        operations += process.values()
    return _with_ledgers(operations)


def _flat(name: str, outcome: list[Any]) -> list[Any]:
    """Several values of a success stand beside each other."""
    return ["ok", *outcome[1]] if outcome[0] == "ok" and name in ("recover", "get") else outcome


def _with_ledgers(operations: list[Operation]) -> list[Operation]:
    """Creations get the ledger they made; that of one who died before he could tell is one that nobody made."""
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
    for name, creation in zip(sorted(used - known), silent, strict=False):
        creation.arguments["ledger"] = int(name.split()[1])
        told.append(creation)
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
