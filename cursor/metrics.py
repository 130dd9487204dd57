"""Metrics of a cursor: the metadata size of PIP-299 under its name there, and bookstand's own metrics."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan
from typing import NamedTuple

from bookstand.managed_ledger.topic_name import parts_of
from bookstand.storage.metrics import COUNTER, GAUGE, Family, Sample

LABELS = ("namespace", "topic", "subscription")


class CursorStats(NamedTuple):
    """Statistics of a cursor; sizes are in bytes.

    ``metadata_size`` is the size of the whole state at the last flush, and ``left_out_…`` count the ranges and batches
    that the limits of the snapshot form excluded from it. ``paused_by_…`` are the reasons of a dispatch pause.
    ``entries_to_resume`` is the number of lowest unacknowledged entries whose durable acknowledgment ends the pause: 0
    without a pause, None if no acknowledgment ends it. ``damaged_pages`` counts the pages that were replaced by older
    ones or dropped since the cursor was opened.
    """

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
        lookups = self.cache_hits + self.cache_misses
        return self.cache_hits / lookups if lookups else 1.0


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
        "1 while dispatch is paused because the snapshot form's limits exclude ranges or batches, else 0",
    ),
    "entries_to_resume": _family(
        "bookstand_cursor_entries_to_resume",
        GAUGE,
        "number of lowest unacknowledged entries whose acknowledgment ends the pause, NaN if none does",
    ),
    "backlog": _family("bookstand_cursor_backlog_entries", GAUGE, "unacknowledged entries"),
    "cache_bytes": _family("bookstand_cursor_cache_bytes", GAUGE, "memory used by pages"),
    "cache_pages": _family("bookstand_cursor_cache_pages", GAUGE, "pages in memory"),
    "dirty_pages": _family("bookstand_cursor_dirty_pages", GAUGE, "pages in memory that are not yet flushed"),
    "hit_ratio": _family(
        "bookstand_cursor_cache_hit_ratio", GAUGE, "fraction of page lookups that were served from memory"
    ),
    "cache_hits": _family("bookstand_cursor_cache_hits_total", COUNTER, "page lookups that were served from memory"),
    "cache_misses": _family(
        "bookstand_cursor_cache_misses_total", COUNTER, "page lookups that read the page from storage"
    ),
    "flushes": _family("bookstand_cursor_flushes_total", COUNTER, "flushes of the state"),
    "pages_written": _family("bookstand_cursor_flushed_pages_total", COUNTER, "pages written"),
    "bytes_written": _family("bookstand_cursor_flushed_bytes_total", COUNTER, "bytes written, markers included"),
    "left_out_ranges": _family(
        "bookstand_cursor_left_out_ranges",
        GAUGE,
        "ranges that the snapshot form's limits exclude from the stored state",
    ),
    "left_out_batches": _family(
        "bookstand_cursor_left_out_batches",
        GAUGE,
        "batches that the snapshot form's limits exclude from the stored state",
    ),
    "damaged_pages": _family(
        "bookstand_cursor_damaged_pages_total",
        COUNTER,
        "damaged pages that were replaced by older ones or dropped",
    ),
}
"""Metric family of each field of :class:`CursorStats`."""


def samples(stats: CursorStats, topic: str, subscription: str) -> Iterator[Sample]:
    tenant, namespace, _ = parts_of(topic)
    labels = {"namespace": f"{tenant}/{namespace}" if tenant else "", "topic": topic, "subscription": subscription}
    for field, family in FAMILIES.items():
        value = getattr(stats, field)
        yield Sample(family, family.name, labels, nan if value is None else float(value))
