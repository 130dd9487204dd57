"""Entries as returned by reads."""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple

    class Entry(NamedTuple):
        """An entry of a ledger. ``length`` is the payload's size, ``cumulative_length`` the total of payload sizes up
        to this entry."""

        ledger_id: int
        entry_id: int
        data: bytes
        length: int
        cumulative_length: int

else:
    # Importing typing would slow down startup.
    Entry = namedtuple("Entry", ["ledger_id", "entry_id", "data", "length", "cumulative_length"])
    Entry.__doc__ = """An entry of a ledger.

``length`` is the payload's size, ``cumulative_length`` the total of payload sizes up to this entry.
"""
