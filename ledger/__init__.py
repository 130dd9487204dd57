"""BookKeeper's client: append-only ledgers with digests, last-add-confirmed, fencing and recovery."""
