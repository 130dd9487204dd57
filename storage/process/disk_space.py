"""Refusal of writes while the disk is full, as on a bookie. Reads continue."""

from __future__ import annotations

from bookstand.errors import DiskFullError, NotEnoughBookiesError
from bookstand.storage.lmdb.errors import has_space

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.errors import BookstandError


class DiskSpace:
    """Remembers that a write found the disk full, until there is space again."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.full: BookstandError | None = None
        # A hook simulates a full disk, whatever space the real one has.
        self.simulates_full = False

    def record_failure(self, error: BookstandError) -> None:
        """Remember that the disk is full if a write failed for that reason."""
        if isinstance(error.__cause__, DiskFullError):
            self.full = error

    def record_freed(self) -> None:
        """Accept writes again: pages inside the file became free, regardless of the free space of the disk."""
        self.full = None

    def full_error(self) -> BookstandError | None:
        """Error for operations that consume space; None if there is space."""
        if self.full is None:
            return None
        if not self.simulates_full and has_space(self._folder):
            self.full = None
            return None
        error = NotEnoughBookiesError(str(self.full))
        error.__cause__ = DiskFullError(str(self.full))
        return error
