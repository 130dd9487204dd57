"""Random scenarios of topics and their cursors, recorded from the original's classes and replayed.

Settings, operations and their frequencies are those of the recordings of Pulsar that ``tests.replay cursor`` reads; a
second kind has what random scenarios there have not: positions that the topic does not have, names that are reserved,
states of cursors that nothing of the original's wrote.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.interop.java import request
from tests.interop.questions import Asked
from tests.replay.cursors import replay_scenario
from tests.replay.traces import Scenario

Line = dict[str, Any]

SCENARIOS = 20
CODECS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
RESERVED = "#pulsar.internal.x"


class Recordings:
    """Scenarios that the original goes through at once, and how bookstand answers to each."""

    def __init__(self, name: str, made: list[Scenario]) -> None:
        self.name = name
        self.made = made
        asked = [{"header": one.header, "lines": one.lines} for one in made]
        self.request = request("record", scenarios=json.dumps(asked).encode())
        self.remark = ""

    def difference(self, answer: dict[str, str]) -> str:
        if "lines" not in answer:
            return str(answer)
        recorded = json.loads(bytes.fromhex(answer["lines"]))
        outcomes = [replay_scenario(one._replace(lines=lines)) for one, lines in zip(self.made, recorded, strict=True)]
        return "; ".join(f"{one.name}: {one.detail}" for one in outcomes if one.verdict == "different")


class _Topic:
    """As much of a topic as naming its positions takes."""

    def __init__(self, rng: random.Random, per_ledger: int) -> None:
        self.rng = rng
        self.per_ledger = per_ledger
        self.added = 0
        self.batches: dict[str, int] = {}

    def add(self, count: int) -> Line:
        self.added += count
        line: Line = {"op": "add", "n": count}
        return {**line, "size": self.rng.choice((0, 0, 20))} if self.rng.random() < 0.3 else line

    def place(self) -> str:
        ledger, entry = divmod(self.rng.randrange(max(self.added, 1)), self.per_ledger)
        return f"L{ledger}:{entry}"

    def places(self, most: int) -> list[str]:
        return [self.place() for _ in range(self.rng.randint(1, most))]

    def odd_place(self) -> str:
        """Mostly a position that the topic does not have."""
        last = max(self.added - 1, 0) // self.per_ledger
        kind = self.rng.randrange(7)
        if kind == 0:
            return f"LBEFORE:{self.rng.choice((-1, 0, 3))}"
        if kind == 1:
            return f"LAFTER:{self.rng.choice((-1, 0, 3))}"
        if kind == 2:
            return f"L{self.rng.randint(0, last)}:-1"
        if kind == 3:
            return f"L{self.rng.randint(0, last)}:{self.per_ledger + self.rng.choice((0, 1, 50))}"
        return self.place()

    def batch(self) -> Line:
        place = self.place()
        size = self.batches.setdefault(place, self.rng.choice((*range(2, 14), *range(2, 14), 64, 65, 130)))
        return {"position": place, "batch_size": size}


def config(rng: random.Random) -> Line:
    retention = rng.choice((0, -1))
    return {
        "maxEntriesPerLedger": rng.randint(3, 12),
        "unackedRangesOpenCacheSetEnabled": rng.random() < 0.75,
        "persistIndividualAckAsLongArray": rng.random() < 0.5,
        "deletionAtBatchIndexLevelEnabled": rng.random() < 0.85,
        "maxUnackedRangesToPersist": rng.choice((10_000, 10_000, 1, 2, 4, 10)),
        "maxUnackedRangesToPersistInMetadataStore": rng.choice((0, 0, 1, 2, 4, 1000)),
        "maxBatchDeletedIndexToPersist": rng.choice((10_000, 1, 2)),
        "metadataMaxEntriesPerLedger": rng.choice((50_000, 50_000, 5, 2)),
        "throttleMarkDelete": rng.choice((0.0, 0.0, 0.0, 0.0, 0.001)),
        "retentionTimeMs": retention,
        "retentionSizeInMB": retention,
        "managedLedgerInfoCompressionType": rng.choice(CODECS),
        "managedCursorInfoCompressionType": rng.choice(("NONE", "NONE", *CODECS)),
    }


def scenario(rng: random.Random, name: str) -> Scenario:
    given = config(rng)
    topic = _Topic(rng, given["maxEntriesPerLedger"])
    lines = _beginning(rng, topic)
    for _ in range(rng.randint(12, 70)):
        lines.append(_step(rng, topic))
    lines += _restart(rng)
    return _scenario(name, given, lines)


def odd_scenario(rng: random.Random, name: str) -> Scenario:
    given = {**config(rng), "managedCursorInfoCompressionType": "NONE", "throttleMarkDelete": 0.0}
    topic = _Topic(rng, given["maxEntriesPerLedger"])
    lines = _beginning(rng, topic)
    for _ in range(rng.randint(3, 12)):
        lines.append(_step(rng, topic) if rng.random() < 0.7 else _odd_step(rng, topic))
    for _ in range(rng.randint(1, 2)):
        lines.append({"op": rng.choice(("crash", "close"))})
        if rng.random() < 0.5:
            lines.append({"op": "plant_cursor_ledger", "entries": [_planted(rng, topic) for _ in range(2)]})
        lines += [{"op": "open"}, {"op": "read", "n": 100}, {"op": "rewind"}]
        for _ in range(rng.randint(0, 5)):
            lines.append(_step(rng, topic) if rng.random() < 0.7 else _odd_step(rng, topic))
    return _scenario(name, given, lines + _restart(rng))


def _scenario(name: str, given: Line, lines: list[Line]) -> Scenario:
    numbered = [
        {"i": number, **line, **({"cursor": "sub"} if line["op"] not in TOPIC_OPS else {})}
        for number, line in enumerate(lines)
    ]
    return Scenario(name, {"scenario": name, "config": given, "ops": len(numbered)}, numbered)


TOPIC_OPS = ("open", "close", "crash", "add", "trim", "truncate", "roll", "list_cursors", "clock", "quorum")


def _beginning(rng: random.Random, topic: _Topic) -> list[Line]:
    lines: list[Line] = [{"op": "open"}]
    if rng.random() < 0.3:
        lines.append(topic.add(rng.randint(1, 6)))
    opening: Line = {"op": "open_cursor", "initial": rng.choice(("earliest", "earliest", "earliest", "latest"))}
    lines.append({**opening, "properties": _properties(rng)} if rng.random() < 0.15 else opening)
    lines.append(topic.add(rng.randint(topic.per_ledger, 6 * topic.per_ledger)))
    return lines


def _restart(rng: random.Random) -> list[Line]:
    return [{"op": rng.choice(("crash", "close"))}, {"op": "open"}, {"op": "read", "n": 100}]


def _properties(rng: random.Random) -> dict[str, int]:
    return {name: rng.choice((rng.randint(-99, -1), rng.randrange(99_999))) for name in rng.sample(NAMES, 2)}


NAMES = ("k0", "k1", "k2", "k3")


def _step(rng: random.Random, topic: _Topic) -> Line:
    kind = rng.random()
    if kind < 0.36:
        return {"op": "ack", "positions": topic.places(8) if rng.random() < 0.5 else topic.places(1)}
    if kind < 0.5:
        batch = topic.batch()
        size = batch["batch_size"]
        return {"op": "ack_batch", **batch, "acked": sorted(rng.sample(range(size), rng.randint(1, size)))}
    if kind < 0.62:
        return {"op": "read", "n": rng.randint(1, 12)}
    if kind < 0.7:
        return topic.add(rng.randint(1, 6))
    if kind < 0.76:
        line: Line = {"op": "mark_delete", "position": topic.place()}
        return {**line, "properties": _properties(rng)} if rng.random() < 0.3 else line
    if kind < 0.79:
        batch = topic.batch()
        return {"op": "mark_delete_batch", **batch, "acked": list(range(rng.randint(1, batch["batch_size"])))}
    if kind < 0.82:
        if rng.random() < 0.2:
            batch = topic.batch()
            size = batch["batch_size"]
            return {"op": "reset", **batch, "acked": sorted(rng.sample(range(size), rng.randint(1, size - 1)))}
        return {"op": "reset", "position": topic.place()}
    if kind < 0.86:
        return {"op": rng.choice(("is_acked", "next_available")), "positions": topic.places(8)}
    if kind < 0.88:
        return {"op": "skip", "n": rng.randint(1, 5), "acked_entries": rng.choice(("include", "exclude"))}
    if kind < 0.89:
        return {"op": "nth", "n": rng.randint(1, 6), "acked_entries": rng.choice(("include", "exclude"))}
    if kind < 0.93:
        return rng.choice(({"op": "rewind"}, {"op": "flush"}, {"op": "trim"}, {"op": "list_cursors"}))
    if kind < 0.94:
        return {"op": "seek", "position": topic.place()}
    if kind < 0.945:
        return {"op": "clear_backlog"}
    name = rng.choice(NAMES)
    return rng.choice(
        (
            {"op": "put_property", "name": name, "value": rng.randrange(1000)},
            {"op": "remove_property", "name": name},
            {"op": "put_cursor_property", "name": f"c{rng.randrange(4)}", "value": f"w{rng.randrange(100)}"},
            {"op": "remove_cursor_property", "name": f"c{rng.randrange(4)}"},
            {"op": "set_cursor_properties", "cursor_properties": {f"c{rng.randrange(4)}": "v"}},
        )
    )


def _odd_step(rng: random.Random, topic: _Topic) -> Line:
    kind = rng.randrange(8)
    if kind == 0:
        return {"op": "ack", "positions": [topic.odd_place() for _ in range(rng.randint(1, 3))]}
    if kind == 1:
        return {"op": "mark_delete", "position": topic.odd_place()}
    if kind == 2:
        batch = topic.batch()
        return {"op": "reset", **batch, "acked": list(range(batch["batch_size"]))}
    if kind == 3:
        return {"op": "ack_each", "positions": [topic.odd_place() for _ in range(rng.randint(1, 3))]}
    if kind == 4:
        lower, upper = sorted((rng.choice((topic.place(), "LBEFORE:2")), topic.place()), key=_order)
        return {"op": "add_range", "from": lower, "to": upper}
    if kind == 5:
        return {"op": "put_cursor_property", "name": RESERVED, "value": "1"}
    if kind == 6:
        return {"op": "set_cursor_properties", "cursor_properties": {rng.choice((RESERVED, "c9")): "1"}}
    return {"op": "remove_cursor_property", "name": RESERVED}


def _order(place: str) -> tuple[int, int]:
    ledger, _, entry = place.partition(":")
    number = {"LBEFORE": -1, "LAFTER": 1 << 30}.get(ledger)
    return (int(ledger[1:]) if number is None else number), int(entry)


def _planted(rng: random.Random, topic: _Topic) -> Line:
    """A state with ranges, words of bits, sets of batches and properties, any of them."""
    entry: Line = {"mark_delete": topic.place()}
    if rng.random() < 0.6:
        pairs = [
            sorted((rng.choice((topic.place(), topic.place(), "LBEFORE:2")), topic.place()), key=_order)
            for _ in range(rng.randint(1, 3))
        ]
        entry["ranges"] = [list(pair) for pair in sorted(pairs, key=lambda pair: _order(pair[0])) if pair[0] != pair[1]]
    if rng.random() < 0.6:
        last = max(topic.added - 1, 0) // topic.per_ledger
        ledgers = sorted({rng.randint(0, last) for _ in range(rng.randint(1, 2))})
        entry["long_arrays"] = [[f"L{one}", [f"{rng.getrandbits(topic.per_ledger) or 1:016x}"]] for one in ledgers]
    if rng.random() < 0.4:
        places = sorted({topic.place() for _ in range(rng.randint(1, 3))}, key=_order)
        entry["batch"] = [[place, sorted(rng.sample(range(10), rng.randint(1, 9)))] for place in places]
    if rng.random() < 0.3:
        entry["properties"] = _properties(rng)
    return entry


def _recordings(
    name: str, make: Callable[[random.Random, str], Scenario], rng: random.Random, count: int = SCENARIOS
) -> Iterator[Asked]:
    yield Recordings(name, [make(random.Random(rng.getrandbits(64)), f"{name}-{number}") for number in range(count)])


GROUPS: dict[str, Callable[[random.Random], Iterator[Asked]]] = {
    "topics and cursors, at random": partial(_recordings, "topic", scenario),
    "topics and cursors, oddities": partial(_recordings, "odd", odd_scenario),
}
