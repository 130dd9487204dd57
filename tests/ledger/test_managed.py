"""Topics: series of ledgers that are written to as one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand import errors
from bookstand.ledger.handles.writer import LedgerWriter
from bookstand.managed_ledger import records
from bookstand.managed_ledger.managed_ledger import (
    ManagedLedger,
    ManagedLedgerFencedError,
    ManagedLedgerTerminatedError,
    TopicDamagedError,
)
from bookstand.managed_ledger.message.format import Message
from bookstand.managed_ledger.topic_name import cursor_node_of, node_of, parts_of
from bookstand.storage.commit.executor import CommitExecutor
from bookstand.storage.format.position import EARLIEST, LATEST, Position
from tests import kit


class HandClock:
    def __init__(self) -> None:
        self.millis = 1_700_000_000_000

    def now(self) -> int:
        return self.millis


def counts(topic: Any) -> list[int]:
    return [ledger.entries for ledger in topic.ledgers]


def stored_record(store: Any, name: str) -> Any:
    return records.decode_ledger_info(store.nodes.get(node_of(name))[0], name)


def read_all(topic: Any) -> list[bytes]:
    return [entry.data for entry in topic.entries(EARLIEST)]


def test_a_message_comes_back(store: Any) -> None:
    topic = store.managed_ledger("orders")
    position = topic.append(b"payload", deliver_at=1_800_000_000_000, properties={"a": "b"})
    assert position == Position(topic.ledgers[0].ledger_id, 0)
    (entry,) = topic.read(position, 10)
    message = Message(entry.data)
    message.check()
    assert message.payload() == b"payload"
    assert message.metadata.deliver_at_time == 1_800_000_000_000
    assert dict(message.metadata.properties) == {"a": "b"}
    assert topic.last_confirmed == position


@pytest.mark.parametrize("how", ["one by one", "async", "many"])
def test_ledgers_follow_each_other_by_entries(store: Any, how: str) -> None:
    topic = store.managed_ledger("t", max_entries_per_ledger=3)
    data = [b"%d" % number for number in range(8)]
    if how == "one by one":
        positions = [topic.append_entry(one) for one in data]
    elif how == "async":
        positions = [pending.result() for pending in [topic.append_entry_async(one) for one in data]]
    else:
        positions = topic.append_entries(data)
    ids = [ledger.ledger_id for ledger in topic.ledgers]
    assert positions == [Position(ids[number // 3], number % 3) for number in range(8)]
    assert counts(topic) == [3, 3, 2]
    assert read_all(topic) == data
    assert [entry.position for entry in topic.entries(EARLIEST)] == positions
    assert [entry.position for entry in topic.read(positions[2], 3)] == positions[2:5]
    assert topic.read_entry(positions[4]).data == b"4"


def test_the_next_ledger_begins_as_soon_as_one_is_full(store: Any) -> None:
    topic = store.managed_ledger("t", max_entries_per_ledger=2)
    topic.append_entries([b"a", b"b"])
    assert counts(topic) == [2, 0]
    assert topic.last_confirmed == Position(topic.ledgers[0].ledger_id, 1)


def test_ledgers_follow_each_other_by_bytes(store: Any) -> None:
    topic = store.managed_ledger("t", max_bytes_per_ledger=100)
    topic.append_entries([b"x" * 40] * 7)
    assert counts(topic) == [3, 3, 1]
    topic.append_entry(b"y" * 500)
    assert counts(topic) == [3, 3, 2, 0]


def test_ledgers_follow_each_other_by_age(open_store: Callable[..., Any]) -> None:
    clock = HandClock()
    topic = open_store(clock=clock).managed_ledger("t", max_ledger_age=60)
    clock.millis += 3_600_000
    topic.append_entry(b"an empty ledger has no age")
    clock.millis += 59_000
    topic.append_entry(b"young enough")
    clock.millis += 3_600_000
    topic.append_entry(b"too old")
    # It was already too old when the first entry came, so the second began the next.
    assert sum(counts(topic)) == 3
    assert len(counts(topic)) > 1


def test_the_record_is_pulsars(open_store: Callable[..., Any]) -> None:
    clock = HandClock()
    store = open_store(clock=clock)
    name = "persistent://tenant/space/a topic"
    topic = store.managed_ledger(name, max_entries_per_ledger=2)
    topic.append_entries([b"12", b"345", b"6"])
    assert node_of(name) == "/managed-ledgers/tenant/space/persistent/a+topic"
    info = stored_record(store, name)
    first, last = info.ledgers
    assert (first.entries, first.size, first.timestamp) == (2, 5, clock.millis)
    assert (last.entries, last.size, last.timestamp) == (0, 0, 0)
    labels = store.ledger_metadata(first.ledger_id).custom_metadata
    assert labels["component"] == b"managed-ledger"
    assert labels["pulsar/managed-ledger"] == name.encode()
    assert store.is_closed(first.ledger_id)


def test_names() -> None:
    assert parts_of("persistent://t/n/a/b") == ("t", "n", "a/b")
    assert node_of("t/n/persistent/a%2Fb") == node_of("persistent://t/n/a/b")
    assert node_of("orders/eu") == "/managed-ledgers/orders%2Feu"
    assert cursor_node_of("orders", "a/b") == "/managed-ledgers/orders/a%2Fb"
    for bad in ("", None, 3, "persistent://", "persistent://a/b", "persistent://a//c"):
        with pytest.raises(errors.IncorrectParameterError):
            node_of(bad)  # type: ignore[arg-type]


def test_opened_again_it_goes_on(open_store: Callable[..., Any]) -> None:
    store = open_store()
    topic = store.managed_ledger("t")
    topic.append_entries([b"a", b"b"])
    store.close()
    store = open_store()
    topic = store.managed_ledger("t")
    assert counts(topic) == [2, 0]
    assert topic.last_confirmed.entry_id == 1
    topic.append_entry(b"c")
    assert read_all(topic) == [b"a", b"b", b"c"]


def test_an_empty_ledger_does_not_stay(open_store: Callable[..., Any]) -> None:
    for _ in range(3):
        store = open_store()
        topic = store.managed_ledger("t")
        assert counts(topic) == [0]
        assert list(store.list_ledgers()) == [topic.ledgers[0].ledger_id]
        assert topic.last_confirmed == Position(topic.ledgers[0].ledger_id, -1)
        store.close()


def test_within_a_store_it_is_opened_once(store: Any) -> None:
    topic = store.managed_ledger("t")
    assert store.managed_ledger("t", max_entries_per_ledger=1) is topic
    topic.close()
    assert store.managed_ledger("t") is not topic


def test_who_opens_it_fences_who_had_it(open_store: Callable[..., Any]) -> None:
    old = open_store().managed_ledger("t", max_entries_per_ledger=10)
    old.append_entry(b"old")
    new = open_store().managed_ledger("t")
    new.append_entry(b"new")
    with pytest.raises(errors.LedgerFencedError):
        old.append_entry(b"too late")
    with pytest.raises(ManagedLedgerFencedError, match="topic t"):
        old.append_entry(b"still too late")
    with pytest.raises(ManagedLedgerFencedError):
        old.trim(LATEST)
    assert not old.usable
    assert read_all(new) == [b"old", b"new"]


@pytest.mark.parametrize("most", [4, 100])
@pytest.mark.parametrize("how", ["many", "alone", "with others"])
def test_another_process_takes_it_over(
    store: Any, child: Callable[..., kit.Child], monkeypatch: pytest.MonkeyPatch, most: int, how: str
) -> None:
    topic = store.managed_ledger("t", max_entries_per_ledger=most)
    topic.append_entries([b"a"] * 3)
    other = child()
    other.run(f"topic = store.managed_ledger('t', max_entries_per_ledger={most})")
    other.run("topic.append_entries([b'b'] * 6)")
    if how == "with others":
        monkeypatch.setattr(LedgerWriter, "_can_commit_solo", lambda _: False)
    append = partial(topic.append_entries, [b"too", b"late"]) if how == "many" else partial(topic.append_entry, b"too")
    with pytest.raises(errors.LedgerFencedError):
        append()
    assert not topic.usable
    other.kill()
    topic = store.managed_ledger("t")
    assert read_all(topic) == [b"a"] * 3 + [b"b"] * 6


def test_a_ledger_that_somebody_recovers_is_followed_by_another(store: Any) -> None:
    """That alone takes nothing over: the record is still this writer's."""
    topic = store.managed_ledger("t")
    topic.append_entry(b"a")
    store.open_ledger(topic.ledgers[0].ledger_id).close()
    with pytest.raises(errors.LedgerFencedError):
        topic.append_entry(b"lost")
    topic.append_entry(b"b")
    assert read_all(topic) == [b"a", b"b"]
    assert counts(topic) == [1, 1]


