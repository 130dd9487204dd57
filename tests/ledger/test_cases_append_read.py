"""Reference cases 19-29: appending and reading."""

from __future__ import annotations

import pytest

from bookstand import errors
from tests.kit import DIGEST_SIZES, HEADER, Child, in_threads, refused, stored_by, stored_entries


def test_case_19_three_appends(open_store, store_path, wire):
    store, other = open_store(wire=wire), open_store(wire=wire)
    writer = store.create_ledger()
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (-1, -1, 0)
    for entry_id in range(3):
        assert writer.append(b"abc") == entry_id
        assert writer.last_add_pushed == entry_id
        assert writer.last_add_confirmed == entry_id
        assert writer.length == 3 * (entry_id + 1)
    assert (writer.last_add_confirmed, writer.length, writer.is_closed()) == (2, 9, False)
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length, metadata.version) == ("OPEN", -1, 0, 0)
    store.close()
    other.close()
    stored = stored_entries(store_path, writer.id)
    assert [HEADER.unpack_from(stored[i]) for i in range(3)] == [(writer.id, i, i - 1, 3 * (i + 1)) for i in range(3)]


@pytest.mark.parametrize("digest", [*DIGEST_SIZES, "MAC", "CRC32C"])
def test_case_19_every_digest_type(open_store, store_path, digest):
    store, other = open_store(), open_store()
    writer = store.create_ledger(digest=digest, password=b"pw")
    payloads = [b"abc", b"", b"\0" * 1000]
    assert [writer.append(payload) for payload in payloads] == [0, 1, 2]
    writer.close()
    reader = other.open_ledger(writer.id, password=b"pw")
    entries = reader.read(0, 2)
    assert [entry.data for entry in entries] == payloads
    assert [entry.length for entry in entries] == [3, 0, 1000]
    assert [entry.cumulative_length for entry in entries] == [3, 3, 1003]
    assert [(entry.ledger_id, entry.entry_id) for entry in entries] == [(writer.id, i) for i in range(3)]
    store.close()
    other.close()
    stored = stored_entries(store_path, writer.id)
    size = DIGEST_SIZES[{"mac": "hmac"}.get(digest.lower(), digest.lower())]
    assert [len(stored[i]) for i in range(3)] == [32 + size + len(payload) for payload in payloads]


def test_case_19_empty_payloads_are_entries(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    assert [writer.append(b""), writer.append(b"")] == [0, 1]
    assert (writer.last_add_confirmed, writer.length) == (1, 0)
    writer.close()
    metadata = store.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == ("CLOSED", 1, 0)
    assert [(entry.data, entry.cumulative_length) for entry in other.open_ledger(writer.id).read(0, 1)] == [
        (b"", 0)
    ] * 2


def test_case_19_two_writers_of_two_ledgers(open_store):
    store, other = open_store(), open_store()
    first, second = store.create_ledger(), other.create_ledger()
    assert [first.append(b"a"), second.append(b"b"), second.append(b"c"), first.append(b"d")] == [0, 0, 1, 1]
    assert [entry.data for entry in first.read(0, 1)] == [b"a", b"d"]
    first.close()
    assert second.append(b"e") == 2
    assert [entry.data for entry in second.read(0, 2)] == [b"b", b"c", b"e"]


def test_case_19_three_ways_to_append(store):
    writer = store.create_ledger()
    assert writer.append(b"a") == 0
    pending = [writer.append_async(payload) for payload in (b"b", b"c", b"d")]
    assert [one.result(60) for one in pending] == [1, 2, 3]
    assert writer.append_many([b"e", b"f"]) == range(4, 6)
    assert writer.append_many(payload for payload in (b"g",)) == range(6, 7)
    assert len(writer.append_many([])) == 0
    assert writer.append(b"h") == 7
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (7, 7, 8)
    assert b"".join(entry.data for entry in writer.read(0, 7)) == b"abcdefgh"


def test_case_20_append_after_close(open_store):
    store = open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    writer.append(b"b")
    writer.close()
    for call in (
        lambda: writer.append(b"c"),
        lambda: writer.append_async(b"c").result(60),
        lambda: writer.append_many([b"d", b"e"]),
    ):
        with refused(-11) as caught:
            call()
        assert caught.type is errors.LedgerClosedError
    assert [(entry.data, entry.cumulative_length) for entry in writer.read(0, 1)] == [(b"a", 1), (b"b", 2)]
    assert writer.read_last_confirmed() == 1
    assert writer.try_read_last_confirmed() == 1
    assert writer.read_last_entry().data == b"b"
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (1, 1, 2)
    writer.close()
    metadata = store.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length, metadata.version) == ("CLOSED", 1, 2, 1)


