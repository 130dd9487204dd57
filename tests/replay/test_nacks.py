"""Recorded negative acknowledgments are answered the same; a recording that says something else does not pass."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.model.nacks import SURPRISES
from tests.replay import nacks
from tests.replay.__main__ import main
from tests.replay.delayed_driver import scenarios
from tests.replay.nacks import compare, replay_scenario
from tests.replay.nacks_driver import Driver, Model, Ours
from tests.replay.nacks_driver import recorded as recorded_answer
from tests.replay.nacks_rules import RULES
from tests.replay.outcome import Outcome

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDED = ROOT / "tests" / "data" / "delayed"
EQUAL, ARGUED = 87, 46

Line = dict[str, Any]
Change = Callable[[Line], object]


@cache
def recorded() -> tuple[Line, ...]:
    return tuple(
        line for name in ("nacks", "nack_goldens") for line in scenarios(RECORDED / f"{name}.jsonl.gz", {"id"})
    )


@cache
def with_the_model() -> dict[str, Outcome]:
    return {one["id"]: replay_scenario(one, Model) for one in recorded() if "ops" in one}


def of_verdict(verdict: str) -> Iterator[Line]:
    return (one for one in recorded() if "ops" in one and with_the_model()[one["id"]].verdict == verdict)


def line_of(outcome: Outcome) -> int:
    """Where the argued difference is."""
    return int(outcome.detail.split("operation ")[1].split(":")[0])


def changed(one: Line, line: int, change: Change) -> Line:
    other = {**one, "ops": copy.deepcopy(one["ops"])}
    change(other["ops"][line])
    return other


# -- the recordings ------------------------------------------------------------------------------------------------


def test_bookstand_gives_the_recorded_answers() -> None:
    found = list(nacks.replay([RECORDED / "nacks.jsonl.gz", RECORDED / "nack_goldens.jsonl.gz"]))
    assert [outcome for outcome in found if outcome.verdict == "different"] == []
    assert Counter(outcome.verdict for outcome in found) == {"equal": EQUAL, "argued": ARGUED}
    assert {outcome.name: outcome.verdict for outcome in found if outcome.name in with_the_model()} == {
        name: outcome.verdict for name, outcome in with_the_model().items()
    }


def test_the_surprises_explain_all_that_was_recorded() -> None:
    """The plain model with every surprise turned on is the original."""
    for one in recorded():
        driver = Driver(Model(one["settings"], SURPRISES)) if "ops" in one else None
        for number, op in enumerate(one.get("ops", ())):
            assert driver is not None
            assert driver.apply(op) == recorded_answer(op), (one["id"], number)


def test_other_recordings_of_the_folder_are_passed_over() -> None:
    assert list(nacks.replay([RECORDED / "hand.jsonl.gz"])) == []


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text(json.dumps(next(of_verdict("equal"))))
    assert main(["nacks", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"equal": 1, "argued": 0, "different": 0}


def test_few_recordings_are_argued() -> None:
    assert ARGUED / (EQUAL + ARGUED) < 0.4


# -- a changed answer fails ----------------------------------------------------------------------------------------


def _count(op: Line) -> None:
    op["state"][0] += 1


def _timer(op: Line) -> None:
    op["state"][1] = (op["state"][1] or 0) + 1


def _alarms(op: Line) -> None:
    op["state"][2] += 1


def _bucket(op: Line) -> None:
    op["buckets"].append([1, 1])


def _result(op: Line) -> None:
    op["result"] += 1


def _given(op: Line) -> None:
    op["calls"][-1]["ids"].append([900, 0, -2, -1, "plain"])


def _not_given(op: Line) -> None:
    op["calls"] = [call for call in op["calls"] if call["call"] != "redeliver"]


def _refused(op: Line) -> None:
    op["throws"] = "SomeException"


CHANGES: dict[str, Change] = {
    "count": _count,
    "timer": _timer,
    "alarms": _alarms,
    "bucket": _bucket,
    "result": _result,
    "given": _given,
    "not given": _not_given,
    "refused": _refused,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_answer_is_found(name: str) -> None:
    """In scenarios that were equal, in the last line that has what is changed."""
    tried = 0
    for one in list(of_verdict("equal"))[::8]:
        for line in reversed(range(len(one["ops"]))):
            try:
                other = changed(one, line, CHANGES[name])
            except KeyError:
                continue
            assert replay_scenario(other, Model).verdict == "different", (one["id"], line)
            tried += 1
            break
    assert tried >= 5


@pytest.mark.parametrize("name", CHANGES)
def test_an_argument_is_for_what_was_recorded(name: str) -> None:
    """In the line that is argued, anything else than what the surprise says is a difference."""
    passed, tried = [], 0
    for one in of_verdict("argued"):
        line = line_of(with_the_model()[one["id"]])
        try:
            other = changed(one, line, CHANGES[name])
        except KeyError:
            continue
        tried += 1
        if (outcome := replay_scenario(other, Model)).verdict != "different":
            passed.append((one["id"], outcome))
    assert passed == []
    assert tried >= 5 or name in ("result", "given", "not given")


def test_a_changed_golden_is_found() -> None:
    for one in recorded():
        if "next" in one:
            other = {**one, "next": [[count, delay + 1] for count, delay in one["next"]]}
        elif "trim" in one:
            other = {**one, "trim": [[time, trimmed + 1] for time, trimmed in one["trim"]]}
        elif "throws" in one:
            other = {**one, "min_ms": 1, "max_ms": 10, "multiplier": 2.0}
        else:
            continue
        outcome = compare(other)
        assert outcome is not None
        assert outcome.verdict == "different", one["id"]


def test_a_close_in_flight_is_argued() -> None:
    """The alarm had begun to ring when everything was closed."""
    settings = {"start_ms": 1_000_000, "delay_us": 1_000_000}
    nack = {"op": "nack", "ledger": 1, "entry": 1, "state": [1, 1_001_000, 1], "buckets": [[1_000_960, 1]]}
    rest: Line = {"state": [0, None, 0], "buckets": []}
    stale = {"op": "fire_stale", "throws": "NullPointerException", **rest}
    one = {"id": "one", "settings": settings, "ops": [nack, {"op": "close", **rest}, stale]}
    assert replay_scenario(one).detail.startswith("fails-in-flight: operation 2")
    assert (
        replay_scenario({**one, "ops": [nack, {"op": "close", **rest}, {**stale, "throws": "X"}]}).verdict
        == "different"
    )


class _Forgetful(Ours):
    wrong_after = 0
    asked = 0

    def count(self) -> int:
        self.asked += 1
        return super().count() + (self.asked > self.wrong_after)


def test_what_follows_an_argued_difference_is_held_against_the_model() -> None:
    one = next(one for one in of_verdict("argued") if line_of(with_the_model()[one["id"]]) < len(one["ops"]) - 3)
    line = line_of(with_the_model()[one["id"]])
    ops = [op for op in one["ops"] if op["op"] != "count"]
    stand = type("_Turning", (_Forgetful,), {"wrong_after": line + 1})
    outcome = replay_scenario({**one, "ops": ops}, stand)
    assert outcome.verdict == "different"
    assert "against the model" in outcome.detail


# -- rules ---------------------------------------------------------------------------------------------------------


def test_every_rule_has_its_reason_in_the_documentation() -> None:
    text = (ROOT / "docs" / "differences.md").read_text()
    for rule in RULES:
        assert f"| `{rule.name}` | {rule.surprise} |" in text, rule.name


def test_every_surprise_of_the_model_has_its_rule() -> None:
    assert sorted(rule.name for rule in RULES) == sorted(SURPRISES)


def test_rules_name_operations_that_there_are() -> None:
    for rule in RULES:
        assert all(hasattr(Driver, f"_{op}") for op in rule.ops), rule.name
