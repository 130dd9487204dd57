"""Codec of full cursor snapshots in Pulsar's form (PositionInfo), which every version of Pulsar reads.

    1, 2  ledger and entry of the mark-delete position
    3     acknowledged ranges
    4     properties
    5     batch sets
    6     acknowledged entries as words of bits, one field per ledger; ignored if there are ranges

Old versions of Pulsar wrote ranges before the mark-delete position, which reading drops, and ranges across ledgers,
which it splits. A snapshot may contain millions of ranges and words, so they are decoded in bulk. Fields with an
unusual encoding are decoded one by one for a while, so that bulk decoding does not fail again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

import numpy as np
from pyroaring import BitMap64

from bookstand.cursor.state.ack_snapshot import AckSnapshot
from bookstand.cursor.state.bitmap_runs import Ids, add_runs, add_words, runs, words
from bookstand.errors import ExpansionError, IncorrectParameterError, MalformedAckStateError
from bookstand.proto.ack_messages import LONG_PROPERTY, read_batch, read_range, write_batch
from bookstand.proto.ack_messages_vectorized import (
    SLICE,
    Ranges,
    Words,
    read_any_longs,
    read_longs,
    read_ranges,
    write_longs,
    write_ranges,
)
from bookstand.proto.expansion import CONTAINER_BYTES, DEFAULT, RECORD_BYTES, Expansion, ExpansionLimits
from bookstand.proto.wire_format import (
    BYTES,
    FIXED32,
    VARINT,
    WireError,
    fields,
    int64,
    read_varint,
    tag,
    write_bytes_field,
    write_varint_field,
)
from bookstand.storage.format.position import Position

Form = Literal["ranges", "long_arrays"]

_LEDGER = 1
_ENTRY = 2
_RANGE = 3
_PROPERTY = 4
_BATCH = 5
_LONGS = 6

_LEDGER_TAG = tag(_LEDGER, VARINT)
_ENTRY_TAG = tag(_ENTRY, VARINT)
_RANGE_TAG = tag(_RANGE, BYTES)
_PROPERTY_TAG = tag(_PROPERTY, BYTES)
_BATCH_TAG = tag(_BATCH, BYTES)
_LONGS_TAG = tag(_LONGS, BYTES)

# Number of ledgers in one bulk encoding call.
_LEDGERS_PER_CALL = 64

# Number of ranges that are added in bulk; small enough for the processor's cache.
_RANGES_PER_CALL = 1 << 14

_CONTAINER_BITS = 16
_WORD_BYTES = 8


class Snapshot(NamedTuple):
    """A decoded state. ``unsplit`` are the ledgers of unknown length in which a range across ledgers begins. The state
    does not contain the part of the range in such a ledger."""

    state: AckSnapshot
    unsplit: frozenset[int]


class EncodedSnapshot(NamedTuple):
    data: bytes
    ranges_left_out: int
    batches_left_out: int


# -- reading ---------------------------------------------------------------------------------------------------------


def read(data: bytes, entries: Mapping[int, int] | None = None, expansion: Expansion | None = None) -> Snapshot:
    """Decode a snapshot. ``entries`` maps the topic's ledgers to their numbers of entries, and is needed to split
    ranges across ledgers. ``expansion`` is the budget of the entries that the snapshot was read from; None means the
    default limits."""
    expansion = expansion or DEFAULT.of(len(data))
    try:
        parts = _Parts.of(data, expansion)
        mark_delete = Position(*parts.mark_delete())
        return _snapshot(parts, mark_delete, entries or {}, expansion)
    except (WireError, ExpansionError) as error:
        raise MalformedAckStateError(f"the snapshot cannot be read: {error}") from None


def _snapshot(parts: _Parts, mark_delete: Position, entries: Mapping[int, int], expansion: Expansion) -> Snapshot:
    acked: dict[int, BitMap64] = {}
    unsplit: set[int] = set()
    ranges = parts.all_ranges()
    if len(ranges):
        _add_ranges(acked, _split(ranges, entries, unsplit), mark_delete, expansion)
    else:
        for ledger, bits in parts.longs:
            _add_longs(acked, ledger, bits, mark_delete)
    batches = {}
    for ledger, entry, unacked in parts.batches:
        if (ledger, entry) > mark_delete:
            batches[Position(ledger, entry)] = unacked
    ordered = {ledger: acked[ledger] for ledger in sorted(acked) if acked[ledger]}
    return Snapshot(AckSnapshot(mark_delete, ordered, batches, parts.properties), frozenset(unsplit))


def from_parts(
    mark_delete: Position,
    ranges: Iterable[tuple[int, int, int, int]],
    batches: Iterable[tuple[int, int, int]],
    properties: Mapping[str, int],
    entries: Mapping[int, int] | None = None,
    limits: ExpansionLimits = DEFAULT,
) -> Snapshot:
    """Decode the state in a cursor's record."""
    acked: dict[int, BitMap64] = {}
    unsplit: set[int] = set()
    rows = np.array(list(ranges), dtype=np.int64).reshape(-1, 4)
    try:
        _add_ranges(acked, _split(rows, entries or {}, unsplit), mark_delete, limits.of(rows.nbytes))
    except ExpansionError as error:
        raise MalformedAckStateError(f"the record of the cursor cannot be read: {error}") from None
    included = {Position(ledger, entry): bits for ledger, entry, bits in batches if (ledger, entry) > mark_delete}
    return Snapshot(AckSnapshot(mark_delete, acked, included, dict(properties)), frozenset(unsplit))


