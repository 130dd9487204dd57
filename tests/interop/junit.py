"""Tests in JUnit on a served store, run as docs/how-to/junit-on-bookstand.md says."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from xml.etree import ElementTree

from tests.docs.steps import Shell, environment, walk
from tests.interop.java import BUILD, ROOT
from tests.interop.questions import Question

GROUP = "tests in JUnit on a served store, as their page has them"
PAGE = ROOT / "docs" / "how-to" / "junit-on-bookstand.md"
_TESTS = (
    "linesAreReadInOrder",
    "appendedLinesSurvivePowerCut(String, int)[1]",
    "appendedLinesSurvivePowerCut(String, int)[2]",
    "appendedLinesSurvivePowerCutAtAnyTime",
)
_WRONG = ("failure", "error", "skipped")


def questions() -> list[Question]:
    """What is expected of the page, and of each test."""
    return [Question(name, "", {"result": "passed"}) for name in (PAGE.name, *_TESTS)]


def answers() -> Iterator[dict[str, str]]:
    folder = BUILD / "junit"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "here").mkdir(parents=True)
    (folder / "bookstand").symlink_to(ROOT)
    with Shell(folder / "here", environment()) as shell:
        try:
            walk(PAGE.read_text(), shell)
        except AssertionError as error:
            yield {"error": str(error)}
        else:
            yield {"result": "passed"}
    results: dict[str, str] = {}
    for report in (folder / "here" / "journal" / "target" / "surefire-reports").glob("*.xml"):
        for case in ElementTree.parse(report).iter("testcase"):
            results[case.get("name", "")] = " ".join(part.tag for part in case if part.tag in _WRONG) or "passed"
    for name in _TESTS:
        yield {"result": results.get(name, "not run")}
