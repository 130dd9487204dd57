"""One damaged page costs the acknowledgments of its user ledger and no others; no bit that flips invents one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.cursor.store.cursor_ledger import extensions_of
from bookstand.storage.format.position import Position
from tests.cursor.desk import FORMS, Desk
from tests.cursor.flips import flip_entry, flip_metadata, flip_node, flip_state
from tests.cursor.test_recovery import as_the_disks_tell
from tests.kit import PATIENCE

LEDGERS, PER_LEDGER, BATCH = 5, 8, 4
ENTRIES = LEDGERS * PER_LEDGER

entries = st.integers(0, ENTRIES - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ack"), st.lists(entries, min_size=1, max_size=4)),
        st.tuples(st.just("batch"), entries, st.integers(0, BATCH - 1)),
        st.tuples(st.just("mark_delete"), entries),
        st.tuples(st.just("reset"), entries),
        st.tuples(st.just("restart"), st.sampled_from(["crash", "close"])),
        st.tuples(st.just("flush")),
        st.tuples(st.just("flush")),
    ),
    min_size=3,
    max_size=25,
)

# Messages that are acknowledged: an entry is a batch of four.
Messages = frozenset[tuple[int, int]]


@contextmanager
def desk(form: str, **settings: int) -> Iterator[Desk]:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        at = Desk(Path(folder) / "store", form, per_ledger=PER_LEDGER, entries=ENTRIES, **settings)
        try:
            yield at
        finally:
            at.store.close()


def acknowledged(at: Desk) -> Messages:
    partial = at.cursor.partial_batches()
    return frozenset(
        (number, index)
        for number, position in enumerate(at.p)
        for index in range(BATCH)
        if at.cursor.is_acked(position) or (position in partial and index not in partial[position])
    )


def of_ledger(messages: Messages, ledger: int) -> Messages:
    return frozenset(one for one in messages if one[0] // PER_LEDGER == ledger)


def perform(at: Desk, step: tuple) -> None:
    cursor = at.cursor
    match step:
        case ("ack", numbers):
            at.ack(numbers)
        case ("batch", number, index):
            cursor.ack_batch(at.p[number], [index], BATCH)
        case ("mark_delete", number):
            cursor.mark_delete(max(at.p[number], cursor.mark_delete_position))
        case ("reset", number):
            cursor.reset(at.p[number])
        case ("restart", how):
            cursor.flush()
            at.restart(how)
        case ("flush",):
            cursor.flush()


def reopened(at: Desk) -> Messages:
    """What is acknowledged after a crash, the same by all who tell it."""
    at.leave("crash")
    at._open_store()
    at._open_topic()
    told = as_the_disks_tell(at)
    at.open()
    assert told == (at.acked(), at.cursor.partial_batches(), at.cursor.properties, at.cursor.backlog)
    return acknowledged(at)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    steps=steps,
    which=st.integers(0, LEDGERS),
    bit=st.integers(0, 1 << 14),
    while_open=st.booleans(),
    limit=st.sampled_from([3, 6, 50]),
)
def test_a_damaged_page_costs_its_own_ledger_alone(steps, which, bit, while_open, limit):
    with desk("pages", max_entries_per_cursor_ledger=limit, max_individual_ack_cache_bytes=1) as at:
        since_reset = [acknowledged(at)]
        for step in steps:
            perform(at, step)
            if step[0] == "reset":
                since_reset = []
            since_reset.append(acknowledged(at))
        at.cursor.flush()
        before = acknowledged(at)
        refs = [] if at.record.cursor_ledger_id < 0 else sorted(at.refs().items())
        if not refs:
            return
        user_ledger, ref = refs[which % len(refs)]
        damaged = next(number for number, one in enumerate(at.topic.ledgers) if one.ledger_id == user_ledger)
        flip_entry(at.store, at.record.cursor_ledger_id, ref.entry_id + which % ref.parts, bit)
        after = acknowledged(at) if while_open else reopened(at)
        for ledger in range(LEDGERS):
            if ledger != damaged:
                assert of_ledger(after, ledger) == of_ledger(before, ledger)
        kept = of_ledger(after, damaged)
        assert kept <= of_ledger(before, damaged)
        # An earlier state of the ledger, or none; with what the mark-delete position has passed.
        passed = frozenset(one for one in before if at.p[one[0]] <= at.cursor.mark_delete_position)
        earlier = [of_ledger(one | passed, damaged) for one in since_reset]
        assert kept in earlier or kept == of_ledger(passed, damaged)
        if not while_open:
            (report,) = at.cursor.damaged_pages
            assert report.user_ledger == user_ledger
            assert (report.acked > 0 or report.partial > 0) or kept == of_ledger(before, damaged)
        elif kept != of_ledger(before, damaged):
            assert [page.user_ledger for page in at.cursor.damaged_pages] == [user_ledger]
        # It goes on, and the next flush leaves nothing damaged behind.
        at.ack([ENTRIES - 1]).result(PATIENCE)
        at.cursor.flush()
        expected = acknowledged(at)
        assert reopened(at) == expected
        if at.cursor.damaged_pages:
            # It was in memory until now.
            assert while_open


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    steps=steps,
    form=st.sampled_from(list(FORMS)),
    kind=st.sampled_from(["entry", "entry", "entry", "metadata", "state", "record"]),
    choice=st.integers(0, 1 << 14),
    bit=st.integers(0, 1 << 14),
    limit=st.sampled_from([2, 6, 50]),
)
def test_a_bit_that_flips_invents_no_acknowledgment(steps, form, kind, choice, bit, limit):
    with desk(form, max_entries_per_cursor_ledger=limit) as at:
        for step in steps:
            perform(at, step)
        at.cursor.flush()
        before = acknowledged(at)
        info = at.record
        ledgers = [one for one in (info.cursor_ledger_id, *extensions_of(info).former) if one >= 0]
        if kind != "record" and not ledgers:
            return
        if kind == "record":
            flip_node(at.store, at.node, bit)
        else:
            ledger = ledgers[choice % len(ledgers)]
            if kind == "entry":
                flip_entry(at.store, ledger, choice % len(at.stored(ledger)), bit)
            elif kind == "metadata":
                flip_metadata(at.store, ledger, bit)
            else:
                flip_state(at.store, ledger, bit)
        after = reopened(at)
        assert after <= before
        if after != before:
            assert at.cursor.recovered_from.damage
        at.ack([ENTRIES - 1]).result(PATIENCE)
        at.cursor.put_property("a", 1)
        at.cursor.flush()
        expected = acknowledged(at)
        assert reopened(at) == expected
        assert not at.cursor.recovered_from.damage
        assert at.cursor.mark_delete_position >= Position(-1, -1)
