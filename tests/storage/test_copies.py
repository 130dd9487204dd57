"""What several bookies over one store keep: each what it was sent, and the store the first copy of every entry."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from bookstand.storage.commit.ledger_operations import CreateLedger, DeleteLedger
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format import schema
from bookstand.storage.format.digest import digest_for, master_key
from bookstand.storage.format.entry_codec import encode
from bookstand.storage.format.ledger_metadata import LedgerMetadata, serialize
from bookstand.storage.format.ledger_state import NO_HOME_YET
from bookstand.storage.served.replica_operations import AddToReplica, FenceReplica, SetReplicaLac, highest_lac
from tests.kit import refused

DIGEST = digest_for("crc32c", b"")
KEY, OTHER = master_key(b""), master_key(b"other")
BOOKIES = (1, 2, 3)
METADATA = serialize(
    LedgerMetadata(
        5,
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        ensembles=[(0, ["one:3181"])],
        digest_type="crc32c",
        password=b"",
    )
)


def entry(ledger: int, number: int, payload: bytes = b"abc", lac: int | None = None) -> bytes:
    return encode(DIGEST, ledger, number, number - 1 if lac is None else lac, max(0, number + 1) * 3, payload)


def add(storage: Any, bookie: int, ledger: int, entries: list[bytes], recovery: bool = False, key: bytes = KEY) -> None:
    ids: Any = [int.from_bytes(stored[8:16], "big", signed=True) for stored in entries]
    if ids == list(range(ids[0], ids[0] + len(ids))):
        ids = range(ids[0], ids[0] + len(ids))
    storage.apply(WriteBatch(AddToReplica(bookie, ledger, key, recovery, ids, entries, highest_lac(entries))))


def has(storage: Any, bookie: int, ledger: int) -> dict[int, bytes]:
    with storage.copies(bookie) as view:
        return {number: view.entry(ledger, number) for number in view.entry_ids(ledger)}


def knows(storage: Any, bookie: int, ledger: int) -> Any:
    with storage.copies(bookie) as view:
        return view.ledger(ledger)


@pytest.fixture
def storage(store: Any) -> Any:
    return store.storage


@pytest.mark.parametrize("seed", range(12))
def test_each_bookie_has_what_it_was_sent(open_store: Callable[..., Any], seed: int) -> None:
    """Entries go to random bookies, in random order, alone and together, again and with other bytes."""
    store = open_store(durability="none")
    storage = store.storage
    chance = random.Random(seed)
    model: dict[tuple[int, int], dict[int, bytes]] = {}
    first: dict[tuple[int, int], bytes] = {}
    tops: dict[int, int] = {}
    for _ in range(150):
        bookie, ledger = chance.choice(BOOKIES), chance.choice([4, 5, 6, -1])
        top = tops.get(ledger, -1)
        begin = chance.choice([top + 1, top + 1, max(0, top - 3), top + 2, chance.randrange(-3, 30)])
        numbers = [begin + n for n in range(chance.choice([1, 1, 2, 5]))]
        if chance.random() < 0.2:
            chance.shuffle(numbers)
        payload = b"xyz" if chance.random() < 0.15 else b"abc"
        entries = [entry(ledger, number, payload) for number in numbers]
        tops[ledger] = max(top, *numbers)
        add(storage, bookie, ledger, entries)
        for number, stored in zip(numbers, entries, strict=True):
            model.setdefault((bookie, ledger), {}).setdefault(number, stored)
            if ledger >= 0 and number >= 0:
                first.setdefault((ledger, number), stored)
    for ledger in (4, 5, 6, -1):
        for bookie in BOOKIES:
            expected = model.get((bookie, ledger), {})
            assert has(storage, bookie, ledger) == dict(sorted(expected.items()))
            known = knows(storage, bookie, ledger)
            assert (known is None) == (not expected)
            if known is not None:
                assert (known.count, known.last_entry) == (len(expected), max(expected))
    assert {pair: storage.entry_as_stored(*pair) for pair in first} == first
    assert not store.verify().problems


def test_a_ledger_of_one_bookie_needs_no_marks(storage: Any) -> None:
    add(storage, 2, 5, [entry(5, number) for number in range(10)])
    add(storage, 2, 5, [entry(5, 10)])
    assert list(storage.keys_of(schema.COPIES)) == [schema.COPY_LEDGER.pack(5, 2)]


def test_a_striped_ledger_is_whole_in_the_store(storage: Any) -> None:
    """Three bookies, each entry on two of them, as with an ensemble of three and a write quorum of two."""
    for number in range(9):
        for bookie in (number % 3 + 1, (number + 1) % 3 + 1):
            add(storage, bookie, 5, [entry(5, number)])
    assert [len(has(storage, bookie, 5)) for bookie in BOOKIES] == [6, 6, 6]
    assert storage.state(5).unbroken == 8
    assert [len(part) for _, part in storage.slices(5, 0, 8)] == [9]


def test_gaps_are_closed_as_far_as_they_are(storage: Any, store: Any) -> None:
    """By what other bookies were sent, and at the front; what is behind them counts as unbroken from then on."""
    add(storage, 1, 5, [entry(5, number) for number in (0, 2, 3, 5, 6, 8)])
    assert storage.state(5).unbroken == 0
    add(storage, 2, 5, [entry(5, number) for number in (0, 1, 3, 4, 6, 7)])
    assert (storage.state(5).unbroken, storage.state(5).count) == (8, 9)
    add(storage, 3, 5, [entry(5, number) for number in (1, 2, 4, 5, 7, 8)])
    assert [sorted(has(storage, bookie, 5)) for bookie in BOOKIES] == [
        [0, 2, 3, 5, 6, 8],
        [0, 1, 3, 4, 6, 7],
        [1, 2, 4, 5, 7, 8],
    ]
    add(storage, 1, 6, [entry(6, number) for number in range(1, 1_000) if number != 700])
    assert storage.state(6).unbroken == -1
    add(storage, 2, 6, [entry(6, 0)])
    assert storage.state(6).unbroken == 699
    add(storage, 2, 6, [entry(6, 700)])
    assert storage.state(6).unbroken == 999
    assert not store.verify().problems


def test_the_first_key_is_the_ledgers(storage: Any) -> None:
    add(storage, 1, 5, [entry(5, 0)])
    for bookie in BOOKIES:
        with refused(-102):
            add(storage, bookie, 5, [entry(5, 1)], key=OTHER)
        with refused(-102):
            storage.apply(WriteBatch(FenceReplica(bookie, 5, OTHER)))
    assert knows(storage, 2, 5) is None


def test_a_fence_is_the_bookies_own(storage: Any) -> None:
    add(storage, 1, 5, [entry(5, 0)])
    storage.apply(WriteBatch(FenceReplica(1, 5, KEY)))
    with refused(-101):
        add(storage, 1, 5, [entry(5, 1)])
    add(storage, 1, 5, [entry(5, 1)], recovery=True)
    add(storage, 2, 5, [entry(5, 1)])
    assert [len(has(storage, bookie, 5)) for bookie in BOOKIES] == [2, 1, 0]


def test_a_ledger_that_no_bookie_ever_saw_can_be_fenced(storage: Any, store: Any) -> None:
    storage.apply(WriteBatch(FenceReplica(2, 9, KEY)))
    with refused(-101):
        add(storage, 2, 9, [entry(9, 0)])
    assert knows(storage, 1, 9) is None
    assert knows(storage, 2, 9).fenced
    assert not store.verify().problems


def test_a_ledger_of_the_stores_own_is_on_all_bookies(storage: Any, store: Any) -> None:
    writer = store.create_ledger()
    assert knows(storage, 1, writer.id) is None
    writer.append_many([b"one", b"two"])
    for bookie in BOOKIES:
        assert sorted(has(storage, bookie, writer.id)) == [0, 1]
    storage.apply(WriteBatch(FenceReplica(3, writer.id, KEY)))
    with refused(-101):
        writer.append(b"three")


def test_an_explicit_lac_is_kept_as_it_was_sent(storage: Any) -> None:
    add(storage, 1, 5, [entry(5, number) for number in range(3)])
    storage.apply(WriteBatch(SetReplicaLac(1, 5, KEY, 2, b"as sent")))
    known = knows(storage, 1, 5)
    assert (known.explicit_lac, known.lac) == (b"as sent", 2)
    assert storage.state(5).explicit_lac == 2


def test_a_lac_that_cannot_be_true_is_not_believed(storage: Any, store: Any) -> None:
    """What a client says is confirmed was stored, or its absence would be damage."""
    add(storage, 1, 5, [entry(5, 0, lac=1 << 60), entry(5, 1)])
    storage.apply(WriteBatch(SetReplicaLac(1, 5, KEY, 1 << 61, b"body")))
    assert storage.state(5).known_lac == 1
    assert knows(storage, 1, 5).lac == 1 << 61
    assert not store.verify().problems


def test_metadata_may_come_after_the_entries(storage: Any) -> None:
    add(storage, 1, 5, [entry(5, 0)])
    storage.apply(WriteBatch(CreateLedger(5, KEY, "crc32c", METADATA, home=NO_HOME_YET)))
    assert storage.metadata(5) == (METADATA, 0)
    assert storage.state(5).digest == "crc32c"
    assert sorted(has(storage, 1, 5)) == [0]


def test_what_is_collected_is_gone_from_all_bookies(storage: Any, store: Any) -> None:
    storage.apply(WriteBatch(CreateLedger(5, KEY, "crc32c", b"", home=NO_HOME_YET)))
    for bookie in BOOKIES:
        add(storage, bookie, 5, [entry(5, number, b"%d" % bookie) for number in range(100)])
        add(storage, bookie, 6, [entry(6, 0)])
    storage.apply(WriteBatch(DeleteLedger(5, 1)))
    assert len(has(storage, 3, 5)) == 100
    storage.collect(5)
    assert [knows(storage, bookie, 5) for bookie in BOOKIES] == [None] * 3
    assert {key[:8] for key in storage.keys_of(schema.COPIES)} == {(6).to_bytes(8, "big")}
    assert not store.verify().problems


def test_it_all_survives_reopening(open_store: Callable[..., Any]) -> None:
    first = open_store()
    add(first.storage, 1, 5, [entry(5, 0), entry(5, 1)])
    add(first.storage, 2, 5, [entry(5, 1, b"xyz"), entry(5, 2)])
    storage = first.storage
    before = [has(storage, bookie, 5) for bookie in BOOKIES]
    first.close()
    again = open_store().storage
    assert [has(again, bookie, 5) for bookie in BOOKIES] == before
    assert [sorted(each) for each in before] == [[0, 1], [1, 2], []]


def test_a_store_from_before_there_were_servers(open_store: Callable[..., Any], store_path: Path) -> None:
    """It has no such sub-database: read-only it stays without, else it gets one."""
    first = open_store()
    first.create_ledger().append(b"one")
    first.close()
    environment = lmdb.open(str(store_path), max_dbs=len(schema.DATABASES), lib_version=0)
    database = environment.open_db(schema.COPIES, create=False)
    with environment.begin(write=True) as transaction:
        transaction.drop(database, delete=True)
    environment.close()
    reading = open_store(read_only=True)
    assert has(reading.storage, 1, 0) != {}
    assert knows(reading.storage, 1, 7) is None
    assert reading.verify().ok
    reading.close()
    storage = open_store().storage
    add(storage, 1, 7, [entry(7, 0)])
    assert sorted(has(storage, 1, 7)) == [0]


@pytest.mark.damaged
@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (schema.COPY_ENTRY.pack(5, 2, 1), b"=", "is missing: the bookie received it"),
        (schema.COPY_ENTRY.pack(5, 2, 0), b"?", "is not a valid override"),
        (schema.COPY_ENTRY.pack(5, 2, 0), b"+" + bytes(40), "its bytes are those of another entry"),
        (schema.COPY_LEDGER.pack(5, 2), b"", "checksum does not match"),
        (b"odd", b"", "has an invalid key"),
    ],
)
def test_damage_is_found(storage: Any, store: Any, key: bytes, value: bytes, told: str) -> None:
    add(storage, 1, 5, [entry(5, 0)])
    with storage.committer.paused():
        environment = storage._environment
        transaction = environment._env.begin(None, None, True)
        transaction.put(key, value, True, True, False, environment.databases[schema.COPIES])
        transaction.commit()
    assert told in " ".join(problem.message for problem in store.verify().problems)