class _Parts:
    """The decoded fields of a snapshot, before validation."""

    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion
        self.ledger: int | None = None
        self.entry: int | None = None
        self.ranges: list[Ranges] = []
        self.odd_ranges: list[tuple[int, int, int, int]] = []
        self.longs: list[tuple[int, Words]] = []
        self.batches: list[tuple[int, int, int]] = []
        self.properties: dict[str, int] = {}

    @classmethod
    def of(cls, data: bytes, expansion: Expansion) -> _Parts:
        parts = cls(expansion)
        at = 0
        # Per tag: the offset at which bulk decoding may be tried again.
        retry_at = {_RANGE_TAG: 0, _LONGS_TAG: 0}
        while at < len(data):
            key = data[at]
            if key in retry_at and at >= retry_at[key]:
                end = parts._read_many(data, at, key)
                if end - at < SLICE:
                    retry_at[key] = end + SLICE
                if end > at:
                    at = end
                    continue
            at = parts._read_field(data, at)
        return parts

    def _read_many(self, data: bytes, at: int, key: int) -> int:
        """Bulk-decode the run of fields in the usual encoding. Returns the offset of its end."""
        if key == _LONGS_TAG:
            sets, end = read_longs(data, at, _LONGS, self._expansion)
            self.longs += sets
        else:
            ranges, end = read_ranges(data, at, _RANGE, self._expansion)
            self.ranges.append(ranges)
        return end

    def _read_field(self, data: bytes, at: int) -> int:
        """Decode one field. Returns the offset of its end."""
        key, start = read_varint(data, at, len(data))
        if key in (_LEDGER_TAG, _ENTRY_TAG):
            number, end = read_varint(data, start, len(data))
            if key == _LEDGER_TAG:
                self.ledger = int64(number)
            else:
                self.entry = int64(number)
            return end
        if key not in _LENGTH_DELIMITED:
            return _skip(data, at)
        size, start = read_varint(data, start, len(data))
        end = start + size
        if end > len(data):
            raise WireError(f"the field at byte {at} needs {size} bytes, but {len(data) - start} remain")
        # A word takes at least one byte.
        words = size if key in (_BATCH_TAG, _LONGS_TAG) else 0
        self._expansion.take(RECORD_BYTES + _WORD_BYTES * words, _WHAT)
        chunk = data[start:end]
        if key == _RANGE_TAG:
            self.odd_ranges.append(read_range(chunk))
        elif key == _PROPERTY_TAG:
            name, value = LONG_PROPERTY.decode(chunk)
            self.properties[name] = value
        elif key == _BATCH_TAG:
            self.batches.append(read_batch(chunk))
        else:
            self.longs.append(read_any_longs(chunk))
        return end

    def all_ranges(self) -> Ranges:
        if len(self.ranges) == 1 and not self.odd_ranges:
            # The usual case; avoid copying millions of ranges.
            return self.ranges[0]
        return np.concatenate((*self.ranges, np.array(self.odd_ranges, dtype=np.int64).reshape(-1, 4)))

    def mark_delete(self) -> tuple[int, int]:
        if self.ledger is None or self.entry is None:
            raise WireError("it has no mark-delete position")
        return self.ledger, self.entry


