"""Properties that cannot be stored are rejected by the call that sets them, and by no later flush."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bookstand.cursor.cursor import Cursor
from bookstand.cursor.errors import ReservedPropertyError
from bookstand.errors import IncorrectParameterError
from tests.cursor.desk import SUBSCRIPTION, Desk

RESERVED = ("lru-marker", "lru-entry", "#pulsar.internal.x")
BAD: tuple[tuple[Any, str], ...] = (
    *(({name: 1}, "reserved") for name in RESERVED),
    ({"a": 1 << 63}, "int64, not 9223372036854775808"),
    ({"a": -(1 << 63) - 1}, "int64"),
    ({"a": True}, "int64, not True"),
    ({"a": 1.5}, "int64, not 1.5"),
    ({"\ud800": 1}, "valid Unicode"),
    ({1: 1}, "must be a string, not 1"),
    ([("a", 1)], "must be a mapping"),
)
SETTERS: dict[str, Callable[[Desk, Any], object]] = {
    "put_property": lambda at, bad: [at.cursor.put_property(*pair) for pair in dict(bad).items()],
    "mark_delete": lambda at, bad: at.cursor.mark_delete(at.p[3], bad),
    "mark_delete_batch": lambda at, bad: at.cursor.mark_delete_batch(at.p[3], [0], 2, bad),
    "mark_delete_batch, whole entry": lambda at, bad: at.cursor.mark_delete_batch(at.p[3], [0, 1], 2, bad),
    "open": lambda at, bad: Cursor.open(at.topic, "another", at.config(), properties=bad),
}


@pytest.mark.parametrize("setter", SETTERS)
def test_a_property_that_cannot_be_stored_is_rejected_by_the_call_that_sets_it(
    desk: Callable[..., Desk], form: str, setter: str
) -> None:
    at = desk(form, entries=10)
    at.cursor.mark_delete(at.p[1], {"kept": 7})
    for bad, message in BAD:
        if setter == "put_property" and isinstance(bad, list):
            continue
        with pytest.raises(IncorrectParameterError, match=message) as rejected:
            SETTERS[setter](at, bad)
        assert isinstance(rejected.value, ReservedPropertyError) == (message == "reserved")
    assert at.cursor.mark_delete_position == at.p[1]
    assert at.cursor.properties == {"kept": 7}
    assert at.topic.cursor_names() == [SUBSCRIPTION]
    at.ack([5])
    at.restart("flush")
    assert at.cursor.properties == {"kept": 7}
    assert at.acked() == [0, 1, 5]


def test_a_cursor_property_that_cannot_be_stored_is_rejected_by_the_call_that_sets_it(
    desk: Callable[..., Desk], form: str
) -> None:
    at = desk(form, entries=3)
    bad: Any
    for bad in ({"a": 1}, {1: "a"}, {"a": "\ud800"}, {"\ud800": "a"}, {RESERVED[2]: "a"}, [1]):
        with pytest.raises(IncorrectParameterError):
            at.cursor.set_cursor_properties(bad)
        with pytest.raises(IncorrectParameterError):
            Cursor.open(at.topic, "another", at.config(), cursor_properties=bad)
    assert at.topic.cursor_names() == [SUBSCRIPTION]
    at.restart("flush")
    assert at.cursor.cursor_properties == {}


def test_reserved_properties_in_a_record_of_another_program_are_dropped(desk: Callable[..., Desk], form: str) -> None:
    at = desk(form, entries=5)
    at.cursor.close()
    properties = (("lru-marker", 1), ("mine", 3))
    at.plant(at.record._replace(cursor_ledger_id=-1, mark_delete=at.p[1], properties=properties))
    at.open()
    assert at.cursor.properties == {"mine": 3}
    at.ack([3])
    at.restart("flush")
    assert (at.cursor.properties, at.acked()) == ({"mine": 3}, [0, 1, 3])
