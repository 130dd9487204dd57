"""Recorded bitmaps, snapshots and ledgers are all equal; each comparer notices when something recorded is changed."""

from __future__ import annotations

import base64
import copy
import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.replay import bitmaps
from tests.replay.__main__ import main

ROOT = Path(__file__).resolve().parent.parent.parent
RECORDED = ROOT / "tests" / "data" / "bitmaps"
Sample = dict[str, Any]


def lines_of(name: str) -> list[Sample]:
    return [json.loads(line) for line in gzip.decompress((RECORDED / f"{name}.jsonl.gz").read_bytes()).splitlines()]


def test_all_samples_are_equal() -> None:
    found = list(bitmaps.replay([RECORDED]))
    assert [outcome for outcome in found if outcome.verdict != "equal"] == []
    assert Counter(outcome.name.split(":")[0] for outcome in found) == {
        "roaring": 41,
        "pyroaring": 22,
        "roaring64": 9,
        "snapshots": 56,
        "bookie": 8,
    }


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bitmaps", str(RECORDED / "bookie.jsonl.gz"), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bitmaps: equal 8, argued 0, different 0"
    assert json.loads(lines[-1]) == {"equal": 8, "argued": 0, "different": 0}


def test_files_are_told_by_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "any.jsonl").write_text("\n".join(json.dumps(line) for line in lines_of("roaring")[:2]))
    (tmp_path / "trace.jsonl").write_text('{"id": "hand-001", "kind": "hand", "settings": {}, "ops": []}\n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "broken.jsonl").write_text("{")
    (tmp_path / "list.jsonl").write_text("[1]")
    (tmp_path / "README.md").write_text("{}")
    assert [outcome.name for outcome in bitmaps.replay([tmp_path])] == ["any:roaring-000", "any:roaring-002"]


# -- a changed sample fails ------------------------------------------------------------------------------------------


def flipped(text: str) -> str:
    data = bytearray(base64.b64decode(text))
    data[-1] ^= 1
    return base64.b64encode(data).decode()


def changed(value: Any) -> Any:
    """Something else of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, list):
        return value[:-1]
    return flipped(value)


def verdict(sample: Sample) -> str:
    compare = bitmaps.comparer(sample)
    assert compare is not None
    return bitmaps.outcome("sample", sample, compare).verdict


def sample_of(name: str, wanted: Callable[[Sample], Any]) -> Sample:
    return next(line for line in lines_of(name) if wanted(line))


ROARING = ("as_built", "run_optimized", "run_optimize_changed", "cardinality", "ranges")


@pytest.mark.parametrize("key", ROARING)
def test_every_field_of_a_bitmap_counts(key: str) -> None:
    sample = sample_of("roaring", lambda line: line["cardinality"] > 900)
    assert verdict(sample) == "equal"
    sample[key] = changed(sample[key])
    assert verdict(sample) == "different"


@pytest.mark.parametrize("bits64", [False, True])
@pytest.mark.parametrize("key", ["plain", "run_optimized", "ranges", "java_plain", "java_run_optimized"])
def test_every_field_of_what_the_original_read_counts(key: str, bits64: bool) -> None:
    sample = sample_of("pyroaring", lambda line: line["bits64"] == bits64 and len(line["ranges"]) > 1)
    assert verdict(sample) == "equal"
    sample[key] = {**sample[key], "equal": False} if key.startswith("java") else changed(sample[key])
    assert verdict(sample) == "different"


@pytest.mark.parametrize("form", ["as_built", "run_optimized"])
def test_every_form_of_64_bits_counts(form: str) -> None:
    sample = sample_of("roaring64", lambda line: line["cardinality"] == 1000)
    assert verdict(sample) == "equal"
    of_32_bits = sample_of("roaring", lambda line: line["cardinality"] > 900)["run_optimized"]
    for key in ("navigable_portable", "navigable_legacy", "roaring64bitmap"):
        wrong = copy.deepcopy(sample)
        wrong[form][key] = of_32_bits
        assert verdict(wrong) == "different", key
    wrong = copy.deepcopy(sample)
    wrong[form]["read_by_32_bit_reader"]["navigable_portable"] = "ok"
    assert verdict(wrong) == "different"


def test_a_bitmap_that_is_undecided_is_compared_too() -> None:
    """Three in a row take as many bytes either way."""
    sample = sample_of("roaring", lambda line: line["ranges"] == [[0, 3]])
    assert verdict(sample) == "equal"
    sample["run_optimized"] = lines_of("roaring")[1]["run_optimized"]
    assert verdict(sample) == "different"


SMALL = ("metadata", "metadata_truth", "segments_truth", "indexes", "time_step_per_segment_ms", "bucket_key")


@pytest.mark.parametrize("key", [*SMALL, "segments", "max_indexes_per_segment"])
def test_every_field_of_a_snapshot_counts(key: str) -> None:
    sample = sample_of(
        "snapshots",
        lambda line: line["indexes"] > 3 * len(line["segments"]) > 6 and line["max_indexes_per_segment"] > 1,
    )
    assert verdict(sample) == "equal"
    if key in ("time_step_per_segment_ms", "max_indexes_per_segment"):
        sample[key] = 1
    elif key == "metadata_truth":
        sample[key]["segments"][1]["bitmaps"][0][1][0][1] += 1
    elif key == "segments_truth":
        sample[key][1][0][2] += 1
    elif key == "bucket_key":
        sample[key] += "_"
    else:
        sample[key] = changed(sample[key])
    assert verdict(sample) == "different"


@pytest.mark.parametrize("key", ["metadata_truth_sha256", "segments_truth_sha256"])
def test_digests_of_large_snapshots_count(key: str) -> None:
    sample = sample_of("snapshots", lambda line: key in line)
    assert verdict(sample) == "equal"
    sample[key] = sample[key][::-1] if isinstance(sample[key], str) else [one[::-1] for one in sample[key]]
    assert verdict(sample) == "different"


@pytest.mark.parametrize("key", ["metadata", "segments", "metadata_truth", "segments_truth"])
def test_every_field_of_what_was_put_together_from_messages_counts(key: str) -> None:
    sample = sample_of("snapshots", lambda line: line["id"].startswith("proto") and line["indexes"])
    assert verdict(sample) == "equal"
    if key == "metadata_truth":
        sample[key]["segments"][0]["max"] += 1
    elif key == "segments":
        sample[key] = [flipped(one) for one in sample[key]]
    else:
        sample[key] = changed(sample[key])
    assert verdict(sample) == "different"


def test_every_field_of_a_ledger_counts() -> None:
    sample = sample_of("bookie", lambda line: len(line["buckets"]) > 1)
    assert verdict(sample) == "equal"
    wrongs: list[Sample] = []
    for key in sample["buckets"][1]["ledger_metadata"]:
        wrong = copy.deepcopy(sample)
        del wrong["buckets"][1]["ledger_metadata"][key]
        wrongs.append(wrong)
    for key in ("length_from_storage", "entries"):
        wrong = copy.deepcopy(sample)
        wrong["buckets"][1][key] = changed(wrong["buckets"][1][key])
        wrongs.append(wrong)
    for change in (lambda line: line.update(topic="x"), lambda line: line.update(cursor="x")):
        wrongs.append(copy.deepcopy(sample))
        change(wrongs[-1])
    wrongs.append(copy.deepcopy(sample))
    wrongs[-1]["buckets"][0]["entries"][1] = flipped(wrongs[-1]["buckets"][0]["entries"][1])
    wrongs.append(copy.deepcopy(sample))
    wrongs[-1]["buckets"][0]["property_key"] += "0"
    assert {verdict(wrong) for wrong in wrongs} == {"different"}
