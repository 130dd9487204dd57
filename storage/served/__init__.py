"""Replicas of ledgers at served bookies."""
