"""Where the value of a znode is kept: a ledger's is the ledger's metadata, any other's is the node with its path."""

from __future__ import annotations

from typing import NamedTuple

from bookstand.ledger.cluster.ledger_path import ROOT as LEDGERS
from bookstand.ledger.cluster.ledger_path import ledger_id_of, ledger_path
from bookstand.storage.format import schema, sealed_record

LEDGER_IDS = f"{LEDGERS}/idgen"
"""Where BookKeeper's clients take ledger ids from, as numbers of sequential znodes."""


class Place(NamedTuple):
    """A record of the store. ``ledger_id`` is None where it is a node."""

    database: bytes
    key: bytes
    ledger_id: int | None

    def unseal(self, sealed: bytes) -> tuple[bytes, int]:
        """(value, version)."""
        return sealed_record.unseal_versioned(self.database, self.key, sealed)


def place_of(path: str) -> Place:
    """A ledger has one path, the one that BookKeeper's layout gives it; other paths of that form are nodes."""
    if path.startswith(LEDGERS):
        ledger_id = ledger_id_of(path)
        if ledger_id is not None and ledger_path(ledger_id) == path:
            return Place(schema.LEDGERS, schema.LEDGER_KEY.pack(ledger_id), ledger_id)
    return Place(schema.NODES, path.encode(), None)


def path_of(database: bytes, key: bytes) -> str:
    """The path of the znode that has a record of ``nodes`` or ``ledgers`` as its value."""
    return schema.path_of(key) if database == schema.NODES else ledger_path(schema.ledger_of(database, key))
