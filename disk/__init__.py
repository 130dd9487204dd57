"""Readers of real bookies' disks and of metadata dumps: files as they lie there, without a server and without Spark."""
