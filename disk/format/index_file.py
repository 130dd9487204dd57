"""Index file of a ledger, as the interleaved and the sorted ledger storage write it.

Entries can be read without it. The facts in its header are otherwise only in the journal.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bookstand.disk.damage import Damage, Report
from bookstand.errors import MalformedError
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.proto.struct_layout import Layout
from bookstand.storage.format.entry_codec import EXPLICIT_LAC

SUFFIX = ".idx"
HEADER_BYTES = 1024

_MAGIC = b"BKLE"
_VERSIONS = (0, 1)
_FENCED = 1
_BLOCK = 512
_I32 = struct.Struct(">i")
_LOCATION = np.dtype(">i8")
INDEX = Layout(
    "the index file of a ledger",
    ("magic", f"{len(_MAGIC)}s", f"`{_MAGIC.decode()}`"),
    ("version", "i", " or ".join(map(str, _VERSIONS))),
    ("n", "i", "of bytes that follow"),
    ("master key", "n bytes", ""),
    ("state", "4 bytes", "bit 0: the ledger is fenced"),
    ("m", "4 bytes", "of bytes that follow; from version 1 on"),
    (EXPLICIT_LAC.title, "m bytes", "or nothing"),
    ("zeros", f"up to {HEADER_BYTES}", ""),
    ("locations", f"{_LOCATION.itemsize} bytes for each entry", "log id << 32 and offset of the stored entry; 0: none"),
)
_EXPLICIT_LAC = EXPLICIT_LAC.struct


class IndexFile(NamedTuple):
    """Header of an index file, and access to its entry locations."""

    path: Path
    ledger_id: int
    master_key: bytes
    fenced: bool
    explicit_lac: int | None

    def locations(
        self, first: int = 0, last: int | None = None, limits: ExpansionLimits = DEFAULT
    ) -> NDArray[np.int64]:
        """Read the locations of the entries from ``first`` to ``last``, or to the end of the file."""
        with open(self.path, "rb") as file:
            found = os.fstat(file.fileno())
            count = max((found.st_size - HEADER_BYTES) // _LOCATION.itemsize - first, 0)
            if last is not None:
                count = min(count, max(last - first + 1, 0))
            # A sparse file may claim any size: limit the expansion by its allocated blocks.
            expansion = limits.of(min(found.st_size, found.st_blocks * _BLOCK))
            expansion.take(2 * count * _LOCATION.itemsize, f"{self.path}: an index of {count} entries")
            file.seek(HEADER_BYTES + first * _LOCATION.itemsize)
            return np.fromfile(file, _LOCATION, count).astype(np.int64)


def ledger_id_of(path: Path) -> int:
    """Return the ledger id in the file's name, or raise :class:`ValueError`."""
    return int(path.stem, 16)


def read_index(path: Path, report: Report) -> IndexFile | None:
    """Read an index file; return None if its header is unreadable, which is reported."""
    ledger_id = -1
    try:
        ledger_id = ledger_id_of(path)
        with open(path, "rb") as file:
            header = file.read(HEADER_BYTES)
            size = file.seek(0, 2)
        master_key, fenced, explicit = _read_header(header)
    except OSError as error:
        report(Damage(str(path), 0, f"the index cannot be read: {error.strerror or error}", ledger_id))
        return None
    except ValueError as error:
        report(Damage(str(path), 0, f"the index is damaged: {error}", ledger_id))
        return None
    beyond = (size - HEADER_BYTES) % _LOCATION.itemsize
    if beyond:
        report(Damage(str(path), size - beyond, "the index ends within a location", ledger_id))
    lac = None
    try:
        lac = _explicit_lac(ledger_id, explicit)
    except MalformedError as error:
        report(Damage(str(path), 0, f"the index is damaged: {error}", ledger_id))
    return IndexFile(path, ledger_id, master_key, fenced, lac)


def _read_header(header: bytes) -> tuple[bytes, bool, bytes]:
    """Return the master key, the fenced flag and the encoded explicit LAC."""
    if len(header) < HEADER_BYTES:
        raise MalformedError(f"its header should have {HEADER_BYTES} bytes, there are {len(header)}")
    if not header.startswith(_MAGIC):
        raise MalformedError(f"it begins with {header[:4]!r}")
    version, at = _number(header, len(_MAGIC))
    if version not in _VERSIONS:
        raise MalformedError(f"its version is {version}, which is not known")
    master_key, at = _chunk(header, at)
    state, at = _number(header, at)
    explicit = b""
    if version >= 1:
        explicit, at = _chunk(header, at)
    return master_key, bool(state & _FENCED), explicit


def _number(header: bytes, at: int) -> tuple[int, int]:
    if at + _I32.size > len(header):
        raise MalformedError("its header ends within a number")
    return int(_I32.unpack_from(header, at)[0]), at + _I32.size


def _chunk(header: bytes, at: int) -> tuple[bytes, int]:
    size, at = _number(header, at)
    if not 0 <= size <= len(header) - at:
        raise MalformedError(f"its header has a part of {size} bytes, {len(header) - at} are left")
    return header[at : at + size], at + size


def _explicit_lac(ledger_id: int, chunk: bytes) -> int | None:
    if not chunk:
        return None
    if len(chunk) < _EXPLICIT_LAC.size:
        raise MalformedError(f"its explicit LAC has {len(chunk)} bytes")
    of, lac = _EXPLICIT_LAC.unpack_from(chunk)
    if of != ledger_id:
        raise MalformedError(f"its explicit LAC is that of ledger {of}")
    return int(lac)
