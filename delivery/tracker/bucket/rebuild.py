"""Reading of delayed messages from the topic, to replace damaged snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.errors import MalformedMessageError
from bookstand.managed_ledger.managed_ledger import ManagedLedger
from bookstand.managed_ledger.message.format import Message, plain_metadata
from bookstand.managed_ledger.topic_entries import TopicEntry
from bookstand.storage.logger import logger

if TYPE_CHECKING:
    from bookstand.proto.pulsar_message_pb2 import MessageMetadata

Reader = Callable[[int, int], Iterator[Indexes]]
"""Returns the delayed messages of the ledgers from one to another, inclusive, in batches."""


def topic_rebuilder(topic: ManagedLedger) -> Reader:
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
    runs = topic.read_run(ledger_id, 0, entries - 1, lambda damage: logger().warning("%s", damage))
    for entry in chain.from_iterable(run.entries() for run in runs):
        time = deliver_at_of(entry)
        if time is not None:
            times.append(time)
            entry_ids.append(entry.position.entry_id)
    return Indexes.of(times, np.full(len(times), ledger_id), entry_ids)


def deliver_at_of(entry: TopicEntry) -> int | None:
    """Return the delivery time of an entry; None if it is not delayed, or not a message."""
    try:
        return deliver_at_time(entry.data)
    except MalformedMessageError as error:
        logger().warning("entry %s: treating an unreadable message as not delayed: %s", entry.position, error)
        return None


def deliver_at_time(data: bytes) -> int | None:
    """Return the delivery time in an entry's metadata.

    Protobuf is several times as fast as ``Message``, which handles the unusual cases.
    """
    stored = plain_metadata(data)
    if stored is not None:
        parse, decode_error = _protobuf()
        try:
            metadata = parse(stored)
        except decode_error:
            pass
        else:
            if metadata.IsInitialized():
                return metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None
    return Message(data).metadata.deliver_at_time


@cache
def _protobuf() -> tuple[Callable[[bytes], MessageMetadata], type[Exception]]:
    """Import lazily, because protobuf is slow to load."""
    from google.protobuf.message import DecodeError

    from bookstand.proto.pulsar_message_pb2 import MessageMetadata

    return MessageMetadata.FromString, DecodeError
