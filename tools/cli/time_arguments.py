"""Parsing of times on the command line."""

from __future__ import annotations

from datetime import UTC, datetime

from bookstand.errors import IncorrectParameterError


def millis_of(text: str | None) -> int | None:
    """Parse ISO 8601 (UTC by default) or milliseconds since 1970."""
    if text is None:
        return None
    if text.isdecimal() and text.isascii():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise IncorrectParameterError(f"a time must be 2026-01-31T12:00:00Z or ms since 1970, not {text!r}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
