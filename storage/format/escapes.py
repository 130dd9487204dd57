"""Escaping of untrusted text for each kind of output.

Names, properties, paths and payloads may contain anything: terminal escape sequences, direction marks, formulas, HTML.
Code that prints or renders such text escapes it here, once, where the output is written.
"""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Letters and marks by category that are not rendered; str.isprintable() is false for all others.
_INVISIBLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_FORMULA = re.compile("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(:[+-]?\d+)?")
_HTML = {ord(char): f"\\u{ord(char):04x}" for char in "<>&'"}


def visible(text: str) -> str:
    """Escape text for a single line of a terminal or page, so that every character is visible.

    Control characters, escape sequences, direction marks, invisible characters and lone surrogates become Python
    escapes.
    """
    if text.isprintable() and not _INVISIBLE.search(text):
        return text
    return "".join(_escaped(char) for char in text)


def cell(text: str) -> str:
    """Escape text for a table cell; formulas, but not numbers and positions, get an apostrophe as prefix."""
    shown = visible(text)
    return f"'{shown}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else shown


def json_text(value: Any, **layout: Any) -> str:
    """Encode a value as JSON for terminals and programs, with invisible characters escaped.

    A lone surrogate, which represents a byte that is not text, can be decoded by Python's JSON reader.
    """
    text = json.dumps(value, **{"ensure_ascii": False, **layout})
    if text.replace("\n", "").isprintable() and not _INVISIBLE.search(text):
        return text
    return "".join(char if char == "\n" or _is_visible(char) else _json_escaped(char) for char in text)


def script_json(value: Any) -> str:
    """Encode JSON for a data block in an HTML page, without characters that are special in HTML."""
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
