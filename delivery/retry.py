"""Retries of operations that fail for transient reasons."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from bookstand import errors

TRANSIENT_ERRORS = (
    errors.BookieHandleNotAvailableError,
    errors.MetadataServiceError,
    errors.NotEnoughBookiesError,
    errors.OperationTimeoutError,
    errors.QuorumError,
    errors.ReadError,
    errors.TooManyRequestsError,
    errors.WriteError,
)
"""Errors that may not occur again."""

ATTEMPTS = 4

_T = TypeVar("_T")


def with_retries(action: Callable[[], _T]) -> _T:
    """Call an action up to ``ATTEMPTS`` times while it raises transient errors."""
    for _ in range(ATTEMPTS - 1):
        try:
            return action()
        except TRANSIENT_ERRORS:
            continue
    return action()