def test_case_20_as_a_context_manager(store):
    with store.create_ledger() as writer:
        writer.append(b"a")
    assert writer.is_closed()
    with refused(-11):
        writer.append(b"b")
    assert store.is_closed(writer.id)


def test_case_21_closed_ledger(open_store, wire):
    store, other = open_store(wire=wire), open_store(wire=wire)
    writer = store.create_ledger()
    for _ in range(3):
        writer.append(b"abc")
    writer.close()
    handles = [writer, other.open_ledger(writer.id, recovery=True), other.open_ledger(writer.id, recovery=False)]
    for handle in handles:
        assert handle.last_add_confirmed == 2
        assert handle.read_last_confirmed() == 2
        assert handle.try_read_last_confirmed() == 2
        assert handle.read_explicit_last_confirmed() == 2
        assert handle.length == 9
        assert handle.is_closed() is True
        assert handle.read_last_entry().entry_id == 2
        assert [entry.data for entry in handle.read(0, 2)] == [b"abc"] * 3
        with refused(-1):
            handle.read(0, 3)
        with refused(-13):
            handle.read_unconfirmed(0, 3)
    for handle in handles[1:]:
        lac, entry = handle.wait_entry(2, 0.02)
        assert (lac, entry.data, entry.cumulative_length) == (2, b"abc", 9)
        assert handle.wait_entry(3, 30) == (2, None)


def check_lag(reader, wire: str, length: int) -> None:
    assert reader.last_add_confirmed == 3
    assert reader.length == (0 if wire == "v3" else length)
    with refused(-1) as caught:
        reader.read(0, 4)
    assert caught.type is errors.ReadError
    assert [entry.data for entry in reader.read_unconfirmed(0, 4)] == [b"e%d" % i for i in range(5)]
    assert reader.last_add_confirmed == 3
    with refused(-13) as caught:
        reader.read_unconfirmed(3, 5)
    assert caught.type is errors.NoSuchEntryError
    assert reader.last_add_confirmed == 3
    assert [entry.data for entry in reader.read(0, 3)] == [b"e%d" % i for i in range(4)]
    assert reader.read_last_confirmed() == 3
    assert reader.try_read_last_confirmed() == 3
    assert reader.read_last_entry().data == b"e3"
    assert reader.last_add_confirmed == 3
    assert reader.is_closed() is False


def test_case_22_five_adds_without_close(open_store, wire):
    store, other = open_store(wire=wire), open_store(wire=wire)
    writer = store.create_ledger()
    for i in range(5):
        writer.append(b"e%d" % i)
    check_lag(other.open_ledger(writer.id, recovery=False), wire, 10)
    ledger_id = writer.id
    store.close()
    other.close()
    again = open_store(wire=wire)
    assert again.ledger_metadata(ledger_id).state == "OPEN"
    check_lag(again.open_ledger(ledger_id, recovery=False), wire, 10)


def test_case_22_identical_after_the_writer_was_killed(open_store, child, wire):
    writing: Child = child(f"wire={wire!r}")
    writing.run("w = store.create_ledger()")
    assert [writing.run(f"w.append(b'e{i}')") for i in range(5)] == [0, 1, 2, 3, 4]
    ledger_id = writing.run("w.id")
    before = open_store(wire=wire)
    check_lag(before.open_ledger(ledger_id, recovery=False), wire, 10)
    before.close()
    writing.kill()
    check_lag(open_store(wire=wire).open_ledger(ledger_id, recovery=False), wire, 10)


def test_case_22_adds_pipelined_before_any_acknowledgment(open_store, wire):
    store, other = open_store(wire=wire), open_store(wire=wire)
    writer = store.create_ledger()
    assert writer.append_many([b"e%d" % i for i in range(5)]) == range(5)
    reader = other.open_ledger(writer.id, recovery=False)
    assert reader.last_add_confirmed == -1
    with refused(-1):
        reader.read(0, 0)
    assert len(reader.read_unconfirmed(0, 4)) == 5
    assert reader.read_last_confirmed() == -1
    assert reader.try_read_last_confirmed() == -1
    with refused(-13):
        reader.read_last_entry()
    assert reader.last_add_confirmed == -1
    assert writer.append(b"e5") == 5
    assert reader.read_last_confirmed() == 4
    assert reader.last_add_confirmed == 4
    assert other.open_ledger(writer.id, recovery=True).last_add_confirmed == 5


def test_case_22_reads_piggyback_the_lac_over_v3_only(open_store, wire):
    store, other = open_store(wire=wire), open_store(wire=wire)
    writer = store.create_ledger()
    writer.append(b"a")
    reader = other.open_ledger(writer.id, recovery=False)
    for payload in (b"b", b"c", b"d"):
        writer.append(payload)
    assert reader.last_add_confirmed == -1
    reader.read_unconfirmed(0, 0)
    assert reader.last_add_confirmed == (2 if wire == "v3" else -1)
    writer.append(b"e")
    # It rides on what is found: an absent entry brings none, a range that only ends in absence does.
    with refused(-13):
        reader.read_unconfirmed(7, 7)
    assert reader.last_add_confirmed == (2 if wire == "v3" else -1)
    with refused(-13):
        reader.read_unconfirmed(0, 7)
    assert reader.last_add_confirmed == (3 if wire == "v3" else -1)
    assert reader.read_last_confirmed() == 3
    assert reader.last_add_confirmed == 3


