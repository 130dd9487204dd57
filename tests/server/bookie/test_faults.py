"""The test kit's rules, put into a server while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import bookstand
from bookstand.proto import bookie_protocol_pb2 as messages
from bookstand.server.bookie import shared_state
from bookstand.server.bookie.server import BookieServer
from bookstand.server.bookie.shared_state import Limits
from bookstand.server.fault_rules import ServerFaults
from bookstand.testing import Faults
from tests.kit import refused
from tests.server.bookie import kit
from tests.server.bookie.kit import Wire, stored
from tests.server.bookie.test_limits import eventually, limits_exceeded

OK, NO_ENTRY = 0, 2


@pytest.fixture
def faults(store: Any) -> ServerFaults:
    return ServerFaults(store.storage)


@pytest.fixture
def server(serve: Callable[..., BookieServer], store: Any) -> BookieServer:
    return serve(store=store)


@pytest.fixture
def wire(server: BookieServer, connect: Callable[..., Wire]) -> Wire:
    return connect(server)


@pytest.mark.parametrize(
    ("code", "answer"),
    [(-6, 101), (-7, 1), (-13, 2), (-101, 104), (-102, 102), (-104, 105), (-105, 106), (-108, 107), (-12, 101)],
)
def test_an_add_fails_with_the_bookies_code(wire: Wire, faults: ServerFaults, code: int, answer: int) -> None:
    faults.add(f"fail@append(1:2)={code}")
    assert wire.codes([kit.v2_add(stored(1, n)) for n in range(4)]) == [OK, OK, answer, OK]
    assert [wire.v2(kit.v2_read(1, n)).code for n in range(4)] == [OK, OK, NO_ENTRY, OK]
    assert faults.as_json() == [{"rule": f"fail@append(1:2)={code}", "met": 1, "fired": 1}]


def test_an_add_may_fail_after_it_was_stored(wire: Wire, faults: ServerFaults) -> None:
    faults.add("fail+after@append(1:0)=-105")
    assert wire.v3(kit.v3_add(stored(1, 0))).status == messages.ETOOMANYREQUESTS
    assert wire.v2(kit.v2_read(1, 0)).body == stored(1, 0)


def test_an_answer_may_be_lost(wire: Wire, faults: ServerFaults) -> None:
    faults.add("fail+after@append(1:0)=OutcomeUnknownError")
    wire.send(kit.v2_add(stored(1, 0)))
    assert wire.v2(kit.v2_add(stored(1, 1))).entry == 1
    assert wire.v2(kit.v2_read(1, 0)).code == OK


def test_a_stalled_add_holds_up_nobody_else(wire: Wire, faults: ServerFaults) -> None:
    faults.add("stall+after@append(1:0)")
    wire.send(kit.v2_add(stored(1, 0)))
    assert wire.v2(kit.v2_add(stored(1, 1))).entry == 1
    assert wire.v2(kit.v2_read(1, 0)).code == OK
    faults.release()
    assert wire.v2().entry == 0


def test_an_add_is_delayed(wire: Wire, faults: ServerFaults) -> None:
    faults.add("delay@append(1:0)=0.2")
    begun = time.monotonic()
    assert wire.v2(kit.v2_add(stored(1, 0))).code == OK
    assert time.monotonic() - begun >= 0.2


def test_reads_fail_and_are_held_up(wire: Wire, faults: ServerFaults) -> None:
    wire.codes([kit.v2_add(stored(1, n)) for n in range(3)])
    faults.add("fail@read(1:0)=-1")
    faults.add("stall@read(1:1)")
    assert wire.v2(kit.v2_read(1, 0)).code == 101
    wire.send(kit.v3_read(1, 1))
    assert wire.v2(kit.v2_read(1, 2)).body == stored(1, 2)
    faults.release()
    assert wire.v3().readResponse.body == stored(1, 1)


def test_many_delayed_reads_leave_threads_and_read_transactions_to_others(
    server: BookieServer, connect: Callable[..., Wire], wire: Wire, faults: ServerFaults, store: Any
) -> None:
    wire.codes([kit.v2_add(stored(1, n)) for n in range(2)])
    stall = faults.add("stall@read(1:0)*inf").action
    count, before = 1_000, threading.active_count()
    wire.send(*[kit.v2_read(1, 0)] * count)
    assert stall.reached_by(shared_state.MOST_HOOK_THREADS)
    assert eventually(lambda: kit.desk_of(server).load.bytes >= count << 10)
    assert threading.active_count() - before <= shared_state.MOST_HOOK_THREADS + 1
    # A reader of the store has a transaction.
    assert store.storage.metadata(1) is None
    faults.release()
    assert [wire.v2().code for _ in range(count)] == [OK] * count
    assert eventually(lambda: kit.desk_of(server).load.bytes == 0)
    assert eventually(lambda: threading.active_count() <= before)
    faults.clear()
    assert wire.v2(kit.v2_read(1, 1)).code == OK


def test_delayed_reads_hold_up_their_connection(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], faults: ServerFaults, store: Any
) -> None:
    server = serve(store=store, limits=Limits(connection_bytes=20 << 10, server_bytes=100 << 10))
    wire, other = connect(server), connect(server)
    assert wire.v2(kit.v2_add(stored(1, 0))).code == OK
    faults.add("stall@read(1:0)*inf")
    wire.send(*[kit.v2_read(1, 0)] * 200)
    assert eventually(lambda: limits_exceeded(server)["connection_requests"] == 1)
    assert other.v2(kit.v2_add(stored(1, 1))).code == OK
    faults.release()
    assert [wire.v2().code for _ in range(200)] == [OK] * 200


def test_a_read_finds_a_bit_flipped(wire: Wire, faults: ServerFaults) -> None:
    wire.codes([kit.v2_add(stored(1, 0))])
    faults.add("flip@read(1:0)=400")
    assert wire.v2(kit.v2_read(1, 0)).body != stored(1, 0)


def test_fences_forces_and_lacs_meet_rules(wire: Wire, faults: ServerFaults) -> None:
    wire.codes([kit.v2_add(stored(1, 0))])
    for rule in ("fail@fence(1)=-105", "fail@force(1)=-12", "fail@read_lac(1)=-1"):
        faults.add(rule)
    assert wire.v2(kit.v2_read(1, -1, kit.FENCE, kit.KEY)).code == 106
    force = kit.v3_request(messages.FORCE_LEDGER, 9, "forceLedgerRequest", ledgerId=1)
    assert wire.v3(force).status == messages.EIO
    lac = kit.v3_request(messages.READ_LAC, 1, "readLacRequest", ledgerId=1)
    assert wire.v3(lac).status == messages.EIO
    assert [rule["fired"] for rule in faults.as_json()] == [1, 1, 1]
    assert wire.v2(kit.v2_read(1, -1, kit.FENCE, kit.KEY)).code == OK
    assert wire.v3(force).status == messages.EOK
    assert wire.v3(lac).status == messages.EOK


def test_asking_for_the_lac_is_no_read_of_an_entry(wire: Wire, faults: ServerFaults) -> None:
    """As in the store's own reader, and in the original: an open without recovery succeeds while entries cannot be
    read. Version 2 learns it by reading."""
    wire.codes([kit.v2_add(stored(1, n)) for n in range(2)])
    faults.add("fail@read(1)*inf=-1")
    answer = wire.v3(kit.v3_request(messages.READ_LAC, 1, "readLacRequest", ledgerId=1))
    assert (answer.status, answer.readLacResponse.lastEntryBody) == (messages.EOK, stored(1, 1))
    assert wire.v2(kit.v2_read(1, -1)).code == 101


def test_a_rule_is_about_one_bookie(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], faults: ServerFaults, store: Any
) -> None:
    """The others answer as ever, and do not count for it."""
    server = serve(3, store=store)
    one, two, three = (connect(server, number) for number in (1, 2, 3))
    for rule in ("fail@append(1:1)@bookie2=-105", "fail@read@bookie3=-1", "fail@fence(1)@bookie2=-102"):
        faults.add(rule)
    for wire, answer in ((one, OK), (two, 106), (three, OK)):
        assert wire.codes([kit.v2_add(stored(1, n)) for n in range(3)]) == [OK, answer, OK]
    assert [wire.v2(kit.v2_read(1, 0)).code for wire in (one, two, three)] == [OK, OK, 101]
    assert [wire.v2(kit.v2_read(1, -1, kit.FENCE, kit.KEY)).code for wire in (one, two, three)] == [OK, 102, OK]
    assert [(rule["met"], rule["fired"]) for rule in faults.as_json()] == [(1, 1), (2, 1), (1, 1)]


def test_one_bookie_stalls_and_another_has_a_flipped_bit(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], faults: ServerFaults, store: Any
) -> None:
    server = serve(2, store=store)
    one, two = connect(server, 1), connect(server, 2)
    faults.add("stall@append(1:0)@bookie2")
    two.send(kit.v2_add(stored(1, 0)))
    assert one.v2(kit.v2_add(stored(1, 0))).code == OK
    assert two.v2(kit.v2_read(1, 0)).code == 1
    faults.release()
    assert two.v2().entry == 0
    faults.add("flip@read(1:0)@bookie1=400")
    assert one.v2(kit.v2_read(1, 0)).body != stored(1, 0)
    assert two.v2(kit.v2_read(1, 0)).body == stored(1, 0)


def test_a_crash_at_one_bookie_s_entry(
    serve: Callable[..., BookieServer], connect: Callable[..., Wire], faults: ServerFaults, store: Any
) -> None:
    server = serve(2, store=store)
    one, two = connect(server, 1), connect(server, 2)
    faults.add("crash@append.stored(1:1)@bookie2")
    assert one.codes([kit.v2_add(stored(1, n)) for n in range(2)]) == [OK, OK]
    assert two.codes([kit.v2_add(stored(1, 0))]) == [OK]
    two.send(kit.v2_add(stored(1, 1)))
    assert one.is_closed()
    assert two.is_closed()


def test_a_bookie_that_there_is_not(store: Any) -> None:
    faults = ServerFaults(store.storage, bookies=2)
    with pytest.raises(
        bookstand.errors.IncorrectParameterError, match="has no bookie 3: they are numbered from 1 to 2"
    ):
        faults.add("fail@append@bookie3")
    assert faults.as_json() == []


def test_a_disk_that_is_full_has_the_bookie_read_only(wire: Wire, faults: ServerFaults) -> None:
    wire.codes([kit.v2_add(stored(1, 0))])
    faults.add("full@commit")
    assert wire.v2(kit.v2_add(stored(1, 1))).code == 105
    assert wire.v3(kit.v3_add(stored(1, 1))).status == messages.EREADONLY
    assert wire.v2(kit.v2_read(1, 0)).code == OK
    faults.clear()
    assert wire.v2(kit.v2_add(stored(1, 1))).code == OK


@pytest.mark.parametrize(
    ("point", "there"), [("append.before_store", NO_ENTRY), ("commit.before_sync", NO_ENTRY), ("append.stored", OK)]
)
def test_a_crash_answers_nobody(
    wire: Wire,
    faults: ServerFaults,
    connect: Callable[..., Wire],
    serve: Callable[..., BookieServer],
    server: BookieServer,
    store: Any,
    open_store: Callable[..., Any],
    point: str,
    there: int,
) -> None:
    other = connect(server)
    assert wire.codes([kit.v2_add(stored(1, 0))]) == [OK]
    assert other.v2(kit.v2_read(1, 0)).code == OK
    faults.add(f"crash@{point}")
    wire.send(kit.v2_add(stored(1, 1)))
    assert wire.is_closed()
    assert other.is_closed()
    with pytest.raises(bookstand.errors.StoreCrashedError):
        store.storage.state(1)
    again = connect(serve(store=open_store()))
    assert [again.v2(kit.v2_read(1, n)).code for n in range(2)] == [OK, there]


def test_without_rules_nothing_is_looked_at_one_by_one(wire: Wire, faults: ServerFaults, store: Any) -> None:
    rule = "fail@append(9)=-6"
    faults.add(rule)
    assert store.storage.hooks is not None
    faults.remove(rule)
    assert store.storage.hooks is None
    with refused(-14):
        faults.remove(rule)
    with refused(-14):
        faults.add("nonsense")


def test_a_rule_that_is_taken_away_lets_go_of_what_it_held(wire: Wire, faults: ServerFaults, store: Any) -> None:
    faults.add("stall@append(1:0)")
    faults.add("stall@fence(1)")
    wire.send(kit.v2_add(stored(1, 0)), kit.v2_read(1, -1, kit.FENCE, kit.KEY))
    assert wire.v2(kit.v2_add(stored(1, 1))).entry == 1
    faults.remove("stall@append(1:0)")
    assert wire.v2().entry == 0
    faults.clear()
    assert store.storage.hooks is None
    assert wire.v2().body == stored(1, 1)


def test_faults_that_a_store_was_opened_with_stay(open_store: Callable[..., Any]) -> None:
    given = Faults()
    storage = open_store(hooks=given).storage
    mine = ServerFaults(storage)
    rule = mine.add("delay@read=0.1")
    assert given.rules == [rule]
    mine.clear()
    assert storage.hooks is given
