"""Bits of an open store that flip as on a disk that decays: no checksum is made anew."""

from __future__ import annotations

from typing import Any

from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format import schema


class _Flip:
    def __init__(self, database: bytes, key: bytes, bit: int) -> None:
        self.database, self.key, self.bit = database, key, bit

    def apply(self, staging: Any) -> None:
        changed = bytearray(staging.get(self.database, self.key))
        at = self.bit % (8 * len(changed))
        changed[at // 8] ^= 1 << at % 8
        staging.put(self.database, self.key, bytes(changed))


def _flip(store: Any, database: bytes, key: bytes, bit: int) -> None:
    """Bits are counted from the first of the stored bytes; past the last one from the first again."""
    # What a sum of seals counts is what was written, not what became of it.
    sums, schema.META_SUMS = schema.META_SUMS, {}
    try:
        store.storage.apply(WriteBatch(_Flip(database, key, bit)))
    finally:
        schema.META_SUMS = sums


def flip_entry(store: Any, ledger_id: int, entry_id: int, bit: int = -1) -> None:
    _flip(store, schema.ENTRIES, schema.ENTRY_KEY.pack(ledger_id, entry_id), bit)


def flip_node(store: Any, path: str, bit: int = -1) -> None:
    _flip(store, schema.NODES, path.encode(), bit)


def flip_metadata(store: Any, ledger_id: int, bit: int = -1) -> None:
    _flip(store, schema.LEDGERS, schema.LEDGER_KEY.pack(ledger_id), bit)


def flip_state(store: Any, ledger_id: int, bit: int = -1) -> None:
    _flip(store, schema.STATE, schema.LEDGER_KEY.pack(ledger_id), bit)
