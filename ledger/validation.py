"""Validation and conversion of arguments."""

from __future__ import annotations

from bookstand.errors import EntryTooLargeError, IncorrectParameterError
from bookstand.storage.format.entry_codec import HEADER_BYTES
from bookstand.storage.format.schema import MAX_ENTRY_ID, MAX_LEDGER_ID

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

MISSING: Any = object()


def as_payload(data: object) -> bytes:
    """Convert a bytes-like payload to bytes, copying mutable buffers."""
    if type(data) is bytes:
        return data
    if isinstance(data, bytes):
        return bytes(data)
    try:
        return memoryview(data).tobytes()  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        raise IncorrectParameterError(f"an entry must be bytes-like, not {type(data).__name__}") from None


def as_payloads(values: Iterable[object]) -> list[bytes]:
    """Convert several payloads. Each is copied before the next is read: the source may reuse one buffer."""
    if isinstance(values, list | tuple):
        payloads = list(values)
        if all_bytes(payloads):
            return payloads
    return list(map(as_payload, values))


def all_bytes(payloads: Sequence[object]) -> bool:
    # Ten times faster than a loop of type checks.
    return list(map(type, payloads)).count(bytes) == len(payloads)


def check_size(ledger_id: int, entry_id: int, payload: bytes, digest_bytes: int, limit: int) -> None:
    stored = HEADER_BYTES + digest_bytes + len(payload)
    if stored > limit:
        raise EntryTooLargeError(
            f"entry {ledger_id}:{entry_id} would have {stored} bytes with header and digest; the limit is {limit}"
        )


def as_password(password: object) -> bytes:
    if isinstance(password, str):
        return password.encode()
    if password is None:
        raise IncorrectParameterError("a password is required (b'' is allowed)")
    try:
        return memoryview(password).tobytes()  # type: ignore[arg-type]
    except TypeError:
        raise IncorrectParameterError(f"a password must be bytes or str, not {type(password).__name__}") from None


def as_entry_id(value: object) -> int:
    number = _as_int("an entry id", value)
    if number > MAX_ENTRY_ID:
        raise IncorrectParameterError(f"entry id {number} does not fit in 63 bits")
    return number


def as_ledger_id(value: object) -> int:
    """Return a non-negative ledger id, or raise :class:`IncorrectParameterError`."""
    number = _as_int("a ledger id", value)
    if not 0 <= number <= MAX_LEDGER_ID:
        raise IncorrectParameterError(f"a ledger id must be from 0 to {MAX_LEDGER_ID}, not {number}")
    return number


def as_count(what: str, value: object) -> int:
    return _as_int(what, value)


def as_timeout(timeout: object) -> float | None:
    if timeout is None or (isinstance(timeout, int | float) and timeout == timeout):
        return timeout
    raise IncorrectParameterError(f"a timeout must be a number of seconds or None, not {timeout!r}")


def as_positive(what: str, value: object) -> int:
    number = _as_int(what, value)
    if number < 1:
        raise IncorrectParameterError(f"{what} must be positive, not {number}")
    return number


def as_interval(what: str, value: object) -> float | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0):
        return value
    raise IncorrectParameterError(f"{what} must be a positive number of seconds or None, not {value!r}")


def _as_int(what: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise IncorrectParameterError(f"{what} must be an integer, not {value!r}")
    return value.__index__()  # type: ignore[no-any-return]
