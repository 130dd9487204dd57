"""Where a page is, and what is known of it without reading it."""

from __future__ import annotations

from typing import NamedTuple


class PageRef(NamedTuple):
    """The page is in the cursor ledger's entries from ``entry_id`` on, ``parts`` of them.

    ``generation`` is the number of the flush that wrote it; ``acked`` entries are acknowledged and ``partial`` more in
    part. ``size`` is in bytes of all parts together, ``crc`` a checksum over the parts' checksums.
    """

    entry_id: int
    parts: int
    generation: int
    acked: int
    partial: int
    size: int
    crc: int
