"""Reference cases 30-35: ledgers whose writer chooses the entry ids."""

from __future__ import annotations

import pytest

from bookstand import errors
from tests.kit import HEADER, outcome, refused, stored_by, stored_entries


def test_case_30_an_acknowledged_id_again(open_store, wire):
    store = open_store(wire=wire)
    writer = store.create_ledger_adv()
    assert writer.write(0, b"zero") == 0
    assert (writer.last_add_confirmed, writer.length) == (0, 4)
    assert writer.last_add_pushed == -1
    for call in (lambda: writer.write(0, b"again"), lambda: writer.write_async(0, b"again").result(60)):
        with refused(-22) as caught:
            call()
        assert caught.type is errors.DuplicateEntryIdError
    with refused(-22):
        writer.write(-1, b"below every id")
    assert (writer.last_add_confirmed, writer.length, writer.is_closed()) == (0, 4, False)
    assert writer.write(1, b"one") == 1
    assert [entry.data for entry in writer.read(0, 1)] == [b"zero", b"one"]
    writer.close()
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (1, 1, 7)


def test_case_30_duplicates_are_noticed_before_the_close(store):
    writer = store.create_ledger_adv()
    writer.write(0, b"a")
    writer.write(1, b"b")
    writer.close()
    with refused(-22):
        writer.write(1, b"dup")
    with refused(-22):
        writer.write(-1, b"dup")
    with refused(-11):
        writer.write(2, b"new")


def test_case_30_far_ids(store):
    writer = store.create_ledger_adv()
    far = 2**63 - 2
    pending = writer.write_async(far, b"far")
    assert writer.write(0, b"x") == 0
    stored_by(writer, far)
    assert [(entry.entry_id, entry.data) for entry in writer.read_unconfirmed(far, far)] == [(far, b"far")]
    assert not pending.done()
    writer.close()
    assert outcome(pending) == -11
    metadata = store.ledger_metadata(writer.id)
    assert (metadata.last_entry_id, metadata.length) == (0, 1)


def test_case_31_a_pending_id_again(open_store, wire):
    store = open_store(wire=wire)
    writer = store.create_ledger_adv()
    writer.write(0, b"zero")
    first = writer.write_async(2, b"two")
    assert outcome(writer.write_async(2, b"dup")) == -22
    assert not first.done()
    assert (writer.last_add_confirmed, writer.length) == (0, 7)
    between = writer.write_async(1, b"one")
    assert outcome(between) == ("ok", 1)
    assert outcome(first) == ("ok", 2)
    assert outcome(writer.write_async(2, b"late")) == -22
    assert (writer.last_add_confirmed, writer.length) == (2, 10)
    assert [entry.data for entry in writer.read(0, 2)] == [b"zero", b"one", b"two"]
    writer.close()
    metadata = store.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == ("CLOSED", 2, 10)


def test_case_32_append_and_write_on_the_wrong_handle(open_store):
    store, other = open_store(), open_store()
    adv, plain = store.create_ledger_adv(), store.create_ledger()
    reader = other.open_ledger(plain.id, recovery=False)
    for call in (
        lambda: adv.append(b"x"),
        lambda: adv.append_async(b"x").result(60),
        lambda: adv.append_many([b"x", b"y"]),
        lambda: plain.write(0, b"x"),
        lambda: plain.write_async(0, b"x").result(60),
        lambda: reader.append(b"x"),
        lambda: reader.append_async(b"x").result(60),
        lambda: reader.append_many([b"x"]),
        lambda: reader.write(0, b"x"),
        lambda: reader.write_async(0, b"x").result(60),
    ):
        with refused(-100) as caught:
            call()
        assert caught.type is errors.IllegalOperationError
    assert adv.write(0, b"fine") == 0
    assert plain.append(b"fine") == 0
    assert (adv.is_closed(), plain.is_closed()) == (False, False)


@pytest.mark.parametrize("skipped", range(10))
def test_case_33_a_hole(open_store, skipped):
    store, other = open_store(), open_store()
    writer = store.create_ledger_adv()
    pending = {i: writer.write_async(i, b"d%d" % i) for i in range(9, -1, -1) if i != skipped}
    for i in range(skipped):
        assert outcome(pending[i]) == ("ok", i)
    assert not any(pending[i].done() for i in range(skipped + 1, 10))
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (skipped - 1, -1, 18)
    writer.close()
    for i in range(skipped + 1, 10):
        assert outcome(pending[i]) == -11
    assert (writer.last_add_confirmed, writer.length) == (skipped - 1, 2 * skipped)
    metadata = store.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == ("CLOSED", skipped - 1, 2 * skipped)
    reader = other.open_ledger(writer.id)
    assert (reader.last_add_confirmed, reader.length) == (skipped - 1, 2 * skipped)
    assert [entry.data for entry in reader] == [b"d%d" % i for i in range(skipped)]


def test_case_33_recovery_cuts_at_the_hole(open_store, wire):
    store, other = open_store(wire=wire), open_store(wire=wire)
    writer = store.create_ledger_adv()
    assert [writer.write(0, b"0"), writer.write(1, b"1")] == [0, 1]
    beyond = writer.write_async(3, b"3")
    stored_by(writer, 3)
    watching = other.open_ledger(writer.id, recovery=False)
    assert watching.last_add_confirmed == 1
    recovered = other.open_ledger(writer.id)
    assert recovered.last_add_confirmed == 1
    assert [entry.data for entry in recovered] == [b"0", b"1"]
    assert [entry.data for entry in recovered.read_unconfirmed(3, 3)] == [b"3"]
    filling = writer.write_async(2, b"2")
    assert outcome(filling) == -101
    assert outcome(beyond) == -101
    assert outcome(writer.write_async(4, b"4")) == -11
    metadata = store.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id) == ("CLOSED", 1)
    with refused(-13):
        recovered.read_unconfirmed(2, 2)


def test_case_34_reverse_order(open_store, store_path):
    store, other = open_store(), open_store()
    writer = store.create_ledger_adv()
    pending = {i: writer.write_async(i, b"d%d" % i) for i in range(9, 0, -1)}
    for i in range(1, 10):
        stored_by(writer, i)
    assert not any(one.done() for one in pending.values())
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (-1, -1, 18)
    assert writer.write(0, b"d0") == 0
    assert [outcome(pending[i]) for i in range(1, 10)] == [("ok", i) for i in range(1, 10)]
    assert (writer.last_add_confirmed, writer.length) == (9, 20)
    entries = writer.read(0, 9)
    assert [entry.data for entry in entries] == [b"d%d" % i for i in range(10)]
    assert [entry.cumulative_length for entry in entries] == [2 * (10 - i) for i in range(10)]
    assert other.open_ledger(writer.id, recovery=False).last_add_confirmed == -1
    writer.close()
    metadata = store.ledger_metadata(writer.id)
    assert (metadata.last_entry_id, metadata.length) == (9, 20)
    ledger_id = writer.id
    store.close()
    other.close()
    stored = stored_entries(store_path, ledger_id)
    assert [HEADER.unpack_from(stored[i])[2:] for i in range(10)] == [(-1, 2 * (10 - i)) for i in range(10)]


def test_case_34_acknowledged_in_order_whatever_the_order_of_submission(store):
    writer = store.create_ledger_adv()
    acknowledged: list[int] = []
    order = [7, 3, 0, 2, 5, 1, 9, 4, 8, 6]
    pending = []
    for i in order:
        one = writer.write_async(i, b"%d" % i)
        one.add_done_callback(lambda done: acknowledged.append(done.result()))
        pending.append(one)
    assert sorted(one.result(60) for one in pending) == list(range(10))
    assert acknowledged == list(range(10))
    assert writer.last_add_confirmed == 9


def test_case_35_part_of_a_buffer(store):
    adv, plain = store.create_ledger_adv(), store.create_ledger()
    data = memoryview(b"abcdefghi")
    assert adv.write(0, data[3:7]) == 0
    assert plain.append(data[5:]) == 0
    assert [entry.data for entry in adv.read(0, 0)] == [b"defg"]
    assert [entry.data for entry in plain.read(0, 0)] == [b"fghi"]
    assert (adv.length, plain.length) == (4, 4)
    with pytest.raises(IndexError):
        data[9]
