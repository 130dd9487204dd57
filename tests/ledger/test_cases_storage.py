"""Reference cases 59-63: damaged files, a full disk, data nobody knows of.

The original's cases 59-61 are about journals and entry logs, whose ends are cut by crashes. This store has one file
that a crash leaves whole, so the cases become: a file that is cut, emptied or overwritten is reported as damage, and
neither taken for a new store nor changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand import errors
from tests.kit import Faults, data_file, eventually, failing, fill, refused, run_python, until_full

ENTRIES = 400

EXAMINE = """
import json, sys
import bookstand

path, check, ledger_id, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
answer = {"opened": False, "wrong": 0, "right": 0, "read_codes": [], "problems": 0, "ledgers": None}
try:
    with bookstand.open(path, check=check) as store:
        answer["opened"] = True
        try:
            answer["ledgers"] = list(store.list_ledgers())
            reader = store.open_ledger(ledger_id, recovery=False)
        except bookstand.BookstandError as error:
            answer["error"] = type(error).__name__
        else:
            for entry_id in range(count):
                try:
                    (entry,) = reader.read(entry_id, entry_id)
                except bookstand.BookstandError as error:
                    answer["read_codes"].append(getattr(error, "code", None))
                else:
                    right = entry.data == b"%d" % entry_id * 100
                    answer["right" if right else "wrong"] += 1
        try:
            answer["problems"] = len(store.verify().problems)
        except bookstand.BookstandError as error:
            answer["problems"] = -1
except bookstand.BookstandError as error:
    answer["error"] = type(error).__name__
    answer["message"] = str(error)
print(json.dumps(answer))
"""


def examine(path: Path, check: str, ledger_id: int) -> dict[str, Any]:
    """Open and read everything in a process of its own: damage must never kill it."""
    done = run_python(EXAMINE, path, check, ledger_id, ENTRIES)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    answer = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def reported(answer: dict[str, Any]) -> None:
    """No wrong payload, no absence, and unless everything is there, damage is named."""
    assert answer["wrong"] == 0
    assert -13 not in answer["read_codes"]
    assert -7 not in answer["read_codes"]
    if answer["right"] < ENTRIES:
        assert answer.get("error") in (None, "StoreDamagedError", "NotAStoreError"), answer
        assert "error" in answer or answer["problems"] != 0, answer


@pytest.fixture
def written(open_store, store_path) -> tuple[Path, int]:
    """A closed store with one closed ledger of some pages; its data file and the ledger's id."""
    store = open_store()
    writer = store.create_ledger()
    for start in range(0, ENTRIES, 50):
        writer.append_many(b"%d" % i * 100 for i in range(start, start + 50))
    writer.close()
    store.close()
    return data_file(store_path), writer.id


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.damaged
@pytest.mark.parametrize("check", ["fast", "full", "subprocess"])
@pytest.mark.parametrize("kept", [0.95, 0.5, 0.1, 3 * 4096, 2 * 4096 + 17])
def test_case_59_a_file_cut_short(written, store_path, kept, check):
    file, ledger_id = written
    size = int(file.stat().st_size * kept) if isinstance(kept, float) else kept
    os.truncate(file, size)
    answer = examine(store_path, check, ledger_id)
    reported(answer)
    if kept != 0.95:  # the last pages may be free ones
        assert "error" in answer or answer["problems"] != 0


@pytest.mark.damaged
@pytest.mark.parametrize("check", ["fast", "full", "subprocess"])
@pytest.mark.parametrize("kept", [0, 1, 100, 4095, 4096, 8192])
def test_case_60_empty_or_header_only(written, store_path, kept, check):
    file, ledger_id = written
    os.truncate(file, kept)
    before = digest(file)
    answer = examine(store_path, check, ledger_id)
    assert answer.get("error") in ("StoreDamagedError", "NotAStoreError"), answer
    assert not answer["opened"], answer
    assert file.stat().st_size == kept
    assert digest(file) == before


