"""Conversion of the state to Pulsar's snapshot form: a snapshot in the cursor ledger, or inline in the record."""

from __future__ import annotations

from collections.abc import Mapping

from bookstand.cursor.config import CursorConfig
from bookstand.cursor.format import position_info
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.cursor.state.cursor_state import CursorState
from bookstand.cursor.state.ranges import RangeSet
from bookstand.managed_ledger.records import CursorInfo
from bookstand.storage.format.position import Position


def is_fully_resident(state: CursorState) -> bool:
    return all(ledger_id in state.pages for ledger_id, _ in state.index.items())


def state_of(state: CursorState) -> AckSnapshot:
    """Return a copy of the whole state. All pages are in memory."""
    pages = [page for ledger_id in state.pages.ledger_ids() if (page := state.page(ledger_id)) is not None]
    return AckSnapshot(
        state.mark_delete,
        {page.ledger_id: page.acked.copy() for page in pages if page.acked},
        {Position(page.ledger_id, entry_id): bits for page in pages for entry_id, bits in page.partial.items()},
        dict(state.properties),
    )


def form_of(config: CursorConfig) -> position_info.Form:
    return "long_arrays" if config.persist_as_long_array else "ranges"


def snapshot(state: AckSnapshot, config: CursorConfig) -> position_info.EncodedSnapshot:
    """Encode a snapshot of the lowest ranges and batches, up to the limits."""
    limits = config.max_unacked_ranges_to_persist, config.max_batch_deleted_index_to_persist
    return position_info.write(state, form_of(config), *limits)


def size_inline(state: AckSnapshot) -> int:
    """Return the size of the state in the record: position, ranges, batches and properties."""
    return len(position_info.write(state).data)


def misfit(ranges: int, batches: int, config: CursorConfig) -> str | None:
    """Describe the limit that these numbers of ranges and batches exceed; None if they exceed no limit."""
    for count, what, setting in (
        (ranges, "ranges of acknowledged entries", "max_unacked_ranges_to_persist"),
        (batches, "partially acknowledged batches", "max_batch_deleted_index_to_persist"),
    ):
        limit = getattr(config, setting)
        if count > limit:
            return f"has {count} {what}, but {setting} is {limit}"
    return None


def ranges_not_fitting_inline(state: AckSnapshot, config: CursorConfig) -> int:
    """Return the number of ranges that exceed the limit of the record. With a limit of 0 partially acknowledged batches
    count, too, because Pulsar would write them to the record but not read them."""
    limit = config.max_unacked_ranges_in_metadata_store
    return max(0, len(RangeSet(state.acked)) - limit) + (0 if limit else len(state.batches))


def inline(info: CursorInfo, state: AckSnapshot, now: int, config: CursorConfig) -> CursorInfo:
    """Return the record with the state inline: its lowest ranges up to the limit."""
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
    """Return the record of a cursor whose state is in a ledger; it contains only the position to fall back to."""
    return info._replace(
        mark_delete=mark_delete, ranges=(), batches=(), properties=tuple(properties.items()), last_active=now
    )
