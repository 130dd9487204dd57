"""Copies of entries on the disks of several bookies, against a plain dict of them; and what the catalog says of copies
that differ, of files that change under it, and of what is no entry."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.disk.bookies.copy_catalog import Catalog
from bookstand.disk.bookies.discovery import find_bookies
from bookstand.disk.bookies.disk_ledger import DiskLedger
from bookstand.disk.bookies.external_sort import ExternalSorter
from bookstand.disk.damage import Damage
from bookstand.disk.format.entry_block import GOOD, UNCHECKED, Digests, KnownDigests, TryAllDigests
from bookstand.errors import DiskFullError, IllegalOperationError
from bookstand.storage.format.digest import digest_for, master_key
from bookstand.storage.format.entry_codec import encode
from bookstand.storage.format.ledger_metadata import LedgerMetadata
from tests.disk.catalog_memory import generate, measured_apart
from tests.disk.made import Bookie, entries, explicit_lac, fence, ledger_key

UNHURRIED = settings(deadline=None, max_examples=80)

CRC32C = digest_for("crc32c", b"")
DUMMY = digest_for("dummy", b"")
HMAC = digest_for("hmac", b"secret")


def build(disks: Path, digests: Digests | None = None, **more) -> tuple[Catalog, list[Damage]]:
    damage: list[Damage] = []
    # That a folder is missing is what some of these tests are about.
    bookies = find_bookies([disks], lambda missing: None)
    return Catalog.build(bookies, digests or TryAllDigests(), damage.append, **more), damage


def payloads(catalog: Catalog, ledger_id: int) -> list[bytes]:
    return [stored[36:] for stored in catalog.read(catalog.best(ledger_id))]


# -- a model ---------------------------------------------------------------------------------------------------------


class Write(NamedTuple):
    """An entry written to some bookies: to the journal or the log with this number, with this LAC."""

    ledger: int
    entry: int
    lac: int
    kind: str
    file: int
    bookies: frozenset[int]


WRITE = st.builds(
    Write,
    st.sampled_from([0, 1, 1 << 40]),
    st.integers(0, 9),
    st.integers(-1, 9),
    st.sampled_from(["log", "journal"]),
    st.integers(0, 2),
    st.frozensets(st.integers(0, 2), min_size=1),
)
ABOUT = st.one_of(
    st.none(),
    st.builds(lambda ack: ("OPEN", ack, None, None), st.integers(1, 3)),
    st.builds(lambda ack, last: ("CLOSED", ack, last, 10 * (last + 1)), st.integers(1, 3), st.integers(-1, 9)),
)


def payload(ledger: int, entry: int) -> bytes:
    return f"{ledger % 7}:{entry:08}".encode()


def stored_bytes(write: Write) -> bytes:
    """Whatever the LAC, the payload is the same: as where recovery writes it again."""
    lac = min(write.lac, write.entry - 1)
    return encode(CRC32C, write.ledger, write.entry, lac, 10 * (write.entry + 1), payload(write.ledger, write.entry))


@pytest.fixture(scope="module")
def places() -> Iterator[Path]:
    folder = Path("/dev/shm" if os.path.isdir("/dev/shm") else "/var/tmp") / f"catalog-{os.getpid()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@UNHURRIED
@given(st.lists(WRITE, max_size=60), st.sets(st.integers(0, 8), max_size=4), ABOUT)
def test_it_is_what_was_written(places: Path, writes: list[Write], lost: set[int], about) -> None:
    """``lost``: files that are gone, by number."""
    folder = places / "disks"
    files: dict[tuple[str, int, int], list[bytes]] = {}
    for write in writes:
        for bookie in write.bookies:
            files.setdefault((write.kind, write.file, bookie), []).append(stored_bytes(write))
    kept = {key: records for number, (key, records) in enumerate(sorted(files.items())) if number not in lost}
    # (ledger, entry) -> [(kind, file, bookie, place in the file, what is stored)]
    model: dict[tuple[int, int], list[tuple[bool, int, int, int, bytes]]] = {}
    for (kind, file, bookie), records in kept.items():
        for place, record in enumerate(records):
            key = int.from_bytes(record[:8]), int.from_bytes(record[8:16])
            model.setdefault(key, []).append((kind == "journal", file, bookie, place, record))
    for number in range(3):
        made = Bookie(folder, f"b{number}")
        made.log(9, [])
        for (kind, file, bookie), records in kept.items():
            if bookie == number:
                (made.log if kind == "log" else made.journal)(file, records)
    try:
        catalog, damage = build(folder)
        with catalog:
            assert not damage
            assert catalog.ledger_ids == sorted({ledger for ledger, _ in model})
            for ledger in catalog.ledger_ids:
                check_ledger(
                    catalog, ledger, {entry: model[key] for key in model if key[0] == ledger for entry in key[1:]}
                )
                check_extent(catalog, ledger, {key[1]: model[key] for key in model if key[0] == ledger}, about)
    finally:
        shutil.rmtree(folder)


def check_ledger(catalog: Catalog, ledger: int, model: dict) -> None:
    expected = [(entry, copy) for entry in sorted(model) for copy in sorted(model[entry], reverse=True)]
    copies = catalog.copies(ledger)
    found = list(zip(copies.entry_ids.tolist(), catalog.read(copies), strict=True))
    assert found == [(entry, copy[-1]) for entry, copy in expected]
    assert [catalog.files[file].bookie for file in copies.files.tolist()] == [copy[2] for _, copy in expected]
    assert (copies.verdicts == GOOD).all()
    best = catalog.best(ledger, 2, 7)
    assert list(zip(best.entry_ids.tolist(), catalog.read(best), strict=True)) == [
        (entry, max(model[entry])[-1]) for entry in sorted(model) if 2 <= entry <= 7
    ]
    holders = {entry: len({copy[2] for copy in model[entry]}) for entry in model}
    for rows in (1, 3, 1000):
        blocks = list(catalog.blocks(ledger, rows=rows))
        assert np.concatenate([block.offsets for block in blocks]).tolist() == copies.offsets.tolist()
        counted = {}
        for block in blocks:
            counted |= dict(zip(block.entry_ids[block.firsts()].tolist(), catalog.holders(block).tolist(), strict=True))
        assert counted == holders
        assert sum(int(block.firsts().sum()) for block in blocks) == len(model)


def check_extent(catalog: Catalog, ledger: int, model: dict, about) -> None:
    metadata = None
    if about is not None:
        state, ack, last, length = about
        metadata = LedgerMetadata(
            ledger,
            ensemble_size=3,
            write_quorum_size=3,
            ack_quorum_size=ack,
            ensembles=[(0, ("b0", "b1", "b2"))],
            state=state,
            last_entry_id=last,
            length=length,
        )
    damage: list[Damage] = []
    found = DiskLedger(ledger, metadata, catalog, damage.append)
    extent = found.extent
    ack = 1 if metadata is None else metadata.ack_quorum_size
    enough = gapless = -1
    while gapless + 1 in model:
        gapless += 1
    while enough + 1 in model and len({copy[2] for copy in model[enough + 1]}) >= ack:
        enough += 1
    lac = max(int.from_bytes(copy[-1][16:24], signed=True) for copies in model.values() for copy in copies)
    end = lac
    while end + 1 in model:
        end += 1
    end = max(gapless, end) if about is None or about[0] == "OPEN" else about[2]
    assert (extent.last_entry, extent.enough, extent.gapless, extent.highest) == (end, enough, gapless, max(model))
    assert extent.lac == (about[2] if about is not None and about[0] == "CLOSED" else lac)
    for beyond in (False, True):
        assert [
            (entry.entry_id, entry.payload, entry.stored, entry.checked) for entry in found.entries(beyond=beyond)
        ] == [
            (entry, payload(ledger, entry), max(model[entry])[-1], True)
            for entry in sorted(model)
            if beyond or entry <= end
        ]
    assert not damage


# -- copies that differ ----------------------------------------------------------------------------------------------


def test_copies_that_differ_in_their_header_only_are_no_damage(tmp_path: Path) -> None:
    first = entries(CRC32C, 1, [b"one", b"two"], lac=-1)
    again = entries(CRC32C, 1, [b"one", b"two"])
    Bookie(tmp_path, "b0").log(0, first)
    Bookie(tmp_path, "b0").log(1, again)
    catalog, damage = build(tmp_path)
    with catalog:
        assert list(catalog.read(catalog.best(1))) == again
        assert list(catalog.read(catalog.copies(1))) == [again[0], first[0], again[1], first[1]]
    assert not damage


@pytest.mark.parametrize("digest", [CRC32C, HMAC, DUMMY])
def test_payloads_that_differ_are_reported_and_the_latest_counts(tmp_path: Path, digest) -> None:
    old, new = (entries(digest, 1, [b"same" * 9, b"beginning " + what * 9, b"same"]) for what in (b"some", b"thin"))
    Bookie(tmp_path, "b0").log(0, old)
    Bookie(tmp_path, "b0").log(1, new)
    catalog, damage = build(tmp_path)
    with catalog:
        assert list(catalog.read(catalog.best(1))) == new
    (found,) = damage
    assert (found.ledger_id, found.entry_id) == (1, 1)
    assert found.file.endswith("0.log")
    assert found.offset == 1024 + 4 + len(old[0]), "where its record begins"
    assert "1.log" in found.what
    assert ("digests of both are right" in found.what) == (digest is CRC32C)


def test_a_right_digest_counts_more_than_a_later_copy(tmp_path: Path) -> None:
    good = entries(CRC32C, 1, [b"one", b"two"])
    Bookie(tmp_path, "b0").log(0, good)
    Bookie(tmp_path, "b1").log(1, [good[0], good[1][:-1] + b"x"])
    for digests in (TryAllDigests(), KnownDigests({1: ("crc32c", b"")})):
        catalog, damage = build(tmp_path, digests)
        with catalog:
            assert list(catalog.read(catalog.best(1))) == good
            assert len(catalog.copies(1)) == 3
        assert [(found.ledger_id, found.entry_id) for found in damage] == [(1, 1)]


def test_what_matches_no_digest_is_left_out_where_others_do(tmp_path: Path) -> None:
    made = entries(CRC32C, 1, [b"one", b"two", b"three"])
    flipped = [made[0], made[1][:-1] + b"x", made[2]]
    log = Bookie(tmp_path, "b0").log(0, [*flipped, *entries(CRC32C, 2, [b"one"])])
    catalog, damage = build(tmp_path)
    with catalog:
        assert list(catalog.read(catalog.best(1))) == [made[0], made[2]]
        assert [len(block) for block in catalog.blocks(1)] == [2]
        extent = DiskLedger(1, None, catalog, damage.append).extent
        # The third entry says that the second was acknowledged.
        assert (extent.last_entry, extent.gapless) == (2, 0)
        assert extent.missing == [(1, 1)]
    (found,) = damage
    assert (found.file, found.ledger_id, found.entry_id) == (str(log), 1, 1)
    assert "matches no digest" in found.what


def test_ledgers_that_are_merged_in_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "bookstand.disk.bookies.copy_catalog.ExternalSorter", partial(ExternalSorter, run_rows=700, merged_rows=256)
    )
    made = {ledger: entries(CRC32C, ledger, [b"%d" % ledger] * 1300) for ledger in (1, 2, 5)}
    flipped = made[5][700][:-1] + b"x"
    first, second = ([entry for ledger in made for entry in made[ledger][part::2]] for part in (0, 1))
    Bookie(tmp_path, "b0").log(0, first)
    Bookie(tmp_path, "b0").log(1, [*second, flipped, *made[1][:3]])
    catalog, damage = build(tmp_path)
    with catalog:
        assert catalog.ledger_ids == [1, 2, 5]
        for ledger, stored in made.items():
            assert list(catalog.read(catalog.best(ledger))) == stored
        assert len(catalog.copies(1)) == 1303
    assert [(found.ledger_id, found.entry_id) for found in damage] == [(5, 700)]


# -- digests ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_checked_is_there_and_its_digest_told_by_lengths(tmp_path: Path) -> None:
    texts = [b"a" * 30, b"", b"b" * 25]
    made = {1: DUMMY, 2: HMAC, 3: CRC32C, 4: digest_for("crc32", b"")}
    Bookie(tmp_path, "b0").log(
        0, [entry for ledger, digest in made.items() for entry in entries(digest, ledger, texts)]
    )
    with build(tmp_path)[0] as catalog:
        for ledger, digest in made.items():
            found = DiskLedger(ledger, None, catalog, lambda damage: pytest.fail(str(damage)))
            assert found.digest_name == digest.name
            assert [entry.payload for entry in found.entries()] == texts
            assert {entry.checked for entry in found.entries()} == {digest.name.startswith("crc")}
        assert set(catalog.copies(2).verdicts.tolist()) == {UNCHECKED}
    with build(tmp_path, TryAllDigests([b"secret"]))[0] as catalog:
        found = DiskLedger(2, None, catalog, lambda damage: pytest.fail(str(damage)), [b"other", b"secret"])
        assert [(entry.payload, entry.checked) for entry in found.entries()] == [(text, True) for text in texts]


# -- several folders -------------------------------------------------------------------------------------------------


def test_folders_with_equal_ids(tmp_path: Path) -> None:
    bookie = Bookie(tmp_path, "b0")
    bookie.log(0, entries(CRC32C, 2, [b"even"]), "ledgers-0")
    bookie.log(0, entries(CRC32C, 1, [b"odd"]), "ledgers-1")
    bookie.journal(7, [ledger_key(2, master_key(b"")), *entries(CRC32C, 2, [b"more"], first=1)], "journal-0")
    bookie.journal(7, [fence(1), *entries(CRC32C, 1, [b"more"], first=1)], "journal-1")
    catalog, _ = build(tmp_path)
    with catalog:
        assert len(catalog.files) == 4
        assert payloads(catalog, 1) == [b"odd", b"more"]
        assert payloads(catalog, 2) == [b"even", b"more"]
        assert catalog.master_keys == {2: master_key(b"")}
        assert catalog.fenced == {1: (0,)}


def test_what_journals_say_apart_from_entries(tmp_path: Path) -> None:
    Bookie(tmp_path, "b0").journal(1, [ledger_key(5, b"k" * 20), explicit_lac(CRC32C, 5, 3), fence(5)])
    Bookie(tmp_path, "b0").journal(2, [explicit_lac(CRC32C, 5, 2)])
    Bookie(tmp_path, "b1").journal(1, [fence(5), ledger_key(5, b"l" * 20)])
    catalog, damage = build(tmp_path)
    with catalog:
        assert catalog.ledger_ids == []
        assert catalog.fenced == {5: (0, 1)}
        assert catalog.explicit_lacs == {5: 3}
        assert catalog.master_keys == {5: b"k" * 20}
    assert ["master key" in found.what for found in damage if found.ledger_id == 5] == [True]


# -- files that change, folders that are full ------------------------------------------------------------------------


def test_a_copy_that_changes_is_reported_and_the_next_one_read(tmp_path: Path) -> None:
    made = entries(CRC32C, 1, [b"one", b"two", b"three"])
    log = Bookie(tmp_path, "b0").log(0, made)
    journal = Bookie(tmp_path, "b0").journal(1, made)
    catalog, _ = build(tmp_path)
    with catalog:
        data = bytearray(journal.read_bytes())
        data[data.index(b"two")] ^= 1
        journal.write_bytes(data)
        damage: list[Damage] = []
        found = DiskLedger(1, None, catalog, damage.append)
        assert [entry.stored for entry in found.entries()] == made
        assert [(said.file, said.ledger_id, said.entry_id) for said in damage] == [(str(journal), 1, 1)]
        log.write_bytes(b"")
        journal.unlink()
        damage.clear()
    with catalog.__class__.build(catalog.bookies, TryAllDigests(), damage.append) as gone:
        assert gone.ledger_ids == []
    assert [found.file for found in damage if "opened" in found.what] == [str(journal)]


def test_entries_of_all_sizes_are_read_in_their_order(tmp_path: Path) -> None:
    sizes = [0, 5 << 20, 1, 9 << 20, *range(0, 4000, 3), 6 << 20]
    made = entries(CRC32C, 1, [bytes([size % 251]) * size for size in sizes])
    Bookie(tmp_path, "b0").log(0, reversed(made))
    with build(tmp_path)[0] as catalog:
        assert list(catalog.read(catalog.best(1))) == made
        assert list(catalog.read(catalog.best(1, 2, 4))) == made[2:5]
        assert not len(catalog.best(1, 5, 4))
        assert not len(catalog.best(2))


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    Bookie(tmp_path / "disks", "b0").log(0, entries(CRC32C, 1, [b"one"]))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    catalog, _ = build(tmp_path / "disks", folder=temporary)
    assert list(temporary.iterdir()) == []
    opened = set(os.listdir("/proc/self/fd"))
    catalog.close()
    assert len(set(os.listdir("/proc/self/fd"))) < len(opened)
    for question in (lambda: catalog.ledger_ids, lambda: catalog.copies(1), lambda: list(catalog.blocks(1))):
        with pytest.raises(IllegalOperationError, match="closed"):
            question()


def test_an_error_while_building_leaves_nothing_open(tmp_path: Path) -> None:
    Bookie(tmp_path, "b0").log(0, entries(CRC32C, 1, [b"one"]))

    def stop(done: int, of: int) -> None:
        raise KeyboardInterrupt

    gc.collect()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, progress=stop)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_full_folder_is_named(tmp_path: Path, small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes((3 << 20) - (64 << 10)))
    Bookie(tmp_path / "disks", "b0").log(0, entries(CRC32C, 1, [b""] * 3000))
    with pytest.raises(DiskFullError, match="small: no space left"):
        build(tmp_path / "disks", folder=small_disk)


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    log = Bookie(tmp_path, "b0").log(0, entries(CRC32C, 1, [b"one"]))
    Bookie(tmp_path, "b0").log(1, entries(CRC32C, 2, [b"one"]))
    told: list[tuple[int, int]] = []
    build(tmp_path, progress=lambda done, of: told.append((done, of)))[0].close()
    assert told == sorted(told)
    assert told[-1] == (2 * log.stat().st_size, 2 * log.stat().st_size)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the system does not tell a process's memory")
def test_memory_does_not_grow_with_the_disk(places: Path) -> None:
    folder = places / "large"
    made = generate(folder, 64, 250)
    measured = measured_apart(folder, made)
    shutil.rmtree(folder)
    assert measured["entries"] == made
    assert measured["private_mib"] < 48
