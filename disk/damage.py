"""What is wrong with what lies on a disk: reported, never raised, so that one bad record costs no more than itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Damage(NamedTuple):
    """One thing that is wrong. ``offset`` is where in the file; the ids are -1 where none can be told."""

    file: str
    offset: int
    what: str
    ledger_id: int = -1
    entry_id: int = -1

    def __str__(self) -> str:
        where = f"{self.file} at {self.offset}"
        if self.ledger_id < 0:
            return f"{where}: {self.what}"
        entry = f"ledger {self.ledger_id}" if self.entry_id < 0 else f"entry {self.ledger_id}:{self.entry_id}"
        return f"{where}, {entry}: {self.what}"


Report = Callable[[Damage], None]
