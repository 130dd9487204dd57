"""How jobs that change stores end: store by store, unit by unit, each in a transaction of its own.

Only the process that began the job writes to stores: they are on its machine, or at least no other one writes to them.
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
from bookstand.storage.storage import open_storage
from bookstand.store import Store
from bookstand.store import open as open_store


class Change(Protocol):
    """What is done to a store in one transaction."""

    def __call__(self, transaction: Transaction) -> dict[str, Any]: ...

    def finish(self) -> None:
        """Once the transaction is committed."""


def work(given: str | None) -> Path:
    """Place for the folders of runs. What attempts write is read once, by this machine: any place that tasks share will
    do."""
    return Path(tempfile.gettempdir() if given is None else local_path(given, "work folder"))


def done(job: str, units: Sequence[Unit]) -> Mapping[str, Result]:
    """What was applied, and stands as it was left."""
    found: dict[str, Result] = {}
    for path, some in _by_store((unit, None) for unit in units).items():
        storage = open_storage(path, create=False, read_only=True)
        try:
            told = applied(storage, job, [unit for unit, _ in some])
            found |= {
                unit.name: told[unit.name]
                for unit, _ in some
                if unit.name in told and is_unchanged(storage, unit, told[unit.name])
            }
        finally:
            storage.close()
    return found


def commit(
    job: str, done: Sequence[tuple[Unit, Result]], change_of: Callable[[Store, Unit, Result], Change]
) -> list[Result]:
    results: list[Result] = []
    for path, some in _by_store(done).items():
        with ExitStack() as stack:
            store: Store | None = None
            for unit, result in some:
                try:
                    if store is None:
                        store = stack.enter_context(open_store(path, create=False))
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
