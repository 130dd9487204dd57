"""From record to record through a log or a journal, and on behind whatever is damaged.

A record is a length and so many bytes, most of them an entry's. One leads to the next, and each entry's digest says
whether it is one. Where a digest is wrong, or where no record can be, the next record is the first one behind whose
digest is right: nothing is guessed from lengths that nothing protects. If it is only the length that is wrong, the
checksum tells the right one. So every entry with a right digest is found that does not lie within another one, and no
other passes as good. An entry that cannot be checked is believed where its own header makes sense and another record,
or the end, lies behind it.

Where a record begins does not depend on what is asked for: a part of a file is found by walking through what lies
before it, without looking at its digests. The rows of all parts are those of the whole, also where an entry's payload
is a log itself. (They need not be where a wrong length before a part leads to just such a payload's records.)
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

# Of every record that is one, the first bytes are its ledger and what it is.
_SMALLEST = IDS.size
# Up to this size, a record that is no entry cannot have a whole one in it.
_TOO_SMALL_TO_HOLD = HEAD_BYTES + _SMALLEST
# As much of a record, from its length on, as any grammar looks at.
_PEEK = 64

# After damage the file is read in small steps first: there may be more of it.
_FIRST = 1 << 16
_LARGEST = 1 << 22
# As much is looked through for a record at once.
_WINDOW = 1 << 20
# Among so few sizes none has a right checksum by chance; with a larger one something has to follow that may.
_FEW_SIZES = 1 << 13
# After so many records of one size the next ones are looked at all at once.
_ALIKE = 16


class _Astray(NamedTuple):
    """A record that cannot be trusted to end where the next one begins."""

    record: int
    go_on: int


class FileGrammar(Protocol):
    """What lies in a file between its entries."""

    def is_record(self, size: int, ledger_id: int, entry_id: int, rest: bytes) -> bool:
        """Whether this is a record that is no entry; ``rest`` is what follows the ids, or the beginning of it."""

    def filler(self, file: TolerantFile, offset: int) -> int:
        """How many bytes to pass over where there is no record; 0: none."""

    def is_end(self, file: TolerantFile, offset: int) -> bool:
        """Whether nothing is meant to follow."""

    def told(self, file: TolerantFile, offset: int, size: int, judge: DigestChecker) -> None:
        """A record that is no entry was passed; ``offset`` is that of what follows its length."""


class RecordScanner:
    """One file. ``start`` and ``stop`` bound the offsets of the records that are wanted."""

    def __init__(
        self, file: TolerantFile, digests: Digests, grammar: FileGrammar, start: int = 0, stop: int | None = None
    ) -> None:
        self._file = file
        self._grammar = grammar
        self._judge = DigestChecker(file, digests)
        self._start = start
        self._stop = file.size if stop is None else stop
        # Before this no record begins that was not found. What is passed over without a digest does not count, be it a
        # header, padding, or a record that is no entry: where it ends may be wrong.
        self._sought = 0
        # Of records whose lengths are wrong, and whose entries are not.
        self._true_sizes: dict[int, int] = {}

    def report(self, offset: int, what: str, ledger_id: int = -1, entry_id: int = -1) -> None:
        if self._start <= offset < self._stop:
            self._file.report(Damage(self._file.name, offset, what, ledger_id, entry_id))

    # -- where records are ---------------------------------------------------------------------------------------------

    def is_place(self, offset: int) -> bool:
        """Whether something is there that may follow a record: another one, what lies between them, or the end."""
        file = self._file
        if offset >= file.size or self._grammar.is_end(file, offset) or self._grammar.filler(file, offset):
            return True
        size = self._size_at(offset)
        return size is not None and offset + LENGTH_BYTES + size <= file.size

    def _size_at(self, offset: int) -> int | None:
        """Of the record there, if it looks like one; it may be larger than what is left of the file."""
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
        """Where the first record begins that is an entry with a right digest, in ``range(offset, end)``."""
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
        """Where the beginning of an entry's record might be: offsets and sizes."""
        octets = np.frombuffer(data, np.uint8)

        def at(place: int) -> Any:
            return octets[place : place + count]

        # The signs of length and ledger, and the two highest octets of the entry's id and the highest of the ledger's
        # length, are zero: hardly anything but records passes. Nor does a stretch of zeros.
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
        """The entries, from a record on that begins at ``offset``."""
        width = _FIRST
        while offset < min(self._stop, self._file.size) and not self._grammar.is_end(self._file, offset):
            block, offset, width = self._step(offset, width)
            if block is not None:
                yield block
                del block  # before memory for the next one is taken

    def _step(self, offset: int, width: int) -> tuple[Block | None, int, int]:
        """Some entries, if there are any, where to go on, and how much to read then."""
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
        """From length to length: the records that are whole in ``data``, and where there is none any more."""
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
        """The entries among these records, where to go on, and whether nothing was wrong with any of them."""
        if starts[-1] + HEADER_BYTES > len(data):
            data += bytes(HEADER_BYTES)  # the last one is no entry, and shorter than a header
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
        # Of what lies before the first record that is wanted only the last matters: its length may be wrong.
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
        """If what is there is no record after all, or one that holds an entry: that, and where to go on."""
        start, size = int(records.starts[row]), int(records.sizes[row])
        record = base + start - LENGTH_BYTES
        ledger_id, entry_id = records.fields[row, :2].tolist()
        rest = data[start + _SMALLEST : start + min(size, _PEEK - LENGTH_BYTES)]
        if not self._grammar.is_record(size, ledger_id, entry_id, rest):
            return _Astray(record, record)
        found = self.first_good(record + 1, base + start + size) if size > _TOO_SMALL_TO_HOLD else None
        return None if found is None else _Astray(record, found)

    def _sifted(self, base: int, entries: CandidateEntries, verdicts: Any, end: int) -> tuple[Any, _Astray | None]:
        """Which entries to hand on, of records that end at ``end``, and which of them is the first whose length leads
        past an entry."""
        handed = verdicts != BAD
        for row in np.flatnonzero(verdicts != GOOD).tolist():
            size, after = int(entries.sizes[row]), base + entries.end(row)
            # All records but the last led to another one.
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
        """Of an entry with a right checksum that begins there, whatever its length says."""
        for size in self._judge.sizes(record + LENGTH_BYTES, limit):
            after = record + LENGTH_BYTES + size
            if size <= _FEW_SIZES or self.is_place(after) or self._judge.may_begin(after + LENGTH_BYTES):
                return size
        return None

    def _alone(self, record: int, size: int) -> Block | None:
        """The entry of a record whose length is wrong."""
        self._sought = record + LENGTH_BYTES + size
        if not self._start <= record < self._stop:
            return None
        data = self._file.read(record + LENGTH_BYTES, size)
        start = np.zeros(1, np.int64)
        entry = CandidateEntries(start, np.full(1, size), *headers(data, start))
        return _block_of(data, record + LENGTH_BYTES, entry, *self._judge.rows(data, entry))

    def _needed(self, offset: int) -> int:
        """How much to read for the record there, which was not whole in what was read; 0: there is none."""
        size = self._size_at(offset)
        if size is None or (after := offset + LENGTH_BYTES + size) > self._file.size:
            return 0
        # What is large is not loaded on the word of a length alone.
        if size > LARGE and not self._judge.is_good(offset + LENGTH_BYTES, size):
            return LENGTH_BYTES + size if size <= LARGEST_HELD and self.is_place(after) else 0
        return LENGTH_BYTES + size

    def _behind_junk(self, offset: int) -> int:
        """Where the next record is, from where none is."""
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
