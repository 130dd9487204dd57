"""What a damaged store still has of what servers keep in it: their sessions and znodes, and what each bookie was sent.

Where the mark of a bookie's entry is damaged, the store's own entry takes its place. What a client sent is in both
places the same; and if the store has no such entry, the bookie's reads as lost.
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
    """Operations, and about how many bytes each writes. ``saved`` and ``deleted`` are ledgers; of the latter nothing is
    copied. Keys of ``copies`` are counted in ``met``."""
    for key, bodies in found.sealed(schema.META):
        if bodies and key.startswith(schema.META_OF_SERVERS):
            # Of several the newest: they begin with numbers that only ever rise.
            yield RestoreSealed(schema.META, key, max(bodies)), len(key) + len(bodies[0])
    for one in found.records(schema.COPIES):
        met[schema.COPIES] += 1
        try:
            name = schema.copy_name(one.key)
        except StoreDamagedError as damage:
            report.losses.append(Loss("store", str(damage)))
            continue
        ledger_id, entry_id = bookie_replica.position_of(one.key)
        given_up = one.in_place is None and ledger_id >= 0 and ledger_id not in saved
        if ledger_id in deleted or given_up:
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
            mark = _mark(found, one)
            if mark is None:
                why = f"{name} is damaged: the store's own takes its place"
                report.losses.append(Loss("copy", why, ledger_id, entry_id, entry_id))
                mark = bookie_replica.SAME
            yield RestoreOverride(one.key, mark), len(one.key) + len(mark)


def _age(copy: bookie_replica.ReplicaState) -> tuple[int, int]:
    return copy.count, copy.lac


def _mark(found: Salvage, one: SalvagedRecord) -> bytes | None:
    """None if there is none that can be, or several are found, and which is the last is not known."""
    nodes = one.elsewhere if one.in_place is None else [one.in_place]
    overrides = {mark for node in nodes if (mark := found.value(node)) is not None}
    good = [
        mark for mark in overrides if bookie_replica.may_be_override(one.key, mark[: bookie_replica.OVERRIDE_BYTES])
    ]
    return good[0] if len(good) == 1 else None
