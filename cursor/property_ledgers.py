"""Ledgers that the reserved properties of a cursor name, which are deleted with the cursor.

    property    #pulsar.internal.delayed.<...> = <ledger id>

Such a ledger names its topic and cursor in its custom metadata. A property may have been copied from another cursor or
another store, so only this tells that the ledger belongs to the cursor; what it contains is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bookstand.cursor.arguments import INTERNAL_PREFIX
from bookstand.errors import BookstandError, NoSuchLedgerError
from bookstand.ledger.client import Client
from bookstand.storage.log import logger

DELAYED_PREFIX = f"{INTERNAL_PREFIX}delayed."

SNAPSHOT_OWNER = ("pulsar/delayedIndexTopic", "pulsar/delayedIndexCursor")
RESCHEDULED_OWNER = ("bookstand/topic", "bookstand/cursor")
"""Keys of the custom metadata with the names of topic and cursor: of a bucket's snapshot, and of the times that
messages were rescheduled to."""
_COMPONENTS = b"delayed-index-"


def property_ledgers(
    client: Client, topic: str, cursor: str, properties: Iterable[tuple[str, str]] | None
) -> list[int]:
    """Ledgers to delete with a cursor that has these properties, which need not be readable. None: its record cannot be
    read, so that only the labels of ledgers tell.

    If there are such properties, also the ledgers of the cursor that no property names; for that the metadata of every
    ledger is read.
    """
    named = [(name, value) for name, value in properties or () if name.startswith(DELAYED_PREFIX)]
    if properties is not None and not named:
        return []
    found = [ledger_id for ledger_id in client.list() if _owner(client, ledger_id) == (topic, cursor)]
    owned = set(map(str, found))
    for name, value in named:
        if value not in owned:
            logger().warning(
                "topic %s, cursor %s: property %s is %r, which is no ledger of this cursor; the ledger is not deleted",
                topic,
                cursor,
                name,
                value,
            )
    return found


def _owner(client: Client, ledger_id: int) -> tuple[str, str] | None:
    """Topic and cursor that the ledger belongs to, or None."""
    try:
        custom = client.read_metadata(ledger_id).custom_metadata
    except NoSuchLedgerError:
        return None
    except BookstandError as error:
        logger().warning("the owner of ledger %d is not known: %s", ledger_id, error)
        return None
    return owner_of(custom)


def owner_of(custom: Mapping[str, bytes]) -> tuple[str, str] | None:
    """Topic and cursor that the custom metadata of a snapshot, or of rescheduled messages, names."""
    if not custom.get("component", b"").startswith(_COMPONENTS):
        return None
    for topic, cursor in (SNAPSHOT_OWNER, RESCHEDULED_OWNER):
        if topic in custom and cursor in custom:
            return custom[topic].decode(errors="replace"), custom[cursor].decode(errors="replace")
    return None
