"""What the original wrote and read is written and read the same; each comparer notices when it is not."""

from __future__ import annotations

import base64
import copy
import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookstand.managed_ledger.message.format import assemble
from bookstand.managed_ledger.message.metadata import MessageMetadata
from tests.replay import ack_samples, message_samples, messages, rangesets
from tests.replay.__main__ import main

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDED = ROOT / "tests" / "data" / "cursor"
FILES = ("messages", "position_info", "metadata_records", "rangeset")

Change = Callable[[dict[str, Any]], object]


def lines_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress((RECORDED / f"{name}.jsonl.gz").read_bytes()).splitlines()]


@pytest.mark.long
def test_all_samples_are_equal_or_argued() -> None:
    found = list(messages.replay([RECORDED]))
    assert [outcome for outcome in found if outcome.verdict == "different"] == []
    counts = Counter((outcome.name.split(":")[0], outcome.verdict) for outcome in found)
    assert counts == {
        ("messages", "equal"): 85,
        ("messages", "argued"): 2,
        ("position_info", "equal"): 264,
        ("metadata_records", "equal"): 120,
        ("rangeset", "equal"): 165,
        ("rangeset", "argued"): 35,
    }


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["messages", str(RECORDED / "metadata_records.jsonl.gz"), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "messages: equal 120, argued 0, different 0"
    assert json.loads(lines[-1]) == {"equal": 120, "argued": 0, "different": 0}


def test_files_are_told_by_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "any.jsonl").write_text("\n".join(json.dumps(line) for line in lines_of("messages")[:3]))
    (tmp_path / "trace.jsonl").write_text('{"scenario": "h001"}\n{"op": "ack"}\n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "broken.jsonl").write_text("{")
    (tmp_path / "list.jsonl").write_text("[1]")
    (tmp_path / "README.md").write_text("{}")
    assert [outcome.name for outcome in messages.replay([tmp_path])] == ["any:0", "any:2", "any:4"]


# -- a changed answer fails ------------------------------------------------------------------------------------------


def first_message(key: str) -> dict[str, Any]:
    return next(line for line in lines_of("messages") if line["kind"] == "good" and key in line["answers"])


def sets(key: str, value: Any) -> Change:
    return lambda answers: answers.__setitem__(key, value)


MESSAGE_CHANGES: dict[str, Change] = {
    "broker_entry_metadata": sets("broker_entry_metadata", {"index": 77}),
    "offset_after_broker_entry_metadata": sets("offset_after_broker_entry_metadata", 1),
    "has_checksum": sets("has_checksum", False),
    "stored_checksum": sets("stored_checksum", 1),
    "computed_checksum": sets("computed_checksum", 1),
    "checksum_ok": sets("checksum_ok", False),
    "metadata": lambda answers: answers["metadata"].__setitem__("sequence_id", -1),
    "payload_offset": sets("payload_offset", 1),
    "payload_length": sets("payload_length", 12345),
    "payload_b64": sets("payload_b64", "AAAA"),
    "batch": lambda answers: answers["batch"].pop(),
}


@pytest.mark.parametrize("key", MESSAGE_CHANGES)
def test_a_changed_answer_about_a_message_is_a_difference(key: str) -> None:
    sample = first_message("batch")
    MESSAGE_CHANGES[key](sample["answers"])
    (outcome,) = message_samples.compare_messages("messages", [sample])
    assert outcome.verdict == "different"
    assert key in outcome.detail


def test_every_field_of_every_message_counts() -> None:
    for sample in lines_of("messages"):
        for key in sample["answers"]:
            less = copy.deepcopy(sample)
            del less["answers"][key]
            less["kind"] = "good"
            (outcome,) = message_samples.compare_messages("messages", [less])
            assert outcome.verdict == "different", (sample["index"], key)


@pytest.mark.parametrize("step", ["broker_entry_metadata", "has_checksum", "checksum", "metadata", "payload", "batch"])
def test_a_step_that_failed_has_to_fail(step: str) -> None:
    sample = first_message("batch")
    sample["answers"][f"{step}_error"] = "IndexOutOfBoundsException"
    (outcome,) = message_samples.compare_messages("messages", [sample])
    assert outcome.verdict == "different"


def test_only_damaged_messages_are_argued_and_only_for_their_reason() -> None:
    by_index = {line["index"]: line for line in lines_of("messages")}
    argued = by_index[124]
    (outcome,) = message_samples.compare_messages("messages", [argued])
    assert (outcome.verdict, outcome.detail.split(":")[0]) == ("argued", "stricter-message")
    (outcome,) = message_samples.compare_messages("messages", [{**argued, "kind": "good"}])
    assert outcome.verdict == "different"
    refused = copy.deepcopy(argued)
    del refused["answers"]["metadata"]
    (outcome,) = message_samples.compare_messages("messages", [refused])
    assert outcome.verdict == "different"
    # A checksum that was recorded otherwise is not covered by the rule for payloads.
    other = copy.deepcopy(by_index[120])
    other["answers"]["computed_checksum"] += 1
    (outcome,) = message_samples.compare_messages("messages", [other])
    assert outcome.verdict == "different"


def test_a_payload_that_the_original_filled_up_is_argued() -> None:
    data = assemble(MessageMetadata("p", 0, 0, compression=2, uncompressed_size=9), b"x\x9c\x03\x00")
    said, reason = message_samples.answers(data)
    assert "payload_error" in said
    assert "unpacks to 0 bytes" in reason or "cannot be unpacked" in reason
    recorded = {key: value for key, value in said.items() if key != "payload_error"} | {"payload_b64": "AAAAAAAAAAAA"}
    sample = {"index": 1, "kind": "broken", "b64": base64.b64encode(data).decode(), "answers": recorded}
    (outcome,) = message_samples.compare_messages("messages", [sample])
    assert (outcome.verdict, outcome.detail.split(":")[0]) == ("argued", "payload-size")


SNAPSHOT_CHANGES: dict[str, Change] = {
    "mark_delete": lambda sample: sample["truth"]["mark_delete"].__setitem__(1, 12345),
    "ranges": lambda sample: sample["recovered" if "recovered" in sample else "held"].pop(),
    "n_recovered": sets("n_recovered", 0),
    "batch": lambda sample: sample["truth"]["batch"].append([1 << 40, 0, ["0000000000000001"]]),
    "properties": lambda sample: sample["truth"]["properties"].append(["more", 1]),
}


@pytest.mark.parametrize("key", SNAPSHOT_CHANGES)
def test_a_changed_snapshot_is_a_difference(key: str) -> None:
    sample = next(line for line in lines_of("position_info") if line.get("held"))
    SNAPSHOT_CHANGES[key](sample)
    (outcome,) = ack_samples.compare_snapshots("position_info", [sample])
    assert outcome.verdict == "different"
    assert key in outcome.detail


def test_a_snapshot_that_is_cut_is_a_difference() -> None:
    sample = lines_of("position_info")[0]
    sample["b64"] = base64.b64encode(base64.b64decode(sample["b64"])[:-1]).decode()
    (outcome,) = ack_samples.compare_snapshots("position_info", [sample])
    assert outcome.detail.startswith("refused")


@pytest.mark.parametrize("kind", ["ManagedLedgerInfo", "ManagedCursorInfo"])
def test_every_field_of_a_record_counts(kind: str) -> None:
    sample = next(line for line in lines_of("metadata_records") if line["record"] == kind and line["when"] == "closed")
    for key, value in sample["truth"].items():
        changed = copy.deepcopy(sample)
        changed["truth"][key] = value + 1 if isinstance(value, int) else [*value, value[0] if value else ["a", 1]]
        if key == "batch":
            changed["truth"][key] = [[1, 2, ["0000000000000003"]]]
        (outcome,) = ack_samples.compare_records("metadata_records", [changed])
        assert outcome.verdict == "different", key
        assert key in outcome.detail
    if kind == "ManagedLedgerInfo":
        for field in ("ledger", "entries", "size", "timestamp"):
            changed = copy.deepcopy(sample)
            changed["truth"]["ledgers"][0][field] += 1
            (outcome,) = ack_samples.compare_records("metadata_records", [changed])
            assert outcome.verdict == "different", field


RANGESET_CHANGES: dict[str, Change] = {
    "ranges": lambda line: line["ranges"].pop(),
    "size": lambda line: line.__setitem__("size", line["size"] + 1),
    "first": sets("first", ["(99:1", "99:2]"]),
    "last": sets("last", ["(99:1", "99:2]"]),
    "span": sets("span", ["(99:1", "99:2]"]),
    "string": sets("string", "[]"),
}


def a_set(kind: str) -> list[dict[str, Any]]:
    lines = lines_of("rangeset")
    start = next(number for number, line in enumerate(lines) if line.get("kind") == kind)
    end = next(number for number, line in enumerate(lines[start + 1 :], start + 1) if "set" in line)
    return lines[start:end]


def up_to(op: str, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """A set's lines up to the first operation of a kind, in a set in which nothing is argued."""
    lines = lines_of("rangeset")
    start = 0
    for number, line in enumerate(lines):
        if "set" in line:
            start = number
        elif line["op"] == op and wanted(line) and lines[start]["kind"] == "bitset":
            return lines[start : number + 1]
    raise AssertionError(op)


@pytest.mark.parametrize("key", RANGESET_CHANGES)
def test_a_changed_range_set_is_a_difference(key: str) -> None:
    changed = a_set("bitset")
    line = next(line for line in changed[1:] if line["ranges"])
    RANGESET_CHANGES[key](line)
    (outcome,) = rangesets.compare("rangeset", changed)
    assert outcome.verdict == "different"
    assert key in outcome.detail


@pytest.mark.parametrize("op", ["contains", "range_containing", "cardinality", "to_ranges"])
def test_a_changed_answer_of_a_range_set_is_a_difference(op: str) -> None:
    changed = up_to(op, lambda line: bool(line["result"]))
    wrong: dict[str, Any] = {"contains": False, "range_containing": None, "cardinality": -1, "to_ranges": {}}
    changed[-1]["result"] = wrong[op]
    (outcome,) = rangesets.compare("rangeset", changed)
    assert outcome.verdict == "different"
    assert "result" in outcome.detail


def test_words_that_a_limit_left_out_count_only_where_it_was_passed() -> None:
    changed = up_to("to_ranges", lambda line: len(line["result"]) > 1)
    changed[-1]["result"].popitem()
    changed[-1]["max"] = 1_000_000
    assert [outcome.verdict for outcome in rangesets.compare("rangeset", changed)] == ["different"]
    changed[-1]["max"] = 0
    assert [outcome.verdict for outcome in rangesets.compare("rangeset", changed)] == ["equal"]


def test_what_follows_an_argued_range_is_held_against_the_plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_of("rangeset")
    (name,) = {
        outcome.name for outcome in rangesets.compare("rangeset", lines) if outcome.detail.endswith("10:16..11:4")
    }
    assert name == "rangeset:tree-2"
    monkeypatch.setattr(rangesets.PlainRanges, "shown", lambda _: [])
    outcome = next(one for one in rangesets.compare("rangeset", lines) if one.name == name)
    assert outcome.verdict == "different"


def test_a_bitset_is_never_argued() -> None:
    (as_tree,) = rangesets.compare("rangeset", a_set("tree"))
    assert as_tree.verdict == "argued"
    changed = a_set("tree")
    changed[0]["kind"] = "bitset"
    (outcome,) = rangesets.compare("rangeset", changed)
    assert outcome.verdict == "different"


def test_every_rule_has_its_reason_in_the_documentation() -> None:
    text = (ROOT / "docs" / "differences.md").read_text(encoding="utf-8")
    section = text.split("## Messages, acknowledgments and range sets of Pulsar")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `([a-z-]+)` \|", section, flags=re.MULTILINE)
    source = Path(message_samples.__file__).read_text()
    assert sorted(documented) == sorted([*re.findall(r'return "([a-z-]+)"', source), rangesets.RULE])
