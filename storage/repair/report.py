"""Report of a repair: saved data and losses."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple


class Loss(NamedTuple):
    """Something that is missing from the new store or has changed. ``what`` is ``"entries"``, ``"state"`` or
    ``"metadata"`` of a ledger, ``"copy"`` for a bookie's replica, ``"node"``, or ``"store"`` if the loss cannot be
    attributed."""

    what: str
    why: str
    ledger_id: int | None = None
    first_entry: int | None = None
    last_entry: int | None = None
    node: str | None = None

    def as_dict(self) -> dict[str, Any]:
        fields = self._asdict()
        return {"what": fields.pop("what"), "why": fields.pop("why"), "ledger": fields.pop("ledger_id"), **fields}

    def __str__(self) -> str:
        if self.what == "entries" and self.ledger_id is not None and self.first_entry is not None:
            if self.first_entry == self.last_entry:
                return f"entry {self.ledger_id}:{self.first_entry}: {self.why}"
            return f"entries {self.ledger_id}:{self.first_entry} to {self.ledger_id}:{self.last_entry}: {self.why}"
        if self.ledger_id is not None and self.what != "store":
            return f"{self.what} of ledger {self.ledger_id}: {self.why}"
        return self.why if self.node is None else f"node {self.node}: {self.why}"


@dataclass
class RepairReport:
    """Result of a repair. The numbers of a dry run are those that would be saved."""

    source: str
    destination: str
    dry_run: bool
    ledgers: int = 0
    entries: int = 0
    bytes: int = 0
    """Size of the stored entries, with headers and digests."""
    nodes: int = 0
    found_elsewhere: int = 0
    """Entries found on pages that no tree refers to."""
    deleted_ledgers: int = 0
    """Deleted ledgers whose entries were not collected yet. They are not in the new store."""
    made_up: list[int] = field(default_factory=list)
    """Ledgers whose metadata was lost and has been reconstructed from their entries."""
    unchecked: list[int] = field(default_factory=list)
    """Ledgers whose entries were copied without verification, because the password is unknown."""
    losses: list[Loss] = field(default_factory=list)

    @property
    def lost_entries(self) -> int:
        """Number of lost entries with known ids."""
        return sum(
            loss.last_entry - loss.first_entry + 1
            for loss in self.losses
            if loss.what == "entries" and loss.first_entry is not None and loss.last_entry is not None
        )

    @property
    def whole(self) -> bool:
        """True if everything was saved unchanged."""
        return not self.losses

    def entry_is_lost(self) -> Callable[[int | None, int | None], bool]:
        """Return a function that checks efficiently whether an entry of a ledger is lost."""
        runs: dict[int, list[tuple[int, int]]] = {}
        for loss in self.losses:
            if loss.ledger_id is not None and loss.first_entry is not None and loss.last_entry is not None:
                runs.setdefault(loss.ledger_id, []).append((loss.first_entry, loss.last_entry))
        for some in runs.values():
            some.sort()

        def is_lost(ledger_id: int | None, entry_id: int | None) -> bool:
            if ledger_id is None or entry_id is None or ledger_id not in runs:
                return False
            index = bisect_right(runs[ledger_id], entry_id, key=itemgetter(0)) - 1
            return index >= 0 and entry_id <= runs[ledger_id][index][1]

        return is_lost

    def as_dict(self) -> dict[str, Any]:
        """Convert the report to a dictionary that can be encoded as JSON."""
        names = (
            "dry_run",
            "ledgers",
            "entries",
            "bytes",
            "nodes",
            "found_elsewhere",
            "deleted_ledgers",
            "made_up",
            "unchecked",
        )
        return {name: getattr(self, name) for name in names} | {
            "lost_entries": self.lost_entries,
            "losses": [loss.as_dict() for loss in self.losses],
        }