_WHAT = "the state of a cursor"
_LENGTH_DELIMITED = {_RANGE_TAG, _PROPERTY_TAG, _BATCH_TAG, _LONGS_TAG}


def _skip(data: bytes, at: int) -> int:
    """Return the offset of the end of an unknown field, after validating it."""
    key, _, chunk = next(fields(data, at))
    _, start = read_varint(data, at, len(data))
    if key & 7 in (VARINT, BYTES):
        _, start = read_varint(data, start, len(data))
        return start + len(chunk)
    return start + (4 if key & 7 == FIXED32 else 8)


def _split(ranges: Ranges, entries: Mapping[int, int], unsplit: set[int]) -> Ranges:
    crossing = ranges[:, 0] != ranges[:, 2]
    if not crossing.any():
        return ranges
    rows: list[tuple[int, int, int, int]] = []
    spans = []
    for ledger, lower, upper_ledger, upper in ranges[crossing].tolist():
        if ledger > upper_ledger:
            continue
        if ledger in entries:
            rows.append((ledger, lower, ledger, entries[ledger] - 1))
        else:
            unsplit.add(ledger)
        spans.append((ledger, upper_ledger))
        rows.append((upper_ledger, -1, upper_ledger, upper))
    rows += [(ledger, -1, ledger, entries[ledger] - 1) for ledger in _ledgers_inside(sorted(entries), sorted(spans))]
    return np.concatenate((ranges[~crossing], np.array(rows, dtype=np.int64).reshape(-1, 4)))


def _ledgers_inside(ledgers: list[int], spans: list[tuple[int, int]]) -> Iterator[int]:
    """Yield the ledgers inside a span, excluding its ends, in one merge pass over both sorted lists."""
    place, reach = 0, -1
    for ledger in ledgers:
        while place < len(spans) and spans[place][0] < ledger:
            reach = max(reach, spans[place][1])
            place += 1
        if ledger < reach:
            yield ledger


def _add_ranges(acked: dict[int, BitMap64], ranges: Ranges, mark_delete: Position, expansion: Expansion) -> None:
    """Add ranges within ledgers, without their entries up to the mark-delete position."""
    if (np.diff(ranges[:, 0]) < 0).any():
        ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    for at in range(0, len(ranges), _RANGES_PER_CALL):
        ledgers, lowers, _, lasts = ranges[at : at + _RANGES_PER_CALL].T.copy()
        lowers = np.maximum(lowers, -1)
        lowers = np.where(ledgers == mark_delete.ledger_id, np.maximum(lowers, mark_delete.entry_id), lowers)
        relevant = (ledgers >= mark_delete.ledger_id) & (lowers < lasts)
        ledgers, firsts, lasts = ledgers[relevant], lowers[relevant] + 1, lasts[relevant]
        # Stored bytes account for one container per range, so charge for the others.
        containers = ((lasts >> _CONTAINER_BITS) - (firsts >> _CONTAINER_BITS)).sum(dtype=np.float64)
        expansion.take(int(containers) * CONTAINER_BYTES, f"a set of {int(containers)} blocks of entries")
        if len(ledgers):
            _add_sorted(acked, ledgers, firsts, lasts)


