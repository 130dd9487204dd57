"""Bridge between the event loop and the store's committer thread.

Changes that arrive in one turn of the loop are submitted at its end and join the group commit with the changes of other
connections. The committer notifies the loop when they are durable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from bookstand.errors import BookstandError
from bookstand.storage.commit.group_commit import CommitRequest
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.logger import logger
from bookstand.storage.storage import Storage

if TYPE_CHECKING:
    from bookstand.storage.commit.operations import Operation

Told = Callable[[BaseException | None], None]
"""Called in the loop after the change is durable, or with the error that prevented it."""


class Flushable(Protocol):
    """A connection with responses to send."""

    def proceed(self) -> None:
        """Send the responses, and process further requests."""


class BridgedCommit(CommitRequest):
    """One change; ``told`` is called with its outcome."""

    __slots__ = ("_office", "error", "told")

    def __init__(self, office: CommitBridge, operations: Sequence[Operation], told: Told) -> None:
        super().__init__(None, operations)
        self._office = office
        self.told = told
        self.error: BaseException | None = None

    def on_committed(self, value: Any, error: BaseException | None, later: list[Callable[[], None]]) -> None:
        self.error = error
        self._office.arrived.append(self)
        if not later or later[-1] != self._office.wake:
            later.append(self._office.wake)


class CommitBridge:
    """The bridge of one loop and one store. Only :meth:`wake` and :meth:`apply` may be called from other threads."""

    def __init__(self, storage: Storage, loop: asyncio.AbstractEventLoop) -> None:
        self._storage = storage
        self._loop = loop
        self._outgoing: list[BridgedCommit] = []
        self.arrived: deque[BridgedCommit] = deque()
        self._woken = False
        self._unsent: set[Flushable] = set()
        self._sending = False

    def post(self, operations: Sequence[Operation], told: Told) -> None:
        """Queue a change for the next :meth:`send_off`."""
        self._outgoing.append(BridgedCommit(self, operations, told))

    def send_off(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if not outgoing:
            return
        committer = self._storage.committer
        refused: BookstandError | None = None
        with self._storage.committer_lock:
            for posted in outgoing:
                try:
                    self._storage.enqueue_locked(posted)
                except BookstandError as error:
                    posted.error = refused = error
                    self.arrived.append(posted)
        committer.hurry()
        if refused is not None:
            self.wake()

    def wake(self) -> None:
        """Schedule the delivery of finished commits. Thread-safe."""
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._tell)
            except RuntimeError:
                # The loop is closed.
                pass

    def send_later(self, sender: Flushable) -> None:
        """Flush a connection at the end of this turn, so that its responses are sent together."""
        self._unsent.add(sender)
        if not self._sending:
            self._sending = True
            self._loop.call_soon(self._send)

    def apply(self, operations: Sequence[Operation]) -> None:
        """Make a change and wait until it is durable. Must not be called in the loop's thread."""
        self._storage.apply(WriteBatch(*operations))

    def _tell(self) -> None:
        self._woken = False
        while self.arrived:
            posted = self.arrived.popleft()
            try:
                posted.told(posted.error)
            except Exception:
                # The error affects one connection; the other commits must still be delivered.
                logger().exception("a client could not be told of its change")

    def _send(self) -> None:
        self._sending = False
        unsent, self._unsent = self._unsent, set()
        for sender in unsent:
            sender.proceed()
