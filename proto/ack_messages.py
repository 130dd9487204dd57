"""Codec of the messages that store acknowledgments: positions, ranges, bit sets and properties.

A cursor's snapshots and its record both contain them, with different field numbers.
:mod:`bookstand.proto.ack_messages_vectorized` is the codec for large numbers of them.
"""

from __future__ import annotations

from struct import unpack

from bookstand.proto.expansion import MAX_BATCH_MESSAGES
from bookstand.proto.schema_codec import INT64, STRICT_TEXT, pair, varints
from bookstand.proto.wire_format import (
    BYTES,
    VARINT,
    WireError,
    fields,
    int64,
    tag,
    write_bytes_field,
    write_varint_field,
)

Range = tuple[int, int, int, int]
"""Ledger and entry of the exclusive lower end, then of the inclusive upper end."""

# NestedPositionInfo
_LEDGER = 1
_ENTRY = 2
LEDGER_TAG = tag(_LEDGER, VARINT)
ENTRY_TAG = tag(_ENTRY, VARINT)
# MessageRange
_LOWER = 1
_UPPER = 2
LOWER_TAG = tag(_LOWER, BYTES)
UPPER_TAG = tag(_UPPER, BYTES)
# BatchedEntryDeletionIndexInfo
_BATCH_POSITION = 1
_BATCH_WORD = 2
_BATCH_POSITION_TAG = tag(_BATCH_POSITION, BYTES)
_BATCH_WORD_TAG = tag(_BATCH_WORD, VARINT)
_BATCH_PACKED_TAG = tag(_BATCH_WORD, BYTES)
# LongListMap
_LONGS_KEY = 1
_LONGS_WORD = 2
LONGS_KEY_TAG = tag(_LONGS_KEY, VARINT)
LONGS_WORD_TAG = tag(_LONGS_WORD, VARINT)
_LONGS_PACKED_TAG = tag(_LONGS_WORD, BYTES)

LONG_PROPERTY = pair(STRICT_TEXT, INT64)
STRING_PROPERTY = pair(STRICT_TEXT, STRICT_TEXT)


def read_position(chunk: bytes) -> tuple[int, int]:
    ledger = entry = None
    for key, number, _ in fields(chunk):
        if key == LEDGER_TAG:
            ledger = int64(number)
        elif key == ENTRY_TAG:
            entry = int64(number)
    if ledger is None or entry is None:
        raise WireError("a position has no ledger or no entry")
    return ledger, entry


def write_position(ledger: int, entry: int) -> bytes:
    out = bytearray()
    write_varint_field(out, _LEDGER, ledger)
    write_varint_field(out, _ENTRY, entry)
    return bytes(out)


def read_range(chunk: bytes) -> Range:
    lower = upper = None
    for key, _, inner in fields(chunk):
        if key == LOWER_TAG:
            lower = read_position(inner)
        elif key == UPPER_TAG:
            upper = read_position(inner)
    if lower is None or upper is None:
        raise WireError("a range has no lower or no upper end")
    return (*lower, *upper)


def write_range(ends: Range) -> bytes:
    out = bytearray()
    write_bytes_field(out, _LOWER, write_position(*ends[:2]))
    write_bytes_field(out, _UPPER, write_position(*ends[2:]))
    return bytes(out)


def read_batch(chunk: bytes) -> tuple[int, int, int]:
    """Decode ledger, entry and a bitmap of the batch's unacknowledged messages: bit n is message n."""
    position = None
    words = []
    for key, number, inner in fields(chunk):
        if key == _BATCH_POSITION_TAG:
            position = read_position(inner)
        elif key == _BATCH_WORD_TAG:
            words.append(number)
        elif key == _BATCH_PACKED_TAG:
            words.extend(varints(inner))
    if position is None:
        raise WireError("a batch set has no position")
    if len(words) > MAX_BATCH_MESSAGES // 64:
        raise WireError(f"a batch set has {64 * len(words)} bits; a batch has at most {MAX_BATCH_MESSAGES} messages")
    return (*position, int.from_bytes(b"".join(word.to_bytes(8, "little") for word in words), "little"))


def write_batch(ledger: int, entry: int, unacked: int) -> bytes:
    out = bytearray()
    write_bytes_field(out, _BATCH_POSITION, write_position(ledger, entry))
    for word in words_of(unacked):
        write_varint_field(out, _BATCH_WORD, word)
    return bytes(out)


def words_of(bits: int) -> list[int]:
    """Split a bitmap into words of 64 bits, lowest first, without trailing zero words."""
    count = (bits.bit_length() + 63) // 64
    return list(unpack(f"<{count}Q", bits.to_bytes(8 * count, "little")))


def read_longs(chunk: bytes) -> tuple[int, list[int]]:
    """Decode ledger and words of a LongListMap. Bit n % 64 of word n / 64 is set if entry n is acknowledged. Trailing
    words may be zero."""
    ledger = None
    words: list[int] = []
    for key, number, inner in fields(chunk):
        if key == LONGS_KEY_TAG:
            ledger = int64(number)
        elif key == LONGS_WORD_TAG:
            words.append(number)
        elif key == _LONGS_PACKED_TAG:
            words.extend(varints(inner))
    if ledger is None:
        raise WireError("a bit set has no ledger")
    return ledger, words
