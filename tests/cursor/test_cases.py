"""That each case of the reference is a test, or is waived for a reason."""

from __future__ import annotations

import re
from pathlib import Path

CASES = [*map(str, range(1, 77)), "69a", "69b", "69c"]

WAIVED = {
    "48": "a session with a metadata server that is lost and comes back: the metadata is in the store itself",
}

_TEST = re.compile(r"^def test_case_(\w+?)\(", re.MULTILINE)
_NUMBER = re.compile(r"\d+[a-c]?")


def numbers_of_tests() -> set[str]:
    found: set[str] = set()
    for file in Path(__file__).parent.glob("test_cases_*.py"):
        for name in _TEST.findall(file.read_text()):
            for word in name.split("_"):
                if not _NUMBER.fullmatch(word):
                    break
                found.add(word)
    return found


def test_every_case_is_a_test_or_waived() -> None:
    assert sorted(set(CASES) - numbers_of_tests() - set(WAIVED)) == []


def test_what_is_waived_has_a_reason_and_no_test() -> None:
    assert all(WAIVED.values())
    assert not set(WAIVED) & numbers_of_tests()
    assert not set(WAIVED) - set(CASES)


def test_no_other_numbers() -> None:
    assert not numbers_of_tests() - set(CASES)
