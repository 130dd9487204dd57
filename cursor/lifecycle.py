"""Usability checks of an open cursor."""

from __future__ import annotations

from bookstand.cursor.store.flusher import Flusher
from bookstand.errors import BookstandError, InterruptedOperationError, WriteOnReadOnlyError
from bookstand.ledger.client import Client
from bookstand.storage.process.interrupt_guard import InterruptGuard


class CursorLifecycle:
    """Errors that end a cursor: closed, deleted, fenced or interrupted.

    The cursor sets ``closed`` once, when it is closed or deleted. ``guard`` protects the state in memory: an
    interrupted change makes the cursor unusable, but its stored state stays consistent.
    """

    def __init__(self, name: str, client: Client, flusher: Flusher, read_only: bool) -> None:
        self._name = name
        self._client = client
        self._flusher = flusher
        self._read_only = read_only
        self.closed: BookstandError | None = None
        self.guard = InterruptGuard(self.mark_interrupted)

    @property
    def is_usable(self) -> bool:
        """False once the cursor was closed, deleted, fenced or interrupted."""
        return self.closed is None and self._flusher.fenced is None and not self.was_interrupted

    @property
    def is_idle(self) -> bool:
        """True if the cursor is usable and no guarded change is in progress. Callers hold the lock."""
        no_change = self.guard.call is None and self._flusher.guard.call is None
        return no_change and self.closed is None and self._flusher.fenced is None

    @property
    def was_interrupted(self) -> bool:
        interrupted = self.guard.was_interrupted or self._flusher.guard.was_interrupted
        return interrupted or isinstance(self.closed, InterruptedOperationError)

    def mark_interrupted(self) -> None:
        """Fail the cursor, because an interrupted change may be incomplete. Durable acknowledgments are unaffected."""
        self.closed = self.closed or InterruptedOperationError(
            f"cursor {self._name!r} was interrupted during a change, and acknowledgments that were not durable may be "
            "lost; open it again"
        )
        self._flusher.fail_pending(self.closed)

    def check(self) -> None:
        """Raise the error that ended the cursor or its store, if any."""
        if self._flusher.guard.was_interrupted:
            self.mark_interrupted()
        if self.closed is not None:
            raise self.closed
        if self._flusher.fenced is not None:
            raise self._flusher.fenced
        self._client.check_usable()

    def check_writable(self) -> None:
        self.check()
        if self._read_only:
            raise WriteOnReadOnlyError(f"cursor {self._name!r} was opened read-only")