def test_case_23_then_recovery_open(open_store, wire):
    store, other = open_store(wire=wire), open_store(wire=wire)
    writer = store.create_ledger()
    for i in range(5):
        writer.append(b"e%d" % i)
    watching = other.open_ledger(writer.id, recovery=False)
    recovered = other.open_ledger(writer.id, recovery=True)
    assert (recovered.last_add_confirmed, recovered.length, recovered.is_closed()) == (4, 10, True)
    assert other.is_closed(writer.id) is True
    assert writer.is_closed() is False
    assert (writer.last_add_confirmed, writer.length) == (4, 10)
    writer.close()
    assert writer.is_closed() is True
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length, metadata.version) == ("CLOSED", 4, 10, 2)
    assert watching.read_last_confirmed() == 4
    assert [entry.data for entry in watching.read(0, 4)] == [b"e%d" % i for i in range(5)]
    assert (watching.last_add_confirmed, watching.length, watching.is_closed()) == (4, 10, True)


@pytest.mark.parametrize("bounds", [(-1, 0), (2, 1), (0, -1), (-2, -1), (-(2**63), 2)])
def test_case_24_bounds_out_of_order(open_store, bounds):
    store = open_store()
    writer = store.create_ledger()
    for _ in range(3):
        writer.append(b"a")
    for handle in (writer, open_store().open_ledger(writer.id)):
        for read in (handle.read, handle.read_unconfirmed):
            with refused(-14) as caught:
                read(*bounds)
            assert caught.type is errors.IncorrectParameterError


@pytest.mark.parametrize("bounds", [(0, 3), (3, 3), (5, 9)])
def test_case_24_beyond_the_end(store, bounds):
    writer = store.create_ledger()
    for _ in range(3):
        writer.append(b"a")
    with refused(-1):
        writer.read(*bounds)
    with refused(-13):
        writer.read_unconfirmed(*bounds)


def test_case_25_last_entry_of_an_empty_ledger(open_store, wire):
    store, other = open_store(wire=wire), open_store(wire=wire)
    writer = store.create_ledger()
    watching = other.open_ledger(writer.id, recovery=False)
    for handle in (writer, watching):
        assert (handle.last_add_confirmed, handle.length) == (-1, 0)
        assert handle.read_last_confirmed() == -1
        assert handle.try_read_last_confirmed() == -1
        with refused(-13):
            handle.read_last_entry()
        with refused(-1):
            handle.read(0, 0)
        with refused(-7):
            handle.read_unconfirmed(0, 0)
        with refused(-1):
            handle.batch_read(0, 1, 0)
    assert watching.read_explicit_last_confirmed() == -1
    with refused(-7):
        watching.wait_entry(0, 0.02)
    writer.close()
    metadata = store.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == ("CLOSED", -1, 0)
    for handle in (writer, watching, other.open_ledger(writer.id), other.open_ledger(writer.id, recovery=False)):
        with refused(-13) as caught:
            handle.read_last_entry()
        assert caught.type is errors.NoSuchEntryError
        assert handle.read_last_confirmed() == -1
        assert (handle.last_add_confirmed, handle.length) == (-1, 0)
        assert list(handle) == []
    assert other.open_ledger(writer.id).wait_entry(0, 30) == (-1, None)


def test_case_26_ten_reads_of_one_entry_at_once(open_store):
    store = open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    writer.append(b"b")
    reader = open_store().open_ledger(writer.id)
    for handle in (writer, reader):
        results = in_threads(10, lambda _, handle=handle: handle.read(0, 0))
        assert [[entry.data for entry in entries] for entries in results] == [[b"a"]] * 10


def test_case_27_batch_of_unconfirmed_entries(open_store, wire):
    store, other = open_store(wire=wire), open_store(wire=wire)
    writer = store.create_ledger()
    for payload in (b"aa", b"bb", b"cc"):
        writer.append(payload)
    reader = other.open_ledger(writer.id, recovery=False)
    assert reader.last_add_confirmed == 1
    for handle in (reader, writer):
        assert [entry.data for entry in handle.batch_read_unconfirmed(0, 5, 0)] == [b"aa", b"bb", b"cc"]
        assert [entry.data for entry in handle.batch_read_unconfirmed(0, 0, 0)] == [b"aa", b"bb", b"cc"]
        with refused(-13):
            handle.batch_read_unconfirmed(5, 1, 0)
        for arguments in ((-1, 1, 0), (0, -1, 0), (0, 1, -1)):
            with refused(-14) as caught:
                handle.batch_read_unconfirmed(*arguments)
            assert caught.type is errors.IncorrectParameterError
        assert [entry.data for entry in handle.batch_read_unconfirmed(2, 1, 0)] == [b"cc"]
        assert [entry.data for entry in handle.batch_read_unconfirmed(1, 1, 1)] == [b"bb"]


