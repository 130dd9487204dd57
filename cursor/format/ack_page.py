"""Pages: the acknowledgments of one user ledger, in one or more entries of the cursor ledger. No I/O.

The contents of a page, in the frame of record.py, are the fields 1000 to 1003 of proto/cursor_record.proto.

A page that is too large for an entry is split into parts. The bitmap followed by the batches forms one byte string, and
each part contains the next piece of it, with the field number of the data that the piece belongs to. Every part
contains the counts of the whole page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import google_crc32c
from pyroaring import BitMap64

from bookstand.cursor.errors import CursorDamagedError
from bookstand.cursor.format import record
from bookstand.cursor.format.partial_batches import decode_batches, encode_batches
from bookstand.errors import EntryTooLargeError
from bookstand.proto import wire_format
from bookstand.proto.expansion import DEFAULT, ExpansionLimits
from bookstand.storage.format.position import Position

_BITMAP, _BATCHES, _ACKED, _PARTIAL = 1000, 1001, 1002, 1003
_BITMAP_TAG, _BATCHES_TAG = wire_format.tag(_BITMAP, wire_format.BYTES), wire_format.tag(_BATCHES, wire_format.BYTES)
_ACKED_TAG, _PARTIAL_TAG = wire_format.tag(_ACKED, wire_format.VARINT), wire_format.tag(_PARTIAL, wire_format.VARINT)
# Maximum size of the tags and lengths of bitmap and batches together.
_MAX_FRAMING = 2 * (2 + 5)


class PageRef(NamedTuple):
    """Location and summary of a page, which is stored in ``parts`` entries of the cursor ledger from ``entry_id`` on.

    ``generation`` is the number of the flush that wrote it. ``acked`` and ``partial`` are its numbers of acknowledged
    and partially acknowledged entries. ``size`` is the size of all parts, ``crc`` a checksum over their checksums.
    """

    entry_id: int
    parts: int
    generation: int
    acked: int
    partial: int
    size: int
    crc: int


class Page(NamedTuple):
    """A decoded page: the acknowledged entries, and the partially acknowledged batches by entry id. In ``partial``, bit
    n is set while message n is NOT acknowledged. ``sizes`` holds the known sizes of these batches."""

    acked: BitMap64
    partial: dict[int, int]
    sizes: dict[int, int]


class EncodedPage(NamedTuple):
    """The entries of an encoded page, one for each part, and the fields of a reference to it."""

    entries: list[bytes]
    generation: int
    acked: int
    partial: int
    size: int
    crc: int

    def ref(self, entry_id: int) -> PageRef:
        """Return the reference to the page when its parts are stored from ``entry_id`` on."""
        return PageRef(entry_id, len(self.entries), self.generation, self.acked, self.partial, self.size, self.crc)


def encode_page(
    cursor: str,
    ledger_id: int,
    acked: BitMap64,
    partial: Mapping[int, int],
    *,
    generation: int,
    mark_delete: Position,
    limit: int,
    sizes: Mapping[int, int] | None = None,
) -> EncodedPage:
    """Encode a page into entries of at most ``limit`` bytes."""
    # Optimize a copy: entries that are added to run containers can take more memory than the cache charges for.
    acked = acked.copy()
    acked.run_optimize()
    bitmap = acked.serialize()
    batches = encode_batches(partial, sizes or {}) if partial else b""
    counts = bytearray()
    wire_format.write_varint_field(counts, _ACKED, len(acked))
    wire_format.write_varint_field(counts, _PARTIAL, len(partial))
    out = record.begin(mark_delete, record.PAGE)
    end = record.tail(record.Identity(cursor, record.PAGE, generation, ledger_id, 0, 1))
    entries = [_encode_part(out.copy(), bitmap, batches, counts, end)]
    if len(entries[0]) > limit:
        around = len(out) + len(counts) + len(end) + record.CRC_BYTES + _MAX_FRAMING
        room = limit - around
        if room <= 0:
            raise EntryTooLargeError(
                f"a part of a page takes more than {around} bytes, but an entry holds only {limit}"
            )
        starts = range(0, len(bitmap) + len(batches), room)
        entries = []
        for part, at in enumerate(starts):
            offset = at - len(bitmap)
            piece = batches[max(offset, 0) : max(offset + room, 0)]
            end = record.tail(record.Identity(cursor, record.PAGE, generation, ledger_id, part, len(starts)))
            entries.append(_encode_part(out.copy(), bitmap[at : at + room], piece, counts, end))
    return EncodedPage(entries, generation, len(acked), len(partial), sum(map(len, entries)), _checksum(entries))


def _encode_part(out: bytearray, bitmap: bytes, batches: bytes, counts: bytearray, end: bytes) -> bytes:
    if bitmap:
        wire_format.write_bytes_field(out, _BITMAP, bitmap)
    if batches:
        wire_format.write_bytes_field(out, _BATCHES, batches)
    out += counts
    return record.seal(out, end)


def _checksum(entries: Sequence[bytes]) -> int:
    return int(google_crc32c.value(b"".join([entry[-record.CRC_BYTES :] for entry in entries])))


def ref_of(entry_id: int, entries: Sequence[bytes]) -> PageRef:
    """Return a reference to the page whose parts are ``entries``, stored from ``entry_id`` on. Raises
    :class:`RecordError` if the first one is not part of a page."""
    identity = record.identify(entries[0])
    counts: dict[int, int] = {}
    try:
        for tag, number, _ in record.contents(entries[0], record.tail(identity)):
            counts[tag] = number
    except wire_format.WireError as error:
        raise record.RecordError(str(error)) from error
    return PageRef(
        entry_id,
        len(entries),
        identity.generation,
        counts.get(_ACKED_TAG, 0),
        counts.get(_PARTIAL_TAG, 0),
        sum(map(len, entries)),
        _checksum(entries),
    )


def check_page(cursor: str, ledger_id: int, ref: PageRef, entries: Sequence[bytes]) -> None:
    """Verify that ``entries``, one for each part, are exactly the page that ``ref`` refers to, without decoding it.
    Raises :class:`CursorDamagedError` otherwise."""
    for _ in _verified(cursor, ledger_id, ref, entries):
        pass


def decode_page(
    cursor: str, ledger_id: int, ref: PageRef, entries: Sequence[bytes], limits: ExpansionLimits = DEFAULT
) -> Page:
    """Decode the page that ``ref`` refers to. Raises :class:`CursorDamagedError` if ``entries`` are anything else."""
    bitmap = batches = b""
    for end, entry in _verified(cursor, ledger_id, ref, entries):
        try:
            for tag, number, chunk in record.contents(entry, end):
                if tag == _BITMAP_TAG:
                    bitmap += chunk
                elif tag == _BATCHES_TAG:
                    batches += chunk
                elif (tag == _ACKED_TAG and number != ref.acked) or (tag == _PARTIAL_TAG and number != ref.partial):
                    raise record.RecordError("its counts of acknowledgments do not match the reference")
        except ValueError as error:
            raise _damaged(cursor, ledger_id, ref, 0, error) from error
    try:
        acked = BitMap64.deserialize(bitmap)
        # The decoder ignores trailing bytes, so compare with the encoded bitmap.
        if len(acked) != ref.acked or acked.serialize() != bitmap:
            raise record.RecordError("its bitmap is damaged")
        partial: dict[int, int] = {}
        sizes: dict[int, int] = {}
        if ref.partial:
            partial, sizes = decode_batches(batches, ref.partial, limits)
        elif batches:
            raise record.RecordError("it has sets of batch indexes, but its count of batches is 0")
    except (ValueError, IndexError) as error:
        raise _damaged(cursor, ledger_id, ref, 0, error) from error
    return Page(acked, partial, sizes)


def _verified(cursor: str, ledger_id: int, ref: PageRef, entries: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Verify the parts; return each with its tail."""
    verified = []
    if len(entries) != ref.parts:
        raise _damaged(cursor, ledger_id, ref, 0, f"it has {len(entries)} parts, not {ref.parts}")
    for part, entry in enumerate(entries):
        end = record.tail(record.Identity(cursor, record.PAGE, ref.generation, ledger_id, part, ref.parts))
        try:
            record.verify(entry, end)
        except record.RecordError as error:
            raise _damaged(cursor, ledger_id, ref, part, error) from error
        verified.append((end, entry))
    if _checksum(entries) != ref.crc or sum(map(len, entries)) != ref.size:
        raise _damaged(cursor, ledger_id, ref, 0, "it is a different page of the same flush")
    return verified


def _damaged(cursor: str, ledger_id: int, ref: PageRef, part: int, why: object) -> CursorDamagedError:
    return CursorDamagedError(
        f"cursor {cursor!r}: the page of ledger {ledger_id}, generation {ref.generation}, is not in entry"
        f" {ref.entry_id + part}: {why}"
    )
