"""Damaged files. Every entry whose digest is right has to be found, at any offset and of any size that there is, and no
other may pass as good, neither in the file nor as a ledger's; the damage has to be reported, and nothing where there is
none. Where entries and damage are is found out here, byte by byte. What the original's scanners returned tells which
files there are, and the ledgers map of a whole one."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c

from bookstand.disk.damage import Damage
from bookstand.disk.disks import Disks
from bookstand.disk.format import entry_log, journal
from bookstand.disk.format.entry_block import GOOD, TryAllDigests
from tests.replay.disk_compare import differs, judged
from tests.replay.disk_recordings import DamagedFiles
from tests.replay.outcome import Outcome

KINDS = {"entrylog": ".log", "journal": ".txn"}
HEADER = struct.Struct(">qqqq")
LENGTH = struct.Struct(">i")
IDS = struct.Struct(">qq")
LARGEST_SEARCHED = 8 << 10
MOST = 1 << 40

LOG_HEADER, LOG_BYTES = struct.Struct(">4siqi"), 1024
MAP_IDS = (-1, -2)
JOURNAL_BYTES, PADDING = 512, -0x100
KEY, FENCE, FORCE, EXPLICIT_LAC = -0x1000, -0x2000, -0x4000, -0x8000

Line = dict[str, Any]


class Found(NamedTuple):
    offset: int  # of the stored entry
    size: int


class State(NamedTuple):
    """``damage``: offsets where something is wrong. ``odd``: nothing is, but no bookie writes such a file."""

    damage: list[int]
    odd: bool = False
    map_offset: int = -1


def replay(files: DamagedFiles, below: Path) -> Iterator[Outcome]:
    folder = files.cases(below)
    expected: dict[tuple[str, str], Line] = {}
    for line in files.expected():
        expected.setdefault((line["kind"], line["case"]), line)
    there = {(kind, case.name) for kind in KINDS if (folder / kind).is_dir() for case in (folder / kind).iterdir()}
    for kind, case in sorted(there | expected.keys()):
        line = expected.get((kind, case), {})
        yield judged(f"{files.name}/{kind}/{case}", _case, kind, folder / kind / case, line)


def _case(kind: str, folder: Path, line: Line) -> Iterator[str]:
    paths = sorted(path for path in (folder / "current").glob("*") if path.suffix == KINDS[kind])
    if not paths:
        yield "there is no file"
    for path in paths:
        start = int((folder / "start").read_text()) if (folder / "start").exists() else 0
        yield from _file(kind, path, start, line)


def _file(kind: str, path: Path, start: int, line: Line) -> Iterator[str]:
    data = path.read_bytes()
    right = {found for found in entries_in(data) if found.offset - LENGTH.size >= start}
    state = state_of_log(data) if kind == "entrylog" else state_of_journal(data)
    reports: list[Damage] = []
    good: set[Found] = set()
    reader = entry_log.read if kind == "entrylog" else journal.read
    for block in reader(path, TryAllDigests(), reports.append, start=start):
        rows = zip(block.offsets.tolist(), block.sizes.tolist(), block.verdicts.tolist(), strict=True)
        good |= {Found(offset, size) for offset, size, verdict in rows if verdict == GOOD}
    if kind == "entrylog":
        ledgers = entry_log.read_ledgers_map(path, reports.append)
        if (ledgers is not None or not state.damage) and "ledgers_map" in line:
            truth = {int(ledger_id): size for ledger_id, size in line["ledgers_map"].items()}
            if ledgers != truth and not state.odd:
                yield differs("ledgers map", truth, ledgers)
    for missing in sorted(right - good):
        yield f"the entry {ids_at(data, missing)} of {missing.size} bytes at {missing.offset} is not found"
    for invented in sorted(good - right):
        yield f"{invented.size} bytes at {invented.offset} pass as an entry, and their digest is wrong"
    if not start:
        with Disks.open([path.parent]) as disks:
            yield from _ledgers(data, right, disks)
            reports += [damage for damage in disks.damage if damage.file == str(path)]
    wrong = [offset for offset in state.damage if offset >= start]
    told = {damage.offset for damage in reports}
    for offset in wrong:
        # By the record or by the entry in it; and what the header says is wrong by the header.
        places = {offset, offset + LENGTH.size} | ({0} if offset in (8, state.map_offset) else set())
        if not places & told:
            yield f"damage at {offset} is not reported"
    if reports and not wrong and not state.odd:
        yield f"reported without reason: {reports[0]}"


def _ledgers(data: bytes, right: set[Found], disks: Disks) -> Iterator[str]:
    """As ledgers: no entry but those with a right digest."""
    expected: dict[tuple[int, int], set[bytes]] = {}
    for found in right:
        expected.setdefault(ids_at(data, found), set()).add(data[found.offset : found.offset + found.size])
    for ledger_id in disks.ledger_ids:
        for entry in disks.ledger(ledger_id).entries(beyond=True):
            if entry.stored not in expected.pop((ledger_id, entry.entry_id), ()):
                yield f"entry {ledger_id}:{entry.entry_id} is none that is right"
    for ledger_id, entry_id in sorted(expected):
        yield f"entry {ledger_id}:{entry_id} is not in its ledger"


# -- what is in a file -----------------------------------------------------------------------------------------------


def entries_in(data: bytes) -> Iterator[Found]:
    """All entries with a right digest that do not lie within another one: by the lengths before them, or, where that
    gives none, of any size."""
    offset = LENGTH.size
    while offset + HEADER.size <= len(data):
        size = _size_of_entry(data, offset)
        if size is not None:
            yield Found(offset, size)
            offset += size
        else:
            offset += 1


def _size_of_entry(data: bytes, offset: int) -> int | None:
    ledger_id, entry_id, lac, length = HEADER.unpack_from(data, offset)
    if not (ledger_id >= 0 and 0 <= entry_id < MOST and -1 <= lac < entry_id and 0 <= length < MOST):
        return None
    size = LENGTH.unpack_from(data, offset - LENGTH.size)[0]
    if is_right(data, offset, size):
        return size
    return _by_search(data, offset)


def is_right(data: bytes, offset: int, size: int) -> bool:
    if size < HEADER.size or offset + size > len(data):
        return False
    stored = data[offset : offset + size]
    header, rest = stored[: HEADER.size], stored[HEADER.size :]
    return any(
        len(rest) >= width and checksum(header + rest[width:]) == int.from_bytes(rest[:width])
        for width, checksum in ((4, google_crc32c.value), (8, zlib.crc32))
    )


def _by_search(data: bytes, offset: int) -> int | None:
    """The smallest size with which the bytes there have a right digest of CRC32C. The ledger's length includes them."""
    slot = int.from_bytes(data[offset + HEADER.size : offset + HEADER.size + 4])
    end = offset + HEADER.size + 4
    checksum = google_crc32c.value(data[offset : offset + HEADER.size])
    limit = min(len(data), end + min(HEADER.unpack_from(data, offset)[3], LARGEST_SEARCHED))
    while end <= limit:
        if checksum == slot:
            return end - offset
        checksum = google_crc32c.extend(checksum, data[end : end + 1])
        end += 1
    return None


