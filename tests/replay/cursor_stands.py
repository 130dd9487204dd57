"""The two things that a recorded topic with its cursors is replayed on: the plain model, and bookstand.

A *stand* has a topic, that can be opened, closed and crashed, and its cursors by name. Cursors of both answer to the
same methods; what one has not is a ``different`` with its name. In bookstand the periodic flush is off, as in the
recordings: of what is throttled only the first is written. Cursors use either the old form (full snapshots, with
their limits) or pages.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from bookstand.cursor.format import position_info
from bookstand.cursor.state.cursor_state import MarkDeletingMarkedPositionError, NoSuchPositionError
from bookstand.errors import (
    BookstandError,
    IncorrectParameterError,
    LedgerFencedError,
    MetadataVersionError,
    NotEnoughBookiesError,
)
from bookstand.proto.ack_messages import LONG_PROPERTY, write_batch, write_range
from bookstand.proto.wire_format import write_bytes_field, write_varint_field
from bookstand.storage.format.position import Position
from tests.model import cursors as model

NEVER = 1e9
PATIENCE = 30.0
START_MS = 1_700_000_000_000
TOPIC = "public/default/persistent/replayed"
DUMMIES = 3  # ledgers that are not of the topic, with ids below it
MEMORY = "/dev/shm"  # the recordings are about answers, not about disks


class MissingError(Exception):
    """Something that the recordings ask for and the API has not."""


class View(NamedTuple):
    """What a consumer can tell of a cursor."""

    mark_delete: Position
    read: Position
    backlog: int
    entries: int
    has_more: bool
    acked: frozenset[Position]
    batches: dict[Position, list[int]]
    properties: dict[str, int]
    cursor_properties: dict[str, str]


class Planted(NamedTuple):
    """An entry of a cursor's ledger: bytes, or what they are to say; ``cut`` are bytes missing at the end."""

    raw: bytes | None
    mark_delete: Position | None = None
    ranges: tuple[tuple[int, int, int, int], ...] = ()
    batches: tuple[tuple[int, int, int], ...] = ()
    properties: tuple[tuple[str, int], ...] = ()
    cut: int = 0
    longs: tuple[tuple[int, tuple[int, ...]], ...] = ()

    @property
    def counting(self) -> tuple[tuple[int, int, int, int], ...]:
        """The ranges that count: those of words only where there are no others."""
        if self.ranges:
            return self.ranges
        found = []
        for ledger, words in self.longs:
            bits = sum(word << 64 * place for place, word in enumerate(words))
            found += [(ledger, one - 1, ledger, one) for one in range(bits.bit_length()) if bits >> one & 1]
        return tuple(found)

    def encoded(self) -> bytes:
        if self.raw is not None:
            return self.raw
        assert self.mark_delete is not None
        out = bytearray()
        write_varint_field(out, 1, self.mark_delete.ledger_id)
        write_varint_field(out, 2, self.mark_delete.entry_id)
        for one in self.ranges:
            write_bytes_field(out, 3, write_range(one))
        for pair in self.properties:
            write_bytes_field(out, 4, LONG_PROPERTY.encode(pair))
        for ledger, entry, bits in self.batches:
            write_bytes_field(out, 5, write_batch(ledger, entry, bits))
        for ledger, words in self.longs:
            write_bytes_field(out, 6, _long_list(ledger, words))
        return bytes(out[: len(out) - self.cut])


def _long_list(ledger: int, words: tuple[int, ...]) -> bytes:
    out = bytearray()
    write_varint_field(out, 1, ledger)
    for word in words:
        write_varint_field(out, 2, word)
    return bytes(out)


class Stand(Protocol):
    topic: Any
    cursors: dict[str, Any]

    def open(self, config: dict[str, Any]) -> list[str]: ...
    def close(self) -> None: ...
    def crash(self) -> None: ...
    def ledgers(self) -> list[tuple[int, int]]: ...
    def add(self, payloads: list[bytes]) -> list[Position]: ...
    def roll(self) -> None: ...
    def trim(self, before: Position) -> None: ...
    def trim_consumed(self) -> None: ...
    def open_cursor(self, name: str, **more: Any) -> None: ...
    def close_cursor(self, name: str) -> None: ...
    def delete_cursor(self, name: str) -> None: ...
    def give_up_cursor(self, name: str) -> None: ...
    def stored_cursors(self) -> list[str]: ...
    def settle(self, answer: Any) -> Any: ...
    def view(self, name: str) -> View: ...
    def kind(self, error: Exception) -> str | None: ...
    def sleep(self, millis: int) -> None: ...
    def quorum(self, number: int) -> None: ...
    def break_cursor_ledger(self, name: str) -> None: ...
    def bump_cursor_info(self, name: str) -> None: ...
    def plant_ledger(self, name: str, entries: list[Planted], delete: bool) -> None: ...
    def plant_record(self, name: str, planted: Planted, cursor_properties: dict[str, str] | None) -> None: ...
    def end(self) -> None: ...


