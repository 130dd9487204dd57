"""Small commits sync once: what stands in the header makes up for a header page that the power cut lost."""

from __future__ import annotations

import errno
import os
import random
import shutil
import struct
import tempfile
from fcntl import F_GETFL, LOCK_NB, LOCK_SH, fcntl, flock
from functools import partial
from pathlib import Path

import google_crc32c
import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bookstand
from bookstand import errors
from bookstand.storage import apart, keys, owners, redo, repeating
from bookstand.storage.changes import Change
from bookstand.storage.entry_changes import AddEntries, CollectEntries
from bookstand.storage.environment import Environment, data_file
from bookstand.storage.ledger_changes import DeleteLedger
from bookstand.storage.meta_page import parse_meta
from bookstand.storage.node_changes import DeleteNode, PutNode
from bookstand.storage.pages import PageFile
from bookstand.storage.repair import repair
from bookstand.storage.storage import open_storage
from bookstand.testing.crash_lab import CrashLab
from tests import kit
from tests.kit import PATIENCE, Program, raw

PAGE = 4096
# An entry's header and CRC32C.
OVERHEAD = 36
# As LMDB reckons.
LARGEST_ON_LEAF = redo.largest_within(PAGE) - OVERHEAD
TOO_LARGE = bytes(redo.MOST_APART + 1)


def noise(size, seed=0):
    """Of which no two pages are alike."""
    return random.Random(f"{size} {seed}").randbytes(size)


def header(path):
    with open(data_file(path), "rb") as file:
        return [file.read(PAGE), file.read(PAGE)]


def newest(pages):
    """Which of the two pages it is, and its commit."""
    commits = [parse_meta(page).transaction for page in pages]
    return commits.index(max(commits)), max(commits)


def is_pending(name):
    """Whether there is something to be repeated, and all of it."""
    left = repeating.left(name)
    return left is not None and left.large is not None


class Cut:
    """A store, and copies of it as a power cut right after its last commit may leave it."""

    def __init__(self, folder):
        self.path = folder / "store"
        self.store = bookstand.open(self.path)
        self._folder = folder
        self.before = header(self.path)

    def begin(self):
        """The next commit is the one whose header page does not come to the disk."""
        self.before = header(self.path)

    def copied(self, name, lost=True):
        """``lost``: with the header page as it was before; what is written down in it is on the disk or not, for it
        belongs to a commit that has not begun."""
        to = self._folder / name
        to.mkdir()
        shutil.copy(data_file(self.path), data_file(to))
        if lost:
            place, commit = newest(header(to))
            assert commit == newest(self.before)[1] + 1, "there is to be one commit"
            with open(data_file(to), "r+b") as file:
                file.seek(place * PAGE)
                file.write(self.before[place][: redo.START])
        return to


@pytest.fixture
def cut(tmp_path):
    cut = Cut(tmp_path)
    yield cut
    cut.store.close()


def dumped(path):
    """All that is in a closed store."""
    with raw(path) as database:
        return {name: database(name).items() for name in keys.DATABASES}


def some_write(store):
    writer = store.create_ledger_adv()
    writer.write(0, b"first")
    return partial(writer.write, 1, b"second")


def a_transaction(store):
    writers = [store.create_ledger() for _ in range(3)]
    for writer in writers:
        writer.append(b"first")

    def commit():
        with store.transaction() as together:
            for writer in writers:
                together.append(writer, b"second")
            together.delete_ledger(writers[0].id + 100)
            together.put_node("/node", b"value")

    store.create_ledger_adv(writers[0].id + 100)
    return commit


def some_collection(store):
    writer = store.create_ledger()
    for number in range(5):
        writer.append(b"%d" % number)
    store.delete_ledger(writer.id)
    return lambda: store.storage.collect(writer.id)


def some_append(store, payload=b"second"):
    writer = store.create_ledger()
    writer.append(b"first")
    return lambda: writer.append(payload)


def some_close(store):
    writer = store.create_ledger()
    writer.append(b"first")
    return writer.close


def some_node(store):
    store.nodes.put("/gone", b"first")
    return lambda: store.nodes.delete("/gone")


def some_overwriting(store, before):
    store.nodes.put("/node", before)
    return lambda: store.nodes.put("/node", noise(20_000, 1))


