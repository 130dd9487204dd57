"""Acknowledgment state of a subscription as a plain value."""

from __future__ import annotations

from typing import NamedTuple

from pyroaring import BitMap64

from bookstand.storage.format.position import Position


class AckSnapshot(NamedTuple):
    """Acknowledged are all entries up to ``mark_delete``, and the entries in the bitmap of each ledger.

    ``batches`` holds the partially acknowledged batches: bit n of the number is set while message n of the batch is NOT
    acknowledged. Bitmaps are 64-bit because entry ids are.
    """

    mark_delete: Position
    acked: dict[int, BitMap64]
    batches: dict[Position, int]
    properties: dict[str, int]
