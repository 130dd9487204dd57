"""beanstalkd with its log and an fsync for every record (`-b`, `-f0`), through greenstalk and with pipelining."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.baselines.servers import Server
from benchmarks.measure import Missing

_PRIORITY, _LEASE = 65_536, 60


class Beanstalkd:
    """beanstalkd through greenstalk, which sends one command at a time."""

    def __init__(self, directory: Path) -> None:
        try:
            import greenstalk
        except ImportError as error:
            raise Missing(f"greenstalk cannot be imported ({error})") from error
        command = ["-b", str(directory), "-f0"]
        self._server = Server("beanstalkd", lambda socket: ["-l", f"unix:{socket}", *command], directory)
        self._client: Any = greenstalk.Client(self._server.socket, encoding=None)
        self._timed_out = greenstalk.TimedOutError

    def publish(self, payloads: list[bytes], delay: int = 0) -> None:
        put = self._client.put
        for payload in payloads:
            put(payload, priority=_PRIORITY, delay=delay, ttr=_LEASE)

    def receive(self, count: int) -> list[tuple[int, bytes]]:
        reserve = self._client.reserve
        messages: list[tuple[int, bytes]] = []
        try:
            while len(messages) < count:
                job = reserve(timeout=0)
                messages.append((job.id, job.body))
        except self._timed_out:
            pass
        return messages

    def payloads(self, messages: list[tuple[int, bytes]]) -> list[bytes]:
        return [message[1] for message in messages]

    def ack(self, messages: list[tuple[int, bytes]]) -> None:
        delete = self._client.delete
        for number, _ in messages:
            delete(number)

    def left(self) -> int:
        stats = self._client.stats()
        return sum(int(stats[f"current-jobs-{state}"]) for state in ("ready", "reserved", "delayed", "buried"))

    def server_cpu(self) -> float:
        return self._server.cpu()

    def close(self) -> None:
        self._client.close()
        self._server.stop()


class BeanstalkdPiped(Beanstalkd):
    """beanstalkd with pipelined batches, which greenstalk does not support. Each command is still synced separately."""

    def publish(self, payloads: list[bytes], delay: int = 0) -> None:
        self._send(b"put %d %d %d %d\r\n%b" % (_PRIORITY, delay, _LEASE, len(p), p) for p in payloads)
        self._expect(b"INSERTED", len(payloads))

    def receive(self, count: int) -> list[tuple[int, bytes]]:
        self._send([b"reserve-with-timeout 0"] * count)
        read, read_line = self._client._reader.read, self._client._reader.readline
        messages = []
        for _ in range(count):
            line = read_line()
            if line.startswith(b"RESERVED"):
                _, number, size = line.split()
                messages.append((int(number), read(int(size) + 2)[:-2]))
            elif line != b"TIMED_OUT\r\n":
                raise RuntimeError(f"beanstalkd answers {line!r}")
        return messages

    def ack(self, messages: list[tuple[int, bytes]]) -> None:
        self._send(b"delete %d" % number for number, _ in messages)
        self._expect(b"DELETED", len(messages))

    def _send(self, commands: Iterable[bytes]) -> None:
        self._client._sock.sendall(b"".join(command + b"\r\n" for command in commands))

    def _expect(self, answer: bytes, count: int) -> None:
        read_line = self._client._reader.readline
        for _ in range(count):
            line = read_line()
            if not line.startswith(answer):
                raise RuntimeError(f"beanstalkd answers {line!r}")
