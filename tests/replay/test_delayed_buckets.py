"""Recorded trackers on buckets are answered the same; a recording that says something else does not pass."""

from __future__ import annotations

import copy
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bookstand.delivery.bucket_tracker import BucketDelayedTracker
from tests.model.delayed_buckets import SURPRISES
from tests.replay import delayed
from tests.replay.delayed import replay_scenario
from tests.replay.delayed_bucket_driver import BucketDriver
from tests.replay.delayed_bucket_rules import BUCKET_RULES
from tests.replay.delayed_bucket_stands import BucketModelStand
from tests.replay.delayed_driver import scenarios
from tests.replay.outcome import Outcome

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDED = ROOT / "tests" / "data" / "delayed"
MODEL = {"bucket": BucketModelStand}
UNKNOWN = {"set_property", "remove_property", "move_property", "put_snapshot", "drop_snapshot", "truncate_snapshot"}
"""What is done behind a tracker's back is not replayed; tests of recovery show it."""

Scenario = dict[str, Any]


@cache
def recorded() -> tuple[tuple[str, Scenario], ...]:
    return tuple(
        (name, one)
        for name in ("hand", "later_hand")
        for one in scenarios(RECORDED / f"{name}.jsonl.gz", delayed.KEYS)
        if one["settings"]["tracker"] == "bucket" and _is_known(one)
    )


def _is_known(one: Scenario) -> bool:
    return not any(
        op["op"] in UNKNOWN or op.get("error", "").endswith("not_exist") or "messages_rule" in op for op in one["ops"]
    )


@cache
def by_model() -> dict[str, Outcome]:
    return {outcome.name: outcome for name, one in recorded() if (outcome := replay_scenario(name, one, MODEL))}


def test_the_model_gives_the_recorded_answers() -> None:
    assert [outcome for outcome in by_model().values() if outcome.verdict == "different"] == []
    assert Counter(outcome.verdict for outcome in by_model().values())["equal"] >= 60


def test_bookstand_answers_as_the_model() -> None:
    for name, one in recorded()[::4]:
        outcome = replay_scenario(name, one)
        assert outcome == by_model()[outcome.name]


def test_what_the_tracker_says_is_held_against_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BucketDelayedTracker, "count", property(lambda _: 1))
    outcome = replay_scenario(*recorded()[0])
    assert outcome.verdict == "different"
    assert "against the model" in outcome.detail


@pytest.mark.parametrize("place", [0, 2])
def test_a_changed_answer_is_found(place: int) -> None:
    """The count, and the alarm where it means something."""
    tried = 0
    for name, one in recorded()[::3]:
        if by_model()[f"{name}:{one['id']}"].verdict != "equal" or any(op["op"] == "reopen" for op in one["ops"]):
            continue
        lines = [number for number, op in enumerate(one["ops"]) if op.get("state", (0,))[0]]
        if not lines or any("io" in op for op in one["ops"]):
            continue
        other = {**one, "ops": copy.deepcopy(one["ops"])}
        state = other["ops"][lines[-1]]["state"]
        state[place] = (state[place] or 0) + 7
        assert replay_scenario(name, other, MODEL).verdict == "different", (one["id"], lines[-1])
        tried += 1
    assert tried >= 3


def test_every_rule_has_its_reason_in_the_documentation() -> None:
    text = (ROOT / "docs" / "differences.md").read_text()
    for rule in BUCKET_RULES:
        assert f"| `{rule.name}` | {rule.surprise} |" in text, rule.name


def test_every_surprise_of_the_model_has_its_rule() -> None:
    assert {rule.name for rule in BUCKET_RULES if rule.evidence is None} == set(SURPRISES)


def test_rules_name_operations_that_there_are() -> None:
    for rule in BUCKET_RULES:
        assert rule.ops
        assert all(hasattr(BucketDriver, f"_{op}") for op in rule.ops), rule.name
