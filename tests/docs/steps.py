"""Pages whose blocks build upon each other: files to be saved, commands, and what these print."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
ANYTHING = "…"
SHOWN = "java"
"""Programs in it are shown from files that are there."""


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and content of each, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


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


def check_printed(command: str, lines: list[str], output: str) -> None:
    """That the lines are in the output, in their order, others in between."""
    rest = output
    for line in lines:
        found = re.search(pattern(line), rest)
        assert found is not None, f"$ {command}\nhas not printed {line!r} (in this order) in:\n{output}"
        rest = rest[found.end() :]


def environment(**more: str) -> dict[str, str]:
    """That of somebody who has bookstand installed, and in which no test is running."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BOOKSTAND_", "PYTEST_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "PYTHONWARNINGS": "error", "COLUMNS": "200", **more}


class Shell:
    """One bash for all commands of a page: it stays in a folder that one has gone to, and keeps what it was told."""

    _END = "== the end of the command =="

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=dict(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> str:
        """What it prints on stdout and stderr."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{{\n{command}\n}} </dev/null\necho; echo '{self._END}'\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line.rstrip("\n") == self._END:
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"the shell has ended in:\n{command}\n{''.join(lines)}")

    @property
    def folder(self) -> Path:
        return Path(self.run("pwd").strip())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # With whatever is left running in the background.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def walk(page: str, shell: Shell) -> int:
    """Do what the page says: save its programs, run its commands, and compare what is printed with the ``text`` below
    them. Returns how many blocks of commands there were."""
    output = command = ""
    steps = 0
    for language, content in blocks(page):
        if language == "python":
            named = re.match(r"# (\w+\.py)\n", content)
            assert named is not None, f"a program without a name: {content[:50]!r}"
            (shell.folder / named[1]).write_text(content)
        elif language == "sh":
            command = complete(content, output)
            output = shell.run(command)
            assert "Traceback" not in output or "pytest" in command, f"{command}\n{output}"
            steps += 1
        elif language != SHOWN:
            assert language == "text", f"nobody knows what to do with {language}"
            check_printed(command, content.splitlines(), output)
    return steps
