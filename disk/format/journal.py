"""Journals: a bookie's write-ahead logs.

A journal consists of a header and records, with padding between them. A record is a stored entry or, if it has a
negative number in place of the entry id, a special record. Journals are preallocated: zeros follow the last record.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from bookstand.disk.damage import Damage, Report
from bookstand.disk.format.digest_check import DigestChecker
from bookstand.disk.format.entry_block import Block, Digests
from bookstand.disk.format.record_scanner import IDS, LENGTH, RecordScanner
from bookstand.disk.format.tolerant_file import TolerantFile
from bookstand.proto.struct_layout import Layout
from bookstand.storage.format.digest import Digest
from bookstand.storage.format.entry_codec import EXPLICIT_LAC, encode_explicit_lac

HEADER_BYTES = 512
MAGIC = b"BKLG"
_FIRST_PADDED, _NEWEST_VERSION = 5, 6
HEADER = Layout(
    "the header of a journal",
    ("magic", f"{len(MAGIC)}s", f"`{MAGIC.decode()}`; version 1 has no header"),
    ("version", "i", f"2 to {_NEWEST_VERSION}"),
    ("zeros", f"up to {HEADER_BYTES}", f"from version {_FIRST_PADDED} on"),
)
_HEADER = HEADER.struct

_PADDING_MARK = -0x100
PADDING = Layout(
    "padding between records, in the place of a length",
    ("mark", "i", f"{_PADDING_MARK:#x}"),
    ("count", "i", "of zeros"),
    ("zeros", "count bytes", ""),
)
_PADDING = PADDING.struct
_LEDGER_KEY, _FENCE, _FORCE, _EXPLICIT_LAC = -0x1000, -0x2000, -0x4000, -0x8000
# Possible sizes of the body: a SHA-1, or two numbers and any of the digests.
_SIZES = {_LEDGER_KEY: (20,), _EXPLICIT_LAC: (16, 20, 24, 36)}
# Range of ids that no version uses yet and a later one may.
_STEP, _FURTHEST = 0x1000, -0x100000
_COUNT = struct.Struct(">i")
KEY_RECORD = Layout(
    "before a ledger's first entry: its master key",
    ("ledger id", "q", ""),
    ("what it is", "q", f"{_LEDGER_KEY:#x}"),
    ("count", "i", "of the bytes that follow"),
    ("master key", f"{_SIZES[_LEDGER_KEY][0]} bytes", ""),
)
FENCE_RECORD = Layout("fence of the ledger", ("ledger id", "q", ""), ("what it is", "q", f"{_FENCE:#x}"))
FORCE_RECORD = Layout("the ledger was forced", ("ledger id", "q", ""), ("what it is", "q", f"{_FORCE:#x}"))
LAC_RECORD = Layout(
    "explicit last-add-confirmed",
    ("ledger id", "q", ""),
    ("what it is", "q", f"{_EXPLICIT_LAC:#x}"),
    ("count", "i", "of the bytes that follow"),
    (EXPLICIT_LAC.title, "count bytes", ""),
)

_CHUNK = 1 << 20

StrPath = str | os.PathLike[str]


class MetaEntry(NamedTuple):
    """Special record, which is not an entry; ``offset`` is that of the record."""

    offset: int
    kind: Literal["ledger_key", "fence", "explicit_lac"]
    ledger_id: int
    # The master key.
    data: bytes = b""
    lac: int = -1


class _Records:
    def __init__(self, file: TolerantFile, special: Callable[[MetaEntry], None] | None) -> None:
        self._special = special
        self._end = _end_of_data(file)

    def is_record(self, size: int, ledger_id: int, entry_id: int, rest: bytes) -> bool:
        if ledger_id < 0:
            return False
        if entry_id in _SIZES:
            count = _COUNT.unpack_from(rest)[0] if len(rest) >= _COUNT.size else -1
            return count in _SIZES[entry_id] and size == IDS.size + _COUNT.size + count
        if entry_id == _FENCE:
            return size == IDS.size
        return _FURTHEST <= entry_id < 0 and entry_id % _STEP == 0

    def filler(self, file: TolerantFile, offset: int) -> int:
        head = file.read(offset, _PADDING.size)
        if len(head) < _PADDING.size:
            return 0
        mark, count = _PADDING.unpack(head)
        if mark != _PADDING_MARK or not 0 <= count <= file.size - offset - _PADDING.size:
            return 0
        # Other bytes in the padding mean that its length is wrong.
        return 0 if _not_zeros(file, offset + _PADDING.size, count) else _PADDING.size + count

    def is_end(self, file: TolerantFile, offset: int) -> bool:
        return offset >= self._end

    def told(self, file: TolerantFile, offset: int, size: int, judge: DigestChecker) -> None:
        stored = file.read(offset, size)
        ledger_id, kind = IDS.unpack_from(stored)
        record, data = offset - LENGTH.size, stored[IDS.size + _COUNT.size :]
        special = None
        if kind == _LEDGER_KEY:
            special = MetaEntry(record, "ledger_key", ledger_id, data=data)
        elif kind == _FENCE:
            special = MetaEntry(record, "fence", ledger_id)
        elif kind == _EXPLICIT_LAC:
            lac = judge.explicit_lac(ledger_id, data)
            if lac is None:
                file.report(Damage(file.name, record, "the digest of an explicit LAC is wrong", ledger_id))
            else:
                special = MetaEntry(record, "explicit_lac", ledger_id, lac=lac)
        elif kind != _FORCE:
            file.report(Damage(file.name, record, f"a record of an unknown kind, {kind}", ledger_id))
        if special is not None and self._special is not None:
            self._special(special)


def read(
    path: StrPath,
    digests: Digests,
    report: Report,
    *,
    start: int | None = None,
    special: Callable[[MetaEntry], None] | None = None,
) -> Iterator[Block]:
    """Yield the entries whose records begin at or after ``start``, in file order. ``special`` receives the special
    records, block by block. Trailing zeros are not damage; data after zeros is."""
    with TolerantFile(path, report) as file:
        scan = RecordScanner(file, digests, _Records(file, special), start or 0)
        yield from scan.blocks(_first_record(file, scan))


def _first_record(file: TolerantFile, scan: RecordScanner) -> int:
    """Return the offset of the first record; damage to the header is reported."""
    head = file.read(0, HEADER_BYTES)
    if not head:
        return 0
    zeros = not head[_HEADER.size :].strip(b"\0")
    if head[: len(MAGIC)] != MAGIC:
        if scan.is_place(0):
            return 0  # version 1, or all zeros
        scan.report(0, f"a journal does not begin with {head[: len(MAGIC)]!r}")
    elif len(head) < _HEADER.size:
        scan.report(0, f"{len(head)} bytes are too few for the header of a journal")
    else:
        version = _HEADER.unpack_from(head)[1]
        if not 2 <= version <= _NEWEST_VERSION:
            scan.report(0, f"version {version} of journals is not known")
        elif version < _FIRST_PADDED:
            if not zeros:
                return _HEADER.size
            if _end_of_data(file) > HEADER_BYTES:
                scan.report(0, f"in a journal of version {version} zeros follow the header, and then something else")
        elif len(head) < HEADER_BYTES:
            scan.report(0, f"{len(head)} bytes are too few for the header of a journal of version {version}")
        elif not zeros:
            scan.report(0, "the header of a journal ends in something else than zeros")
    if zeros:
        return HEADER_BYTES
    # Bytes may be missing or extra, so the first entry may begin anywhere in the header.
    found = scan.first_good(0, HEADER_BYTES)
    return HEADER_BYTES if found is None else found


def _end_of_data(file: TolerantFile) -> int:
    """Return the offset after which the file holds only zeros."""
    end = file.size
    while end:
        start = max(end - _CHUNK, 0)
        data = file.read(start, end - start).rstrip(b"\0")
        if data:
            return start + len(data)
        end = start
    return 0


def _not_zeros(file: TolerantFile, offset: int, count: int) -> bool:
    return any(
        file.read(start, min(_CHUNK, offset + count - start)).strip(b"\0")
        for start in range(offset, offset + count, _CHUNK)
    )


# -- writing ---------------------------------------------------------------------------------------------------------

# The file is padded to a multiple of this after each group of records.
_ALIGNMENT = 512


def ledger_key(ledger_id: int, key: bytes) -> bytes:
    """Encode a record, without its length field: the master key that writers of the ledger must present."""
    return IDS.pack(ledger_id, _LEDGER_KEY) + _COUNT.pack(len(key)) + key


def fence(ledger_id: int) -> bytes:
    """Encode a record, without its length field: the ledger rejects further writes."""
    return IDS.pack(ledger_id, _FENCE)


def explicit_lac(ledger_id: int, digest: Digest, lac: int) -> bytes:
    """Encode a record, without its length field: the last-add-confirmed that the ledger's writer announced."""
    body = encode_explicit_lac(digest, ledger_id, lac)
    return IDS.pack(ledger_id, _EXPLICIT_LAC) + _COUNT.pack(len(body)) + body


def whole(records: Iterable[bytes]) -> bytes:
    """Encode a complete journal: one group of records, without preallocated space."""
    out = bytearray(_HEADER.pack(MAGIC, _NEWEST_VERSION).ljust(HEADER_BYTES, b"\0"))
    for record in records:
        out += LENGTH.pack(len(record)) + record
    if len(out) % _ALIGNMENT:
        count = -(len(out) + _PADDING.size) % _ALIGNMENT
        out += _PADDING.pack(_PADDING_MARK, count) + bytes(count)
    return bytes(out)
