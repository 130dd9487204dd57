"""What a subscription has acknowledged, as a plain value."""

from __future__ import annotations

from typing import NamedTuple

from pyroaring import BitMap64

from bookstand.storage.format.position import Position


class AckSnapshot(NamedTuple):
    """Every entry up to ``mark_delete`` is acknowledged, and of each ledger those in its bitmap.

    ``batches`` are the batches that are acknowledged in part: bit n of the number is set while message n of the batch
    is NOT acknowledged. Bitmaps are the 64-bit kind, because entry ids are: in a ledger of a topic they stay small,
    but a state must not depend on that.
    """

    mark_delete: Position
    acked: dict[int, BitMap64]
    batches: dict[Position, int]
    properties: dict[str, int]
