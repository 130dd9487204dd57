"""Commands that write stores: what is in them then, what they say of it, and how they end when they are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.errors import IncorrectParameterError
from bookstand.storage.lmdb.environment import data_file
from bookstand.storage.lmdb.pages import newest_commit
from bookstand.tools import store_upgrade
from bookstand.tools.cli.exit_codes import DAMAGE, FAILED, FINE, INTERRUPTED, NOT_THERE, WRONG_ARGUMENTS
from bookstand.tools.commands import upgrade
from tests.kit import PATIENCE
from tests.page_damage import spoil_free_list, zero_leaf
from tests.tools import kit
from tests.tools.child import Terminal, finished, start, without_control
from tests.tools.kit import run


def payloads(path: Path | str, ledger_id: int) -> list[bytes]:
    with bookstand.open(path, create=False, read_only=True) as store:
        return [entry.data for entry in store.open_ledger(ledger_id, recovery=False)]


@pytest.mark.parametrize(
    "words",
    [
        "backup {store} {address}",
        "backup {address} copy",
        "report {store} --output {address}",
        "report {address}",
        "repair {store} {address}",
        "export-bookie {store} {address}",
        "import-bookie {bookie} {address}",
        "import-bookie {bookie} new --metadata {address}",
        "serve {address} --zookeeper 0 --bookies 1",
        "verify {address}",
    ],
)
@pytest.mark.parametrize("address", ["s3a://bucket/store", "hdfs:/store"])
def test_addresses_are_rejected_before_any_work(
    bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, address: str
) -> None:
    """They would be relative paths otherwise."""
    monkeypatch.chdir(tmp_path)
    store = bench / "my-store"
    before = data_file(store)
    octets = Path(before).read_bytes()
    result = run(*words.format(store=store, bookie=bench / "bookie", address=address).split())
    assert result.code == WRONG_ARGUMENTS
    assert "must be a local path" in result.err
    assert list(tmp_path.iterdir()) == []
    assert Path(before).read_bytes() == octets


def test_a_store_has_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with bookstand.open("./s3a:/store") as store:
        for do in (bookstand.open, store.backup):
            with pytest.raises(
                IncorrectParameterError, match=r"not the address 's3a://store' \(\./s3a://store is a local"
            ):
                do("s3a://store")
        (tmp_path / "a:").mkdir()
        store.backup("a:/b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a:", "s3a:"]


# -- backup ------------------------------------------------------------------------------------------------------------

WRITER = """
import sys
import bookstand

with bookstand.open(sys.argv[1]) as store:
    writer = store.create_ledger()
    print(writer.id, flush=True)
    while True:
        writer.append_many([b"busy"] * 10)
        print(writer.last_add_confirmed, flush=True)
"""


def test_a_backup_while_another_process_writes(own: Path) -> None:
    """What was confirmed before it began is in it, and it is whole."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, "my-store"], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        ledger_id = int(writer.stdout.readline())
        confirmed = int(writer.stdout.readline())
        told = run("backup", "my-store", "copy", "--json")
    finally:
        writer.kill()
        writer.communicate(timeout=PATIENCE)
    assert told.code == FINE
    assert told.json["bytes"] == os.path.getsize("copy/data.mdb")
    assert told.json["commit"] == newest_commit("copy/data.mdb")
    assert sorted(os.listdir("copy")) == ["data.mdb"]
    found = payloads("copy", ledger_id)
    assert len(found) > confirmed
    assert set(found) == {b"busy"}
    assert run("verify", "copy", "--json").json["ok"]


def test_a_backup_never_overwrites(own: Path) -> None:
    (own / "copy").mkdir()
    (own / "copy" / "mine").write_text("mine")
    result = run("backup", "my-store", "copy")
    assert (result.code, result.err) == (WRONG_ARGUMENTS, "bookstand: the folder copy for the backup is not empty\n")
    assert [path.name for path in (own / "copy").iterdir()] == ["mine"]
    (own / "file").touch()
    assert run("backup", "my-store", "file").code == FAILED
    # Nor does one that fails leave a folder behind.
    (own / "my-store" / "data.mdb").write_bytes(b"damaged")
    assert run("backup", "my-store", "new").code == DAMAGE
    assert not (own / "new").exists()


def test_what_a_killed_backup_left_is_cleared(own: Path) -> None:
    left = own / "copy" / "creating-copy"
    left.mkdir(parents=True)
    (left / "data.mdb").write_bytes(b"half")
    assert run("backup", "my-store", "copy").code == FINE
    assert sorted(os.listdir("copy")) == ["data.mdb"]
    assert run("verify", "copy").code == FINE
    # Of somebody else nothing is.
    other = own / "other" / "creating-copy"
    other.mkdir(parents=True)
    (other / "mine").write_text("mine")
    assert run("backup", "my-store", "other").code == WRONG_ARGUMENTS
    assert (other / "mine").read_text() == "mine"


