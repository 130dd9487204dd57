"""Values of the model: codes, digests, read entries, and pending results."""

from __future__ import annotations

from typing import Any, NamedTuple

from bookstand import errors

HEADER_BYTES = 32
DIGEST_BYTES = {"crc32": 8, "crc32c": 4, "hmac": 20, "dummy": 0}
DEFAULT_DIGEST = "crc32"
DEFAULT_FRAME_BYTES = 5 << 20
BATCH_OVERHEAD = 36  # fixed overhead of a batch response; each entry adds 4 bytes
BATCH_ENTRY_OVERHEAD = 4

OPEN, IN_RECOVERY, CLOSED = "OPEN", "IN_RECOVERY", "CLOSED"

OK = 0
READ_ERROR = -1
NOT_ENOUGH_BOOKIES = -6
NO_SUCH_LEDGER_ON_BOOKIE = -7
LEDGER_RECOVERY = -10
LEDGER_CLOSED = -11
NO_SUCH_ENTRY = -13
INCORRECT_PARAMETER = -14
METADATA_VERSION = -17
CLIENT_CLOSED = -19
LEDGER_EXISTS = -20
ADD_QUORUM_TIMEOUT = -21
DUPLICATE_ENTRY = -22
NO_SUCH_LEDGER = -25
DIGEST_MISMATCH = -5
ILLEGAL_OPERATION = -100
FENCED = -101
UNAUTHORIZED = -102


class Missing:
    """Sentinel for an omitted argument where None has another meaning."""


MISSING = Missing()


def error(code: int) -> errors.LedgerError:
    return errors.by_code(code)()


def code_of(exception: BaseException) -> int:
    if not isinstance(exception, errors.LedgerError):
        raise exception
    return exception.code


def digest_name(digest: str) -> str:
    name = digest.lower()
    return "hmac" if name == "mac" else name


class Entry(NamedTuple):
    ledger_id: int
    entry_id: int
    data: bytes
    length: int
    cumulative_length: int


class Pending:
    """Result of an operation that may be pending."""

    def __init__(self) -> None:
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._done

    def result(self, timeout: float | None = None) -> Any:
        if not self._done:
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._done:
            raise TimeoutError
        return self._error

    def complete(self, value: Any) -> None:
        if not self._done:
            self._done, self._value = True, value

    def fail(self, failure: BaseException) -> None:
        if not self._done:
            self._done, self._error = True, failure
