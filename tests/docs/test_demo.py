"""The demo says that nothing was lost, and would say so if something were."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import bookstand
from bookstand import demo


def test_it_runs_and_says_that_nothing_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "bookstand.demo"],
        cwd=tmp_path,
        env={"TMPDIR": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("OK: all ")
    assert list(tmp_path.iterdir()) == [], "the demo leaves something behind"
    rows = [line for line in lines if "a thread" in line or "the killed process" in line]
    assert len(rows) == 2 * demo.WRITERS
    assert len({len(row) for row in rows}) == 1, "the table is not aligned"
    # Killed in the middle: nobody had closed these ledgers.
    assert sum("OPEN" in row for row in rows) == demo.WRITERS


def test_it_uses_only_what_users_have() -> None:
    source = Path(demo.__file__).read_text()
    imports = [line for line in source.splitlines() if "import" in line and "bookstand" in line]
    assert imports == ["import bookstand", "from bookstand.errors import BookstandError"]


@pytest.fixture
def written(store: bookstand.Store) -> int:
    with store.create_ledger() as ledger:
        for entry_id in range(5):
            ledger.append(demo.payload(ledger.id, entry_id))
    return ledger.id


def test_a_confirmed_entry_that_is_missing_is_a_failure(
    store: bookstand.Store, written: int, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = demo.examine(store, written, "a thread", 5)
    assert (whole.survived, whole.missing, whole.wrong) == (5, 0, 0)
    assert demo.conclude([whole], True, 1.0) == 0
    assert capsys.readouterr().out.startswith("OK: all 5 confirmed")
    short = demo.examine(store, written, "a thread", 7)
    assert (short.survived, short.missing, short.wrong) == (5, 2, 0)
    assert demo.conclude([whole, short], True, 1.0) == 1
    assert capsys.readouterr().out.startswith("FAILED: 2 of 12 confirmed entries are missing, 0 wrong")


def test_wrong_bytes_and_a_store_that_does_not_verify_are_failures(store: bookstand.Store, written: int) -> None:
    other = store.create_ledger()
    other.append(b"something else")
    row = demo.examine(store, other.id, "a thread", 1)
    assert (row.survived, row.missing, row.wrong) == (1, 1, 1)
    assert demo.conclude([row], True, 1.0) == 1
    assert demo.conclude([demo.examine(store, written, "a thread", 5)], False, 1.0) == 1


def test_nothing_survived_of_what_was_not_confirmed_may_be_told(store: bookstand.Store, written: int) -> None:
    row = demo.examine(store, written, "the killed process", 3)
    assert (row.survived, row.missing, row.wrong) == (5, 0, 0)
    assert demo.conclude([row], True, 1.0) == 0
