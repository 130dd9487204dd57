"""Response codes of version 2, their equivalents in version 3, and the mapping of errors to codes."""

from __future__ import annotations

from collections.abc import Mapping

from bookstand.errors import DiskFullError, LedgerError

OK = 0
NO_LEDGER = 1
NO_ENTRY = 2
BAD_REQUEST = 100
IO_ERROR = 101
UNAUTHORIZED = 102
BAD_VERSION = 103
FENCED = 104
READ_ONLY = 105
TOO_MANY_REQUESTS = 106
LIMBO = 107

STATUS: Mapping[int, int] = {
    OK: 0,
    NO_LEDGER: 402,
    NO_ENTRY: 403,
    BAD_REQUEST: 404,
    IO_ERROR: 501,
    UNAUTHORIZED: 502,
    BAD_VERSION: 503,
    FENCED: 504,
    READ_ONLY: 505,
    TOO_MANY_REQUESTS: 506,
    LIMBO: 507,
}
"""Status of version 3 for each code of version 2."""

NAMES: Mapping[int, str] = {
    OK: "ok",
    NO_LEDGER: "no_ledger",
    NO_ENTRY: "no_entry",
    BAD_REQUEST: "bad_request",
    IO_ERROR: "io_error",
    UNAUTHORIZED: "unauthorized",
    BAD_VERSION: "bad_version",
    FENCED: "fenced",
    READ_ONLY: "read_only",
    TOO_MANY_REQUESTS: "too_many_requests",
    LIMBO: "limbo",
}

# By the error code of the client. All other errors are reported as I/O errors.
_BY_CLIENT_CODE: Mapping[int, int] = {
    -7: NO_LEDGER,
    -25: NO_LEDGER,
    -13: NO_ENTRY,
    -14: BAD_REQUEST,
    -16: BAD_VERSION,
    -101: FENCED,
    -102: UNAUTHORIZED,
    -104: READ_ONLY,
    -105: TOO_MANY_REQUESTS,
    -108: LIMBO,
}


def code_of(error: BaseException | None) -> int:
    """Response code for an error; OK for None."""
    if error is None:
        return OK
    if isinstance(error.__cause__, DiskFullError):
        return READ_ONLY
    return _BY_CLIENT_CODE.get(error.code, IO_ERROR) if isinstance(error, LedgerError) else IO_ERROR
