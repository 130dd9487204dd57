"""A ledger, or a topic with all its ledgers, as a stream: what is in the store so far, then what comes.

An offset is the position of the next entry. What lies between two offsets never changes, so that a query that begins
again from its checkpoint reads what it has read, and goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from bookstand.disk.damage import Damage
from bookstand.errors import IncorrectParameterError, NoSuchLedgerError, NoSuchNodeError
from bookstand.pipeline import messages
from bookstand.pipeline.entries import parts_of
from bookstand.pipeline.parts import ROW_BYTES, Part, Range, Told
from bookstand.pipeline.places import STORE, Place, opened
from bookstand.pipeline.query import Query, places_of
from bookstand.pipeline.tables import rows
from bookstand.storage.metadata import CLOSED

if TYPE_CHECKING:
    import pyarrow as pa

    from bookstand.disk.disks import Disks

Offset = dict[str, int]

LEDGER, TOPIC = "ledger", "topic"
EARLIEST, LATEST = "earliest", "latest"


class Piece(InputPartition):
    """What one task reads of a batch."""

    def __init__(self, part: Part) -> None:
        super().__init__(None)
        self.part = part


class Known(NamedTuple):
    """A ledger of the stream, and how many entries it has; none are added if it is closed."""

    ledger_id: int
    entries: int
    weight: int


def default_table(options: Mapping[str, str]) -> str:
    return "messages" if options.get("stream") == TOPIC else "entries"


def streamed(options: Mapping[str, str], query: Query) -> LedgerStream:
    kind = options.get("stream")
    if kind not in (LEDGER, TOPIC):
        raise IncorrectParameterError(f"option stream is {LEDGER} or {TOPIC}, not {kind!r}")
    if kind not in options:
        raise IncorrectParameterError(f"option {kind} says which {kind} is read")
    tables = ("entries",) if kind == LEDGER else ("entries", "messages")
    if query.table_name not in tables:
        raise IncorrectParameterError(f"a {kind} is streamed as table {' or '.join(tables)}, not {query.table_name}")
    places = places_of(STORE, options)
    if len(places) > 1:
        raise IncorrectParameterError(f"a {kind} is streamed from one store, not from {len(places)}")
    stream: type[LedgerStream] = LedgerStream if kind == LEDGER else TopicStream
    return stream(places[0], query, options)


class LedgerStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, place: Place, query: Query, options: Mapping[str, str]) -> None:
        self._place = place
        self._query = query
        self._start = options.get("start", EARLIEST)
        self._most = _positive(options, "max_entries")
        self._target: Offset | None = None
        self._name = options.get(LEDGER, "")
        if type(self) is LedgerStream and not self._name.isdecimal():
            raise IncorrectParameterError(f"option ledger is the id of a ledger, not {self._name!r}")

    # -- what there is -------------------------------------------------------------------------------------------------

    def _open(self) -> AbstractContextManager[Disks]:
        return opened(self._place, self._query.passwords)

    def _ledger_ids(self, source: Disks) -> list[int]:
        """The ledgers of the stream, in their order."""
        return [int(self._name)]

    def _extents(self, source: Disks, first: int) -> list[Known]:
        """Those from a ledger on."""
        found = []
        for ledger_id in self._ledger_ids(source):
            if ledger_id < first:
                continue
            try:
                extent = source.ledger(ledger_id).extent
            except NoSuchLedgerError:
                found.append(Known(ledger_id, 0, 0))
                continue
            # What is behind a gap may be confirmed or not; what is before the first one stays.
            last = extent.last_entry if extent.state == CLOSED else extent.gapless
            found.append(Known(ledger_id, last + 1, extent.length + ROW_BYTES * (last + 1)))
        return found

    # -- offsets -------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802
        with self._open() as source:
            extents = self._extents(source, 0)
        if self._start == EARLIEST:
            return _offset(extents[0].ledger_id if extents else 0, 0)
        if self._start == LATEST:
            return _end(extents, _offset(0, 0))
        ledger_id, colon, entry_id = self._start.partition(":")
        if not (colon and ledger_id.isdecimal() and entry_id.isdecimal()):
            raise IncorrectParameterError(
                f"option start is {EARLIEST}, {LATEST} or the position of the first entry, not {self._start!r}"
            )
        return _offset(int(ledger_id), int(entry_id))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        with self._open() as source:
            extents = self._extents(source, start["ledger"])
        end = _end(extents, start)
        if self._target is not None and _place(self._target) < _place(end):
            end = self._target
        if isinstance(limit, ReadMaxRows):
            end = _limited(extents, start, end, limit.max_rows)
        return max(start, end, key=_place)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        with self._open() as source:
            return _end(self._extents(source, 0), _offset(0, 0))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self.reportLatestOffset()

    # -- rows ----------------------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        with self._open() as source:
            extents = {one.ledger_id: one for one in self._extents(source, start["ledger"])}
        ranges, damage = [], []
        first, last = _place(start), _place(end)
        if first[0] < last[0] and first[0] not in extents and first[1]:
            # Nothing says how many were behind it.
            damage.append(self._lost(first[0]))
        for ledger_id, extent in extents.items():
            low = first[1] if ledger_id == first[0] else 0
            high = (
                min(extent.entries, last[1]) if ledger_id == last[0] else extent.entries if ledger_id < last[0] else 0
            )
            if ledger_id == last[0] and extent.entries < last[1]:
                damage.append(self._lost(ledger_id))
            if low < high:
                ranges.append(Range(ledger_id, low, high - 1, extent.weight * (high - low) // extent.entries))
        if last[1] and last[0] not in extents and first != last:
            damage.append(self._lost(last[0]))
        parts = [part._replace(work=self._work(part.work)) for part in parts_of(self._place, self._query, ranges)]
        if damage:
            parts.append(Part(self._place, self._work(Told(tuple(damage)))))
        return [Piece(part) for part in parts]

    def _lost(self, ledger_id: int) -> Damage:
        return Damage(self._place.name, -1, "entries of the stream are gone before they were read", ledger_id)

    def _work(self, work: Any) -> Any:
        """As the table has it."""
        return work

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        return rows(partition.part, self._query)


class TopicStream(LedgerStream):
    """Offsets go from ledger to ledger in the order of their ids, which is that of the topic."""

    def __init__(self, place: Place, query: Query, options: Mapping[str, str]) -> None:
        super().__init__(place, query, options)
        self._name = options[TOPIC]

    def _ledger_ids(self, source: Disks) -> list[int]:
        assert source.dump is not None
        try:
            return [ledger.ledger_id for ledger in source.dump.topic_info(self._name).ledgers]
        except NoSuchNodeError:
            # It comes with the first message.
            return []

    def _work(self, work: Any) -> Any:
        if self._query.table_name != "messages":
            return work
        ledger_ids = [one.ledger_id for one in (work.damage if isinstance(work, Told) else work)]
        return messages.Of(work, dict.fromkeys(ledger_ids, self._name))


def _offset(ledger_id: int, entry_id: int) -> Offset:
    return {"ledger": ledger_id, "entry": entry_id}


def _place(offset: Offset) -> tuple[int, int]:
    return offset["ledger"], offset["entry"]


def _end(extents: Sequence[Known], start: Offset) -> Offset:
    """Behind the last entry there is; ledgers without entries do not move it."""
    for one in reversed(extents):
        if one.entries:
            return max(start, _offset(one.ledger_id, one.entries), key=_place)
    return start


def _limited(extents: Sequence[Known], start: Offset, end: Offset, most: int) -> Offset:
    left = max(1, most)
    for one in extents:
        first = start["entry"] if one.ledger_id == start["ledger"] else 0
        behind = min(one.entries, end["entry"]) if one.ledger_id == end["ledger"] else one.entries
        if one.ledger_id > end["ledger"] or behind - first <= 0:
            continue
        if behind - first >= left:
            return _offset(one.ledger_id, first + left)
        left -= behind - first
    return end


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isdecimal() and int(text)):
        raise IncorrectParameterError(f"option {name} is a number from 1 on, not {text!r}")
    return int(text)
