"""Storage format of cursors."""
