"""Repairing damaged stores: whatever LMDB can still read is saved, nothing wrong ever is, and all else is listed."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bookstand
from bookstand.errors import (
    BookstandError,
    IncorrectParameterError,
    NotAStoreError,
    StoreError,
    StoreFormatError,
    StoreInUseError,
    StoreNotFoundError,
)
from bookstand.storage.format import schema, sealed_record
from bookstand.storage.format.ledger_metadata import MADE_UP
from bookstand.storage.lmdb.meta_page import parse_meta
from bookstand.storage.lmdb.tree_walk import KeyRanges, TreeGap
from bookstand.storage.repair.record_index import RecordIndex
from bookstand.storage.repair.repair import UNFINISHED, Loss, NothingToSaveError, repair
from bookstand.storage.repair.salvage import Salvage
from tests import kit
from tests.kit import PATIENCE
from tests.soak import damaged_files
from tests.storage import trials
from tests.storage.repairs import Store, check, contents, readable_by_lmdb, repaired
from tests.storage.trials import PAGE, Damage, Shape

SHAPE = Shape.of(5)
"""Four ledgers: the second and the last one are open, and entries of the third are larger than a page."""
OPEN, LAST = 1, 3
EACH_KIND = 4


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("repair"), SHAPE)


# -- every kind of damage ----------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kind", damaged_files.KINDS)
def test_each_kind_of_damage(store: Store, kind: str) -> None:
    pristine = contents(store.path)
    cases = damaged_files.cases(7, store.target, EACH_KIND, [kind])
    assert cases
    for case in cases:
        damaged, new = store.damaged(case.damage)
        readable = set(readable_by_lmdb(damaged, pristine))
        try:
            report = repaired(damaged, new)
        except NothingToSaveError:
            assert not readable
            assert not new.exists()
            continue
        whole = check(store, report, new) == SHAPE.entries + SHAPE.nodes
        assert whole or report.losses
        saved = contents(new)
        for name, key in readable:
            if name == "ledgers" and any(loss.what == "metadata" for loss in report.losses):
                continue
            assert saved[name].get(key) == pristine[name][key], (case, name, key)


def test_a_healthy_store(store: Store) -> None:
    damaged, new = store.copy()
    report = repaired(damaged, new)
    assert (report.losses, report.entries, report.nodes) == ([], SHAPE.entries, SHAPE.nodes)
    assert (report.ledgers, report.found_elsewhere, report.made_up) == (len(SHAPE.ledgers), 0, [])
    assert check(store, report, new) == SHAPE.entries + SHAPE.nodes
    pristine, saved = contents(store.path), contents(damaged)
    assert pristine == saved
    with bookstand.open(damaged) as before, bookstand.open(new) as after:
        assert after.storage.store_id == before.storage.store_id


def test_a_store_with_topics(tmp_path: Path) -> None:
    """Byte for byte, but for ledgers that were deleted."""
    from tests.tools.kit import fill

    fill(tmp_path / "store")
    report = repaired(tmp_path / "store", tmp_path / "new")
    assert report.whole
    assert report.deleted_ledgers == 1
    assert contents(tmp_path / "new") == contents(tmp_path / "store")
    with kit.raw(tmp_path / "store") as before, kit.raw(tmp_path / "new") as after:
        states = {key: before(b"state")[key] for key in map(schema.LEDGER_KEY.pack, range(7))}
        assert {key: after(b"state")[key] for key in states} == states


def test_a_dry_run_tells_the_same_and_writes_nothing(store: Store) -> None:
    damaged, new = store.damaged([["write", 20 * PAGE, "00" * PAGE], ["write", 30 * PAGE + 3000, "ff" * 40]])
    told = repair(damaged, new, dry_run=True)
    assert not new.exists()
    done = repaired(damaged, new)
    assert done.losses == told.losses
    assert {**done.as_dict(), "dry_run": True} == told.as_dict()


# -- records -----------------------------------------------------------------------------------------------------------


def change(path: Path, database: bytes, key: bytes, value: Callable[[bytes], bytes | None]) -> None:
    with kit.raw(path, write=True) as raw:
        changed = value(raw(database)[key])
        if changed is None:
            del raw(database)[key]
        else:
            raw(database)[key] = changed


def flipped(value: bytes) -> bytes:
    return value[:-1] + bytes((value[-1] ^ 1,))


def test_entries_that_are_wrong(store: Store) -> None:
    damaged, new = store.copy()
    for entry_id, value in ((3, flipped), (4, flipped), (7, lambda stored: None), (9, lambda stored: b"short")):
        change(damaged, b"entries", schema.ENTRY_KEY.pack(0, entry_id), value)
    with kit.raw(damaged, write=True) as raw:
        entries = raw(b"entries")
        # Another one's bytes, right in themselves.
        entries[schema.ENTRY_KEY.pack(0, 12)] = entries[schema.ENTRY_KEY.pack(0, 13)]
    report = repaired(damaged, new)
    assert [(loss.first_entry, loss.last_entry) for loss in report.losses] == [(3, 4), (7, 7), (9, 9), (12, 12)]
    assert {loss.ledger_id for loss in report.losses} == {0}
    assert [loss.why for loss in report.losses] == [
        "its crc32c digest does not match its bytes",
        "not found in the file",
        "5 bytes are too few for header and crc32c digest",
        "the stored bytes are those of entry 13",
    ]
    assert report.lost_entries == 5
    assert check(store, report, new) == SHAPE.entries + SHAPE.nodes - 5


@pytest.mark.parametrize("lose", [flipped, lambda sealed: None], ids=["damaged", "missing"])
def test_metadata_that_is_lost(store: Store, lose: Callable[[bytes], bytes | None]) -> None:
    """It is made up: closed where the ledger ended, with the digest and password of its entries."""
    damaged, new = store.copy()
    change(damaged, b"ledgers", schema.LEDGER_KEY.pack(0), lose)
    change(damaged, b"ledgers", schema.LEDGER_KEY.pack(LAST), lose)
    report = repaired(damaged, new)
    assert report.made_up == [0, LAST]
    assert {(loss.what, loss.ledger_id) for loss in report.losses if loss.ledger_id is not None} == {
        ("metadata", 0),
        ("metadata", LAST),
    }
    assert check(store, report, new) == SHAPE.entries + SHAPE.nodes
    with bookstand.open(new) as found:
        metadata = found.ledger_metadata(LAST)
        assert (metadata.state, metadata.last_entry_id) == ("CLOSED", SHAPE.ledgers[LAST] - 1)
        assert (metadata.digest_type, metadata.has_password) == ("crc32c", True)
        assert MADE_UP in metadata.custom_metadata
        assert len(list(found.open_ledger(LAST))) == SHAPE.ledgers[LAST]


def test_a_state_that_is_lost(store: Store) -> None:
    damaged, new = store.copy()
    for ledger_id in (0, LAST):
        change(damaged, b"state", schema.LEDGER_KEY.pack(ledger_id), flipped)
    report = repaired(damaged, new)
    assert [(loss.what, loss.ledger_id) for loss in report.losses] == [("state", 0), ("state", LAST)]
    assert check(store, report, new) == SHAPE.entries + SHAPE.nodes


def test_state_and_metadata_that_are_lost(store: Store) -> None:
    damaged, new = store.copy()
    for database in (b"state", b"ledgers"):
        change(damaged, database, schema.LEDGER_KEY.pack(2), lambda sealed: None)
    report = repaired(damaged, new)
    assert {(loss.what, loss.ledger_id) for loss in report.losses} >= {("metadata", 2), ("state", 2)}
    assert report.made_up == [2]
    assert check(store, report, new) == SHAPE.entries + SHAPE.nodes


def test_the_last_entries_of_an_open_ledger(store: Store) -> None:
    """Nobody could find the end of such a ledger any more, so it is closed where it ended."""
    damaged, new = store.copy()
    last = SHAPE.ledgers[OPEN] - 1
    for entry_id in (last - 1, last):
        change(damaged, b"entries", schema.ENTRY_KEY.pack(OPEN, entry_id), flipped)
    report = repaired(damaged, new)
    assert [loss.what for loss in report.losses] == ["entries", "metadata"]
    assert str(report.losses[1]) == (
        f"metadata of ledger {OPEN}: it was OPEN, and its last entries are lost: it is closed at {last}"
    )
    check(store, report, new)
    with bookstand.open(new) as found:
        assert found.ledger_metadata(OPEN).last_entry_id == last
        assert found.open_ledger(OPEN).last_add_confirmed == last


def test_nodes_that_are_damaged(store: Store) -> None:
    damaged, new = store.copy()
    change(damaged, b"nodes", b"/node/3", flipped)
    report = repaired(damaged, new)
    assert [(loss.what, loss.node) for loss in report.losses] == [("node", "/node/3")]
    assert check(store, report, new) == SHAPE.entries + SHAPE.nodes - 1


def test_nodes_keep_their_versions(tmp_path: Path) -> None:
    with bookstand.open(tmp_path / "store") as before:
        for number in range(4):
            before.nodes.put("/often", b"%d" % number)
    assert repaired(tmp_path / "store", tmp_path / "new").whole
    with bookstand.open(tmp_path / "new") as after:
        assert after.nodes.get("/often") == (b"3", 3)


@pytest.mark.parametrize("name", [*schema.META_SUMS.values(), schema.META_STORE_ID, schema.META_NEXT_LEDGER])
def test_records_of_the_store_about_itself(store: Store, name: bytes) -> None:
    damaged, new = store.copy()
    change(damaged, b"meta", name, flipped)
    report = repaired(damaged, new)
    told = [loss.why for loss in report.losses if loss.what == "store"]
    assert told[0] == f"{sealed_record.describe(b'meta', name)} is damaged"
    assert check(store, report, new) == SHAPE.entries + SHAPE.nodes


# -- passwords and digests ---------------------------------------------------------------------------------------------


def test_a_ledger_with_a_password_that_was_lost(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with bookstand.open(path) as before:
        with before.create_ledger(digest="hmac", password=b"secret") as writer:
            writer.append_many([b"one", b"two", b"three"])
        change_later = writer.id
    change(path, b"ledgers", schema.LEDGER_KEY.pack(change_later), flipped)
    report = repair(path, tmp_path / "without")
    assert report.unchecked == [0]
    assert report.entries == 3
    with bookstand.open(tmp_path / "without") as after:
        # Whoever knows the password gets in, and nobody else.
        assert [entry.data for entry in after.open_ledger(0, password=b"secret", digest="hmac")] == [
            b"one",
            b"two",
            b"three",
        ]
        with pytest.raises(BookstandError):
            list(after.open_ledger(0, password=b"wrong", digest="hmac"))
    change(path, b"state", schema.LEDGER_KEY.pack(0), flipped)
    assert repair(path, tmp_path / "nothing", dry_run=True).entries == 0
    report = repair(path, tmp_path / "with", passwords=[b"other", b"secret"])
    assert (report.unchecked, report.entries) == ([], 3)
    with bookstand.open(tmp_path / "with") as after:
        assert after.ledger_metadata(0).password == b"secret"


def test_entries_behind_gaps(tmp_path: Path) -> None:
    """Ids that a writer chose, and that were never confirmed, are not lost; those that are damaged are."""
    path = tmp_path / "store"
    with bookstand.open(path) as before:
        writer = before.create_ledger_adv(ledger_id=7)
        for entry_id in (0, 1, 2):
            writer.write(entry_id, b"entry %d" % entry_id)
        writer.write_async(10, b"entry 10")
        writer.write_async(12, b"entry 12")
        before.storage.flush()
    assert repaired(path, tmp_path / "whole").whole
    change(path, b"entries", schema.ENTRY_KEY.pack(7, 10), flipped)
    report = repaired(path, tmp_path / "new")
    assert [(loss.first_entry, loss.last_entry) for loss in report.losses] == [(10, 10)]
    with kit.raw(tmp_path / "new") as raw:
        assert raw(b"entries")[schema.ENTRY_KEY.pack(7, 12)].endswith(b"entry 12")


# -- the file ----------------------------------------------------------------------------------------------------------


def metas(image: bytes) -> list[int]:
    """The header pages, the newest first."""
    found = [(parse_meta(image[page * PAGE :]), page) for page in (0, 1)]
    return [page for _, page in sorted(found, reverse=True)]


def test_the_older_header_page_is_lost(store: Store) -> None:
    damaged, new = store.damaged([["write", metas(store.image)[1] * PAGE, "00" * PAGE]])
    report = repaired(damaged, new)
    assert check(store, report, new) == SHAPE.entries + SHAPE.nodes
    # The witness says that this is the last commit.
    assert report.whole
    damaged, new = store.damaged([["write", metas(store.image)[1] * PAGE, "00" * PAGE]])
    (damaged / "witness").unlink()
    report = repaired(damaged, new)
    assert check(store, report, new) == SHAPE.entries + SHAPE.nodes
    assert ["the last commits may be lost" in loss.why for loss in report.losses] == [True]


def test_both_header_pages_are_lost(store: Store) -> None:
    damaged, new = store.damaged([["write", 0, "00" * 2 * PAGE]])
    report = repaired(damaged, new)
    assert check(store, report, new) == SHAPE.entries + SHAPE.nodes
    assert "neither of its meta pages can be read" in report.losses[0].why


def test_the_page_that_all_others_hang_on(store: Store) -> None:
    meta = parse_meta(store.image[metas(store.image)[0] * PAGE :])
    assert meta is not None
    damaged, new = store.damaged([["write", meta.root * PAGE, "00" * PAGE]])
    report = repaired(damaged, new)
    assert check(store, report, new) >= SHAPE.entries + SHAPE.nodes - 1
    assert not report.whole


@pytest.mark.slow
def test_a_header_that_is_lost_of_a_file_with_many_states(tmp_path: Path) -> None:
    """Each state's trees are as large as the file, nearly: they are not gone through for each of them."""
    path = tmp_path / "store"
    with bookstand.open(path, durability="none") as store:
        for _ in range(1_000):
            store.create_ledger()
        # As long as somebody reads, no page is used anew.
        with store.create_ledger() as writer, store.storage.copies(1):
            for number in range(300):
                writer.append(b"x")
                store.nodes.put("/often", b"%d" % number)
    trials.edit(str(path / "data.mdb"), [["write", 0, "00" * 2 * PAGE]])
    with Salvage(str(path / "data.mdb")) as found:
        assert len(list(found._possible_roots())) > 300
        assert found.file.bytes_read < 4 * found.file.bytes
        (often,) = (body for key, (body,) in found.sealed(schema.NODES) if key == b"/often")
        assert often[sealed_record.VERSION.size :] == b"299"
    assert repair(path, tmp_path / "new").entries == 300


