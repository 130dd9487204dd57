"""Reference cases 26-31 and 70-76: limits of the snapshot form, and the limit at which dispatching pauses."""

from __future__ import annotations

import pytest
from pyroaring import BitMap64

from bookstand.cursor.config import CursorConfig
from bookstand.cursor.format import position_info
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.errors import IncorrectParameterError
from bookstand.storage.format.position import Position

EVENS = range(0, 100, 2)
ODDS = range(1, 100, 2)

FROM_LEDGER = {"max_unacked_ranges_in_metadata_store": 0}
"""What a clean close leaves in the ledger."""


def left_out(ranges=0, batches=0, *, form="ranges", max_ranges=None, max_batches=None):
    """How many of so many single acknowledged entries, and batches acknowledged in part, a snapshot leaves out."""
    state = AckSnapshot(
        Position(0, -1),
        {0: BitMap64(range(1, 2 * ranges, 2))} if ranges else {},
        {Position(1, entry): 1 for entry in range(batches)},
        {},
    )
    written = position_info.write(state, "long_arrays" if form == "long arrays" else "ranges", max_ranges, max_batches)
    return written.ranges_left_out, written.batches_left_out


# -- of the snapshot form
# -------------------------------------------------------------------------------------------------


def test_case_26_too_many_ranges_for_the_metadata_store(desk, old_form):
    at = desk(old_form, entries=100, max_unacked_ranges_in_metadata_store=10)
    at.ack(EVENS)
    at.leave("close")
    at.come_back()
    assert at.cursor.recovered_from.how == "snapshot"
    assert at.record.cursor_ledger_id == at.cursor.recovered_from.ledger_id
    assert at.cursor.recovered_from.entry == len(at.stored()) - 1
    assert at.cursor.mark_delete_position == at.p[0]
    assert len(at.cursor.acked_ranges()) == 49
    assert at.read_all() == list(ODDS)


def test_case_27_few_ranges_go_into_the_metadata_store(desk, old_form):
    at = desk(old_form, entries=100)
    at.ack(EVENS)
    ledgers = set(at.store.list_ledgers())
    at.cursor.flush()
    (ledger,) = set(at.store.list_ledgers()) - ledgers
    at.cursor.close()
    info = at.record
    assert info.cursor_ledger_id == -1
    assert info.mark_delete == at.p[0]
    assert len(info.ranges) == 49
    assert ledger not in at.store.list_ledgers()
    at.topic.close()
    at.store.close()
    at.come_back()
    assert at.cursor.recovered_from.how == "record"
    assert at.read_all() == list(ODDS)


@pytest.mark.parametrize("how", ["flush", "close"])
def test_case_28_the_lowest_ranges_are_kept(desk, old_form, how):
    at = desk(old_form, entries=16, max_unacked_ranges_to_persist=5, **FROM_LEDGER)
    at.ack(range(1, 16, 2))
    assert len(at.cursor.acked_ranges()) == 8
    at.restart(how)
    assert at.acked() == [1, 3, 5, 7, 9]
    assert len(at.cursor.acked_ranges()) == 5
    assert left_out(8, form=old_form, max_ranges=5) == (3, 0)


def test_case_28_pages_leave_nothing_out(desk):
    at = desk(entries=16, max_unacked_ranges_to_persist=5)
    at.ack(range(1, 16, 2))
    at.restart("flush")
    assert at.acked() == [*range(1, 16, 2)]


@pytest.mark.parametrize("limit", [10, 5, 3])
def test_case_29_within_the_limit(desk, old_form, limit):
    at = desk(old_form, entries=16, max_unacked_ranges_to_persist=limit)
    at.ack((1, 3, 5))
    at.restart("flush")
    assert at.acked() == [1, 3, 5]
    assert left_out(3, form=old_form, max_ranges=limit) == (0, 0)


@pytest.mark.parametrize("how", ["flush", "close"])
@pytest.mark.parametrize("limit", [100, 3])
def test_case_30_the_limit_is_of_ranges(desk, form, how, limit):
    at = desk(form, per_ledger=51, entries=153, max_unacked_ranges_to_persist=limit, **FROM_LEDGER)
    acked = [number for number in range(153) if number % 51]
    at.ack(acked)
    assert len(at.cursor.acked_ranges()) == 3
    at.restart(how)
    assert at.cursor.recovered_from.how == ("marker" if form == "pages" else "snapshot")
    assert at.acked() == acked


@pytest.mark.parametrize(("partial", "kept"), [(16, 5), (5, 5)])
def test_case_31_parts_of_batches(desk, old_form, partial, kept):
    at = desk(old_form, entries=20, max_batch_deleted_index_to_persist=5)
    for number in range(partial):
        at.cursor.ack_batch(at.p[number], [0], 2)
    at.restart("flush")
    assert list(at.cursor.partial_batches()) == at.p[:kept]
    assert left_out(batches=partial, form=old_form, max_batches=5) == (0, partial - kept)


# -- pausing ---------------------------------------------------------------------------------------------------------

LIMIT = 1024
SENT = 400


class Dispatcher:
    """What a dispatcher has to do with it."""

    def __init__(self, cursor):
        self.calls = []
        self.cursor = cursor
        cursor.on_pause(lambda: self.calls.append("pause"))
        cursor.on_resume(lambda: self.calls.append("resume"))

    def dispatch(self, count=1000):
        return [] if self.cursor.paused else self.cursor.read(count)


