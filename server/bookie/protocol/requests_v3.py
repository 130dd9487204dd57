"""Handlers of the requests of version 3."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any

from bookstand.errors import BookstandError
from bookstand.proto import bookie_protocol_pb2 as messages
from bookstand.server.bookie.bookie import LAST_ENTRY
from bookstand.server.bookie.protocol import authentication, codes, v3
from bookstand.storage.format.digest import MASTER_KEY_BYTES
from bookstand.storage.served.replica_operations import LEAST_ENTRY_BYTES, MAX_LAC_BODY_BYTES, SetReplicaLac
from bookstand.storage.served.replica_reader import ReplicaReader

if TYPE_CHECKING:
    from bookstand.server.bookie.connection import BookieConnection

_IDS_BYTES = 16
_LONGEST_WAIT = 3600.0


def take(connection: BookieConnection, frame: bytes) -> None:
    add = v3.match_add(frame)
    if add is not None and len(frame) - add.body.start >= LEAST_ENTRY_BYTES:
        answer = partial(_answer_add, frame[add.header], frame[add.ledger], frame[add.entry])
        connection.gather(add.ledger_id, frame[add.key], False, add.entry_id, frame[add.body], answer)
        return
    read = v3.match_read(frame)
    if read is not None:
        _read_plainly(connection, read)
        return
    request = v3.read_request(frame)
    operation, field, handle = _HANDLERS.get(request.header.operation, _UNKNOWN)
    if request.header.version != messages.VERSION_THREE:
        _refuse(connection, request, operation, codes.BAD_VERSION)
    elif handle is None or (field and not request.HasField(field)):
        _refuse(connection, request, operation, codes.BAD_REQUEST)
    else:
        handle(connection, request)


def reject(head: bytes) -> bytes | None:
    """Response to a request over the limit that begins with ``head``; None if more bytes are needed."""
    request = v3.read_long_request(head)
    return None if request is None else v3.answer(request, codes.BAD_REQUEST)


# -- adds and reads ----------------------------------------------------------------------------------------------------


def _answer_add(header: bytes, ledger: bytes, entry: bytes, code: int) -> bytes:
    return v3.answer_add(header, code, ledger, entry)


def _add(connection: BookieConnection, request: v3.Request) -> None:
    add = request.addRequest
    ids = add.ledgerId.to_bytes(8, "big", signed=True) + add.entryId.to_bytes(8, "big", signed=True)
    answer = partial(_answer_add, v3.header_of(request), v3.varint(add.ledgerId), v3.varint(add.entryId))
    if len(add.body) < LEAST_ENTRY_BYTES or add.body[:_IDS_BYTES] != ids or len(add.masterKey) != MASTER_KEY_BYTES:
        # BookKeeper stores an entry whose ids differ from the request's under the ids in the entry.
        connection.answer("add", codes.BAD_REQUEST, answer(codes.BAD_REQUEST))
        return
    recovery = add.HasField("flag") and add.flag == messages.AddRequest.RECOVERY_ADD
    connection.gather(add.ledgerId, add.masterKey, recovery, add.entryId, add.body, answer)


def _read_plainly(connection: BookieConnection, read: v3.Read) -> None:
    bookie = connection.desk.bookie

    def look(view: ReplicaReader) -> tuple[int, bytes]:
        found = bookie.read(view, read.ledger_id, read.entry_id)
        lac = found.lac if found.code == codes.OK else None
        return found.code, v3.answer_read(read.header, found.code, read.ledger_id, read.entry_id, found.stored, lac)

    connection.look("read", look, lambda code: v3.answer_read(read.header, code, read.ledger_id, read.entry_id))


def _read(connection: BookieConnection, request: v3.Request) -> None:
    read = request.readRequest
    flag = read.flag if read.HasField("flag") else None
    plain = v3.Read(v3.header_of(request), read.ledgerId, read.entryId)
    if flag == messages.ReadRequest.FENCE_LEDGER:
        _fence(connection, plain, read.masterKey)
    elif flag == messages.ReadRequest.ENTRY_PIGGYBACK or (read.HasField("timeOut") and read.HasField("previousLAC")):
        _wait(connection, plain, read, flag == messages.ReadRequest.ENTRY_PIGGYBACK)
    else:
        _read_plainly(connection, plain)


def _fence(connection: BookieConnection, read: v3.Read, master_key: bytes) -> None:
    """Fence the ledger, then read. The response does not contain the LAC."""
    bookie = connection.desk.bookie

    def refusal(code: int) -> bytes:
        return v3.answer_read(read.header, code, read.ledger_id, read.entry_id)

    def look(view: ReplicaReader) -> tuple[int, bytes]:
        found = bookie.read(view, read.ledger_id, read.entry_id)
        return found.code, v3.answer_read(read.header, found.code, read.ledger_id, read.entry_id, found.stored)

    if len(master_key) != MASTER_KEY_BYTES:
        connection.answer("read", codes.UNAUTHORIZED, refusal(codes.UNAUTHORIZED))
        return
    connection.fence(read.ledger_id, master_key, lambda: connection.look("read", look, refusal), refusal)


def _wait(connection: BookieConnection, plain: v3.Read, read: Any, piggyback: bool) -> None:
    """Wait until the LAC exceeds the one that the client knows, then read. With ``piggyback`` the response contains the
    entry after the client's LAC, or no entry on timeout."""
    bookie, previous = connection.desk.bookie, read.previousLAC

    def refusal(code: int) -> bytes:
        return v3.answer_read(plain.header, code, plain.ledger_id, plain.entry_id)

    def finish(come: bool) -> None:
        def look(view: ReplicaReader) -> tuple[int, bytes]:
            ledger = view.ledger(plain.ledger_id)
            if ledger is None:
                return codes.NO_LEDGER, refusal(codes.NO_LEDGER)
            if ledger.last_entry is None and ledger.lac < 0:
                return codes.NO_ENTRY, refusal(codes.NO_ENTRY)
            entry_id, stored = plain.entry_id, None
            if ledger.lac > previous:
                entry_id = previous + 1
                stored = bookie.read(view, plain.ledger_id, entry_id).stored
            when = int(time() * 1000) if come else None
            answer = v3.answer_read(plain.header, codes.OK, plain.ledger_id, entry_id, stored, ledger.lac, when)
            return codes.OK, answer

        if piggyback:
            connection.look("long_poll", look, refusal)
        else:
            _read_plainly(connection, plain)

    if piggyback and (not read.HasField("previousLAC") or plain.entry_id != LAST_ENTRY):
        connection.answer("long_poll", codes.BAD_REQUEST, refusal(codes.BAD_REQUEST))
        return
    try:
        ledger = connection.view().ledger(plain.ledger_id)
    except BookstandError as error:
        connection.fail("long_poll", error, refusal)
        return
    if ledger is None or ledger.lac > previous or not read.HasField("timeOut"):
        finish(False)
        return
    seconds = min(max(0, read.timeOut) / 1000, _LONGEST_WAIT)
    if not connection.wait_for_lac(plain.ledger_id, previous, seconds, finish):
        connection.answer("long_poll", codes.TOO_MANY_REQUESTS, refusal(codes.TOO_MANY_REQUESTS))


