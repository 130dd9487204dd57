"""Exit codes of the commands."""

from __future__ import annotations

from bookstand.errors import (
    BookstandError,
    DigestMismatchError,
    IncorrectParameterError,
    MalformedError,
    MetadataSerializationError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchNodeError,
    NotAStoreError,
    StoreDamagedError,
    StoreFormatError,
    StoreNotFoundError,
)
from bookstand.tools.cli.damage_report import DamageError

FINE = 0
DAMAGE = 1
WRONG_ARGUMENTS = 2
NOT_THERE = 3
FAILED = 4
INTERRUPTED = 130
"""128 + SIGINT, as in shells."""

MEANINGS = {
    FINE: "success",
    DAMAGE: "damage was found; all readable data was printed",
    WRONG_ARGUMENTS: "invalid arguments",
    NOT_THERE: "not found, neither a store nor a bookie's disk, or in a newer format",
    FAILED: "failed or refused: disk full, conflicting data in the store, error of the operating system",
    INTERRUPTED: "interrupted",
}

# The first match applies.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (StoreFormatError, NOT_THERE),
    (StoreNotFoundError, NOT_THERE),
    (NotAStoreError, NOT_THERE),
    (NoSuchNodeError, NOT_THERE),
    (NoSuchLedgerError, NOT_THERE),
    (NoSuchEntryError, NOT_THERE),
    (StoreDamagedError, DAMAGE),
    (DamageError, DAMAGE),
    (DigestMismatchError, DAMAGE),
    (MetadataSerializationError, DAMAGE),
    (MalformedError, DAMAGE),
    (IncorrectParameterError, WRONG_ARGUMENTS),
    (BookstandError, FAILED),
    (OSError, FAILED),
)


def code_of(error: BaseException) -> int:
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)


def code_of_failure(told: str) -> int:
    """Return the exit code for a failure that is formatted as ``ErrorName: message``."""
    name = told.partition(":")[0]
    return next((code for kind, code in _CODES if kind.__name__ == name), FAILED)
