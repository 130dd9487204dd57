"""The shell completes: the protocols of the shells as they are spoken, and a real bash where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bookstand.pipeline.execution.cli import JOBS
from bookstand.tools.main import COMMANDS
from tests.kit import PATIENCE
from tests.tools.child import environment

BOOKSTAND = shutil.which("bookstand", path=str(Path(sys.executable).parent)) or ""
FIRST, *_ = COMMANDS
PATHS: list[str] = []
"""Nothing is said: the shell completes paths."""

LINES = {
    "bookstand ": [*dict.fromkeys(name.split()[0] for name in COMMANDS), "spark"],
    "bookstand re": ["report", "repair"],
    "bookstand mig": ["migrate"],
    "bookstand migrate ": ["cursors", "snapshots"],
    "bookstand migrate cursors --take": ["--take-over"],
    "bookstand import": ["import-bookie"],
    "bookstand spark ": list(JOBS),
    "bookstand spark re": ["rebuild-delayed", "recut"],
    "bookstand repair --d": ["--dry-run"],
    "bookstand ls my-store --me": ["--metadata"],
    "bookstand --vers": ["--version"],
    "bookstand ls ": PATHS,
    "bookstand repair my": PATHS,
    "bookstand ls bookie --metadata ": PATHS,
}


def asked(**variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [BOOKSTAND], env=environment(**variables), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize("line", LINES)
def test_bash(line: str) -> None:
    """It completes paths by itself where nothing is printed."""
    place = str(len(line.split()) - (not line.endswith(" ")))
    code, out = asked(_BOOKSTAND_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=place)
    assert code == 0
    assert out.split() == LINES[line]


@pytest.mark.parametrize("line", LINES)
def test_zsh(line: str) -> None:
    code, out = asked(_BOOKSTAND_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line)
    assert code == 0
    if LINES[line] == PATHS:
        assert out == "_files\n"
    else:
        assert out.startswith("_arguments '*: :((")
        assert re.findall(r'^(?:_.*\(\()?"([^"]+)"', out, re.MULTILINE) == LINES[line]


@pytest.mark.long
@pytest.mark.parametrize("line", LINES)
def test_fish(line: str) -> None:
    """It asks first whether there is anything to say, and completes paths where there is not."""
    variables = {"_BOOKSTAND_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": line}
    code, _ = asked(**variables, _TYPER_COMPLETE_FISH_ACTION="is-args")
    assert code == (1 if LINES[line] == PATHS else 0)
    code, out = asked(**variables, _TYPER_COMPLETE_FISH_ACTION="get-args")
    assert [row.split("\t")[0] for row in out.splitlines() if row] == LINES[line]


def test_what_a_command_is_for_is_told() -> None:
    _, out = asked(
        _BOOKSTAND_COMPLETE="complete_fish", _TYPER_COMPLETE_ARGS="bookstand ", _TYPER_COMPLETE_FISH_ACTION="get-args"
    )
    told = dict(row.split("\t") for row in out.splitlines())
    for name, what in COMMANDS.items():
        assert told[name.split()[0]]
        assert name.startswith("migrate ") or what.startswith(told[name].rstrip("."))
    assert told["migrate"] == "migrate cursors, migrate snapshots"


def script(shell: str, home: Path, *options: str) -> str:
    done = subprocess.run(
        [BOOKSTAND, *options, shell],
        env=environment(_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1", HOME=str(home)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", ".bash_completions/bookstand.sh"),
        ("zsh", ".zfunc/_bookstand"),
        ("fish", ".config/fish/completions/bookstand.fish"),
    ],
)
def test_what_is_installed(tmp_path: Path, shell: str, file: str) -> None:
    shown = script(shell, tmp_path, "--show-completion")
    assert f"complete_{shell}" in shown
    assert list(tmp_path.iterdir()) == []
    script(shell, tmp_path, "--install-completion")
    assert (tmp_path / file).read_text().strip() == shown.strip()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_real_bash(tmp_path: Path) -> None:
    """With what it is told to source, as its user would have it."""
    completion = tmp_path / "completion"
    completion.write_text(script("bash", tmp_path, "--show-completion"))
    program = f"""
source {completion}
complete -p bookstand
COMP_WORDS=(bookstand re)
COMP_CWORD=1
_bookstand_completion bookstand
echo "${{COMPREPLY[@]}}"
"""
    folder = str(Path(BOOKSTAND).parent)
    variables = environment()
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", program],
        env={**variables, "PATH": f"{folder}:{variables['PATH']}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout.splitlines() == ["complete -o default -F _bookstand_completion bookstand", "report repair"]
