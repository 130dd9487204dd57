"""What a snapshot should have told, read from the topic itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from bookstand.delivery.indexes import Indexes
from bookstand.errors import MalformedMessageError
from bookstand.ledger.framing import Message
from bookstand.ledger.managed import ManagedLedger, TopicEntry
from bookstand.storage.log import logger
from bookstand.storage.position import Position

Reader = Callable[[int, int], Iterator[Indexes]]
"""The delayed messages in the ledgers from one to another, the last one included, some at a time."""


def reader_of(topic: ManagedLedger) -> Reader:
    def read(first_ledger: int, last_ledger: int) -> Iterator[Indexes]:
        for ledger_id in topic.extent.ledger_ids:
            if first_ledger <= ledger_id <= last_ledger:
                found = _delayed_in(topic, ledger_id)
                if found.size:
                    yield found

    return read


def _delayed_in(topic: ManagedLedger, ledger_id: int) -> Indexes:
    times: list[int] = []
    entry_ids: list[int] = []
    entries = topic.extent.entries(ledger_id) or 0
    for entry in topic.read_ledger(ledger_id, 0, entries - 1):
        time = delay_of(TopicEntry(Position(ledger_id, entry.entry_id), entry.data))
        if time is not None:
            times.append(time)
            entry_ids.append(entry.entry_id)
    return Indexes.of(times, np.full(len(times), ledger_id), entry_ids)


def delay_of(entry: TopicEntry) -> int | None:
    """When a message is to be delivered; None if it is not delayed, or no message."""
    try:
        return Message(entry.data).metadata.deliver_at_time
    except MalformedMessageError as error:
        logger().warning("entry %s is taken for one without delay: %s", entry.position, error)
        return None
