"""The report as a self-contained HTML page.

Style and script are inline, and a content security policy forbids everything else. Names and values from the inspected
store are always text: the template escapes them, and the data block has no character that is special in HTML.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bookstand.errors import MissingExtraError
from bookstand.storage.format.escapes import cell, script_json
from bookstand.tools.cli.damage_report import amounts
from bookstand.tools.cli.output import human, iso, size_and_bytes, time
from bookstand.tools.report import tables
from bookstand.tools.report import text as texts
from bookstand.tools.report.model import LedgerAcks, Report, Subscription

try:
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    from bookstand.tools.report import svg
except ImportError as missing:
    raise MissingExtraError("reports need jinja2: pip install 'bookstand[cli]'") from missing

BEGINNING = "<!doctype html>\n<!-- A report of bookstand -->\n"
"""Prefix that identifies a file as a report."""

_COLUMNS = 60
"""Maximum number of columns in the chart of ledgers."""

_PICTURED = 5
"""Minimum number of ledgers for that chart; the table suffices for fewer."""

_PER_SUBSCRIPTION = 8
"""Maximum number of subscriptions with their own chart of due times."""

_LEDGERS_NAMED = 40
"""Maximum number of ledgers listed below a map."""

_STARTS = 1024
"""Maximum number of ledger boundaries in a map."""


def page(report: Report) -> str:
    found = {table.shape.name: table for table in tables.tables(report)}
    maps = [_map(f"map-{number}", one) for number, one in enumerate(_mapped(report))]
    data = {
        "tables": {name: table.data() for name, table in found.items()},
        "maps": {one.name: one.data for one in maps},
    }
    style, script = _file("style.css"), _file("script.js")
    text: str = _template().render(
        beginning=Markup(BEGINNING),
        report=report,
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        data=Markup(script_json(data)),
        tables=found,
        maps=maps,
        maps_left_out=len(report.subscriptions) - len(maps),
        kinds=report.ledgers.kinds(),
        heading=_heading(report),
        ledgers_picture=svg.ledgers(report.ledgers.grid(_COLUMNS)) if len(report.ledgers) >= _PICTURED else None,
        due_pictures=_due_pictures(report),
        buckets_picture=_buckets_picture(report),
        measured=any(one.asked for one in report.subscriptions),
    )
    return text


def _heading(report: Report) -> str:
    """Return the title with only the last component of the path; the full path is shown below it."""
    return report.title.replace(report.path, Path(report.path).name or report.path, 1)


def _policy(style: str, script: str) -> str:
    """Forbid all loading, and all scripts and styles except the inline ones."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _visible(value: Any) -> Any:
    """Keep own markup as HTML; make control characters in other values visible. The template escapes those values."""
    return value if isinstance(value, Markup) else svg.visible(str(value))


@cache
def _file(name: str) -> str:
    return (files(__package__) / name).read_text("utf-8")


@cache
def _template() -> Any:
    environment = Environment(
        autoescape=True,
        finalize=_visible,
        loader=FunctionLoader(_file),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "cell": cell,
        "count": svg.count,
        "amounts": amounts,
        "counted": svg.counted,
        "human": human,
        "share": svg.share,
        "shown": texts.shortened,
        "topic": texts.short_topic,
        "fact": _fact,
        "time": lambda millis: time(iso(millis)),
    }
    return environment.get_template("page.html.jinja")


def _fact(value: Any, name: str) -> str:
    if value is None or value == []:
        return "–"
    if name == "bytes":
        return size_and_bytes(value)
    if isinstance(value, int):
        return svg.count(value)
    return texts.shortened(", ".join(value) if isinstance(value, list) else str(value), texts.SENTENCE)


# -- maps of acknowledgments -------------------------------------------------------------------------------------------


class Map(NamedTuple):
    """Map of one subscription. ``ledgers`` are those with the most holes, in the order of the topic."""

    name: str
    subscription: Subscription
    data: dict[str, Any]
    ledgers: list[LedgerAcks]


def _mapped(report: Report) -> list[Subscription]:
    """Return subscriptions to draw, by holes and then by backlog. Fully acknowledged ones are left out."""
    some = [one for one in report.subscriptions if one.strip is not None and (one.holes or one.backlog)]
    return sorted(some, key=lambda one: (-one.holes, -one.backlog))


def _map(name: str, one: Subscription) -> Map:
    strip = one.strip
    assert strip is not None
    widths = np.diff(strip.edges)
    # 0 means none and 255 all; partial coverage is never rounded to either.
    shares = np.where(
        strip.covered == 0, 0, np.where(strip.covered == widths, 255, 1 + np.round(strip.covered / widths * 253))
    )
    most = int(strip.runs.max())
    data = {
        "total": one.entries,
        "acked": _bytes(shares),
        "holes": _bytes(np.ceil(strip.runs / max(most, 1) * 255)),
        "most": most,
        **_starts(one.ledgers),
    }
    by_holes = sorted(range(len(one.ledgers)), key=lambda at: (-one.ledgers[at].holes, -one.ledgers[at].left))
    return Map(name, one, data, [one.ledgers[at] for at in sorted(by_holes[:_LEDGERS_NAMED])])


def _bytes(values: NDArray[Any]) -> str:
    return b64encode(values.astype(np.uint8).tobytes()).decode()


def _starts(ledgers: list[LedgerAcks]) -> dict[str, Any]:
    """Return the boundaries of ledgers on the line; only every n-th one if there are too many."""
    some = [ledger for ledger in ledgers if ledger.entries]
    every = -(-len(some) // _STARTS)
    starts, at = [], 0
    for number, ledger in enumerate(some):
        if number % every == 0:
            starts.append((ledger.ledger, at))
        at += ledger.entries
    # As text, because ids may exceed the integers of JavaScript.
    return {"every": every, "ids": [str(one) for one, _ in starts], "starts": [at for _, at in starts]}


# -- charts ------------------------------------------------------------------------------------------------------------


def _due_pictures(report: Report) -> list[tuple[str, Markup]]:
    """Return the chart of all due times, and charts of the largest subscriptions if there are several."""
    if report.times is None:
        return []
    some = [one for one in report.delayed if one.times is not None]
    found = [("All subscriptions", svg.due(report.times, report.at, "all subscriptions"))]
    if len(some) == 1:
        return [(svg.whose_of(some[0].waiting), found[0][1])]
    for one in sorted(some, key=lambda one: -one.waiting.messages)[:_PER_SUBSCRIPTION]:
        assert one.times is not None
        title = svg.whose_of(one.waiting)
        found.append((title, svg.due(one.times, report.at, title)))
    return found


def _buckets_picture(report: Report) -> Markup | None:
    some = [one for one in report.delayed if any(bucket.segments for bucket in one.waiting.buckets)]
    return svg.buckets(some, report.at) if some else None
