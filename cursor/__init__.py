"""Cursors: the acknowledgment state of subscriptions, in memory and in storage."""
