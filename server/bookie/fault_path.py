"""One add under test hooks, which may delay it, fail it, drop its response, or crash the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bookstand.errors import OutcomeUnknownError
from bookstand.server.bookie.add_batches import Adds
from bookstand.storage.hooks import Hooks, SimulatedCrash

if TYPE_CHECKING:
    from bookstand.server.bookie.connection import BookieConnection

Step = Callable[[BaseException | None], None]


class InterceptedAdd:
    """State machine of one add. Each step runs in the loop's thread; hooks resume it from any thread."""

    def __init__(self, connection: BookieConnection, alone: Adds, hooks: Hooks | None, told: Step) -> None:
        self._connection = connection
        self._desk = connection.desk
        self._alone = alone
        self._entry = alone.ledger_id, alone.entry_ids[0]
        self._hooks = hooks
        self._told = told

    def begin(self) -> None:
        if self._hooks is None or not self._hooks.before_add(*self._entry, self._later(self._store)):
            self._store(None)

    def _store(self, error: BaseException | None) -> None:
        if self._connection.closed:
            # The client has disconnected or the bookie was stopped; a stopped bookie stores nothing.
            error = error or OutcomeUnknownError(f"entry {self._entry}: the connection that it came over is closed")
        error = error or self._pass("append.before_store")
        if error is not None:
            self._told(error)
            return
        self._desk.office.post((self._alone.of(self._desk.bookie.number),), self._stored)
        self._desk.office.send_off()

    def _stored(self, error: BaseException | None) -> None:
        error = error or self._pass("append.stored")
        if error is not None or self._hooks is None:
            self._told(error)
        elif not self._hooks.after_add(*self._entry, self._later(self._told)):
            self._told(None)

    def _later(self, step: Step) -> Callable[..., None]:
        """Return the callback with which a hook resumes the add from any thread."""

        def proceed(error: BaseException | None = None) -> None:
            self._desk.loop.call_soon_threadsafe(step, error)

        return proceed

    def _pass(self, point: str) -> BaseException | None:
        try:
            self._desk.bookie.point(point, self._entry)
        except (Exception, SimulatedCrash) as error:
            return error
        return None
