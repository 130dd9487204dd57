"""BookKeeper's ledgers as plain dictionaries and lists: the reference model.

This is what bookstand is compared to, and a description of BookKeeper's client that can be run. Nothing here is fast,
durable or concurrent; every operation takes effect at once, and the only way to see something unfinished is to hold it
(``Cluster.hold``).

The parts, from the bottom up; each knows those before it alone:

* ``values.py``: the codes, and what is answered.
* ``servers.py``: ``Bookie``, what the storage side keeps of one ledger: entries, the fence, the highest LAC it has
  heard of. ``Metadata``, the record of one ledger in the metadata service, with the version for compare-and-set.
  ``Servers``, both of these for all ledgers, the watches, and the faults.
* ``session.py``: ``Session``, a client as open ledgers know it.
* ``handle.py``, ``reader.py``, ``writer.py``: ``Handle`` and below it ``Reader``, ``Writer``, ``WriterAdv``: open
  ledgers. Their methods have bookstand's names.
* ``client.py``: ``Client``, one client of the cluster (``bookstand.open`` of one path gives such a client each time),
  and ``Cluster``, the servers as clients know them.

One machine answers for the whole quorum, so there are no stripes: every entry is where everybody looks for it.

Where BookKeeper's behaviour is an accident and bookstand decided otherwise, the model does what bookstand decided;
docs/differences.md has the list. The numbers that matter everywhere:

``last_add_confirmed`` (LAC)
    The highest entry a handle knows to be acknowledged together with all before it. Entries carry the writer's LAC of
    the moment they were sent, so who learns the LAC from entries is one behind.
``last_add_pushed`` (LAP)
    For a plain writer the last id handed out; for all others what they have learnt.
``length``
    The sum of payload bytes, counted at submission and rolled back for adds that fail. The entries carry it
    (*cumulative length*). A reader learns it only from where the rules below say so.
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
