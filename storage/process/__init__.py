"""Processes that share a store: their files, markers, locks, forks and interrupts."""
