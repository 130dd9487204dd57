"""The command line is an extra: what it needs is named where it is missing, and costs nobody else anything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bookstand.tools.cli.exit_codes import FAILED
from tests.packaging.test_imports import FIRST_APPEND, loaded_by

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "missing", [("typer",), ("rich",), ("cramjam",), ("jinja2",), ("typer", "rich", "cramjam")], ids="-".join
)
@pytest.mark.parametrize("arguments", [["ls", "my-store", "--json"], ["--help"]], ids=" ".join)
def test_a_missing_extra_is_named(here: Path, missing: tuple[str, ...], arguments: list[str]) -> None:
    program = f"import sys; sys.modules.update(dict.fromkeys({missing})); from bookstand.tools.main import main"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{program}; sys.exit(main({arguments}))"],
        capture_output=True,
        text=True,
        cwd=here,
        check=False,
    )
    says = f"the command line needs {', '.join(missing)}: pip install 'bookstand[cli]'"
    assert (done.returncode, done.stderr) == (FAILED, f"bookstand: {says}\n")
    if "--json" in arguments:
        assert json.loads(done.stdout)["error"]["message"] == says
    else:
        assert done.stdout == ""


@pytest.mark.parametrize("program", ["import bookstand", FIRST_APPEND], ids=["import", "first append"])
def test_tools_are_loaded_by_those_who_ask_for_them(program: str, tmp_path: Path) -> None:
    loaded = loaded_by(program, str(tmp_path / "store"))
    assert not {name for name in loaded if name.startswith(("bookstand.tools", "bookstand.disk", "typer", "rich"))}


def test_help_loads_no_command() -> None:
    program = "import sys; from bookstand.tools.main import main; sys.stdout = sys.stderr; main(['--help'])"
    loaded = loaded_by(f"{program}; sys.stdout = sys.__stdout__")
    assert "bookstand.tools.main" in loaded
    assert not {
        name for name in loaded if name.startswith("bookstand.tools.commands.") or name.split(".")[0] == "numpy"
    }
