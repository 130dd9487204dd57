"""SIGKILL at random moments: four processes write to one store in all ways, and die one after the other.

After a round of kills the store is opened and compared with what was promised: every acknowledged entry is there with
the right bytes, every transaction happened whole or not at all, a recovered ledger ends where it was said to end, and
``verify()`` finds nothing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bookstand
from bookstand import errors
from tests.soak.kinds import Done, Kind
from tests.soak.writer import payload

PROCESSES = 4
KILLS_PER_ROUND = 10
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Promises:
    """What the writers of a round have told."""

    created: set[int] = field(default_factory=set)
    acked: dict[int, int] = field(default_factory=dict)
    recovered: dict[int, int] = field(default_factory=dict)
    may_be_gone: set[int] = field(default_factory=set)
    begun: dict[tuple[str, int], tuple[list[int], list[int]]] = field(default_factory=dict)
    committed: dict[str, set[int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def hear(self, what: list[Any]) -> None:
        match what:
            case ["created", ledger, _]:
                self.created.add(ledger)
            case ["acked", ledger, _, last]:
                self.acked[ledger] = max(last, self.acked.get(ledger, -1))
            case ["recovered", ledger, lac]:
                if self.recovered.setdefault(ledger, lac) != lac:
                    self.problems.append(f"ledger {ledger} was closed at {self.recovered[ledger]} and at {lac}")
            case ["deleting", ledger]:
                self.may_be_gone.add(ledger)
            case ["begin", path, number, ledgers, entries]:
                self.begun[path, number] = ledgers, entries
            case ["commit", path, number]:
                self.committed.setdefault(path, set()).add(number)
            case _:
                self.problems.append(f"a writer said {what}")


class Writer:
    """A child that writes, and a thread that hears what it says, to the last whole line."""

    def __init__(self, folder: Path, seed: int) -> None:
        command = [sys.executable, "-m", "tests.soak.writer", str(folder), str(seed)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        self.heard: list[list[Any]] = []
        self.said_something = threading.Event()
        self.thread = threading.Thread(target=self._listen)
        self.thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self.heard.append(json.loads(line))
                self.said_something.set()
        self.said_something.set()

    def kill(self) -> str | None:
        """Kill it; what it complained of if it had died by itself."""
        died = self.process.poll() is not None
        self.process.send_signal(signal.SIGKILL)
        assert self.process.stderr is not None
        complaint = self.process.stderr.read().decode(errors="replace")
        self.process.wait()
        self.thread.join()
        self.process.stderr.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return complaint[-2000:] or f"exit code {self.process.returncode}" if died else None


def one_round(seed: int, kills: int = KILLS_PER_ROUND) -> Done:
    """Kill ``kills`` writers, the last ones all at once, and check."""
    chance = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="bookstand-kills-", dir=_place()))
    promises = Promises()
    writers = [Writer(folder / "store", chance.randrange(1 << 30)) for _ in range(PROCESSES)]
    try:
        for _ in range(max(0, kills - PROCESSES)):
            number = chance.randrange(PROCESSES)
            writers[number].said_something.wait(60)
            time.sleep(chance.random() * 0.12)
            _end(writers[number], promises)
            writers[number] = Writer(folder / "store", chance.randrange(1 << 30))
        for writer in writers:
            writer.said_something.wait(60)
        time.sleep(chance.random() * 0.1)
    finally:
        for writer in writers:
            _end(writer, promises)
    problems = promises.problems + check(folder / "store", promises)
    if problems:
        problems.append(f"the store is kept in {folder}")
    else:
        shutil.rmtree(folder)
    return Done(max(kills, PROCESSES), problems)


def _end(writer: Writer, promises: Promises) -> None:
    complaint = writer.kill()
    for what in writer.heard:
        promises.hear(what)
    if complaint is not None:
        promises.problems.append(f"a writer ended by itself: {complaint}")


def check(path: Path, promises: Promises) -> list[str]:
    problems: list[str] = []
    with bookstand.open(path, create=False) as store:
        report = store.verify()
        problems += [f"verify: {problem.message}" for problem in report.problems]
        for ledger in sorted(promises.created | set(promises.acked) | set(promises.recovered)):
            if ledger not in promises.may_be_gone:
                problems += _check_ledger(store, ledger, promises)
        problems += _check_transactions(store, promises)
        report = store.verify()
        problems += [f"verify after recovery: {problem.message}" for problem in report.problems]
    return problems


def _check_ledger(store: bookstand.Store, ledger: int, promises: Promises) -> list[str]:
    try:
        reader = store.open_ledger(ledger)
        end = reader.last_add_confirmed
        found = list(reader)
    except errors.BookstandError as error:
        return [f"ledger {ledger} cannot be read: {error!r}"]
    problems = []
    if end < promises.acked.get(ledger, -1):
        problems.append(f"ledger {ledger} ends at {end}, but {promises.acked[ledger]} was acknowledged")
    if promises.recovered.get(ledger, end) != end:
        problems.append(f"ledger {ledger} ends at {end}, but was closed at {promises.recovered[ledger]}")
    if [entry.entry_id for entry in found] != list(range(end + 1)):
        problems.append(f"ledger {ledger} ends at {end}, but has {len(found)} entries")
    wrong = [entry.entry_id for entry in found if entry.data != payload(ledger, entry.entry_id)]
    if wrong:
        problems.append(f"ledger {ledger} has wrong bytes in entries {wrong[:5]}")
    return problems


def _check_transactions(store: bookstand.Store, promises: Promises) -> list[str]:
    """The node has the number of the last transaction that happened. Those that were confirmed and the last one left
    all of their entries; all others, refused or cut short, left none, for nobody uses their writers again."""
    problems = []
    for path in {path for path, _ in promises.begun}:
        try:
            number = int(store.nodes.get(path)[0])
        except errors.NoSuchNodeError:
            number = 0
        confirmed = promises.committed.get(path, set())
        if number < max(confirmed, default=0):
            problems.append(f"{path} says {number}, but transaction {max(confirmed)} was confirmed")
        for (where, begun), (ledgers, entries) in promises.begun.items():
            if where == path:
                problems += _check_transaction(
                    store, f"transaction {begun} of {path}", begun in {number, *confirmed}, ledgers, entries, promises
                )
    return problems


def _check_transaction(
    store: bookstand.Store,
    name: str,
    happened: bool,
    ledgers: list[int],
    entries: list[int],
    promises: Promises,
) -> list[str]:
    ids = [
        (ledger, entry) for ledger, entry in zip(ledgers, entries, strict=True) if ledger not in promises.may_be_gone
    ]
    wrong = [f"{ledger}:{entry}" for ledger, entry in ids if _has(store, ledger, entry) != happened]
    if not wrong:
        return []
    return [f"{name} happened, but {wrong} are missing" if happened else f"{name} left {wrong}, but did not happen"]


def _has(store: bookstand.Store, ledger: int, entry: int) -> bool:
    try:
        return bool(store.open_ledger(ledger, recovery=False).read_unconfirmed(entry, entry))
    except errors.NoSuchEntryError:
        return False


def _place() -> str | None:
    """In memory where that is possible: what SIGKILL leaves does not depend on the disk."""
    return "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None


KIND = Kind(one_round)
