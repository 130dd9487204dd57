"""Several processes with one store: what one commits the others see, and what one fences the others cannot write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests import kit

Start = Callable[..., kit.Child]


def payloads(store: Any, ledger_id: int, **options: Any) -> list[bytes]:
    with store.open_ledger(ledger_id, **options) as reader:
        return [entry.data for entry in reader]


# -- fences ----------------------------------------------------------------------------------------------------------


def test_this_process_fences_a_writer_of_another(store: Any, child: Start) -> None:
    other = child()
    other.run("writer = store.create_ledger()")
    for number in range(5):
        assert other.run(f"writer.append(b'{number}')") == number
    with store.open_ledger(other.run("writer.id"), recovery=True) as reader:
        assert reader.is_closed()
        assert [entry.data for entry in reader] == [b"%d" % number for number in range(5)]
    assert other.code_of("writer.append(b'late')") == -101
    # The handle has closed itself with that.
    assert other.code_of("writer.append_many([b'late'] * 3)") == -11
    assert store.ledger_metadata(reader.id).last_entry_id == 4
    assert kit.code_of(lambda: reader.read_unconfirmed(5, 5)) == -13


def test_another_process_fences_a_writer_of_this_one(store: Any, child: Start) -> None:
    other = child()
    writer = store.create_ledger()
    for number in range(5):
        writer.append(b"%d" % number)
    assert other.run(f"store.open_ledger({writer.id}, recovery=True).last_add_confirmed") == 4
    assert kit.code_of(lambda: writer.append(b"late")) == -101
    assert kit.outcome(writer.append_async(b"later")) == -11
    assert len(payloads(store, writer.id)) == 5


@pytest.mark.parametrize("digest", ["crc32c", "hmac"])
def test_fenced_among_queued_appends(store: Any, child: Start, digest: str) -> None:
    """What was acknowledged is kept, and the acknowledged ones are a prefix."""
    other = child()
    writer = store.create_ledger(digest=digest, password=b"pw")
    writer.append(b"0")
    pendings = [writer.append_async(b"%d" % number) for number in range(1, 300)]
    other.send(f"store.open_ledger({writer.id}, recovery=True, password=b'pw').last_add_confirmed")
    pendings += [writer.append_async(b"%d" % number) for number in range(300, 600)]
    outcomes = [kit.outcome(pending) for pending in pendings]
    last = other.receive()
    acknowledged = [outcome for outcome in outcomes if outcome not in (-101, -11)]
    assert acknowledged == [("ok", number + 1) for number in range(len(acknowledged))]
    assert outcomes[: len(acknowledged)] == acknowledged
    assert len(acknowledged) <= last <= 599
    assert kit.code_of(lambda: writer.append(b"late")) in (-101, -11)
    assert payloads(store, writer.id, password=b"pw") == [b"%d" % number for number in range(last + 1)]


# -- what another process has committed ------------------------------------------------------------------------------


def test_commits_are_seen_at_once(store: Any, child: Start) -> None:
    other = child()
    other.run("theirs = store.create_ledger()")
    ours = store.create_ledger()
    their_id = other.run("theirs.id")
    other.run(f"reader = store.open_ledger({ours.id}, recovery=False)")
    reader = store.open_ledger(their_id, recovery=False)
    for number in range(50):
        assert other.run(f"theirs.append(b'{number}')") == number
        assert reader.read_unconfirmed(number, number)[0].data == b"%d" % number
        assert reader.read_last_confirmed() == number - 1
        assert ours.append(b"%d" % number) == number
        assert other.run(f"reader.read_unconfirmed({number}, {number})[0].data.decode()") == str(number)
        assert other.run("reader.read_last_confirmed()") == number - 1


def test_ledgers_and_nodes_are_seen_at_once(store: Any, child: Start) -> None:
    other = child()
    ids = []
    for number in range(10):
        ids += [store.create_ledger().id, other.run("store.create_ledger().id")]
        assert other.run("list(store.list_ledgers())") == list(store.list_ledgers()) == ids
        assert store.nodes.put("/number", b"%d" % number) == 2 * number
        assert other.run("store.nodes.get('/number')[1]") == 2 * number
        assert other.run(f"store.nodes.put('/number', b'', {2 * number})") == 2 * number + 1
        assert store.nodes.get("/number") == (b"", 2 * number + 1)
        assert kit.code_of(lambda version=2 * number: store.nodes.put("/number", b"", version)) == -17
    assert ids == sorted(set(ids))
    other.run(f"store.delete_ledger({ids[3]})")
    assert kit.code_of(lambda: store.open_ledger(ids[3])) == -25
    assert store.create_ledger().id not in ids


def test_a_close_by_another_process_is_seen(store: Any, child: Start) -> None:
    other = child()
    other.run("writer = store.create_ledger()\nwriter.append(b'a')\nwriter.append(b'b')")
    ledger_id = other.run("writer.id")
    reader = store.open_ledger(ledger_id, recovery=False)
    assert not reader.is_closed()
    other.run("writer.close()")
    assert store.is_closed(ledger_id)
    assert reader.is_closed()
    assert [entry.data for entry in reader] == [b"a", b"b"]


def test_wait_entry_sees_entries_of_another_process(store: Any, child: Start) -> None:
    other = child()
    other.run("writer = store.create_ledger()\nwriter.append(b'0')")
    reader = store.open_ledger(other.run("writer.id"), recovery=False)
    for entry_id in range(10):
        # The entry is confirmed by the one that follows it.
        other.send(f"writer.append(b'{entry_id + 1}')")
        lac, entry = reader.wait_entry(entry_id, kit.PATIENCE)
        assert entry is not None
        assert (lac, entry.entry_id, entry.data) == (entry_id, entry_id, b"%d" % entry_id)
        assert other.receive() == entry_id + 1
    assert reader.wait_entry(10, 0.05) == (9, None)
    other.send("writer.close()")
    lac, entry = reader.wait_entry(10, kit.PATIENCE)
    other.receive()
    assert entry is not None
    assert (lac, entry.data) == (10, b"10")


@pytest.mark.slow
def test_follow_sees_entries_of_another_process(store: Any, child: Start) -> None:
    other = child()
    other.run("writer = store.create_ledger()")
    reader = store.open_ledger(other.run("writer.id"), recovery=False)
    other.send("[writer.append(b'%d' % number) for number in range(300)] and writer.close()")
    assert [entry.data for entry in reader.follow(kit.PATIENCE)] == [b"%d" % number for number in range(300)]
    other.receive()


# -- an id that is used again ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("same_password", [True, False])
def test_an_id_created_again_by_another_process(store: Any, child: Start, plain: bool, same_password: bool) -> None:
    other = child()
    old = store.create_ledger(password=b"one") if plain else store.create_ledger_adv(7, password=b"one")

    def add(entry_id: int) -> Any:
        return old.append(b"old") if plain else old.write(entry_id, b"old")

    for entry_id in range(3):
        add(entry_id)
    other.run(
        f"store.delete_ledger({old.id})\n"
        f"writer = store.create_ledger_adv({old.id}, password={b'one' if same_password else b'two'!r})\n"
        "writer.write(0, b'new 0')"
    )
    assert kit.code_of(lambda: add(3)) == -101
    assert kit.code_of(lambda: add(4)) == -11
    # Whatever this says, it is about the old ledger.
    kit.code_of(old.close)
    assert not store.is_closed(old.id)
    assert other.run("writer.write(1, b'new 1')") == 1
    other.run("writer.close()")
    password = b"one" if same_password else b"two"
    assert payloads(store, old.id, password=password) == [b"new 0", b"new 1"]
    with store.open_ledger(old.id, password=password) as reader:
        assert kit.code_of(lambda: reader.read_unconfirmed(2, 2)) == -13


def test_an_id_created_again_among_queued_writes(store: Any, child: Start) -> None:
    other = child()
    old = store.create_ledger_adv(7)
    for generation in range(5):
        pendings = [old.write_async(entry_id, b"%d" % generation) for entry_id in range(100)]
        other.run(f"store.delete_ledger(7)\nwriter = store.create_ledger_adv(7)\nwriter.write(0, b'new {generation}')")
        pendings += [old.write_async(entry_id, b"%d" % generation) for entry_id in range(100, 200)]
        outcomes = [kit.outcome(pending) for pending in pendings]
        # -11 where the handle had closed itself before the write was submitted.
        assert set(outcomes[100:]) <= {-101, -11}
        assert kit.code_of(lambda old=old: old.write(200, b"late")) in (-101, -11)
        with store.open_ledger(7, recovery=False) as reader:
            assert reader.read_unconfirmed(0, 0)[0].data == b"new %d" % generation
            assert kit.code_of(lambda reader=reader: reader.read_unconfirmed(1, 1)) == -13
        store.delete_ledger(7)
        old = store.create_ledger_adv(7)
        assert other.code_of("writer.write(1, b'late')") == -101
    assert old.write(0, b"last") == 0
    old.close()
    assert payloads(store, 7) == [b"last"]


# -- what is remembered between commits ------------------------------------------------------------------------------


@pytest.mark.slow
def test_alternate_appends_and_fences(store: Any, child: Start) -> None:
    """Each process knows the state it wrote last; a fence by the other has to count all the same."""
    other = child()
    for number in range(15):
        ours = store.create_ledger()
        other.run("theirs = store.create_ledger()\ntheirs.append(b'0')")
        their_id = other.run("theirs.id")
        assert [ours.append(b"%d" % entry_id) for entry_id in range(3)] == [0, 1, 2]
        assert other.run("theirs.append(b'1')") == 1
        if number % 3 == 0:
            # A fence, and commits of the fencing process after it.
            other.run(f"store.open_ledger({ours.id}, recovery=True)\ntheirs.append(b'2')")
        elif number % 3 == 1:
            other.run(f"theirs.append(b'2')\nstore.open_ledger({ours.id}, recovery=True)")
        else:
            other.run(
                f"store.open_ledger({ours.id}, recovery=True)\nstore.delete_ledger({ours.id})\ntheirs.append(b'2')"
            )
        assert kit.code_of(lambda ours=ours: ours.append(b"late")) == -101
        with store.open_ledger(their_id, recovery=True) as reader:
            assert reader.last_add_confirmed == 2
        assert other.code_of("theirs.append(b'late')") == -101
        assert store.verify().ok


def test_alternate_appends_keep_every_count(store: Any, child: Start) -> None:
    other = child()
    ours = store.create_ledger()
    other.run("theirs = store.create_ledger()")
    for number in range(40):
        assert ours.append(b"x" * number) == number
        assert other.run(f"theirs.append(b'x' * {number})") == number
        if number % 10 == 9:
            report = other.run("store.verify().ok")
            assert report is True
            assert store.verify().entries == 2 * (number + 1)
    ours.close()
    assert other.run(f"len(list(store.open_ledger({ours.id})))") == 40


def test_a_ledger_collected_by_another_process(store: Any, child: Start) -> None:
    """Its last writer here has its state at hand, which is of nothing any more."""
    other = child()
    old = store.create_ledger()
    for _ in range(3):
        old.append(b"old")
    other.run(f"store.delete_ledger({old.id})\nstore.compact()")
    assert kit.code_of(lambda: old.append(b"late")) is not None or store.verify().ok
    assert old.id not in list(store.list_ledgers())
    new = store.create_ledger_adv(old.id)
    assert new.write(0, b"new") == 0
    assert other.run(f"[entry.data.decode() for entry in store.open_ledger({old.id})]") == ["new"]
    assert store.verify().ok
