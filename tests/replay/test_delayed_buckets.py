"""Recorded trackers on buckets are answered the same; a recording that says something else does not pass."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bookstand.delivery.tracker.bucket.tracker import BucketDelayedTracker
from tests.replay import delayed, delayed_surprises
from tests.replay.delayed import replay_scenario
from tests.replay.delayed_bucket_driver import BucketDriver, marked
from tests.replay.delayed_bucket_driver import recorded as recorded_answer
from tests.replay.delayed_bucket_rules import BUCKET_RULES
from tests.replay.delayed_bucket_stands import BucketModelStand
from tests.replay.delayed_driver import scenarios
from tests.replay.delayed_original_stand import OriginalStand
from tests.replay.outcome import Outcome

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDED = ROOT / "tests" / "data" / "delayed"
MODEL = {"bucket": BucketModelStand}

Scenario = dict[str, Any]


@cache
def recorded() -> tuple[tuple[str, Scenario], ...]:
    return tuple(
        (name, one)
        for name in ("hand", "later_hand", "bucket_random", "later_bucket_random")
        for one in scenarios(RECORDED / f"{name}.jsonl.gz", delayed.KEYS)
        if one["settings"]["tracker"] == "bucket"
    )


@cache
def by_model() -> dict[str, Outcome]:
    return {outcome.name: outcome for name, one in recorded() if (outcome := replay_scenario(name, one, MODEL))}


@pytest.mark.long
def test_the_model_gives_the_recorded_answers() -> None:
    assert [outcome for outcome in by_model().values() if outcome.verdict == "different"] == []
    assert Counter(outcome.verdict for outcome in by_model().values())["equal"] >= 60


@pytest.mark.long
def test_bookstand_answers_as_the_model() -> None:
    for name, one in recorded()[::4]:
        outcome = replay_scenario(name, one)
        assert outcome == by_model()[outcome.name]


def test_what_the_tracker_says_is_held_against_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BucketDelayedTracker, "count", property(lambda _: 1))
    outcome = replay_scenario(*recorded()[0])
    assert outcome.verdict == "different"
    assert "against the model" in outcome.detail


@pytest.mark.long
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


def test_every_surprise_has_its_rule() -> None:
    named = {value for name, value in vars(delayed_surprises).items() if name.isupper()}
    assert sorted(rule.name for rule in BUCKET_RULES) == sorted(named)


def test_the_original_gives_all_that_was_recorded() -> None:
    """To the end, each tree by itself; but for what it does once it has refused an id, and the two that are large."""
    for name, one in recorded():
        large = "messages_rule" in one["ops"][1] or len(one["ops"][1].get("messages", ())) > 5_000
        if large or any("throws" in op and op["op"] == "add" for op in one["ops"]):
            continue
        stand = OriginalStand(one["settings"], later=name.startswith("later"))
        driver = BucketDriver(stand, one["settings"], singly=True)
        for number, op in enumerate(marked(one["ops"], one["settings"]["max_num_buckets"])):
            assert driver.apply(op) == recorded_answer(op), (name, one["id"], number)


def line_of(outcome: Outcome) -> int:
    return int(outcome.detail.split("operation ")[1].split(":")[0])


def _more(op: Scenario) -> None:
    op["state"][0] += 700


def _not_that(op: Scenario) -> None:
    result = op["result"]
    if isinstance(result, str):
        op["result"] = result.translate(str.maketrans("01", "10"))
    else:
        op["result"] = result[1:] if result else [[1, 1]]


@pytest.mark.parametrize("change", [_more, _not_that])
def test_an_argument_is_for_what_was_recorded(change: Callable[[Scenario], None]) -> None:
    """In the line that is argued, anything else than what the surprise says is a difference."""
    tried = 0
    for name, one in recorded()[::2]:
        outcome = by_model()[f"{name}:{one['id']}"]
        line = line_of(outcome) if outcome.verdict == "argued" else -1
        if line < 0 or "state" not in one["ops"][line] or one["ops"][line]["op"] not in ("get_scheduled", "add_many"):
            continue
        if "throws" in one["ops"][line]:
            continue
        other = {**one, "ops": copy.deepcopy(one["ops"])}
        change(other["ops"][line])
        assert replay_scenario(name, other, MODEL).verdict == "different", (name, one["id"], line)
        tried += 1
    assert tried >= 10


def test_an_argument_needs_its_surprise() -> None:
    """What nobody has met explains nothing: a recording without one, in which one message too many is counted."""
    name, one = next(pair for pair in recorded() if by_model()[f"{pair[0]}:{pair[1]['id']}"].verdict == "equal")
    for line in (number for number, op in enumerate(one["ops"]) if "state" in op and op["state"][0]):
        other = {**one, "ops": copy.deepcopy(one["ops"])}
        other["ops"][line]["state"][0] += 1
        assert replay_scenario(name, other, MODEL).verdict == "different"


def test_rules_name_operations_that_there_are() -> None:
    for rule in BUCKET_RULES:
        assert rule.ops
        assert all(hasattr(BucketDriver, f"_{op}") for op in rule.ops), rule.name
