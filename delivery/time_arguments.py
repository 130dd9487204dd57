"""Conversion of time arguments: milliseconds or ``datetime`` objects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from bookstand.delivery.tracker.protocol import LARGEST, check_millis, check_time
from bookstand.errors import IncorrectParameterError

Span = int | timedelta
"""Milliseconds, or a timedelta."""
Moment = int | datetime
"""Milliseconds since 1970, or a datetime with a time zone."""

_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_millis(name: str, span: Span) -> int:
    if isinstance(span, timedelta):
        # Rounded up, so that no wait is too short.
        span = -(-span // _MILLISECOND)
    return check_millis(name, span, 0)


def to_epoch_millis(name: str, moment: Moment) -> int:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise IncorrectParameterError(f"{name} must have a time zone, {moment} has none")
        return -((_EPOCH - moment) // _MILLISECOND)
    if isinstance(moment, bool):
        raise IncorrectParameterError(
            f"{name} must be an integer (milliseconds since 1970) or a datetime, not {moment!r}"
        )
    return check_time(moment)


def delivery_time(deliver_after: Span | None, deliver_at: Moment | None, now: int) -> int | None:
    """Delivery time of a message, from one of the two arguments; None if both are None."""
    if deliver_after is None:
        return None if deliver_at is None else to_epoch_millis("deliver_at", deliver_at)
    if deliver_at is not None:
        raise IncorrectParameterError("deliver_after and deliver_at exclude each other: set one of them")
    return min(now + to_millis("deliver_after", deliver_after), LARGEST)
