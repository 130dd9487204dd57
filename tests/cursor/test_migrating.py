"""Cursors from one form to the other and back, on request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.cursor.format import record
from bookstand.cursor.store.migration import PAGES, SNAPSHOT, migrate_cursor, migrate_cursors
from bookstand.errors import (
    IllegalOperationError,
    IncorrectParameterError,
    LedgerFencedError,
    NoSuchNodeError,
    StoreDamagedError,
    WriteOnReadOnlyError,
)
from bookstand.managed_ledger.records import decode_cursor_info
from bookstand.managed_ledger.topic_name import cursor_node_of
from bookstand.storage.format.position import Position
from tests.cursor.desk import SUBSCRIPTION, TOPIC, Desk
from tests.delivery.bucket_kit import MEMORY
from tests.kit import change_entry, data_file


def seen(topic: Any) -> tuple[Any, ...]:
    """All that a cursor knows."""
    with Cursor.open(topic, SUBSCRIPTION, create=False, read_only=True) as cursor:
        return (
            cursor.mark_delete_position,
            cursor.acked_ranges(),
            cursor.partial_batches(),
            cursor.properties,
            cursor.cursor_properties,
            cursor.backlog,
        )


def stored_form(store: Any) -> str:
    """By the bytes of what is stored last."""
    info = decode_cursor_info(store.nodes.get(cursor_node_of(TOPIC, SUBSCRIPTION))[0])
    if info.cursor_ledger_id < 0:
        return SNAPSHOT
    last = store.open_ledger(info.cursor_ledger_id, recovery=False)
    (entry,) = last.read_unconfirmed(last.last_add_pushed, last.last_add_pushed)
    return PAGES if record.is_ours(entry.data) else SNAPSHOT


def acknowledge(cursor: Cursor, positions: list[Position]) -> None:
    cursor.mark_delete(positions[2], {"at": 7})
    cursor.ack(positions[5:60:3])
    cursor.ack_batch(positions[61], [0, 2], 5)
    cursor.put_cursor_property("who", "audit")
    cursor.flush()


@pytest.mark.parametrize("form", ["pages", "ranges", "long arrays"])
def test_there_and_back(desk: Callable[..., Desk], form: str) -> None:
    at = desk(form, per_ledger=20, entries=80)
    acknowledge(at.cursor, at.p)
    at.cursor.close()
    before = seen(at.topic)
    for target in (SNAPSHOT, PAGES, SNAPSHOT, PAGES):
        was = stored_form(at.store)
        done = migrate_cursor(at.topic, SUBSCRIPTION, target)
        assert (done.before, done.after, done.changed) == (was, target, was != target)
        assert done.batches == 1
        assert stored_form(at.store) == target
        again = migrate_cursor(at.topic, SUBSCRIPTION, target)
        assert not again.changed
        assert seen(at.topic) == before
    at.open()


@settings(max_examples=25, deadline=None)
@given(
    acked=st.sets(st.integers(0, 59), max_size=50), mark=st.integers(-1, 59), first=st.sampled_from([PAGES, SNAPSHOT])
)
def test_any_acknowledgments_stay(acked: set[int], mark: int, first: str) -> None:
    with bookstand.temporary() as store:
        topic = store.managed_ledger(TOPIC, max_entries_per_ledger=7)
        positions = [topic.append(b"x") for _ in range(60)]
        with Cursor.open(topic, SUBSCRIPTION) as cursor:
            if mark >= 0:
                cursor.mark_delete(positions[mark])
            cursor.ack([positions[number] for number in sorted(acked)])
        known = seen(topic)
        for form in (first, PAGES, SNAPSHOT, PAGES):
            migrate_cursor(topic, SUBSCRIPTION, form)
            assert stored_form(store) == form
            with Cursor.open(topic, SUBSCRIPTION, create=False, read_only=True) as cursor:
                assert all(
                    cursor.is_acked(one) == (number <= mark or number in acked) for number, one in enumerate(positions)
                )
        assert seen(topic) == known


def written(store: Any) -> int:
    """Bytes of all entries in the cursor's ledger; none where its record has the state."""
    info = decode_cursor_info(store.nodes.get(cursor_node_of(TOPIC, SUBSCRIPTION))[0])
    if info.cursor_ledger_id < 0:
        return 0
    reader = store.open_ledger(info.cursor_ledger_id, recovery=False)
    return sum(len(entry.data) for entry in reader.read_unconfirmed(0, reader.last_add_pushed))


