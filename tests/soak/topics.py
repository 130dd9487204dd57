"""A whole topic: processes take it from each other and die, and whoever has it does all that can be done with it.

One of four processes has the topic at a time. The next one takes it while that one lives and finds out later, or after
it was killed, or has left in good order; and keeps delayed messages in another way, perhaps. In the end of a round all
that is left is consumed, and compared with what was told: nothing is lost or early, nothing comes again that was
acknowledged durably, and what is a dead letter is among the dead letters.

In a long campaign the rounds are of one store and one of the processes is never killed, so that it can be seen whether
its memory and the store's file grow, where everything is consumed and trimmed again and again. Its rounds and its
publishers keep to a pace: what was deleted stays in the file for a while, so that the file of a campaign that gets on
faster because other programs have ended would grow.
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
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import bookstand
from bookstand.errors import BookstandError
from bookstand.ledger.client import COLLECTION_GRACE_MILLIS
from bookstand.testing import VirtualClock
from tests.kit import PATIENCE
from tests.soak.kinds import Done, Kind
from tests.soak.random_kills import ROOT, _place
from tests.soak.topics_process import DEAD_LETTERS, MODES, config_of, take
from tests.soak.topics_promises import Id, Told

PROCESSES = 4
TURNS = 8
LONG_TURN = 1.5
"""Seconds for which a process has the topic that is measured."""
LONG_SECONDS = 60.0
"""A campaign of so many seconds keeps its store."""
LONG_ROUND = 10.0
"""Seconds from the begin of a round of a campaign that is measured to the next, at least."""
PACE = 100.0
"""Messages that a publisher of such a campaign has for a second."""
MOST_GROWTH = 1.1
"""Of the last quarter's peak beyond the third quarter's."""
ENOUGH_SAMPLES = 24
"""Fewer say nothing about growth."""
LATER_MILLIS = 60_000
"""By then everything is due."""
SHOWN = 20
TRACE: Sequence[str] = ()
"""What processes say that is to be shown, to find out what happened."""


class Process:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.topics_process"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.idle = False
        """It is ready, and has no life, or ended the last one."""
        self._taking = False
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
                    if heard[1] in ("ready", "ended"):
                        self.idle = True
                    if heard[1] in ("taken", "ended"):
                        self._taking = False
                    self._changed.notify_all()
        with self._changed:
            self._dead = True
            self._changed.notify_all()

    def _read_complaints(self) -> None:
        assert self.process.stderr is not None
        self._complaint = self.process.stderr.read()

    @property
    def died(self) -> bool:
        return self.process.poll() is not None

    def heard(self) -> list[list[Any]]:
        """What is new."""
        with self._changed:
            new, self._heard = self._heard, []
            return new

    def send(self, command: Any) -> None:
        assert self.process.stdin is not None
        if isinstance(command, dict):
            self.idle, self._taking = False, True
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        self.process.stdin.flush()

    def wait_until_idle(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self.idle or self._dead, PATIENCE)
            return self.idle

    def wait_until_taken(self) -> None:
        """Or until it has failed to take the topic."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taking or self._dead, PATIENCE)

    def anonymous_memory(self) -> int:
        """In KiB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1])
        return 0

    def kill(self) -> str | None:
        """Its complaint if it had died by itself."""
        died = self.died
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        return f"exit code {self.process.returncode}: {self._complaint.decode()[-2000:]}" if died else None


class Campaign:
    """Rounds on one store. ``lasting``: the first process is not killed, and is measured."""

    def __init__(self, lasting: bool = False) -> None:
        self.lasting = lasting
        self.began = self._next_round = time.monotonic()
        self._begin_a_store()
        self.processes: list[Process] = []
        self.told = Told()
        self.heard: list[list[Any]] = []
        self._holder: Process | None = None
        self.life = 0
        self.rounds = 0
        self.kills = 0
        self.operations: Counter[str] = Counter()
        self.memory: list[int] = []
        self.bytes: list[int] = []

    def _begin_a_store(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bookstand-topics-", dir=_place()))
        self.store = self.folder / "store"
        self.failed = False

    # -- a round -------------------------------------------------------------------------------------------------------

    def round(self, seed: int, turns: int = TURNS) -> Done:
        if self.lasting:
            time.sleep(max(0.0, self._next_round - time.monotonic()))
            self._next_round = time.monotonic() + LONG_ROUND
        chance = random.Random(seed)
        tick, strict = chance.choice([1, 20, 100]), chance.random() < 0.5
        settings = {
            "delayed_delivery_tick_time_millis": tick,
            "is_delayed_delivery_deliver_at_time_strict": strict,
        }
        self.told = told = Told()
        self.heard = []
        self._holder = None
        kills = self.kills
        while len(self.processes) < PROCESSES:
            self.processes.append(Process())
        for _ in range(turns):
            self._turn(chance, seed, settings)
        if chance.random() < 0.5:
            self._leave()
        mode = chance.choice(list(MODES))
        try:
            left, dead, problems = self._consume(mode, settings)
        except (BookstandError, AssertionError):
            return self._given_up(kills, traceback.format_exc())
        for process in self.processes:
            # Whoever had the topic finds out now.
            if not process.wait_until_idle():
                problems.append(f"a process did not notice in {PATIENCE} s that it has lost the topic")
            self._hear(process)
        problems += told.problems(left, dead, tick, strict)
        self.rounds += 1
        self.operations += told.operations
        if problems:
            self.failed = True
            with (self.folder / f"heard-{seed}.jsonl").open("w") as told_of:
                told_of.writelines(json.dumps(line) + "\n" for line in self.heard)
            problems = [*problems[:SHOWN], f"{len(problems)} problems; the store is kept in {self.folder}"]
        return Done(self.kills - kills, problems)

    def _given_up(self, kills: int, why: str) -> Done:
        """What is in the store is not known: the next round begins another."""
        for number, process in enumerate(self.processes):
            if self.lasting and number == 0 and not process.died:
                self._holder = process
                self._leave()
                self._hear(process)
            else:
                self._end(process)
                self.processes[number] = Process()
        self.rounds += 1
        self.operations += self.told.operations
        folder = self.folder
        self._begin_a_store()
        return Done(self.kills - kills, [why[-4000:], *self.told.complaints, f"the store is kept in {folder}"])

    def _turn(self, chance: random.Random, seed: int, settings: dict[str, Any]) -> None:
        wish, span, mode = (
            chance.randrange(PROCESSES),
            chance.choice([0.3, 1.5]) * chance.random(),
            chance.choice([*MODES]),
        )
        end = chance.choice(["kill", "kill", "kill", "stay", "stay", "leave"])
        number = self._idle_one(wish)
        process = self.processes[number]
        measured = self.lasting and number == 0
        self.life += 1
        pace = PACE if self.lasting else None
        command = {"take": self.life, "path": str(self.store), "seed": seed, "mode": mode, "settings": settings}
        process.send(command | {"pace": pace})
        self._holder = process
        time.sleep(LONG_TURN if measured else span)
        if end == "kill" and not measured:
            self._end(process)
            self.processes[number] = Process()
            self.kills += 1
            return
        # Else it might take the topic from the next one.
        process.wait_until_taken()
        if measured:
            self.memory.append(process.anonymous_memory())
        if end == "leave":
            self._leave()

    def _idle_one(self, wish: int) -> int:
        """The process wished for, or the next one that has lost the topic or never had it. All but one of them do not
        have it."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for number in range(wish, wish + PROCESSES):
                process = self.processes[number % PROCESSES]
                if process.died:
                    self._end(process)
                    self.processes[number % PROCESSES] = Process()
                elif process.idle:
                    return number % PROCESSES
            time.sleep(0.01)
        raise AssertionError(f"no process has noticed in {PATIENCE} s that it has lost the topic")

    def _leave(self) -> None:
        """Whoever has the topic closes it in good order."""
        process, self._holder = self._holder, None
        if process is not None and not process.idle and not process.died:
            process.send("leave")
            if not process.wait_until_idle():
                self.told.complaints.append(f"a process did not close the topic in {PATIENCE} s")

    def _end(self, process: Process) -> None:
        complaint = process.kill()
        if process is self._holder:
            self._holder = None
        if complaint is not None:
            self.told.complaints.append(f"a process ended by itself: {complaint}")
        self._hear(process)

    def _hear(self, process: Process) -> None:
        for line in process.heard():
            self.told.hear(line)
            self.heard.append(line)
            if TRACE and line[1] in TRACE:
                print(line, flush=True)

    # -- what is left --------------------------------------------------------------------------------------------------

    def _consume(
        self, mode: str, settings: dict[str, Any]
    ) -> tuple[dict[str, list[tuple[Id, str]]], list[tuple[Id, str]], list[str]]:
        """What each subscription still gave, the dead letters, and what is wrong with the store."""
        problems: list[str] = []
        left: dict[str, list[tuple[Id, str]]] = {}
        clock = VirtualClock(time.time_ns() // 1_000_000)
        with bookstand.open(self.store, clock=clock) as store:
            problems += [f"verify: {problem.message}" for problem in store.verify().problems]
            topic, subs = take(store, config_of(mode, settings), lambda why: self.operations.update(["refused"]))
            clock.advance(LATER_MILLIS / 1000)
            for name, sub in subs.items():
                messages = []
                while some := sub.receive(200, timeout=0):
                    messages += some
                sub.ack_many(messages).result(PATIENCE)
                left[name] = [((*one.position, one.batch_index), name_in(one.payload)) for one in messages]
                stats = sub.stats
                if stats.backlog or stats.delayed or stats.nacked or stats.waiting:
                    problems.append(f"{name}: all is consumed, and {stats}")
            letters = store.topic(DEAD_LETTERS)
            reader = letters.subscription("reader")
            dead = []
            while some := reader.receive(200, timeout=0):
                dead += [(origin(one.properties["ORIGIN_MESSAGE_ID"]), name_in(one.payload)) for one in some]
                reader.ack_many(some).result(PATIENCE)
            for one in (topic, letters):
                one.trim()
                one.close()
            problems += [f"verify at the end: {problem.message}" for problem in store.verify().problems]
        self.bytes.append(sum(file.stat().st_blocks * 512 for file in self.store.rglob("*") if file.is_file()))
        return left, dead, problems

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self) -> Done:
        """Whether anything grew. What is deleted stays in the file for a while; a quarter has to be longer."""
        figures: dict[str, Any] = {
            "rounds": self.rounds,
            "kills": self.kills,
            "lives": self.life,
            "operations": dict(self.operations),
        }
        problems: list[str] = []
        lasted = time.monotonic() - self.began
        for name, samples, at_least in (
            ("memory_kib", self.memory, 0.0),
            ("file_bytes", self.bytes, 4 * COLLECTION_GRACE_MILLIS / 1_000),
        ):
            peaks = peaks_by_quarter(samples)
            figures[name] = {"samples": len(samples), "peaks_by_quarter": peaks}
            enough = self.lasting and len(samples) >= ENOUGH_SAMPLES and lasted >= at_least
            if enough and peaks[3] > MOST_GROWTH * peaks[2]:
                problems.append(f"{name} grows: its peaks by quarter are {peaks}")
        return Done(0, problems, figures)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        if not self.failed:
            shutil.rmtree(self.folder, ignore_errors=True)


def peaks_by_quarter(samples: Sequence[int]) -> list[int]:
    if len(samples) < 4:
        return []
    return [max(samples[len(samples) * n // 4 : len(samples) * (n + 1) // 4]) for n in range(4)]


def name_in(payload: bytes) -> str:
    return payload.partition(b"|")[0].decode()


def origin(message_id: str) -> Id:
    """``ledger:entry:-1``, and the index of its batch where it has one."""
    ledger, entry, _, *index = map(int, message_id.split(":"))
    return ledger, entry, index[0] if index else -1


def one_round(seed: int, turns: int = TURNS) -> Done:
    """In a store of its own."""
    campaign = Campaign()
    try:
        done = campaign.round(seed, turns)
        return done._replace(figures=campaign.end().figures)
    except BaseException:
        campaign.failed = True
        raise
    finally:
        campaign.close()


@contextmanager
def long_campaign(seconds: float) -> Iterator[Campaign | None]:
    """None: it is too short to be anything but rounds of their own."""
    if seconds < LONG_SECONDS:
        yield None
        return
    campaign = Campaign(lasting=True)
    try:
        yield campaign
    finally:
        campaign.close()


KIND = Kind(one_round, long_campaign)
