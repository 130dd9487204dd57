"""What a log or a journal holds, found the slow way: whether there is an entry is asked of every single offset."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bookstand.disk.damage import Damage
from bookstand.disk.format import entry_log, journal
from bookstand.disk.format.entry_block import GOOD, UNCHECKED, Block, Digests, KnownDigests
from bookstand.storage.format.digest import digest_for
from bookstand.storage.format.entry_codec import HEADER, HEADER_BYTES
from tests.disk.made import entries, explicit_lac, fence, ledger_key

LENGTH = struct.Struct(">i")
LOG_HEADER = struct.pack(">4siqi", b"BKLO", 1, 0, 0).ljust(1024, b"\0")
JOURNAL_HEADER = struct.pack(">4si", b"BKLG", 6).ljust(512, b"\0")

# Ledgers by their digests; FREE and its like are in no metadata.
CRC32C, CRC32, HMAC, DUMMY, FREE, FREE_HMAC, LARGE_ID = 1, 2, 3, 4, 5, 6, (1 << 32) + 7
LARGEST_SEARCHED, MOST = 4 << 10, 1 << 40
PASSWORD, OTHER_PASSWORD = b"password", b"another"
KNOWN = KnownDigests(
    {
        CRC32C: ("crc32c", b""),
        LARGE_ID: ("crc32c", b""),
        CRC32: ("crc32", b""),
        HMAC: ("hmac", PASSWORD),
        DUMMY: ("dummy", b""),
    },
    [OTHER_PASSWORD],
)
_DIGESTS = {
    CRC32C: digest_for("crc32c", b""),
    LARGE_ID: digest_for("crc32c", b""),
    CRC32: digest_for("crc32", b""),
    HMAC: digest_for("hmac", PASSWORD),
    DUMMY: digest_for("dummy", b""),
    FREE: digest_for("crc32c", b""),
    FREE_HMAC: digest_for("hmac", OTHER_PASSWORD),
}


class Found(NamedTuple):
    """An entry in a file; ``record`` is where its length is."""

    record: int
    size: int
    ledger_id: int
    entry_id: int
    lac: int
    length: int
    verdict: int
    digest_size: int

    @property
    def end(self) -> int:
        return self.record + LENGTH.size + self.size


def rows(blocks: Iterable[Block], data: bytes | None = None) -> list[Found]:
    """All rows of the blocks; with the file's ``data``, they are held against its bytes."""
    found = []
    for block in blocks:
        columns = (block.offsets - LENGTH.size, block.sizes, *block[4:])
        for row, values in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            found.append(Found(*values))
            if data is not None:
                offset = int(block.offsets[row])
                assert block.stored(row) == data[offset : offset + found[-1].size]
    return found


def read_log(path: Path, data: bytes, digests: Digests = KNOWN) -> tuple[list[Found], list[Damage]]:
    path.write_bytes(data)
    damage: list[Damage] = []
    return rows(entry_log.read(path, digests, damage.append), data), damage


def read_journal(path: Path, data: bytes, digests: Digests = KNOWN) -> tuple[list[Found], list[Damage]]:
    path.write_bytes(data)
    damage: list[Damage] = []
    return rows(journal.read(path, digests, damage.append), data), damage


def right_entries(data: bytes, digests: Digests = KNOWN) -> Iterator[Found]:
    """At every offset that begins a whole record with a right digest."""
    for record in range(len(data) - LENGTH.size - HEADER_BYTES + 1):
        entry = right_entry(data, record, LENGTH.unpack_from(data, record)[0], digests)
        if entry is not None:
            yield entry


def entries_of_any_size(data: bytes, digests: Digests = KNOWN) -> Iterator[Found]:
    """The same, and entries with a right checksum whose record has another length, unless they lie within others."""
    record = 0
    while record <= len(data) - LENGTH.size - HEADER_BYTES:
        ledger_id, entry_id, lac, length = HEADER.unpack_from(data, record + LENGTH.size)
        sizes = [LENGTH.unpack_from(data, record)[0]]
        if ledger_id >= 0 and -1 <= lac < entry_id < MOST and 0 <= length < MOST:
            sizes += range(HEADER_BYTES, min(LARGEST_SEARCHED, HEADER_BYTES + 20 + length) + 1)
        found = next(filter(None, (right_entry(data, record, size, digests) for size in sizes)), None)
        if found is not None:
            yield found
        record = record + 1 if found is None else found.end


