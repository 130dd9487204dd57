"""Reference cases 41-69c: what is stored, when, and what is found again."""

from __future__ import annotations

import json

import pytest
from pyroaring import BitMap64

from bookstand.cursor.format import position_info, record
from bookstand.cursor.format.ack_page import decode_page, encode_page
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.errors import BookstandError, StoreCrashedError
from bookstand.managed_ledger.records import CursorInfo
from bookstand.storage.format.position import Position
from bookstand.testing import Faults, SimulatedCrash
from tests.cursor.desk import FORMS, NEVER, OLD_FORMS, SUBSCRIPTION, ledgers_of
from tests.kit import PATIENCE, eventually


class HandClock:
    def __init__(self):
        self.millis = 1_700_000_000_000

    def now(self):
        return self.millis


@pytest.fixture
def faults():
    with Faults(seed=1) as faults:
        yield faults


def snapshot(mark_delete, acked=(), properties=None):
    """A state in Pulsar's form, with entries of one ledger."""
    ledger = mark_delete.ledger_id
    acked = {ledger: BitMap64(acked)} if acked else {}
    return position_info.write(AckSnapshot(mark_delete, acked, {}, properties or {})).data


# -- properties ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["flush", "close"])
def test_case_41_properties_are_replaced(desk, form, how):
    at = desk(form, entries=5)
    at.cursor.mark_delete(at.p[2], {"a": 1, "b": 2, "c": 3})
    assert at.cursor.properties == {"a": 1, "b": 2, "c": 3}
    at.cursor.flush()
    at.cursor.mark_delete(at.p[2], {"a": 4, "b": 5, "c": 6})
    at.restart(how)
    assert at.cursor.properties == {"a": 4, "b": 5, "c": 6}
    assert at.cursor.mark_delete_position == at.p[2]


def test_case_41_none_are_properties_as_well(desk, form):
    at = desk(form, entries=5)
    at.cursor.mark_delete(at.p[1], {"a": 1}).result(PATIENCE)
    at.cursor.mark_delete(at.p[2]).result(PATIENCE)
    assert at.cursor.properties == {}
    at.restart("crash")
    assert at.cursor.properties == {}


@pytest.mark.parametrize("how", ["flush", "close"])
def test_case_42_an_individual_acknowledgment_keeps_them(desk, form, how):
    at = desk(form, entries=10)
    for number in range(9):
        at.cursor.mark_delete(at.p[number], {"number": number})
    at.cursor.ack(at.p[9])
    assert at.cursor.mark_delete_position == at.p[9]
    at.restart(how)
    assert at.cursor.properties == {"number": 8}
    assert at.cursor.mark_delete_position == at.p[9]


def test_case_43_properties_of_the_subscription(desk, form):
    at = desk(form, entries=5)
    at.ack((1, 3))
    at.cursor.flush()
    at.cursor.set_cursor_properties({"a": "1", "b": "2"})
    at.cursor.put_cursor_property("c", "3")
    at.cursor.put_cursor_property("#pulsar.internal.x", "kept")
    at.cursor.remove_cursor_property("a")
    at.restart("crash")
    assert at.cursor.cursor_properties == {"b": "2", "c": "3", "#pulsar.internal.x": "kept"}
    assert at.acked() == [1, 3]
    with pytest.raises(BookstandError):
        at.cursor.set_cursor_properties({"#pulsar.internal.y": "no"})
    at.cursor.set_cursor_properties({"d": "4"})
    at.restart("crash")
    assert at.cursor.cursor_properties == {"d": "4", "#pulsar.internal.x": "kept"}


# -- when ------------------------------------------------------------------------------------------------------------


def throttled(desk, form, **settings):
    """One write is made at once; those after it are not, but for the background."""
    at = desk(form, entries=3, throttle_mark_delete=1e-9, **settings)
    at.cursor.mark_delete(at.p[0])
    eventually(lambda: at.cursor.durable_mark_delete_position == at.p[0], "the first is written at once")
    at.cursor.mark_delete(at.p[1])
    at.cursor.mark_delete(at.p[2])
    assert at.cursor.backlog == 0
    return at


def test_case_44_throttled_and_lost(desk, form):
    at = throttled(desk, form)
    assert at.cursor.durable_mark_delete_position == at.p[0]
    at.restart("crash")
    assert at.cursor.backlog == 2
    assert at.cursor.mark_delete_position == at.p[0]


