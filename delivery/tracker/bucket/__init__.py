"""Tracker of delayed messages in buckets (PIP-195)."""
