"""Random scenarios of trackers of delayed messages, recorded from the original's classes and replayed.

Settings, operations and their frequencies are those of the recordings of Pulsar that ``tests.replay delayed`` reads.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.interop.java import request
from tests.interop.questions import Asked
from tests.replay.delayed import replay_scenario

Line = dict[str, Any]

SCENARIOS = 40
TOPIC, CURSOR = "persistent://public/default/t", "sub"
MALFORMED_KEYS = (
    *("1", "1_x", "x_1", "1_2_3", "2_1", "", "_", "1_", " 1_2"),
    *("-3_-1", "+1_2", "1_9223372036854775808", "٣_٤"),
)
MALFORMED_VALUES = ("", "x", "-7", "+8", "1.5", "9223372036854775808", " 1", "٣", "999")


class Recording:
    """A scenario that the original goes through, and what bookstand makes of what it did."""

    def __init__(self, name: str, scenario: Line) -> None:
        self.name = name
        self.scenario = scenario
        self.request = request("tracker", scenario=json.dumps(scenario).encode())
        self.remark = ""

    def difference(self, answer: dict[str, str]) -> str:
        if "ops" not in answer:
            return str(answer)
        recorded = {**self.scenario, "ops": json.loads(bytes.fromhex(answer["ops"]))}
        outcome = replay_scenario(self.name, recorded)
        return outcome.detail if outcome.verdict == "different" else ""


class _Messages:
    """Positions and times: ledgers one after the other or far apart, with some that come late or again."""

    def __init__(self, rng: random.Random, now: int) -> None:
        self.rng = rng
        self.now = now
        self.dense = rng.random() < 0.5
        self.span = rng.choice((30, 100, 20_000, 20_000, 500_000))
        self.ledger = rng.choice((1, 2, 5, 17))
        self.entry = 0
        self.known: list[tuple[int, int]] = []

    def next(self) -> list[int]:
        rng = self.rng
        kind = rng.random()
        if self.known and kind < 0.08:
            ledger, entry = rng.choice(self.known)
        elif self.known and kind < 0.16:
            ledger, entry = max(1, rng.choice(self.known)[0] + rng.choice((-1, 0, 0, 1))), rng.randrange(400)
        else:
            if rng.random() < (0.04 if self.dense else 0.9):
                self.ledger += rng.choice((1, 1, 1, 2, 7))
                self.entry = rng.choice((0, 0, rng.randrange(70_000)))
            else:
                self.entry += rng.choice((1, 1, 1, 2, 5))
            ledger, entry = self.ledger, self.entry
        self.known.append((ledger, entry))
        return [ledger, entry, self._time()]

    def _time(self) -> int:
        kind = self.rng.random()
        if kind < 0.04:
            return self.rng.choice((-1, -5, 0, self.now, self.now - 1))
        if kind < 0.1:
            return self.now + self.rng.randint(-1, 3)
        return self.now + self.rng.randint(1, self.span)


def bucket_settings(rng: random.Random) -> Line:
    return {
        "tracker": "bucket",
        "strict": rng.random() < 0.6,
        "tick_ms": rng.choice((1, 1, 10, 100, 500, 1000, 1024)),
        "min_index_count_per_bucket": rng.choice((1, 2, 3, 4, 5, 5, 8, 20, 20, 100)),
        "time_step_per_segment_ms": rng.choice((1, 10, 10, 50, 100, 1000, 300_000)),
        "max_indexes_per_segment": rng.choice((-1, -1, 1, 3, 5, 20, 5000)),
        "max_num_buckets": rng.choice((-1, 1, 2, 3, 4, 5, 10, 50)),
        "start_ms": rng.choice((0, 0, 1000, 1_700_000_000_000)),
        "first_bucket_id": 1,
        "topic": TOPIC,
        "cursor": CURSOR,
    }


def in_memory_settings(rng: random.Random) -> Line:
    return {
        "tracker": "in_memory",
        "strict": rng.random() < 0.5,
        "tick_ms": rng.choice((1, 7, 100, 1000, 1024)),
        "fixed_delay_detection_lookahead": rng.choice((0, 5, 1000)),
        "start_ms": rng.choice((0, 1000, 1_700_000_000_000)),
    }


def bucket_scenario(rng: random.Random, faults: bool = True) -> Line:
    settings = bucket_settings(rng)
    messages = _Messages(rng, settings["start_ms"])
    held = rng.random() < 0.3 and faults
    failing = rng.random() < 0.4 and faults
    ops: list[Line] = [{"op": "open"}]
    for _ in range(rng.randint(20, 70)):
        ops += _bucket_step(rng, messages, failing, held)
    ops += [{"op": "heal"}, {"op": "unhold"}, {"op": "fire"}]
    for _ in range(4):
        messages.now += messages.span
        ops += [
            {"op": "clock", "ms": messages.now},
            {"op": "get_scheduled", "max": 100},
            {"op": "fire"},
            {"op": "get_scheduled", "max": 100_000},
            {"op": "has_available"},
        ]
    ops += [{"op": "properties"}, {"op": "snapshots"}]
    if rng.random() < 0.5:
        ops += [{"op": "reopen", "mode": "crash"}, {"op": "get_scheduled", "max": 1000}, {"op": "properties"}]
    return {"settings": settings, "ops": ops, "final_properties": {}}


def _bucket_step(rng: random.Random, messages: _Messages, failing: bool, held: bool) -> list[Line]:
    kind = rng.random()
    if kind < 0.4:
        return [{"op": "add_many", "messages": [messages.next() for _ in range(rng.choice((1, 3, 8, 12, 40)))]}]
    if kind < 0.47:
        ledger, entry, time = messages.next()
        return [{"op": "add", "ledger": ledger, "entry": entry, "deliver_at": time}]
    if kind < 0.62:
        messages.now += rng.choice((0, 1, 1, messages.span // 20, messages.span // 3, messages.span))
        later: list[Line] = [{"op": "clock", "ms": messages.now}]
        return later + ([{"op": "fire"}] if rng.random() < 0.6 else [])
    if kind < 0.77:
        return [{"op": "get_scheduled", "max": rng.choice((1, 2, 5, 10, 100, 1000))}]
    if kind < 0.81:
        return [{"op": "has_available"}]
    if kind < 0.86:
        some = [list(rng.choice(messages.known)) for _ in range(rng.randint(1, 8))] if messages.known else [[1, 1]]
        return [{"op": "contains_many", "positions": some}]
    if kind < 0.89:
        return [{"op": rng.choice(("fire", "fire", "fire_stale", "fire_cancelled"))}]
    if kind < 0.91:
        return [{"op": "mark_delete", "ledger": max(0, messages.ledger - rng.choice((0, 1, 5, 20))), "entry": 5}]
    if kind < 0.93:
        return [{"op": "clear"}, {"op": "future"}, {"op": "properties"}]
    if kind < 0.95:
        mode = rng.choice(("crash", "crash", "crash", "close"))
        return [{"op": "heal"}, {"op": "unhold"}, {"op": "reopen", "mode": mode}, {"op": "properties"}]
    if failing and kind < 0.975:
        call = rng.choice(("segments", "segments", "remove_property", "delete", "create", "length", "put_property"))
        error = rng.choice(("persistence", "persistence", "runtime"))
        return [{"op": "fail", "call": call, "error": error, "times": rng.choice((1, 2, 4, 4, 8))}]
    if held:
        calls = rng.sample(("segments", "delete", "create", "length", "put_property"), rng.choice((1, 1, 2)))
        return [{"op": "hold", "calls": calls}] if kind < 0.985 else [{"op": "release", "n": rng.randint(1, 3)}]
    return [{"op": "properties"}]


def malformed_scenario(rng: random.Random) -> Line:
    """Properties that no tracker wrote, among those that one did."""
    scenario = bucket_scenario(rng, faults=False)
    ops = scenario["ops"]
    for _ in range(rng.randint(1, 3)):
        at = rng.randint(1, len(ops))
        key = f"#pulsar.internal.delayed.bucket_{rng.choice(MALFORMED_KEYS)}"
        value = rng.choice((*MALFORMED_VALUES, "1"))
        well_formed = f"#pulsar.internal.delayed.bucket_{5000 + at}_{5001 + at}"
        name = key if rng.random() < 0.7 else well_formed
        ops[at:at] = [
            {"op": "set_property", "key": name, "value": value},
            {"op": "reopen", "mode": rng.choice(("crash", "close"))},
            {"op": "properties"},
            {"op": "remove_property", "key": name},
            {"op": "reopen", "mode": "crash"},
        ]
    return scenario


def in_memory_scenario(rng: random.Random) -> Line:
    settings = in_memory_settings(rng)
    messages = _Messages(rng, settings["start_ms"])
    ops: list[Line] = [{"op": "open"}]
    for _ in range(rng.randint(20, 70)):
        step = _bucket_step(rng, messages, failing=False, held=False)
        if step[0]["op"] in ("contains_many", "mark_delete", "properties", "heal"):
            step = [{"op": rng.choice(("should_pause", "has_available"))}]
        elif step[0]["op"] == "clear":
            step = [{"op": "clear"}] if rng.random() < 0.3 else [{"op": "reset_tick", "ms": rng.choice((1, 50, 1000))}]
        ops += step
    return {"settings": settings, "ops": ops, "final_properties": {}}


def _recordings(
    name: str, scenario: Callable[[random.Random], Line], rng: random.Random, count: int = SCENARIOS
) -> Iterator[Asked]:
    for number in range(count):
        one = scenario(random.Random(rng.getrandbits(64)))
        yield Recording(f"{name} {number}", {"id": f"{name}-{number:05}", "kind": "random", **one})


GROUPS: dict[str, Callable[[random.Random], Iterator[Asked]]] = {
    "trackers on buckets, at random": partial(_recordings, "bucket", bucket_scenario),
    "trackers on buckets with malformed properties": partial(_recordings, "malformed", malformed_scenario, count=10),
    "trackers in memory, at random": partial(_recordings, "in-memory", in_memory_scenario),
}
