"""huey's SQLite storage with `fsync=True`, without its tasks. A message is deleted when it is received."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measure import Missing


class HueyQueue:
    def __init__(self, directory: Path) -> None:
        try:
            from huey import SqliteHuey
        except ImportError as error:
            raise Missing(f"huey cannot be imported ({error})") from error
        self._storage = SqliteHuey(filename=str(directory / "huey.sqlite"), fsync=True).storage

    def publish(self, payloads: list[bytes]) -> None:
        enqueue = self._storage.enqueue
        for payload in payloads:
            enqueue(payload)

    def receive(self, count: int) -> list[bytes]:
        dequeue = self._storage.dequeue
        messages: list[bytes] = []
        while len(messages) < count and (message := dequeue()) is not None:
            messages.append(message)
        return messages

    def payloads(self, messages: list[bytes]) -> list[bytes]:
        return messages

    def ack(self, messages: list[bytes]) -> None:
        """Do nothing: receive() has deleted the messages."""

    def left(self) -> int:
        return int(self._storage.queue_size())

    def server_cpu(self) -> float:
        return 0.0

    def close(self) -> None:
        self._storage.close()
