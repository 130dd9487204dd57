"""Reference cases 51-58: deferred sync, last-add-confirmed, long polls, and reads that fail."""

from __future__ import annotations

import threading
import time

import pytest

from bookstand import errors
from bookstand.storage.hooks import Hooks
from tests.kit import (
    Faults,
    absent,
    change_entry,
    corrupted,
    cut_short,
    eventually,
    failing,
    outcome,
    refused,
    stored_by,
)


@pytest.mark.parametrize("many", [True, False])
def test_case_51_a_hundred_deferred_adds(open_store, many):
    store, other = open_store(), open_store()
    writer = store.create_ledger(deferred_sync=True)
    payloads = [b"d%d" % i for i in range(100)]
    if many:
        assert writer.append_many(payloads) == range(100)
    else:
        assert [writer.append(payload) for payload in payloads] == list(range(100))
    assert (writer.last_add_pushed, writer.last_add_confirmed, writer.length) == (99, -1, 290)
    with refused(-1):
        writer.read(0, 0)
    reader = other.open_ledger(writer.id, recovery=False)
    assert reader.last_add_confirmed == -1
    assert reader.read_last_confirmed() == -1
    assert [entry.data for entry in reader.read_unconfirmed(0, 99)] == payloads
    writer.force()
    assert (writer.last_add_pushed, writer.last_add_confirmed) == (99, 99)
    assert len(writer.read(0, 99)) == 100
    assert writer.append(b"e") == 100
    assert writer.last_add_confirmed == 99
    assert reader.read_last_confirmed() == 99
    writer.close()
    metadata = store.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id) == ("CLOSED", 99)


def test_case_51_forcing_nothing(open_store):
    store = open_store()
    writer = store.create_ledger(deferred_sync=True)
    writer.force()
    assert writer.last_add_confirmed == -1
    assert writer.force_async().result(60) is None
    plain = store.create_ledger()
    plain.force()
    plain.append(b"a")
    plain.force()
    assert plain.last_add_confirmed == 0


def test_case_51_what_was_forced_survives_a_kill(open_store, child):
    writing = child()
    writing.run("w = store.create_ledger(deferred_sync=True)")
    ledger_id = writing.run("w.id")
    writing.run("[w.append(b'%d' % i) for i in range(50)]")
    writing.run("w.force()")
    assert writing.run("w.last_add_confirmed") == 49
    writing.run("[w.append(b'%d' % i) for i in range(50, 60)]")
    writing.kill()
    recovered = open_store().open_ledger(ledger_id)
    kept = recovered.last_add_confirmed + 1
    assert 50 <= kept <= 60
    assert [entry.data for entry in recovered] == [b"%d" % i for i in range(kept)]


def test_case_52_deferred_adds_out_of_order(store):
    writer = store.create_ledger_adv(deferred_sync=True)
    assert outcome(writer.write_async(0, b"0")) == ("ok", 0)
    pending = [writer.write_async(2, b"2"), writer.write_async(3, b"3")]
    assert writer.last_add_confirmed == -1
    writer.force()
    assert writer.last_add_confirmed == 0
    assert not any(one.done() for one in pending)
    assert outcome(writer.write_async(1, b"1")) == ("ok", 1)
    assert [outcome(one) for one in pending] == [("ok", 2), ("ok", 3)]
    assert writer.last_add_confirmed == 0
    writer.force()
    assert writer.last_add_confirmed == 3
    writer.close()
    metadata = store.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == ("CLOSED", 3, 4)


def test_case_53_acknowledged_after_the_force_began(store):
    for _ in range(20):
        writer = store.create_ledger(deferred_sync=True)
        assert writer.append(b"before") == 0
        forcing = writer.force_async()
        later = writer.append_async(b"after")
        forcing.result(60)
        assert writer.last_add_confirmed == 0
        assert outcome(later) == ("ok", 1)
        assert writer.last_add_confirmed == 0
        writer.force()
        assert writer.last_add_confirmed == 1


def test_case_53_unacknowledged_when_the_force_began(open_store):
    faults = Faults()
    store = open_store(hooks=faults)
    writer = store.create_ledger(deferred_sync=True)
    assert writer.append(b"a") == 0
    faults.hold("ack")
    held = writer.append_async(b"b")
    faults.wait_held(1)
    writer.force()
    assert writer.last_add_confirmed == 0
    faults.release()
    assert outcome(held) == ("ok", 1)
    assert writer.last_add_confirmed == 0
    writer.force()
    assert writer.last_add_confirmed == 1


