"""Exports that are cut off: whatever is left is removed by the next one, and what looks whole is whole."""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand import Store
from bookstand.disk.exporter.run import export_topics
from bookstand.disk.exporter.staging import UNFINISHED
from bookstand.errors import DiskFullError, NotEnoughBookiesError, StoreError, StoreInUseError
from bookstand.storage.commit.entry_operations import Fence
from bookstand.storage.commit.operations import WriteBatch
from bookstand.storage.format.digest import master_key
from tests.disk.exports import bytes_below, imported, same_ledgers
from tests.disk.failing_exports import Case, Ended
from tests.disk.full_store import ODD, PAGED, PLAIN, FullStore
from tests.kit import Program
from tests.storage import shim

ONCE, FOR_EVER = 1, -1
Run = Callable[[Case], tuple[Ended, list[str]]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with bookstand.open(tmp_path / "store", durability="none") as made:
        FullStore(made, random.Random(3))
        yield made


@pytest.fixture
def run(shim_library: Path, memory_path: Path) -> Iterator[Run]:
    with bookstand.open(memory_path / "store", durability="none") as made:
        FullStore(made, random.Random(2))
    source = "import sys; from tests.disk import failing_exports; failing_exports.main(*sys.argv[1:])"
    with Program(source, memory_path / "store", memory_path / "folder", LD_PRELOAD=shim_library) as program:
        cases = 0

        def run_case(case: Case) -> tuple[Ended, list[str]]:
            nonlocal cases
            cases += 1
            program.tell(json.dumps(case))
            ended, problems = json.loads(program.wait_for_lines(cases)[-1])
            return Ended(*ended), problems

        yield run_case
        assert program.finish() == 0


def test_killed_before_each_file_operation(run: Run) -> None:
    total = run(Case())[0].seen
    assert total > 50
    for when in range(1, total + 1):
        ended, problems = run(Case(when=when))
        assert (ended.how, problems) == ("killed", []), when


@pytest.mark.long
@pytest.mark.parametrize(
    ("operations", "answer", "times"),
    [
        (shim.CHANGING, errno.ENOSPC, ONCE),
        (shim.CHANGING, errno.ENOSPC, FOR_EVER),
        (shim.CHANGING, errno.EIO, ONCE),
        (shim.CHANGING, errno.EIO, FOR_EVER),
        # Done, and failed all the same.
        (shim.CHANGING, -errno.EIO, ONCE),
        (shim.LOOKING, errno.EIO, ONCE),
        (shim.LOOKING, errno.EIO, FOR_EVER),
        (shim.WRITES, shim.SHORT, ONCE),
    ],
)
def test_failing_file_operations(run: Run, operations: str, answer: int, times: int) -> None:
    total = run(Case(operations))[0].seen
    assert total > 5
    refused = 0
    # Some each, and others for each fault.
    for when in random.Random(f"{operations} {answer} {times}").sample(range(1, total + 1), total // 2):
        ended, problems = run(Case(operations, when, answer, times))
        assert not problems, (when, ended, problems)
        if ended.how != "ok":
            refused += 1
            assert ended.how in ("StoreError", "NotEnoughBookiesError"), (when, ended)
            assert ended.disk_full == (answer == errno.ENOSPC), (when, ended)
    assert refused or operations != shim.CHANGING


def test_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    with bookstand.open(tmp_path / "store", durability="none") as made:
        with made.create_ledger() as large:
            large.append_many([bytes(100_000)] * 50)
        with made.create_ledger() as small:
            small.append(b"small")
        with pytest.raises(NotEnoughBookiesError, match=f"cannot export to {small_disk}/export") as caught:
            export_topics(made, small_disk / "export")
        assert isinstance(caught.value.__cause__, DiskFullError)
        assert bytes_below(small_disk) == {"export": None}
        report = export_topics(made, small_disk / "export", ledgers=[small.id])
        assert report.entries == 1


# -- one at a time -----------------------------------------------------------------------------------------------------


def meanwhile(store: Store, folder: Path, change: Callable[[], object], **options: Any) -> None:
    """``change`` comes when the first ledger is written."""

    def progress(done: int, total: int) -> None:
        if done == 1:
            change()

    export_topics(store, folder, progress=progress, **options)


def test_another_export_to_the_same_place(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "place"

    def another() -> None:
        with pytest.raises(StoreInUseError, match="another export"):
            export_topics(store, target)

    meanwhile(store, target, another)
    assert UNFINISHED not in bytes_below(target)


def test_somebody_puts_something_there(store: Store, tmp_path: Path) -> None:
    """It stays; an error that comes then does not hide why."""
    target = tmp_path / "place"

    def put() -> None:
        (target / "mine").write_bytes(b"mine")
        store.delete_ledger(max(store.list_ledgers()))

    with pytest.raises(StoreInUseError):
        meanwhile(store, target, put)
    assert (target / "mine").read_bytes() == b"mine"
    with pytest.raises(StoreError, match="mine is there"):
        export_topics(store, target)


def next_ledger(store: Store) -> None:
    store.topic(PLAIN).publish(b"more")


def acknowledge(store: Store) -> None:
    """The record of a cursor names another ledger then."""
    cursor = store.topic(PLAIN).cursor("s-idle", PAGED)
    cursor.ack([next(cursor.unacked()).position])
    cursor.flush()


def delete_ledger(store: Store) -> None:
    store.delete_ledger(max(store.list_ledgers()))


def new_life_of_a_node(store: Store) -> None:
    """Of the same version as the one before."""
    store.nodes.delete("/somebody/else's")
    store.nodes.put("/somebody/else's", b"another")


def unsubscribe(store: Store) -> None:
    store.topic(PLAIN).unsubscribe("s-done")


@pytest.mark.parametrize("change", [next_ledger, acknowledge, delete_ledger, new_life_of_a_node, unsubscribe])
def test_what_changes_meanwhile(store: Store, tmp_path: Path, change: Callable[[Store], None]) -> None:
    with pytest.raises(StoreInUseError, match="while it was exported"):
        meanwhile(store, tmp_path / "place", lambda: change(store))
    assert bytes_below(tmp_path / "place") == {}
    # A backup does not change.
    store.backup(tmp_path / "backup")
    with bookstand.open(tmp_path / "backup", read_only=True) as backup, bookstand.temporary() as target:
        imported(export_topics(backup, tmp_path / "place"), target)


def test_changes_elsewhere_do_not_matter(store: Store, tmp_path: Path) -> None:
    def change() -> None:
        next_ledger(store)
        delete_ledger(store)
        store.nodes.put("/somebody/new", b"")

    meanwhile(store, tmp_path / "place", change, topics=[ODD])


def test_ledgers_that_grow_meanwhile(store: Store, tmp_path: Path) -> None:
    """Each is exported as it is when it comes to it: what was confirmed before it began is there."""
    writer = store.create_ledger()
    writer.append_many([b"before"] * 5)

    def change() -> None:
        writer.append_many([b"after"] * 5)
        store.storage.apply(WriteBatch(Fence(writer.id, master_key(b""))))

    meanwhile(store, tmp_path / "place", change)
    store.backup(tmp_path / "backup")
    (tmp_path / "place").rename(tmp_path / "moved")
    with bookstand.open(tmp_path / "backup") as now, bookstand.temporary() as target:
        imported(export_topics(now, tmp_path / "place", old_form=False), target)
        same_ledgers(now, target)
        assert [entry.data for entry in target.open_ledger(writer.id)] == [b"before"] * 5 + [b"after"] * 5