def test_case_45_throttled_and_written_later(desk, form):
    at = throttled(desk, form, flush_interval=0.01)
    eventually(lambda: at.cursor.durable_mark_delete_position == at.p[2], "the background writes")
    at.restart("crash", flush_interval=NEVER)
    assert at.cursor.mark_delete_position == at.p[2]


def test_case_45_individual_ones_too(desk, form):
    at = desk(form, entries=6, throttle_mark_delete=1e-9, flush_interval=0.01)
    pending = [at.cursor.ack(at.p[number]) for number in (1, 3, 5)]
    eventually(lambda: all(one.done() for one in pending), "the background writes")
    at.restart("crash", flush_interval=NEVER)
    assert at.acked() == [1, 3, 5]


def test_case_46_the_stores_fail_for_a_while(desk, form, faults):
    at = desk(form, entries=5, opening={"hooks": faults})
    at.cursor.mark_delete(at.p[0]).result(PATIENCE)
    faults.fail("append", times=1)
    rule = faults.fail("commit", times=None)
    pending = at.cursor.mark_delete(at.p[2])
    with pytest.raises(BookstandError):
        at.cursor.flush()
    assert at.cursor.mark_delete_position == at.p[2]
    assert at.cursor.durable_mark_delete_position == at.p[0]
    faults.remove(rule)
    at.cursor.flush()
    assert at.cursor.durable_mark_delete_position == at.p[2]
    assert pending.done()
    at.opening = {}
    at.restart("crash")
    assert at.cursor.mark_delete_position == at.p[2]


def test_case_46_the_background_tries_again(desk, form, faults):
    at = desk(form, entries=5, opening={"hooks": faults}, flush_interval=0.01)
    faults.fail("commit", times=4)
    at.ack((0, 1, 3))
    assert at.cursor.backlog == 2
    eventually(lambda: at.cursor.durable_mark_delete_position == at.p[1], "it is written once that works")
    at.opening = {}
    at.restart("crash", flush_interval=NEVER)
    assert at.acked() == [0, 1, 3]


# -- ledgers of the cursor -------------------------------------------------------------------------------------------


def test_case_47_one_entry_a_ledger(desk, form):
    at = desk(form, entries=8, max_entries_per_cursor_ledger=1)
    before = ledgers_of(at.store)
    seen = set()
    for number in range(5):
        at.cursor.mark_delete(at.p[number]).result(PATIENCE)
        seen.add(at.record.cursor_ledger_id)
        # The former one stays until the new one has two states, which none of these has.
        assert len(ledgers_of(at.store) - before) == min(2, number + 1)
    assert len(seen) == 5
    at.restart("crash")
    assert at.cursor.mark_delete_position == at.p[4]


def test_case_49_an_old_ledger_is_followed_by_a_new_one(desk, form):
    clock = HandClock()
    at = desk(form, entries=9, opening={"clock": clock}, max_cursor_ledger_age=5)
    at.ack((1,)).result(PATIENCE)
    first = at.record.cursor_ledger_id
    clock.millis += 4_000
    at.ack((3,)).result(PATIENCE)
    assert at.record.cursor_ledger_id == first
    clock.millis += 6_000
    at.ack((5,)).result(PATIENCE)
    assert at.record.cursor_ledger_id != first
    assert first in at.store.list_ledgers()
    at.ack((7,)).result(PATIENCE)
    assert first not in at.store.list_ledgers()
    at.restart("crash")
    assert at.acked() == [1, 3, 5, 7]


def test_case_50_somebody_else_changed_the_record(desk, form, faults):
    """One of ten switches finds another version."""
    at = desk(form, entries=20, opening={"hooks": faults}, max_entries_per_cursor_ledger=1)
    before = ledgers_of(at.store)
    failures = 0
    for number in range(10):
        if number == 2:
            faults.fail("commit", -17, nth=3)  # after the new ledger, and what is written into it
        try:
            at.cursor.mark_delete(at.p[number]).result(PATIENCE)
        except BookstandError:
            failures += 1
            at.cursor.flush()
        assert len(ledgers_of(at.store) - before) <= 2
    assert failures <= 1
    at.opening = {}
    at.restart("crash")
    assert at.cursor.mark_delete_position == at.p[9]


