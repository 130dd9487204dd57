"""File formats of a bookie's disk."""
