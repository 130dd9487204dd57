"""Output of commands: tables and facts as text, or JSON.

All text is printed by :func:`_write`, which escapes control characters, so that contents of a store or disk cannot
control the terminal. JSON is printed by :func:`_print_json`.

Tables fit the terminal. Long values are shortened in the middle, closer to the beginning, where names differ least. If
that is not enough, the least important columns are left out. Output to a pipe has no width limit unless ``COLUMNS`` is
set. JSON is complete, with sizes in bytes.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TextIO

from bookstand.storage.format.escapes import json_text, visible

Row = Mapping[str, Any]

_GAP = "  "
_CUT = "…"
_NOTHING = "-"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


# -- values ----------------------------------------------------------------------------------------------------------


def iso(millis: int | None) -> str | None:
    """Format a time in ms since 1970 as ISO 8601 in UTC; None if it is not positive."""
    if millis is None or millis <= 0:
        return None
    try:
        return (_EPOCH + timedelta(milliseconds=millis)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{millis} ms"


def human(size: int) -> str:
    """Format a size in the binary unit that leaves one to four digits."""
    if abs(size) < 1024:
        return f"{size} B"
    value = float(size)
    for unit in _UNITS:
        value /= 1024
        if abs(value) < 999.95 or unit == _UNITS[-1]:
            break
    return f"{value:.1f} {unit}"


def readable(data: bytes) -> str:
    """Decode printable UTF-8; format other bytes in hexadecimal."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"0x{data.hex()}"
    return text if text.isprintable() else f"0x{data.hex()}"


def shown(value: Any) -> str:
    """Format one value for a table or a fact."""
    if value is None or value == "" or value == [] or value == {}:
        return _NOTHING
    if value is True or value is False:
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={shown(one)}" for key, one in value.items())
    return str(value)


def counted(count: int, what: str) -> str:
    """Format a count with its noun: ``1 ledger``, ``2 ledgers``, ``2 entries``."""
    if count == 1:
        return f"1 {what}"
    return f"{count} {what[:-1]}ies" if what.endswith("y") else f"{count} {what}s"


def size(value: Any) -> str:
    return _NOTHING if value is None else human(value)


def size_and_bytes(value: Any) -> str:
    if value is None:
        return _NOTHING
    return human(value) if abs(value) < 1024 else f"{human(value)} ({value} bytes)"


def time(value: Any) -> str:
    """Format an ISO time without its milliseconds."""
    return _NOTHING if value is None else f"{value[:19]}Z" if value.endswith("Z") else str(value)


def topic(value: Any) -> str:
    """Format the name of a topic without the prefix that all of them share."""
    return shown(value).removeprefix("persistent://")


# -- the terminal ----------------------------------------------------------------------------------------------------


def width() -> int | None:
    """Maximum line width; None means unlimited."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return max(shutil.get_terminal_size().columns, 20)
    return None


def _coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _write(text: str, bold: bool = False, to: TextIO | None = None) -> None:
    """Print one line. Only the escape sequences that are added here reach the terminal."""
    text = visible(text)
    print(f"\033[1m{text}\033[0m" if bold and _coloured() else text, file=to)


def cells(text: str) -> int:
    """Number of terminal cells that ``text`` occupies."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def cut(text: str, most: int) -> str:
    """Shorten ``text`` in the middle to at most ``most`` cells."""
    if cells(text) <= most:
        return text
    if most <= 1:
        return _CUT[:most]
    front, back = (most - 1) // 3, most - 1 - (most - 1) // 3
    return _part(text, front) + _CUT + _part(text[::-1], back)[::-1]


def _part(text: str, most: int) -> str:
    taken = 0
    for number, char in enumerate(text):
        taken += cells(char)
        if taken > most:
            return text[:number]
    return text


