"""Texts that others chose, in a terminal, a spreadsheet's cell, a page and JSON: nothing of them is obeyed."""

from __future__ import annotations

import ast
import json
import subprocess
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookstand.storage.format.escapes import cell, json_text, script_json, visible
from bookstand.tools.cli import output
from bookstand.tools.cli.exit_codes import FINE, WRONG_ARGUMENTS
from bookstand.tools.main import COMMANDS
from bookstand.tools.report import page, svg, tables
from bookstand.tools.report import text as report_texts
from tests.kit import ROOT
from tests.soak import texts
from tests.tools.child import Terminal, finished, start

ANY = st.text(st.characters(codec=None) | st.sampled_from("".join(texts.FRAGMENTS)), max_size=30)


# -- by kind of output -------------------------------------------------------------------------------------------------


@given(ANY)
@example("\udcff\ue000\U000e0001\u061c")
def test_everything_in_visible_text_is_drawn(text: str) -> None:
    shown = visible(text)
    assert texts.undrawn(shown) == []
    assert "\n" not in shown
    assert visible(shown) == shown
    if not texts.undrawn(text) and "\n" not in text and all(map(str.isprintable, text)):
        assert shown == text or any(unicodedata.category(char) in ("Lo", "Mn") for char in text)


@given(st.recursive(ANY, lambda values: st.lists(values, max_size=3) | st.dictionaries(ANY, values, max_size=3)))
def test_json_remains_json(value: Any) -> None:
    for text in (json_text(value), json_text(value, indent=2), json_text(value, ensure_ascii=True)):
        assert texts.undrawn(text) == []
        assert json.loads(text) == json.loads(json.dumps(value))
    inside = script_json(value)
    assert json.loads(inside) == json.loads(json.dumps(value))
    assert not set("<>&'\n\u2028\u2029") & set(inside)


@given(st.sampled_from(texts.BEGINNINGS), ANY)
def test_no_cell_is_a_formula(beginning: str, text: str) -> None:
    shown = cell(beginning + text)
    assert not shown.startswith(texts._FORMULA) or texts.NUMBER.fullmatch(shown)
    assert shown.removeprefix("'") == visible(beginning + text).removeprefix("'")


@pytest.mark.parametrize("number", ["-1", "+1", "-1.5", "0", "12", "-1:-1", "5:-1"])
def test_numbers_in_cells_remain_numbers(number: str) -> None:
    assert cell(number) == number


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> texts.Place:
    return texts.Place(str(tmp_path_factory.mktemp("texts")), 0)


# -- through every command ---------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_every_command_and_the_report(seed: int, counts: Any) -> None:
    done = texts.one_round(seed)
    counts.add("texts", done.cases, len(done.problems))
    assert not done.problems, "\n".join(done.problems)


def test_every_command_is_among_them() -> None:
    assert texts.covered() | texts.NOT_OF_A_STORE == set(COMMANDS)


MUTANTS: dict[str, tuple[str, list[tuple[Any, str]], str]] = {
    "lines": ("terminal", [(output, "visible")], "show {store} {entry}"),
    "JSON": ("terminal", [(output, "json_text")], "ls {store} --topics"),
    "tables of a page": ("page", [(report_texts, "visible"), (tables, "cell")], "report {store} --output page.html"),
    "pictures": ("page", [(svg, "visible")], "report {store} --output page.html"),
    "cells": ("cell", [(tables, "cell")], "report {store} --output page.html"),
}
"""What is not escaped: kind of the problem that shows it, what it replaces, and a command that prints it."""


def _unescaped(value: Any, **layout: Any) -> Any:
    return json.dumps(value, **{**layout, "ensure_ascii": False}) if layout else value


@pytest.mark.parametrize("name", MUTANTS)
def test_unescaped_texts_are_noticed(
    place: texts.Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each of the places at which texts are escaped is needed."""
    monkeypatch.chdir(tmp_path)
    kind, replaced, line = MUTANTS[name]
    allowed = texts.usual_parts()
    page._template.cache_clear()
    for owner, attribute in replaced:
        monkeypatch.setattr(owner, attribute, _unescaped)
    try:
        found = list(texts.problems_of_lines(place, str(tmp_path / "new"), (line,)))
        if line.startswith("report"):
            found += texts.problems_of_page((tmp_path / "page.html").read_text("utf-8"), allowed)
    finally:
        page._template.cache_clear()
    assert any(problem.startswith(f"{kind}: ") for problem in found), found


# -- on a terminal -----------------------------------------------------------------------------------------------------


def test_a_terminal_is_told_nothing_but_bold(place: texts.Place) -> None:
    for line in ("cursors {store} {topic}", "show {store} {ledger}"):
        terminal = Terminal()
        child = start(*place.line(line, ""), stdout=terminal.end, stderr=subprocess.DEVNULL)
        shown = terminal.read()
        child.wait()
        assert "\x1b[1m" in shown
        assert texts.undrawn(shown.replace("\x1b[1m", "").replace("\x1b[0m", "")) == []


def test_payloads_as_they_are_do_not_go_to_a_terminal(place: texts.Place, tmp_path: Path) -> None:
    terminal = Terminal()
    child = start("cat", place.store, place.ledger, "--raw", stdout=terminal.end, stderr=subprocess.PIPE)
    assert terminal.read() == ""
    code, _, err = finished(child)
    assert (code, err.count("\n")) == (WRONG_ARGUMENTS, 1)
    assert "the terminal that stdout is" in err
    with open(tmp_path / "payloads", "wb") as file:
        child = start("cat", place.store, place.ledger, "--raw", stdout=file)
        assert finished(child)[0] == FINE
    assert (tmp_path / "payloads").read_bytes().endswith(b"\x1b[2J\xff\x00")


def test_lines_are_printed_in_one_place() -> None:
    """What prints past ``tools/cli/output.py`` is not escaped."""
    printing = {
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for room in ("tools", "pipeline", "bookstand/demo", "server")
        for file in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("print", "sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write")
    }
    places = {one.partition(":")[0] for one in printing}
    # The bytes of --raw, and jobs, which run without the rest of the command line: errors, an interruption, summaries.
    assert places == {"tools/cli/output.py", "tools/commands/cat.py", "pipeline/execution/cli.py"}, printing
    assert len([one for one in printing if not one.startswith("tools/cli/output.py")]) == 4, printing
