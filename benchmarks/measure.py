"""Clocks, interleaved rounds, child processes and private memory."""

from __future__ import annotations

import ctypes
import gc
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Missing(Exception):  # noqa: N818
    """A candidate cannot run on this machine; the message contains the reason."""


class Sample(NamedTuple):
    """Seconds per operation: CPU time of the whole process (user and system, all threads), and wall time."""

    cpu: float
    wall: float


@dataclass
class Series:
    """The samples of one candidate, one per round."""

    samples: list[Sample] = field(default_factory=list)

    @property
    def cpu(self) -> float:
        return statistics.median(sample.cpu for sample in self.samples)

    @property
    def wall(self) -> float:
        return statistics.median(sample.wall for sample in self.samples)

    @property
    def best_cpu(self) -> float:
        """CPU time of the best round, which other load disturbed least."""
        return min(sample.cpu for sample in self.samples)


def timed(operation: Callable[[], object], count: int) -> Sample:
    """Measure one call of `operation`, which performs `count` operations."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    operation()
    return Sample((time.process_time() - cpu) / count, (time.perf_counter() - wall) / count)


def interleave(
    candidates: Mapping[str, Callable[[], Sample]], rounds: int, warm_up: int = 1
) -> dict[str, Series | Missing]:
    """Run every candidate once per round, in rotating order, after `warm_up` uncounted rounds."""
    measured: dict[str, Series | Missing] = {name: Series() for name in candidates}
    names = list(candidates)
    for turn in range(-warm_up, rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            series = measured[name]
            if isinstance(series, Missing):
                continue
            try:
                sample = candidates[name]()
            except Missing as missing:
                measured[name] = missing
                continue
            if turn >= 0:
                series.samples.append(sample)
    return measured


def as_installed(bytecode: Path) -> dict[str, str]:
    """Return an environment in which child processes share compiled modules in the folder `bytecode`, as in an
    installation, even if this process does not write bytecode."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return environment | {"PYTHONPYCACHEPREFIX": str(bytecode)}


def child(code: str, *arguments: str, bytecode: Path) -> Sample:
    """Run `python -c code`, and measure CPU and wall time of the child from exec to exit."""
    environment = as_installed(bytecode)
    command = [sys.executable, "-c", code, *arguments]
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"a child process ended with {process.returncode}")
    return Sample(usage.ru_utime + usage.ru_stime, wall)


def private_mib(pid: int | str = "self") -> float:
    """Return the RssAnon of a process in MiB: its private memory, without pages of mapped files."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) / 1024
    except OSError as error:
        raise Missing("RssAnon needs /proc, which does not exist") from error
    raise Missing("/proc does not show RssAnon")


def trimmed_bytes() -> int:
    """Return the private memory of this process, after returning free heap memory to the system if possible."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return round(private_mib() * (1 << 20))


class Memory(NamedTuple):
    """Private memory of a child in MiB: when ready, at the observed peak, and at the end; and the output of the
    child."""

    start: float
    peak: float
    end: float
    output: str


def child_memory(code: str, *arguments: str) -> Memory:
    """Watch the memory of a child that calls `ready()`, works, and calls `done(text)`, which this function defines.

    In between, its RssAnon is sampled as fast as possible, so that short peaks are observed.
    """
    prelude = (
        "import sys\n"
        "def ready():\n    print('ready', flush=True)\n    sys.stdin.readline()\n"
        "def done(text):\n    print(text, flush=True)\n    sys.stdin.readline()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", prelude + code, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError("the child ended before it was ready")
        start = peak = private_mib(process.pid)
        process.stdin.write("go\n")
        process.stdin.flush()
        # An exiting child closes the pipe, which also wakes the select.
        while not select.select([process.stdout], [], [], 0.0002)[0]:
            try:
                peak = max(peak, private_mib(process.pid))
            except Missing:
                break
        output = process.stdout.readline().strip()
        if not output:
            raise RuntimeError("the child ended before it was done")
        end = private_mib(process.pid)
        process.stdin.write("go\n")
        process.stdin.flush()
    return Memory(start, max(peak, end), end, output)
