"""persist-queue's SQLiteAckQueue, which is durable by default (WAL with SQLite's FULL) and has no batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measure import Missing


class PersistQueue:
    """Searches each message from the previous one on; otherwise every `get` scans all acknowledged messages.

    persist-queue has no delivery times, and retains acknowledged messages until `clear_acked_data`, which is not
    measured.
    """

    def __init__(self, directory: Path) -> None:
        try:
            import persistqueue
        except ImportError as error:
            raise Missing(f"persist-queue cannot be imported ({error})") from error
        self._queue = persistqueue.SQLiteAckQueue(str(directory / "persist-queue"))
        self._empty = persistqueue.Empty
        self._last: int | None = None

    def publish(self, payloads: list[bytes]) -> None:
        put = self._queue.put
        for payload in payloads:
            put(payload)

    def receive(self, count: int) -> list[Any]:
        get = self._queue.get
        messages: list[Any] = []
        try:
            while len(messages) < count:
                following = self._last is not None
                message = get(block=False, id=self._last, next_in_order=following, raw=True)
                self._last = message["pqid"]
                messages.append(message)
        except self._empty:
            pass
        return messages

    def payloads(self, messages: list[Any]) -> list[bytes]:
        return [message["data"] for message in messages]

    def ack(self, messages: list[Any]) -> None:
        ack = self._queue.ack
        for message in messages:
            ack(id=message["pqid"])

    def left(self) -> int:
        return int(self._queue.active_size())

    def server_cpu(self) -> float:
        return 0.0

    def close(self) -> None:
        self._queue.close()
