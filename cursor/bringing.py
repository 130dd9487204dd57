"""Bringing the pages that a cursor's state asks for (``cursor/live.py``) from the disk, without its lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from threading import Lock
from typing import TypeVar

from bookstand.cursor import recovery
from bookstand.cursor.acks import LedgerAcks
from bookstand.cursor.flushing import Flushing
from bookstand.cursor.live import LiveState, PageNeeded
from bookstand.cursor.log import CursorLog
from bookstand.cursor.page_ref import PageRef
from bookstand.cursor.usability import Usability
from bookstand.errors import BookstandError
from bookstand.ledger.handle import LedgerHandle
from bookstand.storage.log import logger
from bookstand.storage.position import Position

_T = TypeVar("_T")


class Bringing:
    """``lock`` is the state's, and is held for no I/O."""

    def __init__(
        self, name: str, live: LiveState, cursor_log: CursorLog, flushing: Flushing, lock: Lock, usability: Usability
    ) -> None:
        self._name = name
        self._live = live
        self._log = cursor_log
        self._flushing = flushing
        self._lock = lock
        self._usability = usability

    def ask(self, question: Callable[[], _T]) -> _T:
        """Ask the state, under its lock, once the pages that the answer takes are in memory."""
        while True:
            try:
                with self._lock:
                    self._usability.check()
                    return question()
            except PageNeeded as needed:
                self.bring(needed.ledger_id)

    def bring(self, ledger_id: int) -> None:
        """Read a page, and put it among those in memory."""
        while True:
            with self._lock:
                self._usability.check()
                # Somebody else may have brought it; and once it is changed, the index names a place that it may be only
                # on its way to. It stays in memory until it is there.
                if ledger_id in self._live.pages:
                    return
                ref = self._live.index.get(ledger_id)
                handle = self._log.handle
            if ref is None or handle is None:
                return
            try:
                parts = recovery.read_parts(handle, ref)
                page = recovery.load_page(self._name, ledger_id, ref, parts)
            except BookstandError as error:
                # A flush under way may be about to replace the ledger that the page was read from.
                with self._flushing.alone:
                    with self._lock:
                        moved = handle is not self._log.handle or self._live.index.get(ledger_id) != ref
                        mark_delete = self._live.mark_delete
                    if not moved:
                        if not isinstance(error, recovery.DAMAGED):
                            raise
                        self._replace(handle, ledger_id, ref, error, mark_delete)
                continue
            with self._lock:
                if self._live.index.get(ledger_id) == ref:
                    self._live.install(page)
            return

    def _replace(
        self, handle: LedgerHandle, ledger_id: int, ref: PageRef, error: BookstandError, mark_delete: Position
    ) -> None:
        """Use an older page, or none, instead of a damaged one; the next flush stores that. No flush is under way."""
        page, report = self._log.replacement(handle, ledger_id, ref, error, mark_delete)
        with self._lock:
            if self._live.index.get(ledger_id) != ref or ledger_id in self._live.pages:
                return
            self._live.replace_page(page)
        self._flushing.report([report])

    def bring_all(self) -> None:
        for ledger_id, _ in list(self._live.index.items()):
            self.bring(ledger_id)

    def pages(self) -> Iterator[LedgerAcks]:
        """A copy of each page, in the order of ledgers; those not in memory are read one by one and not kept."""
        with self._lock:
            ids = self._live.ledger_ids()
        for ledger_id in ids:
            page = self.ask(partial(self._copy_of_page, ledger_id))
            if page is not None:
                yield page

    def _copy_of_page(self, ledger_id: int) -> LedgerAcks | None:
        page = self._live.page(ledger_id)
        return None if page is None else page.copy()

    def close_holes(self) -> None:
        """Go on moving the mark-delete position, however many pages have to be read for it."""
        while True:
            with self._lock:
                self._live.close_holes()
                wanted = self._live.wanted
            if wanted is None:
                return
            self.bring(wanted)

    def close_holes_if_possible(self) -> None:
        """What was acknowledged is so whether the page that comes next can be read or not; who asks for what is in that
        page is told."""
        try:
            self.close_holes()
        except recovery.LOST as error:
            logger().warning("cursor %s of topic %s cannot move on: %s", self._name, self._log.topic, error)
