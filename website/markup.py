"""Markdown tables and text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_BAR_OUTSIDE_CODE = re.compile(r"(`[^`]*`)|\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table. Cells are Markdown; vertical bars in them are escaped."""
    lines = [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    """Put a cell on one line, preserving non-breaking spaces."""
    return _BAR_OUTSIDE_CODE.sub(_escaped, " ".join(re.split("[ \n]+", text)))


def _escaped(bar: re.Match[str]) -> str:
    return bar[1] or "\\|"


def code(text: str) -> str:
    return f"`{text}`"


def breakable_name(name: str) -> str:
    """Format a long name that may be wrapped after underscores and dots."""
    breakable = re.sub("([._])", "\\1<wbr>", name)
    return f"<code>{breakable}</code>"


def name_table(rows: str) -> str:
    """Wrap a table of names and descriptions, so that the second column remains readable on narrow pages."""
    return f'<div class="described" markdown>\n\n{rows}\n</div>\n'


def prose(docstring: str) -> str:
    """Convert a docstring's reStructuredText roles and double backquotes to Markdown."""
    plain = re.sub(r":\w+:`~?(?:[\w.]*\.)?([\w.]+)`", r"`\1`", docstring)
    return plain.replace("``", "`")
