"""Exceptions that bookstand raises.

All derive from :class:`BookstandError`. The two main families are:

* :class:`LedgerError`: errors of BookKeeper's client API, with BookKeeper's ``code``.
* :class:`StoreError`: errors of the local store, such as damage, a full disk, a fork or an unsupported format. Classes
  for which BookKeeper has a code belong to both families.
"""

from __future__ import annotations


class BookstandError(Exception):
    """Base class of all exceptions that bookstand raises."""


class LedgerError(BookstandError):
    """Error of a ledger operation, with BookKeeper's code."""

    code = -999
    default_message = "unexpected condition"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(self.default_message if message is None else message)


class StoreError(BookstandError):
    """Error of the store itself: its files, its format or its process."""


# -- errors with a BookKeeper code -----------------------------------------------------------------------------------


class ReadError(LedgerError):
    """The entry is not confirmed, as far as the handle knows, or the ledger cannot be read."""

    code = -1
    default_message = "error while reading ledger"


class QuorumError(LedgerError):
    """The quorums do not fit the ensemble. Raised by injected faults only; invalid arguments raise −14."""

    code = -2
    default_message = "invalid quorum size on ensemble size"


class NoBookieAvailableError(LedgerError):
    """No bookie is available. Raised by injected faults only."""

    code = -3
    default_message = "no bookie available"


class DigestNotInitializedError(LedgerError):
    """The client has no digest. Raised by injected faults only."""

    code = -4
    default_message = "digest engine not initialized"


class DigestMismatchError(LedgerError):
    """An entry does not match its digest, or is stored under the id of another entry."""

    code = -5
    default_message = "entry digest does not match"


class NotEnoughBookiesError(LedgerError):
    """The disk is full (the cause is then a :class:`DiskFullError`), or the ensemble exceeds the number of bookies."""

    code = -6
    default_message = "not enough non-faulty bookies available"


class NoSuchLedgerOnBookieError(LedgerError):
    """The requested entry belongs to a ledger to which no entry was ever added."""

    code = -7
    default_message = "no such ledger exists on bookies"


class BookieHandleNotAvailableError(LedgerError):
    """A bookie is not available. Raised by injected faults only."""

    code = -8
    default_message = "bookie handle is not available"


class MetadataServiceError(LedgerError):
    """The metadata service failed. Raised by injected faults only."""

    code = -9
    default_message = "error while using the metadata service"


class LedgerRecoveryError(LedgerError):
    """A ledger cannot be recovered; the cause has the reason. Recovery never closes a ledger before a damaged entry."""

    code = -10
    default_message = "error while recovering ledger"


class LedgerClosedError(LedgerError):
    """The ledger or the writer is closed."""

    code = -11
    default_message = "attempt to write to a closed ledger"


class WriteError(LedgerError):
    """The entry was not stored, because the entry before it is missing or the commit failed."""

    code = -12
    default_message = "write failed on bookie"


class NoSuchEntryError(LedgerError):
    """The entry does not exist, and its absence is not damage: it follows the last entry, or was never written."""

    code = -13
    default_message = "no such entry"


class IncorrectParameterError(LedgerError, ValueError):
    """An argument is invalid. Nothing has been changed."""

    code = -14
    default_message = "incorrect parameter"


class InterruptedOperationError(LedgerError):
    """An exception interrupted an earlier call, which may have left a change incomplete. Reopen the object. Injected
    faults can also raise it."""

    code = -15
    default_message = "interrupted while waiting for permit"


class ProtocolVersionError(LedgerError):
    """Client and bookie use incompatible protocol versions. Raised by injected faults only."""

    code = -16
    default_message = "bookie protocol version is incompatible with client"


class MetadataVersionError(LedgerError):
    """A compare-and-set failed, because the version has changed."""

    code = -17
    default_message = "bad metadata version"


class MetaStoreError(LedgerError):
    """The metadata store failed. Raised by injected faults only."""

    code = -18
    default_message = "error while using metastore"


class ClientClosedError(LedgerError):
    """The store was closed."""

    code = -19
    default_message = "the store is closed"


class LedgerExistsError(LedgerError):
    """A ledger with this id already exists."""

    code = -20
    default_message = "ledger exists"


class AddEntryQuorumTimeoutError(LedgerError):
    """An add exceeded ``add_quorum_timeout``. It may or may not have been stored."""

    code = -21
    default_message = "add entry quorum wait timed out"


class DuplicateEntryIdError(LedgerError):
    """The entry id has already been used."""

    code = -22
    default_message = "attempted to add a duplicate entry id"


class OperationTimeoutError(LedgerError, TimeoutError):
    """An operation did not complete before the timeout. It continues in the background."""

    code = -23
    default_message = "operation timed out"


