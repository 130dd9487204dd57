"""In-memory state of a cursor."""
