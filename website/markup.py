"""Tables and text in the Markdown that pages are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_BAR_OUTSIDE_CODE = re.compile(r"(`[^`]*`)|\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown. Cells are Markdown; bars in them are no borders."""
    lines = [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    """On one line; spaces that are not to be broken stay."""
    return _BAR_OUTSIDE_CODE.sub(_escaped, " ".join(re.split("[ \n]+", text)))


def _escaped(bar: re.Match[str]) -> str:
    return bar[1] or "\\|"


def code(text: str) -> str:
    return f"`{text}`"


def name_that_breaks(name: str) -> str:
    """A long name, which may be broken behind underscores and dots."""
    breakable = re.sub("([._])", "\\1<wbr>", name)
    return f"<code>{breakable}</code>"


def described_names(rows: str) -> str:
    """A table of names and, in the second column, what they mean: there that has room on narrow pages, too."""
    return f'<div class="described" markdown>\n\n{rows}\n</div>\n'


def prose(docstring: str) -> str:
    """A docstring's reStructuredText roles and double backquotes as Markdown."""
    plain = re.sub(r":\w+:`~?(?:[\w.]*\.)?([\w.]+)`", r"`\1`", docstring)
    return plain.replace("``", "`")
