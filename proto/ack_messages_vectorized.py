"""Vectorized codec of acknowledged ranges and bit sets, with numpy.

It decodes only the canonical encoding; :mod:`bookstand.proto.ack_messages` decodes any other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bookstand.proto import varints
from bookstand.proto.ack_messages import ENTRY_TAG, LEDGER_TAG, LONGS_KEY_TAG, LONGS_WORD_TAG, LOWER_TAG, UPPER_TAG
from bookstand.proto.ack_messages import read_longs as read_longs_slowly
from bookstand.proto.expansion import RECORD_BYTES, UNLIMITED, Expansion
from bookstand.proto.wire_format import BYTES, int64, tag

Ranges = NDArray[np.int64]
"""Ranges as rows of four numbers."""

Words = NDArray[np.uint64]

# -- ranges ----------------------------------------------------------------------------------------------------------

# Canonical encoding of a range as a sequence of varints, including tags and sizes.
_ROW: tuple[int | str, ...] = (
    *("tag", "size"),
    *(LOWER_TAG, "size", LEDGER_TAG, "ledger", ENTRY_TAG, "entry"),
    *(UPPER_TAG, "size", LEDGER_TAG, "ledger", ENTRY_TAG, "entry"),
)
_COLUMNS = len(_ROW)
_NUMBERS = [5, 7, 11, 13]
_TAGS = [(column, what) for column, what in enumerate(_ROW) if isinstance(what, int)]

_WHAT = "the state of a cursor"
UNBOUNDED = UNLIMITED.of(0)

SLICE = 1 << 18
"""Number of bytes processed at a time."""


def read_ranges(data: bytes, at: int, field: int, expansion: Expansion = UNBOUNDED) -> tuple[Ranges, int]:
    """Decode consecutive ranges with field number ``field`` from offset ``at``, and return them with their end offset.
    Decoding stops before the first range that is not in the canonical encoding."""
    view = np.frombuffer(data, dtype=np.uint8)
    found = []
    while at < len(view):
        part = view[at : at + SLICE]
        rows, size = _rows(part, tag(field, BYTES))
        if not len(rows):
            break
        expansion.take(rows.nbytes, _WHAT)
        found.append(rows)
        at += size
        if len(part) < SLICE or size < len(part) // 2:
            break
    return (np.concatenate(found) if found else np.empty((0, 4), dtype=np.int64)), at


def _rows(part: varints.Bytes, first: int) -> tuple[Ranges, int]:
    starts, lengths = varints.split(part)
    count = len(starts) // _COLUMNS
    starts = starts[: count * _COLUMNS].reshape(count, _COLUMNS)
    lengths = lengths[: count * _COLUMNS].reshape(count, _COLUMNS)
    good = np.ones(count, dtype=bool)
    for column, what in [(0, first), *_TAGS]:
        good &= part[starts[:, column]] == what
    ends = starts[:, -1] + lengths[:, -1]
    for column, end in ((1, ends), (3, starts[:, 8]), (9, ends)):
        good &= (lengths[:, column] == 1) & (part[starts[:, column]] == end - starts[:, column] - 1)
    good &= (lengths[:, _NUMBERS] <= varints.LONGEST).all(axis=1)
    if count and not good.all():
        count = int(np.argmin(good))
    if not count:
        return np.empty((0, 4), dtype=np.int64), 0
    numbers = varints.decode_all(part, starts[:count, _NUMBERS], lengths[:count, _NUMBERS])
    return numbers.view(np.int64), int(ends[count - 1])


def write_ranges(ranges: Ranges, field: int) -> bytes:
    out = []
    for at in range(0, len(ranges), SLICE // _COLUMNS):
        numbers = ranges[at : at + SLICE // _COLUMNS].astype(np.int64).view(np.uint64)
        table = np.empty((len(numbers), _COLUMNS), dtype=np.uint64)
        for column, what in _TAGS:
            table[:, column] = what
        table[:, _NUMBERS] = numbers
        lengths = varints.encoded_sizes(numbers)
        all_lengths = np.ones(table.shape, dtype=np.int64)
        all_lengths[:, _NUMBERS] = lengths
        table[:, 0] = tag(field, BYTES)
        table[:, 3] = 2 + lengths[:, 0] + lengths[:, 1]
        table[:, 9] = 2 + lengths[:, 2] + lengths[:, 3]
        table[:, 1] = 4 + table[:, 3] + table[:, 9]
        out.append(varints.encode_all(table, all_lengths))
    return b"".join(out)


# -- bit sets --------------------------------------------------------------------------------------------------------

# The canonical encoding of a bit set is a sequence of pairs of varints: the field's tag and size, the key's tag and the
# key, and for each word its tag and the word.
_PAIRS_BEFORE_WORDS = 2


def read_longs(
    data: bytes, at: int, field: int, expansion: Expansion = UNBOUNDED
) -> tuple[list[tuple[int, Words]], int]:
    """Decode keys and words of consecutive bit sets from offset ``at``, and return them with their end offset. Decoding
    stops before the first bit set that is not in the canonical encoding or exceeds a slice."""
    view = np.frombuffer(data, dtype=np.uint8)
    found: list[tuple[int, Words]] = []
    while at < len(view):
        part = view[at : at + SLICE]
        sets, size = _sets(part, tag(field, BYTES))
        if not sets:
            break
        expansion.take(RECORD_BYTES * len(sets) + sum(words.nbytes for _, words in sets), _WHAT)
        found += sets
        at += size
        if len(part) < SLICE or size < len(part) // 2:
            break
    return found, at


def _sets(part: varints.Bytes, first: int) -> tuple[list[tuple[int, Words]], int]:
    starts, lengths = varints.split(part)
    count = len(starts) // 2
    if count < _PAIRS_BEFORE_WORDS or part[0] != first:
        return [], 0
    tags = part[starts[: 2 * count : 2]]
    starts, lengths = starts[1 : 2 * count : 2], lengths[1 : 2 * count : 2]
    opens = np.flatnonzero(tags == first)
    keys = opens + 1
    good = (tags == LONGS_WORD_TAG) | (tags == first)
    good[keys[keys < count]] = tags[keys[keys < count]] == LONGS_KEY_TAG
    good &= lengths <= varints.LONGEST
    numbers = varints.decode_all(part, starts, np.minimum(lengths, varints.LONGEST))
    # The end of each set, by its size, must be the end of one of its words, before any malformed pair and the next set.
    ends = (starts + lengths)[opens] + numbers[opens].view(np.int64)
    last_pairs = np.searchsorted(starts + lengths, ends)
    stops = last_pairs + 1
    following = np.concatenate((opens[1:], [count]))
    complete = (stops <= following) & (stops > keys)
    complete &= (starts + lengths)[np.minimum(last_pairs, count - 1)] == ends
    if not good.all():
        complete &= stops <= np.argmin(good)
    decoded = len(opens) if complete.all() else int(np.argmin(complete))
    gaps = np.flatnonzero(stops[:decoded] != following[:decoded])
    if len(gaps):
        decoded = int(gaps[0]) + 1
    sets = [
        (int64(int(numbers[start + 1])), numbers[start + _PAIRS_BEFORE_WORDS : stop])
        for start, stop in zip(opens[:decoded].tolist(), stops[:decoded].tolist(), strict=True)
    ]
    return sets, int(ends[decoded - 1]) if decoded else 0


def read_any_longs(chunk: bytes) -> tuple[int, Words]:
    """Decode one bit set in any encoding."""
    key, words = read_longs_slowly(chunk)
    return key, np.array(words, dtype=np.uint64)


def write_longs(sets: Sequence[tuple[int, Words]], field: int) -> bytes:
    if not sets:
        return b""
    keys = np.array([key for key, _ in sets], dtype=np.int64).view(np.uint64)
    counts = np.array([len(words) for _, words in sets], dtype=np.int64)
    words = np.concatenate([words for _, words in sets])
    ends = np.concatenate(([0], np.cumsum(varints.encoded_sizes(words))))
    lasts = np.cumsum(counts)
    words_size = ends[lasts] - ends[lasts - counts]
    pairs = _PAIRS_BEFORE_WORDS + counts
    starts = np.cumsum(pairs) - pairs
    table = np.full((int(pairs.sum()), 2), LONGS_WORD_TAG, dtype=np.uint64)
    table[starts, 0] = tag(field, BYTES)
    table[starts, 1] = (1 + varints.encoded_sizes(keys) + counts + words_size).astype(np.uint64)
    table[starts + 1, 0] = LONGS_KEY_TAG
    table[starts + 1, 1] = keys
    place = np.arange(len(words)) + np.repeat(_PAIRS_BEFORE_WORDS * np.arange(1, len(sets) + 1), counts)
    table[place, 1] = words
    return varints.encode_all(table)
