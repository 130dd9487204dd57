"""Records of the log of negative acknowledgments: protobuf messages, whose unknown fields are ignored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bookstand.delivery.message.message_set import WIDTHS
from bookstand.errors import ExpansionError, MalformedRecordError
from bookstand.proto import varints, wire_format
from bookstand.proto.expansion import DEFAULT, FREE_BYTES, ID_BYTES, RECORD_BYTES, ExpansionLimits
from bookstand.proto.struct_layout import MessageFields

Column = NDArray[np.int64]

_NACKS, _REDELIVERED = 1, 2
RECORD = MessageFields(
    "Record",
    (_NACKS, "nacks", "repeated Nacks", "positions that were negatively acknowledged"),
    (_REDELIVERED, "redelivered", "Redelivered", "redeliveries since"),
)
_NACKS_TAG, _REDELIVERED_TAG = (
    wire_format.tag(_NACKS, wire_format.BYTES),
    wire_format.tag(_REDELIVERED, wire_format.BYTES),
)

_TIME, _LEDGER, _ENTRIES, _WIDTH, _COUNT = 1, 2, 3, 4, 5
NACKS = MessageFields(
    "Nacks",
    (_TIME, "time", "int64", "due time of the bucket, in milliseconds"),
    (_LEDGER, "ledger", "int64", ""),
    (
        _ENTRIES,
        "entries",
        "bytes",
        "two varints for each run of ids: the distance of its first id from the end of the previous run (from 0 for "
        "the first run), and the number of ids after the first",
    ),
    (
        _WIDTH,
        "batch_index_bits",
        "int32",
        "0: the ids are entry ids; 4, 10 or 25: each id is a message of a batch, with its batch index in as many low "
        "bits and its entry id above them",
    ),
    (_COUNT, "redelivery_count", "int32", "number of redeliveries before the negative acknowledgment"),
)
_TIME_TAG, _LEDGER_TAG = wire_format.tag(_TIME, wire_format.VARINT), wire_format.tag(_LEDGER, wire_format.VARINT)
_ENTRIES_TAG = wire_format.tag(_ENTRIES, wire_format.BYTES)
_WIDTH_TAG, _COUNT_TAG = wire_format.tag(_WIDTH, wire_format.VARINT), wire_format.tag(_COUNT, wire_format.VARINT)

_UNTIL, _LAST = 1, 2
REDELIVERED = MessageFields(
    "Redelivered",
    (_UNTIL, "until", "int64", "all times up to this one …"),
    (_LAST, "last", "int64", "… in records up to this entry of the ledger"),
)
_UNTIL_TAG, _LAST_TAG = wire_format.tag(_UNTIL, wire_format.VARINT), wire_format.tag(_LAST, wire_format.VARINT)

# Maximum size of a Nacks without its entries: six tags, four numbers, two lengths.
_MAX_HEADER_BYTES = 1 + 5 + 11 + 11 + 1 + 5 + 11 + 11
_MAX_RUN_LENGTH = 1 << 31
# Decoding charges each id to the expansion limits; a record of this size is within any limit.
_MAX_RECORD_IDS = 2 * FREE_BYTES // ID_BYTES // 3
_MAX_WRITTEN_RUN_LENGTH = 1 << 20
# Maximum size of an encoded run.
_MAX_RUN_BYTES = 2 * varints.LONGEST


class Nacks(NamedTuple):
    """Messages of one ledger that are due at one time, as ascending runs of ids with inclusive ends. With a ``width``,
    ids are codes of messages of batches (``message_set.py``)."""

    time: int
    ledger_id: int
    firsts: Column
    lasts: Column
    width: int = 0
    redeliveries: int = 0


class Redelivered(NamedTuple):
    until: int
    last: int


class Record(NamedTuple):
    nacks: list[Nacks]
    redelivered: Redelivered | None


def nacks_of(time: int, ledger_id: int, ids: Column, width: int = 0, count: int = 0) -> Nacks:
    """``ids`` must be ascending."""
    breaks = np.flatnonzero(np.diff(ids) != 1)
    firsts = ids[np.insert(breaks + 1, 0, 0)]
    return Nacks(time, ledger_id, firsts, ids[np.append(breaks, len(ids) - 1)], width, count)


def codes_in(nacks: Nacks) -> Column:
    """Ids of a record, ascending."""
    counts = nacks.lasts - nacks.firsts + 1
    ends = np.cumsum(counts)
    codes: Column = np.arange(int(ends[-1]), dtype=np.int64) + np.repeat(nacks.firsts - (ends - counts), counts)
    return codes


def encode_nacks(nacks: Iterable[Nacks], limit: int) -> Iterator[bytes]:
    """Encode records of up to ``limit`` bytes."""
    record = bytearray()
    recorded = 0
    for one in nacks:
        for entries, count in _split_entries(one, (limit - _MAX_HEADER_BYTES) // _MAX_RUN_BYTES):
            body = bytearray()
            wire_format.write_varint_field(body, _TIME, one.time)
            wire_format.write_varint_field(body, _LEDGER, one.ledger_id)
            wire_format.write_bytes_field(body, _ENTRIES, entries)
            for field, number in ((_WIDTH, one.width), (_COUNT, one.redeliveries)):
                if number:
                    wire_format.write_varint_field(body, field, number)
            if record and (len(record) + len(body) + 6 > limit or recorded + count > _MAX_RECORD_IDS):
                yield bytes(record)
                record = bytearray()
                recorded = 0
            recorded += count
            wire_format.write_bytes_field(record, _NACKS, body)
    if record:
        yield bytes(record)


def _split_entries(nacks: Nacks, runs: int) -> Iterator[tuple[bytes, int]]:
    """Encode the field ``entries`` with up to ``runs`` runs, and the number of its ids."""
    all_firsts, all_lasts = _split_runs(nacks.firsts, nacks.lasts)
    ends = np.cumsum(all_lasts - all_firsts + 1)
    row = before = 0
    while row < len(ends):
        stop = min(row + runs, int(np.searchsorted(ends, before + _MAX_RECORD_IDS, side="right")))
        firsts, lasts = all_firsts[row:stop], all_lasts[row:stop]
        distances = firsts.copy()
        distances[1:] -= lasts[:-1] + 1
        count = int(ends[stop - 1]) - before
        yield varints.encode_all(np.column_stack([distances, lasts - firsts]).astype(np.uint64)), count
        row, before = stop, before + count


def _split_runs(firsts: Column, lasts: Column) -> tuple[Column, Column]:
    """Split runs of more than ``_MAX_WRITTEN_RUN_LENGTH`` ids."""
    pieces = (lasts - firsts) // _MAX_WRITTEN_RUN_LENGTH + 1
    if not len(pieces) or pieces.max() == 1:
        return firsts, lasts
    ends = np.cumsum(pieces)
    numbers = np.arange(int(ends[-1])) - np.repeat(ends - pieces, pieces)
    cut = np.repeat(firsts, pieces) + numbers * _MAX_WRITTEN_RUN_LENGTH
    return cut, np.minimum(cut + _MAX_WRITTEN_RUN_LENGTH - 1, np.repeat(lasts, pieces))


def encode_redelivered(redelivered: Redelivered) -> bytes:
    body = bytearray()
    wire_format.write_varint_field(body, _UNTIL, redelivered.until)
    wire_format.write_varint_field(body, _LAST, redelivered.last)
    record = bytearray()
    wire_format.write_bytes_field(record, _REDELIVERED, body)
    return bytes(record)


def decode(data: bytes, source: str, limits: ExpansionLimits = DEFAULT) -> Record:
    """:class:`MalformedRecordError` quotes ``source``, the origin of the data."""
    expansion = limits.of(len(data))
    nacks: list[Nacks] = []
    redelivered = None
    try:
        for tag, _, chunk in wire_format.fields(data):
            if tag == _NACKS_TAG:
                nacks.append(_decode_nacks(chunk))
                # Floats do not overflow.
                count = int((nacks[-1].lasts - nacks[-1].firsts + 1).sum(dtype=np.float64))
                expansion.take(RECORD_BYTES + count * ID_BYTES, f"a record of {count} negative acknowledgments")
            elif tag == _REDELIVERED_TAG:
                numbers = _numbers(chunk)
                redelivered = Redelivered(numbers[_UNTIL_TAG], numbers[_LAST_TAG])
    except (wire_format.WireError, ExpansionError, KeyError) as error:
        raise MalformedRecordError(f"{source} is not a record of negative acknowledgments: {error}") from error
    return Record(nacks, redelivered)


def _numbers(chunk: bytes) -> dict[int, int]:
    return {tag: wire_format.int64(number) for tag, number, _ in wire_format.fields(chunk)}


def _decode_nacks(chunk: bytes) -> Nacks:
    numbers = _numbers(chunk)
    entries = [part for tag, _, part in wire_format.fields(chunk) if tag == _ENTRIES_TAG]
    if len(entries) != 1:
        raise wire_format.WireError(f"it must have one field of entry ids, not {len(entries)}")
    width, count = numbers.get(_WIDTH_TAG, 0), numbers.get(_COUNT_TAG, 0)
    if width not in (0, *WIDTHS):
        raise wire_format.WireError(f"its batch indexes must have {', '.join(map(str, WIDTHS))} bits, not {width}")
    if count < 0:
        raise wire_format.WireError(f"its redelivery count is {count}")
    if numbers[_LEDGER_TAG] < 0:
        raise wire_format.WireError(f"its ledger id is {numbers[_LEDGER_TAG]}")
    return Nacks(numbers[_TIME_TAG], numbers[_LEDGER_TAG], *_runs_of(entries[0]), width, count)


def _runs_of(entries: bytes) -> tuple[Column, Column]:
    data = np.frombuffer(entries, dtype=np.uint8)
    starts, lengths = varints.split(data)
    if not len(starts) or len(starts) % 2 or lengths.sum() < len(data) or lengths.max() > varints.LONGEST:
        raise wire_format.WireError("its entry ids are not encoded as runs")
    numbers = varints.decode_all(data, starts, lengths).astype(np.int64)
    distances, follow = numbers[::2], numbers[1::2]
    # The sum of all distances and runs may exceed 64 bits: add the halves of the numbers.
    total = (int((numbers >> 32).sum()) << 32) + int((numbers & 0xFFFFFFFF).sum()) + len(follow)
    if numbers.min() < 0 or total > 1 << 63:
        raise wire_format.WireError("its entry ids exceed the range of ids")
    if int(follow.max()) >= _MAX_RUN_LENGTH:
        raise wire_format.WireError(f"it has a run of more than {_MAX_RUN_LENGTH} ids")
    lasts = np.cumsum(distances + follow + 1) - 1
    return lasts - follow, lasts
