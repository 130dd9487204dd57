"""SVG drawings in the page's colors, so that they also fit its dark scheme."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_LETTER = 7.0
_PADDING = 9.0
_MIN_BOX_WIDTH = 44.0
_MAX_ROW_WIDTH = 700.0
_BOX_HEIGHT = 34.0
_ABOVE = 15.0
_BELOW = 17.0
_GAP = 10.0


class Box(NamedTuple):
    """A field: its name, the label below it, and the offset above its left edge."""

    name: str
    below: str
    above: str

    @property
    def width(self) -> float:
        return max(_MIN_BOX_WIDTH, _LETTER * max(len(self.name), len(self.below) * 0.9) + 2 * _PADDING)


def row_of_boxes(title: str, boxes: Sequence[Box]) -> str:
    """Draw fields in sequence, wrapped into rows."""
    shapes: list[str] = []
    x = y = widest = 0.0
    for box in boxes:
        if x and x + box.width > _MAX_ROW_WIDTH:
            x, y = 0.0, y + _ABOVE + _BOX_HEIGHT + _BELOW + _GAP
        middle = x + box.width / 2
        top = y + _ABOVE
        shapes += [
            rect(x, top, box.width, _BOX_HEIGHT, "field"),
            text(middle, top + _BOX_HEIGHT / 2 + 4.5, box.name),
            text(x + 2, y + _ABOVE - 4, box.above, "small start") if box.above else "",
            text(middle, top + _BOX_HEIGHT + 13, box.below, "small") if box.below else "",
        ]
        x += box.width
        widest = max(widest, x)
    return picture(title, widest + 2, y + _ABOVE + _BOX_HEIGHT + _BELOW, shapes)


def picture(title: str, width: float, height: float, shapes: Sequence[str]) -> str:
    inside = "".join(shapes)
    return (
        f'<svg class="drawing" role="img" aria-label="{escape(title)}" viewBox="-1 0 {width:g} {height:g}" '
        f'style="width:{width:g}px" xmlns="http://www.w3.org/2000/svg">{inside}</svg>'
    )


def rect(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"/>'


def text(x: float, y: float, letters: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(letters)}</text>'


def arrow(points: Sequence[tuple[float, float]], kind: str = "arrow") -> str:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline class="{kind}" points="{path}" marker-end="url(#head)"/>'


HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path class="head" d="M0 0 8 4 0 8z"/></marker></defs>'
)
