"""The five points of PIP-81's test plan."""

from __future__ import annotations

import pytest

from bookstand.cursor.format import record
from tests.kit import PATIENCE


@pytest.mark.parametrize("how", ["flush", "close"])
def test_1_save_and_restore(desk, how):
    at = desk(per_ledger=10, entries=60)
    at.ack(range(3))
    at.ack(range(5, 60, 4))
    at.cursor.ack_batch(at.p[30], [0, 2], 4)
    seen = at.seen()
    at.restart(how)
    assert at.cursor.recovered_from.how == "marker"
    assert at.seen() == seen
    assert at.seen()["acked"] == [at.p[number] for number in (0, 1, 2, *range(5, 60, 4))]


def test_2_the_index_follows_the_mark_delete_position(desk):
    at = desk(per_ledger=10, entries=60)
    ids = [ledger.ledger_id for ledger in at.topic.ledgers[:6]]
    at.ack(range(5, 60, 5)).result(PATIENCE)
    assert list(at.refs()) == ids
    for passed in range(1, 6):
        at.cursor.mark_delete(at.p[10 * passed - 1]).result(PATIENCE)
        assert list(at.refs()) == ids[passed:]
    at.cursor.clear_backlog().result(PATIENCE)
    assert list(at.refs()) == []
    at.restart("crash")
    assert at.cursor.backlog == 0


@pytest.mark.parametrize("how", ["flush", "close"])
def test_3_a_cache_smaller_than_a_ledger_s_acknowledgments(desk, how):
    at = desk(per_ledger=500, entries=1500, max_individual_ack_cache_bytes=64)
    acked = [*range(1, 1500, 2)]
    at.ack(acked)
    seen = at.seen()
    at.restart(how)
    assert at.seen() == seen
    assert at.acked() == acked
    # One ledger is always there, however small the cache.
    assert at.cursor.stats.cache_pages == 1


def test_4_ledgers_are_switched(desk):
    at = desk(per_ledger=500, entries=1500)
    acked = [*range(1, 1500, 2)]
    at.ack(acked).result(PATIENCE)
    one_page = at.cursor.stats.cache_bytes // 3
    at.restart("crash", max_individual_ack_cache_bytes=one_page + one_page // 2)
    assert at.cursor.stats.cache_pages == 1
    for ledger in range(3):
        assert at.cursor.lru_switch(at.p[500 * ledger].ledger_id)
        assert at.cursor.stats.cache_pages == 1
        assert [at.cursor.is_acked(at.p[number]) for number in range(500 * ledger, 500 * ledger + 500)] == [
            bool(number % 2) for number in range(500)
        ]
    assert at.cursor.backlog == 750
    assert not at.cursor.lru_switch(12345)


def test_4_acknowledgments_while_they_are_switched(desk):
    """Pages that changed are written before they leave, or do not leave."""
    at = desk(per_ledger=500, entries=1500, max_individual_ack_cache_bytes=64)
    acked = set()
    for number in range(1, 500, 2):
        for ledger in (0, 2, 1):
            at.cursor.ack(at.p[500 * ledger + number])
            acked.add(500 * ledger + number)
    assert at.acked() == sorted(acked)
    at.restart("flush")
    assert at.acked() == sorted(acked)


@pytest.mark.parametrize("dirty", [False, True])
def test_5_one_takes_the_place_of_two(desk, dirty):
    at = desk(per_ledger=2000, entries=6000)
    large, small = [*range(1, 2000, 2)], [2001, 4001]
    at.ack(large).result(PATIENCE)
    room = at.cursor.stats.cache_bytes
    at.ack(small).result(PATIENCE)
    at.restart("crash", max_individual_ack_cache_bytes=room)
    assert at.cursor.lru_switch(at.p[2001].ledger_id)
    assert at.cursor.lru_switch(at.p[4001].ledger_id)
    assert at.cursor.stats.cache_pages == 2
    if dirty:
        small += [2003, 4003]
        at.ack((2003, 4003))
    assert at.cursor.lru_switch(at.p[0].ledger_id)
    assert at.cursor.is_acked(at.p[1])
    if not dirty:
        assert at.cursor.stats.cache_pages == 1
    assert at.acked() == sorted(large + small)
    at.restart("flush")
    assert at.acked() == sorted(large + small)


def test_without_the_feature_the_old_form_is_written(desk, old_form):
    at = desk(old_form, entries=20)
    at.ack((3, 5)).result(PATIENCE)
    assert not any(record.is_ours(entry) for entry in at.stored())
