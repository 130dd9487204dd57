"""Ways to break what keeps interrupted calls from doing harm: each must be noticed by the kind ``interrupts``.

``python -m tests.soak.interrupts_defects SEED POINTS DEFECT`` is a process of that kind with one of them, which is not
patient with what hangs. Each undoes one part of the library's precautions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from bookstand.delivery.subscription.subscription import Subscription
from bookstand.ledger.handles.base_writer import BaseWriter
from bookstand.managed_ledger.managed_ledger import ManagedLedger
from bookstand.storage.commit.group_commit import GroupCommitter
from bookstand.storage.lmdb.environment import LmdbEnvironment, MapLock
from bookstand.storage.process.interrupt_guard import InterruptGuard
from bookstand.storage.process.process_markers import FolderLock
from bookstand.storage.storage import Storage
from tests.soak import interrupts, interrupts_process
from tests.soak.kinds import Done, Kind

PATIENCE = 10.0
ROUNDS = 12
"""Of so many points as a round of the kind, until the defect is noticed."""


def _keep_transactions() -> None:
    """A write transaction ends where the code says so, and not with its block."""
    real = LmdbEnvironment.begin_write
    kept = []

    class Kept:
        def __init__(self, transaction: Any) -> None:
            self.transaction = transaction

        def __enter__(self) -> Any:
            kept.append(self.transaction)
            return self.transaction

        def __exit__(self, *_: object) -> None:
            pass

    LmdbEnvironment.begin_write = lambda self: Kept(real(self))  # type: ignore[assignment, method-assign, return-value]


def _keep_the_lead() -> None:
    """An interrupted leader remains the leader."""

    def lead(self: Any) -> bool:
        if not self._may_lead() or not self._leading.acquire(False):
            return False
        with self.lock:
            batch, self._open = self._open, None
        later: list[Any] = []
        if batch is not None:
            self._commit_batch(batch, later)
        self._end_lead(batch, later)
        return True

    GroupCommitter._lead = lead  # type: ignore[method-assign]


def _keep_the_lead_alone() -> None:
    """The same of a lone append."""

    def run_exclusive(self: Any, action: Callable[..., Any], *arguments: Any) -> Any:
        if self._open is not None or not self._may_lead() or not self._leading.acquire(False):
            return None
        result = action(*arguments) if self._open is None and not self._stopped else None
        self._leading.release()
        self._wake_open_batch()
        return result

    GroupCommitter.run_exclusive = run_exclusive  # type: ignore[method-assign]


def _stay_inside() -> None:
    """Interrupted calls stay inside the gate of the environment."""
    MapLock._end_interrupted = lambda self, thread: None  # type: ignore[method-assign]


def _half_closed_ledger() -> None:
    """Who waits for the end of a ledger waits for the thread that began to close it."""
    real = BaseWriter.drive

    def drive(self: Any, completion: Any, deadline: float | None) -> None:
        if not getattr(self, "_began_to_close", False):
            self._began_to_close = True
            real(self, completion, deadline)

    BaseWriter.drive = drive  # type: ignore[method-assign]


def _half_closed_store() -> None:
    """Who opens a store waits for the thread that began to close it."""
    real = Storage.finish_closing

    def finish_closing(self: Any) -> None:
        if not getattr(self, "_began_to_close", False):
            self._began_to_close = True
            real(self)

    Storage.finish_closing = finish_closing  # type: ignore[method-assign]


def _lose_taken() -> None:
    """What an interrupted call had taken and did not return stays in flight."""
    Subscription.dispatch = lambda self, consumer, limit: self._dispatch(consumer, limit, [])  # type: ignore[method-assign]


def _no_repair() -> None:
    """No call notices that the one before it was interrupted."""

    def leave(self: Any, *_: object) -> None:
        self.call = None

    InterruptGuard.__exit__ = leave  # type: ignore[method-assign]


def _no_repair_of_topics() -> None:
    """A topic goes on with the record that it knows."""
    ManagedLedger._repair = lambda self: None  # type: ignore[method-assign]


def _keep_the_folder() -> None:
    """The folder's lock is released at the end of its block only."""
    release = FolderLock.release
    FolderLock.__exit__ = lambda self, *_: release(self)  # type: ignore[method-assign]
    FolderLock.__del__ = lambda self: None  # type: ignore[method-assign]
    FolderLock.release = lambda self: None  # type: ignore[method-assign]


DEFECTS: dict[str, Callable[[], None]] = {
    "keep transactions": _keep_transactions,
    "keep the lead": _keep_the_lead,
    "keep the lead alone": _keep_the_lead_alone,
    "stay inside": _stay_inside,
    "half closed ledger": _half_closed_ledger,
    "half closed store": _half_closed_store,
    "lose what was taken": _lose_taken,
    "no repair": _no_repair,
    "no repair of topics": _no_repair_of_topics,
    "keep the folder": _keep_the_folder,
}


def missed(name: str) -> str | None:
    """The defect, if the campaign does not notice it."""
    for seed in range(ROUNDS):
        if interrupts.run(seed, defect=name).problems:
            return None
    return f"defect {name!r} was not noticed in {ROUNDS * interrupts.POINTS} points"


def one_round(seed: int) -> Done:
    name = sorted(DEFECTS)[seed % len(DEFECTS)]
    problem = missed(name)
    return Done(1, [problem] if problem else [])


KIND = Kind(one_round)


if __name__ == "__main__":
    interrupts_process.patience = PATIENCE
    DEFECTS[sys.argv[3]]()
    sys.exit(interrupts_process.main(int(sys.argv[1]), int(sys.argv[2])))
