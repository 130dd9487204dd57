"""Reference model of BookKeeper's ledgers in plain dictionaries and lists.

Bookstand is compared with this model, which is also an executable specification of BookKeeper's client. It is neither
fast nor durable nor concurrent: operations take effect immediately, except those that are held (``Cluster.hold``).

The modules, each of which only uses those before it:

* ``values.py``: codes and results.
* ``servers.py``: ``Bookie``, the storage of one ledger: entries, the fence, and the highest LAC it received.
  ``Metadata``, the record of one ledger in the metadata service, with the version for compare-and-set.
  ``Servers``, both of these for all ledgers, the watches, and the faults.
* ``session.py``: ``Session``, the part of a client that open ledgers use.
* ``handle.py``, ``reader.py``, ``writer.py``: ``Handle`` and its subclasses ``Reader``, ``Writer``, ``WriterAdv``: open
  ledgers. Their methods have bookstand's names.
* ``client.py``: ``Client``, one client of the cluster (like each ``bookstand.open`` of the same path), and
  ``Cluster``, the servers from the clients' view.

One machine represents the whole quorum, so there is no striping: every entry is where every reader expects it.

Where BookKeeper's behavior is accidental and bookstand deviates, the model follows bookstand; docs/differences.md lists
the deviations. Central numbers:

``last_add_confirmed`` (LAC)
    Highest entry that a handle knows to be acknowledged together with all entries before it. Entries carry the writer's
    LAC at the time of sending, so readers that learn the LAC from entries are one behind.
``last_add_pushed`` (LAP)
    For a plain writer, the last assigned entry id; for other handles, the highest id they learned.
``length``
    Sum of payload bytes, counted at submission and reduced by failed adds. Entries carry it (*cumulative length*). A
    reader only learns it where the methods below say so.
"""

from __future__ import annotations

from bookstand.testing.model.client import Client, Cluster
from bookstand.testing.model.handle import Handle
from bookstand.testing.model.reader import Reader
from bookstand.testing.model.servers import Bookie, Metadata, Servers, Stored
from bookstand.testing.model.session import Session
from bookstand.testing.model.values import (
    ADD_QUORUM_TIMEOUT,
    BATCH_ENTRY_OVERHEAD,
    BATCH_OVERHEAD,
    CLIENT_CLOSED,
    CLOSED,
    DEFAULT_DIGEST,
    DEFAULT_FRAME_BYTES,
    DIGEST_BYTES,
    DIGEST_MISMATCH,
    DUPLICATE_ENTRY,
    FENCED,
    HEADER_BYTES,
    ILLEGAL_OPERATION,
    IN_RECOVERY,
    INCORRECT_PARAMETER,
    LEDGER_CLOSED,
    LEDGER_EXISTS,
    LEDGER_RECOVERY,
    METADATA_VERSION,
    MISSING,
    NO_SUCH_ENTRY,
    NO_SUCH_LEDGER,
    NO_SUCH_LEDGER_ON_BOOKIE,
    NOT_ENOUGH_BOOKIES,
    OK,
    OPEN,
    READ_ERROR,
    UNAUTHORIZED,
    Entry,
    Pending,
    code_of,
    digest_name,
    error,
)
from bookstand.testing.model.writer import Writer, WriterAdv

__all__ = [
    "ADD_QUORUM_TIMEOUT",
    "BATCH_ENTRY_OVERHEAD",
    "BATCH_OVERHEAD",
    "Bookie",
    "CLIENT_CLOSED",
    "CLOSED",
    "Client",
    "Cluster",
    "DEFAULT_DIGEST",
    "DEFAULT_FRAME_BYTES",
    "DIGEST_BYTES",
    "DIGEST_MISMATCH",
    "DUPLICATE_ENTRY",
    "Entry",
    "FENCED",
    "HEADER_BYTES",
    "Handle",
    "ILLEGAL_OPERATION",
    "INCORRECT_PARAMETER",
    "IN_RECOVERY",
    "LEDGER_CLOSED",
    "LEDGER_EXISTS",
    "LEDGER_RECOVERY",
    "METADATA_VERSION",
    "MISSING",
    "Metadata",
    "NOT_ENOUGH_BOOKIES",
    "NO_SUCH_ENTRY",
    "NO_SUCH_LEDGER",
    "NO_SUCH_LEDGER_ON_BOOKIE",
    "OK",
    "OPEN",
    "Pending",
    "READ_ERROR",
    "Reader",
    "Servers",
    "Session",
    "Stored",
    "UNAUTHORIZED",
    "Writer",
    "WriterAdv",
    "code_of",
    "digest_name",
    "error",
]
