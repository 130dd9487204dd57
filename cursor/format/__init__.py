"""Format of stored cursors."""
