"""The tutorial and the how-tos: somebody who does what they say, in a fresh folder, sees what they show."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path
from shutil import which

import pytest

from tests.docs.steps import ROOT, SHOWN, Shell, blocks, check_printed, complete, environment, pattern, walk
from tests.kit import copied_tree

HOW_TO = ROOT / "docs" / "how-to"
WITHOUT_SPARK = ("cut-the-power", "look-at-disks", "replace-bookkeeper")
ON_SPARK = "ask-spark"
ON_PULSAR = "pulsar-on-bookstand"
"""Needs a distribution of Pulsar: test_pulsar_page.py has the rest of it, and ``make interop`` a broker."""
# `make interop` does what it says.
IN_JAVA = "junit-on-bookstand"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_tutorial(tmp_path: Path) -> None:
    """In a new environment, whose packages come from the one that the tests run in: no index is asked."""
    copied_tree(tmp_path / "bookstand")
    (tmp_path / "home").mkdir()
    variables = environment(
        HOME=str(tmp_path / "home"),
        PATH=f"{Path(sys.base_prefix) / 'bin'}{os.pathsep}{os.defpath}",
        PYTHONPATH=sysconfig.get_path("purelib"),
        PYTHONWARNINGS="default",
        PIP_NO_BUILD_ISOLATION="0",
        PIP_NO_INDEX="1",
    )
    page = (ROOT / "docs" / "tutorial.md").read_text()
    with Shell(tmp_path, variables) as shell:
        assert walk(page, shell) == 7
        where = shell.run("python -c 'import bookstand; print(bookstand.__file__)'").strip()
    # The one that was installed, not the checkout.
    assert where.startswith(str(tmp_path / "bank" / ".venv")), where


def walked(page: Path, folder: Path, **more: str) -> int:
    with Shell(folder, environment(**more)) as shell:
        return walk(page.read_text(), shell)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", WITHOUT_SPARK)
def test_a_how_to(name: str, tmp_path: Path) -> None:
    if "curl" in (HOW_TO / f"{name}.md").read_text() and which("curl") is None:
        pytest.skip("there is no curl here")
    (tmp_path / "bookstand").symlink_to(ROOT)
    (tmp_path / "here").mkdir()
    assert walked(HOW_TO / f"{name}.md", tmp_path / "here") >= 1


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.xdist_group("spark")
def test_the_how_to_on_spark(tmp_path: Path) -> None:
    # Spark's own processes do not close all of their files.
    assert walked(HOW_TO / f"{ON_SPARK}.md", tmp_path, PYTHONWARNINGS="default") == 3


def test_every_how_to_is_tried() -> None:
    assert {page.stem for page in HOW_TO.glob("*.md")} == {*WITHOUT_SPARK, ON_SPARK, ON_PULSAR, IN_JAVA}


def test_what_is_shown_of_programs_in_java_is_theirs() -> None:
    sources = [path.read_text() for path in (ROOT / "examples" / "junit").rglob("*.java")]
    shown = [content for language, content in blocks((HOW_TO / f"{IN_JAVA}.md").read_text()) if language == SHOWN]
    assert len(shown) >= 5
    for content in shown:
        assert any(content in source for source in sources), content


# -- the walk itself ---------------------------------------------------------------------------------------------------


def test_what_is_not_printed_is_noticed(tmp_path: Path) -> None:
    with Shell(tmp_path, environment()) as shell:
        assert walk("```sh\ncd /\npwd\n```\n\n```text\n/\n```\n", shell) == 1
        with pytest.raises(AssertionError, match="has not printed 'two'"):
            walk("```sh\necho one\n```\n\n```text\ntwo\n```\n", shell)
        with pytest.raises(AssertionError, match="without a name"):
            walk("```python\nprint()\n```\n", shell)
        with pytest.raises(AssertionError, match="Traceback"):
            walk("```sh\npython3 -c 'raise ValueError'\n```\n", shell)


def test_lines_are_looked_for_in_their_order() -> None:
    check_printed("go", ["one", "t…o"], "one and\ntwo\n")
    with pytest.raises(AssertionError):
        check_printed("go", ["two", "one"], "one and\ntwo\n")
    assert re.search(pattern("a … c"), "x a b c")
    assert not re.search(pattern("a … c"), "a\nc")
    assert complete('A="v1:…" go', 'so: A="v1:x=2" there') == 'A="v1:x=2" go'
    assert blocks("```sh\na\n```\n\n```text\nb\n```\n") == [("sh", "a\n"), ("text", "b\n")]
