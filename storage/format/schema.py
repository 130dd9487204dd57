"""Names of the sub-databases, and the encoding of their keys.

Ids are not negative, so byte order is numeric order. Ids in ``copies`` may be negative, because bookies accept any id;
no code relies on their order.
"""

from __future__ import annotations

from bookstand.errors import StoreDamagedError
from bookstand.proto.struct_layout import Layout

KEY_OF_ENTRY = Layout("the key of an entry", ("ledger id", "Q", ""), ("entry id", "Q", ""))
KEY_OF_LEDGER = Layout("the key of a ledger", ("ledger id", "Q", ""))
KEY_OF_COPIES = Layout("the key of a bookie's ledger", ("ledger id", "q", ""), ("bookie", "I", "its number"))
KEY_OF_COPY = Layout(
    "the key of a bookie's entry", ("ledger id", "q", ""), ("bookie", "I", "its number"), ("entry id", "q", "")
)
ENTRY_KEY = KEY_OF_ENTRY.struct
LEDGER_KEY = KEY_OF_LEDGER.struct
COPY_LEDGER = KEY_OF_COPIES.struct
COPY_ENTRY = KEY_OF_COPY.struct
MAX_LEDGER_ID = (1 << 63) - 1
MAX_ENTRY_ID = (1 << 63) - 1

# Name, key and value of each sub-database.
TABLES = (
    (b"meta", "a name", "a sealed record; that of the format's version is not sealed"),
    (b"entries", KEY_OF_ENTRY.title, "a stored entry"),
    (b"ledgers", KEY_OF_LEDGER.title, "sealed: its version, and BookKeeper's LedgerMetadataFormat"),
    (b"state", KEY_OF_LEDGER.title, "sealed: the state of a ledger"),
    (b"nodes", "the path in UTF-8", "sealed: its version, and the value"),
    (b"copies", f"{KEY_OF_COPIES.title}, or {KEY_OF_COPY.title}", "sealed: its state at that bookie; or an override"),
)
DATABASES = tuple(name for name, _, _ in TABLES)
META, ENTRIES, LEDGERS, STATE, NODES, COPIES = DATABASES

META_FORMAT = b"format"
META_STORE_ID = b"store-id"
META_NEXT_LEDGER = b"next-ledger-id"
META_NEXT_INCARNATION = b"next-incarnation"
# XOR of the checksums of all records of a sub-database, which reveals a page replaced by an older version of itself.
META_SUMS = {LEDGERS: b"sum-of-ledgers", NODES: b"sum-of-nodes"}
META_RECORDS = (META_FORMAT, META_STORE_ID, META_NEXT_LEDGER, META_NEXT_INCARNATION, *META_SUMS.values())
# State of the ZooKeeper server beside nodes and ledgers (bookstand.server.zookeeper.persistent_records): one record of
# the server, one per session, and one per znode for everything but its value, under the znode's path. The path's first
# slash is replaced by a byte with which no path begins, so the keys of an unreachable page show whether it belongs to
# these or to nodes.
META_SERVER = b"zookeeper"
META_SESSION = b"session-"
META_ZNODE = b":"
# Change feed for the server (bookstand.storage.commit.change_feed): the number of changes, and the last of them.
META_CHANGE_FEED = b"news"
CHANGE_FEED_LENGTH = 1_000
COUNTER_BYTES = 8
# One for each deleted ledger whose entries are not collected yet, ordered by time of deletion.
META_DELETED = b"deleted-"
DELETION = Layout(
    "the key of a deletion, in `meta`",
    ("name", f"{len(META_DELETED)}s", f"`{META_DELETED.decode()}`"),
    ("deleted at", "Q", "milliseconds since 1970"),
    ("ledger id", "Q", ""),
)
_DELETION = DELETION.struct
# The last writers and the number of their commits (bookstand.storage.commit.commit_marks).
META_WRITERS = b"writers"
# Prefixes of all keys of servers in `meta`.
META_OF_SERVERS = (META_SERVER, META_SESSION, META_ZNODE, META_CHANGE_FEED)

# Version of everything this module and the modules it names describe. Its record is not sealed, so that this version
# can recognize later formats, whatever they change.
FORMAT_VERSION = 2
VERSION = Layout(
    "the format's version, in `meta`", ("version", "I", f"{FORMAT_VERSION}; a store of any other version is refused")
)
FORMAT = VERSION.struct


def ledger_of(database: bytes, key: bytes) -> int:
    if len(key) == LEDGER_KEY.size and (ledger_id := int.from_bytes(key, "big")) <= MAX_LEDGER_ID:
        return ledger_id
    raise _impossible(database, key)


def entry_of(key: bytes) -> tuple[int, int]:
    """Return (ledger id, entry id) of a key of ``entries``."""
    if len(key) == ENTRY_KEY.size:
        ledger_id, entry_id = ENTRY_KEY.unpack(key)
        if ledger_id <= MAX_LEDGER_ID and entry_id <= MAX_ENTRY_ID:
            return ledger_id, entry_id
    raise _impossible(ENTRIES, key)


def path_of(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise _impossible(NODES, key) from None


def znode_key(path: str) -> bytes:
    return META_ZNODE + path.encode()[1:]


def znode_path(key: bytes) -> str:
    return path_of(b"/" + key[1:])


def child_prefix(database: bytes, path: str) -> bytes:
    """Common prefix of the keys below a path, of nodes or of znodes in ``meta``."""
    below = path.rstrip("/") + "/"
    return znode_key(below) if database == META else below.encode()


def copy_name(key: bytes) -> str:
    """Name of a key of ``copies``, for messages."""
    if len(key) == COPY_LEDGER.size:
        ledger_id, bookie = COPY_LEDGER.unpack(key)
        return f"state of ledger {ledger_id} at bookie {bookie}"
    if len(key) == COPY_ENTRY.size:
        ledger_id, bookie, entry_id = COPY_ENTRY.unpack(key)
        return f"entry {ledger_id}:{entry_id} of bookie {bookie}"
    raise _impossible(COPIES, key)


def _impossible(database: bytes, key: bytes) -> StoreDamagedError:
    return StoreDamagedError(f"{database.decode()} has an invalid key: {key.hex()}")


def deletion_key(deleted_at: int, ledger_id: int) -> bytes:
    return _DELETION.pack(META_DELETED, deleted_at, ledger_id)


def parse_deletion(key: bytes) -> tuple[int, int]:
    """Return (time of deletion, ledger id)."""
    if len(key) != _DELETION.size:
        raise _impossible(META, key)
    _, deleted_at, ledger_id = _DELETION.unpack(key)
    return deleted_at, ledger_id
