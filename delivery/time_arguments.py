"""Times as people give them: milliseconds, or what Python's ``datetime`` has for them."""

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
        # A wait that is not whole is not cut short.
        span = -(-span // _MILLISECOND)
    return check_millis(name, span, 0)


def to_epoch_millis(name: str, moment: Moment) -> int:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise IncorrectParameterError(f"{name} needs a time zone, {moment} has none")
        return -((_EPOCH - moment) // _MILLISECOND)
    if isinstance(moment, bool):
        raise IncorrectParameterError(f"{name} is a number of milliseconds, not {moment!r}")
    return check_time(moment)


def delivery_time(deliver_after: Span | None, deliver_at: Moment | None, now: int) -> int | None:
    """When a message is to be delivered, if that is said at all, in one of the two ways."""
    if deliver_after is None:
        return None if deliver_at is None else to_epoch_millis("deliver_at", deliver_at)
    if deliver_at is not None:
        raise IncorrectParameterError("a message is delivered after a while or at a time, not both")
    return min(now + to_millis("deliver_after", deliver_after), LARGEST)
