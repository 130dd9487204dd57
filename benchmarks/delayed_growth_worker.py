"""A process that holds a backlog of delayed messages on buckets, ``python -m benchmarks.delayed_growth_worker FOLDER
MESSAGES PER_SEAL``, and prints a line of ``name=value`` words: nanoseconds of CPU, and bytes of private memory.

The messages are those of the time index's rows: 10 000 a second, each with any delay up to an hour. The clock stands at
the first while they are added; then it goes to where some are due.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time_ns

from benchmarks.delayed_buckets import Stand, settings, stand
from benchmarks.measure import private_mib
from benchmarks.time_index_work import START, Work
from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker

AT_A_TIME = 1_000
POLLS = 50
"""Of each kind: that find AT_A_TIME messages, and that find nothing."""

# Of the settings: what is due within it is due at once.
_TICK = 1_000
_DUE_AFTER = 600
_WARM_UP = 20_000
_MIB = 1 << 20


def work(messages: int) -> Work:
    return Work("random", per_milli=10, bits=0, messages=messages)


def run(folder: Path, messages: int, per_seal: int) -> dict[str, int]:
    config = settings(delayed_delivery_min_index_count_per_bucket=per_seal)
    told: dict[str, int] = {}
    with stand(folder / "store", config, now=START - _TICK) as at:
        tracker = at.tracker()
        before = _memory()
        told["add"] = _add(tracker, work(messages)) // messages
        told["bytes"] = _memory() - before
        told["buckets"] = len(tracker.buckets)
        told["said"] = tracker.memory_bytes
        sealed = messages - tracker.mutable_count
        told["idle"] = _spent(partial(_polls, tracker, 0)) // POLLS
        tracker.close()
        del tracker
        before = _memory()
        again: list[BucketDelayedTracker] = []
        told["restart"] = _spent(lambda: again.append(at.tracker())) // max(1, told["buckets"])
        told["bytes_again"] = _memory() - before
        _check(len(again[0]), sealed)
        told["poll"] = _busy(at, again[0])
        again[0].close()
    return told


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


def _busy(at: Stand, tracker: BucketDelayedTracker) -> int:
    at.clock.advance(_DUE_AFTER)
    # What is loaded by then is loaded: those that follow are like one another.
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


def _memory() -> int:
    """Private memory, without what is free and was not given back."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return round(private_mib() * _MIB)


def _check(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"there are {found} messages, not {expected}")


def main() -> None:
    folder, messages, per_seal = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    # What comes with the first use, and the arrays that messages are laid out in, are no memory of the messages.
    for _ in work(messages).chunks():
        break
    with tempfile.TemporaryDirectory(dir=folder) as first, stand(Path(first), settings(), now=START - _TICK) as at:
        tracker = at.tracker()
        _add(tracker, work(_WARM_UP))
        tracker.close()
    told = run(folder, messages, per_seal)
    print(*(f"{name}={value}" for name, value in told.items()), flush=True)


if __name__ == "__main__":
    main()
