"""Repair of the data of servers: sessions, znodes, and the replicas of each bookie.

A damaged override is replaced by the store's own entry, since a client sends the same entry to each bookie. If the
store has no such entry, the bookie's replica reads as lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bookstand.errors import StoreDamagedError
from bookstand.storage.commit.restore_operations import RestoreOverride, RestoreSealed
from bookstand.storage.format import schema
from bookstand.storage.repair.report import Loss, RepairReport
from bookstand.storage.repair.salvage import Salvage, SalvagedRecord
from bookstand.storage.served import bookie_replica

if TYPE_CHECKING:
    from bookstand.storage.commit.operations import Operation


def served_operations(
    found: Salvage, report: RepairReport, saved: set[int], deleted: set[int], met: dict[bytes, int]
) -> Iterator[tuple[Operation, int]]:
    """Yield operations and the approximate number of bytes each writes. ``saved`` and ``deleted`` are ledger ids;
    nothing is copied of deleted ledgers. Keys of ``copies`` are counted in ``met``."""
    for key, bodies in found.sealed(schema.META):
        if bodies and key.startswith(schema.META_OF_SERVERS):
            # The newest of several: the bodies begin with numbers that only increase.
            yield RestoreSealed(schema.META, key, max(bodies)), len(key) + len(bodies[0])
    for one in found.records(schema.COPIES):
        met[schema.COPIES] += 1
        try:
            name = schema.copy_name(one.key)
        except StoreDamagedError as damage:
            report.losses.append(Loss("store", str(damage)))
            continue
        ledger_id, entry_id = bookie_replica.position_of(one.key)
        is_orphan = one.in_place is None and ledger_id >= 0 and ledger_id not in saved
        if ledger_id in deleted or is_orphan:
            continue
        if entry_id is None:
            bodies = [
                body for body in found.bodies(schema.COPIES, one) if bookie_replica.may_be_replica_state(one.key, body)
            ]
            if bodies:
                newest = max(bodies, key=lambda body: _age(bookie_replica.unpack("", body)))
                yield RestoreSealed(schema.COPIES, one.key, newest), len(newest)
            else:
                report.losses.append(Loss("copy", f"{name} is damaged", ledger_id))
        else:
            override = _override(found, one)
            if override is None:
                why = f"{name} is damaged: replaced by the store's entry"
                report.losses.append(Loss("copy", why, ledger_id, entry_id, entry_id))
                override = bookie_replica.SAME
            yield RestoreOverride(one.key, override), len(one.key) + len(override)


def _age(replica: bookie_replica.ReplicaState) -> tuple[int, int]:
    return replica.count, replica.lac


def _override(found: Salvage, one: SalvagedRecord) -> bytes | None:
    """Return the override; None if there is no valid one, or several of which the newest is unknown."""
    nodes = one.elsewhere if one.in_place is None else [one.in_place]
    values = {value for node in nodes if (value := found.value(node)) is not None}
    good = [
        value for value in values if bookie_replica.may_be_override(one.key, value[: bookie_replica.OVERRIDE_BYTES])
    ]
    return good[0] if len(good) == 1 else None
