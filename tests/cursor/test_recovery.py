"""The cost of a damaged entry of a cursor's ledger: of a page its own user ledger, of a marker what was newer than the
one before."""

from __future__ import annotations

import random

import pytest

from bookstand.cursor.cursor import Cursor
from bookstand.cursor.format import record
from bookstand.disk.store_source import StoreSource
from bookstand.disk.topics.cursors import cursor as cursor_of
from bookstand.disk.topics.topics import topic as topic_of
from bookstand.errors import BookstandError
from bookstand.storage.format.position import Position
from tests.cursor.desk import OLD_FORMS, SUBSCRIPTION, TOPIC, Desk, ledgers_of
from tests.cursor.flips import flip_entry, flip_metadata, flip_node, flip_state
from tests.kit import PATIENCE


@pytest.fixture
def a_desk(memory):
    desks = []

    def make(form="pages", **options):
        desks.append(Desk(memory / str(len(desks)), form, **{"per_ledger": 10, "entries": 40, **options}))
        return desks[-1]

    yield make
    for at in desks:
        at.store.close()


def restart(at, how="crash", **settings):
    """With the same answer from the disks' readers as from the cursor that is opened."""
    at.leave(how)
    at.settings.update(settings)
    at._open_store()
    at._open_topic()
    told = as_the_disks_tell(at)
    read_only = Cursor.open(at.topic, SUBSCRIPTION, at.config(), read_only=True)
    at.cursor = read_only
    seen = at.seen()
    read_only.close()
    at.open()
    assert at.seen() == seen
    assert told == (at.acked(), at.cursor.partial_batches(), at.cursor.properties, at.cursor.backlog)


def as_the_disks_tell(at):
    found = cursor_of(topic_of(StoreSource(at.store.storage, ()), TOPIC), SUBSCRIPTION)
    acked = [number for number, position in enumerate(at.p) if found.is_acked(position)]
    batches = {
        position: [bit for bit in range(bits.bit_length()) if bits >> bit & 1]
        for position, bits in found.state.batches.items()
    }
    return acked, batches, found.state.properties, found.backlog


def newest(at, kind, user_ledger=0):
    """The entry of the newest record of that kind."""
    found = [
        entry
        for entry, stored in enumerate(at.stored())
        if (identity := record.identify(stored)).kind == kind and identity.user_ledger == user_ledger
    ]
    return found[-1]


def page_of(at, number):
    return at.refs()[at.p[number].ledger_id]


def damage_page(at, *numbers, part=0):
    refs = at.refs()
    for number in numbers:
        ref = refs.get(at.p[number].ledger_id)
        if ref is not None:
            flip_entry(at.store, at.record.cursor_ledger_id, ref.entry_id + part, 777)


# -- points of the ledger --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["crash", "close"])
def test_a_damaged_page_is_replaced_by_the_newest_older_one_that_is_intact(a_desk, how):
    at = a_desk()
    at.ack((1, 11, 21)).result(PATIENCE)
    at.ack((3,)).result(PATIENCE)
    at.ack((5, 13)).result(PATIENCE)
    at.cursor.mark_delete(at.p[0], {"a": 1}).result(PATIENCE)
    at.ack((7, 23)).result(PATIENCE)
    place = page_of(at, 0).entry_id
    damage_page(at, 0)
    ledger = at.record.cursor_ledger_id
    restart(at, how)
    # The page of the flush of 5 has no 7; nothing else is missing.
    assert at.acked() == [0, 1, 3, 5, 11, 13, 21, 23]
    assert at.cursor.properties == {"a": 1}
    (page,) = at.cursor.recovered_from.pages
    assert page.place == Position(ledger, place)
    assert page.user_ledger == at.p[0].ledger_id
    assert page.acked == 1
    assert page.replacement is not None
    assert "digest" in page.reason
    assert str(page.place) in str(page)
    assert at.cursor.damaged_pages == (page,)
    assert at.cursor.stats.damaged_pages == 1
    assert "1 damaged pages replaced" in str(at.cursor.recovered_from)
    assert at.cursor.recovered_from.damage == (str(page),)
    # The next flush stores a good one.
    at.cursor.flush()
    restart(at)
    assert at.cursor.recovered_from.reports == ()
    assert at.acked() == [0, 1, 3, 5, 11, 13, 21, 23]


