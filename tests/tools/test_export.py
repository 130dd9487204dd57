"""Stores written as bookies' disks: there and back, what is left out, what is lost, and that nothing is half done."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import bookstand
from bookstand.managed_ledger.topic_name import node_of
from bookstand.tools.cli.exit_codes import DAMAGE, FAILED, FINE, NOT_THERE, WRONG_ARGUMENTS
from tests.disk.exports import bytes_below
from tests.kit import PATIENCE, eventually, raw
from tests.tools import child, kit
from tests.tools.kit import ORDERS, run

# What another bookie changes of a ledger in a line.
HERE_ALONE = ("ensemble", "ensemble_size", "write_quorum", "ack_quorum")
# Where a cursor's state is, and in which form.
PLACES = ("source", "cursor_ledger", "ledger")


def exported(*arguments: object, code: int = FINE) -> Any:
    result = run("export-bookie", *arguments, "--json")
    assert result.code == code, result
    return result.json


def taken_back(folder: str, store: str) -> None:
    done = run("import-bookie", folder, store, "--metadata", f"{folder}/metadata.jsonl.gz", "--json")
    assert (done.code, done.json["left_out"]) == (FINE, []), done


def rows(
    command: str, store: str, key: str, *, without: tuple[str, ...] = (), code: int = FINE
) -> list[dict[str, Any]]:
    result = run(command, store, "--json")
    assert result.code == code, result
    return [{name: value for name, value in row.items() if name not in without} for row in result.json[key]]


# -- there and back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [(), ("--as-stored",)], ids=["as Pulsar reads it", "as stored"])
def test_a_store_comes_back_as_it_was(own: Path, form: tuple[str, ...]) -> None:
    done = exported("my-store", "out", *form)
    taken_back("out", "back")
    assert rows("cursors", "back", "cursors", without=PLACES) == rows("cursors", "my-store", "cursors", without=PLACES)
    at = {store: run("delayed", store, "--at", "0", "--json").json["subscriptions"] for store in ("my-store", "back")}
    assert at["back"] == at["my-store"]
    assert any(row["messages"] for row in at["back"])
    before, after = (rows("ls", store, "ledgers", without=HERE_ALONE) for store in ("my-store", "back"))
    if form:
        assert after == before
        assert done["superseded"] == []
    else:
        kept = [row for row in before if row["ledger"] not in done["superseded"]]
        assert [row for row in after if row in before] == kept
        assert len(done["superseded"]) == done["cursors"] == 2
    for row in after:
        if row["kind"] != "cursor":
            both = [run("cat", store, row["ledger"], "--raw").out for store in ("my-store", "back")]
            assert both[0] == both[1]
    assert run("verify", "back").code == FINE


def test_what_a_dry_run_says_is_done_and_then_there(own: Path) -> None:
    would = exported("my-store", "out", "--dry-run", "--log-bytes", 5000)
    assert not Path("out").exists()
    done = exported("my-store", "out", "--log-bytes", 5000)
    assert {**done, "dry_run": True} == would
    files = rows_of_files("out")
    assert sum(row["records"] for row in files) == done["entries"]
    assert len([row for row in files if row["kind"] == "entry log"]) == done["logs"] > 5
    told = run("show", "out", "--metadata", "out/metadata.jsonl.gz", "--json").json["about"]
    assert (told["ledgers"], told["topics"], told["nodes"]) == (done["ledgers"], done["topics"], done["nodes"])


def rows_of_files(folder: str) -> list[dict[str, Any]]:
    result = run("ls", folder, "--files", "--metadata", f"{folder}/metadata.jsonl.gz", "--json")
    assert result.code == FINE
    files: list[dict[str, Any]] = result.json["files"]
    return files


def test_some_topics_and_ledgers(own: Path) -> None:
    by_name = exported("my-store", "by-name", "--topic", ORDERS)
    by_end = exported("my-store", "by-end", "--topic", "orders", "--bookie", "other")
    by_pattern = exported("my-store", "by-pattern", "--topic", "*/ord*", "--topic", "orders")
    assert by_name["topics"] == by_end["topics"] == by_pattern["topics"] == 1
    assert by_name["left_out"] == by_end["left_out"] == by_pattern["left_out"] == [0, 1, 6]
    assert by_end["bookie"].endswith("/by-end/other")
    topics = run("ls", "by-end/other", "--metadata", "by-end/metadata.jsonl.gz", "--topics", "--json").json["topics"]
    assert [row["topic"] for row in topics] == [ORDERS]
    ledgers = exported("my-store", "ledgers", "--ledger", 0, "--ledger", 1)
    assert (ledgers["topics"], ledgers["ledgers"], ledgers["entries"]) == (0, 2, 203)
    both = exported("my-store", "both", "--ledger", 0, "--topic", "orders")
    assert both["left_out"] == [1, 6]


def test_what_it_prints(own: Path) -> None:
    text = run("export-bookie", "my-store", "out", "--topic", "orders").out
    assert "\nexported       1        4" in text
    assert "disk: out/bookie-0, metadata: out/metadata.jsonl.gz\n" in text
    assert "left out because snapshots replace them: ledgers 5, 8\n" in text
    assert "left out because they were not requested: ledgers 0, 1, 6\n" in text


# -- damage ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_what_is_lost_is_named_and_the_rest_is_there(here: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    done = exported("damaged-store", out, *options, code=DAMAGE)
    assert {(one["ledger"], one["entry"]) for one in done["damage"]} == {(2, 7), (3, 5)}
    text = run("export-bookie", "damaged-store", tmp_path / "other", *options)
    assert text.code == DAMAGE
    assert "entry 2:7" in text.out
    assert "entry 3:5" in text.out
    if options:
        assert not out.exists()
        return
    lost = {(2, 7), (3, 5)}
    read = {(row["ledger"], row["entry"]) for row in entries("damaged-store") if "ledger" in row}
    assert {(row["ledger"], row["entry"]) for row in entries(out, "--metadata", out / "metadata.jsonl.gz")} == read
    assert not read & lost


def entries(place: object, *options: object) -> list[dict[str, Any]]:
    result = run("cat", place, 2, 3, "--json", *options)
    assert result.code == DAMAGE
    return [row for row in result.lines if "damage" not in row]


def test_a_topic_that_damage_may_hide(own: Path) -> None:
    with raw(own / "my-store", write=True) as database:
        nodes, key = database(b"nodes"), node_of(ORDERS).encode()
        nodes[key] = nodes[key][:-1] + bytes((nodes[key][-1] ^ 1,))
    result = run("export-bookie", "my-store", "out", "--topic", "orders")
    assert result.code == DAMAGE
    assert "there is no topic 'orders'; damage may hide it: " in result.err
    assert not Path("out").exists()


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["my-store"], WRONG_ARGUMENTS, "Missing argument"),
        (["bookie", "out"], NOT_THERE, "bookie is a bookie, not a store"),
        (["something", "out"], NOT_THERE, "neither a store nor a bookie's disk"),
        (["nothing", "out"], NOT_THERE, "there is nothing at nothing"),
        (["my-store", "something"], FAILED, "something is not empty: else.txt is there"),
        (["my-store", "something/else.txt"], FAILED, "cannot export to"),
        (["my-store", "out", "--topic", "nix"], NOT_THERE, "there is no topic 'nix'"),
        (["my-store", "out", "--ledger", "77"], NOT_THERE, "ledger 77 does not exist"),
        (["my-store", "out", "--bookie", "a/b"], WRONG_ARGUMENTS, "'a/b' is no name of a bookie"),
        (["my-store", "out", "--log-bytes", "10"], WRONG_ARGUMENTS, "a log has from 1024 to"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["run", "dry-run"])
def test_what_is_refused(here: Path, arguments: list[str], code: int, says: str, more: list[str]) -> None:
    result = run("export-bookie", *arguments, *more)
    assert (result.code, result.out, result.err.count("\n")) == (code, "", 1)
    assert says in result.err
    assert not (here / "out").exists()


def test_a_newer_store(own: Path) -> None:
    kit.make_newer(own / "my-store")
    assert run("export-bookie", "my-store", "out").code == NOT_THERE
    assert not Path("out").exists()


def test_a_store_that_is_in_use_is_exported_as_it_is(own: Path) -> None:
    with bookstand.open("my-store") as store, store.create_ledger() as writer:
        writer.append_many([b"new"] * 5)
        done = exported("my-store", "out")
        assert done["ledgers"] == 8
    taken_back("out", "back")
    assert run("cat", "back", writer.id, "--raw").out == "new" * 5


# -- killed ------------------------------------------------------------------------------------------------------------


def test_killed_and_run_again(own: Path) -> None:
    """By then there is something of it, or it is over; the next one leaves the same bytes."""
    with bookstand.open("my-store") as store, store.create_ledger() as writer:
        writer.append_many([b"x" * 1000] * 3000)
    exported("my-store", "whole")
    place = Path("out")
    process = child.start("export-bookie", "my-store", place)
    eventually(lambda: place.exists() and any(place.iterdir()), "the export")
    process.send_signal(signal.SIGKILL)
    assert process.wait(PATIENCE) in (-signal.SIGKILL, FINE)
    if not (place / "bookie-0").exists():
        assert not (place / "metadata.jsonl.gz").exists()
        exported("my-store", place)
    whole, again = bytes_below(Path("whole")), bytes_below(place)
    assert whole.keys() == again.keys()
    # The cookie says where it is.
    assert [name for name in whole if whole[name] != again[name] and not name.endswith(("VERSION", ".gz"))] == []
