"""Ledger handles: writers, readers and recovery."""
