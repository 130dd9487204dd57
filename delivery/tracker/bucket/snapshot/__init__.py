"""Snapshots of buckets: format and storage."""
