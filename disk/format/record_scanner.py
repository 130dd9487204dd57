"""Scanner for the records of an entry log or a journal that resumes after damage.

A record is a length and that many bytes, usually an entry. Each length leads to the next record, and the entry's digest
confirms the record. After a wrong digest or an impossible record, the scan resumes at the next record whose digest is
valid: lengths are unprotected, so it never relies on them. If only the length is wrong, the checksum determines the
correct one. The scan therefore finds every entry with a valid digest that is not nested in another entry, and accepts
no other entry as good. An entry that cannot be checked is accepted if its header is plausible and another record, or
the end of the data, follows it.

Record boundaries do not depend on the requested range: the scan walks the records before a range without checking their
digests. The ranges of a file together yield the same rows as the whole file, even if the payload of an entry is a log
itself. The exception is a wrong length before a range that leads to the records of such a payload.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from bookstand.disk.damage import Damage
from bookstand.disk.format.digest_check import (
    HEAD_BYTES,
    LARGE,
    LARGEST_HELD,
    CandidateEntries,
    DigestChecker,
    column,
    headers,
    plausible_headers,
)
from bookstand.disk.format.entry_block import BAD, GOOD, LENGTH_BYTES, Block, Digests
from bookstand.disk.format.tolerant_file import TolerantFile
from bookstand.proto.struct_layout import Layout
from bookstand.storage.format.entry_codec import HEADER_BYTES

RECORD = Layout("a record of a log or a journal", ("length", "i", "of what follows"), ("record", "length bytes", ""))
BEGINNING = Layout("how each record begins", ("ledger id", "q", ""), ("entry id, or what it is", "q", ""))
LENGTH = RECORD.struct
IDS = BEGINNING.struct
assert LENGTH.size == LENGTH_BYTES

# Every record begins with a ledger id and an entry id or record type.
_SMALLEST = IDS.size
# A special record of up to this size cannot contain an entry record.
_TOO_SMALL_TO_HOLD = HEAD_BYTES + _SMALLEST
# Number of bytes of a record, from its length field on, that any grammar examines.
_PEEK = 64

# Reads are small after damage, because more damage may follow.
_FIRST = 1 << 16
_LARGEST = 1 << 22
# Size of one read while searching for a record.
_WINDOW = 1 << 20
# Up to this size a valid checksum is not a coincidence; a larger entry must be followed by a plausible record.
_FEW_SIZES = 1 << 13
# After this many records of one size, the following records are examined as an array.
_ALIKE = 16


class _Astray(NamedTuple):
    """A record whose length cannot be trusted, and the offset at which to resume."""

    record: int
    go_on: int


class FileGrammar(Protocol):
    """File-specific rules for everything but entries."""

    def is_record(self, size: int, ledger_id: int, entry_id: int, rest: bytes) -> bool:
        """Return True for a special record, not an entry; ``rest`` follows the ids and may be truncated."""

    def filler(self, file: TolerantFile, offset: int) -> int:
        """Return the number of padding bytes at ``offset``, which the scan skips."""

    def is_end(self, file: TolerantFile, offset: int) -> bool:
        """Return True if no more data is expected at ``offset``."""

    def told(self, file: TolerantFile, offset: int, size: int, judge: DigestChecker) -> None:
        """Receive a special record; ``offset`` is the position after its length field."""


class RecordScanner:
    """Scanner of one file. ``start`` and ``stop`` bound the offsets of the records to yield."""

    def __init__(
        self, file: TolerantFile, digests: Digests, grammar: FileGrammar, start: int = 0, stop: int | None = None
    ) -> None:
        self._file = file
        self._grammar = grammar
        self._judge = DigestChecker(file, digests)
        self._start = start
        self._stop = file.size if stop is None else stop
        # All records that begin before this offset have been found. Data skipped without a digest check (a header,
        # padding, a special record) does not count, because its end may be wrong.
        self._sought = 0
        # Correct sizes of intact entries whose length fields are wrong, by record offset.
        self._true_sizes: dict[int, int] = {}

    def report(self, offset: int, what: str, ledger_id: int = -1, entry_id: int = -1) -> None:
        if self._start <= offset < self._stop:
            self._file.report(Damage(self._file.name, offset, what, ledger_id, entry_id))

    # -- where records are ---------------------------------------------------------------------------------------------

    def is_place(self, offset: int) -> bool:
        """Return True if a record may end at ``offset``: another record, padding or the end follows."""
        file = self._file
        if offset >= file.size or self._grammar.is_end(file, offset) or self._grammar.filler(file, offset):
            return True
        size = self._size_at(offset)
        return size is not None and offset + LENGTH_BYTES + size <= file.size

    def _size_at(self, offset: int) -> int | None:
        """Return the size of the record at ``offset`` if it is plausible; it may exceed the rest of the file."""
        head = self._file.read(offset, _PEEK)
        if len(head) < LENGTH_BYTES + _SMALLEST:
            return None
        size: int = LENGTH.unpack_from(head)[0]
        ledger_id, entry_id = IDS.unpack_from(head, LENGTH_BYTES)
        rest = head[LENGTH_BYTES + _SMALLEST : LENGTH_BYTES + max(size, 0)]
        if size >= HEADER_BYTES and ledger_id >= 0 and entry_id >= 0:
            return size
        return size if size >= _SMALLEST and self._grammar.is_record(size, ledger_id, entry_id, rest) else None

    def first_good(self, offset: int, end: int) -> int | None:
        """Find the first record in ``range(offset, end)`` that is an entry with a valid digest."""
        file = self._file
        width = 1 << 12
        while offset < end:
            data = file.read(offset, min(width, end - offset) + HEAD_BYTES - 1)
            count = len(data) - HEAD_BYTES + 1
            if count <= 0:
                return None
            for at, size in self._candidates(data, count, file.size - offset):
                if self._judge.is_good(offset + at + LENGTH_BYTES, size):
                    return offset + at
            offset += count
            width = min(2 * width, _WINDOW)
        return None

    @staticmethod
    def _candidates(data: bytes, count: int, left: int) -> Iterator[tuple[int, int]]:
        """Return offsets and sizes of byte ranges that may be entry records."""
        octets = np.frombuffer(data, np.uint8)

        def at(place: int) -> Any:
            return octets[place : place + count]

        # In an entry record the sign bits of length and ledger id, the two highest octets of the entry id and the
        # highest of the ledger's length are zero, and the length is not. Little else passes this test.
        entry, length = LENGTH_BYTES + 8, LENGTH_BYTES + 24
        maybe = (at(entry) | at(entry + 1) | at(length) | (at(0) & 0x80) | (at(LENGTH_BYTES) & 0x80)) == 0
        maybe &= (at(0) | at(1) | at(2) | at(3)) != 0
        places = np.flatnonzero(maybe)
        sizes = column(data, ">i4", places).astype(np.int64)
        fitting = (sizes >= HEADER_BYTES) & (sizes <= left - LENGTH_BYTES - places)
        places, sizes = places[fitting], sizes[fitting]
        if len(places):
            _, fields = headers(data, places + LENGTH_BYTES)
            right = plausible_headers(fields, sizes)
            places, sizes = places[right], sizes[right]
        return zip(places.tolist(), sizes.tolist(), strict=True)

    # -- reading -------------------------------------------------------------------------------------------------------

    def blocks(self, offset: int) -> Iterator[Block]:
        """Yield the entries from the record at ``offset`` on."""
        width = _FIRST
        while offset < min(self._stop, self._file.size) and not self._grammar.is_end(self._file, offset):
            block, offset, width = self._step(offset, width)
            if block is not None:
                yield block
                del block  # frees memory before the next block is read

    def _step(self, offset: int, width: int) -> tuple[Block | None, int, int]:
        """Return the next entries, if any, the offset to continue at, and the next read size."""
        if (size := self._true_sizes.pop(offset, None)) is not None:
            return self._alone(offset, size), offset + LENGTH_BYTES + size, _FIRST
        data = self._file.read(offset, width)
        starts, sizes, passed = self._walk(data, offset)
        if len(starts):
            block, behind, straight = self._block(data, offset, starts, sizes, offset + passed)
            return block, behind, min(2 * width, _LARGEST) if straight else _FIRST
        if not passed:
            passed = self._grammar.filler(self._file, offset)
        if passed:
            return None, offset + passed, width
        needed = self._needed(offset)
        if needed > len(data):
            return None, offset, needed
        return None, self._behind_junk(offset), _FIRST

    def _walk(self, data: bytes, base: int) -> tuple[Any, Any, int]:
        """Follow the lengths: return the records that are complete in ``data``, and the end of the last one."""
        starts, sizes = array("q"), array("q")
        stretches: list[tuple[Any, Any]] = []
        at, alike, before, end = 0, 0, -1, len(data)
        unpack, last = LENGTH.unpack_from, end - LENGTH_BYTES
        while at <= last:
            size = unpack(data, at)[0]
            if size < _SMALLEST:
                filler = self._grammar.filler(self._file, base + at)
                if not 0 < filler <= end - at:
                    break
                at += filler
                continue
            behind = at + LENGTH_BYTES + size
            if behind > end:
                break
            starts.append(at + LENGTH_BYTES)
            sizes.append(size)
            at = behind
            alike = alike + 1 if size == before else 0
            before = size
            if alike == _ALIKE:
                alike = 0
                stride = LENGTH_BYTES + size
                room = (end - at) // stride
                following = np.ndarray((room,), ">i4", data, at, (stride,)) if room else np.empty(0)
                differing = np.flatnonzero(following != size)
                if count := int(differing[0]) if len(differing) else room:
                    stretches.append((np.array(starts, np.int64), np.array(sizes, np.int64)))
                    stretches.append((np.arange(count) * stride + (at + LENGTH_BYTES), np.full(count, size)))
                    starts, sizes = array("q"), array("q")
                    at += count * stride
        stretches.append((np.array(starts, np.int64), np.array(sizes, np.int64)))
        all_starts, all_sizes = zip(*stretches, strict=True)
        return np.concatenate(all_starts), np.concatenate(all_sizes), at

    def _block(self, data: bytes, base: int, starts: Any, sizes: Any, behind: int) -> tuple[Block | None, int, bool]:
        """Return the entries among these records, the offset to continue at, and False if any record was damaged."""
        if starts[-1] + HEADER_BYTES > len(data):
            data += bytes(HEADER_BYTES)  # the last record is shorter than a header, so it is not an entry
        records = CandidateEntries(starts, sizes, *headers(data, starts))
        is_entry = (sizes >= HEADER_BYTES) & (records.fields[:, 0] >= 0) & (records.fields[:, 1] >= 0)
        others = np.flatnonzero(~is_entry).tolist()
        straight, holder = True, None
        for number, row in enumerate(others):
            left = self._left_at(data, base, records, row)
            if left is not None:
                behind, straight, holder = left.go_on, False, left.record
                others, is_entry, records = others[:number], is_entry[:row], records.of(slice(row))
                break
        if behind == base:
            return None, self._behind_junk(base), False
        offsets = records.starts + (base - LENGTH_BYTES)
        # Of the records before the requested range only the last one is checked, because its length may be wrong.
        before = max(int(np.searchsorted(offsets, self._start, "right")) - 1, 0)
        if len(passed := np.flatnonzero(is_entry[:before])):
            self._sought = base + records.end(int(passed[-1]))
        is_entry[:before] = False
        entries = records if is_entry.all() else records.of(is_entry)
        block, until = None, self._stop
        if len(entries.starts):
            verdicts, digest_sizes = self._judge.rows(data, entries)
            handed, astray = self._sifted(base, entries, verdicts, base + records.end(-1))
            if astray is not None:
                behind, straight, until, holder = astray.go_on, False, min(until, *astray), None
            places = entries.starts + (base - LENGTH_BYTES)
            handed &= (places >= self._start) & (places < self._stop)
            if not handed.all():
                entries, verdicts, digest_sizes = entries.of(handed), verdicts[handed], digest_sizes[handed]
            if len(verdicts):
                block = _block_of(data, base, entries, verdicts, digest_sizes)
        if holder is not None and holder != behind:
            self.report(holder, "a record that is no entry, and within it begins one")
        for row in others:
            if self._start <= offsets[row] < until:
                self._grammar.told(self._file, base + int(records.starts[row]), int(records.sizes[row]), self._judge)
        return block, behind, straight

    def _left_at(self, data: bytes, base: int, records: CandidateEntries, row: int) -> _Astray | None:
        """Return where to resume if the row is not a record, or is a special record that contains an entry."""
        start, size = int(records.starts[row]), int(records.sizes[row])
        record = base + start - LENGTH_BYTES
        ledger_id, entry_id = records.fields[row, :2].tolist()
        rest = data[start + _SMALLEST : start + min(size, _PEEK - LENGTH_BYTES)]
        if not self._grammar.is_record(size, ledger_id, entry_id, rest):
            return _Astray(record, record)
        found = self.first_good(record + 1, base + start + size) if size > _TOO_SMALL_TO_HOLD else None
        return None if found is None else _Astray(record, found)

    def _sifted(self, base: int, entries: CandidateEntries, verdicts: Any, end: int) -> tuple[Any, _Astray | None]:
        """Return the mask of entries to yield, and the first record whose length skips an entry. ``end`` is the end of
        the last record."""
        handed = verdicts != BAD
        for row in np.flatnonzero(verdicts != GOOD).tolist():
            size, after = int(entries.sizes[row]), base + entries.end(row)
            # Every record but the last is followed by another one.
            followed = after < end or self.is_place(after)
            if handed[row] and followed:
                continue
            if row and handed[row - 1]:
                self._sought = base + entries.end(row - 1)
            handed[row] = False
            record = after - size - LENGTH_BYTES
            what = f"the digest of an entry of {size} bytes is wrong"
            if not followed:
                what += ", and no record follows it"
            ledger_id, entry_id = entries.fields[row, :2].tolist()
            limit = after if followed else self._file.size
            found = self.first_good(self._sought, limit)
            if found is not None or not followed:
                handed[row:] = False
                limit = limit if found is None else found
                if (true := self._true_size(record, limit)) is not None:
                    self._true_sizes[record] = true
                    limit, what = record, f"{what}; it is right for {true} bytes"
                self.report(record, what, ledger_id, entry_id)
                return handed, _Astray(record, limit)
            self.report(record, what, ledger_id, entry_id)
            self._sought = limit
        if handed[-1]:
            self._sought = base + entries.end(-1)
        return handed, None

    def _true_size(self, record: int, limit: int) -> int | None:
        """Return the size for which the entry at ``record`` has a valid checksum, regardless of its length field."""
        for size in self._judge.sizes(record + LENGTH_BYTES, limit):
            after = record + LENGTH_BYTES + size
            if size <= _FEW_SIZES or self.is_place(after) or self._judge.may_begin(after + LENGTH_BYTES):
                return size
        return None

    def _alone(self, record: int, size: int) -> Block | None:
        """Read the entry of a record whose length is wrong."""
        self._sought = record + LENGTH_BYTES + size
        if not self._start <= record < self._stop:
            return None
        data = self._file.read(record + LENGTH_BYTES, size)
        start = np.zeros(1, np.int64)
        entry = CandidateEntries(start, np.full(1, size), *headers(data, start))
        return _block_of(data, record + LENGTH_BYTES, entry, *self._judge.rows(data, entry))

    def _needed(self, offset: int) -> int:
        """Return the number of bytes to read for a record that was incomplete in ``data``; 0 if it is not a record."""
        size = self._size_at(offset)
        if size is None or (after := offset + LENGTH_BYTES + size) > self._file.size:
            return 0
        # A length field alone does not justify loading a large record.
        if size > LARGE and not self._judge.is_good(offset + LENGTH_BYTES, size):
            return LENGTH_BYTES + size if size <= LARGEST_HELD and self.is_place(after) else 0
        return LENGTH_BYTES + size

    def _behind_junk(self, offset: int) -> int:
        """Report the bytes at ``offset``, which are not a record, and return the offset of the next record."""
        found = self.first_good(self._sought, self._file.size)
        head = self._file.read(offset, LENGTH_BYTES)
        if len(head) < LENGTH_BYTES:
            what = f"{len(head)} bytes that are no record"
        else:
            size = LENGTH.unpack(head)[0]
            left = self._file.size - offset - LENGTH_BYTES
            if size > left:
                what = f"a record of {size} bytes where {left} are left of the file"
            elif size < _SMALLEST:
                what = f"no record has a length of {size}"
            else:
                what = f"a record of {size} bytes that is none"
        if (true := self._true_size(offset, self._file.size if found is None else found)) is not None:
            self.report(offset, f"{what}; an entry of {true} bytes with a right digest is there")
            self._true_sizes[offset] = true
            return offset
        if found is None:
            self.report(offset, f"{what}; no entry with a right digest follows")
            return self._file.size
        self.report(offset, f"{what}; the next entry with a right digest is at {found}")
        return found


def _block_of(data: bytes, base: int, entries: CandidateEntries, verdicts: Any, digest_sizes: Any) -> Block:
    starts, sizes = entries.starts, entries.sizes
    ledger_ids, entry_ids, lacs, lengths = np.ascontiguousarray(entries.fields.T)
    return Block(data, starts, sizes, starts + base, ledger_ids, entry_ids, lacs, lengths, verdicts, digest_sizes)
