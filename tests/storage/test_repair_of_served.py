"""Repairing stores that were served: what each bookie was sent, sessions and znodes, and nothing taken for another."""

from __future__ import annotations

from pathlib import Path

import pytest

import bookstand
from bookstand.server.zookeeper import persistent_records
from bookstand.storage.commit.ledger_operations import CreateLedger, DeleteLedger
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.commit.restore_operations import RestoreOverride, RestoreSealed
from bookstand.storage.format import schema
from bookstand.storage.format.ledger_state import NO_HOME_YET
from bookstand.storage.repair.repair import repair
from bookstand.storage.served import bookie_replica
from bookstand.storage.served.replica_operations import FenceReplica
from tests import kit
from tests.storage.test_copies import BOOKIES, KEY, METADATA, add, entry, has, knows
from tests.storage.test_repair import change, flipped, repaired, root_of, zero_page

STRIPED, MIXED, DELETED = 5, 6, 7
ENTRIES = 40
Sent = dict[tuple[int, int], dict[int, bytes]]


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """Three bookies: two of them have each entry of one ledger; of the others each has bytes of its own, negative ids
    among them; the last ledger is deleted."""
    path = tmp_path / "store"
    with bookstand.open(path, durability="none") as store:
        storage = store.storage
        storage.apply(WriteBatch(CreateLedger(STRIPED, KEY, "crc32c", METADATA, home=NO_HOME_YET)))
        storage.apply(WriteBatch(CreateLedger(DELETED, KEY, "crc32c", b"", home=NO_HOME_YET)))
        for number in range(ENTRIES):
            for bookie in (number % 3 + 1, (number + 1) % 3 + 1):
                add(storage, bookie, STRIPED, [entry(STRIPED, number)])
        for bookie in BOOKIES:
            add(storage, bookie, MIXED, [entry(MIXED, number, b"of %d" % bookie) for number in (-2, 0, 1, 2)])
            add(storage, bookie, DELETED, [entry(DELETED, 0)])
            add(storage, bookie, -1, [entry(-1, 3)])
        storage.apply(WriteBatch(FenceReplica(2, STRIPED, KEY)))
        storage.apply(WriteBatch(DeleteLedger(DELETED, 1)))
        storage.apply(WriteBatch(*(RestoreSealed(schema.META, key, b"body of " + key) for key in SERVERS_KEYS)))
        for number in range(300):
            store.nodes.put(f"/n/{number}", b"value %d" % number)
    return path


ZNODE = persistent_records.new_znode(7, 1_700_000_000_000)._replace(has_record=True)
SERVERS_KEYS = [
    schema.META_SERVER,
    persistent_records.session_key(77),
    *(schema.znode_key(f"/n/{number}") for number in range(300)),
]


def sent(path: Path) -> Sent:
    with bookstand.open(path) as store:
        return {(bookie, ledger): has(store.storage, bookie, ledger) for bookie in BOOKIES for ledger in (5, 6, -1)}


def of_servers(path: Path) -> dict[bytes, bytes]:
    with kit.raw(path) as raw:
        return {key: body for key, body in raw(schema.META).items() if key in SERVERS_KEYS}


def nodes(path: Path) -> dict[str, tuple[bytes, int]]:
    with bookstand.open(path) as store:
        return {name: store.nodes.get(f"/n/{name}") for name in store.nodes.children("/n")}