@settings(max_examples=40, deadline=None)
@given(
    entries=st.integers(0, 40),
    acked=st.sets(st.integers(0, 39), max_size=30),
    batches=st.dictionaries(st.integers(0, 39), st.sets(st.integers(0, 4), min_size=1, max_size=4), max_size=4),
    mark=st.integers(-1, 39),
    forms=st.sampled_from([(PAGES, SNAPSHOT), (SNAPSHOT, PAGES)]),
    initial=st.sampled_from(["earliest", "latest"]),
    crash=st.booleans(),
)
# The one entry that there is, is not known to be confirmed before the topic is recovered.
@example(entries=1, acked=set(), batches={}, mark=0, forms=(PAGES, SNAPSHOT), initial="earliest", crash=True)
def test_a_dry_run_tells_the_numbers_of_a_run(
    entries: int,
    acked: set[int],
    batches: dict[int, set[int]],
    mark: int,
    forms: tuple[str, str],
    initial: str,
    crash: bool,
) -> None:
    """Also where the topic was left open, so that it is recovered and goes on in another ledger."""
    before, after = forms
    config = CursorConfig(flush_interval=1e9, enable_lru_cache_max_unacked_ranges=before == PAGES)
    with TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder) / "store"
        store = bookstand.open(path, durability="none")
        topic = store.managed_ledger(TOPIC, max_entries_per_ledger=7)
        cursor = Cursor.open(topic, SUBSCRIPTION, config, initial=initial)
        positions = [topic.append(b"x") for _ in range(entries)]
        cursor.mark_delete(positions[mark]) if 0 <= mark < entries else None
        cursor.ack([positions[number] for number in sorted(acked) if number < entries])
        for number, indexes in batches.items():
            if number < entries:
                cursor.ack_batch(positions[number], indexes, 5)
        cursor.flush()
        store.storage.crash() if crash else store.close()
        with bookstand.open(path, read_only=True) as store:
            would = migrate_cursor(store.managed_ledger(TOPIC), SUBSCRIPTION, after, dry_run=True)
        with bookstand.open(path) as store:
            topic = store.managed_ledger(TOPIC)
            known = seen(topic)
            done = migrate_cursor(topic, SUBSCRIPTION, after)
            assert done == would
            assert seen(topic) == known
            if done.changed and done.bytes:
                assert written(store) in (done.bytes, 0)
                assert written(store) or not done.ranges + done.batches
            with Cursor.open(topic, SUBSCRIPTION, create=False, read_only=True) as cursor:
                assert cursor.cursor_metadata_size_in_bytes == done.size_after


def test_parts_of_batches_are_where_pulsar_finds_them(desk: Callable[..., Desk]) -> None:
    """It looks for none in a cursor's record."""
    at = desk("pages", entries=10)
    at.cursor.ack_batch(at.p[4], [1], 3)
    at.cursor.close()
    done = migrate_cursor(at.topic, SUBSCRIPTION, SNAPSHOT)
    assert (done.ranges, done.batches) == (0, 1)
    assert written(at.store) == done.bytes > 0
    at.open()


