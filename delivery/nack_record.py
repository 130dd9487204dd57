"""What the log of negative acknowledgments says, entry by entry.

The records are protobuf messages; fields that are not known are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bookstand.errors import MalformedRecordError
from bookstand.proto import varints, wire
from bookstand.proto.layout import Numbered

Column = NDArray[np.int64]

_NACKS, _GIVEN = 1, 2
RECORD = Numbered(
    "Record",
    (_NACKS, "nacks", "repeated Nacks", "positions that were negatively acknowledged"),
    (_GIVEN, "given", "Given", "what was given out again since"),
)
_NACKS_TAG, _GIVEN_TAG = wire.tag(_NACKS, wire.BYTES), wire.tag(_GIVEN, wire.BYTES)

_TIME, _LEDGER, _ENTRIES = 1, 2, 3
NACKS = Numbered(
    "Nacks",
    (_TIME, "time", "int64", "when they are due: the bucket's, in milliseconds"),
    (_LEDGER, "ledger", "int64", ""),
    (
        _ENTRIES,
        "entries",
        "bytes",
        "for each run of entry ids two varints: the distance of its first id from the id behind the run before (from 0 "
        "for the first), and how many follow the first",
    ),
)
_TIME_TAG, _LEDGER_TAG = wire.tag(_TIME, wire.VARINT), wire.tag(_LEDGER, wire.VARINT)
_ENTRIES_TAG = wire.tag(_ENTRIES, wire.BYTES)

_UNTIL, _LAST = 1, 2
GIVEN = Numbered(
    "Given",
    (_UNTIL, "until", "int64", "every time up to here …"),
    (_LAST, "last", "int64", "… that is recorded in this entry of the ledger or an earlier one"),
)
_UNTIL_TAG, _LAST_TAG = wire.tag(_UNTIL, wire.VARINT), wire.tag(_LAST, wire.VARINT)

# What a Nacks takes at most besides its entries: three tags, two numbers, two lengths.
_FRAME = 1 + 5 + 11 + 11 + 1 + 5
# What a run takes at most.
_RUN = 2 * varints.LONGEST


class Nacks(NamedTuple):
    """Positions of one ledger that are due at one time: runs of entry ids, ascending, both ends included."""

    time: int
    ledger_id: int
    firsts: Column
    lasts: Column


class Given(NamedTuple):
    until: int
    last: int


class Record(NamedTuple):
    nacks: list[Nacks]
    given: Given | None


SMALLEST_LIMIT = _FRAME + _RUN


def nacks_of(time: int, ledger_id: int, entry_ids: Column) -> Nacks:
    """``entry_ids`` ascend."""
    breaks = np.flatnonzero(np.diff(entry_ids) != 1)
    firsts = entry_ids[np.insert(breaks + 1, 0, 0)]
    return Nacks(time, ledger_id, firsts, entry_ids[np.append(breaks, len(entry_ids) - 1)])


def encode_nacks(nacks: Iterable[Nacks], limit: int) -> Iterator[bytes]:
    """Records of at most ``limit`` bytes each."""
    record = bytearray()
    for one in nacks:
        for entries in _parts(one, (limit - _FRAME) // _RUN):
            body = bytearray()
            wire.write_number(body, _TIME, one.time)
            wire.write_number(body, _LEDGER, one.ledger_id)
            wire.write_bytes(body, _ENTRIES, entries)
            if record and len(record) + len(body) + 6 > limit:
                yield bytes(record)
                record = bytearray()
            wire.write_bytes(record, _NACKS, body)
    if record:
        yield bytes(record)


def _parts(nacks: Nacks, runs: int) -> Iterator[bytes]:
    """The field ``entries``, with so many runs at most."""
    for row in range(0, len(nacks.firsts), runs):
        firsts, lasts = nacks.firsts[row : row + runs], nacks.lasts[row : row + runs]
        distances = firsts.copy()
        distances[1:] -= lasts[:-1] + 1
        yield varints.join(np.column_stack([distances, lasts - firsts]).astype(np.uint64))


def encode_given(given: Given) -> bytes:
    body = bytearray()
    wire.write_number(body, _UNTIL, given.until)
    wire.write_number(body, _LAST, given.last)
    record = bytearray()
    wire.write_bytes(record, _GIVEN, body)
    return bytes(record)


def decode(data: bytes, where: str) -> Record:
    """:class:`MalformedRecordError` names ``where``."""
    nacks: list[Nacks] = []
    given = None
    try:
        for tag, _, chunk in wire.fields(data):
            if tag == _NACKS_TAG:
                nacks.append(_decode_nacks(chunk))
            elif tag == _GIVEN_TAG:
                numbers = _numbers(chunk)
                given = Given(numbers[_UNTIL_TAG], numbers[_LAST_TAG])
    except (wire.WireError, KeyError) as error:
        raise MalformedRecordError(f"{where} is no record of negative acknowledgments: {error}") from error
    return Record(nacks, given)


def _numbers(chunk: bytes) -> dict[int, int]:
    return {tag: wire.int64(number) for tag, number, _ in wire.fields(chunk)}


def _decode_nacks(chunk: bytes) -> Nacks:
    numbers = _numbers(chunk)
    entries = [part for tag, _, part in wire.fields(chunk) if tag == _ENTRIES_TAG]
    if len(entries) != 1:
        raise wire.WireError(f"it has {len(entries)} fields of entry ids")
    return Nacks(numbers[_TIME_TAG], numbers[_LEDGER_TAG], *_runs_of(entries[0]))


def _runs_of(entries: bytes) -> tuple[Column, Column]:
    data = np.frombuffer(entries, dtype=np.uint8)
    starts, lengths = varints.split(data)
    if not len(starts) or len(starts) % 2 or lengths.sum() < len(data) or lengths.max() > varints.LONGEST:
        raise wire.WireError("its entry ids are no runs")
    numbers = varints.values(data, starts, lengths).astype(np.int64)
    distances, follow = numbers[::2], numbers[1::2]
    # Summed up as floats, which do not overflow, before it is done in whole numbers.
    if numbers.min() < 0 or (numbers.astype(np.float64) + 1).sum() > 1 << 63:
        raise wire.WireError("its entry ids leave the range of ids")
    lasts = np.cumsum(distances + follow + 1) - 1
    return lasts - follow, lasts
