"""A topic at a constant backlog for hours, beside readers that stall and die: the kind ``endurance``.

One process publishes, consumes and trims; others read the same ledgers. One reader stalls for the whole campaign, one
is stopped and continued (SIGSTOP, SIGCONT) and one is killed at random moments, in the middle of reading. The file must
stay below twice the live data, free pages below the live ones, reader slots below the number of processes, and the
latency of a publish must not grow. A minute shows the first three; the latency needs an hour on a quiet machine.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.kit import PATIENCE, ROOT
from tests.soak.kinds import Done, Kind
from tests.soak.random_kills import _place

ROUND = 10.0
"""Seconds of a round."""
BACKLOG = 20_000
"""Messages. Deleted ledgers stay for a while, so that a small backlog says nothing of the file."""
SHORT_ROUND, SHORT_BACKLOG = 1.0, 1_000
MOST_FILE = 2.0
"""Bytes of the file for each byte of live data."""
MOST_SLOTS = 12
MOST_LATENCY = 3.0
"""The 99th percentile of the last quarter over that of the second one."""
ENOUGH_SECONDS = 1_800.0
"""Shorter campaigns report latencies and do not judge them: other programs on the machine outweigh them."""


class Process:
    def __init__(self, role: str, store: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.soak.endurance_process", role, str(store), *arguments]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        if self.answer() != b"ready\n":
            raise RuntimeError(f"the {role} ended with {self._process.wait(PATIENCE)}")

    def ask(self, line: str) -> None:
        self._in.write(line.encode() + b"\n")
        self._in.flush()

    def answer(self) -> bytes:
        return self._out.readline()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._close()

    def end(self) -> tuple[int, bytes]:
        """Close standard input, and return the exit code and what is left of the output."""
        self._in.close()
        rest = self._out.read()
        return self._close(), rest

    def _close(self) -> int:
        code = self._process.wait(PATIENCE)
        for file in (self._in, self._out):
            file.close()
        return code


class Campaign:
    def __init__(self, seconds: float, backlog: int = BACKLOG) -> None:
        self._seconds = seconds
        self._backlog = backlog
        self._folder = Path(tempfile.mkdtemp(prefix="bookstand-endurance-", dir=_place()))
        self._store = self._folder / "store"
        self._writer = Process("writer", self._store, str(backlog))
        self._stalled = Process("stalled", self._store)
        self._stopped = Process("reader", self._store)
        self._killed = Process("reader", self._store)
        self._samples: list[dict[str, Any]] = []
        self._kills = 0

    def round(self, seed: int, seconds: float = ROUND) -> Done:
        """Let the writer go on for some seconds, while readers are stopped and killed."""
        chance = random.Random(seed)
        self._writer.ask(str(seconds))
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0:
            self._stopped.signal(signal.SIGSTOP)
            time.sleep(min(rest, chance.random()))
            self._stopped.signal(signal.SIGCONT)
            self._killed.kill()
            self._kills += 1
            self._killed = Process("reader", self._store)
            time.sleep(chance.random() * 0.2)
        answer = self._writer.answer()
        if not answer:
            return Done(0, [f"the writer ended with {self._writer.end()[0]}"])
        sample = json.loads(answer)
        self._samples.append(sample)
        return Done(sample["cycles"], self._problems(sample))

    def _problems(self, sample: dict[str, Any]) -> list[str]:
        problems = []
        if self._backlog >= BACKLOG and sample["file_bytes"] > MOST_FILE * sample["live_bytes"]:
            problems.append(f"the file is more than {MOST_FILE} times the live data: {sample}")
        if sample["free_pages"] > sample["pages"]:
            problems.append(f"there are more free pages than others: {sample}")
        if sample["slots"] > MOST_SLOTS:
            problems.append(f"there are more than {MOST_SLOTS} reader slots: {sample}")
        return problems

    def end(self) -> Done:
        """End the processes, and compare the quarters of the campaign."""
        problems = []
        code, _ = self._stalled.end()
        if code:
            problems.append(f"the stalled reader ended with {code}")
        if self._writer.end()[0]:
            problems.append("the writer could not close the store")
        size = len(self._samples) // 4
        quarters = [self._samples[size * number : size * (number + 1)] for number in range(4)] if size else []
        latencies = [sorted(sample["p99"] for sample in quarter)[size // 2] for quarter in quarters]
        if latencies and self._seconds >= ENOUGH_SECONDS and latencies[3] > MOST_LATENCY * latencies[1]:
            problems.append(f"the latency of a publish grows: p99 by quarter {latencies}")
        figures: dict[str, Any] = {
            "kills of readers": self._kills,
            "p99_ms_by_quarter": [round(1_000 * latency, 2) for latency in latencies],
        }
        for name in ("file_bytes", "free_pages", "slots"):
            figures[f"most_{name}"] = max((sample[name] for sample in self._samples), default=0)
        return Done(0, problems, figures)

    def close(self) -> None:
        for process in (self._writer, self._stalled, self._stopped, self._killed):
            process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def campaign(seconds: float, backlog: int = BACKLOG) -> Iterator[Campaign]:
    running = Campaign(seconds, backlog)
    try:
        yield running
    finally:
        running.close()


def one_round(seed: int) -> Done:
    """A short campaign."""
    with campaign(SHORT_ROUND, SHORT_BACKLOG) as running:
        done = running.round(seed, SHORT_ROUND)
        end = running.end()
        return Done(done.cases, done.problems + end.problems, end.figures)


KIND = Kind(one_round, campaign)