def several_large_ones(store, most=4):
    """And small ones."""
    writers = [store.create_ledger() for _ in range(most // 2)]

    def commit():
        with store.transaction() as together:
            for number in range(most):
                together.put_node(f"/large-{number}", noise(3_000 * (number + 1), number))
                together.put_node(f"/small-{number}", b"value")
            for writer in writers:
                together.append(writer, noise(3_000, writer.id))

    return commit


def on_free_pages(store, size=100_000):
    """Where a ledger's entries were before."""
    writer = store.create_ledger()
    for number in range(8):
        writer.append(noise(size // 4, number))
    store.delete_ledger(writer.id)
    store.storage.collect(writer.id)
    for number in range(3):
        store.nodes.put("/any", b"%d" % number)
    return some_append(store, noise(size))


SMALL = {
    "a lone append": some_append,
    "an append of nothing": lambda store: some_append(store, b""),
    "just on a leaf": lambda store: some_append(store, noise(LARGEST_ON_LEAF)),
    "just on a page of its own": lambda store: some_append(store, noise(LARGEST_ON_LEAF + 1)),
    "a page, but for a byte": lambda store: some_append(store, noise(PAGE - 16 - OVERHEAD - 1)),
    "a page": lambda store: some_append(store, noise(PAGE - 16 - OVERHEAD)),
    "a page and a byte": lambda store: some_append(store, noise(PAGE - 16 - OVERHEAD + 1)),
    "many pages": lambda store: some_append(store, noise(100_000)),
    "as large as is worth it": lambda store: some_append(store, noise(redo.MOST_APART - OVERHEAD)),
    "several large ones at once": lambda store: partial(
        store.create_ledger().append_many, [noise(5_000 + number, number) for number in range(20)]
    ),
    "several that are alike": lambda store: partial(store.create_ledger().append_many, [bytes(5_000)] * 20),
    "large ones and small ones": several_large_ones,
    "in place of one of its size": lambda store: some_overwriting(store, noise(20_000)),
    "in place of a small one": lambda store: some_overwriting(store, b"small"),
    "on pages that were free": on_free_pages,
    "several at once": lambda store: partial(store.create_ledger().append_many, [b"a", b"", b"c"]),
    "a chosen id": some_write,
    "a ledger is created": lambda store: store.create_ledger,
    "a ledger is closed": some_close,
    "a ledger is deleted": lambda store: partial(store.delete_ledger, store.create_ledger().id),
    "a ledger's rest is collected": some_collection,
    "a node": lambda store: lambda: store.nodes.put("/node", b"value"),
    "a node is removed": some_node,
    "a transaction": a_transaction,
}


@pytest.mark.parametrize("kind", SMALL)
def test_a_small_commit_outlives_its_header_page(cut, kind):
    commit = SMALL[kind](cut.store)
    cut.begin()
    commit()
    whole, lost = cut.copied("whole", lost=False), cut.copied("lost")
    assert is_pending(data_file(lost))
    assert not is_pending(data_file(whole))
    for path in (whole, lost):
        with bookstand.open(path, check="full") as store:
            assert store.verify().ok
    assert not is_pending(data_file(lost))
    assert dumped(lost) == dumped(whole)
    assert newest(header(lost)) == newest(header(whole))


def test_it_is_repeated_once(cut):
    writer = cut.store.create_ledger()
    writer.append(b"0")
    cut.begin()
    writer.append(b"1")
    path = cut.copied("lost")
    for _ in range(3):
        with bookstand.open(path) as store:
            assert [entry.data for entry in store.open_ledger(writer.id, recovery=False).read_unconfirmed(0, 1)] == [
                b"0",
                b"1",
            ]
    with bookstand.open(path) as store:
        # The ledger's last LAC is that before the entry which was repeated.
        assert store.open_ledger(writer.id).last_add_confirmed == 1
        assert store.create_ledger().append(b"later") == 0


def synced(name):
    descriptor = os.open(name, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


CUT = {
    "a lone append": some_append,
    "behind the last page": lambda store: some_append(store, noise(9_000)),
    "on pages that were free": lambda store: on_free_pages(store, 9_000),
    "large ones and small ones": lambda store: several_large_ones(store, 2),
}


@pytest.mark.parametrize("kind", CUT)
def test_power_cuts_while_it_is_repeated(cut, kind):
    commit = CUT[kind](cut.store)
    cut.begin()
    commit()
    lost, whole = cut.copied("lost"), cut.copied("whole", lost=False)
    expected = dumped(whole)

    def workload(path, acknowledge):
        new = f"{path}-new"
        os.mkdir(new)
        shutil.copy(data_file(lost), data_file(new))
        synced(data_file(new))
        os.rename(new, path)
        synced(path)
        synced(os.path.dirname(path))
        acknowledge("there")
        bookstand.open(path).close()

    def check(store, acknowledged):
        if acknowledged:
            with tempfile.TemporaryDirectory() as copy:
                shutil.copy(data_file(store.path), data_file(copy))
                there = dumped(Path(copy))
            # The lab has used the store.
            assert set(expected[keys.ENTRIES]) <= set(there[keys.ENTRIES])
            assert expected[keys.NODES] == there[keys.NODES]

    with CrashLab() as lab:
        assert lab.explore(lab.record(workload, "pages"), check).states > 20


@pytest.mark.parametrize("bit", [0, 31, 32, 40, 64, 127, 128, 200, 400, -1])
def test_what_is_not_whole_was_never_confirmed(cut, bit):
    """A power cut before the sync was over: the store is as it was before the commit."""
    writer = cut.store.create_ledger()
    writer.append(b"confirmed")
    cut.begin()
    before = cut.copied("before", lost=False)
    writer.append(b"under way")
    path = cut.copied("lost")
    place, _ = newest(header(path))
    _, size, _ = redo.REDO.struct.unpack_from(header(path)[place], redo.START)
    where = bit % (8 * (redo.REDO.struct.size + size))
    with open(data_file(path), "r+b") as file:
        file.seek(place * PAGE + redo.START + where // 8)
        flipped = file.read(1)[0] ^ 1 << where % 8
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes((flipped,)))
    assert not is_pending(data_file(path))
    with bookstand.open(path) as store:
        assert store.verify().ok
        assert store.open_ledger(writer.id, recovery=False).read_unconfirmed(0, 0)[0].data == b"confirmed"
    with bookstand.open(before):
        pass
    assert dumped(path) == dumped(before)


def value_page(path, value):
    """Where a large value is, in bytes."""
    with open(data_file(path), "rb") as file:
        image = file.read()
    assert image.count(value) == 1
    return image.index(value)


@pytest.mark.parametrize("place", [0, 4_000, 49_999])
def test_a_large_value_that_is_not_whole_was_never_confirmed(cut, place, caplog):
    writer = cut.store.create_ledger()
    writer.append(b"confirmed")
    cut.begin()
    before = cut.copied("before", lost=False)
    writer.append(LARGE)
    path = cut.copied("lost")
    with open(data_file(path), "r+b") as file:
        file.seek(value_page(path, LARGE) + place)
        file.write(bytes((LARGE[place] ^ 1,)))
    assert not is_pending(data_file(path))
    report = repair(path, path.parent / "repaired")
    assert report.entries == 1
    # It may have been confirmed, and be damaged now.
    (loss,) = report.losses
    assert "is left out: it was under way, or a large value of it is not to be had" in loss.why
    commit = newest(header(path))[1] + 1
    for options in ({"read_only": True}, {}, {"durability": "none"}, {}):
        caplog.clear()
        with bookstand.open(path, **options) as store:
            assert store.verify().ok
            assert store.open_ledger(writer.id, recovery=False).read_unconfirmed(0, 0)[0].data == b"confirmed"
        (told,) = caplog.records
        assert told.levelname == "WARNING"
        assert told.getMessage().startswith(
            f"{data_file(path)}: commit {commit} is left out: its process or the machine"
        )
    with bookstand.open(before):
        pass
    assert dumped(path) == dumped(before)
    with bookstand.open(path) as store:
        store.nodes.put("/the-next", b"commit")
    caplog.clear()
    with bookstand.open(path):
        assert not caplog.records


def test_a_large_value_that_is_damaged_was_witnessed(tmp_path):
    cut = Cut(tmp_path)
    cut.store.close()
    with bookstand.open(cut.path, witness=True) as store:
        writer = store.create_ledger()
        cut.begin()
        writer.append(LARGE)
        path = cut.copied("lost")
        shutil.copy(cut.path / "witness", path / "witness")
    with open(data_file(path), "r+b") as file:
        file.seek(value_page(path, LARGE))
        file.write(b"damaged")
    before = header(path)
    with pytest.raises(errors.StoreRolledBackError):
        bookstand.open(path, witness=True)
    # What is known of the commit is still there.
    assert header(path) == before
    (loss,) = [loss for loss in repair(path, tmp_path / "repaired").losses if loss.what == "store"]
    assert "were witnessed" in loss.why


def test_a_large_value_that_the_file_ends_in(cut):
    writer = cut.store.create_ledger()
    writer.append(b"confirmed")
    cut.begin()
    writer.append(LARGE)
    path = cut.copied("lost")
    os.truncate(data_file(path), value_page(path, LARGE) + 40_000)
    assert not is_pending(data_file(path))
    with bookstand.open(path) as store:
        assert store.verify().ok


class CopyIsThereError(Exception):
    """The power goes when large values have been copied."""


@pytest.fixture
def stopping_at_the_copies(monkeypatch):
    """The next repetition gets as far as that."""

    def stopped(*_):
        monkeypatch.setattr(repeating, "_commit", real)
        raise CopyIsThereError

    real = repeating._commit
    monkeypatch.setattr(repeating, "_commit", stopped)


@pytest.mark.parametrize("kind", ["many pages", "on pages that were free", "large ones and small ones"])
def test_what_is_copied_before_it_is_repeated_is_out_of_the_way(cut, kind, stopping_at_the_copies):
    commit = SMALL[kind](cut.store)
    cut.begin()
    commit()
    whole, path = cut.copied("whole", lost=False), cut.copied("lost")
    before = pages_of_values(path)
    with pytest.raises(CopyIsThereError):
        bookstand.open(path)
    copied = pages_of_values(path)
    size = os.path.getsize(data_file(path))
    # Where it is repeated, nothing comes near; and the next time it is copied to the same place.
    shutil.copytree(path, path.parent / "repeated")
    with bookstand.open(path.parent / "repeated"):
        pass
    pages = header(path.parent / "repeated")
    last_page = parse_meta(pages[newest(pages)[0]]).last_page
    for value, places in copied.items():
        (copy,) = places - before[value]
        assert copy > last_page + 50
    assert size >= PAGE * max(map(max, copied.values()))
    assert os.path.getsize(data_file(path.parent / "repeated")) == (last_page + 1) * PAGE
    for value, places in copied.items():
        # If the originals were written over.
        for place in before[value]:
            with open(data_file(path), "r+b") as file:
                file.seek(place * PAGE + 16)
                file.write(bytes(100))
        assert places
    with bookstand.open(path):
        pass
    assert dumped(path) == dumped(whole)


def pages_of_values(path):
    """Of each large value that is to be repeated the pages where it begins."""
    ((_, changes),) = [redo.pending(header(path))]
    file = PageFile(data_file(path))
    try:
        found = {}
        for number in range(2, file.pages):
            for one in apart.of(changes):
                value = file.value_at(number, one.size)
                if value is not None and google_crc32c.value(value) == one.crc and file.extent_of_value(number):
                    found.setdefault(one, set()).add(number)
        return found
    finally:
        file.close()


def test_a_copy_that_was_not_synced_is_written_again(cut, monkeypatch):
    """The kernel may take its pages for written."""
    commit = some_append(cut.store, LARGE)
    cut.begin()
    commit()
    path = cut.copied("lost")
    writes = []
    real = {name: getattr(os, name) for name in ("pwrite", "fdatasync")}

    def pwrite(file, data, where):
        writes.append((len(data), where))
        return real["pwrite"](file, data, where)

    def failing(file):
        monkeypatch.setattr(os, "fdatasync", real["fdatasync"])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(errors.WriteError, match="repeating its last commit"):
        bookstand.open(path)
    with bookstand.open(path) as store:
        assert entries(store) == [b"first", b"1"]
    copies = [write for write in writes if write[0] > len(LARGE)]
    assert len(copies) == 2
    assert copies[0] == copies[1]


@pytest.mark.parametrize("between", [0, 50, 100, 130, 160, 190, 220, 250, 1_000])
def test_values_that_lie_far_behind_the_last_page(cut, between, monkeypatch):
    """The commit may have come further than repeating it does: what is copied is not written over them."""
    storage = cut.store.storage
    cut.store.nodes.put("/other", b"")
    cut.begin()
    with storage.committer.paused():
        puts = {"/a": 200_000, "/gone": between * PAGE, "/b": 200_000}
        pending = [storage.submit(Change(PutNode(path, noise(size, path), None))) for path, size in puts.items()]
        pending.append(storage.submit(Change(DeleteNode("/gone", None))))
    for one in pending:
        one.result(PATIENCE)
    whole, path = cut.copied("whole", lost=False), cut.copied("lost")
    copies = []
    real = os.pwrite

    def until_the_first(file, data, where):
        if len(data) > 100_000:
            copies.append(where)
            if len(copies) == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(file, data, where)

    monkeypatch.setattr(os, "pwrite", until_the_first)
    with pytest.raises(errors.WriteError):
        bookstand.open(path)
    with bookstand.open(path):
        pass
    assert dumped(path) == dumped(whole)


SIZES = [100, 2_040, 3_000, 4_080, 5_000, 9_000, 20_000]


@pytest.mark.parametrize("second", SIZES)
@pytest.mark.parametrize("first", SIZES)
def test_a_value_that_is_written_twice_in_a_commit(cut, first, second):
    """LMDB would write the second one over the first, and leave it pages that it does not take."""
    storage = cut.store.storage
    cut.store.nodes.put("/other", b"")
    cut.begin()
    with storage.committer.paused():
        pending = [storage.submit(Change(PutNode("/a", noise(size), None))) for size in (first, second)]
    for one in pending:
        one.result(PATIENCE)
    whole, path = cut.copied("whole", lost=False), cut.copied("lost")
    assert is_pending(data_file(path))
    for one in (whole, path):
        with bookstand.open(one, check="full") as store:
            assert store.nodes.get("/a") == (noise(second), 1)
    assert dumped(path) == dumped(whole)


paths = st.sampled_from(["/a", "/b", "/c"])
sizes = st.sampled_from(SIZES) | st.integers(0, 30_000)
operations = st.one_of(
    st.builds(lambda path, size, seed: PutNode(path, noise(size, seed), None), paths, sizes, st.integers(0, 1)),
    st.builds(lambda path: DeleteNode(path, None), paths),
    sizes.map(noise),
)


@given(st.lists(st.lists(operations, min_size=1, max_size=8), min_size=1, max_size=6))
def test_any_batches(batches):
    """The header page of each is lost, and it is repeated; so is the commit that repeats it, with all of its pages but
    the header written."""
    with tempfile.TemporaryDirectory() as folder:
        cut = Cut(Path(folder))
        storage = cut.store.storage
        writer = cut.store.create_ledger()
        for number, batch in enumerate(batches):
            cut.begin()
            with storage.committer.paused():
                pending = [
                    writer.append_async(one) if isinstance(one, bytes) else storage.submit(Change(one)) for one in batch
                ]
            for one in pending:
                one.exception(PATIENCE)
            if newest(cut.before)[1] == newest(header(cut.path))[1] or not is_written_down(cut.path):
                continue
            whole, path = cut.copied(f"whole-{number}", lost=False), cut.copied(f"lost-{number}")
            bookstand.open(whole, check="full").close()
            expected, before = dumped(whole), header(path)
            for _ in range(3):
                assert is_pending(data_file(path))
                bookstand.open(path, check="full").close()
                assert dumped(path) == expected
                with open(data_file(path), "r+b") as file:
                    file.write(b"".join(before))
        cut.store.close()


def is_written_down(path):
    pages = header(path)
    place, commit = newest(pages)
    return redo.commit_written_down(pages[1 - place]) == commit


@pytest.mark.parametrize("what", ["value", "free pages"])
def test_what_cannot_be_read_is_not_taken_for_lost(cut, monkeypatch, what):
    commit = on_free_pages(cut.store)
    cut.begin()
    commit()
    path = cut.copied("lost")
    pages = header(path)
    broken = (
        value_page(path, noise(100_000)) if what == "value" else parse_meta(pages[newest(pages)[0]]).free_root * PAGE
    )
    real = os.pread

    def failing(file, size, where):
        if where <= broken < where + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(file, size, where)

    monkeypatch.setattr(os, "pread", failing)
    if what == "value":
        for options in ({}, {"read_only": True}, {"durability": "none"}):
            with pytest.raises(errors.StoreError, match=r"cannot be looked for.*Input/output error.*bookstand repair"):
                bookstand.open(path, **options)
    else:
        # It is found all the same.
        assert is_pending(data_file(path))
    report = repair(path, path.parent / "repaired", dry_run=True)
    assert bool(report.losses) == (what == "value")
    monkeypatch.undo()
    with bookstand.open(path) as store:
        assert store.verify().ok
    assert noise(100_000) in {value[OVERHEAD:] for _, value in dumped(path)[keys.ENTRIES]}


def test_where_large_values_are_looked_for(cut):
    """On pages that are free and on those behind the last one; everywhere, where the tree of free pages is damaged."""
    SMALL["on pages that were free"](cut.store)
    cut.store.create_ledger().append(noise(100_000, 7))
    path = cut.copied("copy", lost=False)
    name = data_file(path)
    with open(name, "rb") as file:
        stored = file.read()
    free = next(left for number in range(8) if (left := noise(25_000, number)) in stored)
    used = noise(100_000, 7)

    def found(payload, begins=b""):
        at = stored.index(payload) - OVERHEAD
        crc = google_crc32c.value(stored[at : at + OVERHEAD + len(payload)])
        one = redo.Apart(OVERHEAD + len(payload), crc, begins)
        file = PageFile(name)
        try:
            return list(apart.find(file, {one, redo.Apart(5_000, 1)})) == [one]
        finally:
            file.close()

    assert (found(free), found(used)) == (True, False)
    key = stored[stored.index(free) - OVERHEAD :][:16]
    assert (found(free, key), found(free, key[:-1] + b"x")) == (True, False)
    pages = header(path)
    root = parse_meta(pages[newest(pages)[0]]).free_root
    no_page = b"\0\0"
    # A branch whose only child is itself.
    cycle = struct.pack("<HHH", 1, 18, PAGE - 8) + struct.pack("<H", PAGE - 8)
    for at, damage in ((10, no_page), (10, cycle)):
        with open(name, "r+b") as file:
            file.seek(root * PAGE + at)
            file.write(damage)
            if damage is cycle:
                file.seek(root * PAGE + PAGE - 8)
                file.write(struct.pack("<HHHH", root, 0, 0, 0))
        assert (found(free), found(used)) == (True, True)


def test_a_header_that_is_older_than_what_is_written_down(cut):
    """What stands beside a header page counts for the commit right behind it only."""
    writer = cut.store.create_ledger()
    for number in range(4):
        writer.append(b"%d" % number)
    pages = header(cut.path)
    place, commit = newest(pages)
    older = pages[1 - place]
    assert parse_meta(older).transaction == commit - 1
    assert redo.pending([older])[0] == commit
    assert redo.pending(pages) is None
    # The newer one holds what was changed by the last commit that was written down before it.
    assert redo.pending([pages[place]]) is None


# -- syncs -----------------------------------------------------------------------------------------------------------


def test_a_store_that_nobody_has_open_is_whole(cut, monkeypatch):
    """Closing it syncs what waits for the next commit, once."""
    synced = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.append(file) or real(file))
    cut.store.create_ledger().append(b"")
    assert synced == []
    cut.store.close()
    assert len(synced) == 1
    with bookstand.open(cut.path):
        pass
    assert len(synced) == 1


# -- who opens it ----------------------------------------------------------------------------------------------------


LARGE = noise(50_000)


@pytest.fixture(params=[b"1", LARGE], ids=["small", "large"])
def lost(cut, request):
    """A store whose last commit, entry 1 of ledger 0, has to be repeated."""
    writer = cut.store.create_ledger()
    writer.append(b"0")
    cut.begin()
    writer.append(request.param)
    return cut.copied("lost")


def entries(store):
    """The large one as b"1"."""
    found = [entry.data for entry in store.open_ledger(0, recovery=False).read_unconfirmed(0, 1)]
    return [b"1" if data == LARGE else data for data in found]


def test_a_reader(lost):
    with bookstand.open(lost, read_only=True) as store:
        assert entries(store) == [b"0", b"1"]
    assert not is_pending(data_file(lost))


def test_a_reader_who_may_not_write(lost, monkeypatch):
    """He is told what to do, and does not find less than was confirmed."""
    before = header(lost)
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and real(path, mode))
    with pytest.raises(errors.StoreAccessError, match="has to be repeated") as caught:
        bookstand.open(lost, read_only=True)
    assert str(lost) in str(caught.value)
    assert header(lost) == before
    monkeypatch.undo()
    with bookstand.open(lost) as store:
        assert entries(store) == [b"0", b"1"]


def test_who_does_not_sync(lost):
    with bookstand.open(lost, durability="none") as store:
        assert entries(store) == [b"0", b"1"]


def test_with_a_witness(tmp_path):
    """It has seen the commit."""
    cut = Cut(tmp_path)
    cut.store.close()
    with bookstand.open(cut.path, witness=True) as store:
        writer = store.create_ledger()
        writer.append(b"0")
        cut.begin()
        writer.append(b"1")
        path = cut.copied("lost")
        shutil.copy(cut.path / "witness", path / "witness")
    with bookstand.open(path, witness=True) as store:
        assert entries(store) == [b"0", b"1"]


def test_a_map_that_is_too_small(lost):
    storage = open_storage(lost, map_size=1)
    try:
        assert storage.entry(0, 1) is not None
    finally:
        storage.close()


def test_several_open_it_at_the_same_time(lost):
    source = "import bookstand, sys\nstore = bookstand.open(sys.argv[1])\nprint(store.create_ledger().append(b''))"
    programs = [Program(source, lost) for _ in range(4)]
    for program in programs:
        with program:
            assert program.finish() == 0
            assert program.lines == ["0"]
    with bookstand.open(lost) as store:
        assert entries(store) == [b"0", b"1"]
        assert len(list(store.list_ledgers())) == 5
        assert store.verify().ok


def test_repairing_it_saves_what_is_written_down(lost, tmp_path):
    before = header(lost)
    for dry_run in (True, False):
        report = repair(lost, tmp_path / "repaired", dry_run=dry_run)
        assert (report.ledgers, report.losses) == (1, [])
    assert header(lost) == before
    with bookstand.open(tmp_path / "repaired") as store:
        assert entries(store) == [b"0", b"1"]


def test_repairing_it_leaves_out_what_was_removed(cut, tmp_path):
    store = cut.store
    store.nodes.put("/gone", b"")
    store.nodes.put("/kept", b"")
    cut.begin()
    store.nodes.delete("/gone")
    report = repair(cut.copied("lost"), tmp_path / "repaired")
    assert report.losses == []
    with bookstand.open(tmp_path / "repaired") as repaired:
        assert repaired.nodes.get("/kept") == (b"", 0)
        with pytest.raises(errors.NoSuchNodeError):
            repaired.nodes.get("/gone")


# -- who shares it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [b"1", LARGE], ids=["small", "large"])
def test_changes_of_several_are_repeated_in_their_order(cut, payload):
    """Of one commit: an entry is added, its ledger deleted, and collected with it. A large one is nowhere then."""
    storage = cut.store.storage
    writer = cut.store.create_ledger()
    writer.append(b"0")
    cut.begin()
    with storage.committer.paused():
        added = storage.submit(Change(added_to(writer, 1, [payload])))
        deleted = storage.submit(Change(DeleteLedger(writer.id, 1)))
        collected = storage.submit(Change(CollectEntries(writer.id, None)))
    for pending in (added, deleted, collected):
        pending.result(PATIENCE)
    whole, lost = cut.copied("whole", lost=False), cut.copied("lost")
    for path in (whole, lost):
        with bookstand.open(path) as store:
            assert store.verify().ok
            assert list(store.list_ledgers()) == []
    assert dumped(lost) == dumped(whole)


def added_to(writer, first, payloads):
    return AddEntries(
        writer.id, writer._incarnation, writer._master_key, writer._digest, first, first - 1, 1, payloads, True
    )


def cancelled_out(store):
    """Two changes of one commit that come to nothing; what they were told."""
    storage = store.storage
    with storage.committer.paused():
        put = storage.submit(Change(PutNode("/a", b"", -1)))
        removed = storage.submit(Change(DeleteNode("/a", 0)))
    return put.result(PATIENCE), removed.result(PATIENCE)


def test_changes_that_cancel_each_other_out_are_no_commit(cut):
    cut.store.nodes.put("/b", b"")
    before = cut.store.storage.last_commit
    assert cancelled_out(cut.store) == ([0], [None])
    assert cut.store.storage.last_commit == before
    assert not is_pending(data_file(cut.path))


def test_repeating_what_changes_nothing_comes_to_an_end(cut):
    """It counts as a commit, as it did when it was written down."""
    cut.store.nodes.put("/b", b"")
    cut.store.close()
    _, commit = newest(header(cut.path))
    write_down(cut.path, [(keys.NODES, b"/a", None)])
    with bookstand.open(cut.path) as store:
        assert store.storage.last_commit == commit + 1
        assert list(store.nodes.children("/")) == ["b"]
        assert store.verify().ok
    assert not is_pending(data_file(cut.path))


def write_down(path, changes):
    """As the next commit, and nothing else of it."""
    place, commit = newest(header(path))
    packed = redo.pack(changes, PAGE)
    body = struct.pack(">IQ", len(packed), commit + 1) + packed
    with open(data_file(path), "r+b") as file:
        file.seek(place * PAGE + redo.START)
        file.write(struct.pack(">I", google_crc32c.value(body)) + body)
    assert is_pending(data_file(path))


def test_who_looks_at_a_dead_marker_is_not_taken_for_its_owner(lost):
    """Commands look without the lock of the folder; the commit would not be repeated then, and its number taken."""
    marker = lost / "open-1-dead"
    marker.touch()
    with marker.open() as looked_at:
        flock(looked_at, LOCK_SH | LOCK_NB)
        assert owners.Survey(str(lost)).writers == 0
        with bookstand.open(lost) as store:
            assert entries(store) == [b"0", b"1"]


def failing_commit(monkeypatch, then=lambda: None):
    """The next commit fails in the device as LMDB's do: the transaction is over, its header page not written."""
    real, reopen = Environment.commit, Environment.reopen

    def commit(self, transaction, number, changes):
        monkeypatch.setattr(Environment, "commit", real)
        self._header.prepare(number, redo.pack(changes, PAGE))
        assert self._header.stands(number)
        transaction.abort()
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    def reopened(self):
        monkeypatch.setattr(Environment, "reopen", reopen)
        then()
        reopen(self)

    monkeypatch.setattr(Environment, "commit", commit)
    monkeypatch.setattr(Environment, "reopen", reopened)


def test_a_commit_that_took_the_number_of_a_failed_one(cut, monkeypatch):
    """What another process has written down since is its own."""
    other = kit.Child(cut.path)
    try:
        other.run("store = bookstand.open(path)")
        cut.store.nodes.put("/before", b"")
        cut.begin()
        failing_commit(monkeypatch, then=lambda: other.run("store.nodes.put('/theirs', b'confirmed')"))
        with pytest.raises(errors.BookstandError):
            cut.store.nodes.put("/mine", b"refused")
        with bookstand.open(cut.copied("lost")) as store:
            assert store.nodes.get("/theirs") == (b"confirmed", 0)
            assert list(store.nodes.children("/")) == ["before", "theirs"]
    finally:
        other.close()


def test_nobody_repeats_while_another_one_writes(cut):
    """What is written down may be of a commit that is under way, or has failed."""
    writing = kit.Child(cut.path)
    try:
        writing.run("store = bookstand.open(path)")
        writing.run("store.nodes.put('/a', b'')")
        cut.store.close()
        _, commit = newest(header(cut.path))
        write_down(cut.path, [(keys.NODES, b"/under-way", b"")])
        for options in ({}, {"read_only": True}, {"durability": "none"}):
            with bookstand.open(cut.path, **options) as store:
                assert store.storage.last_commit == commit
        writing.run("store.nodes.put('/b', b'x' * 600_000)")
        assert not is_pending(data_file(cut.path))
        assert all(redo.commit_written_down(page) != commit + 1 for page in header(cut.path))
    finally:
        writing.close()
    with bookstand.open(cut.path) as store:
        assert list(store.nodes.children("/")) == ["a", "b"]


def test_a_simulated_crash_syncs_nothing(cut, monkeypatch):
    cut.store.create_ledger().append(b"")
    synced = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    cut.store.storage.crash()
    assert synced == []


def test_where_lmdbs_descriptor_is_not_to_be_found(tmp_path, lost, monkeypatch):
    """Commits take two syncs then, and what others have left is repeated all the same."""
    monkeypatch.setattr(redo, "descriptor_of_header", lambda path: None)
    with bookstand.open(lost) as store:
        assert entries(store) == [b"0", b"1"]
        before = [redo.commit_written_down(page) for page in header(lost)]
        store.nodes.put("/a", b"")
        assert [redo.commit_written_down(page) for page in header(lost)] == before
    with bookstand.open(lost) as store:
        assert store.nodes.get("/a") == (b"", 0)


def test_the_descriptor_that_is_found_waits_for_the_disk(store, store_path):
    storage = store.storage
    found = storage._environment._header._lmdbs
    for payload, waits in ((b"small", False), (TOO_LARGE, True), (b"small", False), (b"small", False)):
        store.nodes.put("/a", payload)
        assert bool(fcntl(found, F_GETFL) & os.O_DSYNC) == waits
        assert os.path.samestat(os.fstat(found), os.stat(data_file(store_path)))


@pytest.mark.parametrize("before", [b"small", TOO_LARGE])
@pytest.mark.parametrize("done", [False, True])
def test_an_interruption_while_descriptors_are_changed(store, monkeypatch, before, done):
    """A large commit waits for its header page all the same."""
    store.nodes.put("/a", before)
    real = os.dup2

    def interrupted(*arguments, **options):
        monkeypatch.setattr(os, "dup2", real)
        if done:
            real(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "dup2", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.nodes.put("/a", TOO_LARGE if before == b"small" else b"small")
    store.nodes.put("/a", TOO_LARGE)
    assert fcntl(store.storage._environment._header._lmdbs, F_GETFL) & os.O_DSYNC


def test_descriptors_are_closed(tmp_path):
    """And none is inherited by programs that are started meanwhile."""
    before = os.listdir("/proc/self/fd")
    with bookstand.open(tmp_path / "store") as store:
        store.nodes.put("/a", b"")
        store.nodes.put("/a", TOO_LARGE)
        ours = store.storage._environment._header
        for descriptor in (ours._file, ours._synchronous, ours._lmdbs):
            assert os.path.samestat(os.fstat(descriptor), os.stat(data_file(tmp_path / "store")))
            assert not os.get_inheritable(descriptor)
        store.storage._environment.reopen()
        store.nodes.put("/a", b"")
    assert sorted(os.listdir("/proc/self/fd")) == sorted(before)


# -- devices that fail -----------------------------------------------------------------------------------------------

REFUSED = """
import errno, os, sys
import bookstand
from tests.storage import shim

path = sys.argv[1]
store = bookstand.open(path)
writer = store.create_ledger()
writer.append(b"0")
shim.arm(path, "{call}", {when}, {answer})
try:
    print("ok", writer.append(b"1"), flush=True)
except bookstand.BookstandError as error:
    print(type(error).__name__, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("answer", [errno.EIO, errno.ENOSPC, -errno.EIO])
def test_what_was_refused_is_not_repeated(shim_library, memory_path, answer):
    """Its changes were written down before the device failed under it."""
    path = memory_path / "store"
    with Program(REFUSED.format(call="fdatasync", when=1, answer=answer), path, LD_PRELOAD=shim_library) as program:
        assert program.finish() == 0
    (told,) = program.lines
    assert told in ("WriteError", "NotEnoughBookiesError")
    with bookstand.open(path) as store:
        assert store.open_ledger(0).last_add_confirmed == 0


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("done", [False, True])
def test_nothing_can_be_written_down(store, store_path, monkeypatch, number, done):
    """LMDB is not asked then, and the store goes on as soon as it is possible again."""
    store.nodes.put("/a", b"before")
    real = os.pwrite

    def failing(file, data, where):
        monkeypatch.setattr(os, "pwrite", real)
        if done:
            real(file, data, where)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pwrite", failing)
    with pytest.raises(errors.BookstandError):
        store.nodes.put("/a", b"refused")
    assert not is_pending(data_file(store_path))
    assert store.nodes.get("/a") == (b"before", 0)
    assert store.nodes.put("/a", b"after") == 1


def test_what_was_refused_is_struck_out_on_the_disk(store, store_path, monkeypatch):
    """A power cut afterwards does not bring it back."""
    store.nodes.put("/a", b"before")
    synced = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.append(is_pending(data_file(store_path))) or real(file))
    failing_commit(monkeypatch)
    with pytest.raises(errors.BookstandError):
        store.nodes.put("/a", b"refused")
    assert synced == [False]
    assert store.nodes.get("/a") == (b"before", 0)


FULL_MAP = """
import resource, sys
import bookstand
from bookstand.storage.storage import open_storage

storage = open_storage(sys.argv[1], map_size=1 << 16)
store = bookstand.open(sys.argv[1])
store.nodes.put("/first", b"x")
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 16), resource.RLIM_INFINITY))
for number in range(1000):
    try:
        store.nodes.put(f"/n{number}", b"." * 400)
    except bookstand.BookstandError:
        break
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.close()
storage.close()
print(number, flush=True)
"""


def test_a_map_that_cannot_grow(tmp_path):
    """LMDB says so in the commit, when the changes are written down already."""
    with Program(FULL_MAP, tmp_path / "store") as program:
        assert program.finish() == 0, program.lines
    refused = int(program.lines[0])
    assert refused < 999
    with bookstand.open(tmp_path / "store") as store:
        assert store.nodes.get(f"/n{refused - 1}")[1] == 0
        with pytest.raises(errors.NoSuchNodeError):
            store.nodes.get(f"/n{refused}")


REPEATING = """
import errno, sys
import bookstand
from tests.storage import shim

path = sys.argv[1]
for when in range(1, 40):
    shim.arm(path + "/data.mdb", shim.CHANGING, when, errno.{error})
    try:
        bookstand.open(path).close()
        print("ok" if shim.count() < when else "late", flush=True)
        break
    except bookstand.BookstandError as error:
        print(type(error).__name__, flush=True)
    finally:
        shim.disarm()
"""


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
def test_a_disk_that_fails_while_it_is_repeated(shim_library, lost, error):
    """It is not lost by that, and is repeated once the disk works."""
    with Program(REPEATING.format(error=error), lost, LD_PRELOAD=shim_library) as program:
        assert program.finish() == 0, program.lines
    *told, last = program.lines
    assert last == "ok"
    assert told
    assert set(told) <= {"NotEnoughBookiesError", "DiskFullError", "WriteError", "StoreError"}
    with bookstand.open(lost) as store:
        assert entries(store) == [b"0", b"1"]
        assert store.verify().ok


# -- bytes -----------------------------------------------------------------------------------------------------------

large = st.builds(noise, st.integers(redo.largest_within(PAGE) + 1, 20_000))
changes = st.lists(
    st.tuples(
        st.sampled_from(keys.DATABASES),
        st.binary(max_size=60),
        st.none() | st.binary(max_size=redo.largest_within(PAGE)) | large,
    ),
    max_size=40,
)


def as_written(value):
    if value is None or len(value) <= redo.largest_within(PAGE):
        return value
    return redo.Apart(len(value), google_crc32c.value(value))


@given(changes)
def test_what_is_packed_is_unpacked(changes):
    packed = redo.pack(changes, PAGE)
    values = [as_written(value) for *_, value in changes]
    size = sum(redo.CHANGE.struct.size + len(key) for _, key, _ in changes)
    size += sum(8 if isinstance(value, redo.Apart) else len(value or b"") for value in values)
    apart = sum(value.size for value in values if isinstance(value, redo.Apart))
    assert (packed is None) == (size > redo.LARGEST or apart > redo.MOST_APART)
    if packed is not None:
        expected = [
            (
                database,
                key,
                value._replace(begins=key) if isinstance(value, redo.Apart) and database == keys.ENTRIES else value,
            )
            for (database, key, _), value in zip(changes, values, strict=True)
        ]
        assert list(redo.unpack(packed)) == expected
        assert len(packed) == size
    if len(changes) > redo.MOST:
        assert packed is None or any(len(key) < keys.LEDGER_KEY.size for _, key, _ in changes)


@given(st.lists(st.binary(max_size=redo.largest_within(PAGE)) | large, min_size=1, max_size=40))
def test_what_may_be_written_down_is_tried(values):
    """Of values of one size, or of one size but for smaller ones at the end."""
    values = [values[0]] * len(values)
    packed = redo.pack([(keys.ENTRIES, b"%016d" % number, value) for number, value in enumerate(values)], PAGE)
    assert packed is None or redo.room_if_alike(len(values), len(values[0]), PAGE) <= redo.LARGEST


def test_the_layout(store, store_path):
    """As docs/architecture.md draws it."""
    store.create_ledger()
    store.nodes.put("/a", b"value")
    pages = header(store_path)
    place, commit = newest(pages)
    page = pages[1 - place]
    crc, size, number = redo.REDO.struct.unpack_from(page, 512)
    assert number == commit
    assert crc == google_crc32c.value(page[516 : 528 + size])
    records = {(database, key): value for database, key, value in redo.unpack(page[528 : 528 + size])}
    assert set(records) == {(keys.NODES, b"/a"), (keys.META, keys.META_SUMS[keys.NODES])}
    assert (
        page[528:537]
        == b"\4"
        + len(b"/a").to_bytes(2, "big")
        + len(records[keys.NODES, b"/a"]).to_bytes(2, "big")
        + b"/a"
        + (records[keys.NODES, b"/a"][:2])
    )


def test_the_layout_of_a_large_value(store, store_path):
    writer = store.create_ledger()
    writer.append(LARGE)
    pages = header(store_path)
    page = pages[1 - newest(pages)[0]]
    key = keys.ENTRY_KEY.pack(writer.id, 0)
    place = value_page(store_path, LARGE) - OVERHEAD
    with open(data_file(store_path), "rb") as file:
        file.seek(place)
        stored = file.read(OVERHEAD + len(LARGE))
    told = len(stored).to_bytes(4, "big") + google_crc32c.value(stored).to_bytes(4, "big")
    assert page[528 : 528 + 5 + 16 + 8] == b"\1" + (16).to_bytes(2, "big") + b"\xff\xfe" + key + told
    assert place % PAGE == 16
