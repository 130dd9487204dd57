"""Deleting a cursor of which nothing needs to be readable."""

from __future__ import annotations

import pytest

import bookstand
from bookstand.cursor.cursor import Cursor
from bookstand.errors import BookstandError, NoSuchNodeError
from tests.cursor.desk import SUBSCRIPTION, Desk, ledgers_of
from tests.cursor.flips import flip_entry, flip_metadata, flip_node, flip_state
from tests.kit import PATIENCE


def a_cursor(memory, form="pages", **settings):
    at = Desk(memory / "store", form, entries=20, per_ledger=10, begin=False, **settings)
    before = ledgers_of(at.store)
    at.open()
    at.ack((1, 3, 13)).result(PATIENCE)
    at.ack((15,)).result(PATIENCE)
    return at, before


def damage_nothing(at):
    pass


def damage_every_entry(at):
    for entry in range(len(at.stored())):
        flip_entry(at.store, at.record.cursor_ledger_id, entry, 401)


def damage_the_metadata(at):
    flip_metadata(at.store, at.record.cursor_ledger_id, 77)


def damage_the_state(at):
    flip_state(at.store, at.record.cursor_ledger_id, 77)


def damage_the_record(at):
    flip_node(at.store, at.node, 99)


def damage_the_seal_of_the_record(at):
    flip_node(at.store, at.node, 3)


def damage_the_seal_of_the_metadata(at):
    flip_metadata(at.store, at.record.cursor_ledger_id, 3)


def replace_the_record(at):
    at.store.nodes.put(at.node, b"\xff\xff no record")


def lose_the_ledger(at):
    at.store.delete_ledger(at.record.cursor_ledger_id)


DAMAGES = [
    damage_nothing,
    damage_every_entry,
    damage_the_metadata,
    damage_the_seal_of_the_metadata,
    damage_the_state,
    damage_the_record,
    damage_the_seal_of_the_record,
    replace_the_record,
    lose_the_ledger,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("how", ["crash", "while open"])
def test_a_cursor_is_deleted_whatever_of_it_is_damaged(memory, damage, how):
    at, before = a_cursor(memory)
    damage(at)
    if how == "crash":
        at.leave("crash")
        at._open_store()
        at._open_topic()
    before = {ledger.ledger_id for ledger in at.topic.ledgers}
    Cursor.discard(at.topic, SUBSCRIPTION)
    assert at.topic.cursor_names() == []
    assert ledgers_of(at.store) == before
    if how == "while open":
        with pytest.raises(BookstandError):
            at.ack((7,)).result(PATIENCE)
    with pytest.raises(NoSuchNodeError):
        Cursor.discard(at.topic, SUBSCRIPTION)
    cursor = at.open()
    assert at.acked() == []
    cursor.close()
    at.store.storage.collect_deleted(1 << 62)
    at.store.close()
    with bookstand.open(at.path, create=False) as store:
        report = store.verify()
        assert report.ok, report.problems


def test_another_cursor_of_the_topic_stays(memory):
    at, _ = a_cursor(memory)
    other = Cursor.open(at.topic, "other", at.config())
    other.ack(at.p[5]).result(PATIENCE)
    damage_the_record(at)
    Cursor.discard(at.topic, SUBSCRIPTION)
    other.ack(at.p[6]).result(PATIENCE)
    assert at.topic.cursor_names() == ["other"]
    at.store.storage.crash()
    at._open_store()
    at._open_topic()
    assert Cursor.open(at.topic, "other").is_acked(at.p[6])