def test_a_damaged_page_without_an_older_one_is_dropped_alone(a_desk):
    at = a_desk()
    at.ack((1, 11, 21)).result(PATIENCE)
    at.cursor.ack_batch(at.p[12], [1], 4)
    at.cursor.mark_delete(at.p[0], {"a": 1}).result(PATIENCE)
    damage_page(at, 11, 21)
    restart(at)
    assert at.acked() == [0, 1, 11]
    assert at.cursor.partial_batches() == {}
    assert [page.replacement is None for page in at.cursor.recovered_from.pages] == [False, True]
    assert at.read_all() == [*range(2, 11), *range(12, 40)]
    at.ack((22,)).result(PATIENCE)
    restart(at)
    assert at.acked() == [0, 1, 11, 22]


@pytest.mark.parametrize("how", ["crash", "close"])
def test_a_damaged_marker_makes_the_one_before_it_count(a_desk, how):
    at = a_desk()
    at.ack((1, 11)).result(PATIENCE)
    at.ack((13,)).result(PATIENCE)
    at.ack((15,)).result(PATIENCE)
    flip_entry(at.store, at.record.cursor_ledger_id, newest(at, record.MARKER), 555)
    restart(at, how)
    assert at.acked() == [1, 11, 13]
    assert at.cursor.recovered_from.skipped
    assert at.cursor.recovered_from.pages == ()


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, -1])
def test_nodes_of_the_index_in_entries_of_their_own(a_desk, which):
    # So many ledgers are acknowledged in one flush.
    at = a_desk(per_ledger=2, entries=500, opening={"max_entry_bytes": 1200})
    at.ack(range(1, 500, 2)).result(PATIENCE)
    before = at.acked()
    at.ack(range(202, 500, 40)).result(PATIENCE)
    after = at.acked()
    nodes = [n for n, stored in enumerate(at.stored()) if record.identify(stored).kind == record.NODES]
    flip_entry(at.store, at.record.cursor_ledger_id, nodes[which], 333)
    restart(at)
    # All markers refer to nodes of the first flush.
    assert at.acked() == (after if which == 0 else before)
    assert at.cursor.recovered_from.damage
    at.cursor.flush()
    restart(at)
    assert at.acked() == (after if which == 0 else before)
    assert at.cursor.recovered_from.reports == ()


@pytest.mark.slow
def test_one_bad_part_of_a_page(a_desk):
    at = a_desk(entries=1, per_ledger=50_000, opening={"max_entry_bytes": 1024})
    at.p += at.topic.append_entries([b""] * 20_000)
    at.roll()
    at.p += at.topic.append_entries([b""] * 4)
    at.ack(range(1, 20_000, 2)).result(PATIENCE)
    first = at.acked()
    at.ack((*range(6, 20_000, 6), 20_002)).result(PATIENCE)
    damage_page(at, 0, part=3)
    restart(at)
    assert at.acked() == [*first, 20_002]


def test_the_mark_delete_position_is_behind_the_damaged_ledger(a_desk):
    at = a_desk()
    at.ack((1, 3, 11)).result(PATIENCE)
    place = page_of(at, 1).entry_id
    at.cursor.mark_delete(at.p[9]).result(PATIENCE)
    flip_entry(at.store, at.record.cursor_ledger_id, place)
    restart(at)
    assert at.acked() == [*range(10), 11]
    assert at.cursor.recovered_from.reports == ()


def test_what_the_mark_delete_position_has_passed_is_not_counted_again(a_desk):
    """An older page has entries of before."""
    at = a_desk()
    at.ack((1, 2, 3, 7)).result(PATIENCE)
    at.ack((8,)).result(PATIENCE)
    at.cursor.mark_delete(at.p[4]).result(PATIENCE)
    damage_page(at, 7)
    restart(at)
    assert at.acked() == [*range(5), 7, 8]
    assert at.cursor.backlog == 33


