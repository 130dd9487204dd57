"""Help as a manual page, and its examples, each of which is run as it stands."""

from __future__ import annotations

import shlex
from importlib import import_module
from pathlib import Path

import pytest

from bookstand.tools.exit_codes import FINE, MEANINGS
from bookstand.tools.main import COMMANDS
from tests.tools import kit
from tests.tools.kit import run
from tests.tools.snapshots import compare

MODULES = {name: import_module(f"bookstand.tools.commands.{name.replace('-', '_')}") for name in COMMANDS}
EXAMPLES = [(name, line) for name, module in MODULES.items() for line in module.EXAMPLES]


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line.removeprefix("bookstand ") for _, line in EXAMPLES])
def test_examples_run(bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, line: str) -> None:
    """In a folder of their own, for some write; ``> file`` is left to the shell."""
    kit.furnish(tmp_path, bench)
    monkeypatch.chdir(tmp_path)
    program, command, *arguments = shlex.split(line.partition(" > ")[0])
    assert (program, command) == ("bookstand", name)
    result = run(command, *arguments)
    assert result.code == FINE, result.err
    assert result.out
    if "--json" in arguments:
        assert result.lines if "records" in line or command == "cat" else result.json


@pytest.mark.parametrize("name", ["", *COMMANDS])
@pytest.mark.parametrize("columns", [80, 160])
def test_help(name: str, columns: int) -> None:
    text = run(*([name] if name else []), "--help", columns=columns).out
    compare(f"help-{name or 'bookstand'}", columns, text)
    assert all(f"  {code} " in text for code in MEANINGS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_told(name: str) -> None:
    text = run(name, "--help", columns=80).out
    titles = [title for title in ("Arguments", "Options", "Examples", "Exit codes") if f"\n{title}:\n" in text]
    assert titles[-3:] == ["Options", "Examples", "Exit codes"]
    assert ("Arguments" in titles) == (name != "demo")
    parts = [text.index(f"\n{title}:\n") for title in titles]
    assert parts == sorted(parts)
    assert "--json" in text
    assert text.startswith(f"Usage: bookstand {name} [OPTIONS]")
    assert run(name, "-h", columns=80).out == text


def test_no_arguments_print_the_help_as_an_error() -> None:
    result = run(columns=80)
    assert (result.code, result.out) == (2, "")
    assert result.err == run("--help", columns=80).out


def test_version() -> None:
    import bookstand

    assert run("--version").out == f"bookstand {bookstand.__version__}\n"