def test_case_54_deferred_close_without_force(open_store):
    store = open_store()
    writer = store.create_ledger(deferred_sync=True)
    for i in range(10):
        writer.append(b"d%d" % i)
    assert writer.last_add_confirmed == -1
    writer.close()
    assert store.ledger_metadata(writer.id).last_entry_id == -1
    ledger_id = writer.id
    store.close()
    again = open_store()
    for recovery in (True, False):
        reader = again.open_ledger(ledger_id, recovery=recovery)
        assert reader.last_add_confirmed == -1
        assert [entry.data for entry in reader.read_unconfirmed(0, 9)] == [b"d%d" % i for i in range(10)]


def test_case_54_recovery_takes_what_survives(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger(deferred_sync=True)
    for i in range(10):
        writer.append(b"d%d" % i)
    recovered = other.open_ledger(writer.id)
    assert (recovered.last_add_confirmed, recovered.length) == (9, 20)
    assert [entry.data for entry in recovered] == [b"d%d" % i for i in range(10)]
    with refused(-101):
        writer.append(b"x")
    with refused(-17):
        writer.close()


def test_case_55_force_after_close(store):
    for deferred in (True, False):
        for payloads in ([], [b"a"]):
            writer = store.create_ledger(deferred_sync=deferred)
            for payload in payloads:
                writer.append(payload)
            writer.close()
            for call in (writer.force, lambda writer=writer: writer.force_async().result(60)):
                with refused(-11) as caught:
                    call()
                assert caught.type is errors.LedgerClosedError


def test_case_55_force_after_a_fence(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger(deferred_sync=True)
    writer.append(b"a")
    other.open_ledger(writer.id)
    writer.force()
    assert (writer.last_add_confirmed, writer.length) == (0, 1)
    with refused(-101):
        writer.append(b"b")
    with refused(-11):
        writer.force()
    writer.close()
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.last_entry_id, metadata.length) == (0, 1)


def test_case_56_explicit_lac(open_store):
    store, other = open_store(explicit_lac_interval=0.02), open_store()
    writer = store.create_ledger()
    for payload in (b"a", b"b", b"c"):
        writer.append(payload)
    reader = other.open_ledger(writer.id, recovery=False)
    assert reader.last_add_confirmed in (1, 2)
    eventually(lambda: reader.read_last_confirmed() == 2, "the explicit LAC")
    assert reader.try_read_last_confirmed() == 2
    assert reader.read_explicit_last_confirmed() == 2
    assert reader.last_add_confirmed == 2
    assert [entry.data for entry in reader.read(0, 2)] == [b"a", b"b", b"c"]
    assert other.open_ledger(writer.id, recovery=False).last_add_confirmed == 2
    ledger_id = writer.id
    store.close()
    other.close()
    again = open_store()
    late = again.open_ledger(ledger_id, recovery=False)
    assert late.last_add_confirmed == 2
    assert late.read_explicit_last_confirmed() == 2
    assert late.last_add_confirmed == 2
    assert again.open_ledger(ledger_id).last_add_confirmed == 2


def test_case_56_no_explicit_lac_unless_asked_for(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    for payload in (b"a", b"b", b"c"):
        writer.append(payload)
    reader = other.open_ledger(writer.id, recovery=False)
    time.sleep(0.1)
    assert reader.read_last_confirmed() == 1
    assert reader.read_explicit_last_confirmed() == 1


def waiting(reader, entry_id: int, timeout: float):
    answers: list[object] = []

    def wait() -> None:
        try:
            answers.append(reader.wait_entry(entry_id, timeout))
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread, answers


def test_case_57_long_poll(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    writer.append(b"b")
    reader = other.open_ledger(writer.id, recovery=False)
    assert reader.last_add_confirmed == 0
    lac, entry = reader.wait_entry(0, 30)
    assert (lac, entry.data) == (0, b"a")
    assert reader.wait_entry(1, 0.03) == (0, None)
    thread, answers = waiting(reader, 1, 60)
    writer.append(b"c")
    thread.join(60)
    ((lac, entry),) = answers
    assert (lac, entry.entry_id, entry.data, entry.cumulative_length) == (1, 1, b"b", 2)
    assert reader.last_add_confirmed == 1
    writer.close()
    assert reader.wait_entry(3, 30) == (2, None)
    lac, entry = reader.wait_entry(2, 30)
    assert (lac, entry.data) == (2, b"c")


def test_case_57_long_poll_across_processes(open_store, child):
    writer = open_store().create_ledger()
    writer.append(b"a")
    writer.append(b"b")
    reading = child()
    reading.run(f"r = store.open_ledger({writer.id}, recovery=False)")
    assert reading.run("r.last_add_confirmed") == 0
    reading.send("(lambda lac, e: [lac, e.entry_id, e.data.decode()])(*r.wait_entry(1, 60))")
    writer.append(b"c")
    assert reading.receive() == [1, 1, "b"]


def test_case_57_several_wait_at_once(open_store):
    store = open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    readers = [open_store().open_ledger(writer.id, recovery=False) for _ in range(4)]
    waits = [waiting(reader, 0, 60) for reader in readers]
    writer.append(b"b")
    for thread, answers in waits:
        thread.join(60)
        assert [(lac, entry.data) for lac, entry in answers] == [(0, b"a")]


def test_case_57_over_v2_nothing_is_waited_for(open_store):
    store, other = open_store(wire="v2"), open_store(wire="v2")
    writer = store.create_ledger()
    writer.append(b"a")
    writer.append(b"b")
    reader = other.open_ledger(writer.id, recovery=False)
    lac, entry = reader.wait_entry(0, 30)
    assert (lac, entry.data) == (0, b"a")
    assert reader.wait_entry(1, 0.03) == (0, None)
    writer.append(b"c")
    assert reader.wait_entry(1, 0.03) == (0, None)
    writer.close()
    assert reader.read_last_confirmed() == 2
    lac, entry = reader.wait_entry(2, 30)
    assert (lac, entry.data) == (2, b"c")
    assert reader.wait_entry(3, 0.03) == (2, None)


def test_case_57_following(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    reader = other.open_ledger(writer.id, recovery=False)
    seen: list[bytes] = []

    def follow() -> None:
        seen.extend(entry.data for entry in reader.follow())

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    payloads = [b"%d" % i for i in range(30)]
    for payload in payloads:
        writer.append(payload)
    eventually(lambda: len(seen) >= 29, "all confirmed entries")
    writer.close()
    thread.join(60)
    assert not thread.is_alive()
    assert seen == payloads


READS = [
    pytest.param(lambda reader: reader.read(1, 1), id="read"),
    pytest.param(lambda reader: reader.read_unconfirmed(0, 2), id="read_unconfirmed"),
    pytest.param(lambda reader: reader.read_last_entry(), id="read_last_entry"),
    pytest.param(lambda reader: reader.batch_read(0, 3, 0), id="batch_read"),
    pytest.param(lambda reader: reader.batch_read_unconfirmed(0, 3, 0), id="batch_read_unconfirmed"),
    pytest.param(lambda reader: list(reader), id="iteration"),
]


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        pytest.param(corrupted, -5, id="corrupt"),
        pytest.param(cut_short, -5, id="short"),
        pytest.param(failing(errors.OperationTimeoutError), -23, id="timeout"),
        pytest.param(failing(errors.ReadError), -1, id="eio"),
        pytest.param(failing(errors.NoSuchLedgerOnBookieError), -7, id="no-ledger"),
        pytest.param(failing(errors.BookieHandleNotAvailableError), -8, id="down"),
        pytest.param(absent, -13, id="no-entry"),
    ],
)
def test_case_58_every_replica_fails(open_store, wire, fault, code, read):
    faults = Faults()
    store, other = open_store(wire=wire, hooks=faults), open_store(wire=wire)
    writer = store.create_ledger()
    for payload in (b"aaaa", b"bbbb", b"cccc"):
        writer.append(payload)
    writer.close()
    reader = other.open_ledger(writer.id)
    faults.on_entry = fault
    with refused(code):
        read(reader)
    faults.mend()
    read(reader)
    assert [entry.data for entry in reader.read(0, 2)] == [b"aaaa", b"bbbb", b"cccc"]


FLIPS = {
    "payload": lambda stored: stored[:-1] + bytes((stored[-1] ^ 0x40,)),
    "digest": lambda stored: stored[:33] + bytes((stored[33] ^ 1,)) + stored[34:],
    "ledger id": lambda stored: bytes((stored[0] ^ 1,)) + stored[1:],
    "entry id": lambda stored: stored[:15] + bytes((stored[15] ^ 1,)) + stored[16:],
    "lac": lambda stored: stored[:23] + bytes((stored[23] ^ 1,)) + stored[24:],
    "length": lambda stored: stored[:31] + bytes((stored[31] ^ 1,)) + stored[32:],
    "cut by a byte": lambda stored: stored[:-1],
    "cut in the digest": lambda stored: stored[:34],
    "cut in the header": lambda stored: stored[:20],
    "nothing left": lambda stored: b"",
    "longer": lambda stored: stored + b"\0",
    "zeroed payload": lambda stored: stored[:36] + bytes(len(stored) - 36),
    "zeroed": lambda stored: bytes(len(stored)),
}


@pytest.mark.damaged
@pytest.mark.parametrize("damage", list(FLIPS))
def test_case_58_damage_on_disk_is_never_absence(open_store, store_path, damage):
    store = open_store()
    writer = store.create_ledger()
    for payload in (b"aaaa", b"bbbb", b"cccc"):
        writer.append(payload)
    writer.close()
    ledger_id = writer.id
    store.close()
    change_entry(store_path, ledger_id, 1, FLIPS[damage])
    again = open_store()
    reader = again.open_ledger(ledger_id)
    with refused(-5) as caught:
        reader.read(1, 1)
    assert caught.type is errors.DigestMismatchError
    with refused(-5):
        reader.read(0, 2)
    with refused(-5):
        list(reader)
    assert [entry.data for entry in reader.read(0, 0)] == [b"aaaa"]
    assert [entry.data for entry in reader.read(2, 2)] == [b"cccc"]
    report = again.verify()
    assert not report.ok
    assert any(f"{ledger_id}:1" in str(problem) for problem in report.problems)


@pytest.mark.damaged
@pytest.mark.parametrize("closed", [True, False])
def test_case_58_an_entry_that_is_gone_is_noticed(open_store, store_path, closed):
    store = open_store()
    writer = store.create_ledger()
    for payload in (b"aaaa", b"bbbb", b"cccc"):
        writer.append(payload)
    if closed:
        writer.close()
    ledger_id = writer.id
    store.close()
    change_entry(store_path, ledger_id, 1, lambda _: None)
    again = open_store()
    report = again.verify()
    assert not report.ok
    assert any(str(ledger_id) in str(problem) for problem in report.problems)


@pytest.mark.damaged
@pytest.mark.parametrize("damaged_entry", [0, 1, 2])
def test_case_58_recovery_does_not_truncate_at_damage(open_store, store_path, damaged_entry):
    store = open_store()
    writer = store.create_ledger()
    writer.append_many([b"aaaa", b"bbbb", b"cccc"])
    ledger_id = writer.id
    store.close()
    change_entry(store_path, ledger_id, damaged_entry, FLIPS["payload"])
    again = open_store()
    with refused(-10):
        again.open_ledger(ledger_id)
    assert again.ledger_metadata(ledger_id).state != "CLOSED"


def test_case_58_the_entry_beyond_is_stored(store):
    """What a reader must not be told to be damaged: an entry merely not there yet."""
    writer = store.create_ledger_adv()
    writer.write_async(1, b"b")
    stored_by(writer, 1)
    with refused(-13):
        writer.read_unconfirmed(0, 1)


def test_lacs_are_told_after_telling_one_failed(open_store):
    """One thread tells those of all writers; here a hook raises in it."""
    raised = threading.Event()

    class Raising(Hooks):
        sees_entries = False

        def point(self, name):
            in_background = threading.current_thread().name == "bookstand-background"
            if name == "commit.before_write" and in_background and not raised.is_set():
                raised.set()
                raise MemoryError

    store = open_store(explicit_lac_interval=0.01, hooks=Raising())
    writer = store.create_ledger()
    writer.append(b"0")
    eventually(raised.is_set)
    reader = store.open_ledger(writer.id, recovery=False)
    writer.append(b"1")
    eventually(lambda: reader.read_last_confirmed() == 1)
