"""Commit phase of jobs that change stores: one transaction for each unit, one store at a time.

Only the process that started the job writes to the stores. They must be on its machine, or at least no other machine
may write to them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from bookstand.errors import BookstandError
from bookstand.ledger.transaction import Transaction
from bookstand.pipeline.execution.exactly_once import applied, apply
from bookstand.pipeline.execution.unit import Result, Unit
from bookstand.pipeline.jobs.bucket_staging import is_unchanged
from bookstand.pipeline.tables.sources import local_path
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.storage import open_storage
from bookstand.store import Store
from bookstand.store import open as open_store


class Change(Protocol):
    """Change of a store in one transaction. Returns the facts to store in the marker of the unit."""

    def __call__(self, transaction: Transaction) -> dict[str, Any]: ...

    def finish(self) -> None:
        """Release the resources of the change after the transaction has been committed."""


def work(given: str | None) -> Path:
    """Folder for the run folders. Any folder that all tasks share is sufficient: this machine reads the files of the
    attempts, and does not move them."""
    return Path(tempfile.gettempdir() if given is None else local_path(given, "work folder"))


def done(job: str, units: Sequence[Unit], limits: ExpansionLimits = DEFAULT) -> Mapping[str, Result]:
    """Results of units that were applied and whose buckets have not changed since."""
    found: dict[str, Result] = {}
    for path, some in _by_store((unit, None) for unit in units).items():
        storage = open_storage(path, create=False, read_only=True)
        try:
            told = applied(storage, job, [unit for unit, _ in some])
            found |= {
                unit.name: told[unit.name]
                for unit, _ in some
                if unit.name in told and is_unchanged(storage, unit, told[unit.name], limits)
            }
        finally:
            storage.close()
    return found


def commit(
    job: str,
    done: Sequence[tuple[Unit, Result]],
    change_of: Callable[[Store, Unit, Result], Change],
    limits: ExpansionLimits = DEFAULT,
) -> list[Result]:
    results: list[Result] = []
    for path, some in _by_store(done).items():
        with ExitStack() as stack:
            store: Store | None = None
            for unit, result in some:
                try:
                    if store is None:
                        store = stack.enter_context(open_store(path, create=False, expansion_limits=limits))
                    change = change_of(store, unit, result)
                    results.append(apply(store, job, unit, result, change))
                    change.finish()
                except (BookstandError, OSError) as error:
                    results.append(Result(unit.name, failure=f"{type(error).__name__}: {error}"))
    return results


def _by_store(units: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for unit, result in units:
        found.setdefault(unit.of["store"], []).append((unit, result))
    return found
