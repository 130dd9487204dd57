"""Streaming reads of a ledger, or of a topic with all its ledgers: existing entries first, then new entries.

An offset is the position of the next entry and the number of entries read before it since the start of the stream. The
entries between two offsets never change. A query that restarts from its checkpoint therefore reads the same batches
again and then continues. If fewer entries exist than the offsets count, the missing entries are reported as damage.
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
from bookstand.pipeline.tables import messages
from bookstand.pipeline.tables.entries import parts_of
from bookstand.pipeline.tables.partitioning import ROW_BYTES, PlanDamage, Range, ReadPart
from bookstand.pipeline.tables.query import Query, places_of
from bookstand.pipeline.tables.sources import STORE, DataSource, open_source
from bookstand.pipeline.tables.tables import rows
from bookstand.storage.format.ledger_metadata import CLOSED

if TYPE_CHECKING:
    from bookstand.disk.disks import Disks
    from bookstand.pipeline.tables.arrow import pa

Offset = dict[str, int]

LEDGER, TOPIC = "ledger", "topic"
EARLIEST, LATEST = "earliest", "latest"


class StreamPart(InputPartition):
    """Input of one task of a batch."""

    def __init__(self, part: ReadPart) -> None:
        super().__init__(None)
        self.part = part


class LedgerProgress(NamedTuple):
    """Number of readable entries in a ledger of the stream. It is final if the ledger is closed."""

    ledger_id: int
    entries: int
    closed: bool
    weight: int

    def between(self, start: Offset, end: Offset) -> tuple[int, int]:
        """Half-open range of the ledger's entry ids between two offsets."""
        first = start["entry"] if self.ledger_id == start["ledger"] else 0
        behind = min(end["entry"], self.entries) if self.ledger_id == end["ledger"] else self.entries
        inside = start["ledger"] <= self.ledger_id <= end["ledger"]
        return (first, max(first, behind)) if inside else (0, 0)


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
    def __init__(self, place: DataSource, query: Query, options: Mapping[str, str]) -> None:
        self._place = place
        self._query = query
        self._start = options.get("start", EARLIEST)
        self._most = _positive(options, "max_entries")
        self._target: Offset | None = None
        self._name = options.get(LEDGER, "")
        if type(self) is LedgerStream and not self._name.isdecimal():
            raise IncorrectParameterError(f"option ledger is the id of a ledger, not {self._name!r}")

    # -- ledgers ------------------------------------------------------------------------------------------------------

    def _open(self) -> AbstractContextManager[Disks]:
        return open_source(self._place, self._query.passwords)

    def _ledger_ids(self, source: Disks) -> list[int]:
        """Ids of the ledgers of the stream, in order."""
        return [int(self._name)]

    def _known(self, source: Disks, first: int = 0) -> list[LedgerProgress]:
        """Progress of existing ledgers whose ids are at least ``first``."""
        found = []
        for ledger_id in self._ledger_ids(source):
            if ledger_id >= first:
                try:
                    extent = source.ledger(ledger_id).extent
                except NoSuchLedgerError:
                    continue
                closed = extent.state == CLOSED
                # Entries after a gap may be discarded by recovery. Entries before the first gap are final.
                entries = (extent.last_entry if closed else extent.gapless) + 1
                found.append(LedgerProgress(ledger_id, entries, closed, extent.length + ROW_BYTES * entries))
        return found

    # -- offsets -------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:  # noqa: N802
        with self._open() as source:
            known = self._known(source)
        if self._start == EARLIEST:
            return _offset(known[0].ledger_id if known else 0, 0)
        if self._start == LATEST:
            return {**_end(known, _offset(0, 0)), "read": 0}
        ledger_id, colon, entry_id = self._start.partition(":")
        if not (colon and ledger_id.isdecimal() and entry_id.isdecimal()):
            raise IncorrectParameterError(
                f"option start is {EARLIEST}, {LATEST} or the position of the first entry, not {self._start!r}"
            )
        return _offset(int(ledger_id), int(entry_id))

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        with self._open() as source:
            known = self._known(source, start["ledger"])
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return _end(known, start, self._target, most)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._most is None else ReadMaxRows(self._most)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        with self._open() as source:
            return _end(self._known(source), _offset(0, 0))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self.reportLatestOffset()

    # -- rows ----------------------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        with self._open() as source:
            known = self._known(source, start["ledger"])
        ranges = []
        for one in known:
            first, behind = one.between(start, end)
            if first < behind:
                weight = one.weight * (behind - first) // one.entries
                ranges.append(Range(one.ledger_id, first, behind - 1, weight))
        parts = [part._replace(work=self._work(part.work)) for part in parts_of(self._place, self._query, ranges)]
        damage = self._lost(start, end, known, sum(one.entries for one in ranges))
        if damage is not None:
            parts.append(ReadPart(self._place, self._work(PlanDamage((damage,)))))
        return [StreamPart(part) for part in parts]

    def _lost(self, start: Offset, end: Offset, known: Sequence[LedgerProgress], found: int) -> Damage | None:
        gone = end["read"] - start["read"] - found
        if gone > 0:
            what = f"{gone} entries of the stream are gone before they were read"
            return Damage(self._place.name, -1, what, end["ledger"])
        begun = start["entry"] and not start["done"] and start != end
        if begun and start["ledger"] not in [one.ledger_id for one in known]:
            what = (
                f"the ledger is gone; whether it had more than {start['entry']} entries, which were read, is not known"
            )
            return Damage(self._place.name, -1, what, start["ledger"])
        return None

    def _work(self, work: Any) -> Any:
        """Work item for the reader of the table."""
        return work

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPart)
        return rows(partition.part, self._query)


class TopicStream(LedgerStream):
    """Stream of a topic. Its ledgers are in the order of their ids, so that offsets can be compared by ledger id."""

    def __init__(self, place: DataSource, query: Query, options: Mapping[str, str]) -> None:
        super().__init__(place, query, options)
        self._name = options[TOPIC]

    def _ledger_ids(self, source: Disks) -> list[int]:
        assert source.dump is not None
        try:
            return [ledger.ledger_id for ledger in source.dump.topic_info(self._name).ledgers]
        except NoSuchNodeError:
            # The topic is created with its first message.
            return []

    def _work(self, work: Any) -> Any:
        if self._query.table_name != "messages":
            return work
        ranges = work.damage if isinstance(work, PlanDamage) else work
        topics = {one.ledger_id: self._name for one in ranges}
        return messages.MessageWork(work, topics)


def _offset(ledger_id: int, entry_id: int, read: int = 0, done: bool = False) -> Offset:
    """Make an offset. ``done`` means that the ledger is closed and all of its entries are before the offset."""
    return {"ledger": ledger_id, "entry": entry_id, "read": read, "done": int(done)}


def _end(
    known: Sequence[LedgerProgress], start: Offset, target: Offset | None = None, most: int | None = None
) -> Offset:
    """End offset of a read from ``start``: after the last entry, limited by ``target`` and to ``most`` entries."""
    at = start
    read = 0
    for one in known:
        first, behind = one.between(start, _offset(one.ledger_id, one.entries) if target is None else target)
        if most is not None:
            behind = min(behind, first + most - read)
        if behind > first:
            read += behind - first
            at = _offset(one.ledger_id, behind, start["read"] + read, one.closed and behind == one.entries)
    return at


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isdecimal() and int(text)):
        raise IncorrectParameterError(f"option {name} is a number from 1 on, not {text!r}")
    return int(text)
