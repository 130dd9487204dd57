"""The original's client on ``bookstand serve``: the operations of recorded scenarios, one by one, with the answers that
it got of original bookies.

Compared and argued is as in the area ``bookkeeper`` of ``tests.replay``. Of what was recorded the Java side is told
which calls complete with an operation, and the handles' numbers after it: how long to wait, not what to answer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.interop.java import ROOT, request
from tests.interop.questions import Asked, Question
from tests.interop.wire import served
from tests.replay.areas import AREAS
from tests.replay.backends import ModelBackend
from tests.replay.compare import NUMBERS, expected_completions
from tests.replay.driver import Answer, Driver
from tests.replay.lockstep import ARGUMENTS, follow
from tests.replay.traces import Scenario, files_of, is_trace, scenarios

RECORDED = ROOT / "tests" / "data" / "bookkeeper"
BOOKIES = 3
ARGUED_AT_MOST = AREAS["bookkeeper"].argued_at_most
HANGING_MILLIS = 2_000
"""How long to wait for what was never answered."""

CLOSED = NUMBERS.index("closed")

Line = dict[str, Any]

CANNOT: dict[str, tuple[Callable[[Line], bool], str]] = {
    "read-only": (
        lambda line: line["op"] == "bookie_read_only",
        "bookies are read-only when the disk is full, and so is ZooKeeper's tree then",
    ),
    "cut entry": (lambda line: line.get("kind") == "read_short", "no rule makes an entry shorter"),
}
"""What was done to the original's bookies and cannot be to a served store, by name: how it is known, and why."""


class Told:
    """What the original's client told of a scenario, as it is followed. Names and bookies are those of the plain model,
    which has done each operation before."""

    has_several_bookies = True

    def __init__(self, answers: Iterable[Answer], model: Driver) -> None:
        self._answers = iter(answers)
        self.handles = model.handles
        self.handle_clients = model.handle_clients
        self.backend = model.backend
        self.ledger_id = model.ledger_id

    def apply(self, op: Line, expected: Iterable[str] = ()) -> Answer:
        return next(self._answers)


class Share:
    """How many of a recording's scenarios are argued. As a question it comes last: whether they are too many."""

    def __init__(self, name: str) -> None:
        self.name = f"{name}, share that is argued"
        self.request = request("alive")
        self.scenarios = self.argued = 0
        self.remark = ""

    def difference(self, answer: dict[str, str]) -> str:
        if answer.get("result") != "0":
            return str(answer)
        self.remark = f"{self.argued} of {self.scenarios} scenarios argued"
        return self.remark if self.argued > ARGUED_AT_MOST * self.scenarios else ""


class Operation:
    """One operation of a scenario; with the last one it is told how the scenario went."""

    def __init__(self, scenario: Scenario, number: int, answers: list[Answer], share: Share) -> None:
        line = scenario.lines[number - 1]
        self.name = f"{scenario.name}, line {number}, {line['op']}"
        self.request = request("operation", line=json.dumps(_asked(line)).encode())
        self.remark = ""
        self._scenario = scenario
        self._answers = answers
        self._share = share

    def difference(self, answer: dict[str, str]) -> str:
        if "line" not in answer:
            return str(answer)
        told = json.loads(bytes.fromhex(answer["line"]))
        self._answers.append(Answer(told["result"], told["state"], sorted(told["completed"].items())))
        if len(self._answers) < len(self._scenario.lines):
            return ""
        model = Driver(self._scenario.header, ModelBackend(self._scenario))
        outcome = follow(self._scenario, Told(self._answers, model), model)
        if outcome.verdict == "argued":
            self._share.argued += 1
            self.remark = f"argued: {outcome.name}: {outcome.detail}"
        return outcome.detail if outcome.verdict == "different" else ""


def _asked(line: Line) -> Line:
    asked = {name: value for name, value in line.items() if name not in ARGUMENTS}
    asked["expected"] = sorted(expected_completions(line))
    asked["awaited"] = line.get("state") or {}
    if line["op"] == "await" and line["result"] == {"ok": "pending"}:
        asked["timeout_ms"] = min(line["timeout_ms"], HANGING_MILLIS)
    return asked


def determined(scenario: Scenario) -> Scenario:
    """Without what was a matter of the moment: where an add failed, its handle closes itself meanwhile, and was looked
    at a little before."""
    lines = [dict(line) for line in scenario.lines]
    for line, after in pairwise(lines):
        if line["op"] in ("append", "write") and any("error" in told for _, told in line.get("completed", ())):
            later = after.get("state") or {}
            line["state"] = {
                handle: [*numbers[:CLOSED], None] if numbers[CLOSED] is False and later[handle][CLOSED] else numbers
                for handle, numbers in line["state"].items()
            }
    return scenario._replace(lines=lines)


def cannot(scenario: Scenario) -> str:
    """Why a scenario cannot be had on a served store; empty where it can."""
    for name, (is_so, why) in CANNOT.items():
        if any(map(is_so, scenario.lines)):
            return f"{name}: {why}"
    return ""


def recorded(path: Path, rng: random.Random) -> Iterator[Asked]:
    share = Share(path.name)
    yield from served(f"cases-{path.name}", BOOKIES, _of_a_recording(path, share))


def _of_a_recording(path: Path, share: Share) -> Iterator[Asked]:
    for scenario in map(determined, scenarios(path)):
        why = cannot(scenario)
        remark = f"not asked: {scenario.name}: {why}" if why else ""
        header = request("scenario", header=json.dumps(scenario.header).encode())
        yield Question(scenario.name, header, {"result": "0"}, remark=remark)
        if why:
            continue
        share.scenarios += 1
        answers: list[Answer] = []
        for number in range(1, len(scenario.lines) + 1):
            yield Operation(scenario, number, answers, share)
    yield share


def groups(paths: Iterable[Path] = (RECORDED,)) -> dict[str, Callable[[random.Random], Iterator[Asked]]]:
    """One of each file of traces."""
    return {
        f"operations of {path.name}, by the original's client on a served store": partial(recorded, path)
        for path in files_of(list(paths))
        if is_trace(path)
    }