# -- last-add-confirmed, force -----------------------------------------------------------------------------------------


def _read_lac(connection: BookieConnection, request: v3.Request) -> None:
    ledger_id = request.readLacRequest.ledgerId

    def look(view: ReplicaReader) -> tuple[int, bytes]:
        code, explicit, last = connection.desk.bookie.read_lac(view, ledger_id)
        return code, _told(request, code, ledgerId=ledger_id, lacBody=explicit, lastEntryBody=last)

    connection.look("read_lac", look, lambda code: _told(request, code, ledgerId=ledger_id))


def _write_lac(connection: BookieConnection, request: v3.Request) -> None:
    write = request.writeLacRequest
    answer = partial(_told, request, ledgerId=write.ledgerId)
    body_ids = write.ledgerId.to_bytes(8, "big", signed=True) + write.lac.to_bytes(8, "big", signed=True)
    known = write.body[:_IDS_BYTES] == body_ids and len(write.body) <= MAX_LAC_BODY_BYTES
    if not known or len(write.masterKey) != MASTER_KEY_BYTES:
        connection.answer("write_lac", codes.BAD_REQUEST, answer(codes.BAD_REQUEST))
        return

    def then() -> None:
        connection.desk.long_polls.confirmed(write.ledgerId, write.lac)
        connection.answer("write_lac", codes.OK, answer(codes.OK))

    change = SetReplicaLac(connection.desk.bookie.number, write.ledgerId, write.masterKey, write.lac, write.body)
    connection.change("write_lac", (change,), then, answer, size=len(write.body))