def paused(desk, form="pages", limit=LIMIT, **settings):
    """400 messages in 200 ledgers, the odd ones acknowledged: more than the limit allows. 20 more wait."""
    at = desk(form, per_ledger=2, entries=SENT, max_per_cursor_metadata_size_in_bytes=limit, **settings)
    at.dispatcher = Dispatcher(at.cursor)
    assert len(at.dispatcher.dispatch()) == SENT
    at.ack(range(1, SENT, 2))
    at.cursor.flush()
    at.fill(20)
    return at


def test_case_70_new_messages_wait(desk, form):
    at = paused(desk, form)
    assert at.cursor.paused
    assert at.dispatcher.calls == ["pause"]
    assert at.dispatcher.dispatch() == []
    at.ack(range(0, SENT, 2))
    at.cursor.flush()
    assert not at.cursor.paused
    assert at.dispatcher.calls == ["pause", "resume"]
    assert [entry.position for entry in at.dispatcher.dispatch()] == at.p[SENT:]


@pytest.mark.slow
def test_case_70_acknowledging_goes_on_while_paused(desk, form):
    at = paused(desk, form)
    at.ack(range(0, SENT, 8))
    at.cursor.flush()
    assert at.cursor.paused
    at.restart("flush")
    assert at.acked() == sorted({*range(1, SENT, 2), *range(0, SENT, 8)})


@pytest.mark.slow
@pytest.mark.parametrize("way", ["skip", "clear", "seek", "reset"])
def test_case_71_other_ways_to_go_on(desk, form, way):
    at = paused(desk, form)
    if way == "skip":
        at.cursor.mark_delete(at.p[SENT - 1])
    elif way == "clear":
        at.cursor.clear_backlog()
    elif way == "seek":
        at.cursor.reset(at.p[SENT])
    else:
        at.cursor.reset(at.p[0])
    at.cursor.flush()
    assert not at.cursor.paused
    assert at.dispatcher.calls == ["pause", "resume"]
    expected = {"clear": 0, "reset": SENT + 20}.get(way, 20)
    assert len(at.dispatcher.dispatch()) == expected


def test_case_72_whoever_does_not_ask_is_not_paused(desk, form):
    """An exclusive consumer's dispatcher reads on."""
    at = paused(desk, form)
    assert at.cursor.paused
    assert [entry.position for entry in at.cursor.read(100)] == at.p[SENT:]


def test_case_73_another_consumer_while_paused(desk, form):
    at = paused(desk, form)
    at.restart("close")
    assert at.cursor.paused
    dispatcher = Dispatcher(at.cursor)
    assert dispatcher.dispatch() == []
    # What was delivered before, and not acknowledged, is delivered again.
    at.cursor.rewind()
    replayed = [entry.position for entry in at.cursor.read(SENT // 2)]
    assert replayed == at.p[0:SENT:2]
    at.cursor.ack(replayed)
    at.cursor.flush()
    assert not at.cursor.paused
    assert dispatcher.calls[-1] == "resume"
    assert [entry.position for entry in dispatcher.dispatch()] == at.p[SENT:]


@pytest.mark.parametrize("how", ["close", "flush"])
def test_case_74_the_limit_taken_away(desk, form, how):
    at = paused(desk, form)
    at.restart(how, max_per_cursor_metadata_size_in_bytes=0)
    assert not at.cursor.paused
    assert len(Dispatcher(at.cursor).dispatch()) == SENT // 2 + 20


@pytest.mark.slow
def test_case_75_at_the_limit(desk, form):
    at = paused(desk, form, limit=0)
    size = at.cursor.stats.metadata_size
    assert size > LIMIT
    assert not at.cursor.paused
    for limit, expected in ((size, True), (size - 1, True), (size + 1, False), (0, False), (-1, False)):
        at.restart("crash", max_per_cursor_metadata_size_in_bytes=limit)
        assert at.cursor.stats.metadata_size == size
        assert at.cursor.paused is expected, limit


@pytest.mark.slow
def test_case_75_at_the_limit_after_a_flush(desk, form):
    size = paused(desk, form, limit=0).cursor.stats.metadata_size
    seen = [paused(desk, form, limit=limit).cursor.paused for limit in (size - 1, size, size + 1)]
    assert seen == [True, True, False]


@pytest.mark.parametrize("limit", [1, 1023])
def test_case_75_too_small_a_limit(limit):
    with pytest.raises(IncorrectParameterError):
        CursorConfig(max_per_cursor_metadata_size_in_bytes=limit)


@pytest.mark.parametrize("limit", [-5, 0, 1024, 5 << 20])
def test_case_75_good_limits(limit):
    assert CursorConfig(max_per_cursor_metadata_size_in_bytes=limit).max_per_cursor_metadata_size_in_bytes == limit


def test_case_76_more_parts_of_batches_than_the_old_form_keeps(desk):
    """Pages have no such limit: there is nothing to pause for."""
    at = desk(entries=10, max_batch_deleted_index_to_persist=2)
    for number in range(3):
        at.cursor.ack_batch(at.p[number], [0], 2)
    at.cursor.flush()
    assert not at.cursor.paused
    at.restart("crash")
    assert len(at.cursor.partial_batches()) == 3


def test_case_76_in_the_old_form(desk, old_form):
    """What cannot be stored must not grow."""
    at = desk(old_form, entries=10, max_batch_deleted_index_to_persist=2)
    for number in range(3):
        at.cursor.ack_batch(at.p[number], [0], 2)
    at.cursor.flush()
    assert at.cursor.paused
    at.cursor.ack_batch(at.p[0], [1], 2)
    at.cursor.flush()
    assert not at.cursor.paused
