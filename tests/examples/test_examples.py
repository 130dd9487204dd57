"""The examples run, each by itself, and print what they are about."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

PRINTS = {
    "bookkeeper_stand_in": [r"^3 passed"],
    "delayed_queue": [
        r"^ann: your order has arrived$",
        r"^bob: busy \(try 1\)$",
        r"^bob: busy \(try 2\)$",
        r"^bob: your table is booked$",
        r"^nobody: no such address \(try 4\)$",
        r"^dora: happy new year$",
        r"^undeliverable: 'are you there\?' to nobody$",
    ],
    "finding_a_crash_bug": [
        r"^acknowledges_too_early:$",
        r"^AssertionError: .*: neither order nor invoice$",
        r"^the power goes after \d+ of \d+ file operations",
        r"BOOKSTAND_CRASH=",
        r"^acknowledges_last: \d+ crashes in ",
    ],
    "inspecting_a_cursor": [
        r"^  \(1:19\.\.1:99\]$",
        r"^backlog: 126, \d+ bytes of state$",
        r"^history, newest first:$",
        r"^first unacknowledged entry at .*: 0:40, now: 0:61$",
        r"^acknowledged since in ledger 1: 80, 20 to 99$",
    ],
}


def test_each_has_its_expectations() -> None:
    assert {example.stem for example in EXAMPLES} == PRINTS.keys()


@pytest.mark.long
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_it_runs(example: Path, tmp_path: Path) -> None:
    """Started somewhere else, and leaving nothing there."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BOOKSTAND_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        env=kept | {"TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    for pattern in PRINTS[example.stem]:
        assert re.search(pattern, done.stdout, re.MULTILINE), f"{pattern} is not in\n{done.stdout}"
    # pytest keeps the folders of its last runs.
    assert [left.name for left in tmp_path.iterdir() if not left.name.startswith("pytest-of-")] == []


def test_the_one_for_pytest_needs_no_more_than_its_extra(tmp_path: Path) -> None:
    """Though it lies in a checkout, whose configuration asks for plugins that the extra does not bring."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BOOKSTAND_", "PYTEST_"))}
    only = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "bookstand.testing.pytest_plugin"}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "bookkeeper_stand_in.py"],
        cwd=tmp_path,
        env=kept | only | {"TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^3 passed", done.stdout, re.MULTILINE)


def test_the_readme_names_each() -> None:
    readme = (ROOT / "README.md").read_text()
    assert set(re.findall(r"\(examples/(\w+)\.py\)", readme)) == PRINTS.keys()
