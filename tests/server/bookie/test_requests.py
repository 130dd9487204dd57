"""What a bookie answers, request by request, beyond what recordings show (``tests/replay``)."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest

from bookstand.proto import bookie_protocol_pb2 as messages
from bookstand.server.bookie.server import BookieServer
from bookstand.server.loop_thread import LoopThread
from bookstand.storage.format.digest import digest_for
from tests.server.bookie import kit
from tests.server.bookie.kit import Wire, stored

OK, NO_LEDGER, NO_ENTRY, BAD_REQUEST, UNAUTHORIZED, BAD_VERSION, FENCED = 0, 1, 2, 100, 102, 103, 104
ADDED = messages.ADD_ENTRY


def test_adds_in_bulk_are_answered_each_in_its_version(wire: Wire) -> None:
    wire.send(
        *(kit.v2_add(stored(1, n)) for n in range(500)), *(kit.v3_add(stored(2, n), 1000 + n) for n in range(500))
    )
    second, third = [], []
    for _ in range(1000):
        frame = wire.frame()
        assert frame is not None
        if frame[0] == 2:
            second.append(struct.unpack(">BBHiqq", frame))
        else:
            response = messages.Response.FromString(frame)
            third.append((response.header.txnId, response.status, response.addResponse.entryId))
    assert sorted(second) == [(2, 1, 0, OK, 1, n) for n in range(500)]
    assert sorted(third) == [(1000 + n, 0, n) for n in range(500)]


def test_what_was_answered_is_read_back(wire: Wire) -> None:
    entries = [stored(1, n, b"x" * n) for n in range(100)]
    assert wire.codes(map(kit.v2_add, entries)) == [OK] * 100
    assert [wire.v2(kit.v2_read(1, n)).body for n in range(100)] == entries
    assert [wire.v3(kit.v3_read(1, n)).readResponse.body for n in range(100)] == entries
    assert {wire.v3(kit.v3_read(1, n)).readResponse.maxLAC for n in range(3)} == {98}


@pytest.mark.parametrize("digest", ["crc32", "crc32c", "hmac", "dummy"])
def test_every_digest_is_kept_as_it_came(wire: Wire, digest: str) -> None:
    entry = stored(1, 0, digest=digest_for(digest, b"secret"))
    assert wire.v2(kit.v2_add(entry)).code == OK
    assert wire.v2(kit.v2_read(1, 0)).body == entry


def test_ledgers_taking_turns_on_a_connection(wire: Wire) -> None:
    frames = [kit.v2_add(stored(n % 3, n // 3)) for n in range(300)]
    wire.send(*frames)
    answers = {(answer.ledger, answer.entry): answer.code for answer in (wire.v2() for _ in frames)}
    assert answers == {(n % 3, n // 3): OK for n in range(300)}


def test_part_of_a_run_may_be_refused(wire: Wire) -> None:
    """A key that changes in the middle of what looks alike."""
    frames = [kit.v2_add(stored(1, n), kit.KEY if n < 50 else kit.OTHER_KEY) for n in range(100)]
    assert wire.codes(frames) == [OK] * 50 + [UNAUTHORIZED] * 50


def test_frames_may_arrive_octet_by_octet(wire: Wire) -> None:
    for octet in kit.v2_add(stored(1, 0)):
        wire.send(bytes([octet]))
    assert wire.v2().code == OK
    for octet in kit.v3_read(1, 0):
        wire.send(bytes([octet]))
    assert wire.v3().readResponse.body == stored(1, 0)


def test_a_large_entry_comes_and_goes(wire: Wire) -> None:
    entry = stored(1, 0, bytes(range(256)) * (4 << 12))
    assert wire.v2(kit.v2_add(entry)).code == OK
    assert wire.v2(kit.v2_read(1, 0)).body == entry
    assert wire.v3(kit.v3_read(1, 0)).readResponse.body == entry


@pytest.mark.parametrize("version", [2, 3])
def test_a_fence_stops_plain_adds_alone(wire: Wire, version: int) -> None:
    assert wire.codes([kit.v2_add(stored(1, 0))]) == [OK]
    if version == 2:
        assert wire.v2(kit.v2_read(1, -1, kit.FENCE, kit.KEY)).body == stored(1, 0)
    else:
        response = wire.v3(kit.v3_fence(1))
        assert response.readResponse.body == stored(1, 0)
        assert not response.readResponse.HasField("maxLAC")
    assert wire.v2(kit.v2_add(stored(1, 1))).code == FENCED
    assert wire.v3(kit.v3_add(stored(1, 1))).status == messages.EFENCED
    assert wire.v2(kit.v2_add(stored(1, 1), flags=kit.RECOVERY | kit.HIGH)).code == OK
    recovery = kit.v3_add(stored(1, 2), flag=messages.AddRequest.RECOVERY_ADD)
    assert wire.v3(recovery).status == messages.EOK


def test_a_fence_needs_the_key(wire: Wire) -> None:
    wire.codes([kit.v2_add(stored(1, 0))])
    assert wire.v3(kit.v3_fence(1, key=kit.OTHER_KEY)).status == messages.EUA
    assert wire.v3(kit.v3_fence(1, key=b"")).status == messages.EUA
    assert wire.v2(kit.v2_add(stored(1, 1))).code == OK


def test_what_is_missing_is_told_apart(wire: Wire) -> None:
    wire.codes([kit.v2_add(stored(1, 0))])
    assert wire.v2(kit.v2_read(2, 0)).code == NO_LEDGER
    assert wire.v2(kit.v2_read(1, 5)).code == NO_ENTRY
    assert wire.v3(kit.v3_read(2, 0)).status == messages.ENOLEDGER
    response = wire.v3(kit.v3_read(1, 5))
    assert (response.status, response.readResponse.status) == (messages.ENOENTRY, messages.ENOENTRY)


def test_the_explicit_lac_is_told_as_it_was_sent(wire: Wire) -> None:
    wire.codes([kit.v2_add(stored(1, n)) for n in range(3)])
    ask = kit.v3_request(messages.READ_LAC, 1, "readLacRequest", ledgerId=1)
    assert not wire.v3(ask).readLacResponse.HasField("lacBody")
    assert wire.v3(kit.explicit_lac(1, 2)).status == messages.EOK
    told = wire.v3(ask).readLacResponse
    assert told.lacBody in kit.explicit_lac(1, 2)
    assert told.lastEntryBody == stored(1, 2)
    assert wire.v3(kit.v3_read(1, 0)).readResponse.maxLAC == 2
    missing = kit.v3_request(messages.READ_LAC, 1, "readLacRequest", ledgerId=9)
    assert wire.v3(missing).status == messages.ENOENTRY


def test_forcing_is_answered_behind_what_is_under_way(wire: Wire) -> None:
    force = kit.v3_request(messages.FORCE_LEDGER, 9, "forceLedgerRequest", ledgerId=1)
    wire.send(*(kit.v3_add(stored(1, n, lac=-1), n, writeFlags=1) for n in range(3)), force)
    assert [wire.v3().header.txnId for _ in range(4)] == [0, 1, 2, 9]


@pytest.mark.parametrize(
    ("most", "size", "expected"),
    [(10, 1 << 20, 5), (3, 1 << 20, 3), (0, 1 << 20, 5), (10, 1, 1), (10, 36 + 2 * 43, 2), (10, 36 + 2 * 43 - 1, 1)],
)
def test_batches(wire: Wire, most: int, size: int, expected: int) -> None:
    entries = [stored(1, n) for n in range(5)]
    wire.codes(map(kit.v2_add, entries))
    answer = wire.v2(kit.v2_batch(1, 0, most, size, request=77))
    assert (answer.code, answer.body[:8]) == (OK, struct.pack(">q", 77))
    assert answer.body[8:] == b"".join(kit.framed(entry) for entry in entries[:expected])


def test_a_batch_ends_at_a_gap_and_begins_at_an_entry(wire: Wire) -> None:
    wire.codes([kit.v2_add(stored(1, n)) for n in (0, 1, 3)])
    assert len(wire.v2(kit.v2_batch(1, 0, 10, 1 << 20)).body) == 8 + 2 * (4 + len(stored(1, 0)))
    assert wire.v2(kit.v2_batch(1, 2, 10, 1 << 20)).code == NO_ENTRY
    assert wire.v2(kit.v2_batch(2, 0, 10, 1 << 20)).code == NO_LEDGER


def decoded(availability: bytes) -> list[int]:
    _, count = struct.unpack_from(">ii", availability)
    found: list[int] = []
    for first, last, size, period in struct.iter_unpack(">qqii", availability[64 : 64 + 24 * count]):
        for start in range(first, last + 1, period or 1):
            found += range(start, start + size)
    return found


@pytest.mark.parametrize("there", [[0, 1, 2, 5, 6, 7, 20, 40, 60, 61], [0, 1 << 31, 1 << 40, (1 << 40) + 5]])
def test_which_entries_there_are(wire: Wire, there: list[int]) -> None:
    wire.codes([kit.v2_add(stored(1, n)) for n in there])
    ask = kit.v3_request(messages.GET_LIST_OF_ENTRIES_OF_LEDGER, 1, "getListOfEntriesOfLedgerRequest", ledgerId=1)
    told = wire.v3(ask).getListOfEntriesOfLedgerResponse
    assert decoded(told.availabilityOfEntriesOfLedger) == there


@pytest.mark.parametrize(("size", "status"), [(256, messages.EOK), (257, messages.EBADREQ)])
def test_the_body_of_an_explicit_lac_is_bounded(wire: Wire, size: int, status: int) -> None:
    assert wire.v2(kit.v2_add(stored(1, 0))).code == OK
    body = struct.pack(">qq", 1, 0).ljust(size, b".")
    values = {"ledgerId": 1, "lac": 0, "masterKey": kit.KEY, "body": body}
    assert wire.v3(kit.v3_request(messages.WRITE_LAC, 1, "writeLacRequest", **values)).status == status
    assert wire.v2(kit.v2_read(1, 0)).code == OK


def test_what_the_disk_has_is_told_as_asked(wire: Wire) -> None:
    ask = kit.v3_request(messages.GET_BOOKIE_INFO, 1, "getBookieInfoRequest", requested=2)
    told = wire.v3(ask).getBookieInfoResponse
    assert told.HasField("freeDiskSpace")
    assert not told.HasField("totalDiskCapacity")
    both = wire.v3(kit.v3_request(messages.GET_BOOKIE_INFO, 1, "getBookieInfoRequest", requested=3))
    assert both.getBookieInfoResponse.totalDiskCapacity >= both.getBookieInfoResponse.freeDiskSpace > 0


def test_who_authenticates_hears_that_there_is_no_authentication(wire: Wire) -> None:
    shown = messages.AuthMessage(authPluginName="any", payload=b"secret")
    wire.send(kit.framed(b"\x02\x03\0\0" + shown.SerializeToString()))
    frame = wire.frame()
    assert frame is not None
    assert frame[:4] == b"\x02\x03\0\0"
    assert messages.AuthMessage.FromString(frame[4:]).authPluginName == "AuthDisabledPlugin"
    third = kit.v3_request(messages.AUTH, 5, "authRequest", authPluginName="any", payload=b"secret")
    assert wire.v3(third).authResponse.authPluginName == "AuthDisabledPlugin"


def test_what_is_not_served_is_refused_and_the_connection_stays(wire: Wire) -> None:
    assert wire.v3(kit.v3_request(messages.START_TLS, 1, "startTLSRequest")).status == messages.EBADREQ
    assert wire.v3(kit.v3_request(messages.RANGE_READ_ENTRY, 2)).status == messages.EBADREQ
    assert wire.v3(kit.v3_request(messages.ADD_ENTRY, 3)).status == messages.EBADREQ
    old = messages.Request.FromString(kit.v3_read(1, 0)[4:])
    old.header.version = messages.VERSION_TWO
    assert wire.v3(kit.framed(old.SerializeToString())).status == messages.EBADVERSION
    assert wire.v2(kit.v2_add(bytes(20))).code == BAD_REQUEST
    assert wire.v2(kit.v2_add(stored(1, 0), version=3)).code == BAD_VERSION
    assert wire.v2(kit.v2_add(stored(1, 0))).code == OK


@pytest.mark.parametrize("entry", [b"", b"short", stored(2, 0), stored(1, 5)])
def test_an_entry_under_another_name_is_refused(wire: Wire, entry: bytes) -> None:
    add = kit.v3_request(ADDED, 1, "addRequest", ledgerId=1, entryId=0, masterKey=kit.KEY, body=entry)
    assert wire.v3(add).status == messages.EBADREQ
    assert wire.v2(kit.v2_read(1, 0)).code == NO_LEDGER


# -- long polls --------------------------------------------------------------------------------------------------------


def test_a_long_poll_is_woken_by_the_lac_of_the_next_add(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire]
) -> None:
    server = serve()
    writer, reader = connect(server), connect(server)
    writer.codes([kit.v2_add(stored(1, n)) for n in range(3)])
    reader.send(kit.v3_long_poll(1, previous=1, millis=60_000))
    assert writer.codes([kit.v2_add(stored(1, 3))]) == [OK]
    told = reader.v3().readResponse
    assert (told.entryId, told.body, told.maxLAC) == (2, stored(1, 2), 2)
    assert told.HasField("lacUpdateTimestamp")


def test_a_long_poll_that_is_late_is_answered_at_once(wire: Wire) -> None:
    wire.codes([kit.v2_add(stored(1, n)) for n in range(3)])
    told = wire.v3(kit.v3_long_poll(1, previous=0, millis=60_000)).readResponse
    assert (told.entryId, told.body, told.maxLAC) == (1, stored(1, 1), 1)
    assert not told.HasField("lacUpdateTimestamp")


def test_a_long_poll_ends_with_its_time(wire: Wire) -> None:
    wire.codes([kit.v2_add(stored(1, n)) for n in range(3)])
    told = wire.v3(kit.v3_long_poll(1, previous=10, millis=1)).readResponse
    assert (told.entryId, told.HasField("body"), told.maxLAC) == (-1, False, 1)
    assert wire.v3(kit.v3_long_poll(9, previous=10, millis=1)).status == messages.ENOLEDGER
    wrong = kit.v3_read(1, 0, flag=messages.ReadRequest.ENTRY_PIGGYBACK, previousLAC=1, timeOut=1)
    assert wire.v3(wrong).status == messages.EBADREQ


def test_a_long_poll_of_a_ledger_without_entries_finds_none(wire: Wire) -> None:
    """As any read of it: that it was fenced is all that the bookie has heard of it."""
    wire.v3(kit.v3_fence(1))
    assert wire.v3(kit.v3_long_poll(1, previous=-1, millis=1)).status == messages.ENOENTRY
    wire.v2(kit.v2_add(stored(1, 0), flags=kit.RECOVERY))
    assert wire.v3(kit.v3_long_poll(1, previous=-1, millis=1)).status == messages.EOK


def test_a_long_poll_hears_of_an_explicit_lac(serve: Callable[..., BookieServer], connect: Callable[..., Wire]) -> None:
    server = serve()
    writer, reader = connect(server), connect(server)
    writer.codes([kit.v2_add(stored(1, 0))])
    reader.send(kit.v3_long_poll(1, previous=-1, millis=60_000))
    writer.v3(kit.explicit_lac(1, 0))
    assert reader.v3().readResponse.body == stored(1, 0)


def test_a_long_poll_hears_of_a_writer_of_the_store(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], store: Any
) -> None:
    reader = connect(serve(store=store))
    writer = store.create_ledger()
    writer.append(b"one")
    reader.send(kit.v3_long_poll(writer.id, previous=-1, millis=60_000))
    writer.append(b"two")
    told = reader.v3().readResponse
    assert (told.entryId, told.body[-3:], told.maxLAC) == (0, b"one", 0)


def test_a_client_that_leaves_waits_no_more(serve: Callable[..., BookieServer], connect: Callable[..., Wire]) -> None:
    server = serve()
    writer, reader = connect(server), connect(server)
    writer.codes([kit.v2_add(stored(1, 0))])
    reader.send(*(kit.v3_long_poll(1, previous=5, millis=3_600_000, txn=n) for n in range(10)), kit.v2_read(1, 0))
    assert reader.v2().code == OK
    desk = kit.desk_of(server)
    assert desk.figures.long_polls == len(desk.long_polls._ledgers[1].all()) == 10
    gone = threading.Event()
    reader.socket.close()
    for _ in range(600):
        if not desk.long_polls._ledgers:
            gone.set()
            break
        writer.v2(kit.v2_read(1, 0))
        gone.wait(0.02)
    assert gone.is_set()


# -- several bookies ---------------------------------------------------------------------------------------------------


def test_each_bookie_answers_of_its_own_copy(serve: Callable[..., BookieServer], connect: Callable[..., Wire]) -> None:
    server = serve(3)
    first, second, third = (connect(server, bookie) for bookie in (1, 2, 3))
    first.codes([kit.v2_add(stored(1, n)) for n in range(3)])
    second.codes([kit.v2_add(stored(1, n)) for n in (1, 2, 3)])
    assert [first.v2(kit.v2_read(1, n)).code for n in range(4)] == [OK, OK, OK, NO_ENTRY]
    assert [second.v2(kit.v2_read(1, n)).code for n in range(4)] == [NO_ENTRY, OK, OK, OK]
    assert third.v2(kit.v2_read(1, 0)).code == NO_LEDGER
    assert first.v2(kit.v2_read(1, -1)).body == stored(1, 2)
    assert second.v2(kit.v2_read(1, -1)).body == stored(1, 3)
    first.v2(kit.v2_read(1, -1, kit.FENCE, kit.KEY))
    assert first.v2(kit.v2_add(stored(1, 4))).code == FENCED
    assert second.v2(kit.v2_add(stored(1, 4))).code == OK


def test_copies_outlive_the_server(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], open_store: Callable[..., Any]
) -> None:
    store = open_store()
    server = BookieServer(store.storage, ports=[0, 0])
    with LoopThread(server):
        connect(server, 1).codes([kit.v2_add(stored(1, 0)), kit.v2_add(stored(1, 1))])
        connect(server, 2).codes([kit.v2_add(stored(1, 1))])
    again = serve(2, store=store)
    assert [connect(again, 2).v2(kit.v2_read(1, n)).code for n in range(2)] == [NO_ENTRY, OK]
    assert [connect(again, 1).v2(kit.v2_read(1, n)).code for n in range(2)] == [OK, OK]