# -- resets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", [0, 4, 12])
@pytest.mark.parametrize("what", ["page", "marker", "both"])
@pytest.mark.parametrize("retained", [0, 2])
def test_what_a_reset_revoked_does_not_come_back(a_desk, to, what, retained):
    at = a_desk(retained_cursor_ledgers=retained)
    at.cursor.mark_delete(at.p[2])
    at.ack((5, 7, 15, 17)).result(PATIENCE)
    at.ack((6, 16)).result(PATIENCE)
    at.cursor.reset(at.p[to]).result(PATIENCE)
    at.ack((8, 18)).result(PATIENCE)
    marker = newest(at, record.MARKER)
    if what != "marker":
        damage_page(at, 8, 18)
    if what != "page":
        flip_entry(at.store, at.record.cursor_ledger_id, marker)
    restart(at)
    assert set(at.acked()) == set(range(to))
    assert at.cursor.recovered_from.damage


def test_a_reset_of_which_the_only_marker_is_damaged(a_desk):
    at = a_desk()
    at.cursor.mark_delete(at.p[20])
    at.ack((25,)).result(PATIENCE)
    at.ack((27,)).result(PATIENCE)
    at.cursor.reset(at.p[10]).result(PATIENCE)
    flip_entry(at.store, at.record.cursor_ledger_id, 0)
    restart(at)
    assert at.acked() == [*range(10)]


@pytest.mark.parametrize("form", OLD_FORMS)
def test_a_reset_in_the_old_form(a_desk, form):
    at = a_desk(form)
    at.ack((15, 17)).result(PATIENCE)
    at.ack((19,)).result(PATIENCE)
    at.cursor.reset(at.p[0]).result(PATIENCE)
    flip_entry(at.store, at.record.cursor_ledger_id, len(at.stored()) - 1)
    restart(at)
    assert at.acked() == []


# -- former ledgers --------------------------------------------------------------------------------------------------


def rolled(a_desk, form="pages", **options):
    """A cursor whose newest ledger has one state."""
    at = a_desk(form, **options)
    at.ack((1, 11)).result(PATIENCE)
    at.ack((3,)).result(PATIENCE)
    restart(at)
    former = at.record.cursor_ledger_id
    at.ack((13,)).result(PATIENCE)
    assert {former, at.record.cursor_ledger_id} < ledgers_of(at.store)
    return at, former


@pytest.mark.parametrize("form", ["pages", *OLD_FORMS])
@pytest.mark.parametrize("damage", ["state", "ledger", "gone"])
def test_the_former_ledger_counts_where_the_new_one_has_one_damaged_state(a_desk, form, damage):
    at, former = rolled(a_desk, form)
    ledger = at.record.cursor_ledger_id
    if damage == "state":
        flip_entry(at.store, ledger, len(at.stored()) - 1)
    elif damage == "gone":
        at.store.delete_ledger(ledger)
    else:
        for entry in range(len(at.stored())):
            flip_entry(at.store, ledger, entry, 99)
    restart(at)
    assert at.acked() == [1, 3, 11]
    assert at.cursor.recovered_from.ledger_id == former
    assert at.cursor.recovered_from.damage
    at.ack((15,)).result(PATIENCE)
    restart(at)
    assert at.acked() == [1, 3, 11, 15]
    at.ack((17,)).result(PATIENCE)
    at.ack((18,)).result(PATIENCE)
    known = {one.ledger_id for one in at.topic.ledgers} | {at.record.cursor_ledger_id}
    assert ledgers_of(at.store) == known
    Cursor.discard(at.topic, SUBSCRIPTION)


def test_pages_of_the_former_ledger_replace_damaged_ones(a_desk):
    at, _ = rolled(a_desk)
    damage_page(at, 1)
    restart(at)
    assert at.acked() == [1, 3, 11, 13]
    assert at.cursor.recovered_from.pages[0].acked == 0


