"""The rules of ledgers and trackers are for the recorded answer alone: with another answer in its place, the difference
is reported."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.replay import delayed
from tests.replay.__main__ import main
from tests.replay.backends import ModelBackend
from tests.replay.delayed import replay_scenario
from tests.replay.delayed_bucket_stands import BucketModelStand
from tests.replay.delayed_driver import scenarios as tracker_scenarios
from tests.replay.lockstep import replay
from tests.replay.traces import Scenario, scenarios

DATA = Path(__file__).parents[1] / "data"
MODEL = {"bucket": BucketModelStand}

Line = dict[str, Any]


def striped(rule: str) -> Iterator[tuple[Scenario, int]]:
    """The scenarios that the rule argues, and where."""
    for one in scenarios(DATA / "bookkeeper" / "striped.jsonl.gz"):
        outcome = replay(one, ModelBackend, with_model=False)
        if outcome.verdict == "argued" and outcome.detail.startswith(f"{rule}:"):
            yield one, int(outcome.detail.split("line ")[1].split(":")[0]) - 1


def _another_code(line: Line, handle: str) -> None:
    line["result"] = {"error": -23}


def _no_answer(line: Line, handle: str) -> None:
    line["result"] = {"ok": "pending"}


def _unknown_lac(line: Line, handle: str) -> None:
    line["state"][handle][0] += 1000


def _unknown_length(line: Line, handle: str) -> None:
    line["state"][handle][2] += 1000


def _closed(line: Line, handle: str) -> None:
    line["state"][handle][3] = not line["state"][handle][3]


@pytest.mark.parametrize("rule", ["striped-lac", "force-needs-all"])
@pytest.mark.parametrize("change", [_another_code, _no_answer, _unknown_lac, _unknown_length, _closed])
def test_a_rule_of_ledgers_is_for_the_recorded_answer(rule: str, change: Callable[[Line, str], None]) -> None:
    tried = 0
    for one, number in striped(rule):
        lines = copy.deepcopy(one.lines)
        change(lines[number], lines[number]["handle"])
        outcome = replay(one._replace(lines=lines), ModelBackend, with_model=False)
        assert outcome.verdict == "different", (one.name, number)
        tried += 1
    assert tried >= 3


def test_force_needs_all_needs_a_stopped_bookie() -> None:
    one, _ = next(striped("force-needs-all"))
    lines = [line for line in one.lines if not line["op"].startswith("bookie_")]
    assert replay(one._replace(lines=lines), ModelBackend, with_model=False).verdict == "different"


@cache
def malformed() -> Line:
    return next(
        one
        for one in tracker_scenarios(DATA / "delayed" / "bucket_random.jsonl.gz", delayed.KEYS)
        if "malformed" in one["id"]
    )


def test_malformed_properties_are_reported_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The scenarios behind one that is different are replayed as well."""
    other = copy.deepcopy(malformed())
    line = next(op for op in other["ops"] if op["op"] == "reopen" and "throws" in op)
    line["throws"] = "SomethingElseException"
    some = [other, malformed()]
    (tmp_path / "some.jsonl").write_text("\n".join(map(json.dumps, some)))
    assert main(["delayed", str(tmp_path), "--json"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1]) == {"equal": 0, "argued": 1, "different": 1}
    assert any(line.startswith("different:") and "SomethingElseException" in line for line in lines)


def test_an_argument_that_fails_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise ValueError("no argument")

    monkeypatch.setattr(delayed, "argument", fail)
    outcome = replay_scenario("some", malformed(), MODEL)
    assert outcome.verdict == "different"
    assert "in an argument ValueError: no argument" in outcome.detail


def test_an_unknown_rule_of_messages_is_a_difference() -> None:
    other = copy.deepcopy(malformed())
    line = next(op for op in other["ops"] if op["op"] == "add_many")
    line["messages_rule"] = "something"
    assert "missing: messages by the rule something" in replay_scenario("some", other, MODEL).detail
