"""P26: private memory of negatively acknowledged messages, nacked one by one through a subscription.

Each kind runs in a separate process. A few MiB are independent of the number of messages, so the fewer messages of a
quick run are judged more strictly.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.figures import Figure
from benchmarks.measure import ROOT
from benchmarks.places import Bench
from benchmarks.rows import Row

KINDS = {"P26": "ordered", "P26r": "random"}
MESSAGES = 10_000_000
QUICK_MESSAGES = 4_000_000


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    messages = bench.rounds(QUICK_MESSAGES, MESSAGES)
    for row in rows:
        yield figure(row, [ask(KINDS[row.row], messages) for _ in range(bench.rounds(1, 3))])


def ask(kind: str, messages: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.nacks_worker", kind, str(messages)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the worker ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    if answer["nacked"] != messages:
        raise RuntimeError(f"{answer['nacked']} messages are nacked, not {messages}")
    return answer


def figure(row: Row, answers: Sequence[dict[str, Any]]) -> Figure:
    each = [answer["bytes"] for answer in answers]
    cpu = statistics.median(answer["cpu"] for answer in answers)
    note = f"{answers[0]['nacked']:,} nonexistent messages, identified by position; {cpu * 1e6:.1f} us of CPU per nack"
    return Figure(
        row, value=statistics.median(each), ours=statistics.median(each), note=note, rounds={"ours": {"bytes": each}}
    )
