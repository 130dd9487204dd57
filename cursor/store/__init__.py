"""Storage of a cursor: flushes, recovery, and the ledger that they use."""
