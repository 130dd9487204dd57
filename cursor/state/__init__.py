"""State of a cursor in memory."""