def test_case_50_by_another_owner(desk, form):
    """Whoever opens the cursor takes it over; the one before writes no more, and leaves nothing behind."""
    at = desk(form, entries=20, max_entries_per_cursor_ledger=1)
    at.cursor.mark_delete(at.p[2]).result(PATIENCE)
    former = at.cursor
    at.open()
    at.cursor.mark_delete(at.p[4]).result(PATIENCE)
    before = ledgers_of(at.store)
    with pytest.raises(BookstandError):
        former.mark_delete(at.p[7]).result(PATIENCE)
    assert ledgers_of(at.store) == before
    at.cursor.mark_delete(at.p[5]).result(PATIENCE)
    at.restart("crash")
    assert at.cursor.mark_delete_position == at.p[5]


def test_case_51_no_ledger_can_be_made(desk, form, faults):
    at = desk(form, entries=5, opening={"hooks": faults})
    before = ledgers_of(at.store)
    faults.fail("commit", nth=1)
    at.cursor.mark_delete(at.p[4], {"a": 1}).result(PATIENCE)
    assert at.record.cursor_ledger_id == -1
    assert at.record.mark_delete == at.p[4]
    assert ledgers_of(at.store) == before
    at.opening = {}
    at.restart("crash")
    assert at.cursor.mark_delete_position >= at.p[4]
    assert at.cursor.properties == {"a": 1}


def test_case_52_an_entry_cannot_be_written(desk, form, faults):
    at = desk(form, entries=9, opening={"hooks": faults})
    at.ack((0, 3)).result(PATIENCE)
    ledger = at.record.cursor_ledger_id
    at.cursor.ack_batch(at.p[7], [1], 4)
    faults.fail("append", -6, ledger=ledger)
    at.ack((5,)).result(PATIENCE)
    info = at.record
    assert info.cursor_ledger_id != ledger
    if info.cursor_ledger_id == -1:
        assert info.mark_delete == at.p[0]
        assert [one[3] for one in info.ranges] == [3, 5]
    at.ack((1,)).result(PATIENCE)
    assert at.record.cursor_ledger_id not in (-1, ledger)
    at.opening = {}
    at.restart("crash")
    assert at.acked() == [0, 1, 3, 5]
    assert at.cursor.partial_batches() == {at.p[7]: [0, 2, 3]}


def test_case_52_and_what_no_later_acknowledgment_touches_stays(desk, form, faults):
    at = desk(form, entries=9, per_ledger=3, opening={"hooks": faults})
    at.ack((1, 4)).result(PATIENCE)
    faults.fail("append", -6, ledger=at.record.cursor_ledger_id)
    at.ack((5,)).result(PATIENCE)
    at.ack((7,)).result(PATIENCE)
    at.ack((8,)).result(PATIENCE)
    at.opening = {}
    at.restart("crash")
    assert at.acked() == [1, 4, 5, 7, 8]


def test_case_52_and_the_process_dies(desk, form, faults):
    at = desk(form, entries=9, opening={"hooks": faults})
    at.ack((0, 3)).result(PATIENCE)
    faults.fail("append", -6, ledger=at.record.cursor_ledger_id)
    at.ack((5,)).result(PATIENCE)
    at.opening = {}
    at.restart("crash")
    assert at.acked() == [0, 3, 5]


def test_case_53_nothing_can_be_written(desk, form, faults):
    at = desk(form, entries=5, opening={"hooks": faults})
    at.cursor.mark_delete(at.p[0]).result(PATIENCE)
    faults.fail("commit", times=None)
    with pytest.raises(BookstandError):
        at.cursor.mark_delete(at.p[2]).result(PATIENCE)
    at.opening = {}
    at.restart("crash")
    assert at.cursor.mark_delete_position == at.p[0]


# -- finding it again ------------------------------------------------------------------------------------------------


def test_case_54_an_empty_ledger(desk, form):
    at = desk(form, entries=5, begin=False)
    ledger = at.plant_ledger([])
    at.plant(CursorInfo(ledger, at.p[1], properties=(("a", 1),), cursor_properties=(("b", "2"),)))
    at.open()
    for _ in range(2):
        assert at.cursor.recovered_from.how == "record"
        assert at.cursor.mark_delete_position == at.p[1]
        assert at.cursor.properties == {"a": 1}
        assert at.cursor.cursor_properties == {"b": "2"}
        at.restart("crash")
    at.ack((3,)).result(PATIENCE)
    at.restart("crash")
    assert at.acked() == [0, 1, 3]
    assert at.cursor.properties == {"a": 1}
    assert at.cursor.cursor_properties == {"b": "2"}


