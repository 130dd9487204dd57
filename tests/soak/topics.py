"""A whole topic: processes take it from each other and die, while each publishes, consumes and does whatever can be done.

One of four processes has the topic at a time. The next one takes it while that one lives and finds out later, or after
it was killed, or has left in good order; and keeps delayed messages in another way, perhaps. In the end of a round all
that is left is consumed, and compared with what was told: nothing is lost or early, nothing comes again that was
acknowledged durably, and what is a dead letter is among the dead letters.

In a long campaign the rounds are of one store and one of the processes is never killed, so that it can be seen whether
its memory and the store's file grow, where everything is consumed and trimmed again and again.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import bookstand
from bookstand.testing import VirtualClock
from tests.kit import PATIENCE
from tests.soak.kinds import Done, Kind
from tests.soak.random_kills import ROOT, _place
from tests.soak.topics_process import DEAD_LETTERS, MODES, SUBSCRIPTIONS, TOPIC, config_of
from tests.soak.topics_promises import Id, Told

PROCESSES = 4
TURNS = 12
LONG_SECONDS = 60.0
"""A campaign of so many seconds keeps its store."""
MOST_GROWTH = 1.1
"""Of the last quarter's peak beyond the third quarter's."""
ENOUGH_SAMPLES = 24
"""Fewer say nothing about growth."""
LATER_MILLIS = 60_000
"""By then everything is due."""
SHOWN = 20


class Process:
    def __init__(self, store: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.topics_process", str(store)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.idle = True
        """It has no life, or ended the last one."""
        self._changed = threading.Condition()
        self._heard: list[list[Any]] = []
        self._dead = False
        self._threads = [threading.Thread(target=self._listen), threading.Thread(target=self._read_complaints)]
        self._complaint = b""
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                heard = json.loads(line)
                with self._changed:
                    self._heard.append(heard)
                    if heard[1] == "ended":
                        self.idle = True
                    self._changed.notify_all()
        with self._changed:
            self._dead = True
            self._changed.notify_all()

    def _read_complaints(self) -> None:
        assert self.process.stderr is not None
        self._complaint = self.process.stderr.read()

    def heard(self) -> list[list[Any]]:
        """What is new."""
        with self._changed:
            new, self._heard = self._heard, []
            return new

    def send(self, command: Any) -> None:
        assert self.process.stdin is not None
        if isinstance(command, dict):
            self.idle = False
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def wait_until_idle(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self.idle or self._dead, PATIENCE)
            return self.idle

    def anonymous_memory(self) -> int:
        """In KiB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1])
        return 0

    def kill(self) -> str | None:
        """Its complaint if it had died by itself."""
        died = self.process.poll() is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass
        return f"exit code {self.process.returncode}: {self._complaint.decode()[-2000:]}" if died else None


class Campaign:
    """Rounds on one store. ``lasting``: the first process is not killed, and is measured."""

    def __init__(self, lasting: bool = False) -> None:
        self.lasting = lasting
        self.folder = Path(tempfile.mkdtemp(prefix="bookstand-topics-", dir=_place()))
        self.store = self.folder / "store"
        self.processes: list[Process] = []
        self.life = 0
        self.rounds = 0
        self.kills = 0
        self.operations: Counter[str] = Counter()
        self.memory: list[int] = []
        self.bytes: list[int] = []
        self.failed = False

    # -- a round -------------------------------------------------------------------------------------------------------

    def round(self, seed: int, turns: int = TURNS) -> Done:
        chance = random.Random(seed)
        settings = {
            "delayed_delivery_tick_time_millis": chance.choice([1, 20, 100]),
            "is_delayed_delivery_deliver_at_time_strict": chance.random() < 0.5,
        }
        told = Told()
        self._told = told
        kills = self.kills
        while len(self.processes) < PROCESSES:
            self.processes.append(Process(self.store))
        for _ in range(turns):
            self._turn(chance, seed, settings)
        for process in self.processes:
            self._wait(process) if chance.random() < 0.5 and not process.idle and self._leave(process) else None
        mode = chance.choice(list(MODES))
        left, dead, problems = self._consume(mode, settings)
        for process in self.processes:
            # Whoever had the topic finds out now.
            self._wait(process)
            self._hear(process)
        problems += told.problems(
            left,
            dead,
            settings["delayed_delivery_tick_time_millis"],
            settings["is_delayed_delivery_deliver_at_time_strict"],
        )
        self.rounds += 1
        self.operations += told.operations
        if problems:
            self.failed = True
            problems = [*problems[:SHOWN], f"{len(problems)} problems; the store is kept in {self.folder}"]
        return Done(self.kills - kills, problems)

    def _turn(self, chance: random.Random, seed: int, settings: dict[str, Any]) -> None:
        number = chance.randrange(PROCESSES)
        process = self.processes[number]
        kept = self.lasting and number == 0
        end = chance.choice(["kill", "kill", "kill", "stay", "stay", "leave"])
        span = chance.choice([chance.random() * 0.3, chance.random() * 1.5])
        self._wait(process)
        self.life += 1
        process.send({"take": self.life, "seed": seed, "mode": chance.choice(list(MODES)), "settings": settings})
        time.sleep(1.5 if kept else span)
        if kept:
            self.memory.append(process.anonymous_memory())
        elif end == "kill":
            self._kill(number)
            self.processes[number] = Process(self.store)
        if end == "leave":
            self._leave(process)
            self._wait(process)

    def _leave(self, process: Process) -> bool:
        process.send("leave")
        return True

    def _wait(self, process: Process) -> None:
        if not process.idle and process.process.poll() is None and not self._taken_over(process):
            # It has the topic, and nobody took it.
            return
        if not process.wait_until_idle():
            self._told.complaints.append(f"a process has not noticed for {PATIENCE} s that it has lost the topic")
