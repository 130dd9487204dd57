"""Names of the sub-databases, and the bytes of their keys.

=========  ==================================================  =====================================================
database   key                                                 value
=========  ==================================================  =====================================================
meta       a name (below)                                      sealed record (:mod:`bookstand.storage.record`)
entries    ledger id, entry id: two big-endian uint64          the stored entry (:mod:`bookstand.storage.entry`)
ledgers    ledger id: big-endian uint64                        sealed: version int64, then LedgerMetadataFormat bytes
state      ledger id: big-endian uint64                        sealed ledger state (:mod:`bookstand.storage.state`)
nodes      the path, UTF-8                                     sealed: version int64, then the value
=========  ==================================================  =====================================================

Ids are never negative, so that the order of the bytes is the order of the numbers.
"""

from __future__ import annotations

import struct

ENTRY_KEY = struct.Struct(">QQ")
LEDGER_KEY = struct.Struct(">Q")

DATABASES = (b"meta", b"entries", b"ledgers", b"state", b"nodes")
META, ENTRIES, LEDGERS, STATE, NODES = DATABASES

META_FORMAT = b"format"
META_STORE_ID = b"store-id"
META_NEXT_LEDGER = b"next-ledger-id"
META_NEXT_INCARNATION = b"next-incarnation"
META_RECORDS = (META_FORMAT, META_STORE_ID, META_NEXT_LEDGER, META_NEXT_INCARNATION)
# One for each deleted ledger whose entries are not collected yet, in the order in which they were deleted.
META_DELETED = b"deleted-"
_DELETION = struct.Struct(">QQ")

# Version of everything this page and the modules it names describe. Its record is not sealed: whatever a later format
# changes, this one must stay able to read that it is later.
FORMAT_VERSION = 1
FORMAT = struct.Struct(">I")


def deletion(deleted_at: int, ledger_id: int) -> bytes:
    return META_DELETED + _DELETION.pack(deleted_at, ledger_id)


def parse_deletion(key: bytes) -> tuple[int, int]:
    """(deleted at, ledger id)."""
    deleted_at, ledger_id = _DELETION.unpack_from(key, len(META_DELETED))
    return deleted_at, ledger_id


MAX_LEDGER_ID = (1 << 63) - 1
MAX_ENTRY_ID = (1 << 63) - 1
