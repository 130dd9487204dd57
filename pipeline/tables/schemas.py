"""Schemas of the tables, with descriptions. A test checks that ``docs/spark.md`` has the same descriptions.

Times are int64, in milliseconds since 1970, in columns whose names end in ``_ms``. Ids and counts are int64, like
Java's ``long``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from bookstand.errors import IncorrectParameterError
from bookstand.pipeline.tables.arrow import pa

ERROR = "error"
PLACE = "place"

# Arrow types by Spark SQL type.
TYPES: dict[str, pa.DataType] = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "array<string>": pa.list_(pa.string()),
    "array<int>": pa.list_(pa.int32()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "map<string,bigint>": pa.map_(pa.string(), pa.int64()),
    "map<string,binary>": pa.map_(pa.string(), pa.binary()),
}


class Column(NamedTuple):
    name: str
    type: str
    meaning: str

    @property
    def arrow(self) -> pa.DataType:
        return TYPES[self.type]


class Table:
    """Schema of a table. The first column is always the place, and the last is the error."""

    def __init__(self, name: str, meaning: str, *columns: Column) -> None:
        self.name = name
        self.meaning = meaning
        self.columns = (
            Column(PLACE, "string", "path of the store, or of the bookies' folders, joined by commas"),
            *columns,
            Column(ERROR, "string", "what is damaged: file, ledger, entry and what is wrong; null in whole rows"),
        )
        self._by_name = {column.name: column for column in self.columns}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    @cached_property
    def schema(self) -> pa.Schema:
        return self.schema_of(self.names)

    def schema_of(self, names: Iterable[str]) -> pa.Schema:
        return pa.schema([(name, self[name].arrow) for name in names])

    def __getitem__(self, name: str) -> Column:
        try:
            return self._by_name[name]
        except KeyError:
            raise IncorrectParameterError(
                f"table {self.name} has no column {name!r}, but {', '.join(self._by_name)}"
            ) from None

    def chosen(self, names: Sequence[str] | None) -> tuple[str, ...]:
        """Validate names of columns. None selects all columns."""
        if names is None:
            return self.names
        if not names or len(set(names)) < len(names):
            raise IncorrectParameterError(f"columns are named once each, and one at least, not {list(names)}")
        return tuple(self[name].name for name in names)

    def ddl(self, names: Iterable[str] | None = None) -> str:
        """Schema in Spark's DDL format."""
        return ", ".join(f"`{name}` {self[name].type}" for name in names or self.names)


_LEDGER = Column("ledger_id", "bigint", "the ledger")
_ENTRY = Column("entry_id", "bigint", "the entry of that ledger")
_TOPIC = Column("topic", "string", "full name of the topic")
_CURSOR = Column("cursor", "string", "name of the cursor, which is that of the subscription")

LEDGERS = Table(
    "ledgers",
    "one row for each ledger",
    _LEDGER,
    Column("kind", "string", "what is in it: topic, cursor, bucket, schema, compacted, other or empty"),
    Column("topic", "string", "full name of the topic that it is of, where labels tell it"),
    Column("cursor", "string", "name of the cursor that it is of, where labels tell it"),
    Column("state", "string", "OPEN, IN_RECOVERY or CLOSED; UNKNOWN without metadata, DELETED where entries are left"),
    Column("entries", "bigint", "how many entries there are up to its end"),
    Column("bytes", "bigint", "bytes of all payloads up to its end"),
    Column("last_entry_id", "bigint", "its end: by its metadata if it is closed, else as recovery would find it; -1"),
    Column("lac", "bigint", "last confirmed entry as a client sees it that opens the ledger without recovery; -1"),
    Column("ensemble_size", "int", "over how many bookies its entries are spread"),
    Column("write_quorum", "int", "how many copies of an entry are written"),
    Column("ack_quorum", "int", "how many copies an acknowledgment takes"),
    Column("bookies", "array<string>", "the bookies of its last ensemble"),
    Column("digest", "string", "crc32c, crc32, hmac or dummy"),
    Column("created_ms", "bigint", "when it was created"),
    Column("fenced", "boolean", "whether it is known to be fenced"),
    Column("custom_metadata", "map<string,binary>", "what its creator has written into its metadata"),
    Column("missing", "string", "ids of entries up to its end that are nowhere, as ranges"),
    Column("doubts", "array<string>", "what disks do not decide, or say otherwise than the metadata"),
)

ENTRIES = Table(
    "entries",
    "one row for each entry up to the end of its ledger",
    _LEDGER,
    _ENTRY,
    Column("lac", "bigint", "the writer's last-add-confirmed when it was sent"),
    Column("cumulative_length", "bigint", "bytes of the ledger's payloads up to and with this one"),
    Column("size", "bigint", "bytes of the payload"),
    Column("checked", "boolean", "whether the digest is right; false: there was none to check by"),
    Column("payload", "binary", "what was appended"),
)

