"""The names of what was changed last: how many are kept, who leaves them, and what a damaged one is taken for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookstand import errors
from bookstand.storage.commit import change_feed
from bookstand.storage.commit.node_operations import DeleteNode, PutNode
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format import schema, sealed_record


class Begin:
    """What a server does to a store that it is the first to serve."""

    def apply(self, staging: Any) -> None:
        staging.put(schema.META, schema.META_CHANGE_FEED, change_feed.pack_total(0))


class Restore:
    """A record of ``meta``, as it is said to be."""

    def __init__(self, key: bytes, value: bytes | None) -> None:
        self._record = key, value

    def apply(self, staging: Any) -> None:
        staging.put(schema.META, *self._record)


@pytest.fixture
def storage(store: Any) -> Any:
    store.storage.apply(WriteBatch(Begin()))
    return store.storage


@pytest.mark.slow
@given(commits=st.lists(st.integers(1, 2_500), max_size=6))
def test_the_last_are_kept_by_their_numbers(commits: list[int]) -> None:
    kept: dict[bytes, bytes] = {}
    total = 0
    for count in commits:
        changed = [(schema.NODES, b"/%d" % (total + number)) for number in range(count)]
        for key, value in change_feed.append_changes(total, changed):
            if value is None:
                del kept[key]
            else:
                kept[key] = value
        total += count
        assert change_feed.decode_count(kept[schema.META_CHANGE_FEED]) == total
        numbers = range(max(0, total - schema.CHANGE_FEED_LENGTH) + 1, total + 1)
        assert sorted(kept.keys() - {schema.META_CHANGE_FEED}) == [change_feed.key_of(number) for number in numbers]
        for number in (numbers[0], numbers[-1]):
            assert change_feed.unpack(number, kept[change_feed.key_of(number)]) == (schema.NODES, b"/%d" % (number - 1))


def test_every_change_is_named_once_a_commit(storage: Any, store: Any) -> None:
    store.nodes.put("/a", b"1")
    ledger_id = store.create_ledger().id
    storage.apply(WriteBatch(PutNode("/a", b"2", None), PutNode("/b", b"", None), PutNode("/a", b"3", None)))
    storage.apply(WriteBatch(DeleteNode("/b", None)))
    assert storage.change_count() == 5
    ledger = schema.LEDGERS, schema.LEDGER_KEY.pack(ledger_id)
    names = [(schema.NODES, b"/a"), ledger, (schema.NODES, b"/a"), (schema.NODES, b"/b"), (schema.NODES, b"/b")]
    assert storage.changes_since(0, 5) == names
    assert storage.changes_since(4, 5) == names[4:]
    assert storage.changes_since(5, 5) == []
    # It was heard of more than there was: the file is an older one.
    assert storage.changes_since(-1, 5) is None
    assert not store.verify().problems


def test_what_is_refused_is_no_news(storage: Any, store: Any) -> None:
    store.nodes.put("/a", b"1")
    with pytest.raises(errors.MetadataVersionError):
        store.nodes.put("/a", b"2", expected_version=7)
    assert storage.change_count() == 1


@pytest.mark.damaged
@pytest.mark.parametrize("body", [b"", b"\x02/a", b"\xff"])
def test_a_damaged_name_is_none(storage: Any, store: Any, body: bytes) -> None:
    """Who looks for news has to look at everything then."""
    store.nodes.put("/a", b"1")
    key = change_feed.key_of(1)
    for value in (sealed_record.seal(key, body), b"\0" * 4 + body):
        storage.apply(WriteBatch(Restore(key, value)))
        assert storage.changes_since(0, 1) is None
        with pytest.raises(errors.StoreDamagedError, match="record of change 1 is damaged"):
            change_feed.unpack(1, value)
    assert store.verify().problems