@pytest.mark.parametrize(
    ("operation", "code"), [("gone", None), ("open", -25), ("open", -10), ("read", -1), ("read", -13)]
)
def test_case_55_a_ledger_that_cannot_be_read(desk, form, faults, operation, code):
    at = desk(form, entries=5)
    at.cursor.mark_delete(at.p[1], {"a": 1}).result(PATIENCE)
    info = at.record._replace(mark_delete=at.p[1], properties=(("a", 1),))
    at.ack((3,)).result(PATIENCE)
    at.leave("crash")
    at.opening = {"hooks": faults}
    at._open_store()
    at._open_topic()
    at.plant(info)
    if code is None:
        at.store.delete_ledger(info.cursor_ledger_id)
    else:
        faults.fail(operation, code, ledger=info.cursor_ledger_id, times=None)
    at.open()
    assert at.cursor.recovered_from.how == "record"
    assert at.cursor.recovered_from.skipped or code == -13
    assert at.cursor.mark_delete_position == at.p[1]
    assert at.cursor.properties == {"a": 1}


@pytest.mark.parametrize("code", [-102, -9])
def test_case_55_other_reasons_are_told(desk, form, faults, code):
    """What says nothing of whether the state is lost does not lose it."""
    at = desk(form, entries=5)
    at.ack((0, 3)).result(PATIENCE)
    ledger = at.record.cursor_ledger_id
    at.leave("crash")
    at.opening = {"hooks": faults}
    at._open_store()
    at._open_topic()
    faults.fail("open", code, ledger=ledger)
    with pytest.raises(BookstandError):
        at.open()
    at.open()
    assert at.acked() == [0, 3]


@pytest.mark.parametrize(
    "garbage",
    [b"{{", b"aa", b"", b"\0", b'{"numParts":1}', b"\x08"],
    ids=["braces", "letters", "nothing", "zero", "footer", "tag"],
)
def test_case_56_garbage_at_the_end(desk, form, garbage):
    at = desk(form, per_ledger=3, entries=9)
    at.ack((0, 3, 7)).result(PATIENCE)
    at.cursor.ack_batch(at.p[5], [1], 4).result(PATIENCE)
    seen = at.seen()
    at.leave("crash")
    at._open_store()
    at._open_topic()
    at.append_to_ledger(garbage, garbage)
    at.open()
    assert at.seen() == seen
    assert at.cursor.recovered_from.how == ("marker" if form == "pages" else "snapshot")
    assert len(at.cursor.recovered_from.skipped) == 2
    at.ack((1,)).result(PATIENCE)
    at.restart("crash")
    assert at.acked() == [0, 1, 3, 7]


def test_case_57_a_position_in_a_ledger_that_is_not_there(desk, form):
    at = desk(form, ledgers_before=1, entries=11, begin=False)
    assert at.p[-1] == Position(1, 10)
    at.store.create_ledger().close()
    at.topic.close()
    at._open_topic()
    assert at.topic.ledgers[-1].ledger_id == 3
    at.plant(CursorInfo(-1, Position(2, -1)))
    at.open()
    assert at.cursor.mark_delete_position == Position(1, 10)
    assert at.cursor.read_position.ledger_id == 3
    assert at.cursor.backlog == 0
    assert at.cursor.read(10) == []
    (added,) = at.fill(1)
    assert [entry.position for entry in at.cursor.read(10)] == [added]


