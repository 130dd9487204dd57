"""Changes on their way from the loop to the store's committer, and the news of them back to the loop.

Whatever arrives in a turn of the loop is submitted at its end, and committed together with what other connections have
submitted; the committer works in its own thread, and the loop goes on meanwhile.
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
"""Called in the loop once the change is durable, or was refused with an error."""


class Flushable(Protocol):
    """Has answers to send."""

    def proceed(self) -> None:
        """Send them, and go on."""


class BridgedCommit(CommitRequest):
    """One change; ``told`` hears what became of it."""

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
    """For one loop and one store. All but :meth:`wake` is for the loop's thread alone."""

    def __init__(self, storage: Storage, loop: asyncio.AbstractEventLoop) -> None:
        self._storage = storage
        self._loop = loop
        self._outgoing: list[BridgedCommit] = []
        self.arrived: deque[BridgedCommit] = deque()
        self._woken = False
        self._unsent: set[Flushable] = set()
        self._sending = False

    def post(self, operations: Sequence[Operation], told: Told) -> None:
        """Queue a change; it goes off with the next :meth:`send_off`."""
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
        """There is news; from any thread."""
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._tell)
            except RuntimeError:
                # The loop is closed: nobody waits for it any more.
                pass

    def send_later(self, sender: Flushable) -> None:
        """Somebody has answers, which are to go out together with others that come in this turn."""
        self._unsent.add(sender)
        if not self._sending:
            self._sending = True
            self._loop.call_soon(self._send)

    def apply(self, operations: Sequence[Operation]) -> None:
        """Make a change and wait until it is durable; from any thread but the loop's."""
        self._storage.apply(WriteBatch(*operations))

    def _tell(self) -> None:
        self._woken = False
        while self.arrived:
            posted = self.arrived.popleft()
            try:
                posted.told(posted.error)
            except Exception:
                # It concerns one connection; the others are told all the same.
                logger().exception("a client could not be told of its change")

    def _send(self) -> None:
        self._sending = False
        unsent, self._unsent = self._unsent, set()
        for sender in unsent:
            sender.proceed()
