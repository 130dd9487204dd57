"""Pulsar's managed ledger: the ledgers of a topic, and the format of its messages."""
