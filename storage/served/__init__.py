"""Copies of ledgers on served bookies."""
