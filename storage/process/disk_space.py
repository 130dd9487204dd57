"""A store whose disk is full takes nothing more until there is space again, as a bookie does; reads go on."""

from __future__ import annotations

from bookstand.errors import DiskFullError, NotEnoughBookiesError
from bookstand.storage.lmdb.errors import has_space

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.errors import BookstandError


class DiskSpace:
    """Remembers that a write found the disk full."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        # What a write was told that found the disk full.
        self.full: BookstandError | None = None
        # A hook has the disk be full, whatever the machine's own has left.
        self.kept_full = False

    def note(self, error: BookstandError) -> None:
        """A write failed with this."""
        if isinstance(error.__cause__, DiskFullError):
            self.full = error

    def note_freed(self) -> None:
        """Pages inside the file became free: what the disk has left does not tell any more."""
        self.full = None

    def refusal(self) -> BookstandError | None:
        """What to answer to changes that take space; None where there is some."""
        if self.full is None:
            return None
        if not self.kept_full and has_space(self._folder):
            self.full = None
            return None
        refusal = NotEnoughBookiesError(str(self.full))
        refusal.__cause__ = DiskFullError(str(self.full))
        return refusal
