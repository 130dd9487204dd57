"""References to stored pages."""

from __future__ import annotations

from typing import NamedTuple


class PageRef(NamedTuple):
    """Location and summary of a page, which is stored in ``parts`` entries of the cursor ledger from ``entry_id`` on.

    ``generation`` is the number of the flush that wrote it. ``acked`` and ``partial`` are its numbers of acknowledged
    and partially acknowledged entries. ``size`` is the size of all parts, ``crc`` a checksum over their checksums.
    """

    entry_id: int
    parts: int
    generation: int
    acked: int
    partial: int
    size: int
    crc: int