# -- tables ----------------------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """Column that shows ``key`` of each row. Values may be shortened to ``least`` cells; 0 forbids it. Where columns
    would get less than twice their ``least``, those with the highest ``rank`` are left out first; 0 forbids it."""

    key: str
    title: str
    right: bool = False
    show: Callable[[Any], str] = shown
    least: int = 0
    rank: int = 0


COUNTS = (
    Column("what", ""),
    Column("ledgers", "LEDGERS", right=True),
    Column("entries", "ENTRIES", right=True),
    Column("bytes", "SIZE", right=True, show=size),
    Column("nodes", "NODES", right=True),
)
"""Columns of a summary of copied data, with one row for each part."""


def table(columns: Sequence[Column], rows: Iterable[Row]) -> None:
    """Print a table without its empty columns."""
    texts = [[visible(column.show(row.get(column.key))) for column in columns] for row in rows]
    kept = [place for place in range(len(columns)) if any(text[place] != _NOTHING for text in texts)] if texts else []
    widths = {place: max(cells(columns[place].title), *(cells(text[place]) for text in texts)) for place in kept}
    _fit(columns, widths)
    if not widths:
        return
    _write(_line(columns, widths, [column.title for column in columns]), bold=True)
    for text in texts:
        _write(_line(columns, widths, text))


def _fit(columns: Sequence[Column], widths: dict[int, int]) -> None:
    """Narrow or drop columns until a line fits the terminal."""
    most = width()
    if most is None:
        return
    while True:
        room = most - len(_GAP) * (len(widths) - 1)
        good = sum(_least(columns[place], widths[place], 2) for place in widths)
        droppable = [place for place in widths if columns[place].rank]
        if good <= room or not droppable:
            break
        del widths[max(droppable, key=lambda place: columns[place].rank)]
    excess = sum(widths.values()) - room
    # Narrow the widest column first.
    while excess > 0:
        loose = [place for place in widths if widths[place] > _least(columns[place], widths[place])]
        if not loose:
            return
        widest = max(loose, key=widths.__getitem__)
        others = [widths[place] for place in loose if place != widest]
        goal = max(max(others, default=0), _least(columns[widest], widths[widest]))
        step = max(1, min(excess, widths[widest] - goal))
        widths[widest] -= step
        excess -= step


def _least(column: Column, now: int, times: int = 1) -> int:
    return min(now, max(column.least * times, cells(column.title))) if column.least else now


def _line(columns: Sequence[Column], widths: Mapping[int, int], texts: Sequence[str]) -> str:
    parts = []
    for place, room in widths.items():
        text = cut(texts[place], room)
        space = " " * (room - cells(text))
        parts.append(space + text if columns[place].right else text + space)
    return _GAP.join(parts).rstrip()


# -- facts -----------------------------------------------------------------------------------------------------------


class Fact(NamedTuple):
    key: str
    title: str
    show: Callable[[Any], str] = shown


def facts(wanted: Sequence[Fact], values: Row) -> None:
    """Print one fact a line, wrapped if necessary; facts without a value are left out."""
    known = [(visible(fact.title), visible(fact.show(values.get(fact.key)))) for fact in wanted]
    known = [(title, text) for title, text in known if text != _NOTHING]
    titles = max((cells(title) for title, _ in known), default=0)
    for title, text in known:
        before = f"{title}{' ' * (titles - cells(title))}{_GAP}"
        for part in wrapped(text, titles + len(_GAP)):
            _write(f"{before}{part}")
            before = " " * (titles + len(_GAP))


def wrapped(text: str, before: int = 0) -> list[str]:
    """Wrap ``text`` for an indentation of ``before`` cells. Words are not split, so that paths and ids can be
    copied."""
    most = width()
    if most is None or before + cells(text) <= most:
        return [text]
    return textwrap.wrap(text, max(most - before, 20), break_long_words=False, break_on_hyphens=False)


def heading(text: str) -> None:
    _write("")
    _write(text, bold=True)


def line(text: str = "") -> None:
    most = width()
    text = visible(text)
    _write(text if most is None else cut(text, most))


def whole_line(text: str) -> None:
    """Print a line without shortening it, such as a payload."""
    _write(text)


def paragraph(text: str) -> None:
    """Print a sentence, wrapped instead of shortened; continuation lines are indented."""
    for number, part in enumerate(wrapped(visible(text), len(_GAP))):
        _write(f"{_GAP if number else ''}{part}")


def note(text: str) -> None:
    """Print a remark to stderr."""
    _write(f"bookstand: {text}", to=sys.stderr)


def usage(text: str) -> None:
    for part in text.splitlines():
        _write(part, to=sys.stderr)


# -- JSON ------------------------------------------------------------------------------------------------------------


def document(value: Any) -> None:
    _print_json(value, indent=2)


def json_line(value: Any) -> None:
    _print_json(value, separators=(",", ":"))


def _print_json(value: Any, **layout: Any) -> None:
    print(json_text(value, ensure_ascii=_escaped(), **layout))


def _escaped() -> bool:
    """Return True if the encoding of stdout cannot represent all characters."""
    return (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"


def failure(kind: str, what: str, code: int, as_json: bool) -> int:
    """Report a failure and return its exit code."""
    note(what)
    if as_json:
        json_line({"error": {"kind": kind, "message": what, "exit_code": code}})
    return code