def chunked(data, parts):
    size = -(-len(data) // parts)
    return [data[at : at + size] for at in range(0, len(data), size)]


def footer(parts, length):
    return json.dumps({"numParts": parts, "length": length}, separators=(",", ":")).encode()


def test_case_58_chunks_without_their_end(desk, form):
    at = desk(form, entries=50, begin=False)
    prior = snapshot(at.p[0], [3, 5, 7])
    later = snapshot(at.p[1], range(3, 50, 2))
    parts = chunked(later, 3)
    whole = [*chunked(prior, 2), footer(2, len(prior))]
    for entries in ([*whole, parts[0]], [*whole, *parts], [prior, parts[0][:-1]]):
        at.plant(CursorInfo(at.plant_ledger(entries), at.start))
        at.open()
        assert at.cursor.mark_delete_position == at.p[0]
        assert at.acked() == [0, 3, 5, 7]
        assert at.cursor.recovered_from.skipped
    at.plant(CursorInfo(at.plant_ledger([*whole, *parts, footer(3, len(later))]), at.start))
    at.open()
    assert at.acked() == [0, 1, *range(3, 50, 2)]


def test_case_58_pages_without_their_marker(desk):
    at = desk(per_ledger=3, entries=9)
    at.ack((1, 4, 7)).result(PATIENCE)
    seen = at.seen()
    at.ack((2, 5)).result(PATIENCE)
    *kept, marker = at.stored()
    assert record.identify(marker).kind == record.MARKER
    at.leave("crash")
    at._open_store()
    at._open_topic()
    at.plant(at.record._replace(cursor_ledger_id=at.plant_ledger(kept)))
    at.open()
    assert at.seen() == seen
    assert len(at.cursor.recovered_from.skipped) == 2


@pytest.mark.parametrize("parts", [5, 1, 0, -1])
def test_case_59_parts_that_are_not_there(desk, form, parts):
    at = desk(form, entries=50, begin=False)
    prior = snapshot(at.p[0], [3, 5, 7])
    later = snapshot(at.p[1], range(3, 50, 2))
    entries = [prior, *chunked(later, 3), footer(parts, len(later))]
    at.plant(CursorInfo(at.plant_ledger(entries), at.start))
    at.open()
    assert at.acked() == [0, 3, 5, 7]


def test_case_59_parts_of_pages_that_are_not_those(desk):
    """One part of a page is another one's: the marker before is taken."""
    at = desk(entries=1, opening={"max_entry_bytes": 1024}, begin=False)
    at.p += at.topic.append_entries([b""] * 40_000)
    at.open()
    at.ack(range(1, 40_001, 2)).result(PATIENCE)
    first = at.acked()
    at.ack(range(6, 40_000, 6)).result(PATIENCE)
    entries = at.stored()
    (ref,) = at.refs().values()
    assert ref.parts > 5
    at.leave("crash")
    at._open_store()
    at._open_topic()
    entries[ref.entry_id + 5] = entries[ref.entry_id + 2]
    at.plant(at.record._replace(cursor_ledger_id=at.plant_ledger(entries)))
    at.open()
    assert at.acked() == first


def test_case_60_an_entry_as_large_as_it_may_be(desk):
    acked, partial = BitMap64(range(0, 3000, 2)), {3001: 0b1011, 3005: 1 << 200}
    mark_delete = Position(7, -1)

    def encoded(limit):
        return encode_page("c", 7, acked, partial, generation=3, mark_delete=mark_delete, limit=limit)

    (whole,) = encoded(1 << 20).entries
    assert len(encoded(len(whole)).entries) == 1
    parts = encoded(len(whole) - 1)
    assert len(parts.entries) == 2
    assert max(map(len, parts.entries)) <= len(whole) - 1
    page = decode_page("c", 7, parts.ref(0), parts.entries)
    assert (page.acked, page.partial) == (acked, partial)


@pytest.mark.parametrize("short", [0, 1])
def test_case_60_the_same_state(desk, short):
    at = desk(entries=3000)
    acked = list(range(1, 3000, 2))
    at.ack(acked).result(PATIENCE)
    size = len(at.stored()[0])
    other = desk(entries=3000, opening={"max_entry_bytes": size + 36 - short})
    other.ack(acked).result(PATIENCE)
    assert other.kinds() == ["P"] * (1 + short) + ["M"]
    other.restart("crash")
    assert other.acked() == acked


@pytest.mark.parametrize("how", ["flush", "close"])
def test_case_60_a_snapshot_that_is_too_large(desk, old_form, how):
    at = desk(old_form, per_ledger=20, entries=2000, opening={"max_entry_bytes": 1024})
    acked = list(range(1, 2000, 2))
    at.ack(acked).result(PATIENCE)
    at.restart(how)
    assert at.acked() == acked


# -- pages and markers -----------------------------------------------------------------------------------------------


def three_ledgers(desk, **settings):
    """Three ledgers of ten entries with some of each acknowledged, and all of that stored; and their ids."""
    at = desk(per_ledger=10, entries=30, **settings)
    at.ack((1, 3, 11, 13, 21, 23)).result(PATIENCE)
    return at, [ledger.ledger_id for ledger in at.topic.ledgers[:3]]


def test_case_61_one_dirty_ledger(desk):
    at, (first, second, third) = three_ledgers(desk)
    assert at.kinds() == ["P", "P", "P", "M"]
    before = at.refs()
    at.ack((15,)).result(PATIENCE)
    assert at.kinds() == ["P", "P", "P", "M", "P", "M"]
    after = at.refs()
    assert after[first] == before[first]
    assert after[third] == before[third]
    assert after[second].entry_id == 4
    assert list(after) == [first, second, third]


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("point", ["commit.before_write", "commit.before_sync", "commit.after_sync"])
def test_case_62_a_crash_at_each_write(desk, form, point):
    """The whole state of before, or the whole one of after."""
    for nth in range(1, 30):
        faults = Faults()
        at = desk(
            form,
            per_ledger=5,
            entries=30,
            opening={"hooks": faults},
            flush_commit_bytes=1,
            max_entries_per_cursor_ledger=7,
        )
        at.ack((0, 1, 3, 8, 13)).result(PATIENCE)
        before = at.seen()
        at.ack((2, 6, 9, 12, 18, 22))
        at.cursor.mark_delete(at.p[5], {"a": 1})
        at.cursor.ack_batch(at.p[20], [0], 3)
        after = at.seen()
        rule = faults.crash(point, nth)
        finished = False
        try:
            at.cursor.flush()
            finished = True
        except (SimulatedCrash, StoreCrashedError):
            pass
        if finished and not rule.fired:
            assert nth > 1
            faults.remove(rule)
            return
        at.opening = {}
        at.store.storage.crash()
        at.come_back()
        assert at.seen() in (before, after), nth
        if finished:
            assert at.seen() == after
        at.ack((7,)).result(PATIENCE)
        at.restart("crash")
        assert at.cursor.is_acked(at.p[7])
    pytest.fail("there is no end of writes")


def test_case_63_the_mark_delete_position_alone(desk):
    at, _ = three_ledgers(desk)
    before = at.refs()
    written = at.cursor.stats.pages_written
    at.cursor.mark_delete(at.p[0], {"a": 1}).result(PATIENCE)
    assert at.cursor.mark_delete_position == at.p[1]
    assert at.marker().mark_delete == at.p[1]
    assert at.marker().properties == {"a": 1}
    assert {ledger: ref.entry_id for ledger, ref in at.refs().items() if ledger in before} != {}
    at.cursor.mark_delete(at.p[1], {"a": 2}).result(PATIENCE)
    assert at.kinds()[-2:] == ["M", "M"]
    assert at.cursor.stats.pages_written <= written + 1
    at.restart("crash")
    assert at.cursor.mark_delete_position == at.p[1]
    assert at.cursor.properties == {"a": 2}
    assert at.acked() == [0, 1, 3, 11, 13, 21, 23]


def test_case_63_no_page_at_all(desk):
    at = desk(entries=10)
    at.cursor.mark_delete(at.p[4]).result(PATIENCE)
    assert at.kinds() == ["M"]
    at.restart("crash")
    assert at.cursor.mark_delete_position == at.p[4]


def test_case_64_the_index_forgets_ledgers_that_are_passed(desk):
    at, (_, second, third) = three_ledgers(desk)
    at.cursor.mark_delete(at.p[9]).result(PATIENCE)
    assert list(at.refs()) == [second, third]
    at.cursor.mark_delete(at.p[23]).result(PATIENCE)
    assert list(at.refs()) == []
    assert at.cursor.history()[0].ledgers == 0
    at.restart("crash")
    assert at.acked() == [*range(24)]


@pytest.mark.parametrize("how", ["flush", "close"])
def test_case_65_a_cache_smaller_than_a_page(desk, how):
    at = desk(per_ledger=200, entries=1000, max_individual_ack_cache_bytes=1)
    acked = [*range(1, 1000, 2)]
    for number in acked:
        at.cursor.ack(at.p[number])
    assert at.acked() == acked
    at.cursor.flush()
    assert at.cursor.stats.cache_pages <= 1
    assert at.acked() == acked
    assert at.cursor.backlog == 500
    at.restart(how)
    assert at.cursor.stats.cache_pages <= 1
    assert at.acked() == acked
    assert at.read_all() == [*range(0, 1000, 2)]


@pytest.mark.parametrize("how", ["flush", "close"])
def test_case_66_a_page_that_takes_the_place_of_two(desk, how):
    at = desk(per_ledger=4000, entries=16_000)
    large = [*range(1, 4000, 2)]
    at.ack(large).result(PATIENCE)
    size_of_large = at.cursor.stats.cache_bytes
    at.restart("flush", max_individual_ack_cache_bytes=size_of_large)
    small = [4001, 8001, 12_001]
    at.ack(small).result(PATIENCE)
    assert at.cursor.stats.cache_pages >= 2
    # The small ones are dirty when the large one has to come back.
    dirty = [4003, 8003, 12_003]
    at.ack(dirty)
    at.cursor.ack_batch(at.p[8007], [0], 2)
    assert at.cursor.lru_switch(at.p[0].ledger_id)
    assert at.acked() == sorted(large + small + dirty)
    assert at.cursor.partial_batches() == {at.p[8007]: [1]}
    at.restart(how)
    assert at.acked() == sorted(large + small + dirty)
    assert at.cursor.partial_batches() == {at.p[8007]: [1]}
    assert at.cursor.stats.cache_bytes <= size_of_large


@pytest.mark.parametrize("how", ["flush", "close"])
@pytest.mark.parametrize("old", OLD_FORMS)
def test_case_67_the_old_form_and_back(desk, old, how):
    at = desk(old, per_ledger=5, entries=20)
    at.cursor.mark_delete(at.p[1], {"a": 1})
    at.ack((4, 7, 8, 13))
    at.cursor.ack_batch(at.p[16], [2], 4)
    seen = at.seen()
    at.restart(how, form="pages")
    assert at.cursor.recovered_from.how == ("record" if how == "close" else "snapshot")
    assert at.seen() == seen
    at.restart("crash")
    assert at.seen() == seen
    at.ack((14,)).result(PATIENCE)
    seen = at.seen()
    assert record.identify(at.stored()[-1]).kind == record.MARKER
    at.restart(how)
    assert at.cursor.recovered_from.how == "marker"
    assert at.seen() == seen
    at.restart(how, form=old)
    assert at.cursor.recovered_from.how == "marker"
    assert at.seen() == seen
    at.ack((18,)).result(PATIENCE)
    state = position_info.read(at.stored()[-1]).state
    assert state.mark_delete == at.p[1]
    assert sum(map(len, state.acked.values())) == 6
    seen = at.seen()
    at.restart(how)
    assert at.cursor.recovered_from.how == ("record" if how == "close" else "snapshot")
    assert at.seen() == seen


def test_case_67_an_old_reader_delivers_again(desk):
    """Who does not know markers finds the mark-delete position in them, and nothing acknowledged beyond."""
    at, _ = three_ledgers(desk)
    at.cursor.mark_delete(at.p[1], {"a": 1}).result(PATIENCE)
    state = position_info.read(at.stored()[-1]).state
    assert state.mark_delete == at.p[1]
    assert not any(state.acked.values())
    assert state.properties["a"] == 1


def test_case_68_a_new_ledger_has_what_the_index_refers_to(desk):
    at, (first, second, third) = three_ledgers(desk, max_entries_per_cursor_ledger=10)
    while len(at.stored()) < 10:
        before = at.record.cursor_ledger_id
        at.ack((len(at.stored()) % 10 + 10,)).result(PATIENCE)
    at.ack((27,)).result(PATIENCE)
    assert at.record.cursor_ledger_id != before
    assert before in at.store.list_ledgers()
    assert at.kinds() == ["P", "P", "P", "M"]
    assert list(at.refs()) == [first, second, third]
    at.ack((28,)).result(PATIENCE)
    assert before not in at.store.list_ledgers()
    seen = at.seen()
    at.restart("crash")
    assert at.seen() == seen


def test_case_68_an_entry_that_cannot_be_copied(desk, faults):
    at, _ = three_ledgers(
        desk, opening={"hooks": faults}, max_entries_per_cursor_ledger=4, max_individual_ack_cache_bytes=1
    )
    old = at.record.cursor_ledger_id
    ledgers = ledgers_of(at.store)
    rule = faults.fail("read", -1, ledger=old, entry=1, times=None)
    pending = at.ack((29,))
    with pytest.raises(BookstandError):
        pending.result(PATIENCE)
    assert rule.fired
    assert at.record.cursor_ledger_id == old
    assert ledgers_of(at.store) == ledgers
    assert at.cursor.is_acked(at.p[29])
    at.opening = {}
    at.restart("crash")
    assert at.acked() == [1, 3, 11, 13, 21, 23]


def test_case_68_and_once_it_can(desk, faults):
    at, _ = three_ledgers(
        desk, opening={"hooks": faults}, max_entries_per_cursor_ledger=4, max_individual_ack_cache_bytes=1
    )
    rule = faults.fail("read", -1, ledger=at.record.cursor_ledger_id, entry=1, times=None)
    at.ack((29,))
    with pytest.raises(BookstandError):
        at.cursor.flush()
    faults.remove(rule)
    at.cursor.flush()
    at.opening = {}
    at.restart("crash")
    assert at.acked() == [1, 3, 11, 13, 21, 23, 29]


def test_case_69_each_page_is_of_one_ledger(desk):
    at = desk(per_ledger=10, entries=20)
    at.ack((1, 3, 4, 15)).result(PATIENCE)
    entries = at.stored()
    pages = {
        ledger: decode_page(SUBSCRIPTION, ledger, ref, entries[ref.entry_id : ref.entry_id + ref.parts])
        for ledger, ref in at.refs().items()
    }
    first, second = at.p[0].ledger_id, at.p[10].ledger_id
    assert {ledger: list(page.acked) for ledger, page in pages.items()} == {first: [1, 3, 4], second: [5]}


@pytest.mark.parametrize("cache", [1, 3 << 20])
def test_case_69a_what_is_not_touched_survives_two_crashes(desk, form, cache):
    at = desk(form, per_ledger=10, entries=30, max_individual_ack_cache_bytes=cache)
    at.ack((1, 3, 11, 13, 21, 23)).result(PATIENCE)
    at.restart("crash")
    at.ack((15,)).result(PATIENCE)
    at.restart("crash")
    assert at.acked() == [1, 3, 11, 13, 15, 21, 23]
    at.ack((16,)).result(PATIENCE)
    at.restart("crash")
    assert at.acked() == [1, 3, 11, 13, 15, 16, 21, 23]


@pytest.mark.parametrize("how", ["crash", "close"])
@pytest.mark.parametrize("to", [0, 4, 12])
def test_case_69b_seeking_back_forgets(desk, form, how, to):
    at = desk(form, per_ledger=10, entries=30)
    at.cursor.mark_delete(at.p[12])
    at.ack((15, 17, 21, 23))
    at.cursor.ack_batch(at.p[25], [0], 2)
    at.cursor.flush()
    at.cursor.reset(at.p[to]).result(PATIENCE)
    assert at.acked() == [*range(to)]
    at.restart(how)
    assert at.acked() == [*range(to)]
    assert at.cursor.partial_batches() == {}
    assert at.read_all() == [*range(to, 30)]
    at.ack((29,)).result(PATIENCE)
    at.restart(how)
    assert at.acked() == [*range(to), 29]


@pytest.mark.parametrize("how", ["flush", "close"])
def test_case_69c_holes_behind_the_mark_delete_position(desk, form, how):
    at = desk(form, per_ledger=10, entries=20)
    at.ack((1, 5, 7)).result(PATIENCE)
    at.ack((0, 9))
    assert at.cursor.mark_delete_position == at.p[1]
    at.restart(how)
    assert at.cursor.mark_delete_position == at.p[1]
    assert at.acked() == [0, 1, 5, 7, 9]
    at.ack((2, 3, 4)).result(PATIENCE)
    assert at.cursor.mark_delete_position == at.p[5]
    at.restart(how)
    assert at.acked() == [*range(6), 7, 9]


def test_acknowledgments_beyond_the_end_of_a_ledger_are_dropped(desk):
    """Pulsar accepts them; of the last ledger they would acknowledge messages that are still to be added."""
    at = desk("ranges", entries=5, per_ledger=3)
    first, last = at.p[0].ledger_id, at.p[-1].ledger_id
    at.leave("close")
    at._open_store()
    at._open_topic()
    acked = {first: BitMap64([1, 7]), last: BitMap64([0, 2, 3])}
    state = position_info.write(AckSnapshot(Position(first, -1), acked, {Position(last, 4): 1}, {})).data
    at.plant(at.record._replace(cursor_ledger_id=at.plant_ledger([state])))
    at.open()
    assert at.acked() == [1, 3]
    assert at.cursor.backlog == 3
    at.fill(3)
    assert at.cursor.backlog == 6
    assert at.read_all() == [0, 2, 4, 5, 6, 7]
