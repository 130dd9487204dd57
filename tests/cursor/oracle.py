"""Snapshots read the plain way: by protobuf, entry by entry. What the library's reader is held against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bookstand.proto import ml_data_formats_pb2 as formats

Entries = dict[int, set[int]]


def plain(data: bytes, ledgers: Mapping[int, int] | None = None) -> dict[str, Any]:
    info = formats.PositionInfo.FromString(data)
    mark_delete = (info.ledgerId, info.entryId)
    acked: Entries = {}
    if info.individualDeletedMessages:
        for one in info.individualDeletedMessages:
            _add_range(acked, one, dict(ledgers or {}))
    else:
        for longs in info.individualDeletedMessageRanges:
            entries = acked.setdefault(longs.key, set())
            for place, word in enumerate(longs.values):
                entries |= {64 * place + bit for bit in range(64) if word >> bit & 1}
    return {
        "mark_delete": mark_delete,
        "acked": {
            ledger: kept
            for ledger, entries in acked.items()
            if (kept := sorted(entry for entry in entries if (ledger, entry) > mark_delete))
        },
        "batches": {
            (one.position.ledgerId, one.position.entryId): _bits(one.deleteSet)
            for one in info.batchedEntryDeletionIndexInfo
            if (one.position.ledgerId, one.position.entryId) > mark_delete
        },
        "properties": {one.name: one.value for one in info.properties},
    }


def _add_range(acked: Entries, one: Any, ledgers: dict[int, int]) -> None:
    lower, upper = one.lowerEndpoint, one.upperEndpoint
    first = max(lower.entryId, -1) + 1
    if lower.ledgerId == upper.ledgerId:
        acked.setdefault(upper.ledgerId, set()).update(range(first, upper.entryId + 1))
    elif lower.ledgerId < upper.ledgerId:
        acked.setdefault(lower.ledgerId, set()).update(range(first, ledgers.get(lower.ledgerId, 0)))
        for ledger, entries in ledgers.items():
            if lower.ledgerId < ledger < upper.ledgerId:
                acked.setdefault(ledger, set()).update(range(entries))
        acked.setdefault(upper.ledgerId, set()).update(range(upper.entryId + 1))


def _bits(words: Any) -> int:
    return sum((word & (1 << 64) - 1) << 64 * place for place, word in enumerate(words))
