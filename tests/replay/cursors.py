"""The area ``cursor``: scenarios of a topic and its cursors, each replayed in both forms.

In the old form (``enable_lru_cache_max_unacked_ranges=False``: full snapshots with their limits, as the original writes
them) bookstand is compared with the recording. At the first difference that is argued the comparison changes over to
the plain model, tests/model/cursors.py, which has gone through everything before, has to agree about that operation,
and judges what follows. With pages (True) the same scenario runs beside it, compared with the model without limits
from its first operation to its last: up to the limits the two models are one, so both forms have to give the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.replay import cursor_compare
from tests.replay.cursor_compare import Reader, differences
from tests.replay.cursor_driver import Driver
from tests.replay.cursor_rules import RESULT, Difference, Step, rules_for
from tests.replay.cursor_stands import MissingError, ModelStand, Stand, StoreStand
from tests.replay.outcome import Outcome
from tests.replay.traces import Scenario, files_of, is_trace, scenarios

FIELDS = f"{cursor_compare.__doc__}\n{__doc__}"
SHOWN = 300


def replay(paths: list[Path]) -> Iterator[Outcome]:
    for path in files_of(paths):
        if is_trace(path):
            for scenario in scenarios(path):
                yield replay_scenario(scenario)


def replay_scenario(scenario: Scenario, stand: Callable[[bool], Stand] = StoreStand) -> Outcome:
    candidate, paged = stand(False), stand(True)
    try:
        return _replay(scenario, candidate, paged)
    except MissingError as missing:
        return Outcome(scenario.name, "different", f"missing: {missing}")
    finally:
        candidate.end()
        paged.end()


def _replay(scenario: Scenario, old_form: Stand, pages: Stand) -> Outcome:
    header = scenario.header
    reader = Reader()
    candidate, model = Driver(header, old_form), Driver(header, ModelStand(False))
    paged, unlimited = Driver(header, pages), Driver(header, ModelStand(True))
    argued: tuple[str, str] | None = None
    before: list[Step] = []
    for op in scenario.lines:
        try:
            recorded = reader.read(op)
            first = recorded.ledgers[0][0] if recorded.ledgers else None
            got, expected = candidate.apply(op, first), model.apply(op, first)
            in_pages, without_limits = paged.apply(op, first), unlimited.apply(op, first)
        except MissingError as missing:
            return Outcome(scenario.name, "different", f"missing: {_describe(op, {})} {missing}")
        except Exception as error:
            return Outcome(scenario.name, "different", f"{_describe(op, {})} {type(error).__name__}: {error}")
        beside = differences(expected, got)
        if argued is None:
            found = differences(recorded, got)
            if found:
                fields = _by_cursor(found)
                rules = rules_for(Difference(op, recorded, got, without_limits, fields, before, dict(candidate.config)))
                if not rules:
                    return Outcome(scenario.name, "different", _describe(op, found))
                argued = "+".join(rule.name for rule in rules), _describe(op, found)
        if argued is not None and beside:
            detail = f"argued by {argued[0]} ({argued[1]}), but against the model: {_describe(op, beside)}"
            return Outcome(scenario.name, "different", detail)
        apart = differences(without_limits, in_pages)
        if apart:
            return Outcome(scenario.name, "different", f"with pages, against the model: {_describe(op, apart)}")
        before.append(Step(op, recorded))
    apart = differences(model.finish(), candidate.finish()) | differences(unlimited.finish(), paged.finish())
    if apart:
        return Outcome(scenario.name, "different", f"in the end, against the model: {apart}")
    if argued is not None:
        return Outcome(scenario.name, "argued", f"{argued[0]}: {argued[1]}")
    return Outcome(scenario.name, "equal", "")


def _by_cursor(found: dict[str, tuple[Any, Any]]) -> dict[str, frozenset[str]]:
    fields: dict[str, set[str]] = {}
    for name in found:
        cursor, dot, field = name.rpartition(".")
        fields.setdefault(cursor if dot else RESULT, set()).add(field)
    return {cursor: frozenset(names) for cursor, names in fields.items()}


def _describe(op: dict[str, Any], found: dict[str, tuple[Any, Any]]) -> str:
    arguments = {name: value for name, value in op.items() if name not in ("i", "op", "result", "after", "ml")}
    parts = [f"operation {op['i']}: {op['op']} {_short(arguments)}:"]
    parts += [f"{name}: expected {_short(one)}, got {_short(other)};" for name, (one, other) in found.items()]
    return " ".join(parts).rstrip(";")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str) if not isinstance(value, dict) else str(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"
