"""Readers and writers of bookies' disks and metadata dumps; they need neither a server nor Spark."""