@pytest.mark.parametrize(
    "damage", [lambda stored: stored[:-1] + bytes((stored[-1] ^ 1,)), lambda stored: None], ids=["flipped", "lost"]
)
def test_a_damaged_state_is_left_as_it_is(desk: Callable[..., Desk], damage: Any) -> None:
    """An older one is there still, but the newest is not given up for it."""
    at = desk("pages", per_ledger=4, entries=20)
    at.cursor.ack(at.p[3]).result()
    at.cursor.ack(at.p[7]).result()
    ledger_id = decode_cursor_info(at.store.nodes.get(at.node)[0]).cursor_ledger_id
    last = at.store.storage.state(ledger_id).last_entry
    node = at.store.nodes.get(at.node)
    at.leave("close")
    whole = data_file(at.path).read_bytes()
    change_entry(at.path, ledger_id, last, damage)
    for read_only in (True, False):
        with bookstand.open(at.path, read_only=read_only) as store:
            says = f"newest state of cursor 'audit' of topic orders is damaged: entry {ledger_id}:{last}"
            with pytest.raises(StoreDamagedError, match=says):
                migrate_cursor(store.managed_ledger(TOPIC), SUBSCRIPTION, SNAPSHOT, dry_run=read_only)
            assert store.nodes.get(at.node) == node
    data_file(at.path).write_bytes(whole)
    at.come_back()
    assert at.cursor.is_acked(at.p[7])


def test_all_of_a_topic(desk: Callable[..., Desk]) -> None:
    at = desk("ranges", entries=10)
    at.cursor.ack(at.p[3:5]).result()
    at.cursor.close()
    with Cursor.open(at.topic, "other", CursorConfig()) as other:
        other.ack(at.p[1]).result()
    told: list[Any] = []
    found = migrate_cursors(at.topic, PAGES, progress=told.append)
    assert {(one.cursor, one.changed) for one in found} == {(SUBSCRIPTION, True), ("other", False)}
    assert told == found
    at.form = "pages"
    at.open()


def test_whoever_has_it_open_is_fenced(desk: Callable[..., Desk]) -> None:
    at = desk("ranges", entries=10)
    at.cursor.ack(at.p[3]).result()
    migrate_cursor(at.topic, SUBSCRIPTION)
    with pytest.raises(LedgerFencedError):
        at.cursor.ack(at.p[5]).result()
    at.form = "pages"
    at.open()


def test_a_dry_run_changes_nothing(desk: Callable[..., Desk]) -> None:
    at = desk("ranges", entries=10)
    at.cursor.ack(at.p[3]).result()
    node = at.store.nodes.get(at.node)
    assert migrate_cursor(at.topic, SUBSCRIPTION, dry_run=True).changed
    assert at.store.nodes.get(at.node) == node
    at.cursor.ack(at.p[5]).result()


def test_a_store_that_was_opened_read_only_is_looked_at(desk: Callable[..., Desk]) -> None:
    at = desk("ranges", entries=10)
    at.cursor.ack(at.p[3]).result()
    at.leave("close")
    with bookstand.open(at.path, read_only=True) as store:
        topic = store.managed_ledger(TOPIC)
        assert migrate_cursor(topic, SUBSCRIPTION, dry_run=True).changed
        with pytest.raises(WriteOnReadOnlyError):
            migrate_cursor(topic, SUBSCRIPTION)
    at.come_back()


def test_what_no_entry_holds_stays_as_it_is(desk: Callable[..., Desk]) -> None:
    at = desk("pages", per_ledger=50_000, entries=20_000, opening={"max_entry_bytes": 2_000})
    at.cursor.ack(at.p[1:18_000:2]).result()
    at.cursor.close()
    known = seen(at.topic)
    with pytest.raises(IllegalOperationError, match=r"takes \d+ bytes as a snapshot, but an entry holds at most \d+"):
        migrate_cursor(at.topic, SUBSCRIPTION, SNAPSHOT)
    assert stored_form(at.store) == PAGES
    assert seen(at.topic) == known
    at.open()


def test_wrong_arguments(desk: Callable[..., Desk]) -> None:
    at = desk("pages", entries=1)
    with pytest.raises(IncorrectParameterError, match="'words'"):
        migrate_cursor(at.topic, SUBSCRIPTION, "words")
    with pytest.raises(NoSuchNodeError):
        migrate_cursor(at.topic, "nobody")
