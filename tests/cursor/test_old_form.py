"""Switching pages off: the snapshot form stores a whole state or rejects the cursor; no acknowledgment is lost
silently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bookstand
from bookstand.cursor.config import CursorConfig
from bookstand.cursor.cursor import Cursor
from bookstand.delivery.topic_config import SubscriptionConfig
from bookstand.errors import IllegalOperationError
from bookstand.proto import ml_data_formats_pb2 as formats
from tests.cursor.desk import FORMS, SUBSCRIPTION, Desk
from tests.cursor.oracle import plain

HOLES = [*range(1, 20, 2)]


def with_state(desk: Callable[..., Desk], form: str = "pages") -> Desk:
    """Ten ranges in two ledgers, and three partially acknowledged batches."""
    at = desk(form, per_ledger=15, entries=40)
    at.ack(HOLES)
    for number in (22, 24, 26):
        at.cursor.ack_batch(at.p[number], [0], 3)
    at.cursor.flush()
    return at


@pytest.mark.parametrize(
    ("setting", "limit", "reason"),
    [
        ("max_unacked_ranges_to_persist", 9, "has 10 ranges of acknowledged entries"),
        ("max_batch_deleted_index_to_persist", 2, "has 3 partially acknowledged batches"),
    ],
)
@pytest.mark.parametrize("how", ["close", "crash"])
def test_switching_pages_off_is_rejected_with_the_numbers_when_the_state_does_not_fit(
    desk: Callable[..., Desk], old_form: str, how: str, setting: str, limit: int, reason: str
) -> None:
    at = with_state(desk)
    seen = at.seen()
    at.leave(how)
    with pytest.raises(IllegalOperationError, match=f"{reason}, but {setting} is {limit}; .*allow_loss=True"):
        at.come_back(old_form, **{setting: limit})
    # Nothing is lost by the attempt: neither in the form that it was stored in, nor in the old one where it fits.
    at.form = "pages"
    at.open()
    assert at.seen() == seen
    at.cursor.close()
    at.form = old_form
    at.settings[setting] = limit + 1
    at.open()
    assert at.seen() == seen
    at.restart("flush")
    assert at.seen() == seen


def test_allow_loss_opens_it_and_says_what_is_left_out(desk: Callable[..., Desk], old_form: str) -> None:
    at = with_state(desk)
    at.restart("close", old_form, max_unacked_ranges_to_persist=4, allow_loss=True)
    assert at.acked() == HOLES
    at.ack([30])
    at.cursor.flush()
    assert (at.cursor.stats.left_out_ranges, at.cursor.paused) == (7, True)
    at.restart("crash")
    assert at.acked() == HOLES[:4]


@pytest.mark.parametrize("place", ["entry", "record"])
def test_a_state_that_is_too_large_for_an_entry_goes_into_the_record_or_is_rejected(
    desk: Callable[..., Desk], place: str
) -> None:
    at = desk("pages", per_ledger=200, entries=400, opening={"max_entry_bytes": 1024})
    at.ack(range(1, 200, 2))
    at.cursor.flush()
    seen = at.seen()
    at.leave("close")
    inline = 100 if place == "record" else 99
    if place == "entry":
        with pytest.raises(
            IllegalOperationError, match=r"takes \d+ bytes as a snapshot, but an entry holds at most \d+, .*99"
        ):
            at.come_back("ranges", max_unacked_ranges_in_metadata_store=inline)
        at.form = "pages"
        at.open()
    else:
        at.come_back("ranges", max_unacked_ranges_in_metadata_store=inline)
        at.cursor.flush()
        at.restart("crash")
    assert at.seen() == seen


def test_a_cursor_is_looked_at_in_the_old_form_without_a_check(desk: Callable[..., Desk], old_form: str) -> None:
    """Read-only, nothing is written, and so nothing is lost."""
    at = with_state(desk)
    at.cursor.close()
    config = CursorConfig(**FORMS[old_form], max_unacked_ranges_to_persist=1)
    with Cursor.open(at.topic, SUBSCRIPTION, config, read_only=True) as cursor:
        assert len(cursor.acked_ranges()) == len(HOLES)


def test_topics_and_subscriptions_reject_it_in_the_same_way(tmp_path: Any) -> None:
    def config(**more: Any) -> CursorConfig:
        return CursorConfig(enable_lru_cache_max_unacked_ranges=False, max_unacked_ranges_to_persist=1, **more)

    with bookstand.open(tmp_path / "store") as store:
        topic = store.topic("orders")
        positions = [topic.publish(b"%d" % number) for number in range(6)]
        with topic.subscription("audit") as subscription:
            subscription.ack_many([positions[1], positions[3]])
        topic.cursor("audit").close()
        with pytest.raises(IllegalOperationError, match="has 2 ranges"):
            topic.cursor("audit", config())
        with pytest.raises(IllegalOperationError, match="has 2 ranges"):
            topic.subscription("audit", SubscriptionConfig(cursor=config()))
        with topic.subscription("audit", SubscriptionConfig(cursor=config(allow_loss=True))) as subscription:
            assert subscription.backlog == 4


# -- both ranges and words ---------------------------------------------------------------------------------------------

ENTRY = st.integers(-1, 60)
RANGES = st.lists(st.tuples(st.integers(0, 3), ENTRY, st.integers(0, 3), ENTRY), min_size=1, max_size=3)
WORDS = st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=2)), min_size=1)


@settings(max_examples=40, deadline=None)
@given(ranges=RANGES, words=WORDS, mark_delete=st.integers(-1, 59), words_first=st.booleans())
def test_of_an_entry_that_has_both_ranges_and_words_the_ranges_count(
    ranges: list[tuple[int, int, int, int]], words: list[tuple[int, list[int]]], mark_delete: int, words_first: bool
) -> None:
    with bookstand.temporary() as store:
        topic = store.managed_ledger("orders", max_entries_per_ledger=20)
        positions = topic.append_entries([b"."] * 60)
        first = positions[0].ledger_id
        head_position = (first, min(mark_delete, 19))
        head = formats.PositionInfo(ledgerId=first, entryId=head_position[1])
        parts = [formats.PositionInfo(), formats.PositionInfo()]
        for lower_ledger, lower, upper_ledger, upper in ranges:
            one = parts[0].individualDeletedMessages.add()
            one.lowerEndpoint.ledgerId, one.lowerEndpoint.entryId = first + lower_ledger, lower
            one.upperEndpoint.ledgerId, one.upperEndpoint.entryId = first + upper_ledger, upper
        for ledger, values in words:
            parts[1].individualDeletedMessageRanges.add(key=first + ledger, values=values)
        if words_first:
            parts.reverse()
        data = b"".join(part.SerializePartialToString() for part in [head, *parts])
        writer = store.create_ledger()
        writer.append(data)
        writer.close()
        Cursor.open(topic, SUBSCRIPTION).close()
        plant(store, writer.id)
        extent = topic.extent
        expected = plain(data, {ledger: extent.entries(ledger) or 0 for ledger in extent.ledger_ids})["acked"]
        with Cursor.open(topic, SUBSCRIPTION, create=False, read_only=True) as cursor:
            read = {position for position in positions if cursor.is_acked(position)}
        told = {(ledger, entry) for ledger, entries in expected.items() for entry in entries}
        assert read == {position for position in positions if position in told or position <= head_position}


def plant(store: Any, ledger_id: int) -> None:
    """Have the cursor's record refer to another ledger."""
    from bookstand.managed_ledger.records import decode_cursor_info, encode_cursor_info
    from bookstand.managed_ledger.topic_name import cursor_node_of

    node = cursor_node_of("orders", SUBSCRIPTION)
    info = decode_cursor_info(store.nodes.get(node)[0])
    store.nodes.put(node, encode_cursor_info(info._replace(cursor_ledger_id=ledger_id)))
