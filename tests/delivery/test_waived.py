"""The cases that are waived stand in the documentation, with the reasons."""

from __future__ import annotations

import re

from tests.delivery.test_bucket_cases import WAIVED
from tests.kit import ROOT

NACKS = {11, 16}


def test_every_waived_case_has_its_row() -> None:
    page = (ROOT / "docs" / "differences.md").read_text()
    section = page[page.index("## Waived cases of delayed messages and negative acknowledgments") :].split("\n## ")[0]
    rows = dict(re.findall(r"^\| ((?:delayed|nacks) \d+) \| (.+) \|$", section, re.M))
    assert {name: why for name, why in rows.items() if name.startswith("delayed")} == {
        f"delayed {number}": why for number, why in WAIVED.items()
    }
    assert {name for name in rows if name.startswith("nacks")} == {f"nacks {number}" for number in NACKS}


def test_every_other_case_has_a_test_with_its_number() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "delivery").glob("test_bucket_*.py"))
    named = re.findall(r"def test_cases?_(\d+)(?:_to_(\d+))?_", tests)
    found = {number for first, last in named for number in range(int(first), int(last or first) + 1)}
    assert set(range(1, 56)) - set(WAIVED) <= found
