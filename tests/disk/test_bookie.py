"""What lies where on recorded disks, and on such as lost or gained files."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookstand.disk.bookies.discovery import BookieDisk, LastMark, find_bookies, read_cookie, read_index, read_last_mark
from bookstand.disk.damage import Damage
from bookstand.errors import IncorrectParameterError, MalformedError, StoreAccessError
from bookstand.ledger.cluster.cookie import Cookie, parse
from bookstand.storage.format.digest import master_key
from tests.disk.recordings import RECORDINGS, truth

Unpacked = Callable[[str], Path]

# By recording: the bookies, and of each its journal folders, its ledger folders, and the numbers of its logs.
LAYOUT = {
    "a": {"bookie-0": (["journal"], ["ledgers-0", "ledgers-1"], [0, 1, 2, 0, 1])},
    "b": {"bookie-0": (["journal"], ["ledgers"], [0, 1, 3, 4])},
    "c": {"bookie-0": (["journal-0", "journal-1"], ["ledgers"], [0, 1, 2, 3, 4, 5])},
    "d": {
        "bookie-0": (["journal"], ["ledgers"], [0, 1, 2]),
        "bookie-1": (["journal"], ["ledgers"], [0, 1, 2]),
        "bookie-2": (["journal"], ["ledgers"], [0, 1, 2, 3, 4]),
    },
    "e": {"bookie-0": (["journal"], ["ledgers"], list(range(10)))},
    "f": {name: (["journal"], ["ledgers"], []) for name in ("bookie-0", "bookie-1", "bookie-2")},
}


def found(*paths: Path | str) -> tuple[list[BookieDisk], list[Damage]]:
    damage: list[Damage] = []
    return find_bookies(paths, damage.append), damage


@pytest.fixture
def disk(unpacked: Unpacked, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a recording, to be changed."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(unpacked(name), tmp_path / name))

    return copy


# -- recorded disks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_bookies(unpacked: Unpacked, name: str) -> None:
    bookies, damage = found(unpacked(name))
    assert damage == []
    assert [bookie.name for bookie in bookies] == list(LAYOUT[name])
    for bookie in bookies:
        journals, ledgers, logs = LAYOUT[name][bookie.name]
        assert bookie.folder == unpacked(name) / bookie.name
        assert bookie.journal_folders == [bookie.folder / folder for folder in journals]
        assert bookie.ledger_folders == [bookie.folder / folder for folder in ledgers]
        assert [int(path.stem, 16) for path in bookie.entry_logs] == logs
        assert all(path.parent.parent in bookie.ledger_folders for path in bookie.entry_logs)
        assert bookie.cookie is not None
        assert bookie.cookie.bookie == bookie.name
        assert [Path(folder).name for folder in bookie.cookie.journal_folders] == journals
        assert [Path(folder).name for folder in bookie.cookie.ledger_folders] == ledgers
        on_disk = sorted(path for folder in bookie.journal_folders for path in folder.rglob("*.txn"))
        assert sorted(bookie.journals) == on_disk
        for folder in bookie.journal_folders:
            ids = [int(path.stem, 16) for path in bookie.journals if path.parent.parent == folder]
            assert ids == sorted(ids)
        assert list(bookie.marks) == list(range(len(journals)))
        for number, mark in bookie.marks.items():
            assert mark.offset >= 0
            journal = bookie.journal_folders[number] / "current" / f"{mark.journal_id:x}.txn"
            assert not mark.journal_id or journal in bookie.journals


def test_marks_of_two_journals_are_told_apart(unpacked: Unpacked) -> None:
    (bookie,), _ = found(unpacked("c"))
    assert bookie.marks == {0: LastMark(0x1A1EDD6B8F1, 0xF7C00), 1: LastMark(0x1A1EDD6B8F0, 0xF5600)}


def test_the_largest_mark_of_all_ledger_folders_counts(disk: Callable[[str], Path]) -> None:
    root = disk("a")
    (before,), _ = found(root)
    smaller = struct.pack(">qq", before.marks[0].journal_id - 1, 1 << 40)
    (root / "bookie-0/ledgers-1/current/lastMark").write_bytes(smaller)
    (after,), damage = found(root)
    assert after.marks == before.marks
    assert damage == []


def test_a_mark_from_before_there_were_several_journals_does_not_hide_a_later_one(disk: Callable[[str], Path]) -> None:
    root = disk("c")
    (before,), _ = found(root)
    for mark in (LastMark(0, 0), before.marks[0]._replace(offset=0)):
        (root / "bookie-0/ledgers/current/lastMark").write_bytes(struct.pack(">qq", *mark))
        (after,), damage = found(root)
        assert after.marks == before.marks
        assert damage == []
    newer = before.marks[0]._replace(offset=1 << 40)
    (root / "bookie-0/ledgers/current/lastMark").write_bytes(struct.pack(">qq", *newer))
    (after,), _ = found(root)
    assert after.marks[0] == newer


@pytest.mark.parametrize(
    "of",
    [
        lambda root: [root],
        lambda root: [root.parent],
        lambda root: [root / "bookie-0", root / "bookie-1", root / "bookie-2"],
        lambda root: sorted(root.glob("*/*")),
        lambda root: sorted(root.glob("*/*/current"), reverse=True),
        lambda root: [root, root / "bookie-1" / "ledgers", root / "bookie-1/ledgers/current", root],
        lambda root: [str(root / "bookie-0" / ".." / "bookie-1" / "..")],
    ],
)
def test_every_way_to_give_the_paths(disk: Callable[[str], Path], of: Callable[[Path], list[Path]]) -> None:
    root = disk("d")
    expected, _ = found(root)
    bookies, damage = found(*of(root))
    assert bookies == expected
    assert damage == []


def test_folders_on_several_disks_are_grouped_by_their_cookies(disk: Callable[[str], Path], tmp_path: Path) -> None:
    root = disk("d")
    for bookie in sorted(root.iterdir()):
        for kind in ("journal", "ledgers"):
            (tmp_path / kind).mkdir(exist_ok=True)
            (bookie / kind).rename(tmp_path / kind / bookie.name)
    bookies, damage = found(tmp_path / "ledgers", tmp_path / "journal")
    assert [bookie.name for bookie in bookies] == ["bookie-0", "bookie-1", "bookie-2"]
    assert [bookie.journal_folders for bookie in bookies] == [
        [tmp_path / "journal" / bookie.name] for bookie in bookies
    ]
    assert [bookie.ledger_folders for bookie in bookies] == [[tmp_path / "ledgers" / bookie.name] for bookie in bookies]
    assert damage == []


def test_one_folder_for_journal_and_ledgers(disk: Callable[[str], Path]) -> None:
    root = disk("b")
    for path in (root / "bookie-0/journal/current").glob("*.txn"):
        path.rename(root / "bookie-0/ledgers/current" / path.name)
    shutil.rmtree(root / "bookie-0/journal")
    version = root / "bookie-0/ledgers/current/VERSION"
    version.write_text(version.read_text().replace("bookie-0/journal", "bookie-0/ledgers"))
    (bookie,), damage = found(root)
    assert bookie.journal_folders == bookie.ledger_folders == [root / "bookie-0/ledgers"]
    assert (len(bookie.journals), len(bookie.entry_logs)) == (1, 4)
    assert damage == []


# -- what is missing, damaged or foreign -----------------------------------------------------------------------------


def test_a_folder_without_cookie_goes_with_the_bookie_beside_it(disk: Callable[[str], Path]) -> None:
    root = disk("d")
    expected, _ = found(root)
    current = root / "bookie-1/ledgers/current"
    (current / "VERSION").unlink()
    (root / "bookie-2/journal/current/VERSION").write_bytes(b'5\nbookieHost: "bookie-')
    bookies, damage = found(root)
    assert bookies == expected
    assert sorted(d.file for d in damage) == [str(current), str(root / "bookie-2/journal/current/VERSION")]


def test_bookies_without_any_cookie_are_known_by_their_places(disk: Callable[[str], Path]) -> None:
    root = disk("d")
    expected, _ = found(root)
    for version in root.rglob("VERSION"):
        version.unlink()
    bookies, damage = found(root)
    assert bookies == [bookie._replace(cookie=None) for bookie in expected]
    assert len(damage) == 6


def test_whole_bookies_without_cookie_are_not_taken_for_one(disk: Callable[[str], Path]) -> None:
    """Each has its journal and its ledgers in one folder; one has lost its cookie."""
    root = disk("d")
    for bookie in sorted(root.iterdir()):
        for path in (bookie / "journal/current").glob("*.txn"):
            path.rename(bookie / "ledgers/current" / path.name)
        (bookie / "ledgers/current").rename(bookie / "current")
        shutil.rmtree(bookie / "journal")
        shutil.rmtree(bookie / "ledgers")
        version = bookie / "current/VERSION"
        version.write_text(version.read_text().replace("/journal", "").replace("/ledgers", ""))
    (root / "bookie-1/current/VERSION").unlink()
    bookies, damage = found(root)
    assert [(bookie.name, len(bookie.journals), len(bookie.entry_logs)) for bookie in bookies] == [
        ("bookie-0", 1, 3),
        ("bookie-1", 1, 3),
        ("bookie-2", 2, 5),
    ]
    assert [d.file for d in damage if "VERSION" in d.what] == [str(root / "bookie-1/current")]


def test_missing_folders_are_reported(disk: Callable[[str], Path]) -> None:
    root = disk("c")
    shutil.rmtree(root / "bookie-0/journal-0")
    (bookie,), damage = found(root)
    assert bookie.journal_folders == [root / "bookie-0/journal-1"]
    assert [d.what for d in damage] == ["of the bookie's 2 journal folders 1 are here"]
    (bookie,), damage = found(root / "bookie-0/journal-1")
    assert bookie.name == "bookie-0"
    assert [d.what for d in damage] == [
        "of the bookie's 2 journal folders 1 are here",
        "of the bookie's 1 ledger folders 0 are here",
    ]


def test_the_journal_of_the_mark_is_missed(disk: Callable[[str], Path]) -> None:
    root = disk("d")
    (root / "bookie-1/journal/current/1a1edddb5b6.txn").unlink()
    bookies, damage = found(root)
    assert bookies[1].journals == []
    assert [Path(d.file).name for d in damage] == ["1a1edddb5b6.txn"]
    assert "missing" in damage[0].what


@pytest.mark.parametrize("data", [b"", b"\0" * 15, b"\0" * 17, b"\xff" * 16])
def test_a_damaged_mark_is_reported(disk: Callable[[str], Path], data: bytes) -> None:
    root = disk("b")
    path = root / "bookie-0/ledgers/current/lastMark"
    path.write_bytes(data)
    (bookie,), damage = found(root)
    assert bookie.marks == {}
    assert len(bookie.entry_logs) == 4
    assert [d.file for d in damage] == [str(path)]
    assert "the mark is damaged" in damage[0].what


def test_missing_marks_are_reported(disk: Callable[[str], Path]) -> None:
    root = disk("c")
    path = root / "bookie-0/ledgers/current/lastMark.1"
    path.unlink()
    (bookie,), damage = found(root)
    assert list(bookie.marks) == [0]
    assert [d.file for d in damage] == [str(path)]


def test_foreign_files_are_reported_once_and_compactions_not_at_all(disk: Callable[[str], Path]) -> None:
    root = disk("b")
    (before,), _ = found(root)
    current = root / "bookie-0/ledgers/current"
    for name in ("1.log.compacting", "5.log.1.compacted", "DIRTY"):
        (current / name).write_bytes(b"x")
    foreign = ["notes.txt", "1.log.bak", "x.log", "00000000000000001.log", "7.log", "8.txn", "31/cd/x.idx", "0/readme"]
    for name in foreign:
        if name in ("7.log", "8.txn"):
            (current / name).mkdir()
            (current / name / "1.log").write_bytes(b"x")
        else:
            (current / name).write_bytes(b"x")
    os.mkfifo(current / "9.log")
    os.symlink("a.log", current / "a.log")
    (after,), damage = found(root, root / "bookie-0")
    assert after == before
    assert sorted(d.file for d in damage) == sorted(str(current / name) for name in [*foreign, "9.log", "a.log"])
    assert {d.what for d in damage} == {"this is nothing that a bookie keeps here; it is not looked at"}
    assert (current / "notes.txt").read_bytes() == b"x"


def test_other_folders_called_current_are_no_bookies(tmp_path: Path) -> None:
    (tmp_path / "app/current/bin").mkdir(parents=True)
    bookies, damage = found(tmp_path)
    assert bookies == []
    assert [str(d) for d in damage] == [f"{tmp_path} at 0: there is no bookie in this folder"]


def test_loops_of_links_are_harmless(disk: Callable[[str], Path]) -> None:
    root = disk("a")
    expected, _ = found(root)
    os.symlink(root, root / "bookie-0/again")
    os.symlink("itself", root / "bookie-0/itself")
    os.symlink(root / "bookie-0", root / "a-bookie")
    os.symlink("nowhere", root / "gone")
    bookies, damage = found(root)
    assert bookies == expected
    assert damage == []


def test_a_folder_on_another_disk_is_found_by_its_link(disk: Callable[[str], Path], tmp_path: Path) -> None:
    root = disk("a")
    (root / "bookie-0/ledgers-1").rename(tmp_path / "far")
    os.symlink(tmp_path / "far", root / "bookie-0/ledgers-1")
    (bookie,), damage = found(root)
    assert len(bookie.entry_logs) == 5
    assert damage == []


@pytest.mark.parametrize("missing", ["nothing", "bookie-0/journal/current/VERSION", "x\0y", "VERSION/x"])
def test_a_path_that_is_no_folder(disk: Callable[[str], Path], missing: str) -> None:
    with pytest.raises(IncorrectParameterError, match=r"no folder|no path"):
        found(disk("b") / missing)


def test_one_path_is_no_list() -> None:
    with pytest.raises(IncorrectParameterError, match="list"):
        find_bookies("/", list[Damage]().append)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everybody may look into."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_what_may_not_be_read_is_said(unpacked: Unpacked, public: Path) -> None:
    root = public / "d"
    shutil.copytree(unpacked("d"), root)
    closed = [
        root / "bookie-0/journal/current",
        root / "bookie-1",
        root / "bookie-2/ledgers/current/VERSION",
        root / "bookie-2/ledgers/current/lastMark",
    ]
    for path in closed:
        path.chmod(0)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        bookies, damage = found(root)
        with pytest.raises(StoreAccessError, match=r"bookie-1 cannot be read.*Permission denied"):
            found(root / "bookie-1")
    finally:
        os.seteuid(was)
        for path in closed:
            path.chmod(0o700)
    assert [(bookie.name, len(bookie.entry_logs)) for bookie in bookies] == [("bookie-0", 3), ("bookie-2", 5)]
    denied = [d.file for d in damage if "Permission denied" in d.what]
    assert sorted(denied) == sorted(str(path) for path in closed)


def test_bookies_of_several_clusters_are_reported(unpacked: Unpacked) -> None:
    bookies, damage = found(unpacked("b"), unpacked("d"))
    assert [bookie.name for bookie in bookies] == ["bookie-0", "bookie-0", "bookie-1", "bookie-2"]
    (one,) = damage
    assert "several clusters" in one.what


# -- cookies ---------------------------------------------------------------------------------------------------------


def test_a_cookie_is_read() -> None:
    text = b'5\nbookieHost: "b:3181"\njournalDir: "/j/0,/j/1"\nledgerDirs: "2\\t/l/0\\t/l/1"\nindexDirs: "1\\t/i"\n'
    assert parse(text) == Cookie("b:3181", ("/j/0", "/j/1"), ("/l/0", "/l/1"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "layout"),
        (b"6\n", "layout"),
        (b"5\n", "no bookieHost"),
        (b'5\nbookieHost: "b"\njournalDir: "j"\n', "no ledgerDirs"),
        (b'5\nbookieHost: "b"\njournalDir: "j"\nledgerDirs: "2\\tl"\n', "2 ledger directories"),
        (b'5\nbookieHost: "b\n', "is not terminated"),
        (b'5\nbookieHost: "\\377"\n', "utf-8"),
    ],
)
def test_a_damaged_cookie(tmp_path: Path, text: bytes, says: str) -> None:
    with pytest.raises(MalformedError, match=says):
        parse(text)
    (tmp_path / "VERSION").write_bytes(text)
    damage: list[Damage] = []
    assert read_cookie(tmp_path / "VERSION", damage.append) is None
    assert says in damage[0].what


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: b"5\n" + data))
def test_any_bytes_are_a_cookie_or_malformed(data: bytes) -> None:
    try:
        assert isinstance(parse(data), Cookie)
    except MalformedError:
        pass


# -- index files -----------------------------------------------------------------------------------------------------


def test_index_files_agree_with_the_logs(unpacked: Unpacked) -> None:
    (bookie,), _ = found(unpacked("b"))
    logs = {int(path.stem, 16): path.read_bytes() for path in bookie.entry_logs}
    said = {ledger["ledger_id"]: ledger for ledger in truth("b", "ledgers")}
    damage: list[Damage] = []
    seen = set()
    for path in bookie.index_files:
        index = read_index(path, damage.append)
        assert index is not None
        locations = index.locations()
        there = np.flatnonzero(locations)
        for entry, location in zip(there.tolist(), locations[there].tolist(), strict=True):
            log, offset = logs[location >> 32], location & 0xFFFFFFFF
            assert struct.unpack_from(">qq", log, offset) == (index.ledger_id, entry)
        ledger = said.get(index.ledger_id)
        if ledger is None:
            continue
        seen.add(index.ledger_id)
        assert there.tolist() == [entry["entry"] for entry in ledger["entries"] if "error" not in entry]
        app = ledger["metadata"]["custom_metadata"].get("app")
        if ledger["metadata"]["password"] == "":
            assert index.master_key == master_key(b"")
        assert (index.explicit_lac == 4) == (app == "ZXhwbGljaXQtbGFj")
        assert index.fenced or app not in ("ZmVuY2Vk", "cmV3cml0dGVuLWJ5LXJlY292ZXJ5")
        if len(there) > 2:
            assert index.locations(1, 2).tolist() == locations[1:3].tolist()
    with_entries = {ledger_id for ledger_id, ledger in said.items() if ledger["entries"]}
    assert with_entries <= seen
    assert len(seen) > 40
    assert damage == []


HEADER = b"BKLE" + struct.pack(">ii", 1, 20) + master_key(b"") + struct.pack(">ii", 1, 20) + struct.pack(">qq", 7, 3)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "1024 bytes, there are 0"),
        (b"BKLO".ljust(1024, b"\0"), "begins with"),
        (struct.pack(">4si", b"BKLE", 2).ljust(1024, b"\0"), "version is 2"),
        (struct.pack(">4sii", b"BKLE", 1, 2000).ljust(1024, b"\0"), "part of 2000 bytes"),
        (struct.pack(">4sii", b"BKLE", 1, -1).ljust(1024, b"\0"), "part of -1 bytes"),
        (struct.pack(">4sii", b"BKLE", 1, 1012).ljust(1024, b"\0"), "ends within a number"),
    ],
)
def test_a_damaged_index(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "7.idx"
    path.write_bytes(data)
    damage: list[Damage] = []
    assert read_index(path, damage.append) is None
    assert says in damage[0].what
    assert damage[0].ledger_id == 7


def test_a_damaged_part_of_an_index_costs_itself_only(tmp_path: Path) -> None:
    path, other = tmp_path / "7.idx", tmp_path / "8.idx"
    path.write_bytes(HEADER.ljust(1024, b"\0") + struct.pack(">qq", 5, 6) + b"\0\0\0")
    other.write_bytes(path.read_bytes())
    damage: list[Damage] = []
    index = read_index(path, damage.append)
    assert index is not None
    assert (index.fenced, index.explicit_lac, index.locations().tolist()) == (True, 3, [5, 6])
    assert [(d.offset, d.what) for d in damage] == [(1040, "the index ends within a location")]
    index = read_index(other, damage.append)
    assert index is not None
    assert (index.fenced, index.explicit_lac, index.master_key) == (True, None, master_key(b""))
    assert "that of ledger 7" in damage[-1].what


def test_what_is_not_there_is_reported(tmp_path: Path) -> None:
    damage: list[Damage] = []
    assert read_index(tmp_path / "7.idx", damage.append) is None
    assert read_cookie(tmp_path / "VERSION", damage.append) is None
    assert read_last_mark(tmp_path / "lastMark", damage.append) is None
    assert len(damage) == 3
    assert all("No such file" in str(d) for d in damage)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_an_index_or_reported(tmp_path_factory: pytest.TempPathFactory, header: bytes) -> None:
    path = tmp_path_factory.mktemp("index") / "7.idx"
    path.write_bytes((b"BKLE" + header).ljust(1032, b"\0"))
    damage: list[Damage] = []
    index = read_index(path, damage.append)
    assert (index is not None) or damage
    assert index is None or index.locations().tolist() == [0]
