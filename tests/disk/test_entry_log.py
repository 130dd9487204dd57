"""Entry logs: every record of the recorded ones, damaged ones beside what the original found in them, and digests."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bookstand.disk.damage import Damage
from bookstand.disk.format import entry_log, tolerant_file
from bookstand.disk.format.entry_block import GOOD, NO_DIGEST, UNCHECKED, KnownDigests, TryAllDigests
from bookstand.disk.format.entry_log import LogHeader
from bookstand.storage.format.digest import digest_for
from bookstand.storage.format.entry_codec import HEADER
from tests.disk import plain_reading
from tests.disk.made import entries
from tests.disk.plain_reading import LENGTH, LOG_HEADER, full_log, read_log, records_of
from tests.disk.recordings import RECORDINGS, truth

CRC32C = digest_for("crc32c", b"")
# The cases in which nothing is wrong; a map is announced, and lost, where there is only a header.
_SOUND = ("intact", "empty", "no-ledgers-map", "version-0")
_WRONG_MAP = ("map-count-wrong", "map-offset-into-data", "header-only")
PASSWORDS = [b"", b"pw-MAC", b"pw-HMAC"]
Unpacked = Callable[[str], Path]


def _walk(data: bytes) -> list[tuple[int, int, int, int]]:
    """Record offset, size, ledger and entry of all records of an undamaged log but its map."""
    found, at = [], 1024
    while at < len(data):
        size = LENGTH.unpack_from(data, at)[0]
        ledger_id, entry_id = struct.unpack_from(">qq", data, at + 4)
        if ledger_id >= 0:
            found.append((at, size, ledger_id, entry_id))
        at += 4 + size
    return found


@pytest.mark.parametrize("recording", RECORDINGS)
def test_recorded_logs_are_read_record_by_record(recording: str, unpacked: Unpacked) -> None:
    logs = sorted(unpacked(recording).glob("bookie-*/ledgers*/current/*.log"))
    assert logs or recording == "f"  # all of f is still in the journals
    for path in logs:
        data = path.read_bytes()
        damage: list[Damage] = []
        found = plain_reading.rows(entry_log.read(path, TryAllDigests(PASSWORDS), damage.append), data)
        assert [row[:4] for row in found] == _walk(data)
        # What has another password is not to be told from what has none.
        assert all(row.verdict == (UNCHECKED if row.digest_size == NO_DIGEST else GOOD) for row in found)
        assert sum(row.verdict == UNCHECKED for row in found) <= 12
        header = entry_log.read_header(path, damage.append)
        ledgers = entry_log.read_ledgers_map(path, damage.append)
        assert (header is None) == (not data)
        if header is None or not header.map_offset:
            assert ledgers is None
        else:
            taken: dict[int, int] = {}
            for row in found:
                taken[row.ledger_id] = taken.get(row.ledger_id, 0) + 4 + row.size
            assert ledgers == taken
            assert header == LogHeader(1, header.map_offset, len(taken))
        assert not damage


CASES = [line for line in truth("damaged", "expected") if line["kind"] == "entrylog"]


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_damaged_logs_give_all_that_is_right(case: dict[str, Any], unpacked: Unpacked) -> None:
    path = unpacked("damaged") / "entrylog" / case["case"] / "current" / "0.log"
    data = path.read_bytes()
    digests = KnownDigests(dict.fromkeys((5, 6, (1 << 32) + 7), ("crc32c", b"")))
    damage: list[Damage] = []
    found = plain_reading.rows(entry_log.read(path, digests, damage.append), data)
    assert found == list(plain_reading.entries_of_any_size(data, digests))
    plain_reading.hold_against(data, found, digests)
    theirs = {tuple(row) for row in case["entries"]}
    right = {row[:4] for row in plain_reading.right_entries(data, digests)}
    assert theirs & right <= {row[:4] for row in found}
    assert all(one.file == str(path) and 0 <= one.offset < len(data) for one in damage)
    assert bool(damage) != (case["case"] in _SOUND or case["case"] in _WRONG_MAP)
    ledgers = entry_log.read_ledgers_map(path, damage.append)
    header = entry_log.read_header(path, damage.append)
    if "ledgers_map" in case and case["case"] != "wrong-magic":
        assert ledgers == {int(ledger): count for ledger, count in case["ledgers_map"].items()}
    else:
        assert ledgers is None
    assert bool(damage) != (case["case"] in _SOUND)
    assert (header is None) == (case["case"] in ("empty", "header-cut", "wrong-magic"))


def test_entries_that_nothing_can_check_are_marked(tmp_path: Path) -> None:
    stored = []
    for number, name in enumerate(("crc32c", "crc32", "hmac", "dummy")):
        stored += entries(digest_for(name, b"secret"), number, [b"one", b"two"])
    data = LOG_HEADER + records_of(stored)

    def verdicts(digests: TryAllDigests | KnownDigests) -> dict[int, set[tuple[int, int]]]:
        found, damage = read_log(tmp_path / "log", data, digests)
        assert not damage
        assert len(found) == 8
        return {
            ledger_id: {(row.verdict, row.digest_size) for row in found if row.ledger_id == ledger_id}
            for ledger_id in range(4)
        }

    unknown = {(UNCHECKED, NO_DIGEST)}
    assert verdicts(TryAllDigests()) == {0: {(GOOD, 4)}, 1: {(GOOD, 8)}, 2: unknown, 3: unknown}
    assert verdicts(TryAllDigests([b"no", b"secret"])) == {0: {(GOOD, 4)}, 1: {(GOOD, 8)}, 2: {(GOOD, 20)}, 3: unknown}
    known = KnownDigests({0: ("CRC32C", b""), 2: ("MAC", b"secret"), 3: ("dummy", b"")})
    assert verdicts(known) == {0: {(GOOD, 4)}, 1: {(GOOD, 8)}, 2: {(GOOD, 20)}, 3: {(UNCHECKED, 0)}}
    found, damage = read_log(tmp_path / "log", data, KnownDigests(dict.fromkeys(range(4), ("crc32", b""))))
    assert [row.ledger_id for row in found] == [1, 1]
    assert [one[3:] for one in damage] == [(ledger_id, entry_id) for ledger_id in (0, 2, 3) for entry_id in (0, 1)]


@pytest.mark.parametrize("name", ["crc32c", "crc32"])
def test_in_a_long_run_of_one_size_each_wrong_digest_is_noticed(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    stored = entries(digest_for(name, b""), 9, [rng.randbytes(40) for _ in range(400)])
    whole = LOG_HEADER + records_of(stored)
    found, damage = read_log(tmp_path / "log", whole)
    assert len(found) == 400
    assert not damage
    stride = 4 + len(stored[0])
    for _ in range(30):
        data = bytearray(whole)
        hit = rng.sample(range(400), rng.randrange(1, 4))
        for entry_id in hit:
            # Anywhere behind the fields that say which entry it is: LAC, length, digest, payload.
            data[1024 + entry_id * stride + rng.randrange(20, stride)] ^= 1 << rng.randrange(8)
        found, damage = read_log(tmp_path / "log", bytes(data), KnownDigests({9: (name, b"")}))
        assert [row.entry_id for row in found] == [entry_id for entry_id in range(400) if entry_id not in hit]
        assert sorted(one.entry_id for one in damage) == sorted(hit)


def test_entries_larger_than_any_block_are_read_and_their_damage_is_seen(tmp_path: Path) -> None:
    payloads = [b"small", bytes(5 << 20), b"small", os.urandom(9 << 20), b"last"]
    stored = entries(CRC32C, 3, payloads)
    whole = LOG_HEADER + records_of(stored)
    (tmp_path / "log").write_bytes(whole)
    found = plain_reading.rows(entry_log.read(tmp_path / "log", TryAllDigests(), pytest.fail), whole)
    assert [row.size for row in found] == [len(entry) for entry in stored]
    large = found[3]
    for place, known in ((large.record + 5000, True), (large.record + 5000, False), (large.record + 2, True)):
        data = bytearray(whole)
        data[place] ^= 1
        digests = KnownDigests({3: ("crc32c", b"")}) if known else TryAllDigests()
        found, damage = read_log(tmp_path / "log", bytes(data), digests)
        good = [row.entry_id for row in found if row.verdict == GOOD]
        assert good == [0, 1, 2, 4]
        assert bool(damage) == known


def test_what_a_wrong_length_reaches_over_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = entries(CRC32C, 7, [b"first", b"second", b"third"])
    path = tmp_path / "log"
    first = records_of(stored[:1])
    path.write_bytes(LOG_HEADER + first + LENGTH.pack(32 << 20) + records_of(stored[1:])[LENGTH.size :])
    os.truncate(path, 48 << 20)
    most = 0

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        nonlocal most
        most = max(most, count)
        return true_pread(descriptor, count, offset)

    true_pread = os.pread
    monkeypatch.setattr(tolerant_file.os, "pread", pread)
    damage: list[Damage] = []
    found = plain_reading.rows(entry_log.read(path, KnownDigests({7: ("crc32c", b"")}), damage.append))
    assert [row.entry_id for row in found] == [0, 1, 2]
    assert [one.offset for one in damage] == [1024 + len(first), found[-1].end]
    assert most <= 4 << 20


@pytest.mark.parametrize("length", [0, -1, 8, 31, 335, 337, 700, 12_000, (1 << 31) - 1])
@pytest.mark.parametrize("name", ["crc32c", "crc32"])
def test_entries_whose_lengths_alone_are_wrong_are_found(name: str, length: int, tmp_path: Path) -> None:
    """Also the last one, several in a row, and large ones."""
    payloads = [b"\1" * 300] * 6 + [b"\2" * 9_000, b"\3" * 20_000] + [b"\4" * 300] * 3
    stored = entries(digest_for(name, b""), 7, payloads)
    wrong = {2, 3, 6, 7, len(stored) - 1}
    data = LOG_HEADER + b"".join(
        LENGTH.pack(length if entry_id in wrong else len(entry)) + entry for entry_id, entry in enumerate(stored)
    )
    for digests in (TryAllDigests(), KnownDigests({7: (name, b"")})):
        found, damage = read_log(tmp_path / "log", data, digests)
        assert [(row.entry_id, row.size) for row in found] == [(number, len(one)) for number, one in enumerate(stored)]
        assert all(row.verdict == GOOD for row in found)
        places = {one.offset for one in damage}
        assert {found[number].record for number in wrong} == places


def test_work_grows_with_the_file_and_not_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of nothing but headers with lengths that reach far, and no digest that is right."""
    read = 0
    true_pread = os.pread

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        nonlocal read
        data = true_pread(descriptor, count, offset)
        read += len(data)
        return data

    monkeypatch.setattr(tolerant_file.os, "pread", pread)
    path = tmp_path / "log"
    costs = []
    for count in (500, 1_000, 2_000):
        size = count * 400
        junk = b"".join(
            (LENGTH.pack(size - at - 4) + HEADER.pack(1, 9, 8, 1 << 30)).ljust(400, b"\1") for at in range(0, size, 400)
        )
        for digests in (TryAllDigests(), KnownDigests({1: ("crc32", b"")})):
            read = 0
            found, damage = read_log(path, LOG_HEADER + junk, digests)
            assert not any(row.verdict == GOOD for row in found)
            assert found or damage
        costs.append(read)
    assert costs[2] < 2.5 * costs[1] < 6.25 * costs[0]


