"""Random scenarios of BookKeeper's client over three original bookies, recorded and replayed.

Operations and their frequencies are those of the recordings of BookKeeper that ``tests.replay bookkeeper`` reads; a
second kind stops bookies in between.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.interop.java import request
from tests.interop.questions import Asked
from tests.replay.backends import StoreBackend
from tests.replay.lockstep import replay
from tests.replay.traces import Scenario

Line = dict[str, Any]

SCENARIOS = 20
ABSENT = (-7, -13)
SHAPES = ((1, 1, 1), (3, 2, 2), (3, 2, 2), (3, 2, 2), (2, 2, 2), (3, 3, 3), (3, 3, 2), (3, 2, 1))
DIGESTS = ("CRC32", "CRC32C", "MAC", "DUMMY")


class Recordings:
    """Scenarios that the original goes through twice, and how bookstand answers to those that were the same."""

    def __init__(self, name: str, made: list[Scenario]) -> None:
        self.name = name
        self.made = made
        asked = [{"header": one.header, "lines": one.lines} for one in made]
        self.request = request("record", scenarios=json.dumps(asked + asked).encode())
        self.remark = ""

    def difference(self, answer: dict[str, str]) -> str:
        if "lines" not in answer:
            return str(answer)
        outcomes = [
            replay(one, StoreBackend) for one in recorded(self.made, json.loads(bytes.fromhex(answer["lines"])))
        ]
        self.remark = f"{len(outcomes)} of {len(self.made)} scenarios were recorded the same twice"
        return "; ".join(f"{one.name}: {one.detail}" for one in outcomes if one.verdict == "different")


def recorded(made: list[Scenario], lines: list[list[Line]]) -> list[Scenario]:
    """Both recordings of each scenario as one; without those that came to different results."""
    found = []
    for one, first, second in zip(made, lines, lines[len(made) :], strict=False):
        merged = [_same(*pair) for pair in zip(first, second, strict=True)]
        if None not in merged:
            found.append(one._replace(lines=[line for line in merged if line is not None]))
    return found


def _same(one: Line, other: Line) -> Line | None:
    results = [one["result"], other["result"]]
    line = {**one, "completed": sorted([name, result] for name, result in one["completed"].items())}
    if one["completed"] != other["completed"]:
        return None
    codes = [result.get("error") for result in results]
    if all(code in ABSENT for code in codes):
        # Which bookie is asked last says which of the two.
        line["result"] = {"error": -13, "or": list(ABSENT)}
    elif results[0] != results[1]:
        return None
    line["state"] = {
        handle: [a if a == b else None for a, b in zip(numbers, other["state"][handle], strict=True)]
        for handle, numbers in one["state"].items()
    }
    return line


class _Ledger:
    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.digest = rng.choice(DIGESTS)
        self.password = rng.choice(("", "pw", "secret word"))
        self.last = -1
        self.adv = False
        self.deferred = False
        self.shape = (1, 1, 1)


class _Client:
    def __init__(self, rng: random.Random, faults: bool) -> None:
        self.rng = rng
        self.faults = faults
        self.ledgers: list[_Ledger] = []
        self.handles: dict[str, tuple[_Ledger, str]] = {}
        self.pending = 0
        self.down = False

    def create(self) -> Line:
        rng = self.rng
        ledger = _Ledger(f"L{len(self.ledgers) + 1}", rng)
        self.ledgers.append(ledger)
        ledger.adv = rng.random() < 0.25
        ledger.deferred = rng.random() < (0.4 if self.faults else 0.1)
        ledger.shape = rng.choice(SHAPES)
        handle = f"{'a' if ledger.adv else 'w'}{len(self.handles) + 1}"
        self.handles[handle] = ledger, "adv" if ledger.adv else "writer"
        line: Line = {
            "op": "create_adv" if ledger.adv else "create",
            "client": rng.choice(("c1", "c2")),
            "handle": handle,
            **dict(zip(("ensemble", "write_quorum", "ack_quorum"), ledger.shape, strict=True)),
            "digest": ledger.digest,
            "password": ledger.password,
        }
        return {**line, "deferred_sync": True} if ledger.deferred else line

    def open(self) -> Line:
        rng = self.rng
        ledger = rng.choice(self.ledgers)
        handle = f"r{len(self.handles) + 1}"
        self.handles[handle] = ledger, "reader"
        return {
            "op": "open",
            "client": rng.choice(("c1", "c2", "c3")),
            "handle": handle,
            "ledger": ledger.name,
            "recovery": rng.random() < 0.25,
            "password": ledger.password,
            "digest": ledger.digest,
        }

    def data(self) -> Any:
        rng = self.rng
        if rng.random() < 0.15:
            return {"seed": f"s{rng.randrange(1000)}", "len": rng.choice((100, 1000, 4097))}
        return "".join(rng.choice("abcdefgh 0123456789_-") for _ in range(rng.choice((0, 1, 5, 12, 20))))

    def step(self) -> list[Line]:
        rng = self.rng
        if not self.ledgers or (len(self.ledgers) < 4 and rng.random() < 0.05 and not self.down):
            return [self.create()]
        if rng.random() < 0.12 and not self.down:
            return [self.open()]
        handle, (ledger, kind) = rng.choice(list(self.handles.items()))
        if self.faults and rng.random() < (0.4 if self.down else 0.08):
            return self.bookies(ledger)
        if self.down:
            # Which copies an add leaves behind, and which bookie a read asks last, is a matter of the moment.
            return [{"op": "force", "handle": handle}] if kind != "reader" else []
        if kind != "reader" and rng.random() < 0.45:
            return self.add(handle, ledger)
        return [self.look(handle, ledger)]

    def bookies(self, ledger: _Ledger) -> list[Line]:
        if self.down:
            self.down = False
            return [{"op": "bookie_start"}]
        self.down = True
        return [{"op": "bookie_stop", "ledger": ledger.name, "index": self.rng.randrange(ledger.shape[0])}]

    def add(self, handle: str, ledger: _Ledger) -> list[Line]:
        rng = self.rng
        if rng.random() < (0.3 if self.faults else 0.12):
            return [{"op": "force", "handle": handle}]
        if ledger.adv:
            entry = max(0, ledger.last + rng.choice((1, 1, 1, 1, 0, -1, 2)))
            ledger.last = max(ledger.last, entry)
            self.pending += 1
            name = f"p{self.pending - 1}"
            return [{"op": "write", "handle": handle, "entry": entry, "data": self.data(), "pending": name}]
        if rng.random() < 0.25 and not self.down:
            count = rng.randint(2, 4)
            ledger.last += count
            return [{"op": "append_many", "handle": handle, "data": [self.data() for _ in range(count)]}]
        ledger.last += 1
        return [{"op": "append", "handle": handle, "data": self.data()}]

    def look(self, handle: str, ledger: _Ledger) -> Line:
        rng = self.rng
        last = max(0, ledger.last + rng.choice((0, 0, 0, 1, -1)))
        first = rng.randint(0, last)
        client = rng.choice(("c1", "c2"))
        start = {"op": "", "handle": handle, "start": first, "max_count": rng.randint(1, 4), "max_size": 5000}
        choices: list[tuple[int, Line]] = [
            (4, {"op": "read", "handle": handle, "first": first, "last": last}),
            (4, {"op": "read_unconfirmed", "handle": handle, "first": first, "last": last}),
            (3, {"op": "read_last_entry", "handle": handle}),
            (1, {"op": "read_last_entry", "handle": handle, "api": "async"}),
            (4, {"op": "read_lac", "handle": handle}),
            (4, {"op": "try_read_lac", "handle": handle}),
            (1, {"op": "read_explicit_lac", "handle": handle}),
            (5, {"op": "wait_entry", "handle": handle, "entry": last, "timeout_ms": rng.choice((10, 25))}),
            (2, {**start, "op": "batch_read"}),
            (1, {**start, "op": "batch_read_unconfirmed"}),
            (1, {"op": "metadata", "client": client, "ledger": ledger.name, "with_version": True}),
            (1, {"op": "close", "handle": handle}),
            (1, {"op": "stored", "ledger": ledger.name, "first": 0, "last": ledger.last + 2}),
        ]
        return rng.choices([line for _, line in choices], [weight for weight, _ in choices])[0]


def scenario(rng: random.Random, name: str, faults: bool = False) -> Scenario:
    wire = rng.choice(("v3", "v2"))
    settings: Line = {"wire": wire, **({"batch_read_enabled": False} if wire == "v3" else {})}
    client = _Client(rng, faults)
    lines: list[Line] = []
    for _ in range(rng.randint(12, 45)):
        lines += client.step()
    if client.down:
        lines.append({"op": "bookie_start"})
    return Scenario(name, {"scenario": name, "client": wire, "settings": settings}, lines)


def striped_scenario(rng: random.Random, name: str) -> Scenario:
    """One ledger whose entries are not on all of its bookies, and readers that ask for its last entry."""
    wire = rng.choice(("v3", "v2"))
    settings: Line = {"wire": wire, **({"batch_read_enabled": False} if wire == "v3" else {})}
    client = _Client(rng, faults=False)
    first = client.create()
    ledger = client.ledgers[0]
    first.update({"op": "create", "ensemble": 3, "write_quorum": 2, "ack_quorum": 2})
    first.pop("deferred_sync", None)
    ledger.adv = ledger.deferred = False
    ledger.shape = (3, 2, 2)
    lines = [first]
    for _ in range(rng.randint(15, 30)):
        kind = rng.random()
        if kind < 0.35:
            lines += client.add(first["handle"], ledger)
        elif kind < 0.5:
            lines.append({**client.open(), "recovery": False})
        else:
            handle = rng.choice(list(client.handles))
            last = max(0, ledger.last + rng.choice((0, 0, 0, 1, -1)))
            lines.append(
                rng.choice(
                    (
                        {"op": "read_lac", "handle": handle},
                        {"op": "try_read_lac", "handle": handle},
                        {"op": "wait_entry", "handle": handle, "entry": last, "timeout_ms": rng.choice((10, 25))},
                        {"op": "wait_entry", "handle": handle, "entry": rng.randint(0, last), "timeout_ms": 25},
                        {"op": "read_last_entry", "handle": handle},
                        {"op": "read_last_entry", "handle": handle, "api": "async"},
                        {"op": "read", "handle": handle, "first": rng.randint(0, last), "last": last},
                        {"op": "read_unconfirmed", "handle": handle, "first": last, "last": last},
                    )
                )
            )
    return Scenario(name, {"scenario": name, "client": wire, "settings": settings}, lines)


def _recordings(
    name: str, make: Callable[[random.Random, str], Scenario], rng: random.Random, count: int = SCENARIOS
) -> Iterator[Asked]:
    yield Recordings(name, [make(random.Random(rng.getrandbits(64)), f"{name}-{number}") for number in range(count)])


GROUPS: dict[str, Callable[[random.Random], Iterator[Asked]]] = {
    "ledgers over original bookies, at random": partial(_recordings, "ledger", scenario),
    "striped ledgers over original bookies": partial(_recordings, "striped", striped_scenario),
    "ledgers over original bookies that stop": partial(_recordings, "down", partial(scenario, faults=True)),
}