def test_the_position_in_the_record_is_behind_former_ledgers(a_desk):
    at, _ = rolled(a_desk)
    restart(at)
    at.cursor.mark_delete(at.p[11], {"b": 2}).result(PATIENCE)
    flip_entry(at.store, at.record.cursor_ledger_id, len(at.stored()) - 1)
    restart(at)
    assert at.acked() == [*range(12), 13]
    assert at.cursor.properties == {"b": 2}


@pytest.mark.parametrize("end", ["delete", "discard"])
def test_no_ledger_is_left_behind(a_desk, end):
    at, _ = rolled(a_desk, retained_cursor_ledgers=1)
    for number in range(20, 25):
        restart(at)
        at.ack((number,)).result(PATIENCE)
    if end == "delete":
        at.cursor.delete()
    else:
        Cursor.discard(at.topic, SUBSCRIPTION)
    assert ledgers_of(at.store) == {one.ledger_id for one in at.topic.ledgers}


def test_a_page_that_a_reset_in_a_former_ledger_revoked(a_desk):
    at = a_desk(retained_cursor_ledgers=5)
    at.ack((5, 15)).result(PATIENCE)
    at.cursor.reset(at.p[0]).result(PATIENCE)
    restart(at)
    at.ack((7,)).result(PATIENCE)
    damage_page(at, 7)
    restart(at)
    assert at.acked() == []


def test_markers_in_former_ledgers_can_be_opened(a_desk):
    at, former = rolled(a_desk, max_individual_ack_cache_bytes=1)
    assert [one.marker.ledger_id for one in at.cursor.history()] == [at.record.cursor_ledger_id, former, former]
    for one in at.cursor.history():
        with Cursor.open(at.topic, SUBSCRIPTION, at.config(), at_marker=one.marker) as earlier:
            assert earlier.is_acked(at.p[1])
            assert earlier.is_acked(at.p[13]) == (one.marker.ledger_id != former)


def test_at_a_marker_with_a_damaged_page(a_desk):
    at = a_desk()
    at.ack((1, 11)).result(PATIENCE)
    at.ack((3, 13)).result(PATIENCE)
    marker = at.cursor.history()[0].marker
    damage_page(at, 1)
    at.ack((5,)).result(PATIENCE)
    with Cursor.open(at.topic, SUBSCRIPTION, at_marker=marker) as earlier:
        at.cursor, current = earlier, at.cursor
        assert at.acked() == [1, 11, 13]
        assert earlier.recovered_from.pages
        at.cursor = current


# -- while the cursor is open ----------------------------------------------------------------------------------------


def test_a_page_that_turns_bad_while_the_cursor_is_open(a_desk):
    at = a_desk(max_individual_ack_cache_bytes=1)
    at.ack((1, 11, 21)).result(PATIENCE)
    at.ack((3, 13)).result(PATIENCE)
    at.ack((23,)).result(PATIENCE)
    damage_page(at, 1)
    at.cursor.lru_switch(at.p[21].ledger_id)
    assert at.acked() == [1, 11, 13, 21, 23]
    assert at.cursor.stats.damaged_pages == 1
    at.ack((5,)).result(PATIENCE)
    restart(at)
    assert at.acked() == [1, 5, 11, 13, 21, 23]
    assert at.cursor.recovered_from.reports == ()


def test_a_page_that_turns_bad_and_has_no_older_one(a_desk):
    at = a_desk(max_individual_ack_cache_bytes=1)
    at.ack((1, 11, 21)).result(PATIENCE)
    damage_page(at, 1)
    at.cursor.lru_switch(at.p[21].ledger_id)
    assert at.cursor.backlog == 37
    assert at.read_all() == [*range(11), *range(12, 21), *range(22, 40)]
    assert at.cursor.backlog == 38
    at.cursor.flush()
    restart(at)
    assert at.acked() == [11, 21]
    assert at.cursor.recovered_from.reports == ()


