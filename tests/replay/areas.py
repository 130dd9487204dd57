"""The areas that can be replayed, one line each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.replay import bookkeeper, cursors, messages
from tests.replay.outcome import Outcome


class Area(NamedTuple):
    name: str
    what: str
    fields: str  # what is compared, for --help
    argued_at_most: float  # share of the samples
    replay: Callable[[list[Path]], Iterator[Outcome]]


AREAS: dict[str, Area] = {
    area.name: area
    for area in (
        Area(
            "bookkeeper",
            "what BookKeeper's client answered, and bytes that it wrote",
            bookkeeper.FIELDS,
            0.25,
            bookkeeper.replay,
        ),
        Area(
            "messages",
            "entries of topics, acknowledgments and records as Pulsar stores them, and its range sets",
            messages.FIELDS,
            0.10,
            messages.replay,
        ),
        Area(
            "cursor",
            "what Pulsar's managed ledger and cursor answered, and what they recovered",
            cursors.FIELDS,
            0.60,
            cursors.replay,
        ),
    )
}
