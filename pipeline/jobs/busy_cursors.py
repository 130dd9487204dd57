"""Cursors that a job skips: damaged ones, ones that cannot be changed as required, and ones that may be open in another
process. Writing to an open cursor would fence the process that has it open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bookstand.errors import (
    BookstandError,
    DigestMismatchError,
    MalformedError,
    MetadataSerializationError,
    StoreDamagedError,
    StoreInUseError,
)
from bookstand.managed_ledger.records import decode_cursor_info, decode_ledger_info
from bookstand.managed_ledger.topic_name import cursor_node_of, node_of
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.format.ledger_metadata import CLOSED, parse
from bookstand.storage.storage import Storage

_DAMAGE = (StoreDamagedError, DigestMismatchError, MetadataSerializationError, MalformedError)


def skip_reason(error: BookstandError) -> dict[str, Any]:
    """Reason why a cursor was skipped, for the JSON summary."""
    return {"why": str(error), "held": isinstance(error, StoreInUseError), "damaged": isinstance(error, _DAMAGE)}


def check_not_held(storage: Storage, topic: str, cursor: str, limits: ExpansionLimits = DEFAULT) -> None:
    """Raise :class:`StoreInUseError` if another process may have the cursor open.

    This is a conservative test: another process has the store open for writing, and the last ledger of the topic or the
    cursor ledger is not closed. A process that died also leaves ledgers open."""
    if storage.other_processes().writers and any(
        _is_open(storage, one) for one in _ledgers(storage, topic, cursor, limits)
    ):
        raise StoreInUseError(f"cursor {cursor!r} of topic {topic} may be open in another process, which has the store")


def _ledgers(storage: Storage, topic: str, cursor: str, limits: ExpansionLimits) -> Iterator[int]:
    of_topic, of_cursor = (storage.node(path) for path in (node_of(topic), cursor_node_of(topic, cursor)))
    if of_topic is not None:
        for info in decode_ledger_info(of_topic[0], limits=limits).ledgers[-1:]:
            yield info.ledger_id
    if of_cursor is not None:
        yield decode_cursor_info(of_cursor[0], limits=limits).cursor_ledger_id


def _is_open(storage: Storage, ledger_id: int) -> bool:
    found = storage.metadata(ledger_id) if ledger_id >= 0 else None
    return found is not None and parse(found[0], ledger_id).state != CLOSED