CURSORS = Table(
    "cursors",
    "one row for each cursor of each topic",
    _TOPIC,
    _CURSOR,
    Column("mark_delete_ledger_id", "bigint", "ledger of the mark-delete position, up to which all is acknowledged"),
    Column("mark_delete_entry_id", "bigint", "entry of the mark-delete position; -1: before the ledger's first"),
    Column("backlog", "bigint", "entries of the topic that are not acknowledged as a whole"),
    Column("acked_entries", "bigint", "entries behind the mark-delete position that are acknowledged"),
    Column("acked_ledgers", "bigint", "how many ledgers these are in"),
    Column("partial_batches", "bigint", "batches that are acknowledged in part"),
    Column("properties", "map<string,bigint>", "numbers that belong to the position, as those of producers"),
    Column("cursor_properties", "map<string,string>", "what the subscription was given, and its buckets"),
    Column("source", "string", "where the state was found: marker, snapshot or record"),
    Column("cursor_ledger_id", "bigint", "the cursor's ledger; -1: all is in its record"),
    Column("source_entry_id", "bigint", "the entry of that ledger that ends the state; -1: the record"),
)

ACKS = Table(
    "acks",
    "one row for each run of single acknowledgments behind the mark-delete position, and for each batch that is "
    "acknowledged in part",
    _TOPIC,
    _CURSOR,
    Column("ledger_id", "bigint", "the ledger of the topic"),
    Column("first_entry_id", "bigint", "the first entry of the run, or the batch"),
    Column("last_entry_id", "bigint", "the last one, included"),
    Column("unacked_indexes", "array<int>", "of a batch, the messages that are not acknowledged; null: all are"),
)

DELAYED_BUCKETS = Table(
    "delayed_buckets",
    "one row for each bucket of delayed messages that a cursor names",
    _TOPIC,
    _CURSOR,
    Column("bucket", "string", "the name of the cursor's property"),
    Column("ledger_id", "bigint", "the ledger that its snapshot is in"),
    Column("first_ledger_id", "bigint", "first ledger of the topic that it is about"),
    Column("last_ledger_id", "bigint", "last ledger of the topic that it is about"),
    Column("segments", "bigint", "how many segments it has"),
    Column("messages", "bigint", "how many messages it was sealed with, by its bitmaps"),
    Column("first_due_ms", "bigint", "when the first of them is due"),
    Column("last_due_ms", "bigint", "when the last of them is due"),
)

DELAYED_INDEX = Table(
    "delayed_index",
    "one row for each delayed message that a subscription has not acknowledged; two, where a broker that died in the "
    "middle of merging left it in two buckets",
    _TOPIC,
    _CURSOR,
    Column("bucket_ledger_id", "bigint", "the ledger of the bucket that has it; null: the topic alone, or rescheduled"),
    Column("segment", "bigint", "the bucket's segment, counted from 1, which is the entry of that ledger"),
    Column("deliver_at_ms", "bigint", "when it is due, by the time that it was rescheduled to or else its own"),
    Column("ledger_id", "bigint", "ledger of the message"),
    Column("entry_id", "bigint", "entry of the message"),
)

MESSAGES = Table(
    "messages",
    "one row for each message of each topic; those of a batch one by one, chunks as they lie there",
    _TOPIC,
    _LEDGER,
    _ENTRY,
    Column("batch_index", "int", "its place in its batch; null: it was sent by itself"),
    Column("batch_size", "int", "how many messages the entry says that it holds"),
    Column("producer", "string", "name of the producer"),
    Column("sequence_id", "bigint", "the producer's number for it"),
    Column("publish_ms", "bigint", "when it was sent"),
    Column("event_ms", "bigint", "the time that its sender gave it"),
    Column("deliver_at_ms", "bigint", "when it is due; null: at once"),
    Column("key", "string", "its key"),
    Column("ordering_key", "binary", "its ordering key"),
    Column("properties", "map<string,string>", "its properties"),
    Column("compression", "string", "the codec of the stored payload: NONE, LZ4, ZLIB, ZSTD or SNAPPY"),
    Column("null_value", "boolean", "whether it was sent without a value"),
    Column("encrypted", "boolean", "whether it is encrypted; then the payload is as it is stored"),
    Column("chunk_uuid", "string", "which chunks are of one message; null: it is none"),
    Column("chunk_id", "int", "the chunk's place; the payload is as it is stored"),
    Column("chunks", "int", "how many chunks the message has"),
    Column("schema_version", "binary", "version of the schema"),
    Column("payload_size", "bigint", "bytes of the payload"),
    Column("payload", "binary", "the value, unpacked"),
)

NODES = Table(
    "nodes",
    "one row for each node of the metadata",
    Column("path", "string", "path of the node"),
    Column("value", "binary", "its bytes"),
    Column("version", "bigint", "how often it was changed"),
    Column("created_ms", "bigint", "when it was created; null where nothing tells"),
    Column("changed_ms", "bigint", "when it was changed; null where nothing tells"),
)

TABLES = {
    table.name: table for table in (LEDGERS, ENTRIES, CURSORS, ACKS, DELAYED_BUCKETS, DELAYED_INDEX, MESSAGES, NODES)
}


def table_of(name: str) -> Table:
    try:
        return TABLES[name]
    except KeyError:
        raise IncorrectParameterError(f"there is no table {name!r}, but {', '.join(TABLES)}") from None
