"""A server in a thread of its own, and a client that speaks in frames."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bookstand.server.loop_thread import LoopThread
from bookstand.server.zookeeper.persistent_records import OPEN_ACL
from bookstand.server.zookeeper.protocol import records
from bookstand.server.zookeeper.protocol.jute import BOOL
from bookstand.server.zookeeper.protocol.protocol import XID_EVENT, CreateMode, Op
from bookstand.server.zookeeper.server import ZooKeeperServer
from bookstand.storage.clock import SystemClock
from bookstand.storage.storage import Storage

PATIENCE = 60.0
"""Seconds to wait for what must come, however slow the machine is."""


class Serving:
    """``with Serving(storage) as serving``: a server that listens at ``serving.port``."""

    def __init__(self, storage: Storage, clock: Any = None, port: int = 0, **options: Any) -> None:
        self.server = ZooKeeperServer(storage, clock or SystemClock(), port=port, **options)
        self._running = LoopThread(self.server)

    @property
    def port(self) -> int:
        return self.server.address[1]

    def stop(self) -> None:
        """While the block goes on; what is left to do at its end is nothing."""
        self._running.call(self.server.stop())

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the server's thread."""

        async def run() -> Any:
            return function(*arguments)

        return self._running.call(run())

    def __enter__(self) -> Serving:
        self._running.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.__exit__(None, None, None)


class ClosedError(Exception):
    """The server has closed the connection."""


class Client:
    """One connection, blocking. Events are kept apart from answers, in :attr:`events`; :attr:`order` has both."""

    def __init__(self, port: int, timeout: float = PATIENCE) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self._file = self.socket.makefile("rb")
        self.xid = 0
        self.zxid = 0
        self.session_id = 0
        self.password = bytes(16)
        self.timeout = 0
        self.events: list[tuple[int, str]] = []
        self.order: list[object] = []

    # -- frames ------------------------------------------------------------------------------------------------------

    def send_frame(self, body: bytes) -> None:
        self.socket.sendall(len(body).to_bytes(4, "big") + body)

    def frame(self) -> bytes:
        head = self._file.read(4)
        if len(head) < 4:
            raise ClosedError
        body = self._file.read(int.from_bytes(head, "big"))
        if len(body) < int.from_bytes(head, "big"):
            raise ClosedError
        return body

    def reply(self) -> tuple[records.ReplyHeader, bytes]:
        """The next answer; events before it are kept."""
        while True:
            body = self.frame()
            header = records.REPLY_HEADER.decode(body)
            if header.xid != XID_EVENT:
                self.zxid = max(self.zxid, header.zxid)
                self.order.append(header.xid)
                return header, body[16:]
            event = records.EVENT.decode(body, 16)
            self.events.append((event.type, event.path or ""))
            self.order.append((event.type, event.path))

    # -- sessions ----------------------------------------------------------------------------------------------------

    def connect(self, timeout: int = 30_000, session_id: int = 0, password: bytes = bytes(16), seen: int = 0) -> Client:
        request = records.ConnectRequest(0, seen, timeout, session_id, password)
        self.send_frame(records.CONNECT_REQUEST.encode(request) + BOOL.encode(False))
        answer = records.CONNECT_RESPONSE.decode(self.frame())
        self.session_id, self.timeout = answer.session_id, answer.timeout
        self.password = answer.password or b""
        return self

    def close(self) -> None:
        """Leave the session behind."""
        self._file.close()
        self.socket.close()

    def close_session(self) -> None:
        self.call(Op.CLOSE_SESSION)
        self.close()

    # -- requests ----------------------------------------------------------------------------------------------------

    def send(self, op: int, body: bytes = b"", xid: int | None = None) -> int:
        if xid is None:
            self.xid += 1
            xid = self.xid
        self.send_frame(records.REQUEST_HEADER.encode(records.RequestHeader(xid, op)) + body)
        return xid

    def call(self, op: Op, request: Any = None, xid: int | None = None) -> Any:
        """The result, or an error code below 0."""
        body = b"" if op not in records.REQUESTS else records.REQUESTS[op].encode(request)
        if op in (Op.MULTI, Op.MULTI_READ):
            body = multi_body(request)
        sent = self.send(op, body, xid)
        header, rest = self.reply()
        assert header.xid == sent
        return result_of(op, header, rest)

    def create(
        self, path: str, data: bytes | None = b"", mode: int = CreateMode.PERSISTENT, acl: Any = OPEN_ACL
    ) -> Any:
        return self.call(Op.CREATE, records.Create(path, data, acl, mode))

    def delete(self, path: str, version: int = -1) -> Any:
        return self.call(Op.DELETE, records.Delete(path, version))

    def set(self, path: str, data: bytes, version: int = -1) -> Any:
        return self.call(Op.SET_DATA, records.SetData(path, data, version))

    def get(self, path: str, watch: bool = False) -> Any:
        return self.call(Op.GET_DATA, records.PathAndWatch(path, watch))

    def exists(self, path: str, watch: bool = False) -> Any:
        return self.call(Op.EXISTS, records.PathAndWatch(path, watch))

    def children(self, path: str, watch: bool = False) -> Any:
        return self.call(Op.GET_CHILDREN, records.PathAndWatch(path, watch))

    def multi(self, *operations: tuple[Op, Any]) -> Any:
        return self.call(Op.MULTI, operations)

    def ping(self) -> None:
        self.call(Op.PING, xid=-2)

    def wait_for_event(self) -> tuple[int, str]:
        """The next event that has not been taken; the server is pinged until it has come."""
        deadline = time.monotonic() + PATIENCE
        while not self.events:
            assert time.monotonic() < deadline, "no event has come"
            self.ping()
        return self.events.pop(0)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def multi_body(operations: Any) -> bytes:
    out = bytearray()
    for op, request in operations:
        records.MULTI_HEADER.write(out, records.MultiHeader(op, False, -1))
        records.REQUESTS[op].write(out, request)
    records.MULTI_HEADER.write(out, records.MultiHeader(-1, True, -1))
    return bytes(out)


def result_of(op: Op, header: records.ReplyHeader, body: bytes) -> Any:
    if header.error:
        return header.error
    if op in (Op.MULTI, Op.MULTI_READ):
        return multi_results(body)
    codec = records.RESULTS.get(records.WITH_STAT.get(op, op))
    return None if codec is None else codec.decode(body)


def multi_results(body: bytes) -> list[Any]:
    """Of each operation its result, or an error code up to 0."""
    return [True if result is None else result for _, result in multi_parts(body)]


def multi_parts(body: bytes) -> list[tuple[records.MultiHeader, Any]]:
    """Of each operation of a multi the header and the result, if it has one; of one that was not done, the error."""
    found: list[tuple[records.MultiHeader, Any]] = []
    offset = 0
    while True:
        header, offset = records.MULTI_HEADER.read(body, offset)
        if header.done:
            return found
        codec = records.INT if header.type == Op.ERROR else records.RESULTS.get(header.type)
        result = None
        if codec is not None:
            result, offset = codec.read(body, offset)
        found.append((header, result))


@contextmanager
def clients(port: int, count: int = 1) -> Iterator[list[Client]]:
    """So many with sessions of their own."""
    opened = [Client(port).connect() for _ in range(count)]
    try:
        yield opened
    finally:
        for client in opened:
            client.close()


def eventually(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it has not come about"
        time.sleep(0.01)
