"""Index of positions by time."""
