"""Names of the sub-databases, and the bytes of their keys.

Ids are never negative, so that the order of the bytes is the order of the numbers. Those of ``copies`` may be, for
bookies take what they are sent; nothing relies on their order.
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

# Each with its key and its value.
TABLES = (
    (b"meta", "a name", "a sealed record; that of the format's version is not sealed"),
    (b"entries", KEY_OF_ENTRY.title, "a stored entry"),
    (b"ledgers", KEY_OF_LEDGER.title, "sealed: its version, and BookKeeper's LedgerMetadataFormat"),
    (b"state", KEY_OF_LEDGER.title, "sealed: the state of a ledger"),
    (b"nodes", "the path in UTF-8", "sealed: its version, and the value"),
    (b"copies", f"{KEY_OF_COPIES.title}, or {KEY_OF_COPY.title}", "sealed: what that bookie of a server knows of it"),
)
DATABASES = tuple(name for name, _, _ in TABLES)
META, ENTRIES, LEDGERS, STATE, NODES, COPIES = DATABASES

META_FORMAT = b"format"
META_STORE_ID = b"store-id"
META_NEXT_LEDGER = b"next-ledger-id"
META_NEXT_INCARNATION = b"next-incarnation"
# The XOR of the seals of all records of a sub-database: a page of it that is an old one of its own shows.
META_SUMS = {LEDGERS: b"sum-of-ledgers", NODES: b"sum-of-nodes"}
META_RECORDS = (META_FORMAT, META_STORE_ID, META_NEXT_LEDGER, META_NEXT_INCARNATION, *META_SUMS.values())
# What the ZooKeeper protocol's server keeps beside the nodes and ledgers themselves
# (bookstand.server.zookeeper.persistent_records): one of its own, one for each session, and what is known of each
# znode apart from its value, under the znode's path. In place of the path's first slash stands a byte with which no
# path begins: a page that nothing leads to any more shows by its keys whether it is one of these or one of nodes.
META_SERVER = b"zookeeper"
META_SESSION = b"session-"
META_ZNODE = b":"
# What others have changed, for the server to find (bookstand.storage.commit.change_feed): how many changes, and the
# last of them.
META_CHANGE_FEED = b"news"
CHANGE_FEED_LENGTH = 1_000
# What the next ids and incarnations are stored in.
COUNTER_BYTES = 8
# One for each deleted ledger whose entries are not collected yet, in the order in which they were deleted.
META_DELETED = b"deleted-"
DELETION = Layout(
    "the key of a deletion, in `meta`",
    ("name", f"{len(META_DELETED)}s", f"`{META_DELETED.decode()}`"),
    ("deleted at", "Q", "milliseconds since 1970"),
    ("ledger id", "Q", ""),
)
_DELETION = DELETION.struct
# The last writers and how many commits each has tried (bookstand.storage.commit.commit_marks).
META_WRITERS = b"writers"
# What else a server may have in `meta`: all keys that begin so.
META_OF_SERVERS = (META_SERVER, META_SESSION, META_ZNODE, META_CHANGE_FEED)

# Version of everything this page and the modules it names describe. Its record is not sealed: whatever a later format
# changes, this one must stay able to read that it is later.
FORMAT_VERSION = 2
VERSION = Layout(
    "the format's version, in `meta`", ("version", "I", f"{FORMAT_VERSION}; a store of any other version is refused")
)
FORMAT = VERSION.struct


def ledger_of(database: bytes, key: bytes) -> int:
    """The ledger id that a key of ``ledgers`` or ``state`` stands for."""
    if len(key) == LEDGER_KEY.size and (ledger_id := int.from_bytes(key, "big")) <= MAX_LEDGER_ID:
        return ledger_id
    raise _impossible(database, key)


def entry_of(key: bytes) -> tuple[int, int]:
    """(ledger id, entry id) of a key of ``entries``."""
    if len(key) == ENTRY_KEY.size:
        ledger_id, entry_id = ENTRY_KEY.unpack(key)
        if ledger_id <= MAX_LEDGER_ID and entry_id <= MAX_ENTRY_ID:
            return ledger_id, entry_id
    raise _impossible(ENTRIES, key)


def path_of(key: bytes) -> str:
    """The path that a key of ``nodes`` stands for."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise _impossible(NODES, key) from None


def znode_key(path: str) -> bytes:
    return META_ZNODE + path.encode()[1:]


def znode_path(key: bytes) -> str:
    return path_of(b"/" + key[1:])


def child_prefix(database: bytes, path: str) -> bytes:
    """With what the keys begin of all that is below a path: of nodes, or of znodes in ``meta``."""
    below = path.rstrip("/") + "/"
    return znode_key(below) if database == META else below.encode()


def copy_name(key: bytes) -> str:
    """What a key of ``copies`` stands for, in words."""
    if len(key) == COPY_LEDGER.size:
        ledger_id, bookie = COPY_LEDGER.unpack(key)
        return f"what bookie {bookie} knows of ledger {ledger_id}"
    if len(key) == COPY_ENTRY.size:
        ledger_id, bookie, entry_id = COPY_ENTRY.unpack(key)
        return f"entry {ledger_id}:{entry_id} of bookie {bookie}"
    raise _impossible(COPIES, key)


def _impossible(database: bytes, key: bytes) -> StoreDamagedError:
    return StoreDamagedError(f"{database.decode()} has a key that can be none: {key.hex()}")


def deletion_key(deleted_at: int, ledger_id: int) -> bytes:
    return _DELETION.pack(META_DELETED, deleted_at, ledger_id)


def parse_deletion(key: bytes) -> tuple[int, int]:
    """(deleted at, ledger id)."""
    if len(key) != _DELETION.size:
        raise _impossible(META, key)
    _, deleted_at, ledger_id = _DELETION.unpack(key)
    return deleted_at, ledger_id
