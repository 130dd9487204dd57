"""Clients that write to bookies until these are killed, and what must be there when they are served again."""

from __future__ import annotations

import random
import signal
import struct
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

from bookstand.proto import bookie_protocol_pb2 as messages
from tests.server.bookie import kit

ROOT = Path(__file__).resolve().parents[3]
WINDOW = 200


class Victim:
    """A process with bookies over a store."""

    def __init__(self, path: Path, bookies: int, *faults: str) -> None:
        command = [sys.executable, "-m", "tests.server.bookie.victim", str(path), str(bookies), *faults]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.addresses = [("127.0.0.1", int(port)) for port in self.process.stdout.readline().split()]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class Client(Thread):
    """Writes one ledger to some bookies from entry ``first`` on, a window ahead, and remembers what was confirmed."""

    def __init__(self, victim: Victim, ledger: int, bookies: list[int], first: int, version: int) -> None:
        super().__init__()
        self.ledger = ledger
        self.confirmed: dict[int, set[int]] = {bookie: set() for bookie in bookies}
        self.some = Event()
        self._version = version
        self._next = dict.fromkeys(bookies, first)
        self._wires = {bookie: kit.Wire(victim.addresses[bookie - 1]) for bookie in bookies}

    def run(self) -> None:
        try:
            while True:
                for bookie, wire in self._wires.items():
                    begin = self._next[bookie]
                    self._next[bookie] = begin + WINDOW
                    wire.send(*(self._frame(entry) for entry in range(begin, begin + WINDOW)))
                for bookie, wire in self._wires.items():
                    for _ in range(WINDOW):
                        self.confirmed[bookie].add(self._answered(wire))
                    self.some.set()
        except (OSError, EOFError):
            # It was killed.
            self.some.set()
        finally:
            for wire in self._wires.values():
                wire.socket.close()

    def _frame(self, entry: int) -> bytes:
        stored = entry_of(self.ledger, entry)
        return kit.v2_add(stored) if self._version == 2 else kit.v3_add(stored, entry)

    def _answered(self, wire: kit.Wire) -> int:
        frame = wire.frame()
        if frame is None:
            raise EOFError
        if self._version == 2:
            _, _, _, code, _, entry = struct.unpack(">BBHiqq", frame)
        else:
            response = messages.Response.FromString(frame)
            code, entry = response.status, response.addResponse.entryId
        if code != 0:
            raise AssertionError(f"entry {self.ledger}:{entry} was refused with {code}")
        return int(entry)


def entry_of(ledger: int, entry: int) -> bytes:
    return kit.stored(ledger, entry, b"%8d of %3d" % (entry, ledger))


def missing(victim: Victim, confirmed: dict[int, dict[int, set[int]]]) -> list[str]:
    """Of what was confirmed (bookie, ledger, entries), what is not there or has other bytes."""
    problems = []
    for bookie, ledgers in confirmed.items():
        with kit.Wire(victim.addresses[bookie - 1]) as wire:
            for ledger, entries in ledgers.items():
                for entry in sorted(entries):
                    answer = wire.v2(kit.v2_read(ledger, entry))
                    if answer.body != entry_of(ledger, entry):
                        problems.append(f"bookie {bookie}: entry {ledger}:{entry}: code {answer.code}")
    return problems


def write_and_kill(path: Path, seed: int, kills: int) -> tuple[int, list[str]]:
    """Kill a server ``kills`` times while six clients write to its three bookies; how many adds were confirmed, and
    what is wrong in the end."""
    chance = random.Random(seed)
    confirmed: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for number in range(kills):
        with Victim(path, 3) as victim:
            clients = [
                Client(
                    victim,
                    ledger,
                    sorted(chance.sample([1, 2, 3], chance.randrange(1, 4))),
                    number * 100_000,
                    chance.choice([2, 3]),
                )
                for ledger in range(6)
            ]
            for client in clients:
                client.start()
            for client in clients:
                client.some.wait(kit.PATIENCE)
            Event().wait(chance.random() * 0.1)
            victim.kill()
            for client in clients:
                client.join()
                for bookie, entries in client.confirmed.items():
                    confirmed[bookie][client.ledger] |= entries
    with Victim(path, 3) as victim:
        problems = missing(victim, confirmed)
    return sum(len(entries) for ledgers in confirmed.values() for entries in ledgers.values()), problems
