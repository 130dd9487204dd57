"""What an import costs, and which way imports may point."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Each costs more than the store itself; numpy alone five times as much.
HEAVY = {"asyncio", "concurrent.futures", "dataclasses", "google.protobuf", "inspect", "logging", "numpy", "pyroaring"}
HEAVY |= {
    "cachetools",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "re",
    "subprocess",
    "tempfile",
    "typing",
    "uuid",
}

IMPORT = "import bookstand"
FIRST_APPEND = """
import os, sys
import bookstand
store = bookstand.open(sys.argv[1])
store.create_ledger().append(b"a")
store.close()
"""


def loaded_by(program: str, *arguments: str) -> set[str]:
    """Modules that the program loads and an empty one does not."""
    tell = "\nimport sys; print(*sys.modules)"
    modules = []
    for text in ("", program):
        done = subprocess.run(
            [sys.executable, "-c", text + tell, *arguments], check=True, capture_output=True, text=True, cwd=ROOT
        )
        modules.append(set(done.stdout.split()))
    return modules[1] - modules[0]


@pytest.mark.parametrize("program", [IMPORT, FIRST_APPEND], ids=["import", "first append"])
def test_nothing_heavy_is_loaded(program, tmp_path):
    assert not HEAVY & loaded_by(program, str(tmp_path / "store"))


@pytest.mark.parametrize("program", [IMPORT, FIRST_APPEND], ids=["import", "first append"])
def test_the_test_kit_is_loaded_by_those_who_ask_for_it(program, tmp_path):
    loaded = loaded_by(program, str(tmp_path / "store"))
    assert not {name for name in loaded if name.startswith("bookstand.testing")}


def test_serving_loads_no_more_than_it_needs_to_be_ready():
    """Readers of disks, the columns of large runs, HTTP, version 3 and the test kit come when they are asked for."""
    loaded = loaded_by("import bookstand.tools.commands.serve")
    assert "bookstand.server.bookie.connection" in loaded
    assert (
        not {"numpy", "http.server", "pyroaring", "rich", "bookstand.disk.bookies.copy_catalog", "bookstand.cursor"}
        & loaded
    )
    assert (
        not {"google.protobuf", "bookstand.server.bookie.protocol.requests_v3", "bookstand.testing.faults.faults"}
        & loaded
    )


def test_faults_and_crashes_need_no_extra():
    loaded = loaded_by("from bookstand.testing import CrashLab, Faults, VirtualClock, every_crash, model")
    assert "bookstand.testing.faults.faults" in loaded
    assert not {"hypothesis", "pytest", "_pytest"} & loaded


def test_everything_that_the_test_kit_names_is_there():
    program = "import bookstand.testing as t; assert [getattr(t, name) for name in t.__all__ if name in dir(t)]"
    program += "; assert set(t.__all__) <= set(dir(t)) and not hasattr(t, 'nothing')"
    assert "bookstand.testing.machine" in loaded_by(program)


@pytest.mark.parametrize("name", ["LedgerMachine", "machine", "strategies"])
def test_a_missing_extra_is_named(name):
    program = f"""
import sys
sys.modules["hypothesis"] = sys.modules["hypothesis.strategies"] = None
import bookstand, bookstand.testing
try:
    bookstand.testing.{name}
except bookstand.errors.MissingExtraError as missing:
    assert "bookstand[test]" in str(missing)
else:
    raise AssertionError("it went without Hypothesis")
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_every_module_has_one_name():
    program = "import bookstand.storage.storage, bookstand.ledger.client, bookstand.ledger.transaction"
    program += ", bookstand.testing.strategies, bookstand.testing.crash.lab, bookstand.testing.faults.faults"
    loaded = loaded_by(program)
    ours = {name for name in loaded if name.split(".")[0] in ("bookstand", "storage", "ledger", "proto", "testing")}
    assert ours
    assert all(name.startswith("bookstand") for name in ours)


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_lmdb_stays_in_storage():
    """Its errors and its rules are known in one room."""
    for room in ("ledger", "managed_ledger", "proto", "testing"):
        for path in (ROOT / room).rglob("*.py"):
            assert not {name for name in imports_of(path) if name.split(".")[0] == "lmdb"}, path


def test_dependencies_point_one_way():
    subprocess.run([Path(sys.executable).parent / "lint-imports"], check=True, cwd=ROOT, capture_output=True)
