"""Trackers of delayed messages."""
