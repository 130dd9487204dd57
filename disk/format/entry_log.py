"""Entry logs: the files in which a bookie stores the entries of all its ledgers.

A log consists of a header, records of entries, and, once it is full, records of the ledgers map.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from bookstand.disk.damage import Damage, Report
from bookstand.disk.format.digest_check import DigestChecker
from bookstand.disk.format.entry_block import LENGTH_BYTES, Block, Digests
from bookstand.disk.format.record_scanner import IDS, LENGTH, RecordScanner
from bookstand.disk.format.tolerant_file import TolerantFile
from bookstand.errors import ExpansionError
from bookstand.proto.expansion import DEFAULT, RECORD_BYTES, Expansion, ExpansionLimits
from bookstand.proto.struct_layout import Layout

HEADER_BYTES = 1024
MAGIC = b"BKLO"
_NEWEST_VERSION = 1
HEADER = Layout(
    "the header of an entry log",
    ("magic", f"{len(MAGIC)}s", f"`{MAGIC.decode()}`"),
    ("version", "i", f"0 or {_NEWEST_VERSION}"),
    ("map offset", "q", "where the ledgers map begins; 0 in a log that was not full"),
    ("map count", "i", "how many ledgers it has"),
    ("zeros", f"up to {HEADER_BYTES}", ""),
)
_HEADER = HEADER.struct

_MAP_IDS = (-1, -2)
MAP = Layout(
    "a record of the ledgers map",
    ("ids", f"{IDS.size}s", f"in place of a ledger and an entry, {_MAP_IDS[0]} and {_MAP_IDS[1]}"),
    ("count", "i", "of ledgers"),
    ("ledgers", "16 bytes for each", "ledger id (8) and the bytes of its records in this log (8)"),
)
_MAP_HEADER_BYTES = MAP.struct.size
_COUNT_BYTES = _MAP_HEADER_BYTES - IDS.size
_MAP_ROW = np.dtype([("ledger", ">i8"), ("bytes", ">i8")])
# Maximum number of ledgers in one record of the map.
_MAP_ROWS = 10_000

StrPath = str | os.PathLike[str]
_Say = Callable[[int, str], None]


class LogHeader(NamedTuple):
    version: int
    # Zero in a log that was not full when its bookie stopped.
    map_offset: int
    map_count: int


class _Records:
    """Grammar of entry logs: the ledgers map is the only other record, and the end of a log is not marked."""

    def is_record(self, size: int, ledger_id: int, entry_id: int, rest: bytes) -> bool:
        return (ledger_id, entry_id) == _MAP_IDS and _rows_of_map(size, rest) is not None

    def filler(self, file: TolerantFile, offset: int) -> int:
        return 0

    def is_end(self, file: TolerantFile, offset: int) -> bool:
        return False

    def told(self, file: TolerantFile, offset: int, size: int, judge: DigestChecker) -> None:
        pass


def _rows_of_map(size: int, rest: bytes) -> int | None:
    if len(rest) < _COUNT_BYTES:
        return None
    count = int.from_bytes(rest[:_COUNT_BYTES], "big", signed=True)
    return count if count >= 0 and size == _MAP_HEADER_BYTES + count * _MAP_ROW.itemsize else None


def read(
    path: StrPath, digests: Digests, report: Report, *, start: int | None = None, stop: int | None = None
) -> Iterator[Block]:
    """Yield the entries whose records begin in ``range(start, stop)`` of the file, in file order.

    Damage is reported if it begins in that range.
    """
    with TolerantFile(path, report) as file:
        scan = RecordScanner(file, digests, _Records(), start or 0, stop)
        first = HEADER_BYTES
        if file.size and not _header(file, scan.report):
            # Bytes may be missing or extra, so the first entry may begin anywhere in the header.
            found = scan.first_good(0, HEADER_BYTES)
            first = HEADER_BYTES if found is None else found
        yield from scan.blocks(first)


def read_header(path: StrPath, report: Report) -> LogHeader | None:
    """Read the header; None if it is damaged, which is reported, or the file is empty, like a log created in
    advance."""
    with TolerantFile(path, report) as file:
        return _header(file, _reporting(file)) if file.size else None


def read_ledgers_map(path: StrPath, report: Report, limits: ExpansionLimits = DEFAULT) -> dict[int, int] | None:
    """Read the size of each ledger's records in the log; None if the log was not full or its map is damaged."""
    with TolerantFile(path, report) as file:
        say = _reporting(file)
        header = _header(file, say) if file.size else None
        if header is None or not header.version or header.map_offset == 0 == header.map_count:
            return None
        if not HEADER_BYTES <= header.map_offset <= file.size:
            say(0, f"the ledgers map cannot be at {header.map_offset}")
            return None
        ledgers = _ledgers(file, header.map_offset, limits.of(file.allocated), say)
        if ledgers is not None and len(ledgers) != header.map_count:
            say(header.map_offset, f"a map of {len(ledgers)} ledgers where {header.map_count} are meant to be")
            return None
        return ledgers