def test_a_file_that_was_rolled_back(store: Store) -> None:
    damaged, new = store.damaged([["cut", 0], ["write", 0, store.target.earlier[-3].hex()]])
    report = repaired(damaged, new)
    (loss,) = report.losses
    assert "were witnessed; all after" in loss.why


@pytest.mark.parametrize("content", [b"", b"no store at all\n", bytes(10 * PAGE), os.urandom(5 * PAGE)])
def test_nothing_that_could_be_saved(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "data.mdb").write_bytes(content)
    with pytest.raises(NothingToSaveError, match=r"store/data\.mdb can be saved"):
        repair(tmp_path / "store", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_file_of_another_program(tmp_path: Path) -> None:
    environment = lmdb.open(str(tmp_path / "other"), max_dbs=2, lib_version=0)
    with environment.begin(write=True, db=environment.open_db(b"theirs")) as transaction:
        transaction.put(b"key", b"value")
    environment.close()
    with pytest.raises(NotAStoreError, match="of another program"):
        repair(tmp_path / "other", tmp_path / "new")


def test_a_newer_format(store: Store) -> None:
    from tests.tools.kit import make_newer

    damaged, new = store.copy()
    make_newer(damaged)
    with pytest.raises(StoreFormatError, match=f"format {schema.FORMAT_VERSION + 1}"):
        repair(damaged, new)
    assert not new.exists()


# -- what no tree leads to ---------------------------------------------------------------------------------------------


def root_of(path: Path, name: bytes) -> int:
    with Salvage(str(path / "data.mdb")) as found:
        return found.trees[name].root


def zero_page(path: Path, page: int) -> None:
    trials.edit(str(path / "data.mdb"), [["write", page * PAGE, "00" * PAGE]])


def test_entries_are_found_where_nothing_leads_to_them(store: Store) -> None:
    """The page that all others of a tree hang on has no records itself."""
    damaged, new = store.copy()
    zero_page(damaged, root_of(damaged, b"entries"))
    report = repaired(damaged, new)
    assert check(store, report, new) == SHAPE.entries + SHAPE.nodes
    assert report.found_elsewhere == SHAPE.entries
    assert report.whole


@pytest.mark.parametrize("name", [b"nodes", b"ledgers", b"state", b"meta"])
def test_pages_of_which_there_is_no_other(store: Store, name: bytes) -> None:
    """What was on them is lost, and the list says so."""
    damaged, new = store.copy()
    (damaged / "witness").unlink()
    with bookstand.open(damaged) as opened:
        opened.compact()
    zero_page(damaged, root_of(damaged, name))
    report = repaired(damaged, new)
    lost_nodes = SHAPE.nodes if name == b"nodes" else 0
    assert check(store, report, new) == SHAPE.entries + SHAPE.nodes - lost_nodes
    assert any(f"{name.decode()}: page" in str(loss) for loss in report.losses)


@pytest.mark.long
def test_what_is_found_elsewhere_takes_little_memory(tmp_path: Path) -> None:
    """Of each entry its key, and where it is."""
    path, count = tmp_path / "store", 60_000
    with bookstand.open(path, durability="none") as store, store.create_ledger() as writer:
        writer.append_many([b""] * count)
    zero_page(path, root_of(path, b"entries"))
    tracemalloc.start()
    try:
        with Salvage(str(path / "data.mdb")) as found:
            entries = sum(1 for one in found.records(schema.ENTRIES) if one.elsewhere)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert entries == count
    assert peak < 60 * count


def test_places_by_ascending_keys() -> None:
    chance = random.Random(3)
    expected = sorted(
        (chance.choice([b"", b"\0", b"\0\0"]) + bytes(chance.choices(b"\0a\xff", k=chance.randrange(4))), page, place)
        for page in range(200)
        for place in range(3)
    )
    places = RecordIndex()
    for key, page, place in expected[::-1]:
        places.add(key, page, place)
    places.sort()
    assert list(places) == expected


def test_records_that_are_gone_without_a_trace(store: Store) -> None:
    damaged, new = store.copy()
    change(damaged, b"nodes", b"/node/3", lambda sealed: None)
    report = repaired(damaged, new)
    assert [str(loss) for loss in report.losses] == [
        "nodes holds outdated pages: the XOR of its checksums is not the recorded one"
    ]


def test_an_end_that_only_damaged_entries_tell(store: Store) -> None:
    damaged, new = store.copy()
    last = SHAPE.ledgers[OPEN] - 1
    change(damaged, b"state", schema.LEDGER_KEY.pack(OPEN), flipped)
    for entry_id in range(last - 3, last):
        change(damaged, b"entries", schema.ENTRY_KEY.pack(OPEN, entry_id), lambda stored: None)
    change(damaged, b"entries", schema.ENTRY_KEY.pack(OPEN, last), flipped)
    report = repaired(damaged, new)
    assert report.lost_entries == 4
    check(store, report, new)


# -- random damage -----------------------------------------------------------------------------------------------------


@st.composite
def damages(draw: st.DrawFn, pages: int) -> Damage:
    edits: Damage = []
    for _ in range(draw(st.integers(1, 5))):
        page = draw(st.integers(0, pages - 1))
        start = page * PAGE + draw(st.integers(0, PAGE - 1))
        kind = draw(st.sampled_from(["bytes", "zeros", "copy", "header"]))
        if kind == "bytes":
            edits.append(["write", start, draw(st.binary(min_size=1, max_size=24)).hex()])
        elif kind == "zeros":
            edits.append(["write", start, "00" * draw(st.integers(1, 2 * PAGE))])
        elif kind == "copy":
            edits.append(["copy", page, draw(st.integers(0, pages - 1))])
        else:
            edits.append(
                ["write", page * PAGE + draw(st.integers(0, 15)), draw(st.binary(min_size=1, max_size=8)).hex()]
            )
    if draw(st.integers(0, 4)) == 0:
        edits.append(["cut", draw(st.integers(0, pages * PAGE))])
    return edits


def test_a_damaged_entry_of_a_ledger_whose_state_is_lost_reads_as_lost() -> None:
    """Its id is below that of the last valid entry, so it was stored, whatever the last-add-confirmed is."""
    from tests.soak import repairs

    assert repairs.one_round(599194609).problems == []


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_random_damage(store: Store, data: st.DataObject) -> None:
    damaged, new = store.damaged(data.draw(damages(store.target.pages)))
    try:
        report = repaired(damaged, new)
    except (NothingToSaveError, StoreFormatError):
        assert not new.exists()
    else:
        check(store, report, new)
        shutil.rmtree(new)
    shutil.rmtree(damaged)


# -- places, and being stopped -----------------------------------------------------------------------------------------


def test_places(store: Store) -> None:
    damaged, new = store.copy()
    with pytest.raises(StoreNotFoundError, match="there is no store at"):
        repair(damaged / "nowhere", new)
    with pytest.raises(IncorrectParameterError, match="is inside the store"):
        repair(damaged, damaged / "new")
    new.mkdir()
    (new / "mine").touch()
    with pytest.raises(IncorrectParameterError, match="exists already and is not an empty folder"):
        repair(damaged, new)
    (new / "mine").unlink()
    unfinished = new / UNFINISHED
    unfinished.mkdir()
    (unfinished / "mine").touch()
    with pytest.raises(NotAStoreError, match="was not left by a repair"):
        repair(damaged, new)
    (unfinished / "mine").unlink()
    assert repair(damaged, new).whole
    assert not unfinished.exists()


@pytest.mark.parametrize("link", [False, True], ids=["folder", "link"])
def test_a_folder_that_is_there_stays_the_same(store: Store, link: bool) -> None:
    """It may be a disk that is mounted there, or a link to one: another folder could not take its place."""
    damaged, new = store.copy()
    folder = Path(f"{new}-disk") if link else new
    folder.mkdir()
    if link:
        new.symlink_to(folder)
    before = folder.stat().st_ino
    assert check(store, repaired(damaged, new), new) == SHAPE.entries + SHAPE.nodes
    assert (folder.stat().st_ino, new.is_symlink()) == (before, link)
    assert set(os.listdir(new)) <= {"data.mdb", "lock.mdb"}


def test_a_store_beside_the_new_one_is_left_alone(store: Store) -> None:
    damaged, new = store.copy()
    beside = Path(f"{new}.unfinished")
    shutil.copytree(store.path, beside)
    assert repaired(damaged, new).whole
    assert contents(beside) == contents(store.path)


def test_a_new_store_that_cannot_get_its_name_stays(store: Store) -> None:
    damaged, new = store.copy()

    def get_in_the_way(done: int, total: int) -> None:
        (new / "data.mdb").mkdir(exist_ok=True)

    with pytest.raises(StoreError, match=f"is complete in {new}/{UNFINISHED}, but cannot be moved to {new}: "):
        repair(damaged, new, saving=get_in_the_way)
    assert contents(new / UNFINISHED) == contents(store.path)


def test_a_store_that_is_written_to(store: Store) -> None:
    damaged, new = store.copy()
    with bookstand.open(damaged), pytest.raises(StoreInUseError, match="is being written to"):
        repair(damaged, new)


KILLED = """
import os, signal, sys
from bookstand.storage.repair import repair, rebuild as repair_copying

repair_copying._COMMIT_STEPS = 4

def progress(done, total):
    if done > total // 20:
        os.kill(os.getpid(), signal.SIGKILL)

repair.repair(sys.argv[1], sys.argv[2], saving=progress)
"""


def test_a_repair_that_is_killed_says_that_it_is_unfinished(store: Store) -> None:
    damaged, new = store.copy()
    done = subprocess.run([sys.executable, "-c", KILLED, str(damaged), str(new)], timeout=PATIENCE)
    assert done.returncode == -9
    assert (new / UNFINISHED / "data.mdb").exists()
    with pytest.raises(NotAStoreError, match=f"holds other files .{UNFINISHED}, .* and no store"):
        bookstand.open(new)
    report = repaired(damaged, new)
    assert report.whole
    assert check(store, report, new) == SHAPE.entries + SHAPE.nodes


def test_a_repair_that_is_interrupted_leaves_nothing(store: Store) -> None:
    damaged, new = store.copy()

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repair(damaged, new, saving=interrupt)
    assert not new.exists()


def test_progress_of_each_part(store: Store) -> None:
    damaged, new = store.copy()
    told: dict[str, list[tuple[int, int]]] = {"looking": [], "saving": [], "verifying": []}
    parts = {name: lambda done, total, some=some: some.append((done, total)) for name, some in told.items()}
    repair(damaged, new, **parts)
    size = (damaged / "data.mdb").stat().st_size
    for some in told.values():
        assert some == sorted(some)
        assert {total for _, total in some} == {size}
    assert told["verifying"][-1] == told["saving"][-1]


def test_losses_in_words() -> None:
    assert str(Loss("entries", "gone", 3, 5, 5)) == "entry 3:5: gone"
    assert str(Loss("entries", "gone", 3, 5, 9)) == "entries 3:5 to 3:9: gone"
    assert str(Loss("entries", "2 more", 3)) == "entries of ledger 3: 2 more"
    assert str(Loss("node", "gone", node="/a")) == "node /a: gone"
    assert str(Loss("store", "all is gone")) == "all is gone"


def test_entries_without_a_digest_tell_no_end(tmp_path: Path) -> None:
    """What they say was confirmed may be damaged: it is not taken for the end of the ledger."""
    path = tmp_path / "store"
    with bookstand.open(path) as before, before.create_ledger(digest="dummy") as writer:
        for number in range(5):
            writer.append(b"%d" % number)

    def confirm_much(stored: bytes) -> bytes:
        return stored[:16] + (1 << 60).to_bytes(8, "big") + stored[24:]

    change(path, b"entries", schema.ENTRY_KEY.pack(0, 3), confirm_much)
    report = repair(path, tmp_path / "new")
    assert (report.entries, report.lost_entries) == (5, 0)
    with bookstand.open(tmp_path / "new") as after:
        assert [entry.data for entry in after.open_ledger(0)] == [b"0", b"1", b"2", b"3", b"4"]


def test_keys_of_breaks() -> None:
    breaks = [
        TreeGap(b"c", b"e", 1, ""),
        TreeGap(b"a", b"b", 2, ""),
        TreeGap(b"d", b"f", 3, ""),
        TreeGap(b"x", None, 4, ""),
    ]
    spans = KeyRanges(breaks)
    assert [key for key in (b"", b"a", b"b", b"bb", b"c", b"e", b"ee", b"f", b"w", b"x", b"zz") if key in spans] == [
        b"a",
        b"c",
        b"e",
        b"ee",
        b"x",
        b"zz",
    ]
    assert b"y" in KeyRanges([TreeGap(b"", None, 1, ""), TreeGap(b"x", b"xx", 2, "")])
    assert b"a" not in KeyRanges([])


@pytest.mark.parametrize("page", range(2, 12))
def test_a_page_that_leads_back_to_those_above_it(store: Store, page: int) -> None:
    """It ends, and no key comes twice."""
    meta = parse_meta(store.image[metas(store.image)[0] * PAGE :])
    assert meta is not None
    damaged, new = store.damaged([["copy", meta.root, page], ["write", page * PAGE, page.to_bytes(8, "little").hex()]])
    check(store, repaired(damaged, new), new)
