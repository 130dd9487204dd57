"""Full snapshots in Pulsar's form, as a baseline of cursor benchmarks."""

from __future__ import annotations

from collections.abc import Iterable

from pyroaring import BitMap64

from benchmarks.cursor_topics import FIRST_LEDGER
from bookstand.cursor.format import position_info
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.storage.format.position import Position


def snapshot(ledgers: int, acked: Iterable[int], form: position_info.Form) -> bytes:
    """Encode a snapshot of ``ledgers`` ledgers with the same acknowledged entries in each, without limits."""
    bitmap = BitMap64(acked)
    state = AckSnapshot(
        Position(FIRST_LEDGER, -1), {FIRST_LEDGER + number: bitmap for number in range(ledgers)}, {}, {}
    )
    return position_info.write(state, form).data
