"""What is damaged is a row that says so, and hides nothing else; a strict read ends there."""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyroaring import BitMap64

import bookstand
from bookstand.cursor.format import position_info
from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.delivery.tracker.bucket.key import BucketKey
from bookstand.delivery.tracker.bucket.snapshot.codec import seal
from bookstand.delivery.tracker.bucket.snapshot.delayed_index import Indexes
from bookstand.errors import StoreDamagedError
from bookstand.managed_ledger.message.format import encode_message
from bookstand.managed_ledger.records import CursorInfo
from bookstand.managed_ledger.topic_name import ledger_labels
from bookstand.pipeline.tables.query import query
from bookstand.pipeline.tables.record_batches import DamagedDataError
from bookstand.pipeline.tables.schemas import TABLES
from bookstand.pipeline.tables.sources import DataSource, bookies, stores
from bookstand.pipeline.tables.tables import plan, read, rows
from bookstand.storage.format.digest import digest_for
from bookstand.storage.format.position import Position
from bookstand.storage.format.schema import ENTRY_KEY
from tests.disk.cluster import TOPIC, Cluster
from tests.disk.made import Bookie, entries
from tests.disk.recordings import dump_path, unpack
from tests.kit import raw

Row = dict[str, Any]
CRC32C = digest_for("crc32c", b"")


def all_of(places: list[DataSource] | str, table: str, **more: Any) -> list[Row]:
    return [row for batch in read(places, query(table, **more)) for row in batch.to_pylist()]


# -- disks -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> DataSource:
    """Five entries, of which one has a flipped bit."""
    stored = entries(CRC32C, 7, [b"entry %d" % number for number in range(5)])
    stored[2] = stored[2][:-1] + bytes([stored[2][-1] ^ 1])
    Bookie(tmp_path, "made:3181").journal(0, [])
    Bookie(tmp_path, "made:3181").log(0, stored)
    return bookies(tmp_path)


def test_an_entry_of_a_disk(disk: DataSource) -> None:
    found = all_of([disk], "entries")
    whole = [(row["entry_id"], row["payload"]) for row in found if not row["error"]]
    assert whole == [(number, b"entry %d" % number) for number in (0, 1, 3, 4)]
    wrong = [row for row in found if row["error"]]
    assert {(row["ledger_id"], row["entry_id"]) for row in wrong} == {(7, 2)}
    assert any(re.search(r"0\.log at \d+, entry 7:2: ", row["error"]) for row in wrong)
    (ledger,) = all_of([disk], "ledgers")
    assert (ledger["last_entry_id"], ledger["entries"], ledger["missing"]) == (4, 4, "2")
    assert "7:2" in ledger["error"]


def test_a_strict_read_names_it(disk: DataSource) -> None:
    with pytest.raises(DamagedDataError, match=r"0\.log at .*entry 7:2"):
        all_of([disk], "entries", strict=True)


def test_a_file_that_changed_since_the_plan(tmp_path: Path) -> None:
    Bookie(tmp_path, "made:3181").journal(0, [])
    log = Bookie(tmp_path, "made:3181").log(0, entries(CRC32C, 7, [b"entry %d" % number for number in range(4)]))
    asked = query("entries")
    parts = plan(bookies(tmp_path), asked)
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    found = [row for part in parts for batch in rows(part, asked) for row in batch.to_pylist()]
    assert sorted(row["entry_id"] for row in found if not row["error"]) == [0, 1, 2]
    (wrong,) = [row["error"] for row in found if row["error"]]
    assert "entry 7:3: it is not what it was" in wrong
    log.write_bytes(data[:-3])
    found = [row for part in parts for batch in rows(part, asked) for row in batch.to_pylist()]
    assert "has ended" in "".join(row["error"] or "" for row in found)


def test_damaged_files_of_the_recordings(tmp_path: Path) -> None:
    """Whatever is wrong with them, a read ends, and tells it unless nothing is wrong with any entry."""
    told = 0
    for case in sorted((unpack("damaged", tmp_path) / "entrylog").iterdir()):
        folder = tmp_path / "cases" / case.name
        (folder / "ledgers").mkdir(parents=True)
        (case / "current").rename(folder / "ledgers" / "current")
        (folder / "ledgers" / "current" / "lastMark").write_bytes(bytes(16))
        found = all_of([bookies(folder)], "entries")
        told += any(row["error"] for row in found)
        assert len({(row["ledger_id"], row["entry_id"]) for row in found if not row["error"]}) == len(
            [row for row in found if not row["error"]]
        )
    assert told > 3


