"""Every recorded single value gives what the original made of it; each comparer notices when it does not."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.replay.samples import COMPARERS, compare_folder

RECORDED = Path(__file__).resolve().parent.parent / "data" / "bookkeeper"


def test_all_samples_are_equal_or_argued() -> None:
    found = list(compare_folder(RECORDED))
    assert [outcome for outcome in found if outcome.verdict == "different"] == []
    assert [outcome.name for outcome in found if outcome.verdict == "argued"] == ["codes.json:codes:-108"]
    assert Counter(outcome.name.split(":")[0] for outcome in found) == {
        "stored_entries.jsonl": 40,
        "ledger_metadata.jsonl": 36,
        "ledger_metadata_malformed.jsonl": 93,
        "codes.json": 38 + 13 + 36,
    }


def _first_sample(name: str) -> dict[str, Any]:
    sample: dict[str, Any] = json.loads(gzip.decompress((RECORDED / f"{name}.gz").read_bytes()).split(b"\n")[0])
    return sample


@pytest.mark.parametrize(
    ("name", "change", "noticed"),
    [
        ("stored_entries.jsonl", {"cumulative_length": 4}, "stored bytes"),
        ("stored_entries.jsonl", {"master_key_hex": ""}, "master key"),
        ("stored_entries.jsonl", {"v2_flags": 1}, "v2 add frame"),
        ("stored_entries.jsonl", {"explicit_lac_body_b64": ""}, "explicit LAC body"),
        (
            "stored_entries.jsonl",
            {"verify": [{"what": "intact", "error": -5, "last_confirmed": {"error": -5}}]},
            "intact",
        ),
        ("ledger_metadata.jsonl", {"stores_ctime": True}, "bytes"),
        ("ledger_metadata.jsonl", {"parsed": {"exception": "java.io.IOException"}}, "parsed: read as"),
        ("ledger_metadata_malformed.jsonl", {"parsed": {"value": {}, "to_safe_string": ""}}, "refused"),
    ],
)
def test_a_sample_that_differs_is_noticed(tmp_path: Path, name: str, change: dict[str, Any], noticed: str) -> None:
    (tmp_path / name).write_text(json.dumps(_first_sample(name) | change) + "\n")
    (outcome,) = compare_folder([tmp_path / name])
    assert outcome.verdict == "different"
    assert noticed in outcome.detail


def test_damage_that_only_we_refuse_is_argued(tmp_path: Path) -> None:
    """The ensemble's own length is one byte short of its fields; the original reads on regardless."""
    data = b"BookieMetadataFormatVersion\t3\n\x10\x08\x01\x10\x01\x18\x00(\x012\x05\n\x02b1\x10\x00"
    sample = {"what": "", "bytes_b64": base64.b64encode(data).decode(), "parsed": {"value": {}}}
    (tmp_path / "ledger_metadata_malformed.jsonl").write_text(json.dumps(sample))
    (outcome,) = compare_folder(tmp_path)
    assert outcome.verdict == "argued"
    assert outcome.detail.startswith("stricter-metadata: metadata of ledger 1: ")


def test_a_code_that_differs_is_noticed(tmp_path: Path) -> None:
    row = {"code": -7, "create": {"class": "BKNoSuchLedgerExistsException", "code": -8}}
    classes = [{"class": "BKReadException", "code": -2}]
    (tmp_path / "codes.json").write_text(json.dumps({"codes": [row], "unknown_codes": [], "classes": classes}))
    assert [outcome.verdict for outcome in compare_folder(tmp_path)] == ["different", "different"]


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("")
    assert list(compare_folder(tmp_path)) == []
    assert "README.md" not in COMPARERS
