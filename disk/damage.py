"""Damage found on a disk. It is reported instead of raised, so that a bad record affects nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Damage(NamedTuple):
    """One instance of damage. ``offset`` is the position in the file; unknown ids are -1."""

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
