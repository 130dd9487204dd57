"""The replay replays: recordings as they are come out equal or argued, recordings with one answer changed do not."""

from __future__ import annotations

import copy
import functools
import gzip
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.replay import compare
from tests.replay.__main__ import main
from tests.replay.areas import AREAS
from tests.replay.backends import ModelBackend, StoreBackend
from tests.replay.bookies import Bookies, Shape
from tests.replay.lockstep import replay
from tests.replay.rules import RULES
from tests.replay.traces import Scenario, files_of, is_trace, scenarios

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests" / "data" / "bookkeeper"
TRACES = ("hand-v3", "hand-v2", "random-v3", "random-v2", "striped")
DIFFERENCES = ROOT / "docs" / "differences.md"

STEP = 5  # of the scenarios that a change applies to, one in so many is tried

Change = Callable[[dict[str, Any]], bool]


def recorded(name: str) -> Iterator[Scenario]:
    return scenarios(RECORDINGS / f"{name}.jsonl.gz")


def scenario(name: str) -> Scenario:
    wire = "v2" if "-v2" in name else "v3"
    return next(one for one in recorded(f"hand-{wire}") if one.name == name)


def write(path: Path, *some: Scenario) -> Path:
    lines = [json.dumps(value) for one in some for value in (one.header, *one.lines)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def counts_of(capsys: pytest.CaptureFixture[str]) -> dict[str, int]:
    last = capsys.readouterr().out.splitlines()[-1]
    counts: dict[str, int] = json.loads(last)
    return counts


# -- the recordings as they are --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRACES)
def test_bookstand_gives_the_recorded_answers(name: str) -> None:
    outcomes = [replay(one, StoreBackend) for one in recorded(name)]
    assert outcomes
    assert [outcome for outcome in outcomes if outcome.verdict == "different"] == []


class Hooked(StoreBackend):
    always_hooked = True


@pytest.mark.parametrize("name", ["random-v3", "random-v2"])
def test_hooks_change_no_answer(name: str) -> None:
    outcomes = [replay(one, Hooked) for one in recorded(name)]
    assert [outcome for outcome in outcomes if outcome.verdict == "different"] == []


@pytest.mark.parametrize("name", TRACES)
def test_the_model_gives_the_recorded_answers(name: str) -> None:
    outcomes = [replay(one, ModelBackend, with_model=False) for one in recorded(name)]
    assert outcomes
    assert [outcome for outcome in outcomes if outcome.verdict == "different"] == []


def test_few_recordings_are_argued() -> None:
    verdicts = [replay(one, ModelBackend, with_model=False).verdict for name in TRACES for one in recorded(name)]
    assert verdicts.count("argued") <= 0.12 * len(verdicts)


# -- recordings with one answer changed ------------------------------------------------------------------------------


def other_code(line: dict[str, Any]) -> bool:
    if "or" in line["result"] or line["result"].get("error") is None:
        return False
    line["result"]["error"] = -23
    return True


def error_for_a_value(line: dict[str, Any]) -> bool:
    if "ok" not in line["result"]:
        return False
    line["result"] = {"error": -12, "class": "BKWriteException"}
    return True


def value_for_an_error(line: dict[str, Any]) -> bool:
    if "error" not in line["result"]:
        return False
    line["result"] = {"ok": None}
    return True


def state_number(place: int, step: Any) -> Change:
    def change(line: dict[str, Any]) -> bool:
        for numbers in (line.get("state") or {}).values():
            if numbers[place] is not None:
                numbers[place] = step(numbers[place])
                return True
        return False

    return change


def a_handle_less(line: dict[str, Any]) -> bool:
    if not line.get("state"):
        return False
    line["state"].popitem()
    return True


def _entries(line: dict[str, Any]) -> list[dict[str, Any]]:
    value = line["result"].get("ok")
    if line["op"] in ("read", "read_unconfirmed", "batch_read", "batch_read_unconfirmed") and isinstance(value, list):
        return value
    return []


def entry_field(name: str, step: Callable[[Any], Any]) -> Change:
    def change(line: dict[str, Any]) -> bool:
        for entry in _entries(line):
            entry[name] = step(entry[name])
            return True
        return False

    return change


def other_payload(data: Any) -> Any:
    return data + "x" if isinstance(data, str) else {**data, "sha256": "0" * 64}


def an_entry_less(line: dict[str, Any]) -> bool:
    entries = [] if line["op"].startswith("batch") else _entries(line)
    if entries:
        entries.pop()
    return bool(entries)


def completion_code(line: dict[str, Any]) -> bool:
    for completion in line.get("completed", ()):
        completion[1] = {"error": -23, "class": "BKTimeoutException"}
        return True
    return False


def a_completion_less(line: dict[str, Any]) -> bool:
    if not line.get("completed"):
        return False
    line["completed"].pop()
    return True


def a_completion_more(line: dict[str, Any]) -> bool:
    line.setdefault("completed", []).append(["nobody", {"ok": 0}])
    return True


def metadata_field(name: str, value: Any) -> Change:
    def change(line: dict[str, Any]) -> bool:
        if line["op"] != "metadata" or "ok" not in line["result"]:
            return False
        line["result"]["ok"][name] = value
        return True

    return change


def stored_field(name: str) -> Change:
    def change(line: dict[str, Any]) -> bool:
        if line["op"] != "stored" or "ok" not in line["result"]:
            return False
        for entry in line["result"]["ok"]:
            if entry["on"]:
                entry[name] += 1
                return True
        return False

    return change


def stored_elsewhere(line: dict[str, Any]) -> bool:
    if line["op"] != "stored" or "ok" not in line["result"]:
        return False
    for entry in line["result"]["ok"]:
        if entry["on"]:
            entry["on"] = []
            return True
    return False


def list_order(line: dict[str, Any]) -> bool:
    ids = line["result"].get("ok")
    if line["op"] != "list" or not ids or len(ids) < 2:
        return False
    ids.reverse()
    return True


CHANGES: dict[str, Change] = {
    "another code": other_code,
    "an error for a value": error_for_a_value,
    "a value for an error": value_for_an_error,
    "last add confirmed": state_number(0, lambda number: number + 1),
    "last add pushed": state_number(1, lambda number: number - 1),
    "length": state_number(2, lambda number: number + 7),
    "closed": state_number(3, lambda closed: not closed),
    "a handle less": a_handle_less,
    "a payload": entry_field("data", other_payload),
    "an entry's id": entry_field("entry", lambda number: number + 1),
    "an entry's length": entry_field("length", lambda number: number + 1),
    "a cumulative length": entry_field("cumulative_length", lambda number: number + 1),
    "an entry less": an_entry_less,
    "how a pending completed": completion_code,
    "a completion less": a_completion_less,
    "a completion more": a_completion_more,
    "metadata state": metadata_field("state", "IN_RECOVERY_"),
    "metadata version": metadata_field("version", 17),
    "metadata length": metadata_field("length", 123456),
    "metadata last entry": metadata_field("last_entry", 123456),
    "metadata quorum": metadata_field("ack_quorum", 9),
    "metadata digest": metadata_field("digest", "NONE"),
    "metadata password": metadata_field("password", "guess"),
    "custom metadata": metadata_field("custom_metadata", {"who": "AQ=="}),
    "ensembles": metadata_field("ensembles", [{"first_entry": 0, "size": 7}]),
    "a stored LAC": stored_field("lac"),
    "a stored cumulative length": stored_field("cumulative_length"),
    "a stored size": stored_field("stored_size"),
    "a stored entry less": stored_elsewhere,
    "the order of a list": list_order,
}


def changed(one: Scenario, change: Change) -> Scenario | None:
    """The scenario with the first line changed that the change applies to."""
    lines = copy.deepcopy(one.lines)
    for line in lines:
        if "any_of" not in line["result"] and "completed_any_of" not in line and change(line):
            return Scenario(one.name, one.header, lines)
    return None


@functools.cache
def equal_for_the_model(name: str) -> list[Scenario]:
    return [one for one in recorded(name) if replay(one, ModelBackend, with_model=False).verdict == "equal"]


@pytest.mark.long
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_answer_is_found(change: Change) -> None:
    """Against the model, which is quick; the harness is the same."""
    false = [changed(one, change) for name in ("random-v3", "hand-v2") for one in equal_for_the_model(name)]
    tried = [one for one in false if one is not None][::STEP]
    assert tried
    for one in tried:
        outcome = replay(one, ModelBackend, with_model=False)
        assert outcome.verdict == "different", outcome
        assert "line" in outcome.detail


@pytest.mark.parametrize("change", ["another code", "last add confirmed", "a payload", "how a pending completed"])
def test_bookstand_does_not_pass_a_changed_recording(
    change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    true = next(one for one in equal_for_the_model("random-v3") if changed(one, CHANGES[change]))
    false = changed(true, CHANGES[change])
    assert false is not None
    assert main(["bookkeeper", str(write(tmp_path / "true.jsonl", true)), "--json"]) == 0
    assert counts_of(capsys) == {"equal": 1, "argued": 0, "different": 0}
    assert main(["bookkeeper", str(write(tmp_path / "false.jsonl", false)), "--json"]) == 1
    assert counts_of(capsys) == {"equal": 0, "argued": 0, "different": 1}


# -- argued differences ----------------------------------------------------------------------------------------------


def argued_line(one: Scenario) -> int | None:
    """The number of the line in which the model differs from the recording, if that is argued."""
    outcome = replay(one, ModelBackend, with_model=False)
    if outcome.verdict != "argued":
        return None
    found = re.search(r"line (\d+)", outcome.detail)
    assert found is not None
    return int(found.group(1))


def test_an_argument_is_for_one_difference_only() -> None:
    """With another code recorded where the argued difference shows, no rule applies."""
    tried = 0
    for name in TRACES:
        for one in recorded(name):
            number = argued_line(one)
            if number is None:
                continue
            lines = copy.deepcopy(one.lines)
            lines[number - 1]["result"] = {"error": -23, "class": "BKTimeoutException"}
            outcome = replay(Scenario(one.name, one.header, lines), ModelBackend, with_model=False)
            assert outcome.verdict == "different", outcome
            tried += 1
    assert tried


class FailsLater(ModelBackend):
    """Gives the model's answers, but takes entry 1 of no ledger."""

    def bookies_changed(self) -> None:
        super().bookies_changed()
        self.cluster.add_fault = lambda ledger, entry: -6 if entry == 1 else 0


def test_what_follows_an_argued_difference_is_held_against_the_model() -> None:
    one = scenario("wrong-password-v3-e3")
    assert replay(one, ModelBackend).verdict == "argued"
    outcome = replay(one, FailsLater)
    assert outcome.verdict == "different"
    assert "argued by open-with-null" in outcome.detail


def test_an_argued_difference_has_to_be_the_model_s_answer_too() -> None:
    class RefusesNull(ModelBackend):
        def client(self, name: str) -> Any:
            return Refusing(super().client(name))

    class Refusing:
        def __init__(self, client: Any) -> None:
            self.client = client

        def __getattr__(self, name: str) -> Any:
            return getattr(self.client, name)

        def open_ledger(self, digest: str | None = "crc32", **arguments: Any) -> Any:
            from bookstand import errors

            if digest is None:
                raise errors.IncorrectParameterError
            return self.client.open_ledger(digest=digest, **arguments)

    one = scenario("open-delete-arguments-v3")
    first = next(
        number for number, line in enumerate(one.lines) if line["op"] == "open" and line.get("password", 1) is None
    )
    shorter = Scenario(one.name, one.header, one.lines[:first] + one.lines[first + 1 :])
    assert replay(shorter, ModelBackend).verdict == "argued"
    assert replay(shorter, RefusesNull).verdict == "different"


def test_every_rule_has_its_reason_in_the_documentation() -> None:
    text = DIFFERENCES.read_text(encoding="utf-8")
    section = text.split("## Where the recordings of BookKeeper are argued")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `([a-z0-9-]+)` \|", section, flags=re.MULTILINE)
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    assert sorted(documented) == sorted(names)
    for rule in RULES:
        assert re.search(rf"^\| `{rule.name}` \| {re.escape(rule.surprise)} \|", section, flags=re.MULTILINE), rule


def test_rules_name_operations_that_there_are() -> None:
    known = {line["op"] for name in TRACES for one in recorded(name) for line in one.lines}
    for rule in RULES:
        assert rule.ops
        assert set(rule.ops) <= known, rule.name


# -- the command -----------------------------------------------------------------------------------------------------


def test_json_is_the_last_line_and_the_counts_come_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write(tmp_path / "some.jsonl", scenario("three-appends-v3-e1"), scenario("wrong-password-v3-e3"))
    assert main(["bookkeeper", str(path), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bookkeeper: equal 1, argued 1, different 0"
    assert json.loads(lines[-1]) == {"equal": 1, "argued": 1, "different": 0}
    assert any(line.startswith("argued: wrong-password-v3-e3: open-with-null") for line in lines)


def test_without_json_there_is_no_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write(tmp_path / "some.jsonl", scenario("three-appends-v3-e1"))
    assert main(["bookkeeper", str(path)]) == 0
    assert capsys.readouterr().out == "bookkeeper: equal 1, argued 0, different 0\n"


def test_a_difference_is_printed_and_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    false = changed(scenario("three-appends-v3-e1"), CHANGES["length"])
    assert false is not None
    assert main(["bookkeeper", str(write(tmp_path / "false.jsonl", false))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bookkeeper: equal 0, argued 0, different 1"
    assert lines[1].startswith("different: three-appends-v3-e1: line 1: create")
    assert "length" in lines[1]


def test_no_sample_is_a_failure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bookkeeper", str(tmp_path), str(tmp_path / "absent.jsonl"), "--json"]) == 1
    assert counts_of(capsys) == {"equal": 0, "argued": 0, "different": 0}


def test_absent_files_are_skipped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = write(tmp_path / "there.jsonl", scenario("three-appends-v3-e1"))
    assert main(["bookkeeper", str(tmp_path / "absent"), str(path), "--json"]) == 0
    assert counts_of(capsys) == {"equal": 1, "argued": 0, "different": 0}


def test_plain_and_gzip_are_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plain = write(tmp_path / "hand-plain.jsonl", scenario("three-appends-v3-e1"))
    (tmp_path / "hand-packed.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert main(["bookkeeper", str(tmp_path), "--json"]) == 0
    assert counts_of(capsys) == {"equal": 2, "argued": 0, "different": 0}


def test_wrong_arguments() -> None:
    for arguments in (["nothing-like-it", "x"], ["bookkeeper"], []):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2


def test_help_names_what_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for area in AREAS.values():
        assert area.fields in text
    for word in ("cumulative length", "last add pushed", "custom\nmetadata"):
        assert word in text


def test_a_file_is_a_trace_by_what_it_says(tmp_path: Path) -> None:
    trace = write(tmp_path / "anything.jsonl", scenario("three-appends-v3-e1"))
    other = tmp_path / "hand-like.jsonl"
    other.write_text('{"index": 0}\n', encoding="utf-8")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("", encoding="utf-8")
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{", encoding="utf-8")
    assert [path for path in files_of([tmp_path]) if is_trace(path)] == [trace]


# -- the parts -------------------------------------------------------------------------------------------------------


def test_marks_in_results() -> None:
    read = {"op": "read"}
    either = {"error": -13, "or": [-7, -13]}
    assert compare.same_result(read, either, {"error": -7})
    assert compare.same_result(read, either, {"error": -13})
    assert not compare.same_result(read, either, {"error": -1})
    any_of = {"any_of": [{"ok": None}, {"error": -17}]}
    assert compare.same_result({"op": "close"}, any_of, {"ok": None})
    assert compare.same_result({"op": "close"}, any_of, {"error": -17})
    assert not compare.same_result({"op": "close"}, any_of, {"error": -11})


def test_what_is_not_determined_is_not_compared() -> None:
    assert compare.state_differences({"r": [3, 3, None, False]}, {"r": [3, 3, 10, False]}) == {}
    assert compare.state_differences({"r": [3, 3, None, False]}, {"r": [3, 4, 10, False]}) == {"r": [1]}
    assert compare.state_differences({"r": [None] * 4}, {}) == {}
    assert compare.state_differences({}, {"r": [0, 0, 0, False]}) == {"r": [0, 1, 2, 3]}


def test_java_exceptions_are_equal_to_one_python_answer_each() -> None:
    bounds = {"error": None, "exception": "java.lang.ArrayIndexOutOfBoundsException"}
    assert compare.same_result({"op": "append"}, bounds, {"error": None, "exception": "IndexError"})
    assert not compare.same_result({"op": "append"}, bounds, {"error": -14})
    assert not compare.same_result({"op": "open"}, bounds, {"error": None, "exception": "IndexError"})
    unknown = {"error": None, "exception": "java.lang.Error"}
    assert not compare.same_result({"op": "append"}, unknown, {"error": None, "exception": "IndexError"})


def test_one_machine_stands_for_the_bookies_of_a_write_set() -> None:
    bookies = Bookies(shapes={5: Shape(ensemble=3, write_quorum=2, ack_quorum=2)})
    bookies.fault(5, "read_eio", 0)
    assert [bookies.read_fault(5, entry) for entry in range(3)] == [0, 0, 0]
    bookies.fault(5, "read_corrupt", 1)
    assert [bookies.read_fault(5, entry) for entry in range(3)] == [-1, 0, 0]
    bookies.fault(5, "read_no_entry", 2)
    assert [bookies.read_fault(5, entry) for entry in range(3)] == [-1, -5, -1]


def test_held_bookies_decide_how_far_an_add_gets() -> None:
    bookies = Bookies(shapes={5: Shape(ensemble=3, write_quorum=3, ack_quorum=2)})
    assert bookies.hold_of(5, 0) is None
    bookies.hold(5, "add", [2])
    assert bookies.hold_of(5, 0) is None
    bookies.hold(5, "add", [1, 2])
    assert bookies.hold_of(5, 0) == "minority"
    bookies.hold(5, "add", None)
    assert bookies.hold_of(5, 0) == "add"
    bookies.hold(5, "ack", None)
    assert bookies.hold_of(5, 0) == "ack"
