"""Reading the pages that a cursor's state (``cursor/state/cursor_state.py``) needs, without holding its lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from threading import Lock
from typing import TypeVar

from bookstand.cursor.format.page_ref import PageRef
from bookstand.cursor.lifecycle import CursorLifecycle
from bookstand.cursor.state.cursor_state import CursorState, PageMiss
from bookstand.cursor.state.ledger_acks import LedgerAcks
from bookstand.cursor.store import recovery
from bookstand.cursor.store.cursor_ledger import CursorLedger
from bookstand.cursor.store.flusher import Flusher
from bookstand.errors import BookstandError
from bookstand.ledger.handles.handle import LedgerHandle
from bookstand.storage.format.position import Position
from bookstand.storage.logger import logger

_T = TypeVar("_T")


class PageLoader:
    """``lock`` is the state's, and is not held during I/O."""

    def __init__(
        self,
        name: str,
        live: CursorState,
        cursor_log: CursorLedger,
        flushing: Flusher,
        lock: Lock,
        usability: CursorLifecycle,
    ) -> None:
        self._name = name
        self._live = live
        self._log = cursor_log
        self._flushing = flushing
        self._lock = lock
        self._usability = usability

    def ask(self, question: Callable[[], _T]) -> _T:
        """Call ``question`` under the state's lock, again after each page that it needs has been read.

        The page is installed in the same hold of the lock in which the question is called again, so that no other
        thread can evict it in between: each page that is read is progress."""
        read: tuple[PageRef, LedgerAcks] | None = None
        while True:
            with self._lock, self._usability.guard:
                self._usability.check()
                if read is not None and self._live.index.get(read[1].ledger_id) == read[0]:
                    self._live.install(read[1])
                try:
                    return question()
                except PageMiss as needed:
                    ledger_id = needed.ledger_id
                    ref, handle = self._live.index.get(ledger_id), self._log.handle
            read = self._read(ledger_id, ref, handle)

    def _read(
        self, ledger_id: int, ref: PageRef | None, handle: LedgerHandle | None
    ) -> tuple[PageRef, LedgerAcks] | None:
        """Read the page that the index refers to; None if it has been stored elsewhere since."""
        if ref is None or handle is None:
            return None
        try:
            return ref, recovery.load_page(
                self._name, ledger_id, ref, recovery.read_parts(handle, ref), self._log.client.expansion_limits
            )
        except BookstandError as error:
            # A flush in progress may be about to replace the ledger that the page was read from.
            with self._flushing.alone:
                with self._lock:
                    moved = handle is not self._log.handle or self._live.index.get(ledger_id) != ref
                    mark_delete = self._live.mark_delete
                if not moved:
                    if not isinstance(error, recovery.DAMAGED):
                        raise
                    self._replace(handle, ledger_id, ref, error, mark_delete)
            return None

    def _replace(
        self, handle: LedgerHandle, ledger_id: int, ref: PageRef, error: BookstandError, mark_delete: Position
    ) -> None:
        """Use an older page, or none, instead of a damaged one; the next flush stores that. No flush is under way."""
        page, report = self._log.replacement(handle, ledger_id, ref, error, mark_delete)
        with self._lock, self._usability.guard:
            if self._live.index.get(ledger_id) != ref or ledger_id in self._live.pages:
                return
            self._live.replace_page(page)
        self._flushing.report([report])

    def bring(self, ledger_id: int) -> LedgerAcks | None:
        """Return the page of a ledger, read into the cache if need be; None if it has none."""
        return self.ask(partial(self._live.page, ledger_id))

    def bring_all(self) -> None:
        for ledger_id, _ in list(self._live.index.items()):
            self.bring(ledger_id)

    def pages(self) -> Iterator[LedgerAcks]:
        """Yield a copy of each page, in the order of ledgers. Pages that are not in memory are read one by one and not
        added to the cache, whose order stays as it is."""
        with self._lock:
            ids = self._live.ledger_ids()
        for ledger_id in ids:
            page = self._copy(ledger_id)
            if page is not None:
                yield page

    def _copy(self, ledger_id: int) -> LedgerAcks | None:
        read: tuple[PageRef, LedgerAcks] | None = None
        while True:
            with self._lock:
                self._usability.check()
                page = self._live.pages.peek(ledger_id)
                if page is not None:
                    return page.copy()
                ref, handle = self._live.index.get(ledger_id), self._log.handle
                if ref is None:
                    return None
                if read is not None and read[0] == ref:
                    return read[1]
            read = self._read(ledger_id, ref, handle)

    def close_holes(self) -> None:
        """Continue to move the mark-delete position, reading the pages that this takes."""
        self.ask(self._close_holes)

    def _close_holes(self) -> None:
        self._live.close_holes()
        if self._live.wanted is not None:
            raise PageMiss(self._live.wanted)

    def close_holes_if_possible(self) -> None:
        """Do the same, but only log that a page cannot be read: the acknowledgment that led here is valid whether the
        next page can be read or not. A call that needs the page raises the error."""
        try:
            self.close_holes()
        except recovery.PAGE_LOST_ERRORS as error:
            logger().warning("cursor %s of topic %s cannot move on: %s", self._name, self._log.topic, error)