def test_all_of_it_is_saved(served: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    report = repaired(served, new)
    assert (report.losses, report.deleted_ledgers) == ([], 1)
    assert sent(new) == sent(served)
    assert of_servers(new) == of_servers(served)
    assert len(of_servers(new)) == len(SERVERS_KEYS)
    with bookstand.open(new) as store:
        assert [knows(store.storage, bookie, STRIPED).fenced for bookie in BOOKIES] == [False, True, False]
        assert knows(store.storage, 1, DELETED) is None
        assert store.verify().ok


def mark_key(bookie: int, ledger: int, number: int) -> bytes:
    return schema.COPY_ENTRY.pack(ledger, bookie, number)


@pytest.mark.parametrize("wrong", [b"?", b"", b"+short", b"+" + entry(MIXED, 2, b"of 2")])
def test_marks_that_are_damaged(served: Path, tmp_path: Path, wrong: bytes) -> None:
    """The store's own entry takes the place of the bookie's; where the store has none it reads as lost."""
    before, new = sent(served), tmp_path / "new"
    for key in (mark_key(2, MIXED, 1), mark_key(2, -1, 3)):
        change(served, schema.COPIES, key, lambda mark: wrong)
    report = repaired(served, new)
    assert [str(loss) for loss in report.losses] == [
        "copy of ledger 6: entry 6:1 of bookie 2 is damaged: replaced by the store's entry",
        "copy of ledger -1: entry -1:3 of bookie 2 is damaged: replaced by the store's entry",
    ]
    assert report.lost_entries == 0
    with bookstand.open(new) as store, store.storage.copies(2) as view:
        assert view.entry(MIXED, 1) == before[1, MIXED][1]
        with pytest.raises(bookstand.BookstandError, match="entry -1:3 of bookie 2 is missing"):
            view.entry(-1, 3)


def test_what_a_bookie_knows_is_damaged(served: Path, tmp_path: Path) -> None:
    change(served, schema.COPIES, schema.COPY_LEDGER.pack(STRIPED, 2), flipped)
    report = repaired(served, tmp_path / "new")
    assert [str(loss) for loss in report.losses] == ["copy of ledger 5: state of ledger 5 at bookie 2 is damaged"]


def test_an_entry_that_is_lost_is_told_once(served: Path, tmp_path: Path) -> None:
    """However many bookies were sent it; to them it reads as lost."""
    change(served, schema.ENTRIES, schema.ENTRY_KEY.pack(STRIPED, 4), lambda stored: None)
    change(served, schema.STATE, schema.LEDGER_KEY.pack(STRIPED), lambda state: state)
    report = repaired(served, tmp_path / "new")
    assert [(loss.what, loss.ledger_id, loss.first_entry) for loss in report.losses] == [("entries", STRIPED, 4)]


def test_a_broken_tree_of_copies(served: Path, tmp_path: Path) -> None:
    """Its pages are found, though nothing leads to them."""
    before, new = sent(served), tmp_path / "new"
    with bookstand.open(served) as store:
        store.compact()
        store.storage.apply(
            WriteBatch(*(RestoreOverride(mark_key(9, STRIPED, n), bookie_replica.ABSENT) for n in range(2000)))
        )
    zero_page(served, root_of(served, schema.COPIES))
    report = repaired(served, new)
    assert ["copies: page" in str(loss) for loss in report.losses] == [True]
    assert sent(new) == before


def test_znodes_are_not_taken_for_nodes(served: Path, tmp_path: Path) -> None:
    """Both have paths for keys, and pages that nothing leads to do not say which they are of."""
    before, new = nodes(served), tmp_path / "new"
    with bookstand.open(served) as store:
        store.storage.apply(
            WriteBatch(
                *(
                    RestoreSealed(schema.META, key, persistent_records.pack_znode(key, ZNODE)[4:])
                    for key in SERVERS_KEYS
                    if key.startswith(schema.META_ZNODE)
                )
            )
        )
        store.compact()
    with_damage = of_servers(served)
    zero_page(served, root_of(served, schema.NODES))
    report = repaired(served, new)
    assert nodes(new) == before
    assert not report.losses
    assert of_servers(new) == with_damage


def test_a_store_without_copies(served: Path, tmp_path: Path) -> None:
    """Stores made before there were servers have none, and lack nothing."""
    with kit.raw(served, write=True) as raw:
        raw(schema.COPIES).drop()
    report = repair(served, tmp_path / "new")
    assert report.whole
