"""Recordings of what went over the wire: lines of frames, connection by connection, in the order in which they were."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.replay.traces import SUFFIXES, open_text

WHOLE = 512
"""Of a frame that was too long to be kept, so many octets were."""


class Line(NamedTuple):
    """``octets`` are a frame's without its length; of one that is ``cut``, as many as were kept, ``length`` being that
    of the whole. ``raw``: octets that made no frame, lengths and all."""

    number: int
    channel: str
    connection: int
    event: str
    octets: bytes = b""
    length: int = 0
    raw: bool = False
    cut: bool = False
    summary: str = ""

    @property
    def place(self) -> tuple[str, int]:
        return self.channel, self.connection


def is_recording(path: Path) -> bool:
    if not path.name.endswith(SUFFIXES):
        return False
    with open_text(path) as text:
        try:
            first = json.loads(text.readline() or "null")
        except ValueError:
            return False
    return isinstance(first, dict) and {"n", "ms"} <= first.keys()


def lines(path: Path, channels: str) -> Iterator[Line]:
    """Those of the channels whose names begin so. Events are ``open``, ``sent``, ``answered``, and ``left`` and
    ``closed`` for the end of a connection by the client and the server."""
    with open_text(path) as text:
        for value in map(json.loads, filter(str.strip, text)):
            if value.get("ch", "").startswith(channels):
                yield _line(value)


def _line(value: dict[str, Any]) -> Line:
    place = value["n"], value["ch"], value["conn"]
    by_client = value.get("dir") == "C"
    if value.get("open"):
        return Line(*place, "open")
    if value.get("close") or value.get("eof"):
        return Line(*place, "left" if by_client else "closed")
    octets = base64.b64decode(value["b64"])
    event = "sent" if by_client else "answered"
    cut = "cut" in value
    return Line(*place, event, octets[:WHOLE] if cut else octets, value["len"], "raw" in value, cut, value.get("s", ""))
