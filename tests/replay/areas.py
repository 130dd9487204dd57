"""The areas that can be replayed, one line each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.replay import bitmaps, bookkeeper, cursors, delayed, disk, messages, nacks, wire
from tests.replay.outcome import Outcome


class Area(NamedTuple):
    name: str
    what: str
    fields: str  # what is compared, for --help
    argued_at_most: float  # share of the samples
    replay: Callable[..., Iterator[Outcome]]  # of the paths, and the tracker where there are several
    trackers: tuple[str, ...] = ()


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
        Area(
            "bitmaps",
            "bytes of Roaring bitmaps, of snapshots of delayed messages and of the ledgers that these are in",
            bitmaps.FIELDS,
            0.0,
            bitmaps.replay,
        ),
        Area(
            "delayed",
            "what Pulsar's trackers of delayed messages answered",
            delayed.FIELDS,
            0.60,
            delayed.replay,
            delayed.ALL_TRACKERS,
        ),
        Area(
            "nacks",
            "what Pulsar's client gave back of negative acknowledgments, its backoff, its buckets of time",
            nacks.FIELDS,
            0.50,
            nacks.replay,
        ),
        Area(
            "disk",
            "the disks of real bookies, and what BookKeeper and Pulsar said of them",
            disk.FIELDS,
            0.02,
            disk.replay,
        ),
        Area(
            "wire",
            "frames between clients and servers, and what the servers answered",
            wire.FIELDS,
            0.05,
            wire.replay,
        ),
    )
}