@pytest.mark.damaged
@pytest.mark.parametrize("check", ["full", "subprocess"])
@pytest.mark.parametrize("filler", [b"\xff", b"\0", b"\x80", b"bookstand"])
@pytest.mark.parametrize("first_page", [0, 2, 5])
def test_case_61_garbage(written, store_path, filler, first_page, check):
    """Garbage over the rest of the file, as a record of negative length was: refused, and left as it is."""
    file, ledger_id = written
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.seek(first_page * 4096)
        rest = size - first_page * 4096
        stream.write((filler * (rest // len(filler) + 1))[:rest])
    before = digest(file)
    answer = examine(store_path, check, ledger_id)
    reported(answer)
    assert answer.get("error") in ("StoreDamagedError", "NotAStoreError") or answer["problems"] != 0, answer
    if not answer["opened"]:
        assert digest(file) == before


@pytest.mark.damaged
@pytest.mark.parametrize("check", ["full", "subprocess"])
@pytest.mark.parametrize("page", range(2, 14))
def test_case_61_one_page_overwritten(written, store_path, page, check):
    file, ledger_id = written
    if (page + 1) * 4096 > file.stat().st_size:
        pytest.skip("the file has no such page")
    with file.open("r+b") as stream:
        stream.seek(page * 4096)
        stream.write(random.Random(page).randbytes(4096))
    reported(examine(store_path, check, ledger_id))


@pytest.mark.damaged
def test_case_61_a_damaged_store_is_named_in_the_message(written, store_path):
    file, _ = written
    os.truncate(file, 4096)
    with pytest.raises(errors.StoreError) as caught:
        bookstand.open(store_path)
    assert str(store_path) in str(caught.value)


def test_case_62_a_full_disk(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(600 << 10))
    with bookstand.open(small_disk / "store") as store:
        early = store.create_ledger()
        early.append(b"early")
        early.close()
        spare = store.create_ledger()
        spare.append(b"spare")
        writer = store.create_ledger()
        acknowledged = fill(writer)
        assert acknowledged > 50
        # Reads go on, of this handle and of others.
        assert writer.last_add_confirmed == acknowledged - 1
        assert len(writer.read(0, acknowledged - 1)) == acknowledged
        assert [entry.data for entry in store.open_ledger(early.id)] == [b"early"]
        assert [entry.data for entry in spare.read(0, 0)] == [b"spare"]
        assert early.id in list(store.list_ledgers())
        # Adds and creations are refused.
        until_full(store.create_ledger)
        until_full(store.create_ledger, limit=50)
        until_full(lambda: spare.append(bytes(3000)), limit=1)
        with refused(-11):
            writer.append(bytes(3000))
        ballast.unlink()
        # Writable again, on the same store, with nothing lost.
        later = eventually(lambda: _try_create(store), "writable again")
        for i in range(20):
            assert later.append(bytes(3000)) == i
        later.close()
        reader = store.open_ledger(writer.id)
        assert reader.last_add_confirmed >= acknowledged - 1
        for entry in reader.read(0, acknowledged - 1):
            assert entry.data == bytes([entry.entry_id % 251]) * 3000
        report = store.verify()
        assert report.ok, report.problems
    with bookstand.open(small_disk / "store") as store:
        assert store.open_ledger(writer.id).last_add_confirmed >= acknowledged - 1
        assert store.open_ledger(later.id).last_add_confirmed == 19
        report = store.verify()
        assert report.ok, report.problems


def _try_create(store) -> Any:
    try:
        return store.create_ledger()
    except errors.NotEnoughBookiesError:
        return None


def test_case_62_reopened_while_the_disk_is_full(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(600 << 10))
    with bookstand.open(small_disk / "store") as store:
        writer = store.create_ledger()
        acknowledged = fill(writer)
    with bookstand.open(small_disk / "store") as store:
        reader = store.open_ledger(writer.id, recovery=False)
        assert len(reader.read_unconfirmed(0, acknowledged - 1)) == acknowledged
        ballast.unlink()
        assert store.open_ledger(writer.id).last_add_confirmed >= acknowledged - 1
        assert store.verify().ok


def test_case_62_a_store_cannot_be_created_on_a_full_disk(small_disk):
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError:
            pass
    with pytest.raises(errors.BookstandError) as caught:
        bookstand.open(small_disk / "store")
    assert isinstance(caught.value, errors.DiskFullError) or isinstance(caught.value.__cause__, errors.DiskFullError)
    ballast.unlink()
    with bookstand.open(small_disk / "store") as store:
        assert store.create_ledger().append(b"a") == 0


def test_case_62_a_store_opened_read_only(open_store):
    store = open_store()
    writer = store.create_ledger()
    writer.append(b"a")
    writer.append(b"b")
    closed = store.create_ledger()
    closed.append(b"c")
    closed.close()
    reading = open_store(read_only=True)
    reader = reading.open_ledger(writer.id, recovery=False)
    assert [entry.data for entry in reader.read_unconfirmed(0, 1)] == [b"a", b"b"]
    assert [entry.data for entry in reading.open_ledger(closed.id)] == [b"c"]
    assert list(reading.list_ledgers()) == [writer.id, closed.id]
    for call in (
        lambda: reading.create_ledger(),
        lambda: reading.create_ledger_adv(99),
        lambda: reading.delete_ledger(closed.id),
        lambda: reading.open_ledger(writer.id, recovery=True),
    ):
        with refused(-104) as caught:
            call()
        assert caught.type is errors.WriteOnReadOnlyError
    assert writer.append(b"not fenced") == 2


def limbo(ledger_id: int, entry_id: int, stored: bytes | None) -> bytes | None:
    if stored is None:
        raise errors.DataUnknownError
    return stored


@pytest.mark.parametrize("wire_name", ["v3", "v2"])
def test_case_63_limbo(open_store, wire_name):
    faults = Faults()
    store, other = open_store(wire=wire_name, hooks=faults), open_store(wire=wire_name)
    writer = store.create_ledger()
    for payload in (b"a", b"b", b"c"):
        writer.append(payload)
    reader = other.open_ledger(writer.id, recovery=False)
    faults.on_entry = limbo
    assert [entry.data for entry in reader.read_unconfirmed(0, 2)] == [b"a", b"b", b"c"]
    for bounds in ((3, 3), (0, 3), (7, 9)):
        with refused(-108) as caught:
            reader.read_unconfirmed(*bounds)
        assert caught.type is errors.DataUnknownError
    with refused(-108):
        reader.batch_read_unconfirmed(3, 1, 0)
    with refused(-10):
        other.open_ledger(writer.id, recovery=True)
    faults.mend()
    with refused(-13):
        reader.read_unconfirmed(3, 3)
    assert other.open_ledger(writer.id).last_add_confirmed == 2


def test_case_63_limbo_of_confirmed_entries(open_store):
    faults = Faults()
    store, other = open_store(hooks=faults), open_store()
    writer = store.create_ledger()
    for payload in (b"a", b"b", b"c"):
        writer.append(payload)
    writer.close()
    reader = other.open_ledger(writer.id)
    faults.on_entry = failing(errors.DataUnknownError)
    for read in (
        lambda: reader.read(1, 1),
        lambda: reader.read_unconfirmed(0, 2),
        lambda: reader.read_last_entry(),
        lambda: reader.batch_read(0, 3, 0),
        lambda: list(reader),
    ):
        with refused(-108):
            read()
    faults.mend()
    assert [entry.data for entry in reader] == [b"a", b"b", b"c"]
