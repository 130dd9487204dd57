"""The page on testing: its programs are run in its order, and print what it says they do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bookstand.testing import Faults, __all__, strategies

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "testing.md").read_text()
ANYTHING = "…"


def blocks() -> list[tuple[str, str]]:
    """Language and content of each, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def commands(console: str) -> list[tuple[str, list[str]]]:
    """Each command with the lines it is said to print, others in between."""
    found: list[tuple[str, list[str]]] = []
    for line in console.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def pattern(text: str) -> str:
    """``…`` stands for anything on the line."""
    return ".*?".join(map(re.escape, text.split(ANYTHING)))


def complete(command: str, before: str) -> str:
    """What a command leaves out is what the one before it has printed."""
    for word in re.findall(rf'\w+="[^"]*{ANYTHING}[^"]*"', command):
        printed = re.search(pattern(word), before)
        assert printed is not None, f"{word} was not printed"
        command = command.replace(word, printed[0])
    return command


def run(command: str, folder: Path) -> str:
    """A command line as the page has it, in the folder."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("BOOKSTAND_", "PYTEST_"))},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONWARNINGS": "error",
        "COLUMNS": "200",
    }
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.timeout(1200)
def test_the_tour(tmp_path: Path) -> None:
    """In one test, since each step stands on those before it."""
    output = ""
    steps = 0
    for language, content in blocks():
        if language == "python":
            first = re.match(r"# (\w+\.py)\n", content)
            assert first is not None, f"a program without a name: {content[:50]!r}"
            (tmp_path / first[1]).write_text(content)
            continue
        assert language == "console"
        for command, lines in commands(content):
            output = run(complete(command, output), tmp_path)
            rest = output
            for line in lines:
                found = re.search(pattern(line), rest)
                assert found is not None, f"$ {command}\nhas not printed {line!r} (in this order) in:\n{output}"
                rest = rest[found.end() :]
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


def test_a_line_that_is_not_printed_would_be_noticed() -> None:
    assert re.search(pattern("a … c"), "x a b c")
    assert not re.search(pattern("a … c"), "a\nc")
    assert commands("$ one\n1\n$ two\n") == [("one", ["1"]), ("two", [])]
    assert complete('A="v1:…" go', 'so: A="v1:x=2" there') == 'A="v1:x=2" go'