def test_what_the_disk_does_not_give_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damage: list[Damage] = []
    assert not list(entry_log.read(tmp_path / "none.log", TryAllDigests(), damage.append))
    assert "cannot be opened" in str(damage[0])
    stored = entries(CRC32C, 3, [b"\1" * 300] * 200)
    path = tmp_path / "log"
    path.write_bytes(full_log(stored))
    true_pread = os.pread

    def pread(descriptor: int, count: int, offset: int) -> bytes:
        if offset < 20_000 < offset + count:
            raise OSError(errno.EIO, "Input/output error")
        return true_pread(descriptor, count, offset)

    monkeypatch.setattr(tolerant_file.os, "pread", pread)
    damage.clear()
    found = plain_reading.rows(entry_log.read(path, KnownDigests({3: ("crc32c", b"")}), damage.append))
    page = 20_000 // 4096 * 4096
    monkeypatch.undo()
    right = plain_reading.right_entries(path.read_bytes(), TryAllDigests())
    lost = [row for row in right if row.record < page + 4096 and row.end > page]
    assert lost
    assert len(found) == 200 - len(lost)
    assert [one.offset for one in damage if "cannot be read" in one.what] == [page]


def test_a_ledgers_map_in_several_records_is_read(tmp_path: Path) -> None:
    stored = [entry for ledger_id in range(25) for entry in entries(CRC32C, ledger_id, [b"x" * ledger_id])]
    (tmp_path / "log").write_bytes(full_log(stored, rows_in_a_record=10))
    ledgers = entry_log.read_ledgers_map(tmp_path / "log", pytest.fail)
    assert ledgers == plain_reading.ledgers_map(stored)
    assert len(plain_reading.rows(entry_log.read(tmp_path / "log", TryAllDigests(), pytest.fail))) == 25
