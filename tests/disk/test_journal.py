"""Journals: every record of the recorded ones, damaged ones beside what the original found in them, and their forms."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bookstand.disk.damage import Damage
from bookstand.disk.format import journal
from bookstand.disk.format.entry_block import GOOD, NO_DIGEST, UNCHECKED, KnownDigests, TryAllDigests
from bookstand.disk.format.journal import MetaEntry
from bookstand.storage.format.digest import digest_for
from tests.disk import plain_reading
from tests.disk.made import entries, explicit_lac, fence, ledger_key
from tests.disk.plain_reading import JOURNAL_HEADER, LENGTH, padded, read_journal, records_of
from tests.disk.recordings import RECORDINGS, truth

CRC32C = digest_for("crc32c", b"")
KINDS = {-0x1000: "ledger_key", -0x2000: "fence", -0x8000: "explicit_lac"}
Unpacked = Callable[[str], Path]

EXPECTED = [line for line in truth("damaged", "expected") if line["kind"] == "journal" and line["skip_invalid_record"]]


def _walk(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Record offset, size, ledger and entry id of all records of an undamaged journal of version 5 or 6."""
    at = 512
    while at + 4 <= len(data):
        size, more = struct.unpack_from(">ii", data, at)
        if size == 0:
            return
        if size == -0x100:
            at += 8 + more
            continue
        yield at, size, *struct.unpack_from(">qq", data, at + 4)
        at += 4 + size


@pytest.mark.parametrize("recording", RECORDINGS)
def test_recorded_journals_are_read_record_by_record(recording: str, unpacked: Unpacked) -> None:
    paths = sorted(unpacked(recording).glob("bookie-*/journal*/current/*.txn"))
    assert paths
    for path in paths:
        data = path.read_bytes()
        damage: list[Damage] = []
        special: list[MetaEntry] = []
        blocks = journal.read(path, TryAllDigests([b"", b"pw-MAC"]), damage.append, special=special.append)
        found = plain_reading.rows(blocks, data)
        walked = list(_walk(data))
        assert [row[:4] for row in found] == [row for row in walked if row[3] >= 0]
        assert all(row.verdict == (UNCHECKED if row.digest_size == NO_DIGEST else GOOD) for row in found)
        kinds = [(at, KINDS[entry_id], ledger_id) for at, _, ledger_id, entry_id in walked if entry_id < 0]
        assert [one[:3] for one in special] == kinds
        assert all(len(one.data) == 20 for one in special if one.kind == "ledger_key")
        assert all(one.lac >= 0 for one in special if one.kind == "explicit_lac")
        assert not damage


@pytest.mark.parametrize("case", EXPECTED, ids=[case["case"] for case in EXPECTED])
def test_damaged_journals_give_all_that_is_right(case: dict[str, Any], unpacked: Unpacked) -> None:
    (path,) = (unpacked("damaged") / "journal" / case["case"] / "current").glob("*.txn")
    data = path.read_bytes()
    digests = KnownDigests(dict.fromkeys((5, 6, (1 << 32) + 7), ("crc32c", b"")))
    damage: list[Damage] = []
    special: list[MetaEntry] = []
    start = case["start"] or None
    found = plain_reading.rows(journal.read(path, digests, damage.append, start=start, special=special.append), data)
    right = [row for row in plain_reading.entries_of_any_size(data, digests) if row.record >= case["start"]]
    assert found == right
    if not start:
        plain_reading.hold_against(data, found, digests)
    theirs = {tuple(row) for row in case["records"]}
    assert {row[:4] for row in right if row[:4] in theirs} <= {row[:4] for row in found}
    # The explicit LAC of these files never had a right digest.
    told = {(row[0], KINDS[row[3]], row[2]) for row in theirs if row[3] in KINDS and row[3] != -0x8000}
    assert told <= {one[:3] for one in special}
    assert not any(one.kind == "explicit_lac" for one in special)
    others = [one for one in damage if "explicit LAC" not in one.what]
    silent = ("intact", "empty", "header-only", "version-5", "cut-in-last-length")
    assert bool(others) != (case["case"] in silent or case["case"].startswith("start-"))


