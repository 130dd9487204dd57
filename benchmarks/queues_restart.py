"""P17: opening a topic with a backlog of a million messages to the first delivery, compared with reading them once."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, ratio
from benchmarks.measure import ROOT, Sample, Series
from benchmarks.places import Bench
from benchmarks.queues_restart_worker import RESTART, START, TICK_MILLIS, acknowledged, delays
from benchmarks.rows import Row

MESSAGES = 1_000_000
_ROOM = 3 << 30


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(_ROOM)
    rounds = bench.rounds(3, 7)
    for row in rows:
        figures = {}
        for kind in RESTART:
            with place.directory() as directory:
                opened, read, whole = restarted(kind, directory / "store", MESSAGES, rounds)
            figures[kind] = ratio(row, opened, read, f"{kind}, on {place.kind}; {whole}")
        yield worse(figures)


def restarted(kind: str, path: Path, messages: int, rounds: int) -> tuple[Series, Series, str]:
    """Fill a store, then alternately open it to the first delivery and read it, in separate processes. The note has the
    CPU time of the whole processes."""
    _ask("fill", kind, path, messages)
    opened, read = Series(), Series()
    whole: dict[str, list[float]] = {"deliver": [], "read": []}
    for _ in range(rounds):
        answer = _ask("deliver", kind, path, messages)
        check(kind, messages, answer)
        opened.samples.append(Sample(answer["cpu"], answer["wall"]))
        whole["deliver"].append(answer["whole"])
        answer = _ask("read", kind, path, messages)
        if answer["count"] != messages:
            raise RuntimeError(f"{answer['count']} entries were read, not {messages}")
        read.samples.append(Sample(answer["cpu"], answer["wall"]))
        whole["read"].append(answer["whole"])
    mine, other = (statistics.median(whole[action]) * 1e3 for action in ("deliver", "read"))
    return opened, read, f"including the start of Python {mine:.0f} over {other:.0f}"


def check(kind: str, messages: int, answer: dict[str, Any]) -> None:
    """Raise RuntimeError if the first message or the backlog is wrong."""
    acked = set(acknowledged(messages))
    unacked = [number for number in range(messages) if number not in acked]
    if answer["backlog"] != len(unacked):
        raise RuntimeError(f"{answer['backlog']} messages are outstanding, not {len(unacked)}")
    number = answer["number"]
    if number in acked:
        raise RuntimeError(f"message {number} was delivered, but it is acknowledged")
    if kind == "plain":
        if number != unacked[0]:
            raise RuntimeError(f"message {number} was the first, not {unacked[0]}")
        return
    # Any due message may be the first.
    if START + delays(messages)[number] > RESTART[kind] + TICK_MILLIS:
        raise RuntimeError(f"message {number} was the first, long before its delivery time")


def worse(figures: dict[str, Figure]) -> Figure:
    """Return the figure with the higher cost, with the other one in its note."""
    worst, *others = sorted(figures.values(), key=lambda figure: figure.value or 0, reverse=True)
    for other in others:
        worst.note += f"; {other.note}: {other.value:.3g} ({other.ours:.3g} over {other.baseline:.3g} ms)"
    return worst


def _ask(action: str, kind: str, path: Path, messages: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.queues_restart_worker", action, kind, str(path), str(messages)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{action} {kind} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
