"""Ledgers that are referenced by reserved properties of a cursor, and deleted with it.

    property    #pulsar.internal.delayed.<...> = <ledger id>

The custom metadata of such a ledger names its topic and cursor. Only this proves that the ledger belongs to the cursor,
because a property may have been copied from another cursor or another store. If the metadata is damaged, the property
is sufficient.
"""

from __future__ import annotations

from collections.abc import Iterable

from bookstand.cursor.validation import INTERNAL_PREFIX
from bookstand.errors import MetadataSerializationError, NoSuchLedgerError, StoreDamagedError
from bookstand.ledger.client import Client
from bookstand.managed_ledger.topic_name import property_of
from bookstand.storage.format.schema import MAX_LEDGER_ID
from bookstand.storage.logger import logger

DELAYED_PREFIX = f"{INTERNAL_PREFIX}delayed."

_DAMAGED = StoreDamagedError, MetadataSerializationError


def property_ledgers(client: Client, topic: str, cursor: str, properties: Iterable[tuple[str, str]]) -> list[int]:
    """Return the ledgers to delete with a cursor that has these properties. The ledgers may be unreadable.

    If there is at least one such property, the result includes ledgers of the cursor that no property references; this
    reads the metadata of every ledger.
    """
    named = [(name, value) for name, value in properties if name.startswith(DELAYED_PREFIX)]
    if not named:
        return []
    found: list[int] = []
    damaged: set[int] = set()
    for ledger_id in client.list():
        try:
            labels = client.read_metadata(ledger_id).custom_metadata
        except NoSuchLedgerError:
            continue
        except _DAMAGED:
            damaged.add(ledger_id)
            continue
        if property_of(labels, topic, cursor) is not None:
            found.append(ledger_id)
    for name, value in named:
        ledger_id = int(value) if value.isascii() and value.isdecimal() else MAX_LEDGER_ID + 1
        if ledger_id in damaged:
            found.append(ledger_id)
        elif ledger_id not in found:
            logger().warning(
                "topic %s, cursor %s: property %s is %r, not a ledger of this cursor; the ledger is not deleted",
                topic,
                cursor,
                name,
                value,
            )
    return found
