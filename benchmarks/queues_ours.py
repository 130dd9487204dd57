"""A topic with one subscription, behind the interface of the baseline queues. Each publish is one Pulsar batch, whose
messages are received and acknowledged individually."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bookstand
from bookstand.managed_ledger.message.format import Message


class TopicQueue:
    def __init__(self, directory: Path) -> None:
        self._store = bookstand.open(directory / "store", durability="commit")
        self._topic = self._store.topic("queue")
        self._subscription = self._topic.subscription("worker")

    def publish(self, payloads: list[bytes]) -> None:
        self._topic.publish_batch(payloads)

    def receive(self, count: int) -> list[Any]:
        return self._subscription.receive(count, timeout=0)

    def payloads(self, messages: list[Any]) -> list[bytes]:
        return [message.payload for message in messages]

    def ack(self, messages: list[Any]) -> None:
        self._subscription.ack_many(messages).result()

    def left(self) -> int:
        cursor = self._subscription.cursor
        partial = cursor.partial_batches()
        remaining = 0
        for entry in cursor.unacked():
            metadata = Message(entry.data).metadata
            remaining += len(partial.get(entry.position, range(metadata.num_messages_in_batch or 1)))
        return remaining

    def server_cpu(self) -> float:
        return 0.0

    def close(self) -> None:
        self._store.close()
