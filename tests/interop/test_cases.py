"""What the original's client is asked, and how its answers are judged; without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop import cases
from tests.interop.cases import RECORDED, Operation, Share, cannot
from tests.replay.driver import Answer
from tests.replay.traces import Scenario, scenarios

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def scenario(name: str) -> Scenario:
    return next(one for one in scenarios(RECORDED / "hand-v3.jsonl.gz") if one.name == name)


def asked(one: Scenario, share: Share) -> Iterator[Operation]:
    answers: list[Answer] = []
    return (Operation(one, number, answers, share) for number in range(1, len(one.lines) + 1))


def as_recorded(line: dict[str, Any], **other: Any) -> dict[str, str]:
    """The answer of a client that does what was recorded."""
    completed = dict(line.get("completed", []))
    told = {"result": line["result"], "state": line.get("state") or {}, "completed": completed} | other
    return {"line": json.dumps(told).encode().hex()}


def judged(one: Scenario, **other: Any) -> list[str]:
    """What is said of a scenario whose answers are those of the recording, but the last one."""
    share = Share("recording")
    questions = list(asked(one, share))
    *before, last = one.lines
    answers = [*map(as_recorded, before), as_recorded(last, **other)]
    said = [question.difference(answer) for question, answer in zip(questions, answers, strict=True)]
    return [line for line in (*said, *(question.remark for question in questions)) if line]


@pytest.mark.parametrize(
    "name", ["lac-lag-v3-e3", "adv-order-lengths-v3-e1", "client-closed-v3-e1", "fence-restart-v3-e1"]
)
def test_what_was_recorded_is_as_it_should_be(name: str) -> None:
    assert judged(scenario(name)) == []


@pytest.mark.parametrize(
    "other",
    [{"result": {"error": -999}}, {"state": {}}, {"completed": {"p": {"ok": 1}}}, {"state": {"w": [0, 0, 0, True]}}],
)
def test_what_is_another_answer_is_different(other: dict[str, Any]) -> None:
    one = scenario("lac-lag-v3-e3")
    (said,) = judged(one, **other)
    assert said.startswith(f"line {len(one.lines)}: ")


def late(reader: list[Any], ensemble: int = 3, asks: str = "try_read_lac") -> list[str]:
    """What is said where a reader's numbers are these, after it asked and while another handle is read."""
    asked_at = next(number for number, line in enumerate(random_one.lines, 1) if line["op"] == "try_read_lac")
    lines = [dict(line) for line in random_one.lines[: asked_at + 2]]
    lines[0] = lines[0] | {"ensemble": ensemble}
    lines[asked_at - 1] = lines[asked_at - 1] | {"op": asks}
    return judged(random_one._replace(lines=lines), state=lines[-1]["state"] | {"r2": reader})


random_one = next(one for one in scenarios(RECORDED / "random-v2.jsonl.gz") if one.name == "random-10042-v2")


def test_what_a_bookie_says_late_is_argued() -> None:
    (said,) = late([25, 25, None, False])
    assert said.startswith("argued: random-10042-v2: striped-lac-late: ")


@pytest.mark.parametrize(
    "other",
    [
        # No bookie had such a LAC, or it is lower, or more than it is another one.
        {"reader": [24, 24, None, False]},
        {"reader": [20, 20, None, False]},
        {"reader": [25, 25, None, True]},
        # All bookies had all of it, or none was asked.
        {"reader": [25, 25, None, False], "ensemble": 2},
        {"reader": [25, 25, None, False], "asks": "length"},
    ],
)
def test_what_no_bookie_could_say_late_is_different(other: dict[str, Any]) -> None:
    (said,) = late(**other)
    assert not said.startswith("argued")
    assert "handle r2" in said


def test_an_operation_that_failed_to_be_asked_is_told() -> None:
    (question, *_) = asked(scenario("lac-lag-v3-e3"), Share("recording"))
    assert "no such kind" in question.difference({"error": "no such kind"})


def test_the_client_is_not_told_what_to_answer() -> None:
    for one in scenarios(RECORDED / "hand-v3.jsonl.gz"):
        for line, question in zip(one.lines, asked(one, Share("recording")), strict=True):
            _, _, line_in_hex = question.request.partition("line=")
            told = json.loads(bytes.fromhex(line_in_hex))
            assert not told.keys() & {"result", "class", "completed", "completed_any_of"}
            assert told["awaited"] == (line.get("state") or {})


def test_a_handle_that_closes_itself_may_do_so_a_little_earlier() -> None:
    recorded = scenario("entry-over-frame-v3-e3")
    undetermined = [
        (number, handle)
        for number, line in enumerate(cases.determined(recorded).lines, 1)
        for handle, numbers in line["state"].items()
        if None in numbers
    ]
    assert undetermined == [(3, "w")]
    assert recorded.lines[2]["state"] == {"w": [0, 0, 1, False]}


def test_not_too_many_are_argued() -> None:
    share = Share("recording")
    share.scenarios, share.argued = 4, 1
    assert share.difference({"result": "0"}) == ""
    share.argued = 2
    assert share.difference({"result": "0"}) == "2 of 4 scenarios argued"


def test_what_cannot_be_had_is_told_with_its_reason_here_and_in_the_documentation() -> None:
    assert cannot(scenario("recover-short-v3-e1")).startswith("cut entry: ")
    assert cannot(scenario("lac-lag-v3-e3")) == ""
    page = (DOCS / "differences.md").read_text("utf-8")
    assert [name for name in cases.CANNOT if f"| {name} |" not in page] == []