@pytest.mark.parametrize("seed", range(6))
def test_no_bytes_on_disks_end_a_read(tmp_path: Path, unpacked: Callable[[str], Path], seed: int) -> None:
    """Neither in logs and journals nor in the dump."""
    random = Random(seed)
    shutil.copytree(unpacked("b"), tmp_path / "disks")
    files = [path for kind in ("log", "txn") for path in (tmp_path / "disks").glob(f"**/current/*.{kind}")]
    for path in random.sample([path for path in files if path.stat().st_size], 3):
        data = bytearray(path.read_bytes())
        at, count = random.randrange(len(data)), random.randrange(1, 300)
        data[at : at + count] = random.randbytes(random.choice((count, 0, 2 * count)))
        path.write_bytes(data)
    dump = bytearray(gzip.decompress(dump_path("b").read_bytes()))
    for _ in range(seed):
        dump[random.randrange(len(dump))] = random.randrange(256)
    (tmp_path / "dump.jsonl").write_bytes(dump)
    place = bookies(tmp_path / "disks", str(tmp_path / "dump.jsonl"))
    found = {table: all_of([place], table) for table in TABLES}
    assert any(not row["error"] for row in found["entries"])
    assert any(row["error"] for rows_of in found.values() for row in rows_of)


# -- messages, cursors, buckets ----------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path / "disks")


def opened(cluster: Cluster, folder: Path) -> DataSource:
    """As a place, with its metadata in a dump."""
    from bookstand.disk.metadata.dump import write_dump

    cluster.open(metadata=False).close()
    write_dump(folder / "dump.jsonl", cluster.nodes.values())
    return bookies(folder / "disks", str(folder / "dump.jsonl"))


def test_a_message(cluster: Cluster, tmp_path: Path) -> None:
    good = [encode_message(b"message %d" % number, publish_time=number, sequence_id=number) for number in range(3)]
    cluster.topic({3: [good[0], good[1][:-1] + b"X", b"nothing", good[2]]})
    found = all_of([opened(cluster, tmp_path)], "messages")
    assert [row["entry_id"] for row in found] == [0, 1, 2, 3]
    assert [row["payload"] for row in found] == [b"message 0", b"message X", None, b"message 2"]
    assert [bool(row["error"]) for row in found] == [False, True, True, False]
    assert "3:1: the message's checksum" in found[1]["error"]
    assert {row["topic"] for row in found} == {TOPIC}
    few = all_of([opened(cluster, tmp_path)], "messages", columns=("entry_id", "publish_ms"))
    assert few == [{"entry_id": row["entry_id"], "publish_ms": row["publish_ms"]} for row in found]


def test_ledgers_and_entries_that_are_gone(cluster: Cluster, tmp_path: Path) -> None:
    cluster.topic({3: [encode_message(b"x", publish_time=1)] * 5})
    cluster.ledger(3, [encode_message(b"x", publish_time=1)] * 5, without=[1, 2])
    place = opened(cluster, tmp_path)
    found = all_of([place], "messages")
    assert [row["entry_id"] for row in found if not row["error"]]
    cluster_2 = Cluster(tmp_path / "two" / "disks")
    cluster_2.ledger(3, [b"x"] * 5, without=[1, 2])
    found = all_of([opened(cluster_2, tmp_path / "two")], "entries")
    assert [row["entry_id"] for row in found if not row["error"]] == [0, 3, 4]
    (wrong,) = [row for row in found if row["error"]]
    assert (wrong["entry_id"], "entries 1 to 2 are nowhere" in wrong["error"]) == (1, True)


def test_of_an_entry_of_a_cursor_that_has_both_ranges_and_words_the_ranges_count(
    cluster: Cluster, tmp_path: Path
) -> None:
    def snapshot(form: position_info.Form, *entry_ids: int) -> bytes:
        return position_info.write(AckSnapshot(Position(3, 0), {3: BitMap64(entry_ids)}, {}, {}), form).data

    both = snapshot("ranges", 2) + snapshot("long_arrays", 3, 4).removeprefix(snapshot("ranges"))
    cluster.topic({3: [encode_message(b"x", publish_time=1)] * 6})
    cluster.ledger(20, [both], custom=ledger_labels(TOPIC, "sub"))
    cluster.cursor("sub", CursorInfo(20, Position(3, 0)))
    (acks,) = all_of([opened(cluster, tmp_path)], "acks")
    assert (acks["first_entry_id"], acks["last_entry_id"], acks["error"]) == (2, 2, None)


