"""Every error bookstand raises.

One root, :class:`BookstandError`. Below it two families:

* :class:`LedgerError`: what BookKeeper would answer, with BookKeeper's ``code``. These are answers, and a program
  written for BookKeeper handles them as it did there.
* :class:`StoreError`: what only a store on one machine can say (damaged, full, forked, of a newer format). Where
  BookKeeper has a code for the situation, the class is in both families.

``by_code`` maps a code to the class that carries it; unknown codes give :class:`UnexpectedConditionError`, as
BookKeeper's own factory does.
"""

from __future__ import annotations


class BookstandError(Exception):
    """Root of everything bookstand raises."""


class LedgerError(BookstandError):
    """An answer of the ledger service, with BookKeeper's code."""

    code = -999
    default_message = "unexpected condition"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(self.default_message if message is None else message)


class StoreError(BookstandError):
    """Something about the store itself: its files, its format, its process."""


# -- answers with a code ---------------------------------------------------------------------------------------------


class ReadError(LedgerError):
    """What is to be read is not known to be confirmed, or the ledger cannot be read."""

    code = -1
    default_message = "error while reading ledger"


class QuorumError(LedgerError):
    """The quorums do not fit the ensemble. A store never raises it: such arguments are −14. Faults can."""

    code = -2
    default_message = "invalid quorum size on ensemble size"


class NoBookieAvailableError(LedgerError):
    """No bookie can be reached. A store never raises it; faults can."""

    code = -3
    default_message = "no bookie available"


class DigestNotInitializedError(LedgerError):
    """The client has no digest. A store never raises it; faults can."""

    code = -4
    default_message = "digest engine not initialized"


class DigestMismatchError(LedgerError):
    """An entry is damaged: its bytes are not those that its digest was made of, or are another entry's."""

    code = -5
    default_message = "entry digest does not match"


class NotEnoughBookiesError(LedgerError):
    """The disk is full (the cause is then a :class:`DiskFullError`), or the ledger asks for more bookies than there
    are."""

    code = -6
    default_message = "not enough non-faulty bookies available"


class NoSuchLedgerOnBookieError(LedgerError):
    """An entry of a ledger that never got one was asked for."""

    code = -7
    default_message = "no such ledger exists on bookies"


class BookieHandleNotAvailableError(LedgerError):
    """A bookie cannot be reached. A store never raises it; faults can."""

    code = -8
    default_message = "bookie handle is not available"


class MetadataServiceError(LedgerError):
    """The metadata service failed. A store never raises it; faults can."""

    code = -9
    default_message = "error while using the metadata service"


class LedgerRecoveryError(LedgerError):
    """A ledger cannot be recovered; the cause says why. A damaged entry is no end of a ledger."""

    code = -10
    default_message = "error while recovering ledger"


class LedgerClosedError(LedgerError):
    """The ledger, or the writer, is closed."""

    code = -11
    default_message = "attempt to write to a closed ledger"


class WriteError(LedgerError):
    """Nothing was stored: the entry before it is missing, or the commit failed."""

    code = -12
    default_message = "write failed on bookie"


class NoSuchEntryError(LedgerError):
    """There is no such entry, and there need not be: it is behind the last one stored, or was never written."""

    code = -13
    default_message = "no such entry"


class IncorrectParameterError(LedgerError, ValueError):
    """An argument makes no sense; nothing has been changed."""

    code = -14
    default_message = "incorrect parameter"


class InterruptedOperationError(LedgerError):
    """An exception arrived in the middle of an earlier call, which may have made half of a change: open the object
    again. Faults can raise it, too."""

    code = -15
    default_message = "interrupted while waiting for permit"


class ProtocolVersionError(LedgerError):
    """Client and bookie speak other versions. A store never raises it; faults can."""

    code = -16
    default_message = "bookie protocol version is incompatible with client"


class MetadataVersionError(LedgerError):
    """A compare-and-set met another version: somebody else was faster."""

    code = -17
    default_message = "bad metadata version"


class MetaStoreError(LedgerError):
    """The metadata store failed. A store never raises it; faults can."""

    code = -18
    default_message = "error while using metastore"


class ClientClosedError(LedgerError):
    """The store was closed."""

    code = -19
    default_message = "the store is closed"


class LedgerExistsError(LedgerError):
    """A ledger with this id exists."""

    code = -20
    default_message = "ledger exists"


class AddEntryQuorumTimeoutError(LedgerError):
    """An add took longer than ``add_quorum_timeout``. Whether it is stored is not known."""

    code = -21
    default_message = "add entry quorum wait timed out"


class DuplicateEntryIdError(LedgerError):
    """The writer has used this entry id before."""

    code = -22
    default_message = "attempted to add a duplicate entry id"


class OperationTimeoutError(LedgerError, TimeoutError):
    """What was waited for was not complete in time. It goes on."""

    code = -23
    default_message = "operation timed out"


