"""Storage format: keys, entries, digests, checksums, ledger metadata and ledger state."""
