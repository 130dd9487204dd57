"""Bookie directories, the copies of entries in them, and the ledgers that these copies form."""
