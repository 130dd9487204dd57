"""A live state in Pulsar's own form: as a snapshot for a cursor's ledger, or inline in its record."""

from __future__ import annotations

from collections.abc import Mapping

from bookstand.cursor.config import CursorConfig
from bookstand.cursor.format import position_info
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.cursor.state.cursor_state import CursorState
from bookstand.cursor.state.ranges import RangeSet
from bookstand.managed_ledger.records import CursorInfo
from bookstand.storage.format.position import Position


def is_fully_resident(live: CursorState) -> bool:
    """Whether no page is missing in memory."""
    return all(ledger_id in live.pages for ledger_id, _ in live.index.items())


def state_of(live: CursorState) -> AckSnapshot:
    """The whole state, copied; all pages are in memory."""
    pages = [page for ledger_id in live.pages.ledger_ids() if (page := live.page(ledger_id)) is not None]
    return AckSnapshot(
        live.mark_delete,
        {page.ledger_id: page.acked.copy() for page in pages if page.acked},
        {Position(page.ledger_id, entry_id): bits for page in pages for entry_id, bits in page.partial.items()},
        dict(live.properties),
    )


def form_of(config: CursorConfig) -> position_info.Form:
    """Form of acknowledgments in snapshots."""
    return "long_arrays" if config.persist_as_long_array else "ranges"


def snapshot(state: AckSnapshot, config: CursorConfig) -> position_info.EncodedSnapshot:
    """Within the limits on what is written, the lowest ranges first."""
    limits = config.max_unacked_ranges_to_persist, config.max_batch_deleted_index_to_persist
    return position_info.write(state, form_of(config), *limits)


def size_inline(state: AckSnapshot) -> int:
    """Bytes that the state takes in the record: position, ranges, batches and properties."""
    return len(position_info.write(state).data)


def misfit(ranges: int, batches: int, config: CursorConfig) -> str | None:
    """Name the limit that these numbers of ranges and batches exceed; None if they exceed none."""
    for count, what, setting in (
        (ranges, "ranges of acknowledged entries", "max_unacked_ranges_to_persist"),
        (batches, "batches acknowledged in part", "max_batch_deleted_index_to_persist"),
    ):
        limit = getattr(config, setting)
        if count > limit:
            return f"has {count} {what}, but {setting} is {limit}"
    return None


def ranges_not_fitting_inline(state: AckSnapshot, config: CursorConfig) -> int:
    """How many of the ranges the record has no room for. Where it has room for none, that goes for parts of batches,
    too: Pulsar puts them there, and does not find them again."""
    most = config.max_unacked_ranges_in_metadata_store
    return max(0, len(RangeSet(state.acked)) - most) + (0 if most else len(state.batches))


def inline(info: CursorInfo, state: AckSnapshot, now: int, config: CursorConfig) -> CursorInfo:
    """The record with the state in it, its lowest ranges, as many as the limit allows."""
    ranges = RangeSet(state.acked).to_ranges(config.max_unacked_ranges_in_metadata_store)
    return info._replace(
        mark_delete=state.mark_delete,
        ranges=tuple((*one.lower, *one.upper) for one in ranges),
        batches=tuple((*position, bits) for position, bits in sorted(state.batches.items())),
        properties=tuple(state.properties.items()),
        last_active=now,
    )


def record_pointing_at_ledger(
    info: CursorInfo, mark_delete: Position, properties: Mapping[str, int], now: int
) -> CursorInfo:
    """The record of a cursor whose state is in a ledger: the position to fall back to, and no more."""
    return info._replace(
        mark_delete=mark_delete, ranges=(), batches=(), properties=tuple(properties.items()), last_active=now
    )
