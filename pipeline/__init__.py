"""Batch jobs and tables over many stores and bookies' disks, on Spark or in local processes."""
