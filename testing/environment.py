"""Environment variables of the test kit, for modules that check them before importing it."""

FAULTS = "BOOKSTAND_FAULTS"
"""Faults to inject: set by a replay line, and read by :meth:`bookstand.testing.Faults.from_environment`."""