def right_entry(data: bytes, record: int, size: int, digests: Digests = KNOWN) -> Found | None:
    """The entry of that size there, if it has a right digest."""
    start = record + LENGTH.size
    if not HEADER_BYTES <= size <= len(data) - start:
        return None
    stored = data[start : start + size]
    header = HEADER.unpack_from(stored)
    known = digests.of(header[0])
    tried = [digest_for("crc32c", b""), digest_for("crc32", b"")]
    tried += [digest_for("hmac", password) for password in digests.passwords]
    for digest in tried if known is None else [known]:
        behind = HEADER_BYTES + digest.size
        slot = stored[HEADER_BYTES:behind]
        if digest.size and size >= behind and slot == digest.of(stored[:HEADER_BYTES], stored[behind:]):
            return Found(record, size, *header, GOOD, digest.size)
    return None


def is_made(entry: Found) -> bool:
    """Whether a writer's header has these numbers."""
    least = max(entry.size - HEADER_BYTES - 20, 0)
    return entry.ledger_id >= 0 and -1 <= entry.lac < entry.entry_id < MOST and least <= entry.length < MOST


def hold_against(data: bytes, found: list[Found], digests: Digests = KNOWN) -> None:
    """Nothing passes as good that is not, nothing overlaps, and what is good was found unless it lies within a row."""
    right = {entry.record: entry for entry in right_entries(data, digests)}
    end = 0
    for row in found:
        assert row.record >= end, f"{row} begins in what lies before it"
        end = row.end
        if row.verdict == GOOD:
            assert right_entry(data, row.record, row.size, digests) == row, f"{row} is not there"
        else:
            known = digests.of(row.ledger_id)
            assert row.verdict == UNCHECKED
            assert row.record not in right
            assert known is None or known.name == "dummy", f"{row} can be checked"
    # Behind junk, headers that no writer makes are not looked for: only who knows the password can make such an entry.
    made = {record for record, entry in right.items() if is_made(entry)}
    unseen = made - {row.record for row in found}
    covered = {record for row in found for record in unseen if row.record < record < row.end}
    assert unseen == covered, f"not found: {sorted(unseen - covered)}"


# -- files to read -----------------------------------------------------------------------------------------------------


def records_of(stored: Iterable[bytes]) -> bytes:
    return b"".join(LENGTH.pack(len(record)) + record for record in stored)


def ledgers_map(stored: Iterable[bytes]) -> dict[int, int]:
    taken: dict[int, int] = {}
    for entry in stored:
        ledger_id = HEADER.unpack_from(entry)[0]
        taken[ledger_id] = taken.get(ledger_id, 0) + LENGTH.size + len(entry)
    return taken


def full_log(stored: list[bytes], rows_in_a_record: int = 10_000) -> bytes:
    """A log as it is once it was full, with its ledgers map."""
    body = records_of(stored)
    taken = list(ledgers_map(stored).items())
    parts = [taken[at : at + rows_in_a_record] for at in range(0, len(taken), rows_in_a_record)]
    maps = [
        struct.pack(">qqi", -1, -2, len(part)) + b"".join(struct.pack(">qq", *row) for row in part) for part in parts
    ]
    header = struct.pack(">4siqi", b"BKLO", 1, len(LOG_HEADER) + len(body), len(taken)).ljust(1024, b"\0")
    return header + body + records_of(maps)


