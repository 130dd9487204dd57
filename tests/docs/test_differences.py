"""docs/differences.md and the code say the same: every rule has its row, every row its rule, every case its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.replay.rules import RULES
from tests.replay.samples import LIMBO, STRICTER

ROOT = Path(__file__).resolve().parent.parent.parent
CASES = range(1, 87)
REASONS = ("several replicas", "a network", "the JVM")


def sections() -> dict[str, list[list[str]]]:
    """The rows of the table in each section, without its heading, as lists of cells."""
    found: dict[str, list[list[str]]] = {}
    for part in (ROOT / "docs" / "differences.md").read_text().split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
        found[title] = [[cell.strip() for cell in row] for row in rows[2:]]
    return found


SECTIONS = sections()
TRACES = SECTIONS["Where the recordings of BookKeeper are argued"]
SAMPLES = SECTIONS["Ledger metadata and codes"]
WAIVED = SECTIONS["Waived cases"]


def test_every_rule_for_traces_has_its_row() -> None:
    assert sorted((row[0].strip("`"), row[1]) for row in TRACES) == sorted((rule.name, rule.surprise) for rule in RULES)


def test_every_rule_for_samples_has_its_row() -> None:
    source = (ROOT / "tests" / "replay" / "samples.py").read_text()
    # A detail of what is argued begins with its rule's name.
    named = {LIMBO.partition(":")[0], *re.findall(r'"argued", f"([a-z-]+): ', source)}
    assert len(re.findall(r'"argued", ', source)) == len(named)
    assert {row[0].strip("`") for row in SAMPLES} == named


def test_the_row_of_the_stricter_reading_has_all_of_its_reasons() -> None:
    (row,) = [row for row in SAMPLES if row[0] == "`stricter-metadata`"]
    words = {"but only": "length of a part", "varint": "varint", "field number 0": "number 0", "codec": "UTF-8"}
    assert len(words) == len(STRICTER)
    for reason in STRICTER:
        assert words[next(word for word in words if reason.startswith(word))] in row[2]


@pytest.mark.parametrize("row", TRACES + SAMPLES, ids=lambda row: row[0].strip("`"))
def test_rows_are_whole(row: list[str]) -> None:
    assert len(row) == 5
    assert all(row), row


def cases_of(cell: str) -> list[int]:
    first, _, last = cell.partition("–")
    return list(range(int(first), int(last or first) + 1))


def cases_with_tests() -> set[int]:
    sources = (ROOT / "tests" / "ledger").glob("test_cases_*.py")
    return {int(number) for file in sources for number in re.findall(r"^def test_case_(\d+)_", file.read_text(), re.M)}


def test_every_case_is_tested_or_waived() -> None:
    nothing = {case for row in WAIVED if row[3] == "nothing" for case in cases_of(row[0])}
    tested = cases_with_tests()
    assert tested | nothing == set(CASES)
    assert not tested & nothing


@pytest.mark.parametrize("row", WAIVED, ids=lambda row: row[0])
def test_waived_cases_have_a_reason(row: list[str]) -> None:
    assert len(row) == 4
    assert row[2].startswith(REASONS), row[2]
    assert set(cases_of(row[0])) <= set(CASES)
