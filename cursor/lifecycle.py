"""Whether a cursor can still be used, and for what."""

from __future__ import annotations

from bookstand.cursor.store.flusher import Flusher
from bookstand.errors import BookstandError, InterruptedOperationError, WriteOnReadOnlyError
from bookstand.ledger.client import Client
from bookstand.storage.process.interrupt_guard import InterruptGuard


class CursorLifecycle:
    """``closed`` is set by the cursor, once, when it is closed or deleted.

    ``guard`` belongs to the state in memory: an interrupted change of it ends the cursor, whose stored state is whole.
    """

    def __init__(self, name: str, client: Client, flushing: Flusher, read_only: bool) -> None:
        self._name = name
        self._client = client
        self._flushing = flushing
        self._read_only = read_only
        self.closed: BookstandError | None = None
        self.guard = InterruptGuard(self.break_off)

    @property
    def usable(self) -> bool:
        """Whether it was neither closed nor deleted, nor taken over by another, nor interrupted in a change."""
        return self.closed is None and self._flushing.fenced is None and not self.was_interrupted

    @property
    def is_undisturbed(self) -> bool:
        """Whether it is usable, and nothing is under way that could have been interrupted; the lock is held."""
        undisturbed = self.guard.call is None and self._flushing.guard.call is None
        return undisturbed and self.closed is None and self._flushing.fenced is None

    @property
    def was_interrupted(self) -> bool:
        """Whether a change of its state was interrupted."""
        interrupted = self.guard.was_interrupted or self._flushing.guard.was_interrupted
        return interrupted or isinstance(self.closed, InterruptedOperationError)

    def break_off(self) -> None:
        """An interrupted change may have been made in part. What was acknowledged and is durable is not affected."""
        self.closed = self.closed or InterruptedOperationError(
            f"cursor {self._name!r} was interrupted in the middle of a change, and acknowledgments that were not "
            "durable may be lost; open it again"
        )
        self._flushing.end(self.closed)

    def check(self) -> None:
        """Raise what ended it, or its store."""
        if self._flushing.guard.was_interrupted:
            self.break_off()
        if self.closed is not None:
            raise self.closed
        if self._flushing.fenced is not None:
            raise self._flushing.fenced
        self._client.check_usable()

    def check_writable(self) -> None:
        self.check()
        if self._read_only:
            raise WriteOnReadOnlyError(f"cursor {self._name!r} was opened read-only")
