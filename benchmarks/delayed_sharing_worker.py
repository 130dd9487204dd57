"""Worker of P21: ``python -m benchmarks.delayed_sharing_worker STORE SUBSCRIPTIONS`` lets subscriptions share an index
of delayed messages, and prints its private memory in bytes.

Every subscription has read the whole topic, and has taken the messages that are due after half of the time. Cursors are
not part of the measured memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import bookstand
from benchmarks.delayed_buckets import HOUR, NOW, TOPIC, settings
from benchmarks.measure import trimmed_bytes
from bookstand.cursor.config import CursorConfig
from bookstand.delivery.tracker.shared_index import SharedDelayedIndex
from bookstand.storage.format.position import Position
from bookstand.testing import VirtualClock
from bookstand.testing.clock import ManualTimer

AT_A_TIME = 1_000
_SMALL = "persistent://public/default/small"
_BY_HAND = CursorConfig(flush_interval=1e9)


def fill(path: Path, messages: int, per_ledger: int) -> None:
    """Create a topic of messages with random delays of up to an hour, and a small one to warm up with."""
    chance = np.random.default_rng(1)
    with bookstand.open(path, durability="none") as store:
        for name, count in ((TOPIC, messages), (_SMALL, AT_A_TIME)):
            topic = store.managed_ledger(name, max_entries_per_ledger=per_ledger)
            times = (NOW + chance.integers(2_000, HOUR, count)).tolist()
            topic.append_entries([topic.framed(b"", time) for time in times])
            topic.close()


def measure(path: Path, subscriptions: int) -> tuple[int, int]:
    """Return the private memory in bytes, and the memory that the index reports."""
    with bookstand.open(path) as store:
        _share(store.managed_ledger(_SMALL), 1, lambda index: None)
        before = trimmed_bytes()
        found: list[int] = []
        _share(
            store.managed_ledger(TOPIC),
            subscriptions,
            lambda index: found.extend((trimmed_bytes(), index.memory_bytes)),
        )
    return found[0] - before, found[1]


def _share(topic: Any, subscriptions: int, inspect: Callable[[SharedDelayedIndex], object]) -> None:
    clock = VirtualClock(NOW)
    with ExitStack() as stack:
        index = SharedDelayedIndex(topic, settings(), clock=clock, timer=ManualTimer(clock), cursor_config=_BY_HAND)
        stack.callback(index.delete)
        begin, end = Position(topic.extent.ledger_ids[0], -1), topic.extent.last.next
        views = [
            index.view(f"subscription {number}", _do_nothing, mark_delete=lambda: begin, read_position=lambda: end)
            for number in range(subscriptions)
        ]
        index.catch_up()
        waiting = index.tracker.peek()
        for view in views:
            for first in range(0, waiting.size, AT_A_TIME):
                times, ledger_ids, entry_ids = waiting.part(first, first + AT_A_TIME)
                if not view.add_many((ledger_ids, entry_ids), times).all():
                    raise RuntimeError("a message that is not due was not tracked")
        due = int(np.count_nonzero(waiting.timestamps <= NOW + HOUR // 2 + 1_000))
        del waiting
        clock.advance(HOUR // 2 // 1_000)
        taken = dict.fromkeys(views, 0)
        # In turn, because due messages stay in memory until every subscription has taken them.
        while sum(_took(view, taken) for view in views):
            pass
        if set(taken.values()) != {due}:
            raise RuntimeError(f"{set(taken.values())} messages were taken, not {due}")
        inspect(index)


def _took(view: Any, taken: dict[Any, int]) -> int:
    found = len(view.pop_due(AT_A_TIME))
    taken[view] += found
    return found


def _do_nothing() -> None:
    """Ignore a wake-up."""


if __name__ == "__main__":
    print(*measure(Path(sys.argv[1]), int(sys.argv[2])), flush=True)
