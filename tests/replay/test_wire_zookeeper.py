"""What ZooKeeper answered is answered the same here; the replay notices when it is not."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.protocol import XID_EVENT
from tests.replay import wire_zookeeper
from tests.replay.outcome import Outcome

RECORDED = Path(__file__).resolve().parent.parent / "data" / "wire"

Line = dict[str, Any]


def verdicts(found: list[Outcome]) -> dict[str, int]:
    return dict(Counter(outcome.verdict for outcome in found))


@pytest.mark.parametrize(
    ("name", "expected"), [("bk", {"equal": 238, "argued": 6}), ("pulsar", {"equal": 547, "argued": 3})]
)
def test_all_answers_are_equal_or_argued(name: str, expected: dict[str, int]) -> None:
    found = list(wire_zookeeper.replay_recording(RECORDED / f"{name}.jsonl.gz"))
    assert [outcome for outcome in found if outcome.verdict == "different"] == []
    assert verdicts(found) == expected


def test_what_a_client_that_was_not_recorded_did_is_argued() -> None:
    """The one rule, and what it is about: the znode of a bookie, set once more than was recorded."""
    found = list(wire_zookeeper.replay_recording(RECORDED / "bk.jsonl.gz"))
    argued = [outcome for outcome in found if outcome.verdict == "argued"]
    assert all(outcome.detail.startswith(wire_zookeeper.UNRECORDED) for outcome in argued)


def answers(lines: list[Line], predicate: Callable[[bytes], bool]) -> list[Line]:
    return [
        line
        for line in lines
        if line.get("ch", "").startswith("zk") and line.get("dir") == "S" and "b64" in line and predicate(_octets(line))
    ]


def _octets(line: Line) -> bytes:
    return base64.b64decode(line["b64"])


def change(line: Line, at: int, value: bytes) -> None:
    octets = bytearray(_octets(line))
    octets[at : at + len(value)] = value
    line["b64"] = base64.b64encode(octets).decode()


def is_stat(octets: bytes) -> bool:
    """The answer to exists, or to setData."""
    return len(octets) == 84 and octets[:4] != b"\xff\xff\xff\xff" and octets[12:16] == bytes(4)


def is_event(octets: bytes) -> bool:
    return records.REPLY_HEADER.decode(octets).xid == XID_EVENT if len(octets) >= 16 else False


# Where in an answer a field lies, and what is written there in its place.
FIELDS: dict[str, tuple[Callable[[bytes], bool], int, bytes]] = {
    "zxid": (is_stat, 11, b"\x7f"),
    "error": (lambda octets: len(octets) == 16 and octets[12:] == b"\xff\xff\xff\x9b", 15, b"\x99"),
    "czxid": (is_stat, 16, b"\x7f"),
    "mzxid": (is_stat, 24, b"\x7f"),
    "whether there is a time": (is_stat, 32, bytes(8)),
    "version": (is_stat, 51, b"\x55"),
    "cversion": (is_stat, 55, b"\x55"),
    "aversion": (is_stat, 59, b"\x55"),
    "owner": (is_stat, 60, b"\x01"),
    "length": (is_stat, 71, b"\x55"),
    "children": (is_stat, 75, b"\x55"),
    "pzxid": (is_stat, 76, b"\x7f"),
    "kind of an event": (is_event, 19, b"\x04"),
    "path of an event": (is_event, 30, b"~"),
    "time-out": (lambda octets: len(octets) == 37, 7, b"\x11"),
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_changed_truth_is_noticed(field: str, tmp_path: Path) -> None:
    predicate, at, value = FIELDS[field]
    lines = [json.loads(line) for line in gzip.decompress((RECORDED / "bk.jsonl.gz").read_bytes()).splitlines()]
    line = answers(lines, predicate)[2]
    change(line, at, value)
    (tmp_path / "bk.jsonl").write_text("\n".join(map(json.dumps, lines)))
    found = verdicts(list(wire_zookeeper.replay_recording(tmp_path / "bk.jsonl")))
    assert found.get("different", 0) >= 1


def test_an_answer_that_nobody_asked_for_is_noticed(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in gzip.decompress((RECORDED / "bk.jsonl.gz").read_bytes()).splitlines()]
    kept = [line for line in lines if line["n"] <= 10 and line["n"] != 5]
    (tmp_path / "bk.jsonl").write_text("\n".join(map(json.dumps, kept)))
    found = [one for one in wire_zookeeper.replay_recording(tmp_path / "bk.jsonl") if one.verdict == "different"]
    assert "nobody asked for it" in found[0].detail
