"""The original's client on ``bookstand serve``, versions 3 and 2: the steps of a recording between it and a bookie of
the original, and what came of them there; then ledgers over three bookies.

``start`` and ``stop`` are about the process that ``step`` is about between them.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator

from tests.interop.java import BUILD, ROOT, request
from tests.interop.questions import Asked, Question

RECORDED = ROOT / "tests" / "data" / "wire" / "bk.jsonl.gz"
VERSIONS = ("v3", "v2")
OTHERWISE = {
    # Of the disk only which bookies have one can be compared.
    "v3 getBookieInfo": "1",
    "v2 getBookieInfo": "1",
}
OUTSTANDING = 5_000
# What there is no client for here.
OF_THE_ORIGINAL_S_SERVERS = ("setup", "DROP")

STRIPED = {
    "connect": "0",
    "connect second client": "0",
    "E3 W2 A2: create, append x20": "19",
    "E3 W2 A2: ensemble": "3",
    "E3 W2 A2: recovery": "19 20 true",
    "E3 W2 A2: append on fenced": (
        "! BKLedgerFencedException Ledger has been fenced off. Some other client must have opened it to read rc -101"
    ),
    "E3 W3 A2: append, close, open": "1 14",
    "E4: create": "! BKNotEnoughBookiesException Not enough non-faulty bookies available rc -6",
    "close clients": "0",
}


def recorded_steps() -> Iterator[tuple[str, str, str]]:
    """(version, step, what came of it), in their order."""
    step = ""
    with gzip.open(RECORDED, "rt") as lines:
        for mark in (json.loads(line).get("mark") for line in lines):
            if mark is None:
                continue
            if not mark.startswith("= "):
                step = mark
            elif not step.startswith(OF_THE_ORIGINAL_S_SERVERS):
                version, _, name = step.partition(" ")
                yield version, name, OTHERWISE.get(step, mark.removeprefix("= "))


def recorded(rng: random.Random) -> Iterator[Asked]:
    yield from served("recorded", 1, _asked("recorded", recorded_steps()))


def striped(rng: random.Random) -> Iterator[Asked]:
    steps = ((version, name, what) for version in VERSIONS for name, what in STRIPED.items())
    yield from served("striped", 3, _asked("striped", steps))


def _asked(name: str, steps: Iterator[tuple[str, str, str]]) -> Iterator[Question]:
    for version, step, expected in steps:
        asked = request("step", version=version, name=step.encode())
        yield Question(f"{name}, {version} {step}", asked, {"result": expected})


def served(name: str, bookies: int, questions: Iterator[Asked]) -> Iterator[Asked]:
    """What is asked while a process serves a store of that name, which is empty at first."""
    store = BUILD / "served" / name
    shutil.rmtree(store, ignore_errors=True)
    options = f"--zookeeper 0 --admin 0 --bookies {bookies} --json"
    command = f"{sys.executable} -m bookstand.tools.main serve {store} {options}"
    yield Question(f"{name}, start", request("start", command=command), {"result": "0"})
    yield from questions
    yield Question(f"{name}, stop", request("stop"), {"result": "0"})


def outstanding(rng: random.Random) -> Iterator[Asked]:
    """Requests that are outstanding on one connection: of adds and reads each, and of ZooKeeper's."""
    questions = [
        Question(
            f"outstanding, {client}",
            request("outstanding", client=client, count=OUTSTANDING),
            {"result": f"{OUTSTANDING}" if client == "zookeeper" else f"{OUTSTANDING} {OUTSTANDING}"},
        )
        for client in ("zookeeper", *VERSIONS)
    ]
    yield from served("outstanding", 1, iter(questions))


GROUPS: dict[str, Callable[[random.Random], Iterator[Asked]]] = {
    "steps of the original's client, on a served store": recorded,
    "ledgers of the original's client over three bookies": striped,
    "requests of original clients that are outstanding on one connection": outstanding,
}
