"""Tables of ledgers, entries, messages, cursors and delayed messages."""