def _journal(header: bytes = JOURNAL_HEADER) -> tuple[bytes, list[bytes]]:
    stored = entries(CRC32C, 7, [b"one", b"", b"three"])
    return padded(header + records_of([ledger_key(7, bytes(20)), *stored])), stored


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_all_versions_are_read(version: int, tmp_path: Path) -> None:
    stored = entries(CRC32C, 7, [b"one", b"", b"three"])
    header = {1: b"", 5: 512, 6: 512}.get(version, 8)
    if isinstance(header, int):
        header = struct.pack(">4si", b"BKLG", version).ljust(header, b"\0")
    found, damage = read_journal(
        tmp_path / "txn", header + records_of([ledger_key(7, bytes(20)), *stored]) + bytes(999)
    )
    assert [row.entry_id for row in found] == [0, 1, 2]
    assert not damage


def test_what_is_told_beside_entries(tmp_path: Path) -> None:
    hmac = digest_for("hmac", b"secret")
    records = [
        ledger_key(7, bytes(range(20))),
        *entries(CRC32C, 7, [b"one", b"two"]),
        explicit_lac(CRC32C, 7, 1),
        fence(7),
        explicit_lac(hmac, 8, 4),
        explicit_lac(digest_for("hmac", b"other"), 8, 5),
    ]
    path = tmp_path / "txn"
    path.write_bytes(JOURNAL_HEADER + records_of(records) + bytes(100))
    offsets = [512 + len(records_of(records[:number])) for number in range(len(records))]
    expected = [
        MetaEntry(offsets[0], "ledger_key", 7, bytes(range(20))),
        MetaEntry(offsets[3], "explicit_lac", 7, lac=1),
        MetaEntry(offsets[4], "fence", 7),
        MetaEntry(offsets[5], "explicit_lac", 8, lac=4),
    ]
    for start in (None, offsets[1], offsets[3], offsets[3] - 1, offsets[4]):
        special: list[MetaEntry] = []
        damage: list[Damage] = []
        digests = KnownDigests({8: ("hmac", b"secret")})
        found = plain_reading.rows(journal.read(path, digests, damage.append, start=start, special=special.append))
        assert special == [one for one in expected if one.offset >= (start or 0)]
        assert [row.record for row in found] == [offset for offset in offsets[1:3] if offset >= (start or 0)]
        assert [(one.offset, one.ledger_id) for one in damage] == [(offsets[6], 8)]


def test_zeros_allocated_in_advance_are_no_damage_but_what_follows_them_is(tmp_path: Path) -> None:
    data, stored = _journal()
    found, damage = read_journal(tmp_path / "txn", data + bytes(3 << 20))
    assert len(found) == len(stored)
    assert not damage
    more = entries(CRC32C, 7, [b"four", b"five"], first=3)
    found, damage = read_journal(tmp_path / "txn", data + bytes((3 << 20) + 1) + records_of(more) + bytes(5000))
    assert [row.entry_id for row in found] == [0, 1, 2, 3, 4]
    assert [one.offset for one in damage] == [len(data)]
    found, damage = read_journal(tmp_path / "txn", data + bytes(5000) + b"not an entry")
    assert len(found) == len(stored)
    assert [one.offset for one in damage] == [len(data)]


def test_an_entry_that_was_not_written_to_its_end_is_damage_at_the_end(tmp_path: Path) -> None:
    data, stored = _journal()
    (torn,) = entries(CRC32C, 7, [random.Random(1).randbytes(2000)], first=3)
    for kept in (4, 20, 40, 1000):
        record = records_of([torn])[:kept].ljust(len(torn) + LENGTH.size, b"\0") + bytes(4096)
        found, damage = read_journal(tmp_path / "txn", data + record, KnownDigests({7: ("crc32c", b"")}))
        assert len(found) == len(stored)
        assert [one.offset for one in damage] == [len(data)]
