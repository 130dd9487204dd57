"""Format of the store: keys, entries, digests, checksums, ledger metadata and ledger state."""