def ids_at(data: bytes, found: Found) -> tuple[int, int]:
    ledger_id, entry_id = IDS.unpack_from(data, found.offset)
    return ledger_id, entry_id


# -- whether a file is whole -----------------------------------------------------------------------------------------


def state_of_log(data: bytes) -> State:
    if not data:
        return State([])
    if len(data) < LOG_BYTES:
        return State([0])
    magic, version, map_offset, map_count = LOG_HEADER.unpack_from(data)
    damage: list[int] = []
    if magic != b"BKLO" or version not in (0, 1) or data[LOG_HEADER.size : LOG_BYTES].strip(b"\0"):
        damage.append(0)
    first_map, ledgers = 0, 0
    at, last = LOG_BYTES, 0
    while at < len(data):
        size = LENGTH.unpack_from(data, at)[0] if at + LENGTH.size <= len(data) else -1
        if size < IDS.size or at + LENGTH.size + size > len(data):
            return State(_broken_off(damage, last, at))
        last = at
        if IDS.unpack_from(data, at + LENGTH.size) == MAP_IDS:
            first_map = first_map or at
            ledgers += LENGTH.unpack_from(data, at + LENGTH.size + IDS.size)[0]
        elif not is_right(data, at + LENGTH.size, size):
            damage.append(at)
        at += LENGTH.size + size
    if version == 1 and (map_offset, map_count) != (first_map, ledgers):
        damage.append(map_offset)
    return State(damage, version == 0 and first_map > 0, map_offset)


def state_of_journal(data: bytes) -> State:
    if not data:
        return State([])
    magic, version = struct.unpack_from(">4si", data) if len(data) >= 8 else (b"", 0)
    padded = version in (5, 6)
    at = JOURNAL_BYTES if padded else 8
    if magic != b"BKLG" or not 2 <= version <= 6 or (padded and (len(data) < at or data[8:at].strip(b"\0"))):
        return State([0])
    damage: list[int] = []
    odd, last = False, 0
    while at < len(data):
        rest = data[at:]
        if not rest.strip(b"\0"):
            break
        size = LENGTH.unpack_from(rest)[0] if len(rest) >= LENGTH.size else 0
        if size == PADDING and len(rest) >= 8:
            count = LENGTH.unpack_from(rest, 4)[0]
            if 0 <= count <= len(rest) - 8 and not rest[8 : 8 + count].strip(b"\0"):
                at += 8 + count
                continue
        if size < IDS.size or LENGTH.size + size > len(rest):
            return State(_broken_off(damage, last, at), odd)
        last = at
        ledger_id, entry_id = IDS.unpack_from(rest, LENGTH.size)
        body = rest[LENGTH.size : LENGTH.size + size]
        if entry_id >= 0:
            whole = is_right(data, at + LENGTH.size, size)
        elif entry_id == EXPLICIT_LAC:
            whole = _is_right_lac(ledger_id, body[IDS.size + LENGTH.size :])
            odd = odd or version < 6
        else:
            whole = entry_id in (KEY, FENCE, FORCE)
        if not whole:
            damage.append(at)
        at += LENGTH.size + size
    return State(damage, odd)


def _broken_off(damage: list[int], last: int, at: int) -> list[int]:
    """Behind a record whose digest is wrong, its length may be what is."""
    return damage if damage and damage[-1] == last else [*damage, at]


def _is_right_lac(ledger_id: int, body: bytes) -> bool:
    if len(body) < IDS.size or IDS.unpack_from(body)[0] != ledger_id:
        return False
    digest = body[IDS.size :]
    return any(
        len(digest) == width and checksum(body[: IDS.size]) == int.from_bytes(digest)
        for width, checksum in ((4, google_crc32c.value), (8, zlib.crc32))
    )
