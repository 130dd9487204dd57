"""Histories of two real processes on one store, written down by the shim and followed through the model.

Started with the shim loaded: ``python -m tests.storage.protocol.histories SEED COUNT``. Each history forks its
processes, and gives them commands one at a time. Before a command, a fault of the device or a kill may be armed. While
a commit has failed, the folder may be kept locked, so that the other process commits before the outcome is known.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import importlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import bookstand
from bookstand import errors
from tests.kit import own_environment
from tests.storage import shim
from tests.storage.protocol.model import Rules, ViolationError
from tests.storage.protocol.traces import NotAWayError, follow, read_marks

HUNG = 120
"""Seconds after which a process is taken to hang."""

FAULTS = [
    ("dsync", errno.EIO),
    ("dsync", -errno.EIO),
    ("dsync", shim.SHORT),
    ("fdatasync", errno.EIO),
    ("fdatasync", -errno.EIO),
    (shim.WRITES, errno.EIO),
    (shim.WRITES, -errno.EIO),
    (shim.WRITES, errno.ENOSPC),
    ("fsync", errno.EIO),
    ("rename", errno.EIO),
    (shim.CHANGING, shim.KILL),
    (shim.CHANGING, shim.KILL),
]


def run(
    library: Path, seed: int, count: int, module: str = "tests.storage.protocol.histories", *more: str
) -> tuple[int, list[str], Counter[str]]:
    """Run histories in a process of its own under the shim: how many different ones, the problems, and figures. Another
    module changes what they run, as ``more`` says."""
    done = subprocess.run(
        [sys.executable, "-m", module, str(seed), str(count), *more],
        env=own_environment(LD_PRELOAD=library),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return 0, [f"the round ended with {done.returncode}: {done.stderr[-3000:]}"], Counter()
    histories, problems, figures = json.loads(done.stdout)
    return histories, problems, Counter(figures)


# -- in the program under the shim -----------------------------------------------------------------------------------


_GOES_ON, _ENDS = b".", b"x"


class Process:
    """A forked process that has the store open, or is about to open it."""

    def __init__(self, slot: int, store: str, journal: str) -> None:
        self.slot = slot
        self.journal = journal
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            signal.alarm(HUNG)
            try:
                os.close(self._commands)
                os.close(self._answers)
                _obey(slot, store, journal, commands, answers)
            finally:
                os._exit(1)
        os.close(commands)
        os.close(answers)

    def send(self, **command: Any) -> None:
        os.write(self._commands, json.dumps(command).encode() + b"\n")

    def has_answered(self) -> bool:
        return bool(select.select([self._answers], [], [], 0)[0])

    def answer(self) -> bool:
        """Wait until the command is done; False if the process has ended, of its own accord or killed."""
        said = os.read(self._answers, 1)
        if said == _GOES_ON:
            return True
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._commands)
        os.close(self._answers)
        if not said:
            note(self.journal, self.pid, "KILLED", 0, "killed")
            if status != -signal.SIGKILL:
                raise AssertionError(f"a process ended with {status}")
        return False

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.answer()


def note(journal: str, pid: int, name: str, detail: int, subject: str) -> None:
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    os.write(file, f"{pid} {name} 0 {detail} {subject}\n".encode())
    os.close(file)


def _obey(slot: int, path: str, journal: str, commands: int, answers: int) -> None:
    note(journal, os.getpid(), "STARTED", slot, "started")
    shim.arm(path, shim.CHANGING, 0)
    shim.journal(journal)
    store: bookstand.Store | None = None
    for line in os.fdopen(commands):
        command = json.loads(line)
        signal.alarm(HUNG)
        if "operations" in command:
            shim.arm(path, command["operations"], command["when"], command["answer"])
            if "then" in command:
                shim.then(command["then"])
        else:
            shim.arm(path, shim.CHANGING, 0)
        result = ""
        match command["do"]:
            case "open":
                try:
                    store = bookstand.open(path)
                except bookstand.BookstandError:
                    result = "no store"
            case "put":
                assert store is not None
                result = _put(store, command["value"])
            case "compact":
                assert store is not None
                if store.storage._closed_reason is None:
                    _try(store.compact)
            case "grow":
                assert store is not None
                if store.storage._closed_reason is None:
                    _try(store.storage._environment.grow)
            case "close":
                assert store is not None
                _try(store.close)
                result = "closed"
        if result:
            note(journal, os.getpid(), "RESULT", 0, result)
        shim.arm(path, shim.CHANGING, 0)
        ends = result in ("closed", "no store")
        os.write(answers, _ENDS if ends else _GOES_ON)
        if ends:
            os._exit(0)


def _try(call: Any) -> None:
    try:
        call()
    except bookstand.BookstandError:
        pass


def _put(store: bookstand.Store, value: str) -> str:
    if store.storage._closed_reason is not None:
        return ""
    try:
        store.nodes.put("/a", value.encode() * 100)
    except errors.OutcomeUnknownError:
        return "unknown"
    except bookstand.BookstandError:
        # Without an environment, which could not be opened again, no commit was begun.
        return "failed" if store.storage._environment._env is not None else ""
    return "done"


class History:
    """One history: a folder, its processes, and a journal of what they do."""

    def __init__(self, template: str, folder: str, chance: random.Random) -> None:
        self._chance = chance
        self._store = os.path.join(folder, "store")
        self._journal = os.path.join(folder, "journal")
        shutil.copytree(template, self._store)
        self._processes: dict[int, Process] = {}
        self._values = 0
        self._folder = os.open(self._store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.commands: list[str] = []

    def run(self) -> str:
        """Give random commands, and return the journal."""
        try:
            for _ in range(self._chance.randrange(4, 12)):
                self._one(self._chance.randrange(2))
            for slot in list(self._processes):
                self._command(slot, "close", {})
        except AssertionError as error:
            end = Path(self._journal).read_text()[-2000:]
            raise AssertionError(f"{error}; commands: {'; '.join(self.commands)}\n{end}") from error
        finally:
            os.close(self._folder)
        return Path(self._journal).read_text()

    def _one(self, slot: int) -> None:
        chance = self._chance
        if slot not in self._processes:
            self._processes[slot] = Process(slot, self._store, self._journal)
            kill = {"operations": shim.CHANGING, "when": chance.randrange(1, 6), "answer": shim.KILL}
            fault = {"operations": "fsync", "when": 1, "answer": errno.EIO}
            self._command(slot, "open", chance.choice([{}, {}, {}, {}, {}, kill, fault]))
            return
        draw = chance.random()
        if draw < 0.05:
            self.commands.append(f"kill {slot}")
            self._processes.pop(slot).kill()
        elif draw < 0.12:
            self._command(slot, "close", {})
        else:
            what = "put" if draw < 0.84 else "compact" if draw < 0.95 else "grow"
            self._command(slot, what, self._fault() if chance.random() < 0.5 else {})

    def _fault(self) -> dict[str, Any]:
        chance = self._chance
        operations, answer = chance.choice(FAULTS)
        most = 8 if operations == shim.CHANGING else 3 if operations == shim.WRITES else 2
        when = 1 if operations == "dsync" else chance.randrange(1, most + 1)
        fault = {"operations": operations, "when": when, "answer": answer}
        if chance.random() < 0.4:
            fault["then"] = chance.choice([errno.EIO, errno.EIO, -errno.EIO, shim.SHORT, shim.KILL])
        return fault

    def _command(self, slot: int, what: str, fault: dict[str, Any]) -> None:
        process = self._processes[slot]
        self._values += 1
        self.commands.append(f"{what} {slot} {fault or ''}".strip())
        other = self._processes.get(1 - slot)
        # A kill is noted once it is known, which is after the command of the other process.
        may_hold = what == "put" and bool(fault) and shim.KILL not in (fault["answer"], fault.get("then"))
        holds = may_hold and other is not None and self._chance.random() < 0.6
        if holds:
            fcntl.flock(self._folder, fcntl.LOCK_EX)
        process.send(do=what, value=str(self._values), **fault)
        if holds and other is not None:
            failed = self._has_failed(process)
            if failed:
                self._values += 1
                self.commands.append(f"put {1 - slot} while {slot} has failed")
                other.send(do="put", value=str(self._values))
                # One whose environment could not be opened again waits for the folder as well.
                while not other.has_answered() and not _waits_for_a_lock(other.pid):
                    time.sleep(0.001)
            fcntl.flock(self._folder, fcntl.LOCK_UN)
            if failed and not other.answer():
                del self._processes[1 - slot]
        if not process.answer():
            del self._processes[slot]

    def _has_failed(self, process: Process) -> bool:
        """Wait until a commit has failed; False if it did not, or if the process was killed."""
        deadline = time.monotonic() + HUNG
        while time.monotonic() < deadline:
            if process.has_answered():
                return False
            lines = [line.split(" ", 4) for line in Path(self._journal).read_text().splitlines()[-12:]]
            own = [line for line in lines if int(line[0]) == process.pid and line[4].endswith("/data.mdb")]
            for before, (_, name, result, _, _) in pairwise(own):
                # What fails while the header pages are prepared, beside LMDB, is no failed commit.
                prepares = "pwrite64" in (name, before[1] if name == "fdatasync" else "")
                if int(result) < 0 and name in _FAILING and not prepares:
                    return True
            time.sleep(0.001)
        raise AssertionError("a process hangs")


_FAILING = ("dsync", "fdatasync", *shim.WRITES.split(","))


def _waits_for_a_lock(pid: int) -> bool:
    return any(line.split()[1] == "->" and line.split()[5] == str(pid) for line in Path("/proc/locks").open())


def record(template: str, chance: random.Random) -> tuple[History, str, str]:
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="bookstand-protocol-", dir=parent)
    try:
        history = History(template, folder, chance)
        return history, history.run(), os.path.join(folder, "store")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(seed: int, count: int) -> tuple[int, list[str], Counter[str]]:
    problems = []
    figures: Counter[str] = Counter()
    seen = set()
    with tempfile.TemporaryDirectory(prefix="bookstand-protocol-") as folder:
        template = os.path.join(folder, "store")
        with bookstand.open(template) as store:
            store.nodes.put("/a", b"")
        # Loaded before the processes are forked.
        importlib.import_module("bookstand.storage.verify")
        gc.collect()
        gc.freeze()
        for number in range(count):
            history, journal, path = record(template, random.Random(f"{seed}/{number}"))
            marks = read_marks(journal, path)
            seen.add(tuple(marks))
            figures["marks"] += len(marks)
            figures["faults"] += sum(mark.what.endswith("!") and mark.what != "exclusive!" for mark in marks)
            figures["kills"] += sum(mark.what == "killed" for mark in marks)
            try:
                follow(marks, Rules())
            except (NotAWayError, ViolationError) as problem:
                problems.append(f"history {number}: {problem}; commands: {'; '.join(history.commands)}")
    return len(seen), problems, figures


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
