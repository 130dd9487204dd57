"""Power cuts at every moment of what topics and cursors write: the last whole state, and nothing durable is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.errors import NoSuchNodeError
from bookstand.storage.format.position import EARLIEST, Position
from bookstand.testing import every_crash

PER_LEDGER = 3
ENTRIES = 14
CONFIGS = {
    "pages": CursorConfig(flush_interval=1e9, max_entries_per_cursor_ledger=7),
    "tiny cache": CursorConfig(
        flush_interval=1e9, max_entries_per_cursor_ledger=9, max_individual_ack_cache_bytes=1, flush_commit_bytes=1
    ),
    "snapshot form": CursorConfig(
        flush_interval=1e9, max_entries_per_cursor_ledger=3, enable_lru_cache_max_unacked_ranges=False
    ),
}
STEPS = ([2], [0], [5, 7], [1], [12], [3, 4], [8, 6])


def use(path: str, config: CursorConfig, acknowledge: Callable[[object], None]) -> None:
    with bookstand.open(path) as store:
        topic = store.managed_ledger("t", max_entries_per_ledger=PER_LEDGER)
        entries = topic.append_entries([b"%d" % number for number in range(ENTRIES)])
        acknowledge(("entries", [tuple(one) for one in entries]))
        with Cursor.open(topic, "sub", config) as cursor:
            acknowledge(("cursor",))
            for step in STEPS:
                cursor.ack([entries[number] for number in step]).result()
                acknowledge(("acked", step))
            cursor.put_cursor_property("k", "v")
            acknowledge(("property",))
            topic.trim_consumed()
            cursor.reset(entries[7]).result()
            acknowledge(("reset",))
            cursor.ack(entries[13]).result()
            acknowledge(("acked again",))
        acknowledge(("closed",))


class Workload:
    def __init__(self, config: str) -> None:
        self.config = config

    def __call__(self, path: str, acknowledge: Callable[[object], None]) -> None:
        use(path, CONFIGS[self.config], acknowledge)


class Check:
    def __init__(self, config: str) -> None:
        self.config = config

    def __call__(self, store: Any, acknowledged: list[Any]) -> None:
        said = {one[0]: one[1:] for one in acknowledged}
        try:
            topic = store.managed_ledger("t", max_entries_per_ledger=PER_LEDGER, create=False)
        except NoSuchNodeError:
            assert not said
            return
        found = {int(entry.data): entry.position for entry in topic.entries(EARLIEST)}
        if "entries" in said:
            positions = [Position(*one) for one in said["entries"][0]]
            assert all(found.get(number, one) == one for number, one in enumerate(positions))
            assert max(found) == ENTRIES - 1
        try:
            cursor = Cursor.open(topic, "sub", CONFIGS[self.config], create=False)
        except NoSuchNodeError:
            assert "cursor" not in said
            return
        with cursor:
            acked = {number for number, position in found.items() if cursor.is_acked(position)}
            acked |= set(range(ENTRIES)) - set(found) if "entries" in said else set()
            done = [one[1] for one in acknowledged if one[0] == "acked"]
            self.judge(acked, done, said)
            if "property" in said:
                assert cursor.cursor_properties == {"k": "v"}

    @staticmethod
    def judge(acked: set[int], done: list[list[int]], said: dict[str, Any]) -> None:
        """The state is one of those after a step, and not one before what was told to be durable."""
        states = [{number for step in STEPS[:count] for number in step} for count in range(len(STEPS) + 1)]
        # What was trimmed cannot be gone back to: entry 9 is the first that is there.
        after_reset = [set(range(9)), set(range(9)) | {13}]
        allowed = [*states[len(done) :], *after_reset]
        if "acked again" in said:
            allowed = after_reset[1:]
        elif "reset" in said:
            allowed = after_reset
        assert acked in allowed, (sorted(acked), said)


@pytest.mark.long
@pytest.mark.parametrize("config", CONFIGS)
def test_power_cuts(config: str, counts: Any) -> None:
    explored = every_crash(Workload(config), Check(config), limit=700, seed=1)
    assert explored.states > 300
    counts.add("crash_states", explored.states)