def limits_of(config: dict[str, Any]) -> model.Limits:
    return model.Limits(
        config.get("maxUnackedRangesToPersist", 10_000),
        config.get("maxBatchDeletedIndexToPersist", 10_000),
        config.get("maxUnackedRangesToPersistInMetadataStore", 1_000),
    )


def codec_of(config: dict[str, Any], record: str) -> str | None:
    codec = config.get(f"{record}CompressionType", "NONE")
    return None if codec == "NONE" else str(codec)


class ModelStand:
    """A change that cannot be written stays in memory; the record takes it where the state is small enough."""

    def __init__(self, paged: bool) -> None:
        self.paged = paged
        self.topic: Any = None
        self.config: dict[str, Any] = {}
        self.cursors: dict[str, Any] = {}

    def open(self, config: dict[str, Any]) -> list[str]:
        if self.topic is None:
            self.topic = model.Topic(config.get("maxEntriesPerLedger", 50_000))
        self.topic.crash()
        self.config = config
        self.topic.max_entries = config.get("maxEntriesPerLedger", 50_000)
        self.topic.open()
        self.cursors = self.topic.cursors
        for name in sorted(self.topic.records):
            self.open_cursor(name)
        return sorted(self.topic.records)

    def close(self) -> None:
        self.topic.close()

    def crash(self) -> None:
        self.topic.crash()

    def ledgers(self) -> list[tuple[int, int]]:
        return [(ledger_id, entries) for ledger_id, entries in self.topic.ledgers]

    def add(self, payloads: list[bytes]) -> list[Position]:
        return self.topic.append(len(payloads))  # type: ignore[no-any-return]

    def roll(self) -> None:
        self.topic.roll()

    def trim(self, before: Position) -> None:
        self.topic.trim(before)

    def trim_consumed(self) -> None:
        self.topic.trim_consumed()

    def open_cursor(self, name: str, **more: Any) -> None:
        config = self.config
        settings = model.Settings(
            None if self.paged else limits_of(config),
            config.get("deletionAtBatchIndexLevelEnabled", True),
            1 if config.get("throttleMarkDelete") else None,
            config.get("metadataMaxEntriesPerLedger", 50_000),
        )
        self.topic.open_cursor(name, settings, **more)

    def close_cursor(self, name: str) -> None:
        self.cursors.pop(name).close()

    def delete_cursor(self, name: str) -> None:
        self.topic.delete_cursor(name)

    def give_up_cursor(self, name: str) -> None:
        self.cursors.pop(name, None)

    def stored_cursors(self) -> list[str]:
        return sorted(self.topic.records)

    def settle(self, answer: Any) -> Any:
        return answer

    def view(self, name: str) -> View:
        cursor = self.cursors[name]
        return View(
            cursor.mark_delete_position,
            cursor.read_position,
            cursor.backlog,
            cursor.entries_to_read,
            cursor.has_more,
            frozenset(cursor.acked),
            {at: sorted(left) for at, left in cursor.batches.items()},
            dict(cursor.properties),
            dict(cursor.cursor_properties),
        )

    def kind(self, error: Exception) -> str | None:
        return error.kind if isinstance(error, model.Refused) else None

    def sleep(self, millis: int) -> None:
        """Nothing here depends on time."""

    def quorum(self, number: int) -> None:
        """What cannot be written into a ledger goes into the record: nothing is to be seen of it."""

    def break_cursor_ledger(self, name: str) -> None:
        """It is followed by another."""
        self.cursors[name].room = 0

    def bump_cursor_info(self, name: str) -> None:
        self.cursors[name].taken_over = True
        self.break_cursor_ledger(name)

    def plant_ledger(self, name: str, entries: list[Planted], delete: bool) -> None:
        """The last entry that can be read is the state."""
        record = self.topic.records[name]
        record.lose_ledger()
        record.has_ledger = True
        whole = [one for one in entries if one.mark_delete is not None and not one.cut]
        if delete or not whole:
            return
        self._plant(record, whole[-1])

    def plant_record(self, name: str, planted: Planted, cursor_properties: dict[str, str] | None) -> None:
        record = self.topic.records[name]
        assert planted.mark_delete is not None
        self._plant(record, planted)
        record.has_ledger = False
        record.fallback, record.fallback_properties = planted.mark_delete, dict(planted.properties)
        if cursor_properties is not None:
            record.cursor_properties = cursor_properties

    def _plant(self, record: model.Record, planted: Planted) -> None:
        assert planted.mark_delete is not None
        found = position_info.from_parts(
            planted.mark_delete, planted.counting, planted.batches, dict(planted.properties), dict(self.ledgers())
        ).state
        record.stored = model.Stored(
            found.mark_delete,
            frozenset(Position(ledger, entry) for ledger, bits in found.acked.items() for entry in bits),
            {at: frozenset(i for i in range(bits.bit_length()) if bits >> i & 1) for at, bits in found.batches.items()},
            dict(found.properties),
        )

    def end(self) -> None:
        """Nothing to give back."""


