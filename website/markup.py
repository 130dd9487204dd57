"""Tables and text in the Markdown and HTML that pages are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown. Cells are Markdown; a bar in one is escaped."""
    lines = [_row(head), _row(["---"] * len(head)), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


def code(text: str) -> str:
    return f"`{text}`"


def prose(docstring: str) -> str:
    """A docstring's reStructuredText roles and double backquotes as Markdown."""
    import re

    plain = re.sub(r":\w+:`~?(?:[\w.]*\.)?([\w.]+)`", r"`\1`", docstring)
    return plain.replace("``", "`")


def html(text: str) -> str:
    """Text with code in backquotes as HTML."""
    import re

    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
