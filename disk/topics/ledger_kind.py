"""Classification of ledgers by the labels in their metadata, or without metadata by their entries.

Entries distinguish topics, cursors, buckets, schemas and compacted topics. Entries of cursors and buckets name the
ledgers of their topic, which shows the ledgers that belong together. Entries contain no names, and do not show which of
several cursors or buckets is current: superseded ones look the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from bookstand.cursor.format import chunked_snapshot, position_info, record
from bookstand.delivery.tracker.bucket.key import read_labels
from bookstand.delivery.tracker.bucket.snapshot.codec import SnapshotDamagedError, SnapshotMetadata, decode_metadata
from bookstand.errors import BookstandError, MalformedMessageError
from bookstand.managed_ledger.message.format import Message
from bookstand.managed_ledger.topic_name import cursor_of, parts_of
from bookstand.proto.ack_messages import read_position
from bookstand.proto.schema_codec import BOOL, BYTES_FIELD, INT32, INT64, STRICT_TEXT, Field, FieldType, MessageSchema
from bookstand.proto.wire_format import BYTES, VARINT, WireError, fields, tag

if TYPE_CHECKING:
    from bookstand.disk.disks import DiskLedger, Disks

TOPIC, CURSOR, BUCKET, SCHEMA, COMPACTED, OTHER, EMPTY = (
    "topic",
    "cursor",
    "bucket",
    "schema",
    "compacted",
    "other",
    "empty",
)

_APPLICATION, _COMPONENT = "application", "component"
_PULSAR, _OURS = b"pulsar", b"bookstand"
_MANAGED_LEDGER, _CURSOR_LABEL = "pulsar/managed-ledger", "pulsar/cursor"
_OUR_TOPIC, _OUR_CURSOR = "bookstand/topic", "bookstand/cursor"
_SCHEMA_ID, _COMPACTED_TOPIC = "pulsar/schemaId", "pulsar/compactedTopic"


class LedgerKind(NamedTuple):
    """Kind of a ledger. ``topic`` and ``cursor`` are names from its labels, or empty."""

    kind: str
    topic: str = ""
    cursor: str = ""
    labelled: bool = False


def content_of(ledger: DiskLedger, exists: Callable[[int], bool]) -> LedgerKind:
    """Classify a ledger by its labels or, if they are insufficient, by its entries. ``exists`` checks a ledger id."""
    labelled = None if ledger.metadata is None else by_labels(ledger.metadata.custom_metadata)
    return labelled or LedgerKind(by_entries(ledger, exists))


# -- by labels -------------------------------------------------------------------------------------------------------


def by_labels(custom: Mapping[str, bytes]) -> LedgerKind | None:
    """Classify a ledger by its labels; return None if they are insufficient."""

    def text(label: str) -> str:
        return custom.get(label, b"").decode(errors="replace")

    if custom.get(_APPLICATION) == _OURS:
        return LedgerKind(text(_COMPONENT) or OTHER, text(_OUR_TOPIC), text(_OUR_CURSOR), True)
    if custom.get(_APPLICATION) != _PULSAR:
        return None
    component = text(_COMPONENT)
    if component == "managed-ledger":
        topic = _full_name(text(_MANAGED_LEDGER))
        if _CURSOR_LABEL in custom:
            return LedgerKind(CURSOR, topic, cursor_of(text(_CURSOR_LABEL)), True)
        return LedgerKind(TOPIC, topic, labelled=True)
    bucket = read_labels(custom)
    if bucket is not None:
        return LedgerKind(BUCKET, _full_name(bucket.topic), bucket.cursor, True)
    if component == "schema":
        return LedgerKind(SCHEMA, text(_SCHEMA_ID), labelled=True)
    if component == "compacted-ledger":
        return LedgerKind(COMPACTED, text(_COMPACTED_TOPIC), labelled=True)
    return None


def _full_name(managed_ledger: str) -> str:
    try:
        tenant, namespace, topic = parts_of(managed_ledger)
    except BookstandError:
        return managed_ledger
    return f"persistent://{tenant}/{namespace}/{topic}" if tenant else topic


# -- by entries ------------------------------------------------------------------------------------------------------

# Number of entries to examine, in case the first ones are damaged.
_TRIED = 3


def by_entries(ledger: DiskLedger, exists: Callable[[int], bool]) -> str:
    """Classify a ledger without its metadata."""
    kind = EMPTY
    for entry in islice(ledger.entries(beyond=True), _TRIED):
        kind = _kind_of(entry.payload, entry.entry_id, exists)
        if kind != OTHER:
            return kind
    if kind == OTHER and _ends_with_chunks(ledger, exists):
        return CURSOR
    return kind


def _ends_with_chunks(ledger: DiskLedger, exists: Callable[[int], bool]) -> bool:
    """Return True if the last entry completes a chunked snapshot; a single chunk cannot be recognized."""
    last = ledger.extent.last_entry
    for entry in ledger.entries(last, last) if last >= 0 else ():
        return any(map(exists, _named_by_chunks(ledger, entry.entry_id, entry.payload)))
    return False


def _kind_of(data: bytes, entry_id: int, exists: Callable[[int], bool]) -> str:
    if _is_message(data):
        return TOPIC
    if _is_compacted(data):
        return COMPACTED
    if _named_by_record(data) or any(map(exists, _named_by_snapshot(data))):
        return CURSOR
    if entry_id == 0 and _named_by_bucket(data):
        return BUCKET
    return SCHEMA if _is_schema(data) else OTHER


_MAGICS = (b"\x0e\x01", b"\x0e\x02")


def _is_message(data: bytes) -> bool:
    if not data.startswith(_MAGICS):
        return False
    try:
        return bool(Message(data).metadata)
    except MalformedMessageError:
        return False


# Entry of a compacted ledger: size, MessageIdData, size, the topic's entry.
_U32 = struct.Struct(">I")


def compacted_message(data: bytes) -> bytes | None:
    """Return the topic's entry in an entry of a compacted ledger; None for any other data."""
    at = 0
    part = b""
    for _ in range(2):
        if len(data) < at + _U32.size:
            return None
        (size,) = _U32.unpack_from(data, at)
        at += _U32.size
        part = data[at : at + size]
        at += size
    return part if at == len(data) else None


