"""litequeue, made durable: it sets `synchronous=NORMAL`, and this module then sets FULL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measure import Missing


class LiteQueue:
    """Publishes and acknowledges in transactions of litequeue's API; `pop` commits for every message.

    litequeue has no delivery times, and retains acknowledged messages until `prune`, which is not measured.
    """

    def __init__(self, directory: Path) -> None:
        try:
            import litequeue
        except ImportError as error:
            raise Missing(f"litequeue cannot be imported ({error})") from error
        self._queue = litequeue.LiteQueue(directory / "litequeue.sqlite")
        self._queue.conn.execute("PRAGMA synchronous=FULL")
        self._done = litequeue.MessageStatus.DONE.value

    def publish(self, payloads: list[bytes]) -> None:
        put = self._queue.put
        with self._queue.transaction("IMMEDIATE"):
            for payload in payloads:
                put(payload)  # type: ignore[arg-type]

    def receive(self, count: int) -> list[Any]:
        pop = self._queue.pop
        messages = []
        while len(messages) < count and (message := pop()) is not None:
            messages.append(message)
        return messages

    def payloads(self, messages: list[Any]) -> list[bytes]:
        return [message.data for message in messages]

    def ack(self, messages: list[Any]) -> None:
        done = self._queue.done
        with self._queue.transaction("IMMEDIATE"):
            for message in messages:
                done(message.message_id)

    def left(self) -> int:
        count = f"SELECT count(*) FROM {self._queue.table} WHERE status <> {self._done}"
        return int(self._queue.conn.execute(count).fetchone()[0])

    def server_cpu(self) -> float:
        return 0.0

    def close(self) -> None:
        self._queue.close()
