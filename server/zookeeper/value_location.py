"""Location of a znode's value: a ledger's metadata, or the node with the same path."""

from __future__ import annotations

from typing import NamedTuple

from bookstand.ledger.cluster.ledger_path import ROOT as LEDGERS
from bookstand.ledger.cluster.ledger_path import ledger_id_of, ledger_path
from bookstand.storage.format import schema, sealed_record

LEDGER_IDS = f"{LEDGERS}/idgen"
"""Parent of the sequential znodes from whose numbers BookKeeper's clients get ledger ids."""


class Place(NamedTuple):
    """Location of a record in the store; ``ledger_id`` is None for a node."""

    database: bytes
    key: bytes
    ledger_id: int | None

    def unseal(self, sealed: bytes) -> tuple[bytes, int]:
        """Return (value, version)."""
        return sealed_record.unseal_versioned(self.database, self.key, sealed)


def place_of(path: str) -> Place:
    """Location of a znode's value. Only the canonical path of a ledger in BookKeeper's layout refers to a ledger."""
    if path.startswith(LEDGERS):
        ledger_id = ledger_id_of(path)
        if ledger_id is not None and ledger_path(ledger_id) == path:
            return Place(schema.LEDGERS, schema.LEDGER_KEY.pack(ledger_id), ledger_id)
    return Place(schema.NODES, path.encode(), None)


def path_of(database: bytes, key: bytes) -> str:
    """Path of the znode whose value is this record of ``nodes`` or ``ledgers``."""
    return schema.path_of(key) if database == schema.NODES else ledger_path(schema.ledger_of(database, key))
