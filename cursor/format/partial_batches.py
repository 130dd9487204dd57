"""Encoding of the partially acknowledged batches of one user ledger.

The set bits of a number are the messages of a batch that are NOT acknowledged. The number of batches is stored in the
page; they are in ascending order of their entries, in columns (packed_column.py). Form 0, for batches of at most 64
messages, needs only a few bulk calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise
from operator import sub

from bookstand.cursor.format.packed_column import ColumnError, read_column, write_column
from bookstand.errors import IncorrectParameterError
from bookstand.proto import wire_format
from bookstand.proto.expansion import DEFAULT, FREE_BYTES, RECORD_BYTES, ExpansionLimits
from bookstand.proto.struct_layout import Layout

_WORDS = 0
_BYTES = 1
_WORD_BITS = 64
_MAX_ZERO_WIDTH = FREE_BYTES // RECORD_BYTES

BATCHES = Layout(
    "partially acknowledged batches",
    ("first entry id", "varint", ""),
    ("distances", "a column", "to the previous entry, for all but the first; absent for a single batch"),
    ("batch sizes", "a column", "0: unknown"),
    ("form", "B", f"{_WORDS} or {_BYTES}"),
    (
        "numbers",
        "a column, or a column and bytes",
        f"form {_WORDS}: a column of numbers; {_BYTES}: a column of lengths, and the numbers, little-endian",
    ),
)


def encode_batches(partial: Mapping[int, int], sizes: Mapping[int, int]) -> bytes:
    """Encode at least one batch by entry id. ``sizes`` holds the known sizes of batches."""
    entries = sorted(partial)
    numbers = list(map(partial.__getitem__, entries))
    # The encoding of a column of zeros does not depend on its length.
    known = [sizes.get(entry, 0) for entry in entries] if sizes else [0]
    if min(numbers) < 0 or min(known) < 0 or not _all_fit(numbers, known):
        raise IncorrectParameterError("a batch has unacknowledged indexes outside its size")
    out = bytearray()
    wire_format.write_varint(out, entries[0])
    if len(entries) > 1:
        write_column(out, list(map(sub, entries[1:], entries)))
    write_column(out, known)
    if max(numbers).bit_length() <= _WORD_BITS:
        out.append(_WORDS)
        # The expansion limit relates batches to stored bytes, so many equal numbers must not have width 0.
        write_column(out, numbers, min_width=1 if len(numbers) > _MAX_ZERO_WIDTH else 0)
    else:
        out.append(_BYTES)
        lengths = [(number.bit_length() + 7) >> 3 for number in numbers]
        write_column(out, lengths, min_width=1 if len(lengths) > _MAX_ZERO_WIDTH else 0)
        out += b"".join([number.to_bytes(length, "little") for number, length in zip(numbers, lengths, strict=True)])
    return bytes(out)


def decode_batches(data: bytes, count: int, limits: ExpansionLimits = DEFAULT) -> tuple[dict[int, int], dict[int, int]]:
    """Return the arguments of :func:`encode_batches` for ``count`` batches. Raises :class:`ValueError` for other
    data."""
    # Columns of equal numbers take no bytes per number, so the data does not bound the count.
    limits.of(len(data)).take(count * RECORD_BYTES, f"a page with {count} partially acknowledged batches")
    first, at = wire_format.read_varint(data, 0, len(data))
    distances: list[int] = []
    if count > 1:
        distances, at = read_column(data, at, count - 1)
        if not min(distances):
            raise ColumnError("an entry has two sets of batch indexes")
    entries = list(accumulate(distances, initial=first))
    known, at = read_column(data, at, count)
    form = data[at : at + 1]
    if form == bytes([_WORDS]):
        numbers, at = read_column(data, at + 1, count)
    elif form == bytes([_BYTES]):
        lengths, at = read_column(data, at + 1, count)
        ends = list(accumulate(lengths, initial=at))
        numbers = [int.from_bytes(data[start:end], "little") for start, end in pairwise(ends)]
        at = ends[-1]
    else:
        raise ColumnError("the sets of batch indexes have an unknown form")
    if at != len(data):
        raise ColumnError(f"the sets of batch indexes end at byte {at} of {len(data)}")
    if not _all_fit(numbers, known):
        raise ColumnError("a batch has unacknowledged indexes outside its size")
    sizes = {entry: size for entry, size in zip(entries, known, strict=True) if size} if any(known) else {}
    return dict(zip(entries, numbers, strict=True)), sizes


def _all_fit(numbers: list[int], sizes: list[int]) -> bool:
    if not any(sizes) or max(numbers).bit_length() <= min(sizes):
        return True
    return all(not size or not number >> size for number, size in zip(numbers, sizes, strict=True))
