"""Negative acknowledgments (PIP-393)."""