def test_a_page_that_is_bad_when_the_next_ledger_begins(a_desk):
    at = a_desk(max_individual_ack_cache_bytes=1, max_entries_per_cursor_ledger=8)
    at.ack((1, 11, 21)).result(PATIENCE)
    at.ack((3, 13)).result(PATIENCE)
    damage_page(at, 1)
    at.cursor.lru_switch(at.p[21].ledger_id)
    ledger = at.record.cursor_ledger_id
    while at.record.cursor_ledger_id == ledger:
        at.ack((31,)).result(PATIENCE)
        at.cursor.mark_delete(at.cursor.mark_delete_position, {"n": random.randrange(1 << 40)}).result(PATIENCE)
    assert at.cursor.stats.damaged_pages == 1
    assert at.acked() == [1, 11, 13, 21, 31]
    restart(at)
    assert at.acked() == [1, 11, 13, 21, 31]
    assert at.cursor.recovered_from.reports == ()


@pytest.mark.parametrize("form", ["pages", *OLD_FORMS])
@pytest.mark.parametrize("collected", [False, True])
def test_a_ledger_that_disappears_is_replaced_with_the_next_flush(a_desk, form, collected):
    at = a_desk(form)
    at.ack((1, 11, 21)).result(PATIENCE)
    at.cursor.ack_batch(at.p[25], [0], 3)
    at.cursor.flush()
    ledger = at.record.cursor_ledger_id
    at.store.delete_ledger(ledger)
    if collected:
        at.store.storage.collect_deleted(1 << 62)
    pending = at.ack((3,))
    pending.result(PATIENCE)
    assert at.record.cursor_ledger_id != ledger
    at.ack((5,)).result(PATIENCE)
    restart(at)
    assert at.acked() == [1, 3, 5, 11, 21]
    assert at.cursor.partial_batches() == {at.p[25]: [1, 2]}
    assert at.cursor.recovered_from.reports == ()


@pytest.mark.parametrize("form", ["pages", *OLD_FORMS])
def test_a_ledger_that_disappears_while_nothing_is_acknowledged(a_desk, form):
    at = a_desk(form)
    at.ack((1, 11, 21)).result(PATIENCE)
    at.store.delete_ledger(at.record.cursor_ledger_id)
    at.cursor.flush()
    restart(at)
    assert at.acked() == [1, 11, 21]


@pytest.mark.parametrize("former", [False, True])
def test_pages_that_go_with_their_ledger(a_desk, former):
    at = a_desk(max_individual_ack_cache_bytes=1)
    at.ack((1, 11, 21)).result(PATIENCE)
    if former:
        restart(at)
        at.cursor.mark_delete(at.p[0]).result(PATIENCE)
    at.store.delete_ledger(at.record.cursor_ledger_id)
    at.store.storage.collect_deleted(1 << 62)
    at.ack((31,)).result(PATIENCE)
    kept = at.acked()
    assert 31 in kept
    assert set(kept) <= {0, 1, 11, 21, 31}
    if former:
        assert kept == [0, 1, 11, 21, 31]
    assert bool(at.cursor.damaged_pages)
    restart(at)
    assert at.acked() == kept


# -- the record, the metadata, the state ----------------------------------------------------------------------------


@pytest.mark.parametrize("flip", [flip_metadata, flip_state])
@pytest.mark.parametrize("how", ["crash", "close"])
def test_a_ledger_of_which_metadata_or_state_is_damaged_is_read_all_the_same(a_desk, flip, how):
    at = a_desk()
    at.ack((1, 11)).result(PATIENCE)
    at.ack((3,)).result(PATIENCE)
    ledger = at.record.cursor_ledger_id
    if how == "close":
        at.cursor.close()
    flip(at.store, ledger, 99)
    restart(at)
    assert at.acked() == [1, 3, 11]
    at.ack((5,)).result(PATIENCE)
    at.ack((7,)).result(PATIENCE)
    restart(at)
    assert at.acked() == [1, 3, 5, 7, 11]
    assert ledger not in ledgers_of(at.store)


