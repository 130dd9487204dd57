"""What fails now and may not fail the next time."""

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
"""What may be over when it is tried again."""

ATTEMPTS = 4

_T = TypeVar("_T")


def with_retries(action: Callable[[], _T]) -> _T:
    """Try again what may pass, some times."""
    for _ in range(ATTEMPTS - 1):
        try:
            return action()
        except TRANSIENT_ERRORS:
            continue
    return action()