class _Clock:
    def __init__(self) -> None:
        self.millis = START_MS

    def now(self) -> int:
        return self.millis


class StoreStand:
    """bookstand itself: one store in a folder of its own."""

    def __init__(self, paged: bool) -> None:
        import bookstand

        self._open_store = bookstand.open
        self.paged = paged
        self.topic: Any = None
        self.cursors: dict[str, Any] = {}
        self.config: dict[str, Any] = {}
        self.names: set[str] = set()
        self.clock = _Clock()
        self.no_new_ledgers = False
        in_memory = MEMORY if os.path.isdir(MEMORY) and os.access(MEMORY, os.W_OK) else None
        self.folder = tempfile.mkdtemp(prefix="bookstand-replay-", dir=in_memory)
        self.store: Any = None

    # -- the topic -----------------------------------------------------------------------------------------------------

    def _need_store(self) -> Any:
        if self.store is None:
            fresh = not os.listdir(self.folder)
            self.store = self._open_store(self.folder, durability="none", clock=self.clock)
            for _ in range(DUMMIES if fresh else 0):
                self.store.create_ledger().close()
        return self.store

    def open(self, config: dict[str, Any]) -> list[str]:
        if self.topic is not None:
            self.crash()
        self.config = config
        self.no_new_ledgers = False
        try:
            self.topic = self._need_store().managed_ledger(
                TOPIC,
                max_entries_per_ledger=config.get("maxEntriesPerLedger", 50_000),
                info_compression=codec_of(config, "managedLedgerInfo"),
                max_ledger_age=NEVER,
            )
            for name in sorted(self.names):
                self.open_cursor(name)
        except BaseException:
            self.crash()
            raise
        return sorted(self.cursors)

    def close(self) -> None:
        for cursor in self.cursors.values():
            cursor.close()
        self.topic.close()
        self.store.close()
        self.topic = self.store = None
        self.cursors = {}

    def crash(self) -> None:
        if self.store is not None:
            self.store.storage.crash()
            self.store.close()
        self.topic = self.store = None
        self.cursors = {}

    def ledgers(self) -> list[tuple[int, int]]:
        return [(ledger.ledger_id, ledger.entries) for ledger in self.topic.ledgers]

    def add(self, payloads: list[bytes]) -> list[Position]:
        return self.topic.append_entries(payloads)  # type: ignore[no-any-return]

    def roll(self) -> None:
        """Ledgers are followed by the next as soon as they are full."""

    def trim(self, before: Position) -> None:
        self.topic.trim(before)

    def trim_consumed(self) -> None:
        self.topic.trim_consumed()

    # -- cursors -------------------------------------------------------------------------------------------------------

    def open_cursor(self, name: str, **more: Any) -> None:
        from bookstand.cursor.config import CursorConfig
        from bookstand.cursor.cursor import Cursor

        if name in self.cursors:
            return
        config = self.config
        limits = limits_of(config)
        settings = CursorConfig(
            enable_lru_cache_max_unacked_ranges=self.paged,
            flush_interval=NEVER,
            throttle_mark_delete=config.get("throttleMarkDelete", 0.0),
            batch_index_acks=config.get("deletionAtBatchIndexLevelEnabled", True),
            persist_as_long_array=config.get("persistIndividualAckAsLongArray", True),
            max_unacked_ranges_to_persist=limits.ranges,
            max_unacked_ranges_in_metadata_store=limits.ranges_in_record,
            max_batch_deleted_index_to_persist=limits.batches,
            max_entries_per_cursor_ledger=config.get("metadataMaxEntriesPerLedger", 50_000),
            max_cursor_ledger_age=float(config.get("ledgerRolloverTimeout", 4 * 3600)),
            compression=codec_of(config, "managedCursorInfo"),
            compression_threshold=config.get("managedCursorInfoCompressionThresholdInBytes", 0),
        )
        self.cursors[name] = cursor = Cursor.open(self.topic, name, settings, **more)
        self.names.add(name)
        log = cursor._log
        begin = log._create_pending

        def begin_unless_refused(*arguments: Any) -> Any:
            if self.no_new_ledgers:
                raise NotEnoughBookiesError("there are not so many bookies")
            return begin(*arguments)

        log._create_pending = begin_unless_refused

    def close_cursor(self, name: str) -> None:
        self.cursors.pop(name).close()

    def delete_cursor(self, name: str) -> None:
        self.cursors.pop(name).delete()
        self.names.discard(name)

    def give_up_cursor(self, name: str) -> None:
        self.cursors.pop(name, None)

    def stored_cursors(self) -> list[str]:
        return sorted(method(self.topic, "cursor_names", "list_cursors", "cursors")())

    def settle(self, answer: Any) -> Any:
        """Wait for what is written at once; of what is throttled the original says nothing either."""
        if hasattr(answer, "result") and not self.config.get("throttleMarkDelete"):
            return answer.result(PATIENCE)
        return answer

    def view(self, name: str) -> View:
        cursor = self.cursors[name]
        ranges = cursor.acked_ranges()
        acked = frozenset(
            Position(one.upper.ledger_id, entry)
            for one in ranges
            for entry in range(one.lower.entry_id + 1, one.upper.entry_id + 1)
        )
        read = cursor.read_position
        extent = self.topic.extent
        return View(
            cursor.mark_delete_position,
            read,
            cursor.backlog,
            extent.total - extent.rank(read.previous) - sum(1 for one in acked if one >= read),
            cursor.has_more,
            acked,
            cursor.partial_batches(),
            cursor.properties,
            cursor.cursor_properties,
        )

    def kind(self, error: Exception) -> str | None:
        for types, kind in _KINDS:
            if isinstance(error, types):
                return kind
        if isinstance(error, IncorrectParameterError) and model.INTERNAL_PREFIX in str(error):
            return "reserved name"
        return type(error).__name__ if isinstance(error, BookstandError) else None

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def sleep(self, millis: int) -> None:
        self.clock.millis += millis

    def quorum(self, number: int) -> None:
        self.no_new_ledgers = number > 1

    def break_cursor_ledger(self, name: str) -> None:
        writer = self.cursors[name]._log.writer
        if writer is not None:
            writer.close()

    def bump_cursor_info(self, name: str) -> None:
        nodes, path = self._record(name)
        nodes.put(path, nodes.get(path)[0])
        self.break_cursor_ledger(name)  # the record is not looked at before the next ledger

    def _record(self, name: str) -> tuple[Any, str]:
        from bookstand.managed_ledger.topic_name import cursor_node_of
        from bookstand.storage.metadata_store import Nodes

        client = self._need_store()._client
        return Nodes(client.storage, client.check_usable, client.check_writable), cursor_node_of(TOPIC, name)

    def plant_ledger(self, name: str, entries: list[Planted], delete: bool) -> None:
        from bookstand.managed_ledger import records

        store = self._need_store()
        with store.create_ledger() as ledger:
            for entry in entries:
                ledger.append(entry.encoded())
        nodes, path = self._record(name)
        info = records.decode_cursor_info(nodes.get(path)[0])
        info = info._replace(cursor_ledger_id=ledger.id, ranges=(), batches=())
        nodes.put(path, records.encode_cursor_info(info))
        if delete:
            store.delete_ledger(ledger.id)

    def plant_record(self, name: str, planted: Planted, cursor_properties: dict[str, str] | None) -> None:
        from bookstand.managed_ledger import records

        nodes, path = self._record(name)
        info = records.decode_cursor_info(nodes.get(path)[0])._replace(
            cursor_ledger_id=-1,
            mark_delete=planted.mark_delete,
            ranges=planted.counting,
            batches=planted.batches,
            properties=planted.properties,
        )
        if cursor_properties is not None:
            info = info._replace(cursor_properties=tuple(cursor_properties.items()))
        nodes.put(path, records.encode_cursor_info(info))

    def end(self) -> None:
        try:
            self.crash()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


_KINDS: tuple[tuple[Any, str], ...] = (
    (MarkDeletingMarkedPositionError, "marked already"),
    (NoSuchPositionError, "no such position"),
    (MetadataVersionError | LedgerFencedError, "taken over"),
    (NotEnoughBookiesError, "not written"),
)


def method(owner: Any, *names: str) -> Callable[..., Any]:
    """The first of these methods that there is."""
    for name in names:
        found = getattr(owner, name, None)
        if callable(found):
            return found  # type: ignore[no-any-return]
    raise MissingError(f"{type(owner).__name__} has no {' or '.join(names)}")


def prefixed(payloads: Iterable[int], size: int) -> list[bytes]:
    """The recordings' payloads."""
    return [b"e%d" % number + bytes(max(0, size - len(b"e%d" % number))) for number in payloads]
