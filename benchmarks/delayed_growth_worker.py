"""Worker of P15: ``python -m benchmarks.delayed_growth_worker FOLDER MESSAGES PER_SEAL`` tracks delayed messages in
buckets, and prints CPU nanoseconds and bytes of private memory as ``name=value`` words.

The messages are those of the time index's rows: 10 000 per second, with random delays of up to an hour. The clock does
not advance while they are added; then it advances until some are due.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time_ns

from benchmarks.delayed_buckets import Fixture, fixture, settings
from benchmarks.measure import trimmed_bytes
from benchmarks.time_index_work import START, Work
from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker

AT_A_TIME = 1_000
POLLS = 50
"""Number of polls that return AT_A_TIME messages, and of empty polls."""

# The tick of the settings: messages that are due within it are due immediately.
_TICK = 1_000
_DUE_AFTER = 600
_WARM_UP = 20_000


def work(messages: int) -> Work:
    return Work("random", per_milli=10, bits=0, messages=messages)


def run(folder: Path, messages: int, per_seal: int) -> dict[str, int]:
    config = settings(delayed_delivery_min_index_count_per_bucket=per_seal)
    costs: dict[str, int] = {}
    with fixture(folder / "store", config, now=START - _TICK) as at:
        tracker = at.tracker()
        before = trimmed_bytes()
        costs["add"] = _add(tracker, work(messages)) // messages
        costs["bytes"] = trimmed_bytes() - before
        costs["buckets"] = len(tracker.buckets)
        costs["reported"] = tracker.memory_bytes
        sealed = messages - tracker.mutable_count
        costs["idle"] = _spent(partial(_polls, tracker, 0)) // POLLS
        tracker.close()
        del tracker
        before = trimmed_bytes()
        again: list[BucketDelayedTracker] = []
        costs["restart"] = _spent(lambda: again.append(at.tracker())) // max(1, costs["buckets"])
        costs["bytes_again"] = trimmed_bytes() - before
        _check(len(again[0]), sealed)
        costs["poll"] = _busy(at, again[0])
        again[0].close()
    return costs


def _add(tracker: BucketDelayedTracker, load: Work) -> int:
    spent = 0
    for times, ledger_ids, entry_ids in load.chunks():
        start = process_time_ns()
        for first in range(0, len(times), AT_A_TIME):
            part = slice(first, first + AT_A_TIME)
            tracker.add_many((ledger_ids[part], entry_ids[part]), times[part])
        spent += process_time_ns() - start
    _check(len(tracker), load.messages)
    return spent


def _busy(at: Fixture, tracker: BucketDelayedTracker) -> int:
    at.clock.advance(_DUE_AFTER)
    # The first polls load segments; the following ones are alike.
    _polls(tracker, AT_A_TIME)
    return _spent(partial(_polls, tracker, AT_A_TIME)) // POLLS


def _polls(tracker: BucketDelayedTracker, expected: int) -> None:
    for _ in range(POLLS):
        _check(len(tracker.take_due(AT_A_TIME)[0]), expected)


def _spent(action: Callable[[], object]) -> int:
    gc.collect()
    start = process_time_ns()
    action()
    return process_time_ns() - start


def _check(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"found {found} messages, not {expected}")


def main() -> None:
    folder, messages, per_seal = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    # Allocate lazily loaded code and the arrays of messages first, so that they do not count.
    for _ in work(messages).chunks():
        break
    with (
        tempfile.TemporaryDirectory(dir=folder) as first,
        fixture(Path(first), settings(), now=START - _TICK) as at,
    ):
        tracker = at.tracker()
        _add(tracker, work(_WARM_UP))
        tracker.close()
    costs = run(folder, messages, per_seal)
    print(*(f"{name}={value}" for name, value in costs.items()), flush=True)


if __name__ == "__main__":
    main()
