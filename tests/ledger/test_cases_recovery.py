"""Reference cases 36-50: closing, fencing, recovery."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from bookstand import errors
from bookstand.storage.hooks import Hooks
from tests.kit import Faults, corrupted, cut_short, eventually, failing, in_threads, outcome, refused


def test_case_36_append_after_a_recovery_open(open_store, wire):
    store, other = open_store(wire=wire), open_store(wire=wire)
    writer = store.create_ledger()
    for i in range(10):
        writer.append(b"%010d" % i)
    recovered = other.open_ledger(writer.id, recovery=True)
    assert (recovered.last_add_confirmed, recovered.length) == (9, 100)
    assert (writer.last_add_confirmed, writer.length, writer.is_closed()) == (9, 100, False)
    with refused(-101) as caught:
        writer.append(b"x")
    assert caught.type is errors.LedgerFencedError
    assert recovered.last_add_confirmed == writer.last_add_confirmed == 9
    assert writer.length == 100
    eventually(writer.is_closed, "the handle closed itself")
    for call in (
        lambda: writer.append(b"y"),
        lambda: writer.append_async(b"y").result(60),
        lambda: writer.append_many([b"z", b"z"]),
    ):
        with refused(-11):
            call()
    assert [entry.entry_id for entry in writer.read(0, 9)] == list(range(10))
    with refused(-1):
        writer.read(0, 10)
    with refused(-13):
        recovered.read_unconfirmed(10, 10)
    writer.close()
    writer.close()
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == ("CLOSED", 9, 100)
    again = other.open_ledger(writer.id, recovery=True)
    assert (again.last_add_confirmed, again.length) == (9, 100)


def test_case_36_by_another_process(open_store, child):
    writer = open_store().create_ledger()
    for i in range(10):
        writer.append(b"%d" % i)
    other = child()
    assert other.run(f"store.open_ledger({writer.id}).last_add_confirmed") == 9
    with refused(-101):
        writer.append(b"x")
    with refused(-11):
        writer.append(b"x")
    assert writer.last_add_confirmed == 9


def test_case_37_no_recovery_open(open_store, wire):
    store, other = open_store(wire=wire), open_store(wire=wire)
    writer = store.create_ledger()
    for i in range(5):
        writer.append(b"%010d" % i)
    reader = other.open_ledger(writer.id, recovery=False)
    assert reader.last_add_confirmed == 3
    assert [writer.append(b"x"), writer.append(b"y")] == [5, 6]
    assert other.ledger_metadata(writer.id).state == "OPEN"
    assert reader.last_add_confirmed == 3
    with refused(-1):
        reader.read(0, 4)
    with refused(-1):
        reader.read(4, 4)
    assert len(reader.read(0, 3)) == 4
    assert reader.last_add_confirmed == (5 if wire == "v3" else 3)
    assert reader.length == (0 if wire == "v3" else 50)
    assert reader.read_last_confirmed() == 5
    assert reader.length == (0 if wire == "v3" else 52)
    assert len(reader.read(0, 5)) == 6
    with refused(-1):
        reader.read(6, 6)
    assert [entry.data for entry in reader.read_unconfirmed(6, 6)] == [b"y"]
    assert writer.append(b"z") == 7
    assert reader.try_read_last_confirmed() == 6
    assert reader.is_closed() is False


def test_case_37_a_reader_learns_of_the_close(open_store, wire):
    store, other = open_store(wire=wire), open_store(wire=wire)
    writer = store.create_ledger()
    for payload in (b"a", b"b", b"c"):
        writer.append(payload)
    reader = other.open_ledger(writer.id, recovery=False)
    assert reader.last_add_confirmed == 1
    writer.close()
    assert reader.read_last_confirmed() == 2
    assert (reader.last_add_confirmed, reader.length, reader.is_closed()) == (2, 3, True)
    assert [entry.data for entry in reader.read(0, 2)] == [b"a", b"b", b"c"]
    reader.close()
    reader.close()
    assert [entry.data for entry in reader.read(0, 2)] == [b"a", b"b", b"c"]
    assert reader.read_last_entry().data == b"c"


def test_case_38_the_fence_survives_a_restart(open_store, child):
    writing = child()
    writing.run("w = store.create_ledger()")
    ledger_id = writing.run("w.id")
    assert [writing.run("w.append(b'a')"), writing.run("w.append(b'b')")] == [0, 1]
    fencing = open_store()
    assert fencing.open_ledger(ledger_id).last_add_confirmed == 1
    fencing.close()
    open_store()
    assert writing.code_of("w.append(b'c')") == -101
    assert writing.code_of("w.append(b'd')") == -11
    assert writing.code_of("w.close()") is None
    metadata = open_store().ledger_metadata(ledger_id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == ("CLOSED", 1, 2)


def test_case_38_the_fence_of_a_process_that_was_killed(open_store, child):
    writing, fencing = child(), child()
    writing.run("w = store.create_ledger()")
    ledger_id = writing.run("w.id")
    writing.run("w.append(b'a')")
    assert fencing.run(f"store.open_ledger({ledger_id}).last_add_confirmed") == 0
    fencing.kill()
    assert writing.code_of("w.append(b'b')") == -101
    writing.kill()
    reader = open_store().open_ledger(ledger_id)
    assert (reader.last_add_confirmed, reader.length) == (0, 1)


def test_case_39_fence_delete_collect(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    other.open_ledger(writer.id)
    other.delete_ledger(writer.id)
    other.compact()
    with refused(-101):
        writer.append(b"b")
    with refused(-11):
        writer.append(b"c")
    with refused(-25):
        writer.close()
    assert list(other.list_ledgers()) == []


def test_case_39_fence_delete_without_collection(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    other.open_ledger(writer.id)
    other.delete_ledger(writer.id)
    with refused(-101):
        writer.append(b"b")
    with refused(-25):
        writer.close()


def test_case_39_the_fence_of_a_deleted_ledger_survives_a_restart(open_store, child):
    writing = child()
    writing.run("w = store.create_ledger()")
    ledger_id = writing.run("w.id")
    writing.run("w.append(b'a')")
    other = open_store()
    other.open_ledger(ledger_id)
    other.delete_ledger(ledger_id)
    other.compact()
    other.close()
    assert writing.code_of("w.append(b'b')") == -101
    assert writing.code_of("w.close()") == -25


def test_case_40_ten_recoveries_during_writing(open_store):
    store = open_store()
    clients = [open_store() for _ in range(10)]
    writer = store.create_ledger()
    acknowledged: list[int] = []
    started = threading.Event()
    ended: list[int] = []

    def write() -> None:
        while True:
            try:
                acknowledged.append(writer.append(b"0123456789"))
            except errors.LedgerError as error:
                ended.append(error.code)
                return
            if len(acknowledged) >= 20:
                started.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert started.wait(60)
    readers = in_threads(10, lambda i: clients[i].open_ledger(writer.id))
    thread.join(60)
    assert not thread.is_alive()
    assert ended == [-101]
    assert acknowledged == list(range(len(acknowledged)))
    lacs = {reader.last_add_confirmed for reader in readers}
    assert len(lacs) == 1
    assert min(lacs) >= acknowledged[-1]
    for reader in readers:
        assert reader.length == 10 * (reader.last_add_confirmed + 1)
        assert [entry.data for entry in reader] == [b"0123456789"] * (reader.last_add_confirmed + 1)


def test_case_40_recoveries_by_processes(open_store, child):
    writer = open_store().create_ledger()
    children = [child() for _ in range(3)]
    acknowledged = [writer.append(b"x") for _ in range(10)]
    for process in children:
        process.send(f"store.open_ledger({writer.id}).last_add_confirmed")
    while True:
        try:
            acknowledged.append(writer.append(b"x"))
        except errors.LedgerFencedError:
            break
    lacs = {process.receive() for process in children}
    assert len(lacs) == 1
    assert min(lacs) >= acknowledged[-1]


@pytest.mark.parametrize("many", [True, False])
@pytest.mark.parametrize("count", [0, 1, 100])
def test_case_41_recovery_of_so_many_entries(open_store, wire, count, many):
    store, other = open_store(wire=wire), open_store(wire=wire)
    writer = store.create_ledger()
    payloads = [b"x" * (i % 7) for i in range(count)]
    if many:
        writer.append_many(payloads)
    else:
        for payload in payloads:
            writer.append(payload)
    length = sum(map(len, payloads))
    recovered = other.open_ledger(writer.id)
    assert (recovered.last_add_confirmed, recovered.length, recovered.is_closed()) == (count - 1, length, True)
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == ("CLOSED", count - 1, length)
    assert [entry.data for entry in recovered] == payloads
    writer.close()
    again = other.open_ledger(writer.id)
    assert (again.last_add_confirmed, again.length) == (count - 1, length)


@pytest.mark.parametrize("count", [0, 1, 100])
def test_case_41_recovery_after_the_writer_was_killed(open_store, child, count):
    writing = child()
    writing.run("w = store.create_ledger()")
    ledger_id = writing.run("w.id")
    for i in range(count):
        assert writing.run(f"w.append(b'x' * {i % 7})") == i
    writing.kill()
    recovered = open_store().open_ledger(ledger_id)
    assert recovered.last_add_confirmed == count - 1
    assert recovered.length == sum(i % 7 for i in range(count))


def test_case_41_recovery_of_entries_not_yet_acknowledged(open_store):
    faults = Faults()
    store, other = open_store(hooks=faults), open_store()
    writer = store.create_ledger()
    writer.append(b"aa")
    faults.hold("ack")
    pending = [writer.append_async(b"bbb"), writer.append_async(b"cccc")]
    faults.wait_held(2)
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (0, 2, 9)
    recovered = other.open_ledger(writer.id)
    assert (recovered.last_add_confirmed, recovered.length) == (2, 9)
    faults.release()
    assert [outcome(one) for one in pending] == [("ok", 1), ("ok", 2)]
    with refused(-101):
        writer.append(b"x")
    writer.close()
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.last_entry_id, metadata.length) == (2, 9)


@pytest.mark.parametrize("mode", ["ack", "add"])
def test_case_42_close_with_a_stalled_append(open_store, mode):
    faults = Faults()
    store, other = open_store(hooks=faults), open_store()
    writer = store.create_ledger()
    faults.hold(mode)
    pending = writer.append_async(b"abc")
    faults.wait_held(1)
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (-1, 0, 3)
    assert not pending.done()
    writer.close()
    assert outcome(pending) == -11
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (-1, -1, 0)
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == ("CLOSED", -1, 0)
    faults.release()
    assert outcome(pending) == -11
    reader = other.open_ledger(writer.id)
    assert (reader.last_add_confirmed, reader.length) == (-1, 0)
    if mode == "ack":
        assert [entry.data for entry in reader.read_unconfirmed(0, 0)] == [b"abc"]


def test_case_42_close_with_several_stalled_appends(open_store):
    faults = Faults()
    store, other = open_store(hooks=faults), open_store()
    writer = store.create_ledger()
    writer.append(b"ok")
    faults.hold("ack")
    pending = [writer.append_async(b"abc") for _ in range(4)]
    faults.wait_held(4)
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (0, 4, 14)
    writer.close()
    assert [outcome(one) for one in pending] == [-11] * 4
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (0, 0, 2)
    faults.release()
    reader = other.open_ledger(writer.id)
    assert (reader.last_add_confirmed, reader.length) == (0, 2)
    assert [entry.data for entry in reader] == [b"ok"]


def test_case_43_append_racing_close(open_store):
    store, other = open_store(), open_store()
    for _ in range(60):
        writer = store.create_ledger()
        results: list[object] = []
        barrier = threading.Barrier(2)

        def append(writer=writer, barrier=barrier, results=results) -> None:
            barrier.wait(60)
            try:
                results.append(writer.append(b"x"))
            except errors.LedgerError as error:
                results.append(error)

        thread = threading.Thread(target=append)
        thread.start()
        barrier.wait(60)
        writer.close()
        thread.join(60)
        assert not thread.is_alive()
        metadata = other.ledger_metadata(writer.id)
        assert metadata.state == "CLOSED"
        (result,) = results
        if isinstance(result, errors.LedgerError):
            assert (result.code, metadata.last_entry_id, metadata.length) == (-11, -1, 0)
        else:
            assert (result, metadata.last_entry_id, metadata.length) == (0, 0, 1)


def closed_elsewhere(other, ledger_id: int, last_entry_id: int, length: int) -> int:
    metadata = other.ledger_metadata(ledger_id)
    closed = metadata.replace(state="CLOSED", last_entry_id=last_entry_id, length=length)
    return other.write_ledger_metadata(closed, expected_version=metadata.version)


def test_case_44_closed_elsewhere_with_the_same_end(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    writer.append(b"b")
    assert closed_elsewhere(other, writer.id, 1, 2) == 1
    writer.close()
    assert (writer.last_add_confirmed, writer.length, writer.is_closed()) == (1, 2, True)
    with refused(-11):
        writer.append(b"c")
    writer.close()
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length, metadata.version) == ("CLOSED", 1, 2, 1)


@pytest.mark.parametrize(("last_entry_id", "length"), [(2, 102), (0, 1), (1, 3), (1, 102), (2, 2), (-1, 0)])
def test_case_44_closed_elsewhere_with_another_end(open_store, last_entry_id, length):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    writer.append(b"b")
    closed_elsewhere(other, writer.id, last_entry_id, length)
    for _ in range(2):
        with refused(-17) as caught:
            writer.close()
        assert caught.type is errors.MetadataVersionError
    assert (writer.last_add_confirmed, writer.length, writer.is_closed()) == (last_entry_id, length, True)
    with refused(-11):
        writer.append(b"c")
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == ("CLOSED", last_entry_id, length)
    # What was acknowledged to the writer is beyond the end now, or the end beyond what there is: mended by hand.
    other.write_ledger_metadata(metadata.replace(last_entry_id=1, length=2), expected_version=metadata.version)


def test_case_44_appends_go_on_while_only_the_metadata_is_closed(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    writer.append(b"b")
    closed_elsewhere(other, writer.id, 0, 1)
    assert writer.append(b"c") == 2
    assert [entry.data for entry in writer.read(0, 2)] == [b"a", b"b", b"c"]
    with refused(-17):
        writer.close()
    reader = other.open_ledger(writer.id)
    assert (reader.last_add_confirmed, reader.length) == (0, 1)
    assert [entry.data for entry in reader.read(0, 0)] == [b"a"]


def test_case_44_marked_in_recovery_the_close_wins(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    writer.append(b"b")
    metadata = other.ledger_metadata(writer.id)
    other.write_ledger_metadata(metadata.replace(state="IN_RECOVERY"), expected_version=metadata.version)
    assert writer.append(b"c") == 2
    writer.close()
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length, metadata.version) == ("CLOSED", 2, 3, 2)
    reader = other.open_ledger(writer.id)
    assert (reader.last_add_confirmed, reader.length) == (2, 3)


def test_case_45_two_closes_at_once(open_store):
    store, other = open_store(), open_store()
    for _ in range(20):
        writer = store.create_ledger()
        writer.append(b"a")
        seen: list[str] = []
        pending = [writer.close_async(), writer.close_async()]
        for one in pending:
            one.add_done_callback(lambda _, ledger_id=writer.id, seen=seen: seen.append(_state(other, ledger_id)))
        assert [outcome(one) for one in pending] == [("ok", None)] * 2
        eventually(lambda seen=seen: len(seen) == 2, "both callbacks")
        assert seen == ["CLOSED", "CLOSED"]
        metadata = other.ledger_metadata(writer.id)
        assert (metadata.last_entry_id, metadata.length, metadata.version) == (0, 1, 1)
        writer.close()


def _state(client, ledger_id: int) -> str:
    return str(client.ledger_metadata(ledger_id).state)


def test_case_45_closes_from_many_threads(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    writer.append(b"a")

    def close(_: int) -> str:
        writer.close()
        return _state(other, writer.id)

    assert in_threads(8, close) == ["CLOSED"] * 8
    assert other.ledger_metadata(writer.id).version == 1


def test_case_46_closed_by_another_before_the_recovery(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    closed_elsewhere(other, writer.id, -1, 0)
    recovered = other.open_ledger(writer.id)
    assert (recovered.last_add_confirmed, recovered.length) == (-1, 0)
    assert writer.append(b"a") == 0
    with refused(-17):
        writer.close()
    assert (writer.last_add_confirmed, writer.length, writer.is_closed()) == (-1, 0, True)


def test_case_46_closed_by_another_below_what_is_stored(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    writer.append(b"b")
    closed_elsewhere(other, writer.id, -1, 0)
    recovered = other.open_ledger(writer.id)
    assert (recovered.last_add_confirmed, recovered.length) == (-1, 0)
    reader = other.open_ledger(writer.id, recovery=False)
    assert (reader.last_add_confirmed, reader.length) == (-1, 0)
    with refused(-17):
        writer.close()


def test_case_46_closed_by_another_during_the_recovery(open_store):
    """Whoever writes the metadata first wins, and the recovering handle shows what was written."""
    faults = Faults()
    store, other = open_store(hooks=faults), open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    writer.append(b"b")
    answers: list[object] = []

    def close() -> None:
        for _ in range(100):
            metadata = other.ledger_metadata(writer.id)
            if metadata.state == "CLOSED":
                answers.append("recovery")
                return
            try:
                closed_elsewhere(other, writer.id, -1, 0)
            except errors.MetadataVersionError:
                continue
            answers.append("other")
            return

    thread = threading.Thread(target=close)

    def when_fenced(_: int) -> None:
        if not answers and not thread.is_alive():
            thread.start()
            # Where fence and close are one commit the other waits for it; otherwise it comes between.
            thread.join(1)

    faults.when_fenced = when_fenced
    recovered = store.open_ledger(writer.id)
    thread.join(60)
    assert not thread.is_alive()
    expected = (-1, 0) if answers == ["other"] else (1, 2)
    assert (recovered.last_add_confirmed, recovered.length) == expected
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == ("CLOSED", *expected)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(failing(errors.ReadError), id="eio"),
        pytest.param(failing(errors.DataUnknownError), id="limbo"),
        pytest.param(corrupted, id="corrupt"),
        pytest.param(cut_short, id="short"),
        pytest.param(None, id="fence"),
    ],
)
def test_case_47_every_bookie_in_error(open_store, wire, fault):
    faults = Faults()
    store, other = open_store(wire=wire, hooks=faults), open_store(wire=wire)
    writer = store.create_ledger()
    for payload in (b"aaaa", b"bbbb", b"cccc"):
        writer.append(payload)
    if fault is None:
        faults.fence_error = errors.ReadError()
    else:
        faults.on_entry = fault
    for _ in range(2):
        with refused(-10) as caught:
            other.open_ledger(writer.id, recovery=True)
        assert caught.type is errors.LedgerRecoveryError
    assert other.ledger_metadata(writer.id).state != "CLOSED"
    count = 3
    if fault is None:
        assert writer.append(b"dddd") == 3
        count = 4
    faults.mend()
    recovered = other.open_ledger(writer.id, recovery=True)
    assert (recovered.last_add_confirmed, recovered.length) == (count - 1, 4 * count)
    assert len(recovered.read(0, count - 1)) == count
    with refused(-101):
        writer.append(b"x")


@pytest.mark.parametrize(("fault", "v3"), [(failing(errors.ReadError), None), (corrupted, -1), (cut_short, -1)])
def test_case_47_a_no_recovery_open_in_error(open_store, wire, fault, v3):
    """Over v3 the LAC is not read from entries, so that only what cannot be verified stops the open."""
    faults = Faults()
    store, other = open_store(wire=wire, hooks=faults), open_store(wire=wire)
    writer = store.create_ledger()
    for payload in (b"aaaa", b"bbbb", b"cccc"):
        writer.append(payload)
    faults.on_entry = fault
    if wire == "v2" or v3 is not None:
        with refused(-1):
            other.open_ledger(writer.id, recovery=False)
    else:
        other.open_ledger(writer.id, recovery=False)
    assert writer.append(b"dddd") == 3


def test_case_48_an_add_that_arrives_after_the_recovery(open_store):
    """The one-machine form of an entry on a minority: on its way when the ledger is recovered without it."""
    faults = Faults()
    store, other = open_store(hooks=faults), open_store()
    writer = store.create_ledger()
    assert writer.append(b"a") == 0
    faults.hold("add")
    pending = writer.append_async(b"c")
    faults.wait_held(1)
    recovered = other.open_ledger(writer.id)
    assert (recovered.last_add_confirmed, recovered.length) == (0, 1)
    faults.release()
    assert outcome(pending) == -101
    assert (writer.last_add_confirmed, writer.length) == (0, 1)
    writer.close()
    with refused(-13):
        other.open_ledger(writer.id).read_unconfirmed(1, 1)


def test_case_48_an_add_stored_before_the_recovery(open_store):
    """Stored and unacknowledged: the recovery keeps it, and then the acknowledgment is true."""
    faults = Faults()
    store, other = open_store(hooks=faults), open_store()
    writer = store.create_ledger()
    assert writer.append(b"a") == 0
    faults.hold("ack")
    pending = writer.append_async(b"c")
    faults.wait_held(1)
    recovered = other.open_ledger(writer.id)
    faults.release()
    answer = outcome(pending)
    if answer == ("ok", 1):
        assert (recovered.last_add_confirmed, recovered.length) == (1, 2)
        assert [entry.data for entry in recovered] == [b"a", b"c"]
    else:
        assert answer == -101


def test_case_48_stress_of_acknowledgments_against_recovery(open_store):
    """Whatever was acknowledged by the time a recovery closed the ledger is in it, and nothing else was."""
    store, other = open_store(), open_store()
    for round_number in range(15):
        writer = store.create_ledger()
        pending = [writer.append_async(b"%d" % i) for i in range(5 + round_number)]
        recovered = other.open_ledger(writer.id)
        pending += [writer.append_async(b"late") for _ in range(3)]
        answers = [outcome(one) for one in pending]
        acknowledged = [answer[1] for answer in answers if isinstance(answer, tuple)]
        assert acknowledged == list(range(len(acknowledged)))
        assert recovered.last_add_confirmed >= len(acknowledged) - 1
        assert set(answers[len(acknowledged) :]) <= {-101, -11}


def test_case_49_a_hundred_adds_after_fencing(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    other.open_ledger(writer.id)
    pending = []
    codes = []
    for _ in range(100):
        try:
            pending.append(writer.append_async(b"x"))
        except errors.LedgerError as error:
            codes.append(error.code)
    codes += [outcome(one, timeout=10) for one in pending]
    assert len(codes) == 100
    assert set(codes) <= {-101, -11}
    assert -101 in codes
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (0, 0, 1)
    writer.close()
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.last_entry_id, metadata.length) == (0, 1)


@pytest.mark.parametrize("mode", ["add", "ack"])
@pytest.mark.parametrize("before", [0, 2])
def test_case_50_an_add_that_fails_for_good(open_store, mode, before):
    faults = Faults()
    store, other = open_store(hooks=faults), open_store()
    writer = store.create_ledger()
    for _ in range(before):
        writer.append(b"a")
    faults.hold(mode)
    pending = writer.append_async(b"b")
    faults.wait_held(1)
    faults.release(errors.NotEnoughBookiesError())
    assert outcome(pending) == -6
    eventually(writer.is_closed, "the handle closed itself")
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (before - 1, before - 1, before)
    with refused(-11):
        writer.append(b"c")
    writer.close()
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == ("CLOSED", before - 1, before)
    reader = other.open_ledger(writer.id)
    assert (reader.last_add_confirmed, reader.length) == (before - 1, before)
    assert [entry.data for entry in reader] == [b"a"] * before


def test_case_50_later_adds_fail_with_the_first(open_store):
    faults = Faults()
    store = open_store(hooks=faults)
    writer = store.create_ledger()
    faults.hold("ack")
    pending = [writer.append_async(b"x") for _ in range(5)]
    faults.wait_held(5)
    faults.release(errors.NotEnoughBookiesError())
    assert [outcome(one) for one in pending] == [-6] * 5
    assert (writer.last_add_confirmed, writer.length) == (-1, 0)


class At(Hooks):
    """Does something once, at a point that the store passes."""

    def __init__(self, point: str, then: Callable[[], None]) -> None:
        super().__init__()
        self._point = point
        self._then: Callable[[], None] | None = then

    def point(self, name: str) -> None:
        then = self._then
        if name == self._point and then is not None:
            self._then = None
            then()


RECOVERY_POINTS = ("before", "marked", "fenced", "entry_read", "before_close")


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("point", RECOVERY_POINTS)
def test_a_recovery_leaves_the_next_ledger_of_the_same_id_alone(open_store, point, marked):
    store = open_store()
    store.create_ledger_adv(7).write(0, b"of the first")
    if marked:
        metadata = store.ledger_metadata(7)
        store.write_ledger_metadata(metadata.replace(state="IN_RECOVERY"), expected_version=metadata.version)
    seconds = []

    def replace() -> None:
        store.delete_ledger(7)
        store.compact()
        seconds.append(store.create_ledger_adv(7))
        assert seconds[0].write(0, b"of the second") == 0
        assert seconds[0].write(1, b"also") == 1

    with pytest.raises(errors.NoSuchLedgerError, match=r"ledger 7\b.* another"):
        open_store(hooks=At(f"recovery.{point}", replace)).open_ledger(7)
    (second,) = seconds
    assert store.ledger_metadata(7).state == "OPEN"
    assert second.write(2, b"and this") == 2
    assert [entry.data for entry in store.open_ledger(7)] == [b"of the second", b"also", b"and this"]


@pytest.mark.parametrize("point", RECOVERY_POINTS)
def test_a_recovery_that_loses_its_ledger_makes_none(open_store, point):
    store = open_store()
    store.create_ledger_adv(7).write(0, b"gone")

    def remove() -> None:
        store.delete_ledger(7)
        store.compact()

    with pytest.raises(errors.NoSuchLedgerError, match=r"ledger 7\b"):
        open_store(hooks=At(f"recovery.{point}", remove)).open_ledger(7)
    assert store.create_ledger_adv(7).write(0, b"new") == 0
    assert [entry.data for entry in store.open_ledger(7)] == [b"new"]


def test_a_close_does_not_take_the_next_ledger_of_the_same_id_for_its_own(open_store):
    store = open_store()

    def replace() -> None:
        store.delete_ledger(7)
        store.compact()
        store.create_ledger_adv(7).write(0, b"b")
        assert store.open_ledger(7).last_add_confirmed == 0

    first = open_store(hooks=At("close.before_cas", replace)).create_ledger_adv(7)
    first.write(0, b"a")
    with refused(-25):
        first.close()