def _ledgers(file: TolerantFile, offset: int, expansion: Expansion, say: _Say) -> dict[int, int] | None:
    ledgers: dict[int, int] = {}
    while offset < file.size:
        head = file.read(offset, LENGTH_BYTES + _MAP_HEADER_BYTES)
        size = LENGTH.unpack_from(head)[0] if len(head) == LENGTH_BYTES + _MAP_HEADER_BYTES else 0
        rest = head[LENGTH_BYTES + IDS.size :]
        if not size or IDS.unpack_from(head, LENGTH_BYTES) != _MAP_IDS or _rows_of_map(size, rest) is None:
            say(offset, "no ledgers map is there")
            return None
        try:
            expansion.take((size - _MAP_HEADER_BYTES) // _MAP_ROW.itemsize * RECORD_BYTES, "the ledgers map")
        except ExpansionError as error:
            say(offset, str(error))
            return None
        offset += len(head)
        rows = file.read(offset, size - _MAP_HEADER_BYTES)
        offset += len(rows)
        if len(rows) < size - _MAP_HEADER_BYTES:
            say(offset, "the ledgers map is cut off")
            return None
        columns = np.frombuffer(rows, _MAP_ROW)
        ledgers.update(zip(columns["ledger"].tolist(), columns["bytes"].tolist(), strict=True))
    return ledgers


def _reporting(file: TolerantFile) -> _Say:
    return lambda offset, what: file.report(Damage(file.name, offset, what))


def _header(file: TolerantFile, say: _Say) -> LogHeader | None:
    """Read the header; None if it is invalid, so that records may begin anywhere. Unknown versions are only
    reported."""
    head = file.read(0, HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        say(0, f"{len(head)} bytes are too few for the header of an entry log")
        return None
    magic, version, map_offset, map_count = _HEADER.unpack_from(head)
    if magic != MAGIC:
        say(0, f"an entry log does not begin with {magic!r}")
        return None
    if head[_HEADER.size :].strip(b"\0"):
        say(0, "the header of an entry log ends in something else than zeros")
        return None
    if not 0 <= version <= _NEWEST_VERSION:
        say(0, f"version {version} of entry logs is not known")
    return LogHeader(version, map_offset, map_count)


# -- writing ---------------------------------------------------------------------------------------------------------


def header(map_offset: int = 0, map_count: int = 0) -> bytes:
    """Encode the header of a log; a log has no map until it is full."""
    return _HEADER.pack(MAGIC, _NEWEST_VERSION, map_offset, map_count).ljust(HEADER_BYTES, b"\0")


def map_records(ledgers: Mapping[int, int]) -> Iterator[bytes]:
    """Yield the records of the ledgers map, without their length fields."""
    rows = np.fromiter(ledgers.items(), _MAP_ROW, len(ledgers))
    for first in range(0, len(rows), _MAP_ROWS):
        some = rows[first : first + _MAP_ROWS]
        yield MAP.struct.pack(IDS.pack(*_MAP_IDS), len(some)) + some.tobytes()
