"""What tests of bookies share: requests as octets, a client that sends them, and answers taken apart."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NamedTuple, Self

from bookstand.proto import bookie_protocol_pb2 as messages
from bookstand.server.bookie.server import BookieServer
from bookstand.server.bookie.shared_state import BookieContext
from bookstand.storage.format import entry_codec as layout
from bookstand.storage.format.digest import Digest, digest_for, master_key

PATIENCE = 60.0
"""Seconds after which an answer is taken not to come; nothing depends on how fast it does."""
KEY = master_key(b"")
OTHER_KEY = master_key(b"other")
CRC32C = digest_for("crc32c", b"")

ADD, READ, AUTH, BATCH_READ = 1, 2, 3, 7
FENCE, RECOVERY, HIGH = 1, 2, 4


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def stored(ledger: int, entry: int, payload: bytes = b"abc", lac: int | None = None, digest: Digest = CRC32C) -> bytes:
    """An entry as a writer sends it that waits for each to be confirmed, all payloads having one size."""
    length = min(max(0, entry + 1) * len(payload), (1 << 63) - 1)
    return layout.encode(digest, ledger, entry, entry - 1 if lac is None else lac, length, payload)


def v2_add(entry: bytes, key: bytes = KEY, flags: int = 0, version: int = 2) -> bytes:
    return framed(bytes([version, ADD]) + flags.to_bytes(2, "big") + key + entry)


def v2_read(ledger: int, entry: int, flags: int = 0, key: bytes = b"", version: int = 2) -> bytes:
    return framed(bytes([version, READ]) + flags.to_bytes(2, "big") + struct.pack(">qq", ledger, entry) + key)


def v2_batch(ledger: int, entry: int, most: int, size: int, request: int = 1) -> bytes:
    return framed(struct.pack(">BBHqqqiq", 2, BATCH_READ, 0, ledger, entry, request, most, size))


def v3_request(operation: int, txn: int, field: str = "", priority: int | None = None, **values: Any) -> bytes:
    request = messages.Request()
    request.header.version = messages.VERSION_THREE
    request.header.operation = operation  # type: ignore[assignment]
    request.header.txnId = txn
    if priority is not None:
        request.header.priority = priority
    if field:
        getattr(request, field).SetInParent()
        for name, value in values.items():
            setattr(getattr(request, field), name, value)
    return framed(request.SerializeToString())


def v3_add(entry: bytes, txn: int = 1, key: bytes = KEY, **values: Any) -> bytes:
    ledger_id, entry_id = struct.unpack_from(">qq", entry)
    return v3_request(
        messages.ADD_ENTRY, txn, "addRequest", ledgerId=ledger_id, entryId=entry_id, masterKey=key, body=entry, **values
    )


def v3_read(ledger: int, entry: int, txn: int = 1, **values: Any) -> bytes:
    return v3_request(messages.READ_ENTRY, txn, "readRequest", ledgerId=ledger, entryId=entry, **values)


def v3_fence(ledger: int, txn: int = 1, entry: int = -1, key: bytes = KEY) -> bytes:
    return v3_read(ledger, entry, txn, flag=messages.ReadRequest.FENCE_LEDGER, masterKey=key)


def v3_long_poll(ledger: int, previous: int, millis: int, txn: int = 1) -> bytes:
    flag = messages.ReadRequest.ENTRY_PIGGYBACK
    return v3_read(ledger, -1, txn, flag=flag, previousLAC=previous, timeOut=millis)


def explicit_lac(ledger: int, lac: int, txn: int = 1, key: bytes = KEY) -> bytes:
    body = layout.encode_explicit_lac(CRC32C, ledger, lac)
    return v3_request(messages.WRITE_LAC, txn, "writeLacRequest", ledgerId=ledger, lac=lac, masterKey=key, body=body)


def desk_of(server: BookieServer, bookie: int = 1) -> BookieContext:
    """What the connections to one of its bookies share."""
    return server._doors[bookie - 1].desk


class Answer(NamedTuple):
    """One of version 2."""

    version: int
    opcode: int
    code: int
    ledger: int
    entry: int
    body: bytes


class Wire:
    """A connection to a bookie."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def frame(self) -> bytes | None:
        """The next answer, without its length; None where the connection has been closed."""
        received = self._received
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            try:
                more = self.socket.recv(1 << 20)
            except ConnectionError:
                more = b""
            if not more:
                return None
            received += more
        end = 4 + int.from_bytes(received[:4], "big")
        frame = bytes(received[4:end])
        del received[:end]
        return frame

    def v2(self, *frames: bytes) -> Answer:
        """Send, and take the next answer apart."""
        self.send(*frames)
        frame = self.frame()
        assert frame is not None, "it was closed"
        version, opcode, _, code, ledger, entry = struct.unpack_from(">BBHiqq", frame)
        return Answer(version, opcode, code, ledger, entry, frame[24:])

    def v3(self, *frames: bytes) -> Any:
        self.send(*frames)
        frame = self.frame()
        assert frame is not None, "it was closed"
        response = messages.Response.FromString(frame)
        assert response.IsInitialized()
        return response

    def codes(self, frames: Iterable[bytes]) -> list[int]:
        """What so many adds of version 2 are answered, by the order of their entries."""
        frames = list(frames)
        self.send(*frames)
        answers = [self.v2() for _ in frames]
        return [answer.code for answer in sorted(answers, key=lambda answer: answer.entry)]

    def is_closed(self) -> bool:
        return self.frame() is None
