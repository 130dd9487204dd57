"""Checks of what users pass in, each with an error that says what was expected."""

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
    """A payload as bytes of its own, whatever the buffer it came in; what the caller does to that later is not seen."""
    if type(data) is bytes:
        return data
    if isinstance(data, bytes):
        return bytes(data)
    try:
        return memoryview(data).tobytes()  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        raise IncorrectParameterError(f"an entry is bytes or another buffer, not {type(data).__name__}") from None


def as_payloads(given: Iterable[object]) -> list[bytes]:
    """Many of them, each taken over as it comes, for whoever gives them may use one buffer for all."""
    if isinstance(given, list | tuple):
        payloads = list(given)
        if all_bytes(payloads):
            return payloads
    return list(map(as_payload, given))


def all_bytes(payloads: Sequence[object]) -> bool:
    # Seen at once, a tenth as dear as asking each.
    return list(map(type, payloads)).count(bytes) == len(payloads)


def check_size(ledger_id: int, entry_id: int, payload: bytes, digest_bytes: int, limit: int) -> None:
    stored = HEADER_BYTES + digest_bytes + len(payload)
    if stored > limit:
        raise EntryTooLargeError(
            f"entry {ledger_id}:{entry_id} would be {stored} bytes with header and digest; the store takes {limit}"
        )


def as_password(password: object) -> bytes:
    if isinstance(password, str):
        return password.encode()
    if password is None:
        raise IncorrectParameterError("a password is needed (b'' is one)")
    try:
        return memoryview(password).tobytes()  # type: ignore[arg-type]
    except TypeError:
        raise IncorrectParameterError(f"a password is bytes or str, not {type(password).__name__}") from None


def as_entry_id(value: object) -> int:
    number = _as_int("an entry id", value)
    if number > MAX_ENTRY_ID:
        raise IncorrectParameterError(f"entry id {number} does not fit in 63 bits")
    return number


def as_ledger_id(value: object) -> int:
    """A ledger id from 0 up, or :class:`IncorrectParameterError`."""
    number = _as_int("a ledger id", value)
    if not 0 <= number <= MAX_LEDGER_ID:
        raise IncorrectParameterError(f"a ledger id is from 0 to {MAX_LEDGER_ID}, not {number}")
    return number


def as_count(what: str, value: object) -> int:
    return _as_int(what, value)


def as_timeout(timeout: object) -> float | None:
    if timeout is None or (isinstance(timeout, int | float) and timeout == timeout):
        return timeout
    raise IncorrectParameterError(f"a timeout is a number of seconds or None, not {timeout!r}")


def as_positive(what: str, value: object) -> int:
    number = _as_int(what, value)
    if number < 1:
        raise IncorrectParameterError(f"{what} must be positive, not {number}")
    return number


def as_interval(what: str, value: object) -> float | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value > 0):
        return value
    raise IncorrectParameterError(f"{what} is a positive number of seconds or None, not {value!r}")


def _as_int(what: str, value: object) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise IncorrectParameterError(f"{what} is an integer, not {value!r}")
    return value.__index__()  # type: ignore[no-any-return]
