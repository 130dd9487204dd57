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

# Version of everything this page and the modules it names describe. Its record is not sealed: whatever a later format
# changes, this one must stay able to read that it is later.
FORMAT_VERSION = 1
FORMAT = struct.Struct(">I")

MAX_LEDGER_ID = (1 << 63) - 1
MAX_ENTRY_ID = (1 << 63) - 1
