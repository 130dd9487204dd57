"""What a read gives."""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    class Entry(NamedTuple):
        """One entry. ``length`` is its own payload's; ``cumulative_length`` the ledger's up to and including it."""

        ledger_id: int
        entry_id: int
        data: bytes
        length: int
        cumulative_length: int

else:
    # collections.namedtuple makes the same class without importing typing, which would show in the start-up time.
    Entry = namedtuple("Entry", ["ledger_id", "entry_id", "data", "length", "cumulative_length"])
    Entry.__doc__ = (
        "One entry. ``length`` is its own payload's; ``cumulative_length`` the ledger's up to and including it."
    )