def _force(connection: BookieConnection, request: v3.Request) -> None:
    """Answer after the adds in progress. Adds are always durable when they are answered, so nothing remains to be
    forced."""
    ledger_id = request.forceLedgerRequest.ledgerId
    answer = partial(_told, request, ledgerId=ledger_id)
    point = connection.desk.bookie.point
    connection.change(
        "force",
        (),
        lambda: connection.answer("force", codes.OK, answer(codes.OK)),
        answer,
        before=lambda: point("force.before", ledger_id),
        after=lambda: point("force.after", ledger_id),
    )


# -- administration ----------------------------------------------------------------------------------------------------


def _bookie_info(connection: BookieConnection, request: v3.Request) -> None:
    flags = messages.GetBookieInfoRequest
    asked = request.getBookieInfoRequest.requested

    def look(view: ReplicaReader) -> tuple[int, bytes]:
        total, free = connection.desk.bookie.disk()
        told = {
            "totalDiskCapacity": total if asked & flags.TOTAL_DISK_CAPACITY else None,
            "freeDiskSpace": free if asked & flags.FREE_DISK_SPACE else None,
        }
        return codes.OK, _told(request, codes.OK, **told)

    connection.look("bookie_info", look, partial(_told, request))


def _list_entries(connection: BookieConnection, request: v3.Request) -> None:
    ledger_id = request.getListOfEntriesOfLedgerRequest.ledgerId

    def look(view: ReplicaReader) -> tuple[int, bytes]:
        found = connection.desk.bookie.entry_ids(view, ledger_id)
        code = codes.NO_LEDGER if found is None else codes.OK
        return code, _told(request, code, ledgerId=ledger_id, availabilityOfEntriesOfLedger=found)

    connection.look("list_entries", look, lambda code: _told(request, code, ledgerId=ledger_id))


def _authenticate(connection: BookieConnection, request: v3.Request) -> None:
    """Reply that authentication is disabled, regardless of the credentials."""
    told = authentication.NONE
    answer = v3.answer(request, codes.OK, "authResponse", authPluginName=told.authPluginName, payload=told.payload)
    connection.answer("auth", codes.OK, answer)


_Handler = Callable[["BookieConnection", v3.Request], None]
_HANDLERS: dict[int, tuple[str, str, _Handler | None]] = {
    messages.ADD_ENTRY: ("add", "addRequest", _add),
    messages.READ_ENTRY: ("read", "readRequest", _read),
    messages.READ_LAC: ("read_lac", "readLacRequest", _read_lac),
    messages.WRITE_LAC: ("write_lac", "writeLacRequest", _write_lac),
    messages.FORCE_LEDGER: ("force", "forceLedgerRequest", _force),
    messages.GET_BOOKIE_INFO: ("bookie_info", "getBookieInfoRequest", _bookie_info),
    messages.GET_LIST_OF_ENTRIES_OF_LEDGER: ("list_entries", "getListOfEntriesOfLedgerRequest", _list_entries),
    messages.AUTH: ("auth", "", _authenticate),
}
_UNKNOWN: tuple[str, str, _Handler | None] = ("unknown", "", None)
_FIELDS = {
    messages.READ_LAC: "readLacResponse",
    messages.WRITE_LAC: "writeLacResponse",
    messages.FORCE_LEDGER: "forceLedgerResponse",
    messages.GET_BOOKIE_INFO: "getBookieInfoResponse",
    messages.GET_LIST_OF_ENTRIES_OF_LEDGER: "getListOfEntriesOfLedgerResponse",
}


def _told(request: v3.Request, code: int, **values: object) -> bytes:
    """Build a response whose message repeats the status."""
    return v3.answer(request, code, _FIELDS[request.header.operation], status=codes.STATUS[code], **values)


def _refuse(connection: BookieConnection, request: v3.Request, operation: str, code: int) -> None:
    connection.answer(operation, code, v3.answer(request, code))
