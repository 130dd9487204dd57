"""Facts about ledgers apart from their entries, from special records in journals and from index files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bookstand.disk.bookies.discovery import read_index
from bookstand.disk.damage import Damage, Report
from bookstand.disk.format.journal import MetaEntry


class LedgerFacts:
    """Fences, master keys and explicit LACs, collected while the files are read."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.fenced: dict[int, tuple[int, ...]] = {}
        self.master_keys: dict[int, bytes] = {}
        self.explicit_lacs: dict[int, int] = {}
        # Interned keys: most ledgers of a cluster have the same one.
        self._keys: dict[bytes, bytes] = {}

    def of(self, path: str, bookie: int) -> Callable[[MetaEntry], None]:
        """Return the handler for special records of a bookie's journal."""

        def take(special: MetaEntry) -> None:
            if special.kind == "fence":
                self._fence(special.ledger_id, bookie)
            elif special.kind == "ledger_key":
                self._key(special.ledger_id, special.data, path, special.offset)
            elif special.kind == "explicit_lac":
                self._explicit_lac(special.ledger_id, special.lac)

        return take

    def take_index(self, path: Path, bookie: int) -> None:
        index = read_index(path, self._report)
        if index is None:
            return
        if index.fenced:
            self._fence(index.ledger_id, bookie)
        if index.master_key:
            self._key(index.ledger_id, index.master_key, str(path), 0)
        if index.explicit_lac is not None:
            self._explicit_lac(index.ledger_id, index.explicit_lac)

    def _fence(self, ledger_id: int, bookie: int) -> None:
        known = self.fenced.get(ledger_id, ())
        if bookie not in known:
            self.fenced[ledger_id] = (*known, bookie)

    def _key(self, ledger_id: int, key: bytes, path: str, offset: int) -> None:
        known = self.master_keys.setdefault(ledger_id, self._keys.setdefault(key, key))
        if known != key:
            what = f"the ledger's master key is {key.hex()} here, and {known.hex()} elsewhere"
            self._report(Damage(path, offset, what, ledger_id))

    def _explicit_lac(self, ledger_id: int, lac: int) -> None:
        self.explicit_lacs[ledger_id] = max(lac, self.explicit_lacs.get(ledger_id, lac))