def some_entries(rng: random.Random, ledger_ids: Iterable[int], most: int = 90) -> list[bytes]:
    """A few of each ledger, in any order."""
    stored = []
    for ledger_id in ledger_ids:
        payloads = [rng.randbytes(rng.choice((0, rng.randrange(1, most)))) for _ in range(rng.randrange(2, 7))]
        stored += entries(_DIGESTS[ledger_id], ledger_id, payloads, first=rng.choice((0, 5)))
    rng.shuffle(stored)
    return stored


def some_logs(rng: random.Random) -> list[bytes]:
    alike = entries(_DIGESTS[FREE], FREE, [rng.randbytes(9) for _ in range(200)])
    within = full_log(some_entries(rng, (CRC32C, FREE)))
    holding = entries(_DIGESTS[HMAC], HMAC, [within[1024:], b"behind it"])
    return [
        LOG_HEADER + records_of(some_entries(rng, (CRC32C, CRC32, LARGE_ID))),
        full_log(some_entries(rng, _DIGESTS)),
        full_log(some_entries(rng, (CRC32C, HMAC, FREE_HMAC)), rows_in_a_record=1),
        full_log(some_entries(rng, (CRC32C,)) + alike + some_entries(rng, (DUMMY, CRC32))),
        full_log(some_entries(rng, (CRC32C,)) + holding + some_entries(rng, (CRC32C, DUMMY))),
    ]


def padded(data: bytes) -> bytes:
    """What a journal has behind a group of records: padding up to a whole sector."""
    count = -(len(data) + 8) % 512
    return data + struct.pack(">ii", -0x100, count) + bytes(count)


def some_journals(rng: random.Random) -> list[bytes]:
    made = []
    for ledger_ids in ((CRC32C, CRC32, LARGE_ID), tuple(_DIGESTS), (HMAC, DUMMY, FREE)):
        data = JOURNAL_HEADER
        for ledger_id in ledger_ids:
            special = [ledger_key(ledger_id, rng.randbytes(20)), fence(ledger_id)]
            if ledger_id == CRC32C:
                special.append(explicit_lac(_DIGESTS[ledger_id], ledger_id, 3))
            data = padded(data + records_of([special[0], *some_entries(rng, (ledger_id,)), *special[1:]]))
        made.append(data + bytes(rng.choice((0, 700))))
    return made


# -- what is done to them ----------------------------------------------------------------------------------------------


def _lengthen(rng: random.Random, data: bytes, places: list[Found]) -> bytes:
    """A length that leads to where another record begins, over some that are right."""
    first, last = sorted(rng.sample(range(len(places)), 2))
    return _with_length(data, places[first].record, places[last].record - places[first].record - LENGTH.size)


def _set_length(rng: random.Random, data: bytes, places: list[Found]) -> bytes:
    place = rng.choice(places)
    length = rng.choice((0, -1, -256, 8, 31, 32, place.size - 1, place.size + 1, len(data), (1 << 31) - 1))
    return _with_length(data, place.record, length)


def _with_length(data: bytes, record: int, length: int) -> bytes:
    return data[:record] + LENGTH.pack(length) + data[record + LENGTH.size :]


def _remove(rng: random.Random, data: bytes, places: list[Found]) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randrange(len(data) // 2) :]


def _overlay(rng: random.Random, data: bytes, places: list[Found]) -> bytes:
    """Some whole records over something else."""
    first, last = sorted(rng.sample(range(len(places)), 2))
    part = data[places[first].record : places[last].record]
    at = rng.randrange(len(data))
    return data[:at] + part + data[at + len(part) :]


def _zeros(rng: random.Random, data: bytes, places: list[Found]) -> bytes:
    at = rng.randrange(len(data))
    count = rng.randrange(300)
    return data[:at] + bytes(count) + data[at + (count if rng.random() < 0.5 else 0) :]


MUTATIONS: list[Callable[[random.Random, bytes, list[Found]], bytes]] = [
    _lengthen,
    _set_length,
    _remove,
    _overlay,
    _zeros,
]


def damaged(rng: random.Random, sample: bytes, times: int = 1) -> bytes:
    places = list(right_entries(sample))
    for _ in range(times):
        sample = rng.choice(MUTATIONS)(rng, sample, places)
    return sample
