"""Recording, candidate and plain model, operation by operation.

Candidate and model have to agree from the first operation to the last. At the first difference between recording and
model, some of the original's surprises have to give the recording, from its beginning to that operation: those that it
takes are the argument. Each has a rule, which says in which operations it may show first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple, Protocol

from tests.replay.outcome import Outcome

Line = dict[str, Any]
Answer = dict[str, Any]

AT_MOST = 3  # surprises that may have met before one of them shows
SHOWN = 300


class Rule(NamedTuple):
    """``name`` is what the model calls the surprise, ``surprise`` its number in the recordings' description."""

    name: str
    surprise: str
    ops: tuple[str, ...]


class Driver(Protocol):
    def apply(self, op: Line) -> Answer: ...


class MissingError(Exception):
    """Something in a scenario that nothing here knows."""


def replay(
    name: str,
    ops: Sequence[Line],
    recorded: Callable[[Line], Answer],
    candidate: Driver,
    model: Callable[[Iterable[str]], Driver],
    rules: Sequence[Rule],
) -> Outcome:
    """``model(surprises)`` makes a driver of the plain model, to which surprises can be added."""

    def argue(seen: Sequence[Line]) -> tuple[Rule, ...]:
        return _added(seen, recorded, model, rules)

    return compare(name, ops, recorded, candidate, model(()), argue)


def compare(
    name: str,
    ops: Sequence[Line],
    recorded: Callable[[Line], Answer],
    candidate: Driver,
    plain: Driver,
    argue: Callable[[Sequence[Line]], tuple[Rule, ...]],
) -> Outcome:
    """``argue`` is told of the operations up to the first that is different; it gives no rules where there are none."""
    argued = ""
    for number, op in enumerate(ops):
        try:
            told, expected, got = recorded(op), plain.apply(op), candidate.apply(op)
        except MissingError as missing:
            return Outcome(name, "different", f"missing: {missing}")
        except Exception as error:
            return Outcome(name, "different", f"{_at(number, op)} {type(error).__name__}: {error}")
        if expected != got:
            because = f"argued by {argued}, but " if argued else ""
            return Outcome(name, "different", f"{because}against the model: {_at(number, op)} {_apart(expected, got)}")
        if not argued and told != got:
            detail = f"{_at(number, op)} {_apart(told, got)}"
            try:
                found = argue(ops[: number + 1])
            except Exception as error:
                return Outcome(name, "different", f"{detail}; in an argument {type(error).__name__}: {error}")
            if not found:
                return Outcome(name, "different", detail)
            argued = f"{'+'.join(rule.name for rule in found)}: {detail}"
    return Outcome(name, "argued" if argued else "equal", argued)


def _added(
    ops: Sequence[Line],
    recorded: Callable[[Line], Answer],
    model: Callable[[Iterable[str]], Driver],
    rules: Sequence[Rule],
) -> tuple[Rule, ...]:
    """The fewest surprises that give everything recorded, of which one may show in the last operation."""
    for size in range(1, AT_MOST + 1):
        for chosen in combinations(rules, size):
            if any(ops[-1]["op"] in rule.ops for rule in chosen):
                driver = model([rule.name for rule in chosen])
                if all(driver.apply(op) == recorded(op) for op in ops):
                    return chosen
    return ()


def _at(number: int, op: Line) -> str:
    told = ("op", "result", "throws", "state", "timer", "reads", "calls", "buckets", "future")
    return f"operation {number}: {op['op']} {_short({key: op[key] for key in op if key not in told})}:"


def _apart(expected: Answer, got: Answer) -> str:
    names = sorted(name for name in expected.keys() | got.keys() if expected.get(name) != got.get(name))
    return "; ".join(f"{name}: expected {_short(expected.get(name))}, got {_short(got.get(name))}" for name in names)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
