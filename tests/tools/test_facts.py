"""What is printed is what is there: against what was put into a store, and what the originals said of their disks."""

from __future__ import annotations

import base64
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bookstand.tools.cli.exit_codes import DAMAGE, FINE
from tests.tools.kit import LONG, ORDERS, PASSWORD, START, run

DUMP = ("--metadata", "metadata.jsonl.gz")


def facts(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.code == FINE, result.err
    return result.json


# -- a store -----------------------------------------------------------------------------------------------------------


def test_ledgers_of_a_store(here: Path) -> None:
    rows = {row["ledger"]: row for row in facts("ls", "my-store")["ledgers"]}
    plain = rows[0]
    assert (plain["entries"], plain["bytes"], plain["last_entry"]) == (200, sum(range(200)), 199)
    assert (plain["ensemble_size"], plain["write_quorum"], plain["ack_quorum"]) == (3, 2, 2)
    assert (plain["digest"], plain["created"], plain["state"]) == ("hmac", "2027-01-15T08:00:00.000Z", "CLOSED")
    assert (rows[1]["state"], rows[1]["entries"], rows[1]["created"]) == ("OPEN", 3, "2027-01-15T08:01:00.000Z")
    assert [(row["kind"], row["topic"], row["cursor"]) for row in rows.values()] == [
        ("other", None, None),
        ("other", None, None),
        ("topic", ORDERS, None),
        ("topic", ORDERS, None),
        ("bucket", ORDERS, "billing"),
        ("cursor", ORDERS, "audit"),
        ("topic", LONG, None),
        ("cursor", ORDERS, "billing"),
    ]


@pytest.mark.parametrize(
    ("options", "ledgers"),
    [
        (["--kind", "topic"], [2, 3, 6]),
        (["--kind", "CURSOR"], [5, 8]),
        (["--state", "open"], [1]),
        (["--topic", "orders"], [2, 3, 4, 5, 8]),
        (["--topic", ORDERS, "--kind", "bucket"], [4]),
        (["--topic", "*a-topic*"], [6]),
        (["--topic", "rders"], []),
    ],
)
def test_filters(here: Path, options: list[str], ledgers: list[int]) -> None:
    assert [row["ledger"] for row in facts("ls", "my-store", *options)["ledgers"]] == ledgers


def test_topics_and_files_of_a_store(here: Path) -> None:
    topics = {row["topic"]: row for row in facts("ls", "my-store", "--topics")["topics"]}
    assert (topics[ORDERS]["ledgers"], topics[ORDERS]["entries"], topics[ORDERS]["cursors"]) == (2, 171, 2)
    assert topics[ORDERS]["last"] == "3:70"
    files = {row["name"]: row for row in facts("ls", "my-store", "--files")["files"]}
    assert files["entries"]["records"] == sum(row["entries"] for row in facts("ls", "my-store")["ledgers"])
    assert files["data.mdb"]["bytes"] == Path("my-store/data.mdb").stat().st_size


def test_an_entry_and_its_message(here: Path) -> None:
    entry = facts("show", "my-store", "2:7")["entry"]
    assert (entry["ledger"], entry["entry"], entry["topic"], entry["digest_right"]) == (2, 7, ORDERS, True)
    assert entry["copies"] == [{"file": "my-store/data.mdb", "bytes": entry["stored_bytes"], "verdict": "good"}]
    assert entry["message"]["properties"] == {"kind": "order"}
    assert entry["message"]["publish_time"] == "2027-01-15T08:01:00.000Z"
    assert [one["payload"] for one in entry["messages"]] == ["order 7"]
    batch = facts("show", "my-store", "3:70")["entry"]
    assert (batch["message"]["messages"], [one["payload"] for one in batch["messages"]]) == (3, ["a", "b", "c"])


def test_entries_that_are_no_messages(here: Path) -> None:
    assert facts("show", "my-store", "5:1")["entry"]["record"]["form"] == "marker"
    assert facts("show", "my-store", "5:0")["entry"]["record"] | {"mark_delete": 0} == {
        "form": "page",
        "cursor": "audit",
        "generation": 1,
        "user_ledger": 2,
        "mark_delete": 0,
        "properties": {},
    }
    bucket = facts("show", "my-store", "4:0")["entry"]["record"]
    assert (bucket["segments"], bucket["messages"]) == (10, 50)
    assert bucket["first_due"] == "2027-01-15T08:03:00.000Z"
    assert facts("show", "my-store", "4:1")["entry"]["record"]["form"] == "segment of a bucket"


def test_a_ledger_and_a_topic(here: Path) -> None:
    ledger = facts("show", "my-store", "0")["ledger"]
    assert ledger["metadata"]["custom"] == {"who": "me"}
    assert ledger["metadata"]["has_password"] is True
    assert PASSWORD.decode() not in str(ledger)
    assert (ledger["extent"]["last_entry"], ledger["extent"]["missing"], ledger["fenced"]) == (199, [], False)
    topic = facts("show", "my-store", "orders")["topic"]
    assert [(one["ledger"], one["entries"]) for one in topic["ledgers"]] == [(2, 100), (3, 71)]
    assert {one["cursor"]: one["backlog"] for one in topic["cursors"]} == {"audit": 163, "billing": 121}


def test_a_node(here: Path) -> None:
    node = facts("show", "my-store", "--node", "/notes/today")["node"]
    assert (node["value"], node["bytes"], node["version"], node["children"]) == ("grün", 5, 0, [])
    assert "notes" in facts("show", "my-store", "--node", "/")["node"]["children"]
    topic = facts("show", "my-store", "--node", "/managed-ledgers/acme/shop/persistent/orders")["node"]
    assert [one["ledger_id"] for one in topic["record"]["ledgers"]] == [2, 3]
    cursor = facts("show", "my-store", "--node", "/managed-ledgers/acme/shop/persistent/orders/audit")["node"]
    assert cursor["record"]["cursor_ledger_id"] == 5


def test_what_is_acknowledged(here: Path) -> None:
    audit, billing = facts("cursors", "my-store", "orders")["cursors"]
    assert (audit["mark_delete"], audit["next"], audit["backlog"]) == ("2:3", "2:4", 163)
    assert (audit["holes"], audit["acked"], audit["ranges"]) == (4, 4, ["2:7", "2:9", "2:20", "2:30"])
    assert (audit["batches"], audit["partial"]) == (1, {"3:70": [1, 2]})
    assert audit["source"] == "marker in entry 5:6"
    assert (billing["mark_delete"], billing["holes"], billing["backlog"]) == ("2:49", 0, 121)
    assert any(key.startswith("#pulsar.internal.delayed.bucket_2_2") for key in billing["cursor_properties"])


def test_how_a_cursor_has_stood(here: Path) -> None:
    name = ("my-store", "orders", "--cursor", "audit")
    history = facts("cursors", *name, "--history")["history"]
    assert [(one["marker"], one["mark_delete"]) for one in history] == [
        ("5:6", "2:3"),
        ("5:4", "2:-1"),
        ("5:1", "2:-1"),
    ]
    (earlier,) = facts("cursors", *name, "--at-marker", "5:1")["cursors"]
    assert earlier["ranges"] == ["2:1-3", "2:7", "2:9", "2:20"]
    assert (earlier["partial"], earlier["backlog"]) == ({}, 165)


def test_what_waits(here: Path) -> None:
    at = facts("delayed", "my-store", "orders", "--at", START + 600_000)
    assert at["at"] == "2027-01-15T08:10:00.000Z"
    audit, billing = at["subscriptions"]
    # Times are a minute apart from 8:03 on; of the bucket's first segments some are kept that are due.
    assert (audit["subscription"], audit["messages"], audit["in_topic"], audit["buckets"]) == ("audit", 112, 112, [])
    assert (billing["messages"], billing["in_topic"]) == (billing["in_buckets"] + 70, 70)
    (bucket,) = billing["buckets"]
    assert (bucket["ledgers"], bucket["snapshot"], bucket["messages"], bucket["due"]) == ("2-2", 4, 50, 8)
    assert billing["next_due"] == "2027-01-15T08:11:00.000Z"
    assert billing["last_due"] == "2027-01-15T10:02:00.000Z"
    later = facts("delayed", "my-store", "orders", "--at", "2027-01-15T11:02:00+01:00", "--subscription", "audit")
    assert [one["messages"] for one in later["subscriptions"]] == [0]


def test_counts(here: Path) -> None:
    ledgers, stats = facts("ls", "my-store")["ledgers"], facts("stats", "my-store")
    assert stats["total"]["entries"] == sum(row["entries"] for row in ledgers)
    assert stats["total"]["bytes"] == sum(row["bytes"] for row in ledgers)
    assert {row["kind"]: row["ledgers"] for row in stats["kinds"]} == Counter(row["kind"] for row in ledgers)
    assert (stats["states"], stats["digests"]) == ({"CLOSED": 7, "OPEN": 1}, {"crc32c": 7, "hmac": 1})
    assert sum(row["entries"] for row in stats["entry_sizes"]) == stats["total"]["entries"]
    by_size = {row["below"]: row["entries"] for row in stats["entry_sizes"]}
    # The lengths 0 to 199 of ledger 0, and three of ledger 1.
    assert (by_size[1], by_size[2], by_size[4], by_size[8]) == (1, 1, 2 + 2, 4 + 1)
    assert "entry_sizes" not in facts("stats", "my-store", "--no-sizes")


# -- payloads ----------------------------------------------------------------------------------------------------------


def test_payloads_as_text(here: Path) -> None:
    result = run("cat", "my-store", "1")
    assert result.out == "1:0  one\n1:1  two\n1:2  \\x00\\xff\\x1b[31m\n"
    assert run("cat", "my-store", "0", "--first", "2", "--last", "0:3").out == "0:2  xx\n0:3  xxx\n"


def test_payloads_in_hexadecimal(here: Path) -> None:
    result = run("cat", "my-store", "1", "--first", "2", "--hex")
    assert result.out == f"1:2  7 bytes\n00000000  {'00 ff 1b 5b 33 31 6d':<47}  ...[31m\n"


def test_payloads_as_json(here: Path) -> None:
    rows = run("cat", "my-store", "1", "--json").lines
    assert [row.get("payload") for row in rows] == ["one", "two", None]
    assert base64.b64decode(rows[2]["payload_base64"]) == b"\x00\xff\x1b[31m"
    assert rows[0]["digest_right"] is True


def test_payloads_as_they_are(here: Path) -> None:
    from typer.testing import CliRunner

    from bookstand.tools.main import application

    result = CliRunner().invoke(application(), ["cat", "my-store", "1", "--raw"])
    assert result.stdout_bytes == b"onetwo\x00\xff\x1b[31m"


def test_messages_of_a_topic(here: Path) -> None:
    rows = run("cat", "my-store", "orders", "--messages", "--json").lines
    expected = [*(f"order {n}" for n in range(50)), *(f"later {n}" for n in range(120)), "a", "b", "c"]
    assert [row["payload"] for row in rows] == expected
    assert [(row["entry"], row["index"]) for row in rows[-3:]] == [(70, 0), (70, 1), (70, 2)]
    assert rows[50]["message"]["deliver_at_time"] == "2027-01-15T08:03:00.000Z"
    part = run("cat", "my-store", "orders", "--messages", "--first", "2:99", "--last", "3:0")
    assert part.out == "2:99:0  later 49\n3:0:0  later 50\n"


# -- a bookie's disk ---------------------------------------------------------------------------------------------------


def test_a_disk_says_the_same_as_the_store_it_is_imported_into(here: Path, tmp_path: Path) -> None:
    store = tmp_path / "copy"
    assert run("import-bookie", "bookie", store, *DUMP).code == FINE
    keys = ("ledger", "kind", "topic", "cursor", "entries", "bytes", "last_entry", "digest", "fenced", "ensemble")
    disk, copy = (
        [{key: row[key] for key in keys} for row in rows if row["state"] in ("CLOSED", "OPEN")]
        for rows in (facts("ls", "bookie", *DUMP)["ledgers"], facts("ls", store)["ledgers"])
    )
    assert copy == disk
    cursors, copied = (facts("cursors", *place)["cursors"] for place in (("bookie", *DUMP), (store,)))
    assert copied == cursors
    at = ("--at", "2026-11-18T08:45:48Z")
    waiting, also = (facts("delayed", *place, *at)["subscriptions"] for place in (("bookie", *DUMP), (store,)))
    assert also == waiting
    assert sum(one["messages"] for one in waiting) > 4000


def test_copies_of_an_entry(here: Path) -> None:
    entry = facts("show", "bookie", "5:3", *DUMP)["entry"]
    kinds = {Path(copy["file"]).suffix for copy in entry["copies"]}
    assert kinds == {".log", ".txn"}
    for copy in entry["copies"]:
        with open(Path("bookie") / copy["file"], "rb") as file:
            file.seek(copy["offset"])
            # A record is its length, and behind it what is stored.
            assert int.from_bytes(file.read(4), "big") == copy["bytes"]
            stored = file.read(copy["bytes"])
        assert int.from_bytes(stored[:8], "big") == 5
        assert int.from_bytes(stored[8:16], "big") == 3


def test_every_record_of_the_files(here: Path) -> None:
    rows = run("ls", "bookie", "--records", "--json").lines
    by_file: dict[str, list[int]] = {}
    for row in rows:
        by_file.setdefault(row["file"], []).append(row["offset"])
    assert all(offsets == sorted(offsets) for offsets in by_file.values())
    files = {row["name"]: row for row in facts("ls", "bookie", "--files")["files"]}
    entries = Counter(row["file"] for row in rows if row["what"] == "entry")
    assert entries == {name: row["records"] for name, row in files.items() if row.get("records")}
    assert {row["what"] for row in rows} >= {"entry", "ledger key", "fence"}
    log = max(entries, key=lambda name: name.endswith(".log"))
    alone = run("ls", Path("bookie") / log, "--records", "--json").lines
    strip = [{key: value for key, value in row.items() if key != "file"} for row in rows if row["file"] == log]
    assert [{key: value for key, value in row.items() if key != "file"} for row in alone] == strip


def test_one_file_of_a_bookie(here: Path) -> None:
    journal = next(Path("bookie").rglob("*.txn"))
    result = run("ls", journal)
    assert result.out.startswith(f"journal {journal}, without metadata")
    assert result.code == FINE


def test_a_password_that_the_metadata_does_not_have(own: Path) -> None:
    """Of a deleted ledger the store knows the digest and no password."""
    import bookstand

    with bookstand.open("my-store") as store:
        store.delete_ledger(0)
    assert run("cat", "my-store", "0").code == DAMAGE
    result = run("cat", "my-store", "0", "--last", "2", "--password", "secret")
    assert (result.code, result.out) == (FINE, "0:0  \n0:1  x\n0:2  xx\n")