def ten_entries(store, digest: str = "crc32"):
    writer = store.create_ledger(digest=digest, password=b"pw")
    for i in range(10):
        writer.append(b"%010d" % i)
    return writer


def test_case_28_batch_at_the_end(open_store, wire):
    store, other = open_store(wire=wire), open_store(wire=wire)
    writer = ten_entries(store)
    writer.close()
    reader = other.open_ledger(writer.id, password=b"pw")
    assert [entry.entry_id for entry in reader.batch_read(8, 3, 0)] == [8, 9]
    with refused(-1):
        reader.batch_read(10, 1, 0)
    with refused(-13):
        reader.batch_read_unconfirmed(10, 1, 0)
    with refused(-14):
        reader.batch_read(-1, 1, 0)
    assert [entry.entry_id for entry in reader.batch_read(0, 0, 0)] == list(range(10))
    assert [entry.entry_id for entry in reader.batch_read(3, 4, 0)] == [3, 4, 5, 6]


def test_case_28_batch_never_passes_the_lac(open_store):
    store, other = open_store(), open_store()
    writer = ten_entries(store)
    reader = other.open_ledger(writer.id, password=b"pw", recovery=False)
    assert reader.last_add_confirmed == 8
    for count in (0, 10, 100):
        assert [entry.entry_id for entry in reader.batch_read(5, count, 0)] == [5, 6, 7, 8]
    with refused(-1):
        reader.batch_read(9, 1, 0)
    assert [entry.entry_id for entry in reader.batch_read_unconfirmed(5, 0, 0)] == [5, 6, 7, 8, 9]


def test_case_28_batch_stops_at_a_gap(open_store, wire):
    store = open_store(wire=wire)
    writer = store.create_ledger_adv()
    writer.write(0, b"zero")
    writer.write(1, b"one")
    pending = [writer.write_async(3, b"three"), writer.write_async(4, b"four")]
    stored_by(writer, 3)
    stored_by(writer, 4)
    assert [entry.data for entry in writer.batch_read_unconfirmed(0, 10, 0)] == [b"zero", b"one"]
    assert [entry.data for entry in writer.batch_read_unconfirmed(3, 10, 0)] == [b"three", b"four"]
    with refused(-13):
        writer.batch_read_unconfirmed(2, 1, 0)
    assert [entry.data for entry in writer.batch_read(0, 10, 0)] == [b"zero", b"one"]
    with refused(-13):
        writer.read_unconfirmed(0, 3)
    assert writer.write(2, b"two") == 2
    assert [one.result(60) for one in pending] == [3, 4]
    assert len(writer.batch_read(0, 10, 0)) == 5


@pytest.mark.parametrize("digest", list(DIGEST_SIZES))
def test_case_29_batch_by_size(open_store, wire, digest):
    store, other = open_store(wire=wire), open_store(wire=wire)
    writer = ten_entries(store, digest)
    writer.close()
    reader = other.open_ledger(writer.id, password=b"pw")
    one = 4 + 32 + DIGEST_SIZES[digest] + 10

    def ids(count: int, size: int) -> list[int]:
        entries = reader.batch_read(0, count, size)
        assert entries == reader.batch_read_unconfirmed(0, count, size)
        return [entry.entry_id for entry in entries]

    for count in (0, 10, 100):
        if digest == "crc32":
            assert ids(count, 5 * (40 + 10) + 36 + 20) == [0, 1, 2, 3, 4]
        assert ids(count, 36) == [0]
        assert ids(count, 1) == [0]
        for wanted in range(2, 11):
            exact = 36 + wanted * one
            assert ids(count, exact - 1) == list(range(wanted - 1))
            assert ids(count, exact) == list(range(wanted))
            assert ids(count, exact + 1) == list(range(wanted))
        assert ids(count, 0) == list(range(10))
        assert ids(count, 2**40) == list(range(10))
    assert ids(3, 36 + 10 * one) == [0, 1, 2]


def test_case_29_a_batch_fits_a_frame_unless_told_otherwise(store):
    writer = store.create_ledger()
    for _ in range(7):
        writer.append(bytes(1 << 20))
    writer.close()
    assert len(writer.batch_read(0, 0, 0)) == 4
    assert len(writer.batch_read(0, 7, 5 << 20)) == 4
