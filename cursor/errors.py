"""Errors of cursor records."""

from __future__ import annotations

from bookstand.errors import IncorrectParameterError, StoreDamagedError


class CursorDamagedError(StoreDamagedError):
    """A record of a cursor ledger is damaged, or is not the expected record."""


class ReservedPropertyError(IncorrectParameterError):
    """A property has a name that marks internal records of a cursor."""
