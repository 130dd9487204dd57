"""Where a test may reach into the store. Storage owns the interface; without hooks each point costs one test."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Proceed = Callable[..., None]


class Hooks:
    """Override what is of interest; every method here lets things take their course.

    ``proceed`` may be called from any thread, once; ``proceed(error)`` makes the operation fail with that error.
    """

    def before_add(self, ledger_id: int, entry_id: int, proceed: Proceed) -> bool:
        """An entry is about to be submitted. True: it waits, unseen by the store, until ``proceed()``."""
        return False

    def after_add(self, ledger_id: int, entry_id: int, proceed: Proceed) -> bool:
        """An entry is stored and synced. True: its acknowledgment waits until ``proceed()``."""
        return False

    def on_read(self, ledger_id: int, entry_id: int, stored: bytes | None) -> bytes | None:
        """An entry was read. What is returned is what the reader gets; None is "no such entry". May raise."""
        return stored

    def on_fence(self, ledger_id: int) -> None:
        """A ledger is about to be fenced. May raise."""

    def on_read_lac(self, ledger_id: int) -> None:
        """A ledger's last-add-confirmed is about to be read. May raise."""

    def point(self, name: str) -> None:
        """The store passes a named point: ``commit.before_write``, ``commit.before_sync``, ``commit.after_sync``.

        May raise, or end the process. What is raised before the sync refuses the commit; what is raised after it
        leaves the caller with an unknown outcome.
        """