@pytest.mark.parametrize("bit", [5, 40, 111])
def test_a_cursor_is_opened_without_its_record(a_desk, bit):
    at, _ = rolled(a_desk)
    other = Cursor.open(at.topic, "other")
    other.ack(at.p[39]).result(PATIENCE)
    flip_node(at.store, at.node, bit)
    restart(at)
    assert at.acked() == [1, 3, 11, 13]
    assert at.cursor.recovered_from.damage
    at.ack((15,)).result(PATIENCE)
    at.ack((16,)).result(PATIENCE)
    restart(at)
    assert at.acked() == [1, 3, 11, 13, 15, 16]
    assert at.cursor.recovered_from.reports == ()


@pytest.mark.parametrize("form", OLD_FORMS)
def test_a_cursor_whose_whole_state_was_in_its_record(a_desk, form):
    at = a_desk(form)
    at.ack((1, 11))
    at.cursor.close()
    flip_node(at.store, at.node, 111)
    restart(at)
    assert at.acked() == []
    assert at.cursor.recovered_from.damage
    at.ack((5,)).result(PATIENCE)
    restart(at)
    assert at.acked() == [5]


def test_a_record_that_is_damaged_while_the_cursor_is_open(a_desk):
    at, _ = rolled(a_desk)
    flip_node(at.store, at.node, 111)
    at.ack((15,)).result(PATIENCE)
    at.ack((16,)).result(PATIENCE)
    at.cursor.put_cursor_property("a", "1")
    restart(at)
    assert at.acked() == [1, 3, 11, 13, 15, 16]
    assert at.cursor.cursor_properties == {"a": "1"}


# -- in time ---------------------------------------------------------------------------------------------------------


def test_a_crash_during_the_flush_behind_damage(a_desk):
    from bookstand.testing import Faults, SimulatedCrash

    for nth in range(1, 8):
        at = a_desk()
        at.ack((1, 11)).result(PATIENCE)
        at.ack((3, 13)).result(PATIENCE)
        damage_page(at, 1)
        faults = Faults()
        at.opening = {"hooks": faults}
        at.leave("crash")
        at._open_store()
        at._open_topic()
        at.open()
        assert at.acked() == [1, 11, 13]
        faults.crash("commit.before_write", nth)
        try:
            at.ack((5,)).result(PATIENCE)
            at.ack((6,)).result(PATIENCE)
        except (SimulatedCrash, BookstandError):
            pass
        at.opening = {}
        at.store.storage.crash()
        at._open_store()
        at._open_topic()
        at.open()
        assert at.acked() in ([1, 11, 13], [1, 5, 11, 13], [1, 5, 6, 11, 13])


def test_whoever_takes_over_finds_the_same(a_desk):
    at = a_desk()
    at.ack((1, 11)).result(PATIENCE)
    at.ack((3, 13)).result(PATIENCE)
    damage_page(at, 1)
    former = at.cursor
    at.open()
    assert at.acked() == [1, 11, 13]
    at.ack((5,)).result(PATIENCE)
    with pytest.raises(BookstandError):
        former.ack(at.p[8]).result(PATIENCE)
    restart(at)
    assert at.acked() == [1, 5, 11, 13]


def test_a_damaged_record_and_a_newest_ledger_without_labels_bring_nothing_back_that_a_reset_revoked(a_desk):
    """The readable labels are those of a ledger that is retained from before the reset."""
    at = a_desk(retained_cursor_ledgers=1)
    at.ack((1, 5, 11)).result(PATIENCE)
    at.cursor.reset(at.p[1]).result(PATIENCE)
    at.ack((7,)).result(PATIENCE)
    flip_metadata(at.store, at.record.cursor_ledger_id)
    flip_node(at.store, at.node)
    restart(at)
    assert at.acked() == []
    at.ack((2,)).result(PATIENCE)
    restart(at)
    assert at.acked() == [2]