class SecurityError(LedgerError):
    """A secure connection cannot be established. Raised by injected faults only."""

    code = -24
    default_message = "failed to establish a secure connection"


class NoSuchLedgerError(LedgerError):
    """The ledger does not exist, or has been deleted."""

    code = -25
    default_message = "no such ledger"


class IllegalOperationError(LedgerError):
    """The operation is not allowed in the current state or with the current settings."""

    code = -100
    default_message = "invalid operation"


class LedgerFencedError(LedgerError):
    """Another client has opened the ledger with recovery, or taken over the topic. This writer cannot continue."""

    code = -101
    default_message = "ledger has been fenced off; some other client must have opened it for recovery"


class UnauthorizedAccessError(LedgerError):
    """The password does not match the ledger's."""

    code = -102
    default_message = "attempted to access ledger using the wrong password"


class UnclosedFragmentError(LedgerError):
    """A fragment of a ledger is not closed. Raised by injected faults only."""

    code = -103
    default_message = "attempting to use an unclosed fragment; this is not safe"


class WriteOnReadOnlyError(LedgerError):
    """The store was opened read-only."""

    code = -104
    default_message = "attempting to write on a store opened read-only"


class TooManyRequestsError(LedgerError):
    """A bookie is overloaded. Raised by injected faults only."""

    code = -105
    default_message = "too many requests"


class LedgerIdOverflowError(LedgerError):
    """All ledger ids have been used."""

    code = -106
    default_message = "next ledger id is too large"


class MetadataSerializationError(LedgerError):
    """A ledger's metadata cannot be parsed, or cannot be written in the configured format."""

    code = -107
    default_message = "failed to serialize metadata"


class DataUnknownError(LedgerError):
    """It is unknown if the entry was stored. Raised by injected faults only."""

    code = -108
    default_message = "ledger in limbo: it is not known whether the entry was stored"


class ReplicationError(LedgerError):
    """Replication failed. Raised by injected faults only."""

    code = -200
    default_message = "errors in replication pipeline"


class UnexpectedConditionError(LedgerError):
    """An error without a more specific code."""

    code = -999
    default_message = "unexpected condition"


# -- the store -------------------------------------------------------------------------------------------------------


class StoreNotFoundError(StoreError):
    """The path has no store, and ``create`` is False."""


class NotAStoreError(StoreError):
    """The path is not a store: it is a file, data of another program, or an LMDB file without a superblock."""


class StoreFormatError(StoreError):
    """The store's format version is not supported. The message describes how to upgrade."""


class StoreDamagedError(StoreError):
    """The store's files are damaged. Never raised for data that is merely absent."""


class StoreRolledBackError(StoreDamagedError):
    """The data file is older than the last commit that its witness has recorded."""


class StoreInUseError(StoreError):
    """The store is already open in a way that excludes the requested one."""


class ForkedStoreError(StoreError):
    """A store opened before a fork was used in the child."""


class StoreCrashedError(StoreError):
    """A test simulated a crash of the store. Objects opened before the crash can no longer be used."""


class StoreAccessError(StoreError):
    """The operating system denied access to the store's files."""


class ServerAddressError(StoreError):
    """A server cannot listen at its address: the port is in use or not permitted, or the host is invalid."""


class DiskFullError(StoreError):
    """The disk is full. The store serves reads, and accepts writes again when space is available."""


class OutcomeUnknownError(StoreError):
    """A commit failed, and it is unknown if it took effect. Read the data again before retrying."""


class EntryTooLargeError(IncorrectParameterError):
    """The entry exceeds the store's ``max_entry_bytes``."""


class NoSuchNodeError(StoreError, KeyError):
    """The node does not exist."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class MissingExtraError(BookstandError, ImportError):
    """A feature requires optional packages that are not installed. The message names the extra."""


_CODED: dict[int, type[LedgerError]] = {
    cls.code: cls for cls in LedgerError.__subclasses__() if not issubclass(cls, StoreError)
}


def by_code(code: int) -> type[LedgerError]:
    """Return the class for ``code``, or :class:`UnexpectedConditionError` like BookKeeper's factory."""
    return _CODED.get(code, UnexpectedConditionError)


# -- decoding errors -------------------------------------------------------------------------------------------------


class MalformedError(BookstandError, ValueError):
    """Bytes cannot be decoded. The message names the malformed part."""


class ExpansionError(MalformedError):
    """An entry or a record expands to more bytes than ``ExpansionLimits`` allows."""


class MalformedMessageError(MalformedError):
    """An entry is not a message, or is truncated."""


class MessageChecksumError(MalformedMessageError):
    """A message does not match its checksum."""


class MalformedRecordError(MalformedError):
    """The record of a managed ledger or a cursor cannot be decoded."""


class MalformedAckStateError(MalformedError):
    """The acknowledgments of a cursor cannot be decoded."""
