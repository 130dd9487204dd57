"""Recorded topics with their cursors are answered the same; a recording that says something else does not pass."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.replay import cursors
from tests.replay.__main__ import main
from tests.replay.cursor_driver import Driver, place_of
from tests.replay.cursor_rules import RULES
from tests.replay.cursor_stands import MissingError, ModelStand, StoreStand, View, method
from tests.replay.cursors import replay_scenario
from tests.replay.outcome import Outcome
from tests.replay.traces import Scenario, scenarios

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDED = ROOT / "tests" / "data" / "cursor"
NAMES = ("hand", "random", "odd")
"""Of ``odd``, recorded by the program of tests/interop, most scenarios are argued: see tests/interop/topics.py."""
EQUAL, ARGUED = 318 + 4, 119 + 41

Change = Callable[[dict[str, Any]], object]
# Nothing tells these apart where there is nothing to read.
PLACES = ("read", "has_more", "mark_delete")
# What a change ends with in a line that has nothing for it.
UNCHANGED = (KeyError, IndexError, AssertionError, StopIteration, TypeError, ValueError)


@cache
def recorded() -> tuple[Scenario, ...]:
    return tuple(one for name in NAMES for one in scenarios(RECORDED / f"{name}.jsonl.gz"))


@cache
def with_the_model() -> dict[str, Outcome]:
    return {one.name: replay_scenario(one, ModelStand) for one in recorded()}


def of_verdict(verdict: str) -> Iterator[Scenario]:
    return (one for one in recorded() if with_the_model()[one.name].verdict == verdict)


@cache
def some_argued() -> tuple[Scenario, ...]:
    """Up to three for each rule."""
    found: dict[str, list[Scenario]] = {}
    for one in of_verdict("argued"):
        found.setdefault(with_the_model()[one.name].detail.split(":")[0], []).append(one)
    return tuple(one for some in found.values() for one in some[:3])


def line_of(outcome: Outcome) -> int:
    """Where the argued difference is."""
    return int(outcome.detail.split("operation ")[1].split(":")[0])


def changed(one: Scenario, line: int, change: Change) -> Scenario:
    lines = copy.deepcopy(one.lines)
    change(lines[line])
    return one._replace(lines=lines)


# -- the recordings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_bookstand_gives_the_recorded_answers(name: str) -> None:
    found = list(cursors.replay([RECORDED / f"{name}.jsonl.gz"]))
    assert [outcome for outcome in found if outcome.verdict == "different"] == []
    expected = Counter(outcome.verdict for one, outcome in with_the_model().items() if one.startswith(name[0]))
    assert Counter(outcome.verdict for outcome in found) == expected


@pytest.mark.long
def test_the_model_gives_the_recorded_answers() -> None:
    assert Counter(outcome.verdict for outcome in with_the_model().values()) == {"equal": EQUAL, "argued": ARGUED}


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    one = recorded()[0]
    (tmp_path / "one.jsonl").write_text("\n".join(json.dumps(line) for line in (one.header, *one.lines)))
    assert main(["cursor", str(tmp_path), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "cursor: equal 1, argued 0, different 0"
    assert json.loads(lines[-1]) == {"equal": 1, "argued": 0, "different": 0}


# -- a changed answer fails ----------------------------------------------------------------------------------------


def _state(line: dict[str, Any]) -> dict[str, Any]:
    return next(iter(line["after"].values()))  # type: ignore[no-any-return]


def _step(name: str, by: int) -> Change:
    def change(line: dict[str, Any]) -> None:
        _state(line)[name] += by

    return change


def _one_more(line: dict[str, Any]) -> None:
    _state(line)["ranges"].append(["L900:0", "L900:1"])


def _one_less(line: dict[str, Any]) -> None:
    """One with an entry: none is in a range up to the place before a ledger's first entry."""
    _, last = _state(line)["ranges"].pop()
    assert not last.endswith(":-1")


def _batch(line: dict[str, Any]) -> None:
    _state(line)["batch"]["L900:1"] = [1]


def _batch_left(line: dict[str, Any]) -> None:
    batch = _state(line)["batch"]
    last = max(batch, key=place_of)
    assert place_of(last) > place_of(_state(line)["mark_delete"])
    batch[last].append(9_999)


def _has_more(line: dict[str, Any]) -> None:
    _state(line)["has_more"] = not _state(line)["has_more"]


def _sets(name: str, value: Any) -> Change:
    return lambda line: _state(line).__setitem__(name, value)


def _refused(line: dict[str, Any]) -> None:
    line["result"] = {"ok": not line["result"]["ok"], "error": "SomeException", "message": "", "cursors": []}


def _another_ledger(line: dict[str, Any]) -> None:
    line["ml"]["ledgers"][0][1] += 1
    line["ml"]["entries"] += 1


