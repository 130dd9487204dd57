"""PIP-299: what it gives as an example, and the setting."""

from __future__ import annotations

import pytest

from bookstand.cursor.config import CursorConfig
from bookstand.cursor.format import position_info
from bookstand.errors import BookstandError
from bookstand.managed_ledger.records import LedgerInfo, ManagedLedgerInfo, encode_ledger_info
from bookstand.managed_ledger.topic_name import node_of
from bookstand.proto import ml_data_formats_pb2 as formats
from bookstand.storage.format.position import Position
from tests.cursor.desk import TOPIC
from tests.kit import PATIENCE

LEDGERS = 5000


def topic_with_many_ledgers(at):
    """As they would be after years, with two entries each; made without a rollover for each."""
    at.topic.close()
    ledgers = []
    for _ in range(LEDGERS):
        writer = at.store.create_ledger()
        writer.append_many([b"a", b"b"])
        writer.close()
        ledgers.append(LedgerInfo(writer.id, 2, 2, 1))
        at.p += [Position(writer.id, 0), Position(writer.id, 1)]
    at.store.nodes.put(node_of(TOPIC), encode_ledger_info(ManagedLedgerInfo(ledgers)))
    at._open_topic()


@pytest.mark.slow
def test_two_acknowledgments_in_five_thousand_ledgers(desk, form):
    """The first entry of the first ledger, and the last of the last one: two ranges, 64 bytes in memory there."""
    at = desk(form, begin=False)
    topic_with_many_ledgers(at)
    assert len([ledger for ledger in at.topic.ledgers if ledger.entries]) == LEDGERS
    at.open()
    at.cursor.ack([at.p[0], at.p[-1]]).result(PATIENCE)
    assert at.cursor.backlog == 2 * LEDGERS - 2
    assert at.cursor.mark_delete_position == at.p[0]
    assert len(at.cursor.acked_ranges()) == 1
    assert not at.cursor.paused
    ranges = position_info.write(
        position_info.from_parts(at.start, [(*at.start, *at.p[0]), (*at.p[-2], *at.p[-1])], [], {}).state
    ).data
    stored = formats.PositionInfo.FromString(ranges).individualDeletedMessages
    assert len(stored) == 2
    assert sum(one.ByteSize() for one in stored) <= 64
    # What it takes does not follow the number of ledgers.
    assert at.cursor.stats.metadata_size < 1024
    assert sum(map(len, at.stored())) < 1024
    at.restart("crash")
    assert at.acked() == [0, 2 * LEDGERS - 1]


@pytest.mark.parametrize("limit", [1, 2, 1000, 1023])
def test_a_limit_of_less_than_a_kibibyte(limit):
    with pytest.raises(BookstandError):
        CursorConfig(max_per_cursor_metadata_size_in_bytes=limit)


@pytest.mark.parametrize("limit", ["5m", 2048.0, None, True])
def test_a_limit_that_is_no_number(limit):
    with pytest.raises(BookstandError):
        CursorConfig(max_per_cursor_metadata_size_in_bytes=limit)


def test_limits_that_are_fine():
    assert CursorConfig().max_per_cursor_metadata_size_in_bytes == 5 << 20
    for limit in (-1, 0, 1024, 1 << 40):
        assert CursorConfig(max_per_cursor_metadata_size_in_bytes=limit).max_per_cursor_metadata_size_in_bytes == limit


@pytest.mark.slow
def test_the_size_is_that_of_the_last_time_it_was_stored(desk, form):
    """It lags behind, as the proposal has it, and so does pausing."""
    at = desk(form, per_ledger=2, entries=600, max_per_cursor_metadata_size_in_bytes=1024)
    at.ack(range(1, 600, 2))
    at.cursor.flush()
    assert at.cursor.paused
    size = at.cursor.stats.metadata_size
    assert size >= 1024
    flushes = at.cursor.stats.flushes
    at.ack([0, 2])
    assert at.cursor.stats.flushes == flushes
    assert at.cursor.stats.metadata_size == size
    at.ack(range(4, 600, 2))
    at.cursor.flush()
    assert not at.cursor.paused
    assert at.cursor.stats.metadata_size < 1024


def test_without_a_limit(desk, form):
    at = desk(form, per_ledger=2, entries=600, max_per_cursor_metadata_size_in_bytes=0)
    at.ack(range(1, 600, 2)).result(PATIENCE)
    assert at.cursor.stats.metadata_size > 1024
    assert not at.cursor.paused
