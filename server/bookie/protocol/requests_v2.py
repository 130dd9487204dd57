"""Handlers of the requests of version 2."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from bookstand.server.bookie.bookie import ReadResult
from bookstand.server.bookie.protocol import codes, v2
from bookstand.storage.served.replica_operations import LEAST_ENTRY_BYTES
from bookstand.storage.served.replica_reader import ReplicaReader

if TYPE_CHECKING:
    from bookstand.server.bookie.connection import BookieConnection


def take(connection: BookieConnection, frame: bytes) -> None:
    version, opcode, flags = v2.read_header(frame)
    if version < v2.OLDEST:
        raise v2.MalformedRequestError(f"there is no version {version}")
    if opcode == v2.ADD:
        _add(connection, version, flags, frame)
    elif opcode == v2.AUTH:
        # Imported on demand: it loads protobuf, which most connections of version 2 do not need.
        from bookstand.server.bookie.protocol import authentication

        authentication.check(frame[v2.HEADER.size :])
        connection.answer("auth", codes.OK, v2.answer_auth(authentication.NONE.SerializeToString()))
    else:
        _read(connection, v2.read_request(frame))


def _add(connection: BookieConnection, version: int, flags: int, frame: bytes) -> None:
    ledger_id, entry_id = v2.ids_of(frame)
    answer = partial(_answer_add, version, ledger_id, entry_id)
    stored = frame[v2.ENTRY_START :]
    code = codes.OK
    if version > v2.NEWEST:
        code = codes.BAD_VERSION
    elif len(stored) < LEAST_ENTRY_BYTES:
        code = codes.BAD_REQUEST
    if code != codes.OK:
        connection.answer("add", code, answer(code))
        return
    master_key = frame[v2.KEY_START : v2.ENTRY_START]
    connection.gather(ledger_id, master_key, bool(flags & v2.RECOVERY), entry_id, stored, answer)


def _answer_add(version: int, ledger_id: int, entry_id: int, code: int) -> bytes:
    return v2.answer(version, v2.ADD, code, ledger_id, entry_id)


def _read(connection: BookieConnection, request: v2.Request) -> None:
    batch = request.opcode == v2.BATCH_READ
    operation = "batch_read" if batch else "read"
    refusal = partial(_refuse, request)
    if request.version > v2.NEWEST:
        connection.answer(operation, codes.BAD_VERSION, refusal(codes.BAD_VERSION))
        return
    bookie = connection.desk.bookie

    def look(view: ReplicaReader) -> tuple[int, bytes]:
        if batch:
            code, entries = bookie.read_batch(view, request)
            return code, v2.answer_batch(request, code, entries)
        found: ReadResult = bookie.read(view, request.ledger_id, request.entry_id)
        answer = v2.answer(
            request.version, v2.READ, found.code, request.ledger_id, request.entry_id, found.stored or b""
        )
        return found.code, answer

    if not request.fence:
        connection.look(operation, look, refusal)
        return
    then = partial(connection.look, operation, look, refusal)
    connection.fence(request.ledger_id, request.master_key, then, refusal)


def _refuse(request: v2.Request, code: int) -> bytes:
    if request.opcode == v2.BATCH_READ:
        return v2.answer_batch(request, code, [])
    return v2.answer(request.version, request.opcode, code, request.ledger_id, request.entry_id)
