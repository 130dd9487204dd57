"""P21: memory of an index of delayed messages that 1, 10 or 100 subscriptions share.

The memory includes everything that a subscription adds, its progress as well.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.delayed_sharing_worker import fill
from benchmarks.figures import Figure
from benchmarks.measure import ROOT
from benchmarks.places import Bench
from benchmarks.rows import Row

SUBSCRIPTIONS = (1, 10, 100)
MESSAGES = 100_000
PER_LEDGER = 10_000
_ROOM = 1 << 30


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(_ROOM)
    with place.directory() as directory:
        path = directory / "store"
        fill(path, MESSAGES, PER_LEDGER)
        measured = memory(path, SUBSCRIPTIONS, bench.rounds(1, 3))
    for row in rows:
        yield _figure(row, measured)


def memory(path: Path, subscriptions: Sequence[int], rounds: int) -> dict[int, list[tuple[int, int]]]:
    """Measure the private memory in bytes, and the memory that the index reports, in alternating processes."""
    measured: dict[int, list[tuple[int, int]]] = {number: [] for number in subscriptions}
    for _ in range(rounds):
        for number in subscriptions:
            command = [sys.executable, "-m", "benchmarks.delayed_sharing_worker", str(path), str(number)]
            output = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
            measured[number].append((int(output[0]), int(output[1])))
    return measured


def _figure(row: Row, measured: dict[int, list[tuple[int, int]]]) -> Figure:
    mib = {number: [private / (1 << 20) for private, _ in found] for number, found in measured.items()}
    medians = {number: statistics.median(found) for number, found in mib.items()}
    largest, smallest = max(medians.values()), min(medians.values())
    reported = {number: max(size for _, size in found) / (1 << 20) for number, found in measured.items()}
    return Figure(
        row,
        value=largest / smallest,
        ours=largest,
        baseline=smallest,
        note="; ".join(f"{number}: {medians[number]:.2f} MiB, reports {reported[number]:.2f}" for number in measured),
        rounds={f"{number} subscriptions": {"MiB": found} for number, found in mib.items()},
    )
