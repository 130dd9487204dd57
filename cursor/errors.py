"""What can be wrong with a cursor's records."""

from __future__ import annotations

from bookstand.errors import IncorrectParameterError, StoreDamagedError


class CursorDamagedError(StoreDamagedError):
    """A record of a cursor's ledger is not what was written there, or not what belongs there."""


class ReservedPropertyError(IncorrectParameterError):
    """A property has a name that marks the cursor's own records."""
