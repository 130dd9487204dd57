"""Initial state of an opened cursor: that of a new cursor, or the stored state."""

from __future__ import annotations

from collections.abc import Mapping

from bookstand.cursor.format import position_info, snapshot_form
from bookstand.cursor.format.page_index import PageIndex
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.cursor.state.cursor_state import CursorState
from bookstand.cursor.state.page_cache import PageCache
from bookstand.cursor.store import cursor_ledger, recovery
from bookstand.cursor.store.cursor_ledger import CursorLedger
from bookstand.cursor.store.recovery import RecoveredFrom
from bookstand.errors import IncorrectParameterError
from bookstand.managed_ledger.managed_ledger import ManagedLedger
from bookstand.managed_ledger.records import CursorInfo
from bookstand.storage.format.position import Position


def create(
    topic: ManagedLedger,
    cursor_log: CursorLedger,
    initial: str,
    properties: Mapping[str, int],
    cursor_properties: tuple[tuple[str, str], ...],
) -> recovery.RecoveredState:
    """Create a cursor at the beginning or the end of a topic. It consists of its record, without a ledger."""
    mark_delete = topic.last_confirmed if initial == "latest" else _beginning(topic)
    info = CursorInfo(
        cursor_ledger.NO_LEDGER,
        mark_delete,
        properties=tuple(properties.items()),
        last_active=topic.client.clock.now(),
        cursor_properties=cursor_properties,
    )
    cursor_log.put(info)
    source = RecoveredFrom(recovery.NEW, cursor_ledger.NO_LEDGER, -1)
    size = snapshot_form.size_inline(AckSnapshot(mark_delete, {}, {}, dict(properties))) if properties else 0
    return recovery.RecoveredState(source, mark_delete, dict(properties), PageIndex(), [], 0, None, size)


def _beginning(topic: ManagedLedger) -> Position:
    first = topic.extent.first
    if first is not None:
        return Position(first.ledger_id, -1)
    return Position(topic.last_confirmed.ledger_id, -1)


def recover(
    topic: ManagedLedger,
    cursor: str,
    cursor_log: CursorLedger,
    info: CursorInfo,
    resident: PageCache,
    at_marker: Position | None,
    read_only: bool,
) -> recovery.RecoveredState:
    """Recover the newest consistent state from the cursor's ledgers; from its record if no ledger has one."""
    topic_entries = {ledger.ledger_id: ledger.entries for ledger in topic.ledgers}
    if at_marker is not None:
        ledgers = cursor_log.source(False, at_marker.ledger_id)
        found = recovery.recover(cursor, ledgers, topic_entries, resident, at_marker.entry_id)
        if (
            isinstance(found, recovery.RecoveredState)
            and found.source[1:3] == at_marker
            and found.marker_entry is not None
        ):
            cursor_log.handle = found.handle
            return found
        raise IncorrectParameterError(f"cursor {cursor!r} of topic {topic.name} has no intact marker at {at_marker}")
    if cursor_log.damage is not None and not read_only:
        cursor_log.put(info)
    found = recovery.recover(cursor, cursor_log.source(not read_only), topic_entries, resident)
    skipped: tuple[str, ...] = () if cursor_log.damage is None else (cursor_log.damage,)
    if isinstance(found, recovery.RecoveredState):
        cursor_log.handle = found.handle
        return found._replace(source=found.source._replace(skipped=(*skipped, *found.source.skipped)))
    skipped += found
    if cursor_log.damage is None and not read_only:
        # No ledger was fenced, so fence a former owner by changing the version of the record.
        cursor_log.put(info)
    mark_delete = info.mark_delete or _beginning(topic)
    limits = topic.client.expansion_limits
    state = position_info.from_parts(
        mark_delete, info.ranges, info.batches, dict(info.properties), topic_entries, limits
    ).state
    source = RecoveredFrom(recovery.RECORD, cursor_ledger.NO_LEDGER, -1, skipped)
    return recovery.from_ack_snapshot(source, state, snapshot_form.size_inline(state))


def install_recovered(topic: ManagedLedger, state: CursorState, found: recovery.RecoveredState) -> None:
    """Install the recovered state, restricted to ledgers and entries that the topic still has."""
    extent = topic.extent
    state.index = found.pages
    state.properties = dict(found.properties)
    for page in found.unstored:
        page.limit = extent.entries(page.ledger_id) or 0
        # A state that another program wrote may acknowledge entries beyond the end of a ledger. In the last ledger
        # that would acknowledge future messages.
        page.drop_from(page.limit)
        state.pages.mark_dirty(page)
    for ledger_id in [one for one, _ in state.index.items() if extent.entries(one) is None]:
        state.index.remove(ledger_id)
    for ledger_id in state.pages.ledger_ids():
        if extent.entries(ledger_id) is None:
            state.pages.drop(ledger_id)
    state.mark_delete = _within(topic, found.mark_delete)


def _within(topic: ManagedLedger, mark_delete: Position) -> Position:
    """Clamp a position after the topic's end to the end, and move one before a deleted ledger to the entry before."""
    extent = topic.extent
    if mark_delete > topic.last_confirmed:
        return topic.last_confirmed
    if extent.entries(mark_delete.ledger_id) is None and mark_delete.entry_id < 0:
        return extent.preceding(mark_delete) or mark_delete
    return mark_delete
