"""Charts as SVG: positions and labels. Their appearance is defined in ``style.css``.

Each element has a ``title`` with its numbers, which the browser shows as a tooltip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from bookstand.storage.format import escapes
from bookstand.tools.cli import output
from bookstand.tools.cli.output import human, iso
from bookstand.tools.report.histogram import Histogram, steps
from bookstand.tools.report.ledgers import UNKNOWN, Cell, Grid
from bookstand.tools.report.model import Delayed
from bookstand.tools.report.text import short_topic, shortened
from bookstand.tools.view.delayed_summary import Bucket, DelayedSummary, Segment

WIDTH = 960
_LEFT, _RIGHT, _TOP, _BELOW = 84, 16, 26, 40
_DAY = 86_400_000
_TICKS = 10
_HALF_A_LABEL = 38
BUCKETS = 60
"""Maximum number of buckets in the chart."""
_PARTS = 60
# Number of shades of a heat map.
_SHADES = 5
_ROW, _LOW_ROW = 18, 13

Parts = list[Markup]


def count(number: int) -> str:
    """Format a number with narrow spaces between groups of three digits."""
    return f"{number:,}".replace(",", "\u202f")


def visible(text: str) -> str:
    """Make control characters visible, except narrow spaces, which group digits."""
    return "\u202f".join(map(escapes.visible, text.split("\u202f")))


def counted(number: int, what: str) -> str:
    """Format a count with its noun, given in the singular, and grouped digits."""
    return output.counted(number, what).replace(str(number), count(number), 1)


def moment(millis: int) -> str:
    """Format a time in UTC, without zero milliseconds."""
    text = iso(millis) or f"{millis} ms"
    return text.replace(".000Z", "Z").replace("T", " ").replace("Z", " UTC")


# -- the frame ---------------------------------------------------------------------------------------------------------


class TimeScale(NamedTuple):
    """Mapping from times to x coordinates."""

    first: int
    end: int

    def x(self, millis: int) -> float:
        inside = WIDTH - _LEFT - _RIGHT
        return round(_LEFT + (millis - self.first) / max(self.end - self.first, 1) * inside, 2)

    def ticks(self) -> Iterator[int]:
        """Yield ticks at full seconds, minutes, hours or days."""
        step = next(step for step in steps() if (self.end - self.first) // step <= _TICKS)
        yield from range(-(-self.first // step) * step, self.end + 1, step)


def _svg(height: float, label: str, parts: Parts) -> Markup:
    return Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        WIDTH, round(height, 1), visible(label), Markup("").join(parts)
    )


def _text(x: float, y: float, text: str, kind: str = "") -> Markup:
    return Markup('<text x="{}" y="{}" class="{}">{}</text>').format(x, round(y, 1), kind, visible(text))


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    places = (round(place, 1) for place in (x1, y1, x2, y2))
    return Markup('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>').format(*places, kind)


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str) -> Markup:
    places = (round(place, 2) for place in (x, y, width, height))
    return Markup('<rect x="{}" y="{}" width="{}" height="{}" class="{}"><title>{}</title></rect>').format(
        *places, kind, visible(title)
    )


def _time_axis(scale: TimeScale, bottom: float) -> Parts:
    """Draw the time of day at each tick, and the date below where it changes."""
    parts = [_line(_LEFT, bottom, WIDTH - _RIGHT, bottom, "axis")]
    told = ""
    for tick in scale.ticks():
        x = scale.x(tick)
        day, _, clock = moment(tick).removesuffix(" UTC").partition(" ")
        full_days = tick % _DAY == 0
        # Keep labels inside the chart.
        middle = min(x, WIDTH - _HALF_A_LABEL)
        parts.append(_line(x, bottom, x, bottom + 4, "axis"))
        parts.append(_text(middle, bottom + 17, day if full_days else clock.removesuffix(":00"), "tick middle"))
        if not full_days and day != told:
            parts.append(_text(middle, bottom + 32, day, "tick middle quiet"))
        told = day
    return parts


def _now(scale: TimeScale, at: int, bottom: float) -> Parts:
    if not scale.first <= at <= scale.end:
        return []
    x = scale.x(at)
    return [_line(x, _TOP - 6, x, bottom, "now"), _text(x, _TOP - 11, "now", "tick middle at")]


def _shade(number: int, most: int) -> str:
    """Use a logarithmic scale, so that small numbers remain visible beside large ones."""
    share = np.log1p(number) / np.log1p(most) if most else 0.0
    return f"shade{min(max(int(np.ceil(share * _SHADES)), 1), _SHADES)}"


# -- ledgers by size and age -------------------------------------------------------------------------------------------


def ledgers(grid: Grid) -> Markup:
    """Draw a heat map of ledgers: columns are creation times; rows are sizes, which double from row to row."""
    low, high = min(cell.bits for cell in grid.cells), max(cell.bits for cell in grid.cells)
    rows = high - low + 1
    tall = _ROW if rows <= 14 else _LOW_ROW
    bottom = _TOP + rows * tall
    unknown = any(cell.column == UNKNOWN for cell in grid.cells)
    scale = TimeScale(grid.first, grid.first + grid.step * max(grid.columns, 1))
    most = max(cell.ledgers for cell in grid.cells)
    parts: Parts = []
    every = -(-rows // 12)
    for bits in range(low, high + 1):
        y = bottom - (bits - low + 1) * tall
        if (bits - low) % every == 0:
            parts.append(_text(_LEFT - 10 - 14 * unknown, y + tall - 4, _least(bits), "tick end"))
            parts.append(_line(_LEFT, y + tall, WIDTH - _RIGHT, y + tall, "grid"))
    for cell in grid.cells:
        y = bottom - (cell.bits - low + 1) * tall
        if cell.column == UNKNOWN:
            x, width, when = _LEFT - 18.0, 14.0, "nobody knows when"
        else:
            begin = grid.first + cell.column * grid.step
            x = scale.x(begin)
            width = scale.x(begin + grid.step) - x
            when = f"{moment(begin)} to {moment(begin + grid.step)}"
        title = f"{counted(cell.ledgers, 'ledger')} of {_sizes(cell)}, created {when}"
        inset = min(1.0, width / 6)
        parts.append(_rect(x + inset, y + 1, width - 2 * inset, tall - 2, f"cell {_shade(cell.ledgers, most)}", title))
    if unknown:
        parts.append(_text(_LEFT - 11, _TOP - 8, "unknown", "tick middle quiet"))
    if grid.step:
        parts += _time_axis(scale, bottom)
    else:
        parts.append(_line(_LEFT, bottom, WIDTH - _RIGHT, bottom, "axis"))
    total = sum(cell.ledgers for cell in grid.cells)
    label = f"{counted(total, 'ledger')} by when they were created and by size; the table below has each of them"
    return _svg(bottom + _BELOW, label, parts)


def _least(bits: int) -> str:
    return human(1 << (bits - 1)).replace(".0", "") if bits else "empty"


def _sizes(cell: Cell) -> str:
    return f"{_least(cell.bits)} to {_least(cell.bits + 1)}" if cell.bits else "no bytes"


# -- delayed messages --------------------------------------------------------------------------------------------------


def due(times: Histogram, at: int, whose: str) -> Markup:
    """Draw a bar chart of due times."""
    height = 190
    bottom = _TOP + height
    scale = TimeScale(times.first, times.end)
    most = int(times.counts.max())
    parts: Parts = []
    for tick in _count_ticks(most):
        y = bottom - tick / most * height
        parts.append(_line(_LEFT, y, WIDTH - _RIGHT, y, "grid"))
        parts.append(_text(_LEFT - 8, y + 4, count(tick), "tick end"))
    for number in np.flatnonzero(times.counts).tolist():
        messages = int(times.counts[number])
        begin = times.first + number * times.step
        x, tall = scale.x(begin), messages / most * height
        width = max(scale.x(begin + times.step) - x - 0.6, 0.8)
        title = f"{counted(messages, 'message')} due from {moment(begin)} to before {moment(begin + times.step)}"
        kind = "bar due" if begin + times.step <= at else "bar"
        parts.append(_rect(x, bottom - max(tall, 1), width, max(tall, 1), kind, title))
    parts += _now(scale, at, bottom)
    parts += _time_axis(scale, bottom)
    label = (
        f"{whose}: {counted(times.total, 'message')} due from {moment(times.first)} to {moment(times.end)}, "
        f"at most {count(most)} in {duration(times.step)}"
    )
    return _svg(bottom + _BELOW, label, parts)


def _count_ticks(most: int) -> list[int]:
    """Return up to four round tick values."""
    step = 1
    for factor in (2, 2.5, 2) * 20:
        if most / step <= 4:
            break
        step = int(step * factor)
    return list(range(step, most + 1, step))


def duration(millis: int) -> str:
    for unit, size in (("day", _DAY), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000)):
        if millis >= size:
            return counted(millis // size, unit)
    return f"{millis} ms"


# -- buckets -----------------------------------------------------------------------------------------------------------


def buckets(found: Sequence[Delayed], at: int) -> Markup:
    """Draw one row for each bucket, with its segments from the first to the last due time."""
    drawn = [(one, bucket) for one in found for bucket in one.waiting.buckets if bucket.segments][:BUCKETS]
    first = min(segment.first_due for _, bucket in drawn for segment in bucket.segments)
    last = max(segment.last_due for _, bucket in drawn for segment in bucket.segments)
    scale = TimeScale(first, max(last, first + 1))
    joined = [list(_joined(bucket.segments)) for _, bucket in drawn]
    most = max(segment.messages for segments in joined for segment in segments)
    several = len({id(one) for one, _ in drawn}) > 1
    y = float(_TOP)
    parts: Parts = []
    whose = None
    for number, (one, bucket) in enumerate(drawn):
        if several and one is not whose:
            whose = one
            y += _ROW + 4
            parts.append(_text(_LEFT + 6, y - 5, whose_of(one.waiting), "quiet"))
        parts.append(_line(_LEFT, y + _ROW, WIDTH - _RIGHT, y + _ROW, "grid"))
        name = ledgers_of(bucket)
        parts.append(_text(_LEFT - 8, y + 13, name if len(name) <= 12 else f"in {bucket.snapshot}", "tick end"))
        for segment in joined[number]:
            x = scale.x(segment.first_due)
            title = (
                f"{counted(segment.messages, 'message')} from {moment(segment.first_due)} to "
                f"{moment(segment.last_due)}, in the bucket of ledgers {name} of {one.waiting.subscription}"
            )
            width = max(scale.x(segment.last_due) - x - 0.8, 2.0)
            parts.append(_rect(x, y + 3, width, _ROW - 6, f"cell {_shade(segment.messages, most)}", title))
        y += _ROW
    bottom = y
    parts += _now(scale, at, bottom)
    parts += _time_axis(scale, bottom)
    label = f"{counted(len(drawn), 'bucket')} with the times of their segments; the table below has their numbers"
    return _svg(bottom + _BELOW, label, parts)


def whose_of(waiting: DelayedSummary) -> str:
    """Format a subscription with its topic."""
    return f"{shortened(waiting.subscription)} of {short_topic(waiting.topic)}"


def ledgers_of(bucket: Bucket) -> str:
    """Format the range of the topic's ledgers that a bucket covers."""
    first, last = bucket.first_ledger, bucket.last_ledger
    return str(first) if first == last else f"{first}–{last}"


def _joined(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Merge neighboring segments that would be too narrow to distinguish."""
    together = -(-len(segments) // _PARTS)
    for start in range(0, len(segments), together):
        part = segments[start : start + together]
        yield Segment(
            min(one.first_due for one in part), max(one.last_due for one in part), sum(one.messages for one in part)
        )


# -- inline bars -------------------------------------------------------------------------------------------------------


def share(part: int, whole: int) -> Markup:
    """Return a bar for a table cell, shown next to its number."""
    width = 100 * part / whole if whole else 0
    return Markup(
        '<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect width="100" height="8" class="rest"/><rect width="{}" height="8" class="bar"/></svg>'
    ).format(round(width, 2))
