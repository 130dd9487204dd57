"""Recorded trackers of delayed messages are answered the same; a recording that says something else does not pass."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.model.delayed import IDS_OF_32_BITS, SURPRISES
from tests.replay import delayed
from tests.replay.__main__ import main
from tests.replay.delayed import replay_scenario
from tests.replay.delayed_driver import Driver, scenarios
from tests.replay.delayed_driver import recorded as recorded_answer
from tests.replay.delayed_rules import RULES
from tests.replay.delayed_stands import TRACKERS, InMemoryStand, ModelStand
from tests.replay.outcome import Outcome

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDED = ROOT / "tests" / "data" / "delayed"
FILES = ("hand", "later_hand", "in_memory_random")
MODEL = dict.fromkeys(delayed.ALL_TRACKERS, ModelStand)

Scenario = dict[str, Any]
Change = Callable[[dict[str, Any]], object]


@cache
def recorded() -> tuple[tuple[str, Scenario], ...]:
    """What the trackers that are there can be held against."""
    return tuple(
        (name, one)
        for name in FILES
        for one in scenarios(RECORDED / f"{name}.jsonl.gz", delayed.KEYS)
        if one["settings"]["tracker"] in TRACKERS
    )


@cache
def outcomes() -> dict[str, Outcome]:
    return {outcome.name: outcome for name, one in recorded() if (outcome := replay_scenario(name, one))}


def of_verdict(verdict: str) -> Iterator[Scenario]:
    return (one for name, one in recorded() if outcomes()[f"{name}:{one['id']}"].verdict == verdict)


def line_of(outcome: Outcome) -> int:
    """Where the argued difference is."""
    return int(outcome.detail.split("operation ")[1].split(":")[0])


def changed(one: Scenario, line: int, change: Change) -> Scenario:
    other = {**one, "ops": copy.deepcopy(one["ops"])}
    change(other["ops"][line])
    return other


# -- the recordings ------------------------------------------------------------------------------------------------


def test_bookstand_gives_the_recorded_answers() -> None:
    assert [outcome for outcome in outcomes().values() if outcome.verdict == "different"] == []
    found = Counter(outcome.verdict for outcome in outcomes().values())
    assert found["equal"] >= 15
    assert found["argued"] >= 20


def test_a_scenario_that_meets_no_surprise_is_equal() -> None:
    """It meets none if the plain model gives it without any turned on."""
    for name, one in recorded():
        outcome = outcomes()[f"{name}:{one['id']}"]
        plain = replay_scenario(name, one, MODEL)
        assert plain.verdict == outcome.verdict, (outcome, plain)


def test_the_surprises_explain_all_that_was_recorded() -> None:
    """The plain model with every surprise turned on is the original; each tree has its own limit of ids."""
    for name, one in recorded():
        surprises = set(SURPRISES) if name.startswith("later") else set(SURPRISES) - {IDS_OF_32_BITS}
        driver = Driver(ModelStand(one["settings"], surprises), singly=True)
        for number, op in enumerate(one["ops"]):
            assert driver.apply(op) == recorded_answer(op), (name, one["id"], number)


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    one = next(of_verdict("equal"))
    (tmp_path / "one.jsonl").write_text(json.dumps(one))
    assert main(["delayed", str(tmp_path), "--tracker", "in_memory", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "delayed: equal 1, argued 0, different 0"
    assert json.loads(lines[-1]) == {"equal": 1, "argued": 0, "different": 0}


def test_a_tracker_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    one = {**recorded()[0][1], "settings": {"tracker": "none_such"}}
    (tmp_path / "one.jsonl").write_text(json.dumps(one))
    assert main(["delayed", str(tmp_path)]) == 1
    assert "the tracker 'none_such' is not there" in capsys.readouterr().out
    assert main(["delayed", str(tmp_path), "--tracker", "in_memory"]) == 1  # nothing is left to compare


def test_only_trackers_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["delayed", "x", "--tracker", "none_such"], ["bookkeeper", "x", "--tracker", "in_memory"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2
    assert "has no tracker" in capsys.readouterr().err


# -- a changed answer fails ----------------------------------------------------------------------------------------


def _count(op: dict[str, Any]) -> None:
    op["state"][0] += 1


def _timer(op: dict[str, Any]) -> None:
    op["state"][2] = (op["state"][2] or 0) + 7


def _result(op: dict[str, Any]) -> None:
    result = op["result"]
    if isinstance(result, bool):
        op["result"] = not result
    elif isinstance(result, int):
        op["result"] += 1
    elif isinstance(result, str):
        op["result"] = result.translate(str.maketrans("01", "10"))
    else:
        op["result"] = result[1:] if result else [[1, 1]]


def _reads(op: dict[str, Any]) -> None:
    op["reads"] += 1


def _refused(op: dict[str, Any]) -> None:
    op["throws"] = "SomeException"


CHANGES: dict[str, Change] = {
    "count": _count,
    "timer": _timer,
    "result": _result,
    "reads": _reads,
    "refused": _refused,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_answer_is_found(name: str) -> None:
    """In scenarios that were equal, in the last line that has what is changed."""
    tried = 0
    for one in list(of_verdict("equal"))[::2]:
        for line in reversed(range(len(one["ops"]))):
            try:
                other = changed(one, line, CHANGES[name])
            except KeyError:
                continue
            outcome = replay_scenario("one", other, MODEL)
            assert outcome.verdict == "different", (one["id"], line)
            tried += 1
            break
    assert tried >= 4


@pytest.mark.parametrize("name", CHANGES)
def test_an_argument_is_for_what_was_recorded(name: str) -> None:
    """In the line that is argued, anything else than what the surprise says is a difference."""
    passed, tried = [], 0
    for one in list(of_verdict("argued"))[::3]:
        line = line_of(replay_scenario("one", one, MODEL))
        try:
            other = changed(one, line, CHANGES[name])
        except KeyError:
            continue
        tried += 1
        outcome = replay_scenario("one", other, MODEL)
        if outcome.verdict != "different":
            passed.append((one["id"], outcome))
    assert passed == []
    assert tried >= 5 or name == "reads"


class _Forgetful(InMemoryStand):
    """Tells of one message too many from some operation on."""

    wrong_after = 1 << 30
    asked = 0

    def state(self) -> tuple[int, int | None]:
        self.asked += 1
        count, timer = super().state()
        return count + (self.asked > self.wrong_after), timer


def test_what_follows_an_argued_difference_is_held_against_the_model() -> None:
    one = next(one for one in of_verdict("argued") if len(one["ops"]) > 20)
    line = line_of(replay_scenario("one", one))
    stand = type("_Turning", (_Forgetful,), {"wrong_after": line + 1})
    outcome = replay_scenario("one", one, {"in_memory": stand})
    assert outcome.verdict == "different"
    assert outcome.detail.startswith("argued by")
    assert f"against the model: operation {line + 1}" in outcome.detail


def test_an_operation_that_nothing_knows_is_named() -> None:
    one = recorded()[0][1]
    outcome = replay_scenario("one", {**one, "ops": [*one["ops"], {"op": "unheard_of"}]})
    assert outcome.verdict == "different"
    assert "missing: operation unheard_of" in outcome.detail


# -- rules ---------------------------------------------------------------------------------------------------------


def test_every_rule_has_its_reason_in_the_documentation() -> None:
    text = (ROOT / "docs" / "differences.md").read_text()
    for rule in RULES:
        assert f"| `{rule.name}` | {rule.surprise} |" in text, rule.name


def test_every_surprise_of_the_model_has_its_rule() -> None:
    assert sorted(rule.name for rule in RULES) == sorted(SURPRISES)


def test_rules_name_operations_that_there_are() -> None:
    for rule in RULES:
        assert rule.ops
        assert all(hasattr(Driver, f"_{op}") for op in rule.ops), rule.name
