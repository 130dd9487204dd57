"""What there is to watch of a cursor: the size that PIP-299 limits, under its name there, and figures of our own."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan
from typing import NamedTuple

from bookstand.managed_ledger.topic_name import parts_of
from bookstand.storage.metrics import COUNTER, GAUGE, Family, Sample

LABELS = ("namespace", "topic", "subscription")


class CursorStats(NamedTuple):
    """Sizes in bytes. ``metadata_size`` is the size of the whole state when it was last written; ``left_out_…`` is what
    the limits of the old form kept out of it then. ``paused_by_…`` are the reasons for a pause of dispatch.
    ``entries_to_resume`` is a number of entries, the lowest that are not acknowledged, whose acknowledgment ends the
    pause once it is written: 0 without a pause, None where no acknowledgment ends it. ``damaged_pages`` were replaced
    by older ones or dropped since the cursor was opened."""

    metadata_size: int
    backlog: int
    cache_bytes: int
    cache_pages: int
    cache_hits: int
    cache_misses: int
    dirty_pages: int
    flushes: int
    pages_written: int
    bytes_written: int
    left_out_ranges: int
    left_out_batches: int
    paused: bool
    paused_by_state_size: bool
    paused_by_left_out: bool
    entries_to_resume: int | None
    damaged_pages: int = 0

    @property
    def hit_ratio(self) -> float:
        asked = self.cache_hits + self.cache_misses
        return self.cache_hits / asked if asked else 1.0


def _family(name: str, kind: str, meaning: str) -> Family:
    return Family(name, kind, meaning, LABELS)


FAMILIES = {
    "metadata_size": _family(
        "pulsar_cursor_metadata_size_bytes", GAUGE, "the size of the cursor metadata of the cursor/subscription"
    ),
    "paused": _family("bookstand_cursor_paused", GAUGE, "1 while dispatch is paused, else 0"),
    "paused_by_state_size": _family(
        "bookstand_cursor_paused_by_state_size", GAUGE, "1 while dispatch is paused because of that size, else 0"
    ),
    "paused_by_left_out": _family(
        "bookstand_cursor_paused_by_left_out",
        GAUGE,
        "1 while dispatch is paused because the old form's limits leave ranges or batches out, else 0",
    ),
    "entries_to_resume": _family(
        "bookstand_cursor_entries_to_resume",
        GAUGE,
        "lowest unacknowledged entries whose acknowledgment ends the pause, NaN if none does",
    ),
    "backlog": _family("bookstand_cursor_backlog_entries", GAUGE, "entries that are not acknowledged"),
    "cache_bytes": _family("bookstand_cursor_cache_bytes", GAUGE, "what pages take in memory"),
    "cache_pages": _family("bookstand_cursor_cache_pages", GAUGE, "pages in memory"),
    "dirty_pages": _family("bookstand_cursor_dirty_pages", GAUGE, "pages in memory that are not written yet"),
    "hit_ratio": _family("bookstand_cursor_cache_hit_ratio", GAUGE, "of the pages asked for, those in memory"),
    "cache_hits": _family("bookstand_cursor_cache_hits_total", COUNTER, "pages asked for that were in memory"),
    "cache_misses": _family("bookstand_cursor_cache_misses_total", COUNTER, "pages asked for that were not"),
    "flushes": _family("bookstand_cursor_flushes_total", COUNTER, "times the state was written"),
    "pages_written": _family("bookstand_cursor_flushed_pages_total", COUNTER, "pages written"),
    "bytes_written": _family("bookstand_cursor_flushed_bytes_total", COUNTER, "bytes written, markers included"),
    "left_out_ranges": _family(
        "bookstand_cursor_left_out_ranges", GAUGE, "ranges that the old form's limits keep from being written"
    ),
    "left_out_batches": _family(
        "bookstand_cursor_left_out_batches", GAUGE, "batches that the old form's limits keep from being written"
    ),
    "damaged_pages": _family(
        "bookstand_cursor_damaged_pages_total",
        COUNTER,
        "damaged pages of acknowledgments that were replaced by older ones or dropped",
    ),
}
"""By the figure of :class:`CursorStats` that each shows."""


def samples(stats: CursorStats, topic: str, subscription: str) -> Iterator[Sample]:
    tenant, namespace, _ = parts_of(topic)
    labels = {"namespace": f"{tenant}/{namespace}" if tenant else "", "topic": topic, "subscription": subscription}
    for figure, family in FAMILIES.items():
        value = getattr(stats, figure)
        yield Sample(family, family.name, labels, nan if value is None else float(value))
