"""Pulsar's managed ledger: a topic as a sequence of ledgers, and the message format."""