CHANGES: dict[str, Change] = {
    "backlog": _step("backlog_precise", 300),
    "backlog by one": _step("backlog_precise", 1),
    "entries": _step("entries", 300),
    "entries by one": _step("entries", 1),
    "has_more": _has_more,
    "mark_delete": _sets("mark_delete", "L900:3"),
    "read": _sets("read", "L900:3"),
    "one range more": _one_more,
    "one range less": _one_less,
    "a batch": _batch,
    "a batch's messages": _batch_left,
    "properties": _sets("properties", {"other": 1}),
    "cursor_properties": _sets("cursor_properties", {"other": "1"}),
    "result": _refused,
    "ledgers": _another_ledger,
}


@pytest.mark.long
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_answer_is_found(name: str) -> None:
    """In scenarios that were equal, in the last line that has what is changed."""
    tried = 0
    for one in list(of_verdict("equal"))[::20]:
        for line in reversed(range(len(one.lines))):
            try:
                other = changed(one, line, CHANGES[name])
            except UNCHANGED:
                continue
            if name in PLACES and 0 in (_state(one.lines[line])["entries"], _state(one.lines[line])["backlog_precise"]):
                continue
            outcome = replay_scenario(other, ModelStand)
            assert outcome.verdict == "different", (one.name, line)
            tried += 1
            break
    assert tried >= 5


@pytest.mark.long
@pytest.mark.parametrize("name", CHANGES)
def test_an_argument_is_for_what_was_recorded(name: str) -> None:
    """In the line that is argued, anything else than what the surprise says is a difference."""
    tried = 0
    passed = []
    for one in some_argued():
        line = line_of(with_the_model()[one.name])
        try:
            other = changed(one, line, CHANGES[name])
        except UNCHANGED:
            continue
        if name in PLACES and 0 in (_state(one.lines[line])["entries"], _state(one.lines[line])["backlog_precise"]):
            continue
        tried += 1
        outcome = replay_scenario(other, ModelStand)
        if name == "result" and outcome.detail.startswith("taken-over"):
            continue  # the original may notice it later
        rules = [one.detail.split(":")[0].split("+") for one in (outcome, with_the_model()[one.name])]
        if set(rules[0]) < set(rules[1]):
            continue  # the change makes a field as it came here
        if outcome.verdict == "argued" and line_of(outcome) == line:
            passed.append((one.name, outcome.detail.split(":")[0]))
    assert passed == []
    assert tried >= 5


class _Forgetful(ModelStand):
    """A candidate that tells of one entry too many in the end."""

    def view(self, name: str) -> View:
        view = super().view(name)
        return view._replace(backlog=view.backlog + 1) if getattr(self, "wrong", False) else view


def test_what_follows_an_argued_difference_is_held_against_the_model() -> None:
    one = next(one for one in of_verdict("argued") if line_of(with_the_model()[one.name]) < len(one.lines) - 1)
    candidates: list[_Forgetful] = []

    def stand(paged: bool) -> _Forgetful:
        candidates.append(_Forgetful(paged))
        return candidates[-1]

    # A line that nothing knows of turns the candidate.
    class Turning(Driver):
        def _dump(self, op: dict[str, Any]) -> None:
            if op.get("turn") and isinstance(self.stand, _Forgetful) and not self.stand.paged:
                self.stand.wrong = True  # type: ignore[attr-defined]

    lines = [*one.lines, {"i": 999, "op": "dump", "turn": True, "result": {"ok": True}}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursors, "Driver", Turning)
        outcome = replay_scenario(one._replace(lines=lines), stand)
    assert outcome.verdict == "different"
    assert "against the model" in outcome.detail


def test_what_the_api_has_not_is_named() -> None:
    with pytest.raises(MissingError, match="int has no nothing_of_the_kind"):
        method(1, "nothing_of_the_kind")
    one = recorded()[0]
    other = one._replace(lines=[*one.lines, {"i": 99, "op": "unheard_of", "cursor": "sub", "result": {"ok": True}}])
    outcome = replay_scenario(other, ModelStand)
    assert outcome.verdict == "different"
    assert "unheard_of" in outcome.detail


# -- rules ---------------------------------------------------------------------------------------------------------


def test_every_rule_has_its_reason_in_the_documentation() -> None:
    text = (ROOT / "docs" / "differences.md").read_text()
    for rule in RULES:
        assert f"| `{rule.name}` | {rule.surprise} |" in text, rule.name


def test_rules_name_operations_that_there_are() -> None:
    for rule in RULES:
        assert rule.ops
        assert all(hasattr(Driver, f"_{op}") for op in rule.ops), rule.name


def test_few_recordings_are_argued() -> None:
    found = Counter(outcome.verdict for one, outcome in with_the_model().items() if not one.startswith("o"))
    assert found["argued"] / found.total() < 0.3


def test_both_stands_answer_to_the_same_methods() -> None:
    names = {name for name in vars(ModelStand) if not name.startswith("_")}
    assert names <= {name for name in dir(StoreStand) if not name.startswith("_")}
