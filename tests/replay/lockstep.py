"""Replays one scenario: the candidate against the recording, and after an argued difference against the plain model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from tests.replay.backends import ModelBackend
from tests.replay.compare import NUMBERS, expected_completions, same_completed, same_result, state_differences
from tests.replay.driver import Answer, Driver
from tests.replay.outcome import Outcome
from tests.replay.rules import RULES, SEVERAL_BOOKIES, Rule
from tests.replay.traces import Scenario

ARGUMENTS = frozenset(("result", "state", "completed", "completed_any_of"))
SHOWN = 700


class Candidate(Protocol):
    """What is replayed on; the rules look at its names, handles and bookies."""

    handles: dict[str, Any]
    handle_clients: dict[str, str]
    backend: Any
    has_several_bookies: bool

    def apply(self, op: dict[str, Any], expected: Iterable[str] = ()) -> Answer: ...

    def ledger_id(self, symbol: Any) -> int | None: ...


class Difference(NamedTuple):
    """What a rule may look at."""

    op: dict[str, Any]  # the recorded line
    got: Answer
    result: bool  # whether the results differ
    state: dict[str, list[int]]  # handle -> places that differ
    completed: bool
    driver: Candidate  # after the operation
    before: dict[str, list[Any]]  # the handles' numbers before the operation
    history: list[dict[str, Any]]  # the recorded lines up to this one
    header: dict[str, Any]


def difference(
    op: dict[str, Any],
    got: Answer,
    driver: Candidate,
    before: dict[str, list[Any]],
    history: list[dict[str, Any]],
    header: dict[str, Any],
) -> Difference | None:
    result = not same_result(op, op["result"], got.result)
    state = state_differences(op.get("state") or {}, got.state)
    completed = not same_completed(op, got.completed)
    if not result and not state and not completed:
        return None
    return Difference(op, got, result, state, completed, driver, before, history, header)


def describe(found: Difference, number: int) -> str:
    op = found.op
    arguments = {key: value for key, value in op.items() if key not in ARGUMENTS and key != "op"}
    parts = [f"line {number}: {op['op']} {_short(arguments)}:"]
    if found.result:
        parts.append(f"recorded {_short(op['result'])}, got {_short(found.got.result)};")
    for handle, places in sorted(found.state.items()):
        recorded = (op.get("state") or {}).get(handle)
        names = ", ".join(NUMBERS[place] for place in places)
        parts.append(f"handle {handle} ({names}): recorded {recorded}, got {found.got.state.get(handle)};")
    if found.completed:
        recorded = op.get("completed_any_of", op.get("completed", []))
        parts.append(f"completed: recorded {_short(recorded)}, got {_short(found.got.completed)};")
    return " ".join(parts).rstrip(";")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def replay(scenario: Scenario, backend: Callable[[Scenario], Any], with_model: bool = True) -> Outcome:
    """``with_model`` False: the candidate is the model itself."""
    candidate = Driver(scenario.header, backend(scenario))
    model = Driver(scenario.header, ModelBackend(scenario)) if with_model else None
    try:
        return follow(scenario, candidate, model)
    finally:
        candidate.close()


def follow(scenario: Scenario, candidate: Candidate, model: Driver | None) -> Outcome:
    """Operation by operation, as long as it goes as it should. Where it is argued by which of several bookies was
    asked, and the candidate has such, nothing says how it goes on."""
    argued: tuple[Rule, str] | None = None
    before: dict[str, list[Any]] = {}
    history: list[dict[str, Any]] = []
    for number, op in enumerate(scenario.lines, 1):
        history.append(op)
        expected = expected_completions(op)
        model_answer = None if model is None else model.apply(op, expected)
        if argued is not None and model_answer is not None:
            expected = {name for name, _ in model_answer.completed}
        got = candidate.apply(op, expected)
        if argued is None:
            found = difference(op, got, candidate, before, history, scenario.header)
            if found is not None:
                rule = next((rule for rule in RULES if rule.applies(found)), None)
                several = rule is not None and rule.surprise == SEVERAL_BOOKIES and candidate.has_several_bookies
                if rule is None or (model_answer is not None and got != model_answer and not several):
                    # What is argued is what the model has built in, and nothing beside it.
                    return Outcome(scenario.name, "different", describe(found, number))
                argued = rule, describe(found, number)
                if several:
                    break
        if argued is not None and model_answer is not None and got != model_answer:
            return Outcome(
                scenario.name,
                "different",
                f"argued by {argued[0].name} ({argued[1]}), but then line {number}, {op['op']}: "
                f"the model gives {_short(model_answer._asdict())}, got {_short(got._asdict())}",
            )
        before = got.state
    if argued is not None:
        return Outcome(scenario.name, "argued", f"{argued[0].name}: {argued[1]}")
    return Outcome(scenario.name, "equal", "")
