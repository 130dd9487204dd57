"""Exactly-once application of the changes that units have prepared for a store.

The change of a unit and a marker node are committed in one transaction. The marker contains the fingerprint of the
unit. A job that runs again skips units whose marker has their current fingerprint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from bookstand.errors import MetadataVersionError, NoSuchNodeError
from bookstand.ledger.transaction import Transaction
from bookstand.pipeline.execution.unit import Result, Unit, fingerprint
from bookstand.storage.storage import Storage
from bookstand.store import Store

MARKERS = "/bookstand/jobs"

Steps = Callable[[Transaction], dict[str, Any]]
"""Callable that adds operations to a transaction and returns the facts to store in the marker."""


class StaleInputError(MetadataVersionError):
    """The input of a change was modified after the change was prepared. Run the job again."""


def marker_path(job: str, unit: str) -> str:
    return f"{MARKERS}/{job}/{fingerprint(unit)}"


def applied(storage: Storage, job: str, units: Sequence[Unit]) -> dict[str, Result]:
    """Results of the units whose markers have their current fingerprints."""
    found = {}
    for unit in units:
        told = _told(storage, job, unit.name)
        if told is not None and told.get("fingerprint") == unit.fingerprint:
            found[unit.name] = Result(unit.name, told["counts"], facts=told["facts"])
    return found


def apply(store: Store, job: str, unit: Unit, result: Result, steps: Steps) -> Result:
    """Commit the steps and the marker in one transaction. Of concurrent attempts, one succeeds."""
    path = marker_path(job, unit.name)
    stored = store.storage.node(path)
    marker = {"unit": unit.name, "fingerprint": unit.fingerprint, "counts": result.counts}
    try:
        with store.transaction() as transaction:
            told = json.dumps({**marker, "facts": steps(transaction)}).encode()
            transaction.put_node(path, told, -1 if stored is None else stored[1])
    except (MetadataVersionError, NoSuchNodeError) as error:
        raise StaleInputError(f"the store has changed since the unit was planned: {error}") from error
    return result._replace(staged=None)


def _told(storage: Storage, job: str, unit: str) -> dict[str, Any] | None:
    stored = storage.node(marker_path(job, unit))
    try:
        told = None if stored is None else json.loads(stored[0])
    except ValueError:
        return None
    return told if isinstance(told, dict) else None