class SecurityError(LedgerError):
    """No secure connection. A store never raises it; faults can."""

    code = -24
    default_message = "failed to establish a secure connection"


class NoSuchLedgerError(LedgerError):
    """There is no ledger with this id, or no longer."""

    code = -25
    default_message = "no such ledger"


class IllegalOperationError(LedgerError):
    """What was asked for is not possible in this state, or not with these settings."""

    code = -100
    default_message = "invalid operation"


class LedgerFencedError(LedgerError):
    """Somebody else has opened the ledger with recovery, or taken the topic over: this writer has to stop."""

    code = -101
    default_message = "ledger has been fenced off; some other client must have opened it for recovery"


class UnauthorizedAccessError(LedgerError):
    """The password is not the ledger's."""

    code = -102
    default_message = "attempted to access ledger using the wrong password"


class UnclosedFragmentError(LedgerError):
    """A fragment of a ledger is not closed. A store never raises it; faults can."""

    code = -103
    default_message = "attempting to use an unclosed fragment; this is not safe"


class WriteOnReadOnlyError(LedgerError):
    """The store was opened read-only."""

    code = -104
    default_message = "attempting to write on a store opened read-only"


class TooManyRequestsError(LedgerError):
    """A bookie has too much to do. A store never raises it; faults can."""

    code = -105
    default_message = "too many requests"


class LedgerIdOverflowError(LedgerError):
    """There are no ledger ids left."""

    code = -106
    default_message = "next ledger id is too large"


class MetadataSerializationError(LedgerError):
    """A ledger's metadata cannot be read, or not be written in the format that is set."""

    code = -107
    default_message = "failed to serialize metadata"


class DataUnknownError(LedgerError):
    """Whether an entry was stored is not known. A store never raises it: it knows; faults can."""

    code = -108
    default_message = "ledger in limbo: it is not known whether the entry was stored"


class ReplicationError(LedgerError):
    """Replication failed. A store never raises it; faults can."""

    code = -200
    default_message = "errors in replication pipeline"


class UnexpectedConditionError(LedgerError):
    """What has no code of its own."""

    code = -999
    default_message = "unexpected condition"


# -- the store -------------------------------------------------------------------------------------------------------


class StoreNotFoundError(StoreError):
    """There is no store at the path, and ``create`` was False."""


class NotAStoreError(StoreError):
    """The path holds something else: a file, another program's data, an LMDB file without our superblock."""


class StoreFormatError(StoreError):
    """The store's format version is not this library's; the message names the way out."""


class StoreDamagedError(StoreError):
    """Damage in the store's files. Never used for something that is merely absent."""


class StoreRolledBackError(StoreDamagedError):
    """The file is older than the last commit that its witness has seen."""


class StoreInUseError(StoreError):
    """The store is open already in a way that excludes this one."""


class ForkedStoreError(StoreError):
    """A store opened before a fork was used in the child."""


class StoreCrashedError(StoreError):
    """A test had the store crash; nothing that was open at that moment works any more."""


class StoreAccessError(StoreError):
    """The operating system refuses access to the store's files."""


class ServerAddressError(StoreError):
    """A server cannot listen where it should: the port is taken, or not allowed, or the host is none."""


class DiskFullError(StoreError):
    """No space left; the store answers reads, and takes writes again once there is space."""


class OutcomeUnknownError(StoreError):
    """A commit failed where it cannot be told whether it took effect; re-read before trying again."""


class EntryTooLargeError(IncorrectParameterError):
    """The entry is larger than the store's ``max_entry_bytes``."""


class NoSuchNodeError(StoreError, KeyError):
    """There is no node at the path."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class MissingExtraError(BookstandError, ImportError):
    """A part was used whose optional packages are not installed; the message names the extra."""


_CODED: dict[int, type[LedgerError]] = {
    cls.code: cls for cls in LedgerError.__subclasses__() if not issubclass(cls, StoreError)
}


def by_code(code: int) -> type[LedgerError]:
    """The class that carries ``code``; :class:`UnexpectedConditionError` for a code nobody defined."""
    return _CODED.get(code, UnexpectedConditionError)


# -- what others wrote, or what an entry holds -----------------------------------------------------------------------


class MalformedError(BookstandError, ValueError):
    """Bytes that are not what they should be; the message says which part of them is broken."""


class ExpansionError(MalformedError):
    """An entry or a record expands to more bytes than ``ExpansionLimits`` allows."""


class MalformedMessageError(MalformedError):
    """An entry is no message, or no whole one."""


class MessageChecksumError(MalformedMessageError):
    """A message's bytes are not those that its checksum was made of."""


class MalformedRecordError(MalformedError):
    """The record of a managed ledger or of a cursor cannot be read."""


class MalformedAckStateError(MalformedError):
    """The acknowledgments of a cursor cannot be read."""
