"""Faults at one of a server's bookies, which rules can select besides ledger and entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bookstand.storage.hooks import Hooks
from bookstand.storage.storage import Storage

if TYPE_CHECKING:
    from bookstand.testing.faults.faults import Faults


class BookieFaults(Hooks):
    """Hooks of one bookie, which pass its number to the faults."""

    def __init__(self, faults: Faults, bookie: int) -> None:
        self._faults = faults
        self._bookie = bookie

    def before_add(self, ledger_id: int, entry_id: int, proceed: Callable[..., None]) -> bool:
        return self._faults.before_add(ledger_id, entry_id, proceed, self._bookie)

    def after_add(self, ledger_id: int, entry_id: int, proceed: Callable[..., None]) -> bool:
        return self._faults.after_add(ledger_id, entry_id, proceed, self._bookie)

    def on_read(self, ledger_id: int, entry_id: int, stored: bytes | None) -> bytes | None:
        return self._faults.on_read(ledger_id, entry_id, stored, self._bookie)

    def on_fence(self, ledger_id: int) -> None:
        self._faults.on_fence(ledger_id, self._bookie)

    def on_read_lac(self, ledger_id: int) -> None:
        self._faults.on_read_lac(ledger_id, self._bookie)

    def on_failpoint(self, name: str, subject: Any, storage: Storage | None) -> None:
        self._faults.on_failpoint(name, subject, storage, self._bookie)