# -- compact -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def wasteful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store most of which was deleted."""
    monkeypatch.chdir(tmp_path)
    with bookstand.open("store") as store:
        kept, gone = store.create_ledger(), store.create_ledger()
        kept.append_many([b"kept"] * 10)
        kept.close()
        gone.append_many([b"x" * 1000] * 2000)
        gone.close()
        store.delete_ledger(gone.id)
    return tmp_path / "store"


def test_compacting_gives_back_what_it_says(wasteful: Path) -> None:
    size = os.path.getsize(data_file("store"))
    before = (wasteful / "data.mdb").read_bytes()
    dry = run("compact", "store", "--dry-run", "--json").json
    assert (wasteful / "data.mdb").read_bytes() == before
    assert (dry["before"], dry["after"], dry["gained"]) == (size, None, None)
    assert dry["of_deleted"] > 2000 * 1000
    done = run("compact", "store", "--json").json
    assert done["before"] - done["after"] == done["gained"] > 2000 * 1000
    assert done["after"] == os.path.getsize(data_file("store")) < size // 10
    assert payloads("store", 0) == [b"kept"] * 10
    again = run("compact", "store", "--json").json
    assert (again["gained"], again["free"], again["of_deleted"]) == (0, 0, 0)


@pytest.mark.parametrize("size", [100, 1300, 1900, 2100, 5000])
def test_a_dry_run_counts_the_pages_of_entries(tmp_path: Path, size: int) -> None:
    """Large ones take whole pages."""
    path = tmp_path / "store"
    with bookstand.open(path) as store:
        with store.create_ledger() as writer:
            writer.append_many([b"x" * size] * (2_000_000 // size))
        store.delete_ledger(writer.id)
    told = run("compact", path, "--dry-run", "--json").json
    gained = run("compact", path, "--json").json["gained"]
    assert abs(told["free"] + told["of_deleted"] - gained) < gained / 20


READER = """
import bookstand, sys

store = bookstand.open("store", read_only=True)
print(1, flush=True)
sys.stdin.read()
"""


def test_compacting_a_store_that_others_have_open(wasteful: Path) -> None:
    reader = subprocess.Popen([sys.executable, "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert reader.stdout is not None
        reader.stdout.readline()
        result = run("compact", "store")
        assert result.code == FINE
        assert "note: another process has the store open: the size of the file does not change" in result.out
        assert run("compact", "store", "--json").json["of_deleted"] == 0
    finally:
        reader.communicate("", timeout=PATIENCE)


def test_compacting_a_damaged_file_is_refused(own: Path) -> None:
    kit.cut_file(own / "my-store")
    before = (own / "my-store" / "data.mdb").read_bytes()
    result = run("compact", "my-store")
    assert result.code == DAMAGE
    assert "is damaged" in result.err
    assert (own / "my-store" / "data.mdb").read_bytes() == before


# -- upgrade -----------------------------------------------------------------------------------------------------------


def test_upgrading(own: Path) -> None:
    kit.fill_old(own / "old-store")
    before = (own / "old-store" / "data.mdb").read_bytes()
    told = run("upgrade", "old-store", "--dry-run", "--json").json
    assert (own / "old-store" / "data.mdb").read_bytes() == before
    done = run("upgrade", "old-store", "--json").json
    assert {**done, "dry_run": True} == told
    assert [(one["before"], one["after"]) for one in done["metadata"]] == [(2, 3)]
    assert done["cursors"] == [{"topic": kit.ORDERS, "cursor": "billing", "before": "snapshot", "after": "pages"}]
    with bookstand.open("old-store") as store:
        assert store.ledger_metadata(0).format_version == 3
    again = run("upgrade", "old-store")
    assert (again.code, again.out.splitlines()[-1]) == (FINE, "there is nothing to upgrade")
    assert run("verify", "old-store", "--json").json["ok"]


def test_a_healthy_store_is_not_written_to(own: Path) -> None:
    before = (own / "my-store" / "data.mdb").read_bytes()
    assert run("upgrade", "my-store").code == FINE
    assert (own / "my-store" / "data.mdb").read_bytes() == before


def test_metadata_of_the_first_format_stays(own: Path) -> None:
    with bookstand.open("first", metadata_format=1) as store:
        store.create_ledger().close()
    result = run("upgrade", "first")
    assert result.code == FINE
    assert "the metadata has neither digest nor password: ledger 0" in result.out
    assert result.out.splitlines()[-1] == "there is nothing to upgrade"


def test_what_cannot_be_read_stays_as_it_is(own: Path) -> None:
    kit.fill_old(own / "old-store")
    from tests import kit as raw_kit

    with raw_kit.raw(own / "old-store", write=True) as database:
        ledgers = database(b"ledgers")
        key = (0).to_bytes(8, "big")
        ledgers[key] = ledgers[key][:-1] + b"?"
    result = run("upgrade", "old-store", "--json")
    assert result.code == DAMAGE
    assert any("ledger 0 is damaged" in problem for problem in result.json["problems"])


def test_a_store_that_another_process_writes_to_is_not_upgraded(own: Path) -> None:
    with bookstand.open("my-store"):
        result = run("upgrade", "my-store")
    assert (result.code, result.out) == (FAILED, "")
    assert "is being written to" in result.err


UPGRADED_MEANWHILE = """
import bookstand, sys

with bookstand.open("old-store") as store:
    topic = store.managed_ledger(sys.argv[1])
    topic.append(b"more")
    print(flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def another(own: Path) -> Iterator[Callable[[], None]]:
    """Has another process open a store in older forms, and its topic."""
    kit.fill_old(own / "old-store")
    processes: list[subprocess.Popen[str]] = []

    def begin() -> None:
        arguments = [sys.executable, "-c", UPGRADED_MEANWHILE, kit.ORDERS]
        processes.append(subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert processes[0].stdout is not None
        processes[0].stdout.readline()

    yield begin
    for process in processes:
        process.communicate("", timeout=PATIENCE)


def test_who_comes_while_it_looks_is_not_written_past(
    own: Path, monkeypatch: pytest.MonkeyPatch, another: Callable[[], None]
) -> None:
    def looked(*arguments: Any) -> store_upgrade.UpgradeReport:
        report = store_upgrade.look(*arguments)
        another()
        return report

    monkeypatch.setattr(upgrade, "look", looked)
    result = run("upgrade", "old-store")
    assert (result.code, result.out) == (FAILED, "")
    assert "old-store is being written to by another process" in result.err


def test_a_cursor_that_another_process_may_have_is_left(own: Path, another: Callable[[], None]) -> None:
    another()
    dry = run("upgrade", "old-store", "--dry-run", "--json")
    assert dry.code == FAILED
    (left,) = dry.json["left"]
    assert (left["cursor"], left["held"], left["damaged"]) == ("billing", True, False)
    assert dry.json["cursors"] == []
    assert "skipped: acme/shop/orders : billing: cursor 'billing'" in run("upgrade", "old-store", "--dry-run").out


def test_a_cursor_is_left_to_who_comes_while_it_upgrades(own: Path, another: Callable[[], None]) -> None:
    with bookstand.open("old-store") as store:
        found = store_upgrade.look(store, [kit.ORDERS])
        comes = iter([another])
        report = store_upgrade.upgrade(store, found, lambda done, total: next(comes, lambda: None)())
    assert (len(found.cursors), report.cursors) == (1, [])
    assert [(one["cursor"], one["held"]) for one in report.left] == [("billing", True)]


def test_a_newer_store(own: Path) -> None:
    kit.make_newer(own / "my-store")
    result = run("upgrade", "my-store")
    assert result.code == NOT_THERE
    assert "open it with a newer version" in result.err


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
@pytest.mark.parametrize("spoil", [spoil_free_list, zero_leaf])
@pytest.mark.parametrize("command", ["upgrade", "migrate cursors", "migrate snapshots"])
def test_a_damaged_file_is_not_written_to(
    own: Path, command: str, spoil: Callable[[Path], None], dry_run: tuple[str, ...]
) -> None:
    """There is something to be done, and LMDB would do it on pages that are in use."""
    more = {"migrate cursors": ("--to", "snapshot"), "migrate snapshots": ("--least", "5")}.get(command, ())
    if command == "upgrade":
        with bookstand.open("my-store", metadata_format=2) as store:
            store.create_ledger().close()
    spoil(own / "my-store")
    before = (own / "my-store" / "data.mdb").read_bytes()
    result = run(*command.split(), "my-store", *more, *dry_run)
    assert (result.code, result.out) == (DAMAGE, "")
    assert "data.mdb is damaged" in result.err
    assert result.err.endswith(": bookstand repair saves what can be saved\n")
    assert (own / "my-store" / "data.mdb").read_bytes() == before


# -- repair ------------------------------------------------------------------------------------------------------------


def test_a_repair_that_loses_something(own: Path) -> None:
    kit.damage_entry(own / "my-store", 2, 7)
    kit.damage_entry(own / "my-store", 5, 6)
    result = run("repair", "my-store", "saved", "--json")
    assert result.code == DAMAGE
    found = result.json
    assert [(loss["ledger"], loss["first_entry"], loss["last_entry"]) for loss in found["losses"]] == [
        (2, 7, 7),
        (5, 6, 6),
    ]
    assert (found["ok"], found["lost_entries"], found["entries"]) == (False, 2, 392)
    assert any("cursor 'audit'" in one["what"] for one in found["affected"])
    # The two are told to be lost, and everything else is as it was.
    damage = run("verify", "saved", "--json").json["damage"]
    assert {(one["ledger"], one["entry"]) for one in damage if one["entry"] is not None} >= {(2, 7)}
    told = run("show", "saved", "2:7")
    assert told.code == DAMAGE


def test_a_topic_goes_on_in_the_new_store(own: Path) -> None:
    """Past what is lost of it, which reads as lost."""
    kit.damage_entry(own / "my-store", 3, 5)
    kit.damage_entry(own / "my-store", 5, 6)
    assert run("repair", "my-store", "saved").code == DAMAGE
    with bookstand.open("saved") as store:
        topic = store.topic(kit.ORDERS)
        audit = topic.cursor("audit")
        assert not audit.is_acked(topic.publish(b"new"))
        with pytest.raises(bookstand.BookstandError, match="entry 3:5"):
            store.open_ledger(3).read(5, 5)
        assert len(store.open_ledger(3).read(6, 70)) == 65


def test_a_repair_of_what_is_nothing(own: Path) -> None:
    (own / "my-store" / "data.mdb").write_bytes(b"nothing" * 5000)
    result = run("repair", "my-store", "saved")
    assert result.code == FAILED
    assert "can be saved" in result.err
    assert not (own / "saved").exists()


def test_passwords_that_were_lost_with_their_ledger(own: Path) -> None:
    from tests import kit as raw_kit

    with raw_kit.raw(own / "my-store", write=True) as database:
        key = (0).to_bytes(8, "big")
        del database(b"ledgers")[key]
        del database(b"state")[key]
    assert run("repair", "my-store", "without", "--dry-run", "--json").json["entries"] == 194
    found = run("repair", "my-store", "with", "--password", kit.PASSWORD.decode(), "--json").json
    assert (found["entries"], found["made_up"], found["lost_entries"]) == (394, [0], 0)


# -- being stopped -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So large that there is time to stop what is done with it."""
    path = tmp_path_factory.mktemp("large") / "store"
    with bookstand.open(path, durability="none") as store, store.create_ledger() as writer:
        for _ in range(40):
            writer.append_many([b"y" * 500] * 2_000)
    return path


@pytest.mark.parametrize("line", ["repair store new", "backup store new", "upgrade store", "compact store"])
def test_ctrl_c(large: Path, tmp_path: Path, line: str) -> None:
    """It is stopped at some moment, or has ended before; either way nothing is half done."""
    kit.copied(large, tmp_path / "store")
    command, *words = line.split()
    child = start(command, *words, folder=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE
    begun = [tmp_path / "new", tmp_path / "store" / "creating-copy"]
    while child.poll() is None and not any(path.exists() for path in begun) and time.monotonic() < deadline:
        time.sleep(0.005)
    child.send_signal(signal.SIGINT)
    code, _, err = finished(child)
    assert code in (FINE, INTERRUPTED), err
    assert "Traceback" not in err
    if code == INTERRUPTED:
        assert err.endswith("bookstand: interrupted\n")
        assert not (tmp_path / "new").exists()
        if command == "repair":
            assert "the repair is not finished, and there is no store at new: run it again" in err
    made = {"new"} if code == FINE and "new" in words else set()
    assert {path.name for path in tmp_path.iterdir()} == {"store"} | made
    for name in ("store", "new"):
        if (tmp_path / name).exists():
            assert len(payloads(tmp_path / name, 0)) == 80_000


def test_progress_is_shown_on_a_terminal(large: Path, tmp_path: Path) -> None:
    kit.copied(large, tmp_path / "store")
    terminal = Terminal()
    child = start("repair", "store", "new", folder=tmp_path, stdout=subprocess.DEVNULL, stderr=terminal.end)
    text = without_control(terminal.read())
    assert child.wait(PATIENCE) == FINE
    assert "repairing" in text
