"""P24: reading every entry of an entry log with verified digests, compared with only computing the checksums."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import google_crc32c

from benchmarks.figures import Figure, ratio
from benchmarks.measure import Sample, interleave, timed
from benchmarks.places import Bench
from benchmarks.rows import Row
from bookstand.disk.damage import Damage
from bookstand.disk.format import entry_log
from bookstand.disk.format.entry_block import GOOD, TryAllDigests
from bookstand.storage.format.digest import digest_for
from bookstand.storage.format.entry_batch import encode_entries

LOG_BYTES = 1 << 30
_LEDGER, _SLICE = 7, 2_000
_HEAD, _DIGEST = 32, 4
_LENGTH = struct.Struct(">i")
# Part of the log that the baseline uses, so that it need not hold the payloads of the whole log in memory.
_BASELINE_BYTES = 64 << 20


def measure(rows: Sequence[Row], bench: Bench) -> Iterator[Figure]:
    place = bench.memory(LOG_BYTES + (64 << 20))
    for row in rows:
        with place.directory() as directory:
            path = directory / "0.log"
            count = _write(path, _SIZES[row.row])
            heads, payloads = _some_entries(path)

            def ours(path: Path = path, count: int = count) -> Sample:
                return timed(lambda: _read(path, count), count)

            def calls(heads: list[bytes] = heads, payloads: list[bytes] = payloads) -> Sample:
                return timed(lambda: _checksums(heads, payloads), len(heads))

            measured = interleave({"ours": ours, "calls": calls}, bench.rounds(3, 7))
        yield ratio(row, measured["ours"], measured["calls"], f"{count} entries, on {place.kind}")


def _one_size(rng: random.Random) -> int:
    return 1_024


def _mixed_sizes(rng: random.Random) -> int:
    return min(int(200 * rng.paretovariate(1.2)), 20_000)


_SIZES: dict[str, Callable[[random.Random], int]] = {"P24": _one_size, "P24-mixed": _mixed_sizes}


def _write(path: Path, size_of: Callable[[random.Random], int]) -> int:
    """Write an entry log of one ledger. Returns its number of entries."""
    rng = random.Random(24)
    digest = digest_for("crc32c", b"")
    count = length = 0
    with path.open("wb") as file:
        file.write(struct.pack(">4siqi", b"BKLO", 1, 0, 0).ljust(1024, b"\0"))
        while file.tell() < LOG_BYTES:
            payloads = [os.urandom(size_of(rng)) for _ in range(_SLICE)]
            for _, stored in encode_entries(digest, _LEDGER, count, count - 1, length, payloads).pairs():
                file.write(_LENGTH.pack(len(stored)) + stored)
            count += len(payloads)
            length += sum(map(len, payloads))
    return count


def _read(path: Path, expected: int) -> None:
    damage: list[Damage] = []
    found = 0
    for block in entry_log.read(path, TryAllDigests(), damage.append):
        if (block.verdicts != GOOD).any():
            raise RuntimeError("an entry was not verified")
        found += len(block.starts)
    if damage or found != expected:
        raise RuntimeError(f"{found} of {expected} entries were read: {damage[:1]}")


def _some_entries(path: Path) -> tuple[list[bytes], list[bytes]]:
    """Return the headers and payloads of the first entries, as single byte strings."""
    heads: list[bytes] = []
    payloads: list[bytes] = []
    for block in entry_log.read(path, TryAllDigests(), [].append, stop=_BASELINE_BYTES):
        for row in range(len(block.starts)):
            stored = block.stored(row)
            heads.append(stored[:_HEAD])
            payloads.append(stored[_HEAD + _DIGEST :])
    return heads, payloads


def _checksums(heads: list[bytes], payloads: list[bytes]) -> None:
    """Make two checksum calls per entry, without a Python loop."""
    for _checksum in map(google_crc32c.extend, map(google_crc32c.value, heads), payloads):
        pass