def test_a_cursor(cluster: Cluster, tmp_path: Path) -> None:
    cluster.topic({3: [encode_message(b"x", publish_time=1)] * 5})
    cluster.ledger(20, [b"garbage"], custom=ledger_labels(TOPIC, "sub"))
    cluster.cursor("sub", CursorInfo(20, Position(3, 1)))
    cluster.cursor("well", CursorInfo(-1, Position(3, 2), ranges=((3, 3, 3, 4),)))
    place = opened(cluster, tmp_path)
    found = {row["cursor"]: row for row in all_of([place], "cursors")}
    assert "its record is used" in found["sub"]["error"]
    assert (found["sub"]["source"], found["sub"]["mark_delete_entry_id"]) == ("record", 1)
    assert found["well"]["error"] is None
    acks = all_of([place], "acks")
    assert {(row["cursor"], row["first_entry_id"], bool(row["error"])) for row in acks} == {
        ("sub", None, True),
        ("well", 4, False),
    }


def test_a_bucket(cluster: Cluster, tmp_path: Path) -> None:
    cluster.topic({3: [encode_message(b"x", publish_time=1)] * 5})
    sealed = seal(Indexes.of([10, 20, 30, 40], [3, 3, 3, 3], [1, 2, 3, 4]), 1, 1).entries
    cluster.ledger(30, [*sealed[:2], b"\xff\xff", *sealed[3:]])
    cluster.ledger(31, [b"\xff\xff", *sealed[1:]])
    names = (str(BucketKey(3, 3)), "30"), (str(BucketKey(4, 4)), "31")
    cluster.cursor("sub", CursorInfo(-1, Position(3, -1), cursor_properties=names))
    place = opened(cluster, tmp_path)
    check_bucket(all_of([place], "delayed_index"))
    buckets = {row["ledger_id"]: row for row in all_of([place], "delayed_buckets")}
    assert (buckets[30]["messages"], buckets[30]["error"]) == (4, None)
    assert "not snapshot metadata" in buckets[31]["error"]
    with pytest.raises(DamagedDataError, match="is not a segment"):
        all_of([place], "delayed_index", strict=True)


def check_bucket(found: list[Row]) -> None:
    assert [(row["deliver_at_ms"], row["entry_id"]) for row in found if not row["error"]] == [(10, 1), (30, 3), (40, 4)]
    wrong = {row["bucket_ledger_id"]: row for row in found if row["error"]}
    assert sorted(wrong) == [30, 31]
    assert wrong[30]["segment"] == 2
    assert "entry 30:2" in wrong[30]["error"]


# -- stores ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with a ledger of 300 entries, of which one is damaged."""
    path = tmp_path / "store"
    with bookstand.open(path) as made, made.create_ledger() as writer:
        writer.append_many([b"entry %d" % number for number in range(300)])
    key = ENTRY_KEY.pack(writer.id, 200)
    with raw(path, write=True) as database:
        entries = database(b"entries")
        entries[key] = entries[key][:-1] + b"X"
    return str(path)


@pytest.mark.damaged
def test_an_entry_of_a_store(store: str) -> None:
    found = all_of(store, "entries")
    assert sorted(row["entry_id"] for row in found) == list(range(300))
    (wrong,) = [row for row in found if row["error"]]
    assert (wrong["entry_id"], wrong["payload"]) == (200, None)
    assert "data.mdb, entry" in wrong["error"]
    with pytest.raises(DamagedDataError, match=":200"):
        all_of(store, "entries", strict=True)


def test_a_store_that_is_none_beside_one_that_is(store: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    with bookstand.open(broken) as made:
        made.create_ledger().close()
    data = broken / "data.mdb"
    data.write_bytes(b"\0" * 8192)
    places = stores([store, str(broken)])
    found = all_of(places, "ledgers")
    assert [row["place"] for row in found if not row["error"]] == [store]
    (wrong,) = [row for row in found if row["error"]]
    assert wrong["place"] == str(broken)


@pytest.mark.damaged
def test_a_store_whose_pages_are_damaged_ends_no_process_that_checks_it(store: str) -> None:
    """Whatever such pages do to who reads them, with a check it is a row, or the rows are there."""
    data = bytearray((Path(store) / "data.mdb").read_bytes())
    for page in range(2, len(data) // 4096, 3):
        data[page * 4096 + 8 : page * 4096 + 16] = b"\xff" * 8
    (Path(store) / "data.mdb").write_bytes(data)
    for table in ("entries", "ledgers", "nodes"):
        (row,) = all_of(store, table, check="subprocess")
        assert "damaged" in row["error"]
        with pytest.raises(StoreDamagedError):
            all_of(store, table, check="subprocess", strict=True)
