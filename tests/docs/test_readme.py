"""What the README shows runs, and what it refers to is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]

# Whose programs build upon each other, and have tests of their own.
IN_STEPS = [DOCS / "testing.md", DOCS / "spark.md", DOCS / "tutorial.md", *sorted((DOCS / "how-to").glob("*.md"))]

PROGRAMS = [
    pytest.param(match[1], id=f"{page.name}-{number}")
    for page in PAGES
    if page not in IN_STEPS
    for number, match in enumerate(re.finditer(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_run(program: str, tmp_path: Path) -> None:
    run(program, tmp_path)


def test_the_first_program_can_be_run_again(tmp_path: Path) -> None:
    """On the store that it has made."""
    program = (ROOT / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    for _ in range(2):
        run(program, tmp_path)


def run(program: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_program_is_on_the_first_screen_and_asserts() -> None:
    text = (ROOT / "README.md").read_text()
    before, _, program = text.partition("```python\n")
    assert len(before.splitlines()) <= 5
    assert program.partition("```")[0].count("assert ") >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|    )make ([a-z]+)", page.read_text())) <= targets


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_exist(page: Path) -> None:
    """Files of the repository that a page names in code quotes."""
    rooms = "storage|ledger|proto|cursor|delivery|disk|pipeline|server|tools|testing"
    named = re.findall(rf"`((?:{rooms}|bookstand|tests|docs)/[\w./]*\w)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []
