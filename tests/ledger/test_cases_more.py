"""Reference cases 64-86 (its appendix D)."""

from __future__ import annotations

import os
import signal
import threading

import pytest

import bookstand
from bookstand import errors
from tests.kit import (
    DIGEST_SIZES,
    HEADER,
    Faults,
    change_entry,
    eventually,
    fill,
    in_threads,
    outcome,
    refused,
    stored_by,
    stored_entries,
    until_full,
)


def test_case_64_the_same_key_twice_and_another(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger_adv(9, password=b"pw")
    writer.write(0, b"a")
    for _ in range(2):
        other.open_ledger(9, password=b"pw", recovery=False)
    for recovery in (True, False):
        with refused(-102):
            other.open_ledger(9, password=b"other", recovery=recovery)
    assert writer.write(1, b"b") == 1
    for _ in range(2):
        assert other.open_ledger(9, password=b"pw").last_add_confirmed == 1
    with refused(-102):
        other.open_ledger(9, password=b"other")


def test_case_65_fencing_a_ledger_without_entries(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    recovered = other.open_ledger(writer.id)
    assert (recovered.last_add_confirmed, recovered.length) == (-1, 0)
    with refused(-7, -13):
        recovered.read_unconfirmed(0, 0)
    with refused(-101):
        writer.append(b"a")
    writer.close()
    assert other.ledger_metadata(writer.id).last_entry_id == -1


def test_case_65_recovering_an_unknown_ledger_creates_nothing(store):
    with refused(-25):
        store.open_ledger(4711)
    assert list(store.list_ledgers()) == []
    writer = store.create_ledger_adv(4711)
    assert writer.write(0, b"not fenced") == 0


def test_case_66_fencing_twice(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    assert store.ledger_metadata(writer.id).version == 0
    other.open_ledger(writer.id)
    version = store.ledger_metadata(writer.id).version
    assert version > 0
    for _ in range(2):
        assert other.open_ledger(writer.id).last_add_confirmed == 0
        assert store.ledger_metadata(writer.id).version == version


def test_case_67_stored_out_of_order(open_store):
    store = open_store()
    writer = store.create_ledger_adv(7)
    pending = [writer.write_async(2, b"two"), writer.write_async(1, b"one")]
    stored_by(writer, 1)
    stored_by(writer, 2)
    reader = open_store().open_ledger(7, recovery=False)
    assert [entry.data for entry in reader.read_unconfirmed(1, 2)] == [b"one", b"two"]
    assert [entry.data for entry in reader.read_unconfirmed(2, 2)] == [b"two"]
    assert not any(one.done() for one in pending)
    store.close()
    assert [outcome(one) for one in pending] == [-19, -19]
    reader = open_store().open_ledger(7, recovery=False)
    assert [entry.data for entry in reader.read_unconfirmed(1, 2)] == [b"one", b"two"]
    with refused(-13):
        reader.read_unconfirmed(0, 0)


@pytest.mark.parametrize("collected", [True, False])
@pytest.mark.parametrize("closed", [True, False])
def test_case_68_ids_written_again_serve_the_new_bytes(open_store, closed, collected):
    store = open_store()
    first = store.create_ledger_adv(3)
    for i in range(5):
        first.write(i, b"old %d" % i)
    if closed:
        first.close()
    store.delete_ledger(3)
    if collected:
        store.compact()
    second = store.create_ledger_adv(3)
    for i in range(3):
        assert second.write(i, b"new %d" % i) == i
    assert [entry.data for entry in second.read(0, 2)] == [b"new 0", b"new 1", b"new 2"]
    with refused(-13):
        second.read_unconfirmed(3, 3)
    second.close()
    store.close()
    reader = open_store().open_ledger(3)
    assert (reader.last_add_confirmed, reader.length) == (2, 15)
    assert [entry.data for entry in reader] == [b"new 0", b"new 1", b"new 2"]


def test_case_69_the_lac_in_the_newest_entry(open_store):
    store = open_store()
    writer = store.create_ledger()
    for i in range(6):
        writer.append(b"%d" % i)
        reader = open_store().open_ledger(writer.id, recovery=False)
        assert reader.last_add_confirmed == i - 1
        reader.close()


def test_case_69_stored_headers(store_path):
    with bookstand.open(store_path) as store:
        writer = store.create_ledger()
        for i in range(4):
            writer.append(b"%d" % i)
        writer.append_many([b"x", b"y", b"z"])
        ledger_id = writer.id
    stored = stored_entries(store_path, ledger_id)
    assert [HEADER.unpack_from(stored[i])[2] for i in range(7)] == [-1, 0, 1, 2, 3, 3, 3]
    assert [HEADER.unpack_from(stored[i])[3] for i in range(7)] == [1, 2, 3, 4, 5, 6, 7]


GOLDEN = bytes.fromhex("00000000000000010000000000000000ffffffffffffffff0000000000000003")
GOLDEN_DIGESTS = {
    "crc32c": "bd71cbed",
    "crc32": "000000006411737f",
    "hmac": "5dcc3f21ce9c8fc5816310729c0482daab0c3549",
    "dummy": "",
}


@pytest.mark.parametrize("digest", list(DIGEST_SIZES))
def test_case_69_golden_bytes(store_path, digest):
    """Ledger 1, entry 0, nothing confirmed, payload ``foo``: the vectors of the reference's appendix A."""
    with bookstand.open(store_path) as store:
        writer = store.create_ledger_adv(1, digest=digest, password=b"password")
        writer.write(0, b"foo")
    assert stored_entries(store_path, 1) == {0: GOLDEN + bytes.fromhex(GOLDEN_DIGESTS[digest]) + b"foo"}


def update(client, ledger_id: int, change) -> int:
    """Apply one change as the original's update loop does: read, write at that version, start again on a conflict."""
    for _ in range(10_000):
        metadata = client.ledger_metadata(ledger_id)
        try:
            return client.write_ledger_metadata(change(metadata), expected_version=metadata.version)
        except errors.MetadataVersionError:
            continue
    raise AssertionError("no update got through")


def test_case_70_metadata_hammer(open_store):
    clients = [open_store() for _ in range(4)]
    writer = clients[0].create_ledger()
    threads, rounds = 8, 10

    def work(index: int) -> None:
        for round_number in range(rounds):
            name = f"{index}/{round_number}"
            update(
                clients[index % 4],
                writer.id,
                lambda metadata, name=name: metadata.replace(
                    custom_metadata={**metadata.custom_metadata, name: name.encode()}
                ),
            )

    in_threads(threads, work)
    metadata = clients[0].ledger_metadata(writer.id)
    expected = {f"{i}/{j}": f"{i}/{j}".encode() for i in range(threads) for j in range(rounds)}
    assert dict(metadata.custom_metadata) == expected
    assert metadata.version == threads * rounds


def test_case_70_metadata_hammer_by_processes(open_store, child):
    store = open_store()
    writer = store.create_ledger()
    children = [child() for _ in range(2)]
    program = f"""
def work(index):
    for number in range(10):
        while True:
            metadata = store.ledger_metadata({writer.id})
            changed = metadata.replace(custom_metadata={{**metadata.custom_metadata, f"{{index}}/{{number}}": b""}})
            try:
                store.write_ledger_metadata(changed, expected_version=metadata.version)
                break
            except bookstand.errors.MetadataVersionError:
                pass
"""
    for process in children:
        process.run("import bookstand.errors")
        process.run(program)
    for index, process in enumerate(children):
        process.send(f"work({index})")
    for process in children:
        process.receive()
    metadata = store.ledger_metadata(writer.id)
    assert set(metadata.custom_metadata) == {f"{i}/{j}" for i in range(2) for j in range(10)}
    assert metadata.version == 20


def test_case_70_versions(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    metadata = store.ledger_metadata(writer.id)
    assert metadata.version == 0
    changed = metadata.replace(custom_metadata={"z": b"\x01"})
    assert other.write_ledger_metadata(changed, expected_version=0) == 1
    for version in (0, 2, -1):
        with refused(-17):
            other.write_ledger_metadata(metadata.replace(custom_metadata={"y": b""}), expected_version=version)
    assert dict(store.ledger_metadata(writer.id).custom_metadata) == {"z": b"\x01"}
    assert store.ledger_metadata(writer.id).version == 1
    store.delete_ledger(writer.id)
    with refused(-25):
        other.write_ledger_metadata(changed, expected_version=1)


def test_case_71_the_same_close_needs_no_write(open_store):
    store, other, third = open_store(), open_store(), open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    readers = in_threads(2, lambda i: (other, third)[i].open_ledger(writer.id))
    assert [reader.last_add_confirmed for reader in readers] == [0, 0]
    version = store.ledger_metadata(writer.id).version
    writer.close()
    writer.close()
    assert other.open_ledger(writer.id).last_add_confirmed == 0
    assert store.ledger_metadata(writer.id).version == version


def test_case_72_a_conflict_is_read_again(open_store):
    store, other = open_store(), open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    update(other, writer.id, lambda metadata: metadata.replace(custom_metadata={"z": b"\x01"}))
    writer.close()
    metadata = other.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length, metadata.version) == ("CLOSED", 0, 1, 2)
    assert dict(metadata.custom_metadata) == {"z": b"\x01"}


def test_case_73_metadata_as_text(store):
    writer = store.create_ledger(password=b"secret", custom_metadata={"k": b"v"})
    metadata = store.ledger_metadata(writer.id)
    safe = metadata.to_safe_string()
    assert "secret" not in safe
    assert "c2VjcmV0" not in safe
    assert "OMITTED" in safe
    assert "state=OPEN" in safe
    whole = str(metadata)
    assert "c2VjcmV0" in whole
    assert "secret" not in whole


@pytest.mark.parametrize("metadata_format", [1, 2, 3])
def test_case_74_defaults_of_metadata(open_store, metadata_format):
    store = open_store(metadata_format=metadata_format)
    writer = store.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2)
    metadata = store.ledger_metadata(writer.id)
    assert metadata.format_version == metadata_format
    assert (metadata.state, metadata.last_entry_id, metadata.length) == ("OPEN", -1, 0)
    # Format 1 knows one quorum size.
    ack_quorum = 3 if metadata_format == 1 else 2
    assert (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size) == (3, 3, ack_quorum)
    assert dict(metadata.custom_metadata) == {}
    if metadata_format == 1:
        assert metadata.ctime == -1
        assert not metadata.has_password
    else:
        assert metadata.ctime > 0
        assert metadata.has_password
    assert len(metadata.ensembles) == 1
    assert metadata.ensemble_at(0) == metadata.ensemble_at(99) == metadata.ensembles[0][1]
    writer.append(b"abc")
    writer.close()
    reader = open_store().open_ledger(writer.id)
    assert (reader.last_add_confirmed, reader.length) == (0, 3)
    assert store.ledger_metadata(writer.id).format_version == metadata_format


def test_case_74_ensembles_by_entry(store):
    writer = store.create_ledger(ensemble=2, write_quorum=2, ack_quorum=2)
    ((_, bookies),) = store.ledger_metadata(writer.id).ensembles
    turned = tuple(reversed(bookies))
    update(store, writer.id, lambda metadata: metadata.replace(ensembles=((0, bookies), (5, turned))))
    metadata = store.ledger_metadata(writer.id)
    assert [metadata.ensemble_at(i) for i in (0, 4, 5, 99)] == [bookies, bookies, turned, turned]


def test_case_75_the_entries_read(open_store):
    store = open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    writer.append(b"b")
    entries = writer.read(0, 1)
    for index in (2, 100, -3):
        with pytest.raises(IndexError):
            entries[index]
    writer.close()
    store.close()
    assert [(entry.entry_id, entry.data) for entry in entries] == [(0, b"a"), (1, b"b")]
    assert all(type(entry.data) is bytes for entry in entries)


def test_case_76_add_quorum_timeout(open_store):
    faults = Faults()
    store, other = open_store(add_quorum_timeout=0.2, hooks=faults), open_store()
    writer = store.create_ledger()
    assert writer.append(b"a") == 0
    faults.hold("ack")
    pending = [writer.append_async(b"b"), writer.append_async(b"c")]
    assert [outcome(one) for one in pending] == [-21, -21]
    eventually(writer.is_closed, "the handle closed itself")
    assert (writer.last_add_confirmed, writer.last_add_pushed, writer.length) == (0, 0, 1)
    with refused(-11):
        writer.append(b"d")
    metadata = eventually(lambda: _closed(other, writer.id), "the ledger is closed")
    assert (metadata.last_entry_id, metadata.length) == (0, 1)
    faults.release()
    writer.close()
    reader = other.open_ledger(writer.id)
    assert (reader.last_add_confirmed, reader.length) == (0, 1)


def _closed(client, ledger_id: int):
    metadata = client.ledger_metadata(ledger_id)
    return metadata if metadata.state == "CLOSED" else None


def test_case_77_deferred_over_v2(open_store):
    store = open_store(wire="v2")
    writer = store.create_ledger(deferred_sync=True)
    with refused(-100) as caught:
        writer.append(b"a")
    assert caught.type is errors.IllegalOperationError
    eventually(writer.is_closed, "the handle closed itself")
    assert (writer.last_add_confirmed, writer.length) == (-1, 0)
    with refused(-11):
        writer.append(b"b")
    with refused(-11):
        writer.force()
    writer.close()
    metadata = store.ledger_metadata(writer.id)
    assert (metadata.state, metadata.last_entry_id, metadata.length) == ("CLOSED", -1, 0)


def test_case_77_force_over_v2(open_store):
    store = open_store(wire="v2")
    writer = store.create_ledger()
    writer.force()
    assert writer.append(b"a") == 0
    for call in (writer.force, lambda: writer.force_async().result(60)):
        with refused(-100):
            call()
    assert writer.append(b"b") == 1
    writer.close()
    metadata = store.ledger_metadata(writer.id)
    assert (metadata.last_entry_id, metadata.length) == (1, 2)


@pytest.mark.parametrize(("entries", "last_ensemble_starts"), [(10, 5), (5, 5), (6, 5), (10, 1)])
def test_case_78_a_last_ensemble_that_knows_no_lac(open_store, entries, last_ensemble_starts):
    """All entries say that nothing was confirmed; what lies before the last ensemble is confirmed all the same."""
    store, other = open_store(), open_store()
    writer = store.create_ledger(ensemble=2, write_quorum=2, ack_quorum=2)
    writer.append_many(b"%d" % i for i in range(entries))
    assert other.open_ledger(writer.id, recovery=False).last_add_confirmed in (-1, last_ensemble_starts - 1)
    ((_, bookies),) = other.ledger_metadata(writer.id).ensembles
    ensembles = ((0, bookies), (last_ensemble_starts, tuple(reversed(bookies))))
    update(other, writer.id, lambda metadata: metadata.replace(ensembles=ensembles))
    recovered = other.open_ledger(writer.id)
    assert (recovered.last_add_confirmed, recovered.length) == (entries - 1, entries)
    assert [entry.data for entry in recovered] == [b"%d" % i for i in range(entries)]
    assert other.ledger_metadata(writer.id).ensembles == ensembles


def test_case_80_a_failed_deferred_add_changes_no_ensemble(open_store):
    faults = Faults()
    store, other = open_store(hooks=faults), open_store()
    writer = store.create_ledger(ensemble=2, write_quorum=2, ack_quorum=2, deferred_sync=True)
    assert [writer.append(b"a"), writer.append(b"b")] == [0, 1]
    ensembles = other.ledger_metadata(writer.id).ensembles
    faults.hold("add")
    pending = writer.append_async(b"c")
    faults.wait_held(1)
    faults.release(errors.WriteError())
    assert outcome(pending) == -12
    eventually(writer.is_closed, "the handle closed itself")
    assert writer.last_add_confirmed == -1
    with refused(-11):
        writer.append(b"d")
    metadata = other.ledger_metadata(writer.id)
    assert metadata.ensembles == ensembles
    assert (metadata.state, metadata.last_entry_id) == ("CLOSED", -1)


def test_case_81_data_and_fence_after_an_abrupt_restart(open_store, child):
    writing, fencing = child(), child()
    writing.run("w = store.create_ledger()")
    ledger_id = writing.run("w.id")
    for i in range(20):
        assert writing.run(f"w.append(b'{i}')") == i
    assert fencing.run(f"store.open_ledger({ledger_id}).last_add_confirmed") == 19
    os.kill(fencing.pid, signal.SIGKILL)
    fencing.kill()
    assert writing.code_of("w.append(b'late')") == -101
    os.kill(writing.pid, signal.SIGKILL)
    writing.kill()
    again = open_store()
    metadata = again.ledger_metadata(ledger_id)
    assert (metadata.state, metadata.last_entry_id) == ("CLOSED", 19)
    assert [entry.data for entry in again.open_ledger(ledger_id)] == [b"%d" % i for i in range(20)]


def test_case_81_killed_in_the_middle_of_a_recovery(open_store, child):
    """Fenced or not when the power goes: no acknowledgment may be lost to the next recovery."""
    writing, fencing = child(), child()
    writing.run("w = store.create_ledger()")
    ledger_id = writing.run("w.id")
    for i in range(5):
        writing.run(f"w.append(b'{i}')")
    fencing.run("import bookstand.storage.hooks")
    fencing.run(
        "class Stop(bookstand.storage.hooks.Hooks):\n"
        "    def on_read(self, ledger_id, entry_id, stored):\n"
        "        print('\"reading\"', flush=True)\n"
        "        threading.Event().wait()\n"
    )
    fencing.run("store.close()")
    fencing.run("slow = bookstand.open(path, hooks=Stop())")
    fencing.send(f"slow.open_ledger({ledger_id})")
    assert fencing.receive_raw() == "reading"
    fencing.kill()
    code = writing.code_of("w.append(b'5')")
    assert code in (None, -101)
    writing.kill()
    recovered = open_store().open_ledger(ledger_id)
    expected = 6 if code is None else 5
    assert [entry.data for entry in recovered] == [b"%d" % i for i in range(expected)]


def test_case_82_explicit_lac_after_an_abrupt_restart(open_store, child):
    writing = child("explicit_lac_interval=0.02")
    writing.run("w = store.create_ledger()")
    ledger_id = writing.run("w.id")
    for i in range(3):
        writing.run(f"w.append(b'{i}')")
    watching = open_store()
    reader = watching.open_ledger(ledger_id, recovery=False)
    eventually(lambda: reader.read_explicit_last_confirmed() == 2, "the explicit LAC")
    watching.close()
    writing.kill()
    late = open_store().open_ledger(ledger_id, recovery=False)
    assert late.read_explicit_last_confirmed() == 2
    assert [entry.data for entry in late.read(0, 2)] == [b"0", b"1", b"2"]


@pytest.mark.damaged
@pytest.mark.parametrize("kept", [5, 20, 32, 34, 36, 37, 40])
def test_case_83_cut_in_the_body_of_an_entry(open_store, store_path, kept):
    store = open_store()
    writer = store.create_ledger()
    writer.append(b"first")
    writer.append(b"the last")
    ledger_id = writer.id
    store.close()
    change_entry(store_path, ledger_id, 1, lambda stored: stored[:kept] + bytes(len(stored) - kept))
    again = open_store()
    assert not again.verify().ok
    with refused(-10):
        again.open_ledger(ledger_id)
    reader = _open_or_none(again, ledger_id)
    if reader is not None:
        with refused(-5):
            reader.read_unconfirmed(1, 1)
        assert [entry.data for entry in reader.read_unconfirmed(0, 0)] == [b"first"]


def _open_or_none(client, ledger_id: int):
    """A reader without recovery; none where the newest entry cannot be verified, as with the original."""
    try:
        return client.open_ledger(ledger_id, recovery=False)
    except errors.ReadError:
        return None


@pytest.mark.damaged
@pytest.mark.parametrize("kept", [5, 32, 36, 40])
def test_case_83_cut_in_the_body_of_an_entry_of_a_closed_ledger(open_store, store_path, kept):
    store = open_store()
    writer = store.create_ledger()
    writer.append(b"first")
    writer.append(b"the last")
    writer.close()
    ledger_id = writer.id
    store.close()
    change_entry(store_path, ledger_id, 1, lambda stored: stored[:kept] + bytes(len(stored) - kept))
    reader = open_store().open_ledger(ledger_id)
    with refused(-5):
        reader.read(1, 1)
    with refused(-5):
        reader.read_last_entry()
    assert [entry.data for entry in reader.read(0, 0)] == [b"first"]


def test_case_84_full_and_freed_again_and_again(small_disk):
    """Nothing remembers that the disk was full: neither the store at hand nor one opened later."""
    ballast = small_disk / "ballast"
    written: dict[int, int] = {}
    for restarted in range(2):
        with bookstand.open(small_disk / "store") as store:
            ballast.write_bytes(bytes(500 << 10))
            writer = store.create_ledger()
            written[writer.id] = fill(writer)
            until_full(store.create_ledger)
            ballast.unlink()
            later = store.create_ledger()
            assert [later.append(bytes(2000)), later.append(bytes(2000))] == [0, 1]
            later.close()
            assert store.open_ledger(writer.id).last_add_confirmed >= written[writer.id] - 1
            if not restarted:
                # Room for the second round.
                store.delete_ledger(writer.id)
                del written[writer.id]
                store.compact()
    with bookstand.open(small_disk / "store", create=False) as store:
        for ledger_id, count in written.items():
            assert len(store.open_ledger(ledger_id).read(0, count - 1)) == count
        report = store.verify()
        assert report.ok, report.problems


def test_case_85_the_list_is_iterated_once_and_removes_nothing(store):
    ids = [store.create_ledger().id for _ in range(3)]
    iterator = store.list_ledgers()
    assert iter(iterator) is iterator
    assert next(iterator) == ids[0]
    assert not hasattr(iterator, "remove")
    with pytest.raises(TypeError):
        del iterator[0]
    assert list(iterator) == ids[1:]
    assert list(iterator) == []
    assert list(store.list_ledgers()) == ids


def test_case_85_ledgers_deleted_while_they_are_listed(store):
    ids = [store.create_ledger().id for _ in range(5)]
    for ledger_id in store.list_ledgers():
        store.delete_ledger(ledger_id)
    assert list(store.list_ledgers()) == []
    assert len(ids) == 5


@pytest.mark.parametrize("mode", ["ack", "add"])
def test_case_86_closing_a_client_with_adds_in_flight(open_store, mode):
    faults = Faults()
    store, other = open_store(hooks=faults), open_store()
    writer = store.create_ledger()
    assert writer.append(b"a") == 0
    faults.hold(mode)
    pending = [writer.append_async(b"b"), writer.append_async(b"c")]
    faults.wait_held(1 if mode == "add" else 2)
    store.close()
    assert [outcome(one) for one in pending] == [-19, -19]
    assert (writer.last_add_confirmed, writer.length) == (0, 1)
    with refused(-19):
        writer.append(b"d")
    with refused(-19):
        writer.close()
    faults.release()
    assert other.ledger_metadata(writer.id).state == "OPEN"
    recovered = other.open_ledger(writer.id)
    data = [entry.data for entry in recovered]
    assert data == [b"a", b"b", b"c"][: len(data)]
    assert len(data) == 3 if mode == "ack" else len(data) >= 1


def test_case_86_closing_a_client_while_threads_use_it(open_store):
    other = open_store()
    for _ in range(5):
        store = open_store()
        writer = store.create_ledger()
        acknowledged: list[int] = []
        started = threading.Event()
        ended: list[int] = []

        def write(writer=writer, acknowledged=acknowledged, started=started, ended=ended) -> None:
            while True:
                try:
                    acknowledged.append(writer.append(b"x"))
                except errors.LedgerError as error:
                    ended.append(error.code)
                    return
                started.set()

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        assert started.wait(60)
        store.close()
        thread.join(60)
        assert not thread.is_alive()
        assert ended == [-19]
        assert other.open_ledger(writer.id).last_add_confirmed >= acknowledged[-1]


def test_case_86_a_long_poll_in_flight(open_store):
    store, other = open_store(), open_store()
    writer = other.create_ledger()
    writer.append(b"a")
    reader = store.open_ledger(writer.id, recovery=False)
    answers: list[object] = []

    def wait() -> None:
        try:
            answers.append(reader.wait_entry(5, 600))
        except errors.LedgerError as error:
            answers.append(error.code)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    store.close()
    thread.join(60)
    assert not thread.is_alive()
    assert answers == [-19]