def _add_sorted(acked: dict[int, BitMap64], ledgers: Ids, firsts: Ids, lasts: Ids) -> None:
    """Add closed ranges that are grouped by ledger."""
    starts = np.concatenate(([0], np.flatnonzero(np.diff(ledgers)) + 1))
    ends = np.concatenate((starts[1:], [len(ledgers)]))
    for ledger, start, end in zip(ledgers[starts].tolist(), starts.tolist(), ends.tolist(), strict=True):
        add_runs(acked.setdefault(ledger, BitMap64()), firsts[start:end], lasts[start:end])


def _add_longs(acked: dict[int, BitMap64], ledger: int, bits: Words, mark_delete: Position) -> None:
    if ledger < mark_delete.ledger_id:
        return
    bitmap = acked.setdefault(ledger, BitMap64())
    add_words(bitmap, bits)
    if ledger == mark_delete.ledger_id and mark_delete.entry_id >= 0:
        bitmap.remove_range(0, mark_delete.entry_id + 1)


# -- writing ---------------------------------------------------------------------------------------------------------


def write(
    state: AckSnapshot, form: Form = "ranges", max_ranges: int | None = None, max_batches: int | None = None
) -> EncodedSnapshot:
    """Encode a snapshot with the lowest ranges and batch sets, up to the limits, in both forms.

    Excluded acknowledgments are redelivered after a restart. The limit also counts ranges if they are encoded as words.
    """
    if form not in ("ranges", "long_arrays"):
        raise IncorrectParameterError(f"form must be 'ranges' or 'long_arrays', not {form!r}")
    out = bytearray()
    write_varint_field(out, _LEDGER, state.mark_delete.ledger_id)
    write_varint_field(out, _ENTRY, state.mark_delete.entry_id)
    acked, ranges_left_out = _lowest_ranges(state.acked, max_ranges)
    batches = sorted(state.batches.items())
    included = batches if max_batches is None else batches[:max_batches]
    if form == "ranges":
        for group in _batched(acked):
            out += write_ranges(np.concatenate([_ranges(ledger, bitmap) for ledger, bitmap in group]), _RANGE)
    for pair in state.properties.items():
        write_bytes_field(out, _PROPERTY, LONG_PROPERTY.encode(pair))
    for position, unacked in included:
        write_bytes_field(out, _BATCH, write_batch(*position, unacked))
    if form == "long_arrays":
        for group in _batched(acked):
            out += write_longs([(ledger, words(bitmap)) for ledger, bitmap in group], _LONGS)
    return EncodedSnapshot(bytes(out), ranges_left_out, len(batches) - len(included))


def _lowest_ranges(acked: Mapping[int, BitMap64], limit: int | None) -> tuple[list[tuple[int, BitMap64]], int]:
    """Return the ledgers in ascending order with at most ``limit`` ranges in total, and the number of excluded
    ranges."""
    if limit is None:
        return [(ledger, acked[ledger]) for ledger in sorted(acked) if acked[ledger]], 0
    included = []
    left_out = 0
    for ledger in sorted(acked):
        firsts, lasts = runs(acked[ledger])
        room = max(limit, 0)
        left_out += max(len(firsts) - room, 0)
        limit -= len(firsts)
        if not room or not len(firsts):
            continue
        bitmap = acked[ledger]
        if len(firsts) > room:
            bitmap = bitmap.copy()
            bitmap.remove_range(int(lasts[room - 1]) + 1, bitmap.max() + 1)
        included.append((ledger, bitmap))
    return included, left_out


def _batched(acked: list[tuple[int, BitMap64]]) -> Iterator[list[tuple[int, BitMap64]]]:
    return (acked[at : at + _LEDGERS_PER_CALL] for at in range(0, len(acked), _LEDGERS_PER_CALL))


def _ranges(ledger: int, bitmap: BitMap64) -> Ranges:
    firsts, lasts = runs(bitmap)
    rows = np.empty((len(firsts), 4), dtype=np.int64)
    rows[:, 0] = rows[:, 2] = ledger
    rows[:, 1] = firsts - 1
    rows[:, 3] = lasts
    return rows
