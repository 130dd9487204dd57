"""What verify() finds: any damage to any record, named; and nothing where there is nothing, also beside writers."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand import errors
from bookstand.storage.commit.entry_operations import DeleteEntries
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format.digest import digest_for
from bookstand.storage.format.entry_codec import encode
from bookstand.storage.hooks import Hooks
from tests import kit
from tests.page_damage import spoil_free_list, zero_leaf

damaged = pytest.mark.damaged

LEDGER_KEY = 8
MIDDLE = 4
DIGESTS = ("crc32", "crc32c", "hmac", "dummy")
READS: dict[str, Callable[[Any], Any]] = {
    "one": lambda reader: reader.read(MIDDLE, MIDDLE),
    "range": lambda reader: reader.read(0, 9),
    "from it": lambda reader: reader.read(MIDDLE, 9),
    "unconfirmed": lambda reader: reader.read_unconfirmed(0, 9),
    "batch": lambda reader: reader.batch_read(MIDDLE, 0, 0),
    "iteration": list,
    "payloads": lambda reader: list(reader.payloads()),
    "follow": lambda reader: list(reader.follow(1)),
}


def ledger_key(ledger_id: int) -> bytes:
    return ledger_id.to_bytes(LEDGER_KEY, "big")


def build(path: Path, ledgers: int = 1, digest: str = "crc32c", password: bytes = b"pw", **options: Any) -> list[int]:
    """Closed ledgers of ten entries each, and a node."""
    with bookstand.open(path, **options) as store:
        ids = []
        for _ in range(ledgers):
            with store.create_ledger(digest=digest, password=password) as writer:
                for number in range(10):
                    writer.append(b"payload %d" % number)
                ids.append(writer.id)
        store.nodes.put("/some/node", b"its value")
        return ids


def flipped(value: bytes, bit: int) -> bytes:
    changed = bytearray(value)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def flip(path: Path, database: bytes, key: bytes, bit: int) -> None:
    with kit.raw(path, write=True) as databases:
        records = databases(database)
        records[key] = flipped(records[key], bit % (len(records[key]) * 8))


def delete(path: Path, database: bytes, key: bytes) -> None:
    with kit.raw(path, write=True) as databases:
        del databases(database)[key]


def verified(path: Path) -> Any:
    with bookstand.open(path, create=False) as store:
        return store.verify()


def messages(path: Path) -> str:
    """What is said of the store by whoever looks first: opening it, or verify()."""
    try:
        report = verified(path)
    except errors.StoreError as error:
        return str(error)
    return "\n".join(problem.message for problem in report.problems)


# -- bits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest", DIGESTS)
@pytest.mark.parametrize("byte", [0, 7, 8, 15, 16, 24, 31, 32, -1])
@damaged
def test_a_bit_of_an_entry(store_path: Path, digest: str, byte: int) -> None:
    if digest == "dummy" and byte not in (0, 7, 8, 15):
        pytest.skip("without a digest nothing but the ids tells")
    (ledger_id,) = build(store_path, digest=digest)
    flip(store_path, b"entries", kit.entry_key(ledger_id, MIDDLE), byte * 8 + 3)
    report = verified(store_path)
    assert not report.ok
    assert [(problem.ledger_id, problem.entry_id) for problem in report.problems] == [(ledger_id, MIDDLE)]
    assert f"{ledger_id}:{MIDDLE}" in report.problems[0].message


@pytest.mark.parametrize("bit", [0, 31, 40, -9, -1])
@damaged
def test_a_bit_of_a_ledgers_metadata(store_path: Path, bit: int) -> None:
    _, ledger_id, _ = build(store_path, 3)
    flip(store_path, b"ledgers", ledger_key(ledger_id), bit)
    report = verified(store_path)
    assert {problem.ledger_id for problem in report.problems} == {ledger_id}
    assert f"metadata of ledger {ledger_id}" in report.problems[0].message


@pytest.mark.parametrize("bit", [0, 31, 40, 200, -1])
@damaged
def test_a_bit_of_a_ledgers_state(store_path: Path, bit: int) -> None:
    _, ledger_id, _ = build(store_path, 3)
    flip(store_path, b"state", ledger_key(ledger_id), bit)
    report = verified(store_path)
    assert {problem.ledger_id for problem in report.problems} == {ledger_id}
    assert f"state of ledger {ledger_id}" in report.problems[0].message


@pytest.mark.parametrize("bit", [0, 31, 40, -1])
@damaged
def test_a_bit_of_a_node(store_path: Path, bit: int) -> None:
    build(store_path)
    flip(store_path, b"nodes", b"/some/node", bit)
    assert "'/some/node'" in messages(store_path)


@pytest.mark.parametrize("name", ["format", "store-id", "next-ledger-id", "next-incarnation"])
@pytest.mark.parametrize("bit", [0, -1])
@damaged
def test_a_bit_of_a_record_of_the_store(store_path: Path, name: str, bit: int) -> None:
    build(store_path)
    flip(store_path, b"meta", name.encode(), bit)
    assert name in messages(store_path)


@pytest.mark.parametrize("bit", [0, -1])
@damaged
def test_a_bit_of_a_deletions_record(store_path: Path, bit: int) -> None:
    (ledger_id,) = build(store_path)
    with bookstand.open(store_path) as store:
        store.delete_ledger(ledger_id)
    with kit.raw(store_path) as databases:
        (key,) = (key for key, _ in databases(b"meta").items() if key.startswith(b"deleted-"))
    flip(store_path, b"meta", key, bit)
    # The key has the time in it, by which it is quoted in one way or the other.
    assert re.search("record ['\"]deleted-", messages(store_path))


@damaged
def test_every_damage_is_named_at_once(store_path: Path) -> None:
    one, two, three = build(store_path, 3)
    flip(store_path, b"entries", kit.entry_key(one, 0), 300)
    flip(store_path, b"entries", kit.entry_key(one, 9), 300)
    flip(store_path, b"ledgers", ledger_key(two), 99)
    flip(store_path, b"entries", kit.entry_key(three, MIDDLE), 300)
    flip(store_path, b"nodes", b"/some/node", 99)
    report = verified(store_path)
    assert [(problem.ledger_id, problem.entry_id) for problem in report.problems] == [
        (one, 0),
        (one, 9),
        (two, None),
        (three, MIDDLE),
        (None, None),
    ]
    assert str(report).count("\n") == len(report.problems) == 5


# -- records that are not there --------------------------------------------------------------------------------------


@damaged
def test_an_entry_missing_in_the_middle_is_reported(store_path: Path) -> None:
    _, ledger_id, _ = build(store_path, 3)
    delete(store_path, b"entries", kit.entry_key(ledger_id, MIDDLE))
    report = verified(store_path)
    assert (ledger_id, MIDDLE) in [(problem.ledger_id, problem.entry_id) for problem in report.problems]
    assert {problem.ledger_id for problem in report.problems} == {ledger_id}


@pytest.mark.parametrize("entry_id", [0, 9])
@damaged
def test_an_entry_missing_at_an_end_is_reported(store_path: Path, entry_id: int) -> None:
    _, ledger_id, _ = build(store_path, 3)
    delete(store_path, b"entries", kit.entry_key(ledger_id, entry_id))
    assert {problem.ledger_id for problem in verified(store_path).problems} == {ledger_id}


@pytest.mark.parametrize("how", READS)
@damaged
def test_reading_a_missing_entry_is_damage_not_absence(store_path: Path, how: str) -> None:
    _, ledger_id, _ = build(store_path, 3)
    delete(store_path, b"entries", kit.entry_key(ledger_id, MIDDLE))
    with (
        bookstand.open(store_path) as store,
        store.open_ledger(ledger_id, password=b"pw") as reader,
        kit.refused(-1) as caught,
    ):
        READS[how](reader)
    assert isinstance(caught.value, errors.StoreDamagedError)
    assert f"{ledger_id}:{MIDDLE}" in str(caught.value)


def adv(store: Any) -> tuple[int, int]:
    """(ledger, an entry that was confirmed, though no other entry carries it as such)."""
    with store.create_ledger_adv() as writer:
        for entry_id in range(10):
            writer.write(entry_id, b"payload %d" % entry_id)
        return writer.id, 9


def adv_in_reverse(store: Any) -> tuple[int, int]:
    with store.create_ledger_adv() as writer:
        for pending in [writer.write_async(entry_id, b"payload %d" % entry_id) for entry_id in reversed(range(10))]:
            pending.result()
        return writer.id, 9


def adv_with_a_hole(store: Any) -> tuple[int, int]:
    with store.create_ledger_adv() as writer:
        for entry_id in (0, 1, 3, 2, 5):
            writer.write_async(entry_id, b"payload %d" % entry_id)
        store.storage.flush()
        return writer.id, 3


def deferred(store: Any) -> tuple[int, int]:
    with store.create_ledger(deferred_sync=True) as writer:
        writer.append_many([b"payload"] * 10)
        writer.force()
        return writer.id, 9


def deferred_by_a_transaction(store: Any) -> tuple[int, int]:
    with store.create_ledger(deferred_sync=True) as writer:
        for _ in range(3):
            with store.transaction() as transaction:
                transaction.append(writer, b"payload")
                transaction.append(writer, b"payload")
        writer.force()
        return writer.id, 5


def with_hooks(store: Any) -> tuple[int, int]:
    with bookstand.open(store.path, hooks=Hooks()) as other, other.create_ledger() as writer:
        writer.append_many([b"payload"] * 3)
        return writer.id, 2


READS_TO: dict[str, Callable[[Any, int], Any]] = {
    "one": lambda reader, last: reader.read(last, last),
    "range": lambda reader, last: reader.read(0, last),
    "unconfirmed": lambda reader, last: reader.read_unconfirmed(last, last),
    "batch": lambda reader, last: reader.batch_read(last, 0, 0),
    "iteration": lambda reader, last: list(reader),
    "last": lambda reader, last: reader.read_last_entry(),
}


@pytest.mark.parametrize("how", READS_TO)
@pytest.mark.parametrize(
    "made", [adv, adv_in_reverse, adv_with_a_hole, deferred, deferred_by_a_transaction, with_hooks]
)
@damaged
def test_a_confirmed_entry_that_is_gone_is_damage_however_it_was_added(
    store_path: Path, made: Callable[[Any], tuple[int, int]], how: str
) -> None:
    with bookstand.open(store_path) as store:
        ledger_id, entry_id = made(store)
    delete(store_path, b"entries", kit.entry_key(ledger_id, entry_id))
    with bookstand.open(store_path) as store:
        reader = store.open_ledger(ledger_id)
        with pytest.raises(errors.StoreDamagedError, match=f"{ledger_id}:{entry_id}"):
            READS_TO[how](reader, entry_id)
    assert (ledger_id, entry_id) in [(one.ledger_id, one.entry_id) for one in verified(store_path).problems]


@pytest.mark.parametrize("how", ["range", "iteration", "payloads", "follow"])
@damaged
def test_reading_past_a_missing_last_entry_is_damage(store_path: Path, how: str) -> None:
    """The next entries in the file are those of another ledger."""
    _, ledger_id, _ = build(store_path, 3)
    delete(store_path, b"entries", kit.entry_key(ledger_id, 9))
    with (
        bookstand.open(store_path) as store,
        store.open_ledger(ledger_id, password=b"pw") as reader,
        kit.refused(-1) as caught,
    ):
        READS[how](reader)
    assert isinstance(caught.value, errors.StoreDamagedError)


@damaged
def test_missing_metadata_is_reported(store_path: Path) -> None:
    _, ledger_id, _ = build(store_path, 3)
    delete(store_path, b"ledgers", ledger_key(ledger_id))
    # The sum over all metadata is another as well, and can say no ledger.
    assert {problem.ledger_id for problem in verified(store_path).problems} == {ledger_id, None}


@damaged
def test_missing_state_is_reported(store_path: Path) -> None:
    _, ledger_id, _ = build(store_path, 3)
    delete(store_path, b"state", ledger_key(ledger_id))
    assert {problem.ledger_id for problem in verified(store_path).problems} == {ledger_id}


@damaged
def test_entries_that_belong_to_nothing_are_reported(store_path: Path) -> None:
    _, ledger_id, _ = build(store_path, 3)
    delete(store_path, b"ledgers", ledger_key(ledger_id))
    delete(store_path, b"state", ledger_key(ledger_id))
    # The sum over all metadata is another as well, and can say no ledger.
    assert {problem.ledger_id for problem in verified(store_path).problems} == {ledger_id, None}


@pytest.mark.parametrize("name", ["format", "store-id", "next-ledger-id", "next-incarnation"])
@damaged
def test_a_missing_record_of_the_store_is_reported(store_path: Path, name: str) -> None:
    build(store_path)
    delete(store_path, b"meta", name.encode())
    assert name in messages(store_path)


# -- bytes of others -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest", DIGESTS)
@pytest.mark.parametrize("other_entry", [MIDDLE, 5])
@damaged
def test_an_entry_of_another_ledger(store_path: Path, digest: str, other_entry: int) -> None:
    one, two = build(store_path, 2, digest=digest)
    other = kit.stored_entries(store_path, two)[other_entry]
    kit.change_entry(store_path, one, MIDDLE, lambda _: other)
    report = verified(store_path)
    assert [(problem.ledger_id, problem.entry_id) for problem in report.problems] == [(one, MIDDLE)]


@pytest.mark.parametrize("digest", DIGESTS)
@damaged
def test_another_entry_of_the_ledger(store_path: Path, digest: str) -> None:
    (ledger_id,) = build(store_path, digest=digest)
    other = kit.stored_entries(store_path, ledger_id)[7]
    kit.change_entry(store_path, ledger_id, MIDDLE, lambda _: other)
    report = verified(store_path)
    assert [(problem.ledger_id, problem.entry_id) for problem in report.problems] == [(ledger_id, MIDDLE)]


@damaged
def test_a_cumulative_length_that_falls(store_path: Path) -> None:
    """The right entry is named, also behind one that is damaged in another way."""
    (ledger_id,) = build(store_path)
    digest = digest_for("crc32c", b"pw")
    fallen = encode(digest, ledger_id, 6, 5, 1, b"payload 6")
    kit.change_entry(store_path, ledger_id, 6, lambda _: fallen)
    flip(store_path, b"entries", kit.entry_key(ledger_id, 2), -1)
    named = [(problem.ledger_id, problem.entry_id) for problem in verified(store_path).problems]
    assert named == [(ledger_id, 2), (ledger_id, 6)]


@pytest.mark.parametrize("database", [b"ledgers", b"state"])
@damaged
def test_a_record_of_another_ledger(store_path: Path, database: bytes) -> None:
    one, two = build(store_path, 2)
    with kit.raw(store_path, write=True) as databases:
        records = databases(database)
        records[ledger_key(one)] = records[ledger_key(two)]
    report = verified(store_path)
    assert {problem.ledger_id for problem in report.problems} == {one}
    assert f"of ledger {one}" in report.problems[0].message


# -- formats and digests ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metadata_format", [1, 2, 3])
@pytest.mark.parametrize("digest", DIGESTS)
@damaged
def test_every_format_with_every_digest(store_path: Path, metadata_format: int, digest: str) -> None:
    (ledger_id,) = build(store_path, digest=digest, metadata_format=metadata_format)
    report = verified(store_path)
    assert report.ok, report.problems
    assert (report.ledgers, report.entries, report.nodes) == (1, 10, 1)
    assert report.bytes == sum(map(len, kit.stored_entries(store_path, ledger_id).values()))
    if digest in ("crc32", "crc32c") or (digest == "hmac" and metadata_format > 1):
        flip(store_path, b"entries", kit.entry_key(ledger_id, MIDDLE), -1)
        (problem,) = verified(store_path).problems
        assert (problem.ledger_id, problem.entry_id) == (ledger_id, MIDDLE)


# -- nothing wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest", DIGESTS)
def test_a_deleted_ledger_is_no_problem(store: Any, digest: str) -> None:
    with store.create_ledger(digest=digest, password=b"secret") as writer:
        writer.append_many([b"x"] * 300)
    with store.create_ledger_adv(50, digest=digest, password=b"secret") as writer:
        writer.write(0, b"x")
    for ledger_id in list(store.list_ledgers()):
        store.delete_ledger(ledger_id)
    report = store.verify()
    assert report.ok, report.problems
    assert report.entries == 301
    store.compact()
    report = store.verify()
    assert report.ok, report.problems
    assert (report.ledgers, report.entries) == (0, 0)


def test_ledgers_of_every_kind(open_store: Callable[..., Any]) -> None:
    store = open_store()
    other = open_store()
    store.create_ledger()
    gaps = store.create_ledger_adv(100)
    gaps.write(0, b"a")
    held = [gaps.write_async(entry_id, b"b" * entry_id) for entry_id in (7, 5, 3, 2_000)]
    kit.stored_by(gaps, 2_000)
    fenced = store.create_ledger()
    fenced.append_many([b"c"] * 250)
    other.open_ledger(fenced.id).close()
    assert kit.code_of(lambda: fenced.append(b"d")) == -101
    empty = store.create_ledger()
    other.open_ledger(empty.id).close()
    deferred = store.create_ledger(deferred_sync=True)
    deferred.append(b"e")
    deferred.force()
    deferred.append(b"f")
    recovered = store.create_ledger_adv(200)
    recovered.write(0, b"g")
    beyond = recovered.write_async(4, b"h")
    kit.stored_by(recovered, 4)
    other.open_ledger(200).close()
    store.nodes.put("/a", b"")
    store.nodes.put("/a/b", b"x")
    report = store.verify()
    assert report.ok, report.problems
    assert (report.ledgers, report.nodes) == (6, 2)
    gaps.close()
    assert [kit.outcome(pending) for pending in held] == [-11] * 4
    assert not beyond.done() or kit.outcome(beyond) != ("ok", 4)
    assert store.verify().ok


def test_an_empty_store(store: Any) -> None:
    report = store.verify()
    assert report.ok
    assert (report.ledgers, report.entries, report.nodes, report.bytes) == (0, 0, 0, 0)
    assert "no problems" in repr(report)


# -- beside writers --------------------------------------------------------------------------------------------------


def test_beside_a_writing_thread(open_store: Callable[..., Any]) -> None:
    store = open_store(durability="none")
    stop = threading.Event()
    rounds: list[int] = []

    def write() -> None:
        plain, adv = store.create_ledger(), store.create_ledger_adv(1_000)
        number = 0
        while not stop.is_set():
            plain.append(b"one")
            plain.append_many([b"many"] * 50)
            adv.write_async(2 * number + 2, b"later")
            short = store.create_ledger_adv(2_000, digest="hmac", password=b"%d" % number)
            short.write(0, b"x" * number)
            short.write_async(5, b"gap")
            store.delete_ledger(2_000)
            if number % 2:
                store.storage.collect_deleted(1 << 62)
            store.nodes.put(f"/{number % 7}", b"value")
            number += 1
            rounds.append(number)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        done = 0
        while done < 30 or len(rounds) < 60:
            report = store.verify()
            assert report.ok, report.problems
            assert thread.is_alive()
            done += 1
    finally:
        stop.set()
        thread.join(kit.PATIENCE)
    assert store.verify().ok


def recreated(store: Any) -> None:
    store.delete_ledger(77)
    again = store.create_ledger_adv(77, digest="hmac", password=b"new")
    again.write(0, b"new")
    again.write_async(3, b"new")


def collected(store: Any) -> None:
    store.delete_ledger(77)
    store.storage.collect(77)


def partly_collected(store: Any) -> None:
    store.delete_ledger(77)
    store.storage.apply(WriteBatch(DeleteEntries(77, 1)))


def only_deleted(store: Any) -> None:
    store.delete_ledger(77)


def added(store: Any) -> None:
    store.create_ledger_adv(78).write(0, b"x")
    store.open_ledger(77, password=b"old")


@pytest.mark.slow
@pytest.mark.parametrize("change", [recreated, collected, partly_collected, only_deleted, added])
def test_a_change_between_any_two_reads(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None]
) -> None:
    """verify() reads in several transactions; whatever comes between two of them is no damage."""
    for moment in range(100):
        with bookstand.open(store_path / str(moment), durability="none") as store, monkeypatch.context() as patch:
            writer = store.create_ledger_adv(77, digest="hmac", password=b"old")
            for entry_id in range(3):
                writer.write(entry_id, b"x" * 400)
            store.create_ledger().append(b"another")
            calls = [0]
            happened = [False]

            def seen(original: Any, store: Any = store, calls: list[int] = calls, happened: Any = happened) -> Any:
                def read(*arguments: Any) -> Any:
                    if calls[0] == moment and not happened[0]:  # noqa: B023 - called within this round only
                        happened[0] = True
                        change(store)
                    if not happened[0]:
                        calls[0] += 1
                    return original(*arguments)

                return read

            environment = store.storage._environment
            patch.setattr(environment, "read", seen(environment.read))
            report = store.verify()
            patch.undo()
            assert report.ok, (moment, report.problems)
            assert store.verify().ok
            if not happened[0]:
                assert moment > 5
                return
    raise AssertionError("verify() never came to its end")


@damaged
def test_a_ledger_of_which_a_part_is_collected(store_path: Path) -> None:
    """Collection takes several commits, between which the process may end."""
    (ledger_id,) = build(store_path)
    with bookstand.open(store_path) as store:
        store.delete_ledger(ledger_id)
        assert store.storage.apply(WriteBatch(DeleteEntries(ledger_id, 4)))[0]
        report = store.verify()
        assert report.ok, report.problems
    with bookstand.open(store_path, check="full") as store:
        store.compact()
        report = store.verify()
        assert report.ok, report.problems
        assert (report.ledgers, report.entries) == (0, 0)


# -- the pages of the file ---------------------------------------------------------------------------------------------


def large(path: Path) -> None:
    with bookstand.open(path) as store, store.create_ledger() as writer:
        writer.append_many([b"x" * 500] * 100)


@pytest.mark.parametrize("spoil", [zero_leaf, spoil_free_list])
def test_a_damaged_page_is_named_before_it_is_read(store_path: Path, spoil: Callable[[Path], None]) -> None:
    large(store_path)
    damaged_since = bookstand.open(store_path, read_only=True)
    spoil(store_path)
    with damaged_since:
        (problem,) = damaged_since.verify().problems
    assert f"{store_path}/data.mdb is damaged: " in problem.message
    assert problem.message.endswith(": bookstand repair saves what can be saved")
    for check in ("structure", "full"):
        with pytest.raises(errors.StoreDamagedError, match=re.escape(problem.message)):
            bookstand.open(store_path, check=check)


COMMITTER = """
import sys
import bookstand

with bookstand.open(sys.argv[1], durability="none") as store:
    while True:
        print(flush=True)
        with store.create_ledger() as writer:
            writer.append_many([b"x" * 700] * 50)
        store.delete_ledger(writer.id)
        store.compact()
"""


def test_pages_are_looked_at_while_another_process_changes_them(store_path: Path) -> None:
    """None that is looked at is written over meanwhile: nothing is found where nothing is wrong."""
    large(store_path)
    committer = subprocess.Popen([sys.executable, "-c", COMMITTER, store_path], stdout=subprocess.PIPE)
    try:
        assert committer.stdout is not None
        for _ in range(30):
            committer.stdout.readline()
            with bookstand.open(store_path, read_only=True, check="structure") as store:
                store.storage.check_structure()
    finally:
        committer.kill()
        committer.communicate(timeout=kit.PATIENCE)
