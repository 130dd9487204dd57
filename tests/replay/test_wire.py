"""Recorded frames are answered as the originals did; an answer that differs is noticed."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.replay import wire_bookie
from tests.replay.outcome import Outcome
from tests.replay.traces import files_of
from tests.replay.wire_frames import Line, is_recording, lines

RECORDED = Path(__file__).resolve().parent.parent / "data" / "wire"


def recorded(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress((RECORDED / f"{name}.jsonl.gz").read_bytes()).splitlines()]


def of_bookies(folder: Path) -> Iterator[Outcome]:
    """What is sent to ZooKeeper is another test's matter."""
    for path in files_of([folder]):
        if path.name == wire_bookie.RAW_FRAMES:
            yield from wire_bookie.replay_raw_frames(path)
        elif is_recording(path):
            yield from wire_bookie.replay_recording(path)


def replayed(folder: Path, name: str, records: list[dict[str, Any]]) -> list[Any]:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return [outcome for outcome in of_bookies(folder) if outcome.verdict != "equal"]


def test_every_request_to_a_bookie_is_answered_alike() -> None:
    found = list(of_bookies(RECORDED))
    # An entry of 5.5 MB in each version, for which the original closes the connection.
    argued = [outcome for outcome in found if outcome.verdict != "equal"]
    assert [(outcome.name, outcome.verdict) for outcome in argued] == [("bk:340", "argued"), ("bk:719", "argued")]
    assert all(outcome.detail.startswith(wire_bookie.OVER_LIMIT) for outcome in argued)
    requests = {
        name: sum(line.event == "sent" for line in lines(RECORDED / f"{name}.jsonl.gz", "bk"))
        for name in ("bk", "pulsar")
    }
    # Each request, and the store of each recording.
    assert Counter(outcome.name.split(":")[0] for outcome in found) == {
        "bk": requests["bk"] + 1,
        "pulsar": requests["pulsar"] + 1,
        "raw-frames": 31,
    }


def test_only_frames_over_the_limit_may_be_answered_where_the_original_closed() -> None:
    over, refused = 5_500_000, bytes.fromhex("0201000000000064" + "00" * 16)
    octets = over.to_bytes(4, "big") + b"\2\1"

    def verdict(octets: bytes, raw: bool, answer: bytes | None) -> str:
        return str(wire_bookie._not_closed(Line(1, "bk", 1, "sent", octets, len(octets), raw=raw), answer)[0])

    assert verdict(octets, True, refused) == "argued"
    assert verdict(octets, True, None) == "equal"
    assert verdict(octets, True, refused.replace(b"\x64", b"\0")) == "different"
    assert verdict((5_000_000).to_bytes(4, "big") + octets[4:], True, refused) == "different"
    assert verdict(octets, False, refused) == "different"


def answers(records: list[dict[str, Any]], summary: str) -> list[dict[str, Any]]:
    return [record for record in records if record.get("dir") == "S" and summary in record.get("s", "")]


def flipped(octets: bytes) -> bytes:
    return octets[:-1] + bytes([octets[-1] ^ 1])


@pytest.mark.long
@pytest.mark.parametrize(
    ("summary", "change"),
    [
        ("v3 ADD", flipped),
        ("v2 READ", flipped),
        ("v3 READ_LAC", flipped),
        ("v3 LIST_OF_ENTRIES", flipped),
        ("v2 ADD flags=0 rc=104", lambda octets: octets[:4] + bytes(4) + octets[8:]),
        ("maxLAC=4 lacUpdateTimestamp", lambda octets: octets.replace(b"\x28\x04\x30", b"\x28\x05\x30")),
    ],
)
def test_an_answer_that_differs_is_noticed(tmp_path: Path, summary: str, change: Callable[[bytes], bytes]) -> None:
    records = recorded("bk")
    answer = answers(records, summary)[0]
    answer["b64"] = base64.b64encode(change(base64.b64decode(answer["b64"]))).decode()
    assert len(replayed(tmp_path, "bk", records)) >= 1


def test_an_answer_that_nobody_got_is_noticed(tmp_path: Path) -> None:
    records = recorded("bk")
    answer = answers(records, "v3 ADD")[0]
    asked = next(r for r in records if r.get("dir") == "C" and r.get("s", "").startswith("v3 ADD txn=1 "))
    records.remove(asked)
    found = replayed(tmp_path, "bk", records[: records.index(answer) + 1])
    assert any("nobody asked" in outcome.detail or "closed" in outcome.detail for outcome in found)


def test_a_connection_that_was_to_be_closed_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "raw-frames.txt").write_text("read 0  0202000000000000000bdb280000000000000000 -> closed\n")
    (read,) = [each for each in of_bookies(tmp_path) if each.name == "raw-frames:1"]
    assert read.verdict == "different"


def test_no_recording_is_no_sample(tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"scenario": "x"}\n')
    assert list(of_bookies(tmp_path)) == []