def _is_compacted(data: bytes) -> bool:
    message = compacted_message(data)
    return message is not None and _is_message(message)


_SNAPSHOT_TAGS = {tag(number, VARINT) for number in (1, 2)} | {tag(number, BYTES) for number in (3, 4, 5, 6)}


def _named_by_snapshot(data: bytes) -> set[int]:
    """Return the ledgers in a full snapshot of a cursor; empty for any other data."""
    try:
        # Most other data is rejected at its first field.
        if not all(key in _SNAPSHOT_TAGS for key, _, _ in fields(data)):
            return set()
        read = position_info.read(data)
    except (BookstandError, WireError):
        return set()
    state = read.state
    return {state.mark_delete.ledger_id, *state.acked, *(at.ledger_id for at in state.batches), *read.unsplit}


def snapshots(ledger: DiskLedger) -> Iterator[set[int]]:
    """Yield the ledgers in each readable state of a cursor's ledger, in either form."""
    for entry in ledger.entries(beyond=True):
        data = entry.payload
        if record.is_ours(data):
            named = _named_by_record(data)
        else:
            named = _named_by_snapshot(data) or _named_by_chunks(ledger, entry.entry_id, data)
        if named:
            yield named


def _named_by_record(data: bytes) -> set[int]:
    try:
        identity = record.identify(data)
        named = {record.read_position(data)[0].ledger_id}
    except (record.RecordError, WireError):
        return set()
    return named | {identity.user_ledger} if identity.kind == record.PAGE else named


