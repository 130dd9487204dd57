"""Help as a manual page, and its examples, each of which is run as it stands."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from bookstand.tools.cli.exit_codes import FINE, MEANINGS
from bookstand.tools.main import COMMANDS, module_of
from tests.tools.kit import run
from tests.tools.snapshots import compare

MODULES = {name: import_module(module_of(name)) for name in COMMANDS}
EXAMPLES = [(name, line) for name, module in MODULES.items() for line in module.EXAMPLES]


@pytest.mark.long
@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line.removeprefix("bookstand ") for _, line in EXAMPLES])
def test_examples_run(folder: Path, name: str, line: str) -> None:
    """In a folder of their own, for some write; ``> file`` is left to the shell."""
    program, *arguments = shlex.split(line.partition(" > ")[0])
    assert (program, " ".join(arguments).startswith(f"{name} ")) == ("bookstand", True)
    result = run(*arguments)
    assert result.code == FINE, result.err
    assert result.out
    if "--json" in arguments:
        assert result.lines if "records" in line or name == "cat" else result.json


@pytest.mark.parametrize("name", ["", *COMMANDS])
@pytest.mark.parametrize("columns", [80, 160])
def test_help(name: str, columns: int) -> None:
    text = run(*name.split(), "--help", columns=columns).out
    compare(f"help-{name.replace(' ', '-') or 'bookstand'}", columns, text)
    assert all(f"  {code} " in text for code in MEANINGS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_told(name: str) -> None:
    text = run(*name.split(), "--help", columns=80).out
    titles = [title for title in ("Arguments", "Options", "Examples", "Exit codes") if f"\n{title}:\n" in text]
    assert titles[-3:] == ["Options", "Examples", "Exit codes"]
    assert ("Arguments" in titles) == (name != "demo")
    parts = [text.index(f"\n{title}:\n") for title in titles]
    assert parts == sorted(parts)
    assert "--json" in text
    assert text.startswith(f"Usage: bookstand {name} [OPTIONS]")
    assert run(*name.split(), "-h", columns=80).out == text


def test_no_arguments_print_the_help_as_an_error() -> None:
    result = run(columns=80)
    assert (result.code, result.out) == (2, "")
    assert result.err == run("--help", columns=80).out


def test_the_first_of_two_words_alone_prints_what_may_follow(here: Path) -> None:
    result = run("migrate", columns=80)
    assert (result.code, result.out) == (2, "")
    assert result.err == run("migrate", "--help", columns=80).out
    assert re.findall(r"^  (migrate \w+) ", result.err, re.MULTILINE) == [
        n for n in COMMANDS if n.startswith("migrate ")
    ]


def test_version() -> None:
    import bookstand

    assert run("--version").out == f"bookstand {bookstand.__version__}\n"
