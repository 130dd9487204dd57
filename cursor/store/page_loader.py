"""Loading of pages that the cursor state (``state/cursor_state.py``) needs, without holding its lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from threading import Lock
from typing import TypeVar

from bookstand.cursor.format.ack_page import PageRef
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
    """Loads pages into the state. ``lock`` guards the state, and is not held during I/O."""

    def __init__(
        self,
        name: str,
        state: CursorState,
        cursor_log: CursorLedger,
        flusher: Flusher,
        lock: Lock,
        lifecycle: CursorLifecycle,
    ) -> None:
        self._name = name
        self._state = state
        self._log = cursor_log
        self._flusher = flusher
        self._lock = lock
        self._lifecycle = lifecycle

    def query(self, evaluate: Callable[[], _T]) -> _T:
        """Call ``evaluate`` under the state's lock; read the missing page after each :class:`PageMiss`, and retry.

        The page is installed in the critical section of the retry, so that no other thread can evict it in between and
        each read makes progress."""
        read: tuple[PageRef, LedgerAcks] | None = None
        while True:
            with self._lock, self._lifecycle.guard:
                self._lifecycle.check()
                if read is not None and self._state.index.get(read[1].ledger_id) == read[0]:
                    self._state.install(read[1])
                try:
                    return evaluate()
                except PageMiss as miss:
                    ledger_id = miss.ledger_id
                    ref, handle = self._state.index.get(ledger_id), self._log.handle
            read = self._read(ledger_id, ref, handle)

    def _read(
        self, ledger_id: int, ref: PageRef | None, handle: LedgerHandle | None
    ) -> tuple[PageRef, LedgerAcks] | None:
        """Read the page at ``ref``; None if the index no longer refers to it, or if the page was damaged and has been
        replaced."""
        if ref is None or handle is None:
            return None
        try:
            return ref, recovery.load_page(
                self._name, ledger_id, ref, recovery.read_parts(handle, ref), self._log.client.expansion_limits
            )
        except BookstandError as error:
            # Wait for a flush in progress, which may replace the ledger that the page was read from.
            with self._flusher.flush_lock:
                with self._lock:
                    moved = handle is not self._log.handle or self._state.index.get(ledger_id) != ref
                    mark_delete = self._state.mark_delete
                if not moved:
                    if not isinstance(error, recovery.DAMAGED):
                        raise
                    self._replace(handle, ledger_id, ref, error, mark_delete)
            return None

    def _replace(
        self, handle: LedgerHandle, ledger_id: int, ref: PageRef, error: BookstandError, mark_delete: Position
    ) -> None:
        """Replace a damaged page by an older one, or drop it; the next flush stores that. Callers hold the flush
        lock."""
        page, report = self._log.replacement(handle, ledger_id, ref, error, mark_delete)
        with self._lock, self._lifecycle.guard:
            if self._state.index.get(ledger_id) != ref or ledger_id in self._state.pages:
                return
            self._state.replace_page(page)
        self._flusher.report_damage([report])

    def load(self, ledger_id: int) -> LedgerAcks | None:
        """Return the page of a ledger, loaded into the cache if necessary; None if the ledger has no page."""
        return self.query(partial(self._state.page, ledger_id))

    def load_all(self) -> None:
        for ledger_id, _ in list(self._state.index.items()):
            self.load(ledger_id)

    def pages(self) -> Iterator[LedgerAcks]:
        """Yield a copy of each page, ordered by ledger. Pages that are not in memory are read one at a time, and bypass
        the cache."""
        with self._lock:
            ids = self._state.ledger_ids()
        for ledger_id in ids:
            page = self._copy(ledger_id)
            if page is not None:
                yield page

    def _copy(self, ledger_id: int) -> LedgerAcks | None:
        read: tuple[PageRef, LedgerAcks] | None = None
        while True:
            with self._lock:
                self._lifecycle.check()
                page = self._state.pages.peek(ledger_id)
                if page is not None:
                    return page.copy()
                ref, handle = self._state.index.get(ledger_id), self._log.handle
                if ref is None:
                    return None
                if read is not None and read[0] == ref:
                    return read[1]
            read = self._read(ledger_id, ref, handle)

    def advance_mark_delete(self) -> None:
        """Advance the mark-delete position, loading the pages that this needs."""
        self.query(self._advance_mark_delete)

    def _advance_mark_delete(self) -> None:
        self._state.advance_mark_delete()
        if self._state.blocked_on_page is not None:
            raise PageMiss(self._state.blocked_on_page)

    def try_advance_mark_delete(self) -> None:
        """Advance the mark-delete position, but only log an unreadable page, because the acknowledgment that led here
        is valid anyway. A call that needs the page raises the error."""
        try:
            self.advance_mark_delete()
        except recovery.PAGE_LOST_ERRORS as error:
            logger().warning("cursor %s of topic %s cannot advance: %s", self._name, self._log.topic, error)
