"""Batches that are acknowledged in part, of one user ledger.

A batch's messages that are NOT yet acknowledged are the set bits of a number. There are as many batches as the page
says, in ascending order of their entries; columns are those of columns.py. Form 0 is for batches of at most 64
messages, in which the whole is coded by few calls.
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
_MOST_EQUAL = FREE_BYTES // RECORD_BYTES

BATCHES = Layout(
    "batches that are acknowledged in part",
    ("first entry id", "varint", ""),
    ("distances", "a column", "to the entry before, for all but the first; absent if there is one batch"),
    ("batch sizes", "a column", "0: not known"),
    ("form", "B", f"{_WORDS} or {_BYTES}"),
    (
        "numbers",
        "a column, or one and bytes",
        f"form {_WORDS}: a column of numbers; {_BYTES}: a column of lengths, and the numbers, little-endian",
    ),
)


def encode_batches(partial: Mapping[int, int], sizes: Mapping[int, int]) -> bytes:
    """``partial`` by entry id, at least one; ``sizes`` of those batches whose size is known."""
    entries = sorted(partial)
    numbers = list(map(partial.__getitem__, entries))
    # A column of zeros is the same, however long.
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
        # The limit on expansion counts batches against stored bytes, so that many batches must take some.
        write_column(out, numbers, least_width=1 if len(numbers) > _MOST_EQUAL else 0)
    else:
        out.append(_BYTES)
        lengths = [(number.bit_length() + 7) >> 3 for number in numbers]
        write_column(out, lengths, least_width=1 if len(lengths) > _MOST_EQUAL else 0)
        out += b"".join([number.to_bytes(length, "little") for number, length in zip(numbers, lengths, strict=True)])
    return bytes(out)


def decode_batches(data: bytes, count: int, limits: ExpansionLimits = DEFAULT) -> tuple[dict[int, int], dict[int, int]]:
    """What :func:`encode_batches` was given for ``count`` batches; :class:`ValueError` for anything else."""
    # Columns of equal numbers take no bytes for each.
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
