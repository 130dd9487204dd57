"""The client: append-only ledgers, digests, last-add-confirmed, fencing and recovery, as BookKeeper's client."""
