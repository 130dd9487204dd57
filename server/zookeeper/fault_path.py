"""Writes under test hooks: they pass the same failpoints as the equivalent calls of the store's API.

Fault rules can therefore fail, delay or stall them, drop their responses, or crash the store. Hooks may block, so they
run in a separate thread, and writes are committed one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from threading import Thread
from typing import Any

from bookstand.errors import BookstandError, MetadataServiceError
from bookstand.server.zookeeper.batch import Outcome, Request, Write
from bookstand.server.zookeeper.protocol.protocol import Op
from bookstand.server.zookeeper.protocol.records import Failed
from bookstand.server.zookeeper.value_location import place_of
from bookstand.server.zookeeper.write_round import Pending
from bookstand.storage.hooks import SimulatedCrash

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bookstand.storage.hooks import Subject
    from bookstand.storage.storage import Storage

Committed = Callable[[list[Pending], BaseException | None, Sequence[Outcome] | None], None]

# Failpoints of each operation, for a node and for a ledger.
_POINTS: dict[Op, tuple[str, str]] = {
    Op.CREATE: ("nodes.put", "create"),
    Op.CREATE2: ("nodes.put", "create"),
    Op.CREATE_CONTAINER: ("nodes.put", "create"),
    Op.CREATE_TTL: ("nodes.put", "create"),
    Op.SET_DATA: ("nodes.put", "metadata"),
    Op.DELETE: ("nodes.delete", "delete"),
}


def points_of(write: Write) -> Iterator[tuple[str, Subject]]:
    """Yield the failpoints of a write, without the suffix, and their subjects."""
    if not isinstance(write, Request):
        return
    for op, body in write.body if write.op is Op.MULTI else [(write.op, write.body)]:
        if op in _POINTS and body.path:
            node, ledger = _POINTS[op]
            ledger_id = place_of(body.path).ledger_id
            yield (node, body.path) if ledger_id is None else (ledger, ledger_id)


class InterceptedWrite:
    """State machine of one write: failpoints before, commit, failpoints after."""

    def __init__(
        self,
        storage: Storage,
        loop: asyncio.AbstractEventLoop,
        pending: Pending,
        submit: Callable[[list[Pending], Committed], None],
        committed: Committed,
    ) -> None:
        self._storage = storage
        self._loop = loop
        self._pending = pending
        self._points = list(points_of(pending.write))
        self._submit = submit
        self._committed = committed

    def begin(self) -> None:
        self._pass("before", self._passed_before)

    def _passed_before(self, error: BaseException | None) -> None:
        if error is None:
            self._submit([self._pending], self._stored)
        else:
            self._committed([self._pending], error, None)

    def _stored(self, batch: list[Pending], error: BaseException | None, outcomes: Sequence[Outcome] | None) -> None:
        if outcomes is None or isinstance(outcomes[0].result, Failed):
            self._committed(batch, error, outcomes)
            return
        self._pass("after", lambda fault: self._passed_after(batch, outcomes[0], fault))

    def _passed_after(self, batch: list[Pending], outcome: Outcome, fault: BaseException | None) -> None:
        self._committed(batch, None, [outcome if fault is None else outcome._replace(result=fault)])

    def _pass(self, moment: str, then: Callable[[BaseException | None], Any]) -> None:
        if not self._points:
            then(None)
            return

        def run() -> None:
            error: BaseException | None = None
            try:
                for name, subject in self._points:
                    # Hooks may have been removed in the meantime.
                    if self._storage.hooks is not None:
                        self._storage.point(f"{name}.{moment}", subject)
            except SimulatedCrash as crash:
                error = crash.reason
            except BookstandError as fault:
                error = fault
            except Exception as caught:
                error = MetadataServiceError(f"a hook failed: {caught!r}")
            self._loop.call_soon_threadsafe(then, error)

        Thread(target=run, name="bookstand-zookeeper-hooks", daemon=True).start()
