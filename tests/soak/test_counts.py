"""The counts of a session are written when it ends, whatever ran of it and however it ended."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.counts import ENOUGH
from tests.kit import own_environment

TESTS = """
def test_one(counts):
    counts.add("kills", 3)

def test_two(counts):
    counts.add("kills", 2, failures=1, seeds=[17])
    counts.add("histories", 5)
    raise AssertionError("it fails")

def test_three():
    pass
"""


@pytest.fixture
def session(tmp_path):
    """Runs pytest on TESTS; what is in the report afterwards."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.counts"]\n')
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def run(*arguments):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        ended = subprocess.run(
            command, cwd=tmp_path, env=own_environment(), capture_output=True, text=True, check=False
        )
        file = tmp_path / "build/counts.json"
        return ended.stdout, json.loads(file.read_text()) if file.exists() else None

    return run


def test_kinds_are_summed_up_also_where_tests_fail(session):
    said, counted = session()
    assert counted == {
        "histories": {"cases": 5, "failures": 0, "seeds": []},
        "kills": {"cases": 5, "failures": 1, "seeds": [17]},
    }
    assert "1 failed" in said
    assert "histories" in said


def test_processes_that_share_the_tests(session):
    assert session("-n", "2")[1] == session()[1]


def test_only_some_of_the_tests(session):
    assert session("-k", "one")[1] == {"kills": {"cases": 3, "failures": 0, "seeds": []}}
    # Nothing counted is nothing known.
    assert session("-k", "three")[1] == {"kills": {"cases": 3, "failures": 0, "seeds": []}}


def test_without_campaigns_there_is_no_report(session):
    assert session("-k", "three")[1] is None


@pytest.mark.long
@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_session_of_all_tests_fails_if_a_campaign_was_too_small(tmp_path, processes):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["tests.counts"]\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = .\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", processes]

    def run(cases, *arguments):
        (tmp_path / "test_it.py").write_text(
            f'def test_one(counts):\n    counts.add("kills", {cases})\n\n\ndef test_two():\n    pass\n'
        )
        ended = subprocess.run(
            [*command, *arguments], cwd=tmp_path, env=own_environment(), capture_output=True, text=True, check=False
        )
        return ended.returncode, "kills: " in ended.stdout

    assert run(ENOUGH["kills"] - 1) == (1, True)
    if processes != "0":
        return
    assert run(ENOUGH["kills"]) == (0, False)
    # Who chooses some of them wants no more.
    assert run(1, "-k", "one") == (0, False)
    assert run(1, "test_it.py") == (0, False)
