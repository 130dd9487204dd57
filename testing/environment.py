"""Variables of the environment that the test kit reads, for whoever looks whether one is set before loading it."""

FAULTS = "BOOKSTAND_FAULTS"
"""What :meth:`bookstand.testing.Faults.from_environment` reads, and a replay line sets."""
