"""Rules for the language of docstrings and comments that a program can check."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.test_distribution import ROOMS, ROOT

# A docstring opens with an imperative or a noun phrase, not with a subordinate clause.
_CLAUSE = re.compile(r"(What|Whether|How|Those|That|Where|Who|When|As|If|The same)\b")
_BANNED = re.compile(
    r"\b(he|him|his|nobody|somebody|whoever|whomever|by and by|comes? again|so often|is let go|gives? way|"
    r"is told|are told|was told|tells? (?:of|that|how))\b",
    re.IGNORECASE,
)


def _modules(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if not path.name.endswith("_pb2.py")]


MODULES = [path for room in ROOMS for path in _modules(room)] + [
    path for path in _modules("bookstand") if path.relative_to(ROOT / "bookstand").parts[0] not in ROOMS
]


def _docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def _comments(path: Path) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_docstrings_open_with_an_imperative_or_a_noun() -> None:
    found = [
        f"{path}:{line}: {text[:60]}" for path in MODULES for line, text in _docstrings(path) if _CLAUSE.match(text)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("texts", [_docstrings, _comments], ids=["docstrings", "comments"])
def test_no_banned_construction_is_used(texts: object) -> None:
    found = [
        f"{path}:{line}: {match.group(0)!r}"
        for path in MODULES
        for line, text in texts(path)  # type: ignore[operator]
        for match in _BANNED.finditer(text)
    ]
    assert not found, "\n".join(found)