def test_whose_empty_ledger_goes_while_it_is_taken_over_is_taken_over_all_the_same(
    open_store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = open_store().managed_ledger("t")
    exists = ManagedLedger._exists

    def meanwhile(topic: ManagedLedger, ledger_id: int) -> bool:
        monkeypatch.undo()
        there = exists(topic, ledger_id)
        with pytest.raises(errors.LedgerFencedError):
            old.append_entry(b"lost")
        old.append_entry(b"old")
        return there

    monkeypatch.setattr(ManagedLedger, "_exists", meanwhile)
    new = open_store().managed_ledger("t")
    new.append_entry(b"new")
    assert read_all(new) == [b"old", b"new"]


def test_trimming(store: Any) -> None:
    topic = store.managed_ledger("t", max_entries_per_ledger=2)
    positions = topic.append_entries([b"%d" % number for number in range(7)])
    ids = [ledger.ledger_id for ledger in topic.ledgers]
    assert topic.trim(positions[1]) == []
    assert topic.trim(positions[1].next) == ids[:1]
    assert topic.trim(positions[4]) == ids[1:2]
    assert list(store.list_ledgers()) == ids[2:]
    assert read_all(topic) == [b"4", b"5", b"6"]
    assert [one.ledger_id for one in stored_record(store, "t").ledgers] == ids[2:]
    assert topic.trim(LATEST) == ids[2:3]
    assert read_all(topic) == [b"6"]


def test_trimming_what_all_have_consumed(store: Any) -> None:
    topic = store.managed_ledger("t", max_entries_per_ledger=2)
    positions = topic.append_entries([b"."] * 7)
    ids = [ledger.ledger_id for ledger in topic.ledgers]
    assert topic.trim_consumed() == []
    topic.register_cursor("one", lambda: positions[3])
    topic.register_cursor("other", lambda: positions[1])
    store.nodes.put(cursor_node_of("t", "stored"), b"")
    assert topic.trim_consumed() == [], "nobody knows how far the stored one is"
    topic.register_cursor("stored", lambda: positions[6])
    assert topic.trim_consumed() == ids[:1]
    topic.unregister_cursor("other")
    assert topic.trim_consumed() == ids[1:2]


def test_reading_hops_over_what_is_gone(store: Any) -> None:
    topic = store.managed_ledger("t", max_entries_per_ledger=2)
    positions = topic.append_entries([b"%d" % number for number in range(6)])
    topic.trim(positions[2])
    assert [entry.data for entry in topic.read(positions[0], 2)] == [b"2", b"3"]
    assert [entry.data for entry in topic.read(Position(positions[3].ledger_id, 77), 9)] == [b"4", b"5"]
    assert topic.read(LATEST, 3) == []
    with pytest.raises(errors.NoSuchLedgerError):
        topic.read_entry(positions[0])


def test_a_lost_ledger_is_damage(open_store: Callable[..., Any]) -> None:
    store = open_store()
    topic = store.managed_ledger("t", max_entries_per_ledger=2)
    topic.append_entries([b"%d" % number for number in range(6)])
    lost = topic.ledgers[1].ledger_id
    store.delete_ledger(lost)
    with pytest.raises(
        TopicDamagedError, match=f"topic t: entries {lost}:0 to {lost}:1 cannot be read: ledger {lost} "
    ):
        list(topic.entries(EARLIEST))
    topic.close()
    topic = store.managed_ledger("t", skip_lost=True)
    assert read_all(topic) == [b"0", b"1", b"4", b"5"]


def test_a_lost_last_ledger_is_damage(open_store: Callable[..., Any]) -> None:
    store = open_store()
    topic = store.managed_ledger("t")
    topic.append_entry(b"a")
    topic.close()
    ledgers = [ledger._replace(entries=1) for ledger in topic.ledgers]
    info = records.ManagedLedgerInfo(ledgers=ledgers)
    store.nodes.put(node_of("t"), records.encode_ledger_info(info))
    store.delete_ledger(ledgers[-1].ledger_id)
    with pytest.raises(TopicDamagedError):
        store.managed_ledger("t")
    assert read_all(store.managed_ledger("t", skip_lost=True)) == []


def test_a_damaged_record_is_named(store: Any) -> None:
    store.nodes.put(node_of("t"), b"\x0a\xff\xff")
    with pytest.raises(errors.BookstandError, match="/managed-ledgers/t"):
        store.managed_ledger("t")


def test_terminated(open_store: Callable[..., Any]) -> None:
    store = open_store()
    topic = store.managed_ledger("t")
    last = topic.append_entries([b"a", b"b"])[-1]
    assert topic.terminate() == last
    assert topic.terminate() == last
    for _ in range(2):
        with pytest.raises(ManagedLedgerTerminatedError, match=str(last)):
            topic.append_entry(b"c")
        assert read_all(topic) == [b"a", b"b"]
        assert topic.last_confirmed == last
        store.close()
        store = open_store()
        topic = store.managed_ledger("t")
        assert topic.terminated == last


def test_deleted(store: Any) -> None:
    topic = store.managed_ledger("t", max_entries_per_ledger=2)
    topic.append_entries([b"."] * 5)
    store.nodes.put(cursor_node_of("t", "a cursor"), b"")
    with pytest.raises(errors.IllegalOperationError, match="cursor"):
        topic.delete()
    store.nodes.delete(cursor_node_of("t", "a cursor"))
    topic.delete()
    assert list(store.list_ledgers()) == []
    with pytest.raises(errors.NoSuchNodeError):
        store.managed_ledger("t", create=False)
    with pytest.raises(ManagedLedgerFencedError, match="deleted"):
        topic.append_entry(b"x")
    assert store.managed_ledger("t").append_entry(b"anew").entry_id == 0


def test_read_only_beside_a_writer(store: Any, store_path: Path, child: Callable[..., kit.Child]) -> None:
    topic = store.managed_ledger("t", max_entries_per_ledger=2)
    topic.append_entries([b"a", b"b", b"c"])
    reader = child("read_only=True")
    assert reader.run("[e.data.decode() for e in store.managed_ledger('t').entries((-1, -1))]")[:2] == ["a", "b"]
    assert reader.code_of("store.managed_ledger('t').append_entry(b'x')") == -104
    topic.append_entry(b"the writer was not fenced")


def test_read_only_the_open_ledger_is_told_as_far_as_it_is_confirmed(store: Any, store_path: Path) -> None:
    topic = store.managed_ledger("t", max_entries_per_ledger=3)
    for number in range(5):
        topic.append_entry(b"%d" % number)
    with bookstand.open(store_path, read_only=True) as looking:
        seen = looking.managed_ledger("t")
        # That the last one is confirmed nothing in the store says yet.
        assert [one.entries for one in seen.ledgers] == [3, 1]
        assert seen.last_confirmed == (seen.ledgers[-1].ledger_id, 0)


def test_many_threads(store: Any) -> None:
    topic = store.managed_ledger("t", max_entries_per_ledger=7)
    positions: list[list[Position]] = [[] for _ in range(4)]

    def run(number: int) -> None:
        for count in range(60):
            if count % 3:
                positions[number].append(topic.append_entry(b"%d/%d" % (number, count)))
            else:
                positions[number] += topic.append_entries([b"%d/%d" % (number, count)])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, mine in enumerate(positions):
        assert mine == sorted(mine)
        assert [topic.read_entry(one).data for one in mine] == [b"%d/%d" % (number, count) for count in range(60)]
    assert len({position for mine in positions for position in mine}) == 240
    assert topic.extent.total == 240


class SlowCommits:
    """From the first one on they wait until they may ``go_on``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.count = 0
        commit = CommitExecutor._sync

        def slow(commits: CommitExecutor, *arguments: Any) -> None:
            self.count += 1
            self.begun.set()
            assert self.go_on.wait(kit.PATIENCE)
            commit(commits, *arguments)

        monkeypatch.setattr(CommitExecutor, "_sync", slow)


def test_who_adds_while_another_commits_waits_for_no_lock_and_shares_a_commit(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = store.managed_ledger("t")
    topic.append_entry(b"first")
    commits = SlowCommits(monkeypatch)
    threads = [threading.Thread(target=topic.append_entry, args=(b"%d" % number,)) for number in range(16)]
    try:
        threads[0].start()
        assert commits.begun.wait(kit.PATIENCE)
        for thread in threads[1:]:
            thread.start()
        kit.eventually(lambda: topic._writer.last_add_pushed == 16, "all have their ids")
        pending = topic.append_entry_async(b"nobody waits for it")
        assert (topic.last_confirmed.entry_id, topic.extent.total, pending.done()) == (0, 1, False)
    finally:
        commits.go_on.set()
        for thread in threads:
            thread.join()
    pending.result()
    assert commits.count == 2
    expected = [b"first", *(b"%d" % number for number in range(16)), b"nobody waits for it"]
    assert sorted(read_all(topic)) == sorted(expected)


def test_terminating_waits_for_what_is_being_added(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = store.managed_ledger("t")
    first = topic.append_entry(b"first")
    commits = SlowCommits(monkeypatch)
    said: list[Position] = []
    adding = threading.Thread(target=lambda: said.append(topic.append_entry(b"second")))
    terminating = threading.Thread(target=lambda: said.append(topic.terminate()))
    try:
        adding.start()
        assert commits.begun.wait(kit.PATIENCE)
        terminating.start()
    finally:
        commits.go_on.set()
        adding.join()
        terminating.join()
    assert said == [first.next, first.next]
    assert topic.terminated == first.next
    assert read_all(topic) == [b"first", b"second"]


def test_the_next_ledger_cannot_be_begun(open_store: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """The entry that filled the ledger is none the worse for it, and the next one tries again."""
    store = open_store()
    topic = store.managed_ledger("t", max_entries_per_ledger=2)
    begin = topic._create_ledger

    def refuse() -> None:
        raise errors.DiskFullError("no room")

    topic.append_entry(b"a")
    topic._create_ledger = refuse
    assert topic.append_entry(b"b").entry_id == 1
    assert "no room" in caplog.text
    with pytest.raises(errors.DiskFullError):
        topic.append_entry(b"refused")
    topic._create_ledger = begin
    topic.append_entry(b"c")
    assert read_all(topic) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "options",
    [
        {"max_entries_per_ledger": 0},
        {"max_entries_per_ledger": "3"},
        {"max_bytes_per_ledger": -1},
        {"max_ledger_age": 0},
        {"max_ledger_age": "x"},
        {"info_compression": "RAR"},
    ],
)
def test_bad_options(store: Any, options: dict[str, Any]) -> None:
    with pytest.raises(errors.IncorrectParameterError):
        store.managed_ledger("t", **options)


def test_a_closed_store(open_store: Callable[..., Any]) -> None:
    store = open_store()
    topic = store.managed_ledger("t")
    store.close()
    with pytest.raises(errors.ClientClosedError):
        topic.append_entry(b"x")
    with pytest.raises(errors.ClientClosedError):
        store.managed_ledger("other")
    assert bookstand is not None