def _named_by_chunks(ledger: DiskLedger, entry_id: int, footer: bytes) -> set[int]:
    def read(wanted: int) -> bytes:
        for entry in ledger.entries(wanted, wanted, beyond=True):
            return entry.payload
        return b""

    try:
        if chunked_snapshot.footer_of(footer) is None:
            return set()
        return _named_by_snapshot(chunked_snapshot.stored_at(read, entry_id).data)
    except BookstandError:
        return set()


def _named_by_bucket(data: bytes) -> set[int]:
    """Return the ledgers of a bucket's messages, from its metadata; empty for any other data."""
    try:
        segments = decode_metadata(data).metadata_list
        return set(SnapshotMetadata(segments).bitmaps())
    except SnapshotDamagedError:
        return set()


# Pulsar's record of a schema. The index has all earlier versions and their positions.
_SCHEMA_INFO = MessageSchema(
    {
        1: Field("schema_id", STRICT_TEXT, required=True),
        2: Field("user", STRICT_TEXT),
        3: Field("type", INT32),
        4: Field("schema", BYTES_FIELD),
        5: Field("timestamp", INT64, required=True),
        6: Field("is_deleted", BOOL),
        7: Field("properties", BYTES_FIELD, many=True),
    }
)
_SCHEMA_VERSION = MessageSchema(
    {
        1: Field("version", INT64, required=True),
        2: Field("position", FieldType(BYTES, read_position, bytes), required=True),
        3: Field("hash", BYTES_FIELD, required=True),
    }
)
_SCHEMA_ENTRY = MessageSchema(
    {
        2: Field("info", FieldType(BYTES, _SCHEMA_INFO.read, bytes), required=True),
        5: Field("versions", FieldType(BYTES, _SCHEMA_VERSION.read, bytes), many=True),
    }
)


def _is_schema(data: bytes) -> bool:
    try:
        return bool(_SCHEMA_ENTRY.read(data)["versions"])
    except WireError:
        return False


# -- what belongs together -------------------------------------------------------------------------------------------


class Group(NamedTuple):
    """Ledgers of one topic, each kind sorted by id, which is the order of creation. The topic's name is unknown, and
    other groups may belong to the same topic."""

    ledgers: list[int]
    cursors: list[int]
    buckets: list[int]


def groups(disks: Disks) -> list[Group]:
    """Group the ledgers of each topic by their entries alone. A topic's ledger that no cursor or bucket connects with
    another forms its own group, so a topic may have several groups."""
    known = set(disks.ledger_ids)
    kinds: dict[int, str] = {}
    together = _Sets()
    names: dict[int, set[int]] = {}
    for ledger_id in disks.ledger_ids:
        ledger = disks.ledger(ledger_id)
        kind = kinds[ledger_id] = by_entries(ledger, known.__contains__)
        if kind == CURSOR:
            names[ledger_id] = {named for some in snapshots(ledger) for named in some if named >= 0}
        elif kind == BUCKET:
            names[ledger_id] = _named_by_bucket(next(iter(ledger.entries(0, 0, beyond=True))).payload)
    topics = {ledger_id for ledger_id, kind in kinds.items() if kind == TOPIC}
    for ledger_id, named in names.items():
        # A named ledger of another kind is a coincidence or damage.
        together.join([ledger_id, *(one for one in named if kinds.get(one, TOPIC) in (TOPIC, EMPTY))])
    found: dict[int, Group] = {}
    for ledger_id in sorted({*topics, *names}):
        group = found.setdefault(together.root(ledger_id), Group([], [], []))
        kind = kinds[ledger_id]
        (group.ledgers if kind == TOPIC else group.cursors if kind == CURSOR else group.buckets).append(ledger_id)
    return list(found.values())


class _Sets:
    """Disjoint sets of numbers."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def root(self, number: int) -> int:
        path = []
        while (parent := self._parents.get(number, number)) != number:
            path.append(number)
            number = parent
        for one in path:
            self._parents[one] = number
        return number

    def join(self, numbers: Iterable[int]) -> None:
        roots = sorted({self.root(number) for number in numbers})
        for root in roots[1:]:
            self._parents[root] = roots[0]
