"""Escapes of text that others have chosen, for each kind of output.

Names, properties, paths and payloads may hold anything: escape sequences that a terminal obeys, marks that reverse the
direction of writing, formulas, HTML. Whatever prints or draws such text takes it from here, once, at the place where
the output is written.
"""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Letters and marks by their category that nothing is drawn for; str.isprintable() is false for all others.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_FORMULA = re.compile("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(:[+-]?\d+)?")
_HTML = {ord(char): f"\\u{ord(char):04x}" for char in "<>&'"}


def visible(text: str) -> str:
    """Text on one line in which everything is drawn: for a terminal and for a page.

    Control characters, escape sequences, marks of direction, invisible characters and lone surrogates become Python's
    escapes.
    """
    if text.isprintable() and not _INVISIBLE.search(text):
        return text
    return "".join(_escaped(char) for char in text)


def cell(text: str) -> str:
    """Visible text for a cell of a table, which may be copied into a spreadsheet: what a spreadsheet would take for a
    formula begins with an apostrophe. Numbers and positions are none."""
    shown = visible(text)
    return f"'{shown}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else shown


def json_text(value: Any, **layout: Any) -> str:
    """A value as JSON, for a terminal as well as for a program: all that is not visible is escaped.

    A lone surrogate, which stands for a byte that is no text, is read back by Python's reader of JSON.
    """
    text = json.dumps(value, **{"ensure_ascii": False, **layout})
    if text.replace("\n", "").isprintable() and not _INVISIBLE.search(text):
        return text
    return "".join(char if char == "\n" or _is_visible(char) else _json_escaped(char) for char in text)


def script_json(value: Any) -> str:
    """JSON for a block of data in an HTML page: no character of it is known to HTML."""
    return json_text(value, separators=(",", ":")).translate(_HTML)


def _is_visible(char: str) -> bool:
    return char.isprintable() and not _INVISIBLE.match(char)


def _escaped(char: str) -> str:
    return char if _is_visible(char) else char.encode("unicode_escape").decode()


def _json_escaped(char: str) -> str:
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
