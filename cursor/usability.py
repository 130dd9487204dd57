"""Whether a cursor can still be used, and for what."""

from __future__ import annotations

from bookstand.cursor.flushing import Flushing
from bookstand.errors import BookstandError, WriteOnReadOnlyError
from bookstand.ledger.client import Client


class Usability:
    """``closed`` is set by the cursor, once, when it is closed or deleted."""

    def __init__(self, name: str, client: Client, flushing: Flushing, read_only: bool) -> None:
        self._name = name
        self._client = client
        self._flushing = flushing
        self._read_only = read_only
        self.closed: BookstandError | None = None

    @property
    def usable(self) -> bool:
        """Whether it was neither closed nor deleted, nor taken over by another."""
        return self.closed is None and self._flushing.fenced is None

    def check(self) -> None:
        """Raise what ended it, or its store."""
        if self.closed is not None:
            raise self.closed
        if self._flushing.fenced is not None:
            raise self._flushing.fenced
        self._client.check_usable()

    def check_writable(self) -> None:
        self.check()
        if self._read_only:
            raise WriteOnReadOnlyError(f"cursor {self._name!r} was opened read-only")
