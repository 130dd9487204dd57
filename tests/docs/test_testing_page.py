"""The page on testing: its programs are run in its order, and print what it says they do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from bookstand.testing import Faults, __all__, strategies
from tests.docs.steps import ROOT, blocks, check_printed, complete, environment

PAGE = (ROOT / "docs" / "testing.md").read_text()


def commands(console: str) -> list[tuple[str, list[str]]]:
    """Each command with the lines it is said to print, others in between."""
    found: list[tuple[str, list[str]]] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def run(command: str, folder: Path) -> str:
    """A command line as the page has it, in the folder."""
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment(), capture_output=True, text=True, timeout=600, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_tour(tmp_path: Path) -> None:
    """In one test, since each step stands on those before it."""
    output = ""
    steps = 0
    for language, content in blocks(PAGE):
        if language == "python":
            first = re.match(r"# (\w+\.py)\n", content)
            assert first is not None, f"a program without a name: {content[:50]!r}"
            (tmp_path / first[1]).write_text(content)
            continue
        assert language == "console"
        for command, lines in commands(content):
            output = run(complete(command, output), tmp_path)
            check_printed(command, lines, output)
            steps += 1
    assert steps >= 12


def table(heading: str) -> dict[str, str]:
    """The first table below a heading."""
    section = PAGE.split(f"### {heading}\n")[1].split("\n#")[0]
    return dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", section, re.MULTILINE))


@pytest.mark.parametrize(("heading", "there_are"), [("Operations", Faults.operations()), ("Points", Faults.points())])
def test_the_tables_are_what_there_is(heading: str, there_are: dict[str, str]) -> None:
    assert table(heading) == dict(there_are)


def test_every_tool_is_named() -> None:
    for name in (*__all__, *strategies.__all__, "perform", "check_survivors", "CrashLab", "--bookstand-seed"):
        if name != "UnfiredFaultsError":
            assert re.search(rf"`[^`]*\b{name.lstrip('-')}\b|^from .*\b{name.lstrip('-')}\b", PAGE, re.MULTILINE), name


def test_commands_are_told_from_what_they_print() -> None:
    assert commands("$ one\n1\n$ two\n") == [("one", ["1"]), ("two", [])]
